"""A cluster as arrays: what policies see and change, the same for stepper, engine and a live host.

A row per session and per node, named columns, times in int64 picoseconds. The functions here are
the only ones that change who is on the cluster, in the waiting pool or on a node, so that counts stay
right without ever being taken again. `tao.view` wraps a `State` for people.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tao import assign
from tao._jit import njit
from tao.durations import SURVIVAL, Book, is_under
from tao.model import Settings
from tao.profiles import PS_PER_S

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

HOLD = -1
NEW, WAITING, REASONING, TOOL, DONE = range(5)  # phases; NEW and DONE are not on the cluster

# Columns of State.session.
(
    PHASE,
    CONTEXT,  # context_tokens; of a waiting session that of its request
    TURN,
    RESIDENT,  # its node, -1: in the waiting pool
    LEAVING,  # 1: goes to the pool when its answer is complete
    LAST_NODE,
    SINCE_PS,  # waiting since
    STREAMED,  # tokens of the answer so far; counted when a policy that asks for it decides
    PREFIX,  # how much of the request repeats the conversation so far
    CHARGE,  # prefill tokens that a router counts for the request until its first token
    TOOL_PS,  # when the tool was called
    TOOL_DUE_PS,  # when it is known to return, -1: unknown
    KIND,  # kind of the tool (a row of State.book)
    RANK,  # position in the order of ids
    KEY,  # a hash of the id
    POOL_AT,  # where it stands in State.pool, -1: nowhere
    LIVE_AT,  # likewise in State.live
) = range(17)
SESSION_COLUMNS = 17

# Columns of State.node.
(
    CAPACITY,
    RESIDENTS,  # how many sessions
    USED,  # the sum of their contexts
    INFLIGHT,  # requests at the node
    PREFILLING,  # the sum of CHARGE of the requests that have no token yet
    RUNNING,  # requests in its batch
    QUEUED,  # requests in its queue
    PINNED,  # KV tokens of the running requests, when the segment in flight began
    # Steps of equal composition in flight: from when, the first one's length, by how much each next one
    # is longer, tokens that each adds to PINNED (0: no step before the last changes anything).
    SEGMENT_PS,
    STEP_PS,
    GROWTH_PS,
    BATCH,
    STEPS,
    # What a scrape of the node's metrics saw last.
    CHANGED_PS,
    SEEN_RUNNING,
    SEEN_QUEUED,
    SEEN_PINNED,
) = range(17)
NODE_COLUMNS = 17

NOTED, NOTED_PS, CACHED = range(3)  # State.pair: prefix seen last and when; idle tokens in the engine's cache

# Entries of State.clock.
(
    NOW_PS,
    LIVE,  # how many entries of State.live count
    POOL,  # likewise of State.pool
    SHARED,  # tokens of a prefix that all sessions share
    RANDOM,  # state of the generator
    # What `tick` decided: see State.place and State.pause.
    PLACED,
    PAUSED,
    COST_PS,  # how long the plan takes, -1: it holds at once
    WAKE_PS,  # when to ask again, -1: at the next change
    STATES,
    FALLBACK,  # 1: bfd placed because of the state budget, 2: because dp would leave a node empty
) = range(11)
CLOCK_ENTRIES = 11


class State(NamedTuple):
    """The arrays, for n sessions and m nodes, in order of drawing and of id."""

    session: Ints  # int64[n, SESSION_COLUMNS]
    node: Ints  # int64[m, NODE_COLUMNS]
    pair: Ints  # int64[n, m, 3]
    live: Ints  # int64[n], sessions on the cluster in any order, the first clock[LIVE]
    pool: Ints  # int64[n], those of them that no node holds, likewise
    clock: Ints  # int64[CLOCK_ENTRIES]
    asked_s: Floats  # float64[n], what a running `sleep` asked for, nan: it is none
    by_rank: Ints  # int64[n], the session of each rank
    # int64[n, 7]: session, node, credit, ready, tokens, turn, context of the first clock[PLACED] placements
    place: Ints
    pause: Ints  # int64[n], the first clock[PAUSED] to pause
    book: Book  # how long tools took
    settings: Settings
    # Whatever a policy remembers; each names its columns itself.
    session_memory: Ints  # int64[n, 2], begins as -1
    node_memory: Ints  # int64[m, 4], begins as 0
    pair_memory: Ints  # int64[n, m, 4], begins as 0


@njit
def _take_out(items, count, columns, at, i):
    """Remove session i from an unordered list; returns the new count."""
    k = columns[i, at]
    moved = items[count - 1]
    items[k] = moved
    columns[moved, at] = k
    columns[i, at] = -1
    return count - 1


@njit
def _put_in(items, count, columns, at, i):
    """Append session i to an unordered list; returns the new count."""
    items[count] = i
    columns[i, at] = count
    return count + 1


@njit
def start(state, i):
    """Session i comes onto the cluster, into the waiting pool."""
    s, clock = state.session, state.clock
    s[i, PHASE] = WAITING
    clock[LIVE] = _put_in(state.live, clock[LIVE], s, LIVE_AT, i)
    clock[POOL] = _put_in(state.pool, clock[POOL], s, POOL_AT, i)


@njit
def end(state, i):
    """Session i is done."""
    s, clock = state.session, state.clock
    move(state, i, HOLD)
    clock[POOL] = _take_out(state.pool, clock[POOL], s, POOL_AT, i)
    clock[LIVE] = _take_out(state.live, clock[LIVE], s, LIVE_AT, i)
    s[i, PHASE], s[i, CONTEXT] = DONE, 0


@njit
def move(state, i, b):
    """Session i becomes resident on node b, or (HOLD) goes to the waiting pool."""
    s, node, clock = state.session, state.node, state.clock
    old = s[i, RESIDENT]
    if old == b:
        return
    if old >= 0:
        node[old, RESIDENTS] -= 1
        node[old, USED] -= s[i, CONTEXT]
    else:
        clock[POOL] = _take_out(state.pool, clock[POOL], s, POOL_AT, i)
    s[i, RESIDENT] = b
    if b >= 0:
        node[b, RESIDENTS] += 1
        node[b, USED] += s[i, CONTEXT]
    else:
        clock[POOL] = _put_in(state.pool, clock[POOL], s, POOL_AT, i)


@njit
def resize(state, i, tokens):
    """The context of session i is now so large."""
    s = state.session
    b = s[i, RESIDENT]
    if b >= 0:
        state.node[b, USED] += tokens - s[i, CONTEXT]
    s[i, CONTEXT] = tokens


@njit
def random_below(state, n):
    """A number from 0 to n - 1, the same in every host (a linear congruential generator)."""
    clock = state.clock
    clock[RANDOM] = (clock[RANDOM] * 1103515245 + 12345) & 0x7FFFFFFF
    return (clock[RANDOM] >> 8) % n


@njit
def boundary_ps(node, b, j):
    """When step j of node b's segment ends."""
    return node[b, SEGMENT_PS] + j * node[b, STEP_PS] + node[b, GROWTH_PS] * (j * (j - 1) // 2)


@njit
def steps_by(node, b, at_ps):
    """How many steps of node b's segment have ended by `at_ps`, at that moment included."""
    low, high = 0, node[b, STEPS]
    while low < high:
        middle = (low + high + 1) // 2
        if boundary_ps(node, b, middle) <= at_ps:
            low = middle
        else:
            high = middle - 1
    return low


@njit
def pinned_at(node, b, at_ps):
    """KV tokens of node b's running requests, just before what happens at `at_ps`."""
    if node[b, BATCH] == 0:
        return node[b, PINNED]
    return node[b, PINNED] + node[b, BATCH] * steps_by(node, b, at_ps - 1)


@njit
def scrape(node, b, now_ps, lag_ps):
    """Keep what the last scrape saw; to be called before RUNNING, QUEUED or PINNED of node b change.

    Metrics are scraped at whole multiples of `lag_ps`, before anything else that happens then.
    """
    if lag_ps > 0 and now_ps // lag_ps > node[b, CHANGED_PS] // lag_ps:
        node[b, SEEN_RUNNING], node[b, SEEN_QUEUED] = node[b, RUNNING], node[b, QUEUED]
        node[b, SEEN_PINNED] = pinned_at(node, b, now_ps // lag_ps * lag_ps)
    node[b, CHANGED_PS] = now_ps


@njit
def seen(node, b, now_ps, lag_ps):
    """(running, queued, KV tokens of running requests) of node b, as scraped last."""
    if lag_ps <= 0:
        return node[b, RUNNING], node[b, QUEUED], pinned_at(node, b, now_ps + 1)
    if now_ps // lag_ps > node[b, CHANGED_PS] // lag_ps:
        return node[b, RUNNING], node[b, QUEUED], pinned_at(node, b, now_ps // lag_ps * lag_ps)
    return node[b, SEEN_RUNNING], node[b, SEEN_QUEUED], node[b, SEEN_PINNED]


@njit
def begin_tick(state):
    """Nothing is decided yet."""
    clock = state.clock
    clock[PLACED] = clock[PAUSED] = clock[STATES] = clock[FALLBACK] = 0
    clock[COST_PS] = clock[WAKE_PS] = -1


@njit
def place(state, i, b):
    """Enter a placement into the decision of this tick; returns its row."""
    k = state.clock[PLACED]
    state.place[k, 0], state.place[k, 1] = i, b
    for c in range(2, 5):
        state.place[k, c] = 0
    state.place[k, 5], state.place[k, 6] = state.session[i, TURN], state.session[i, CONTEXT]
    state.clock[PLACED] = k + 1
    return k


@njit
def pause(state, i):
    """Enter a pause into the decision of this tick."""
    state.pause[state.clock[PAUSED]] = i
    state.clock[PAUSED] += 1


@njit
def demand_tokens(state, i):
    """Tokens that session i takes on a node in TAO's books (see `Snapshot.demand_tokens`)."""
    shared = state.clock[SHARED] if state.settings.share_prefix else 0
    return max(state.session[i, CONTEXT] - shared, 0) + state.settings.reserve_tokens


@njit
def free_tokens(state, b):
    """Tokens left on node b in TAO's books (see `Snapshot.free_tokens`); negative if overfull."""
    node = state.node
    left = node[b, CAPACITY] - node[b, USED] - node[b, RESIDENTS] * state.settings.reserve_tokens
    if state.settings.share_prefix:
        left += (node[b, RESIDENTS] - 1) * state.clock[SHARED]
    return left


@njit
def still_running(state, i):
    """How many calls run that began a horizon or more before session i's: of its kind and of those above.

    Only where the statistic asks for it, otherwise zeros.
    """
    s, book, settings = state.session, state.book, state.settings
    own, above, top = 0, 0, 0
    if settings.statistic == SURVIVAL:
        kind, latest_s = s[i, KIND], s[i, TOOL_PS] / PS_PER_S - settings.horizon_s
        live, above_kind, top_kind = state.live, book.above[kind, 0], book.above[kind, 1]
        for k in range(state.clock[LIVE]):
            j = live[k]
            if j != i and s[j, PHASE] == TOOL and s[j, TOOL_PS] / PS_PER_S <= latest_s:
                own += is_under(book, s[j, KIND], kind)
                above += is_under(book, s[j, KIND], above_kind)
                top += is_under(book, s[j, KIND], top_kind)
    return own, above, top


@njit
def recheck(state, proposed):
    """Sort placements proposed earlier, the most valuable first, and say which still hold: int64[k].

    proposed : int64[k, 7], rows of State.place. Verdicts as in `assign`; whoever left the pool, or has
    another request by now, has changed.
    """
    s, k = state.session, len(proposed)
    for a in range(1, k):
        for b in range(a, 0, -1):
            low, high = proposed[b - 1], proposed[b]
            swap = s[low[0], RANK] > s[high[0], RANK]
            for c in range(4, 1, -1):
                if low[c] != high[c]:
                    swap = high[c] > low[c]
            if not swap:
                break
            for c in range(7):
                low[c], high[c] = high[c], low[c]
    objection, demand = np.zeros(k, np.int64), np.zeros(k, np.int64)
    for a in range(k):
        i = proposed[a, 0]
        demand[a] = demand_tokens(state, i)
        if s[i, POOL_AT] < 0 or s[i, TURN] != proposed[a, 5] or s[i, CONTEXT] != proposed[a, 6]:
            objection[a] = assign.CHANGED
    free = np.empty(len(state.node), np.int64)
    for b in range(len(free)):
        free[b] = free_tokens(state, b)
    return assign.verdicts(objection, demand, proposed[:, 1].copy(), free)
