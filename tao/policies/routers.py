"""Routers: a node for every request at once, from counts and from what was sent where before.

`<name>_route(state, i)` returns the node for the request of session i; `<name>_on_finish(state, i)`
follows its answer. Nobody waits, so there are no ticks. `sticky` and `session_hash` keep a session
where it is and need no `on_finish`. Of equal nodes the first one wins.
"""

from __future__ import annotations

import math

from tao._jit import njit
from tao.state import (
    CAPACITY,
    CONTEXT,
    INFLIGHT,
    KEY,
    LEAVING,
    NOW_PS,
    PREFIX,
    RESIDENTS,
    SHARED,
    seen,
)

# Columns of node_memory. What is one number for all nodes stands in row 0.
NEXT = 0  # vllm_rr, vllm_dplb: row 0, the node to begin with
PUBLISHED = 1  # vllm_dplb: row 0, number of the broadcast that ADDED counts from
ADDED = 2  # vllm_dplb: requests sent there since that broadcast
WARM = 3  # cache_aware: 1 as soon as anything was sent there

LONGEST = 0  # pair_memory, cache_aware: tokens of the longest prompt sent there that still match

DPLB_LAG_PS = 100 * 10**9  # vLLM PR #49204, core_client.py: engines publish their counts every 100 ms
DPLB_CLIENTS = 1  # ours: one API server in front of all engines
DPLB_FULL_WEIGHT = 6.0  # vLLM PR #49204, core_client.py: weight of a queue where the KV cache is filling up
DPLB_FULL_FROM = 0.5  # vLLM PR #49204, core_client.py: usage from which that counts

VLLM_THRESHOLD = 0.3  # vllm-project/router, router_args.py: cache_threshold
VLLM_ABS = 64  # vllm-project/router, router_args.py: balance_abs_threshold
VLLM_REL = 1.5  # vllm-project/router, router_args.py: balance_rel_threshold
SGLANG_THRESHOLD = 0.3  # sgl-model-gateway, router_args.py: cache_threshold
SGLANG_ABS = 64  # sgl-model-gateway, router_args.py: balance_abs_threshold
SGLANG_REL = 1.5  # sgl-model-gateway, router_args.py: balance_rel_threshold

_MASK = 2**31 - 1  # numbers below stay under 2**31, products of two under 2**62


@njit
def leave(state, i):
    """Session i goes to the pool after its answer, so that its next request is routed anew."""
    state.session[i, LEAVING] = 1


@njit
def usage(node, b, running, pinned, shared):
    """Share of node b's KV cache that its running requests use, the prefix that all share counted once."""
    return (pinned + (shared if running else 0)) / node[b, CAPACITY]


@njit
def _least(node, column):
    """The first node with the least entry in a column."""
    best = 0
    for b in range(1, len(node)):
        if node[b, column] < node[best, column]:
            best = b
    return best


@njit
def sticky_route(state, i):
    """Each session stays on the node that had the fewest sessions when it came (ours)."""
    return _least(state.node, RESIDENTS)


@njit
def _mixed(key, b):
    """A number below 2**31 that looks drawn for each pair of key and node."""
    x = ((key ^ (key >> 31)) + (b + 1) * 0x9E3779B1) & _MASK  # 2**32 / golden ratio spreads the nodes
    for factor in (0x2C1B3C6D, 0x297A2D39):  # found by hash-prospector, C. Wellons
        x = ((x ^ (x >> 15)) * factor) & _MASK
    return x ^ (x >> 16)


@njit
def session_hash_route(state, i):
    """Each session on the node that its key picks, whatever the load (TokenCake's baseline).

    Rendezvous hashing: a node that is added takes over its share of the sessions and moves no other.
    """
    best, most = 0, -1
    for b in range(len(state.node)):
        drawn = _mixed(state.session[i, KEY], b)
        if drawn > most:
            best, most = b, drawn
    return best


@njit
def vllm_rr_route(state, i):
    """Nodes take turns, request by request (vLLM production-stack a6c01db, routing_logic.py: roundrobin)."""
    memory = state.node_memory
    b = memory[0, NEXT]
    memory[0, NEXT] = (b + 1) % len(state.node)
    return b


vllm_rr_on_finish = leave


@njit
def vllm_dplb_route(state, i):
    """The balancer inside vLLM's data-parallel front end (core_client.py as of PR #49204 and PR #47420).

    It sees running and waiting requests and KV usage as published last, adds what it has sent since, and
    begins its scan one node later each time; only a strictly lower score wins.
    """
    node, memory, now_ps = state.node, state.node_memory, state.clock[NOW_PS]
    m = len(node)
    if memory[0, PUBLISHED] != now_ps // DPLB_LAG_PS:
        memory[0, PUBLISHED] = now_ps // DPLB_LAG_PS
        for b in range(m):
            memory[b, ADDED] = 0
    best, least = 0, math.inf
    for j in range(m):
        b = (memory[0, NEXT] + j) % m
        running, queued, pinned = seen(node, b, now_ps, DPLB_LAG_PS)
        waiting = queued + memory[b, ADDED]
        score = float(max(DPLB_CLIENTS * node[b, INFLIGHT], waiting + running))
        full = usage(node, b, running, pinned, state.clock[SHARED]) - DPLB_FULL_FROM
        score += DPLB_FULL_WEIGHT * waiting * max(full, 0.0)
        if score < least:
            best, least = b, score
    memory[best, ADDED] += DPLB_CLIENTS
    memory[0, NEXT] = (memory[0, NEXT] + 1) % m
    return best


vllm_dplb_on_finish = leave


@njit
def _cache_aware(state, i, threshold, most_apart, most_times):
    """Where most of the prompt was sent before, unless that is too little of it or loads are too uneven.

    Prompts are compared in tokens, where the routers compare characters. Their limit on remembered
    text is left out: what it drops first is that of sessions that have ended.
    """
    s, node, sent = state.session, state.node, state.pair_memory
    least = most = node[0, INFLIGHT]
    target, longest = 0, -1
    for b in range(len(node)):
        # Where the conversation was rewritten, older prompts go on matching only so far.
        sent[i, b, LONGEST] = min(sent[i, b, LONGEST], s[i, PREFIX])
        match = sent[i, b, LONGEST]
        if state.node_memory[b, WARM]:
            match = max(match, min(state.clock[SHARED], s[i, CONTEXT]))
        if match > longest:
            target, longest = b, match
        least, most = min(least, node[b, INFLIGHT]), max(most, node[b, INFLIGHT])
    uneven = most - least > most_apart and most > most_times * least
    if uneven or longest / max(s[i, CONTEXT], 1) <= threshold:
        target = _least(node, INFLIGHT)
    sent[i, target, LONGEST] = s[i, CONTEXT]
    state.node_memory[target, WARM] = 1
    return target


@njit
def vllm_cache_aware_route(state, i):
    """The vLLM router's policy `cache_aware` (vllm-project/router, cache_aware.rs), no session map."""
    return _cache_aware(state, i, VLLM_THRESHOLD, VLLM_ABS, VLLM_REL)


vllm_cache_aware_on_finish = leave


@njit
def sglang_cache_aware_route(state, i):
    """The SGLang gateway's policy `cache_aware` (sgl-model-gateway, cache_aware.rs, 2026).

    Its rule for a miss is the least load, as in the vLLM router, which descends from it; with the
    default settings of both, the two decide alike.
    """
    return _cache_aware(state, i, SGLANG_THRESHOLD, SGLANG_ABS, SGLANG_REL)


sglang_cache_aware_on_finish = leave
