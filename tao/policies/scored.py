"""Routers that score every node from what engines report: Dynamo's KV router and llm-d.

`<name>_route(state, i)` returns a node for the request of session i or HOLD, `<name>_on_finish(state, i)`
follows its answer, and `dynamo_kv_tick(state)` lets in what was held. Of equal nodes one is drawn.
"""

from __future__ import annotations

import numpy as np

from tao._jit import njit
from tao.policies.routers import leave, usage
from tao.state import (
    CACHED,
    CAPACITY,
    CHARGE,
    CONTEXT,
    HOLD,
    LEAVING,
    NOW_PS,
    PHASE,
    POOL,
    PREFILLING,
    PREFIX,
    RESIDENT,
    SHARED,
    SINCE_PS,
    WAITING,
    place,
    random_below,
    seen,
)

# --- Dynamo's KV router ---------------------------------------------------------------------------

# Columns of node_memory.
ACTIVE = 0  # blocks of the unfinished requests there, without the prefix that all share
CHARGED = 1  # tokens charged to it so far
PENDING = 2  # of these, charged in this tick: the host has not counted them yet
HELD = 3  # row 0, how many requests wait

BLOCKS = 0  # session_memory: what its request adds to ACTIVE, -1: it has none at a node

DYNAMO_BLOCK = 16  # vLLM: tokens of a block on GPUs
DYNAMO_QUEUE = 16 * 8192  # Dynamo, kv_router config.rs: queue_threshold; vLLM: max_num_batched_tokens


@njit
def _dynamo_hit(state, i, b):
    """Tokens of session i's request in whole blocks on node b, as KV events tell."""
    s = state.session
    hit = min(state.pair[i, b, CACHED], s[i, PREFIX])
    memory = state.node_memory
    if memory[b, CHARGED] > state.node[b, PREFILLING] + memory[b, PENDING]:
        # Some request there has had its first token: the prefix that all share is computed.
        hit = max(hit, min(state.clock[SHARED], s[i, CONTEXT]))
    return hit // DYNAMO_BLOCK * DYNAMO_BLOCK


