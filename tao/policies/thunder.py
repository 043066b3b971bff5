"""ThunderAgent: whole agent runs pause and resume every 5 s, shortest first, blind to cache and tools.

Three modes that differ in how a node's load is counted and who pauses:

* CODE, as ThunderAgent's code does it (a7eef77): a tool does not make a session lighter, and one token too
  much among answering sessions marks all of them. A session is ranked by its size when it paused.
* PAPER, as its paper defines it: the load of a session in a tool halves every second, and answering sessions
  are marked only until what stays fits.
* DYNAMO, as NVIDIA Dynamo's Python router has it (08cda65): it pauses above 95 % of the capacity, down to
  80 %, resumes up to 85 %, and sends new sessions where the decayed load is least. Idle sessions that
  expire, lower priority between 80 and 95 %, and limits on requests do not exist here.

One difference in every mode: it knows a request's tokens exactly, where the code estimates them from
characters. Sessions that share a prefix are charged for it each, as in all three sources.
"""

from __future__ import annotations

import numpy as np

from tao._jit import njit
from tao.kernels import sort_by
from tao.profiles import PS_PER_S
from tao.state import (
    CAPACITY,
    CONTEXT,
    HOLD,
    LAST_NODE,
    LEAVING,
    LIVE,
    NOW_PS,
    PHASE,
    PLACED,
    POOL,
    REASONING,
    RESIDENT,
    RESIDENTS,
    SINCE_PS,
    STREAMED,
    TOOL,
    TOOL_PS,
    TURN,
    WAITING,
    pause,
    place,
)
from tao.valuation import decayed

CODE, PAPER, DYNAMO = range(3)  # modes; the tuples below have an entry for each

# Columns of session_memory.
SIZE = 0  # its tokens when it paused or came
HOME = 1  # its node once the placements of this tick are done

PERIOD_S = 5.0  # ThunderAgent a7eef77, config.py: scheduler_interval; Dynamo the same
BUFFER = 100  # ThunderAgent a7eef77, state.py: BUFFER_PER_PROGRAM; Dynamo: buffer_per_program
FORCED_PS = 1800 * PS_PER_S  # ThunderAgent a7eef77, router.py: forced resume; Dynamo: resume_timeout_seconds
HALF_LIFE_S = 1.0  # ThunderAgent's paper, 4.2: 2^-t; Dynamo: acting_decay_tau_seconds
# ThunderAgent a7eef77, vllm_request_processor.py: counts every 20 chunks; the others every token
PROGRESS = (20, 1, 1)
# Percent of the capacity. ThunderAgent's paper, experiments: both watermarks 1.0
PAUSE_ABOVE = (100, 100, 95)  # Dynamo: pause_threshold 0.95
PAUSE_DOWN_TO = (100, 100, 80)  # Dynamo: pause_target 0.80
RESUME_UP_TO = (100, 100, 85)  # Dynamo: pause_threshold - resume_hysteresis 0.10

_BASE = 2**41  # more than the tokens of any session


@njit
def _tokens(s, i, mode):
    """Tokens of session i and its answer so far, as far as they are counted."""
    tokens = s[i, CONTEXT]
    if s[i, PHASE] == REASONING:
        tokens += s[i, STREAMED] // PROGRESS[mode] * PROGRESS[mode]
    return tokens


@njit
def _load(s, i, mode, fading, now_ps):
    """Tokens by which session i burdens its node; `fading`: less and less while it is in a tool."""
    tokens = _tokens(s, i, mode)
    if fading and s[i, PHASE] == TOOL:
        # Whole tokens, so that sums do not depend on the order of the sessions.
        tokens = decayed(tokens, (now_ps - s[i, TOOL_PS]) / PS_PER_S, HALF_LIFE_S)
    return tokens


@njit
def _loads(state, mode, fading):
    """int64[m], the loads of the residents of each node."""
    s, now_ps = state.session, state.clock[NOW_PS]
    found = np.zeros(len(state.node), np.int64)
    for k in range(state.clock[LIVE]):
        i = state.live[k]
        if s[i, RESIDENT] >= 0:
            found[s[i, RESIDENT]] += _load(s, i, mode, fading, now_ps)
    return found


@njit
def thunderagent_route(state, i, mode):
    """A new session starts at once if nobody is paused and it fits, on the node with the least load."""
    s, node = state.session, state.node
    if s[i, TURN] > 0:
        return HOLD
    state.session_memory[i, SIZE] = s[i, CONTEXT]
    if state.clock[POOL] > 1:
        return HOLD
    loads = _loads(state, mode, mode == PAPER)
    ranks = _loads(state, mode, mode != CODE)
    best, least = HOLD, 0
    for b in range(len(node)):
        buffers = BUFFER * node[b, RESIDENTS]
        rank = ranks[b] if mode == CODE else ranks[b] + buffers
        fits = loads[b] + buffers + s[i, CONTEXT] + BUFFER <= node[b, CAPACITY]
        if fits and (best < 0 or rank < least):
            best, least = b, rank
    return best


@njit
def thunderagent_on_finish(state, i, mode):
    """Keep the size by which the session is ranked, should it pause."""
    state.session_memory[i, SIZE] = state.session[i, CONTEXT]


@njit
def thunderagent_tick(state, mode):
    """Resume what fits, then whoever waited for half an hour, and pause where a node is overfull."""
    room = _loads(state, mode, mode == PAPER)
    for b in range(len(room)):
        top = state.node[b, CAPACITY] * RESUME_UP_TO[mode] // 100
        room[b] = top - room[b] - BUFFER * state.node[b, RESIDENTS]
    _resume(state, room, mode)
    _force(state)
    _pause(state, mode)


@njit
def _resume(state, room, mode):
    """Shortest first into the pooled room, then the longest of these to the node with most room.

    Waiting sessions come before new ones, and those before sessions in a tool. Worst fit may leave
    some of the chosen without a node until the next tick.
    """
    s, n = state.session, state.clock[POOL]
    keys, items = np.empty(n, np.int64), np.empty(n, np.int64)
    for k in range(n):
        i = items[k] = state.pool[k]
        frozen = mode == CODE and state.session_memory[i, SIZE] >= 0
        size = state.session_memory[i, SIZE] if frozen else s[i, CONTEXT]
        group = 1 if s[i, TURN] == 0 else 0 if s[i, PHASE] == WAITING else 2
        keys[k] = group * _BASE + size
    sort_by(keys, items)
    left, chosen = 0, 0
    for b in range(len(room)):
        left += room[b] if room[b] > BUFFER else 0
    for k in range(n):
        need = s[items[k], CONTEXT] + BUFFER
        if need <= left:
            left -= need
            keys[chosen], items[chosen] = -need, items[k]
            chosen += 1
    sort_by(keys[:chosen], items[:chosen])
    for k in range(chosen):
        widest = np.int64(0)  # a plain int would compile `place` once more
        for b in range(1, len(room)):
            if room[b] > room[widest]:
                widest = b
        if -keys[k] <= room[widest]:
            room[widest] += keys[k]
            place(state, items[k], widest)


@njit
def _force(state):
    """Whoever has waited too long goes back where it was, or where the fewest are, without regard to room."""
    s, node, placed = state.session, state.node, state.clock[PLACED]
    fewest = 0
    for b in range(1, len(node)):
        if node[b, RESIDENTS] < node[fewest, RESIDENTS]:
            fewest = b
    n = 0
    keys, items = np.zeros(state.clock[POOL], np.int64), np.empty(state.clock[POOL], np.int64)
    for k in range(state.clock[POOL]):
        i = state.pool[k]
        late = s[i, PHASE] == WAITING and s[i, SINCE_PS] <= state.clock[NOW_PS] - FORCED_PS
        for p in range(placed if late else 0):
            late = late and state.place[p, 0] != i
        if late:
            items[n] = i
            n += 1
    sort_by(keys[:n], items[:n])
    for k in range(n):
        home = s[items[k], LAST_NODE]
        place(state, items[k], home if home >= 0 else fewest)