@njit
def _dynamo_cost(state, i, b):
    """What the request would have to wait for on node b: Dynamo's cost times the tokens of a block."""
    tokens, memory = state.session[i, CONTEXT], state.node_memory
    prefill = state.node[b, PREFILLING] + memory[b, PENDING] + tokens - _dynamo_hit(state, i, b)
    # ACTIVE lacks the shared prefix, which counts once: all blocks of this request come on top of it.
    return prefill + DYNAMO_BLOCK * (memory[b, ACTIVE] - (-tokens // DYNAMO_BLOCK))


@njit
def _dynamo_send(state, i):
    """The cheapest node for session i's request, which is counted there from now on."""
    s, memory = state.session, state.node_memory
    best, least, ties = np.int64(HOLD), 2**62, 0  # a plain int would compile what it is passed to once more
    for b in range(len(state.node)):
        cost = _dynamo_cost(state, i, b)
        if cost < least:
            best, least, ties = b, cost, 1
        elif cost == least:
            ties += 1
            if random_below(state, ties) == 0:
                best = b
    s[i, CHARGE] = s[i, CONTEXT] - _dynamo_hit(state, i, best)
    memory[best, CHARGED] += s[i, CHARGE]
    shared = min(state.clock[SHARED], s[i, CONTEXT]) // DYNAMO_BLOCK
    state.session_memory[i, BLOCKS] = -(-s[i, CONTEXT] // DYNAMO_BLOCK) - shared
    memory[best, ACTIVE] += state.session_memory[i, BLOCKS]
    return best


@njit
def _dynamo_ready(node, memory):
    """Has any node no more to prefill than it should?"""
    ready = False
    for b in range(len(node)):
        ready = ready or node[b, PREFILLING] + memory[b, PENDING] <= DYNAMO_QUEUE
    return ready


@njit
def _dynamo_first(state):
    """The held session that has waited longest."""
    s, best = state.session, HOLD
    for k in range(state.clock[POOL]):
        i = state.pool[k]
        if s[i, PHASE] != WAITING or state.session_memory[i, BLOCKS] >= 0:
            continue
        if best < 0 or (s[i, SINCE_PS], i) < (s[best, SINCE_PS], best):
            best = i
    return best


@njit
def dynamo_kv_route(state, i):
    """The node with the least to prefill and to hold for this request (Dynamo, selector/default.rs 07a6c9c).

    Defaults: KV events without lag, temperature 0, full credit for what is cached on the device, output
    not tracked, first come first served where all nodes are busy. Its forgetting of requests older than
    5 minutes (v1.4) is left out.
    """
    # Nobody overtakes those who wait, not even in the moment in which a node gets ready.
    if state.node_memory[0, HELD] > 0 or not _dynamo_ready(state.node, state.node_memory):
        state.node_memory[0, HELD] += 1
        return HOLD
    return _dynamo_send(state, i)


@njit
def dynamo_kv_tick(state):
    """Let in what waits, in order, as long as some node is ready."""
    memory = state.node_memory
    while memory[0, HELD] > 0 and _dynamo_ready(state.node, memory):
        i = _dynamo_first(state)
        if i == HOLD:  # whoever waited has been taken off the cluster
            memory[0, HELD] = 0
            break
        b = _dynamo_send(state, i)
        memory[b, PENDING] += state.session[i, CHARGE]
        memory[0, HELD] -= 1
        place(state, i, b)
    for b in range(len(memory)):
        memory[b, PENDING] = 0


@njit
def dynamo_kv_on_finish(state, i):
    """The blocks of the request are no load any more."""
    s = state.session
    state.node_memory[s[i, RESIDENT], ACTIVE] -= state.session_memory[i, BLOCKS]
    state.session_memory[i, BLOCKS] = -1
    s[i, LEAVING] = 1


# --- llm-d ----------------------------------------------------------------------------------------

# Columns of node_memory. A reference to session i is i + 1, to nobody 0.
OLDEST = 0  # first of the sessions in the node's index, which are linked by age
NEWEST = 1  # last of them
INDEXED = 2  # blocks in the index, without the prefix that all share
WARM = 3  # 1 as soon as anything was sent there

# Columns of pair_memory.
OLDER = 0  # its neighbors in that list
NEWER = 1
ENTRIES = 2  # blocks of the session in the node's index, without the prefix that all share
MATCH = 3  # blocks of its conversation that a request would find there, from the first one on

LLMD_LAG_PS = 50 * 10**9  # llm-d-router ebab687: metrics refreshed every 50 ms
LLMD_QUEUE = 2.0  # llm-d-router ebab687, config/loader/defaults.go: weight of queue-scorer
LLMD_USAGE = 2.0  # llm-d-router ebab687, config/loader/defaults.go: weight of kv-cache-utilization-scorer
LLMD_PREFIX = 3.0  # llm-d-router ebab687, config/loader/defaults.go: weight of prefix-cache-scorer
LLMD_BLOCK = 64  # llm-d-router ebab687, approximate prefix: least tokens of a block
LLMD_PROMPT = 131_072  # llm-d-router ebab687, approximate prefix: tokens of a prompt that count
LLMD_ENTRY = 16  # vLLM: tokens of a block; the index has as many entries as the node has such blocks


@njit
def _llmd_blocks(state, i):
    """(blocks of session i's request that count, how many of them all sessions share)."""
    tokens = min(state.session[i, CONTEXT], LLMD_PROMPT)
    return tokens // LLMD_BLOCK, min(state.clock[SHARED], tokens) // LLMD_BLOCK


@njit
def _llmd_match(state, i, b):
    """Share of the request's blocks that the index believes to be on node b."""
    memory = state.pair_memory
    # Where the conversation was rewritten, older blocks are no prefix of it any more.
    memory[i, b, MATCH] = min(memory[i, b, MATCH], state.session[i, PREFIX] // LLMD_BLOCK)
    blocks, shared = _llmd_blocks(state, i)
    found = memory[i, b, MATCH]
    if state.node_memory[b, WARM]:
        found = max(found, shared)
    return found / max(blocks, 1)


@njit
def _llmd_unlink(memory, ends, i, b):
    """Take session i out of node b's index."""
    older, newer = memory[i, b, OLDER], memory[i, b, NEWER]
    if older:
        memory[older - 1, b, NEWER] = newer
    else:
        ends[b, OLDEST] = newer
    if newer:
        memory[newer - 1, b, OLDER] = older
    else:
        ends[b, NEWEST] = older
    ends[b, INDEXED] -= memory[i, b, ENTRIES]
    memory[i, b, ENTRIES] = 0


@njit
def _llmd_trim(memory, ends, b, room):
    """Drop the oldest blocks of node b's index until no more than `room` are left."""
    while ends[b, INDEXED] > room and ends[b, OLDEST] != ends[b, NEWEST]:
        i = ends[b, OLDEST] - 1
        over = ends[b, INDEXED] - room
        # The head of a prompt is its oldest block, and without it the rest is found no more.
        memory[i, b, MATCH] = 0
        if over >= memory[i, b, ENTRIES]:
            _llmd_unlink(memory, ends, i, b)
        else:
            memory[i, b, ENTRIES] -= over
            ends[b, INDEXED] -= over


@njit
def _llmd_index(state, i, b):
    """Note that session i's request went to node b; the oldest entries of its index make room."""
    memory, ends = state.pair_memory, state.node_memory
    blocks, shared = _llmd_blocks(state, i)
    if memory[i, b, ENTRIES]:
        _llmd_unlink(memory, ends, i, b)
    memory[i, b, MATCH], memory[i, b, ENTRIES] = blocks, blocks - shared
    ends[b, WARM] = 1
    if blocks > shared:
        newest = ends[b, NEWEST]
        memory[i, b, OLDER], memory[i, b, NEWER] = newest, 0
        if newest:
            memory[newest - 1, b, NEWER] = i + 1
        else:
            ends[b, OLDEST] = i + 1
        ends[b, NEWEST] = i + 1
        ends[b, INDEXED] += blocks - shared
    # The shared blocks, touched by every request, are never the oldest.
    _llmd_trim(memory, ends, b, state.node[b, CAPACITY] // LLMD_ENTRY - shared)


@njit
def llmd_route(state, i):
    """The node with the highest sum of scores for queue, KV usage and prefix (llm-d-router ebab687).

    Queue and usage are as scraped last. The prefix index is approximate: written as requests are routed,
    never told what engines evict, and with room for four times what the engine holds, because it has one
    entry of 64 tokens for each engine block of 16. Blocks of a rewritten conversation leave it at the next
    request there, where the real one keeps them until they are the oldest. Flow control is off.
    """
    node, now_ps = state.node, state.clock[NOW_PS]
    shortest, longest = 2**62, 0
    for b in range(len(node)):
        _, queued, _ = seen(node, b, now_ps, LLMD_LAG_PS)
        shortest, longest = min(shortest, queued), max(longest, queued)
    best, most, ties = np.int64(HOLD), -1.0, 0
    for b in range(len(node)):
        running, queued, pinned = seen(node, b, now_ps, LLMD_LAG_PS)
        score = LLMD_QUEUE * ((longest - queued) / (longest - shortest) if longest > shortest else 1.0)
        score += LLMD_USAGE * (1.0 - min(usage(node, b, running, pinned, state.clock[SHARED]), 1.0))
        score += LLMD_PREFIX * _llmd_match(state, i, b)
        if score > most:
            best, most, ties = b, score, 1
        elif score == most:
            ties += 1
            if random_below(state, ties) == 0:
                best = b
    _llmd_index(state, i, best)
    return best


llmd_on_finish = leave