@njit
def _staying(state):
    """int64[k], the sessions on nodes once the placements of this tick are done; HOME says where."""
    n, placed, count = state.clock[LIVE], state.clock[PLACED], 0
    items = np.empty(n + placed, np.int64)
    for k in range(n):
        i = state.live[k]
        if state.session[i, RESIDENT] >= 0:
            state.session_memory[i, HOME] = state.session[i, RESIDENT]
            items[count] = i
            count += 1
    for k in range(placed):
        items[count] = state.place[k, 0]
        state.session_memory[items[count], HOME] = state.place[k, 1]
        count += 1
    return items[:count]


@njit
def _overfull(state, items, mode):
    """int64[m], tokens that each node has to lose; of one that is not too full, 0 or less."""
    s, node, now_ps, homes = state.session, state.node, state.clock[NOW_PS], state.session_memory[:, HOME]
    over = np.zeros(len(node), np.int64)
    for i in items:
        over[homes[i]] += _load(s, i, mode, mode == PAPER, now_ps) + BUFFER
    for b in range(len(node)):
        full = over[b] > node[b, CAPACITY] * PAUSE_ABOVE[mode] // 100
        over[b] = over[b] - node[b, CAPACITY] * PAUSE_DOWN_TO[mode] // 100 if full else 0
    if mode == PAPER:  # what was marked before will make room without being asked again
        for i in items:
            if s[i, LEAVING]:
                over[homes[i]] -= _load(s, i, mode, mode == PAPER, now_ps) + BUFFER
    return over


@njit
def _pause(state, mode):
    """On an overfull node the smallest in a tool pause, then answering ones are marked.

    Only in mode PAPER does a mark count as room, so that marking ever stops before all are marked.
    """
    s, items = state.session, _staying(state)
    over = _overfull(state, items, mode)
    keys = np.empty(len(items), np.int64)
    for k in range(len(items)):
        acting = s[items[k], PHASE] == TOOL
        keys[k] = _tokens(s, items[k], mode) + (0 if acting else _BASE)
    sort_by(keys, items)
    for i in items:
        b = state.session_memory[i, HOME]
        if over[b] <= 0 or s[i, LEAVING]:
            continue
        pause(state, i)
        if s[i, PHASE] == TOOL or mode == PAPER:
            over[b] -= _load(s, i, mode, mode == PAPER, state.clock[NOW_PS]) + BUFFER


@njit
def code_route(state, i):
    """`thunderagent_route` in mode CODE."""
    return thunderagent_route(state, i, CODE)


@njit
def code_on_finish(state, i):
    """`thunderagent_on_finish` in mode CODE."""
    thunderagent_on_finish(state, i, CODE)


@njit
def code_tick(state):
    """`thunderagent_tick` in mode CODE."""
    thunderagent_tick(state, CODE)


@njit
def paper_route(state, i):
    """`thunderagent_route` in mode PAPER."""
    return thunderagent_route(state, i, PAPER)


@njit
def paper_on_finish(state, i):
    """`thunderagent_on_finish` in mode PAPER."""
    thunderagent_on_finish(state, i, PAPER)


@njit
def paper_tick(state):
    """`thunderagent_tick` in mode PAPER."""
    thunderagent_tick(state, PAPER)


@njit
def dynamo_route(state, i):
    """`thunderagent_route` in mode DYNAMO."""
    return thunderagent_route(state, i, DYNAMO)


@njit
def dynamo_on_finish(state, i):
    """`thunderagent_on_finish` in mode DYNAMO."""
    thunderagent_on_finish(state, i, DYNAMO)


@njit
def dynamo_tick(state):
    """`thunderagent_tick` in mode DYNAMO."""
    thunderagent_tick(state, DYNAMO)
