"""The dynamic program of `dp`, which opens only the states that can still win; compiled by `tao._jit`.

Symbols as in `tao.kernels`, and for a session's value, a triple, one or two integers:

    high : int64[n, m]   the value of session i on node b, or the part compared first; -1: does not fit
    low  : int64[n]      the rest of its value, the same on every node, which counts where `high` ties

The recurrence, with r the vector of remaining quanta and e_b the unit vector of node b:

    V[i, r] = max( V[i+1, r],  max over b of  value[i, b] + V[i+1, r - demand[i] * e_b] )

`tao.explain` fills it in plain Python. Here it is gone through depth first, the options of each session in
the order of the tie rule, without those that by `tao.dp.bounds` cannot beat the best plan known.
The first plan of the best value that turns up is then the one that the tie rule picks.

A state (i, r) may be reached again, with more or less collected before. Once its options are done, the
best of them bounds V[i, r], mostly from close by, and this is kept: it rules out most second visits.
"""

from __future__ import annotations

import numpy as np

from tao._jit import njit
from tao.dp import bounds

_MASK = 2**31 - 1  # hashes stay below it, so that no product leaves int64, compiled or interpreted
_SPENT = -(2**62)  # an option that is no more
_PATIENCE = 8  # ours: states opened per session before the second bound pays


@njit
def solve(demand, free, prefer, tier, spare, high, low, cells, budget):
    """The best plan, of equals the one that the tie rule picks: (int64[n] node or -1, number of states).

    A state is a session to decide and the remaining quanta. Each that is opened counts, again if opened
    again, but for one per session, which any plan takes: 1 where the search goes straight to its plan.
    cells : how many a table of the bounds may have. budget : how many states there may be; if that is too
    few, states = -1 and the choice is void.

    >>> high = np.array([[5, 4], [3, -1], [2, 2]])  # the second session may use node 0 only
    >>> prefer, none = np.array([[0, 1], [0, -1], [0, 1]]), np.zeros(3, np.int64)
    >>> sizes, room, tier = np.array([2, 2, 1]), np.array([2, 3]), np.array([[0, 1]] * 3)
    >>> choice, states = solve(sizes, room, prefer, tier, none[:2], high, none, 100, 100)
    >>> choice.tolist(), int(states)
    ([1, 0, 1], 1)
    """
    found = bounds.bound(demand, free, prefer, high, cells)
    best_high, best_low = _dive(demand, free, prefer, high, low, found)
    best_low -= 1  # the search is to find a plan as good, but the first by the tie rule
    most = budget + len(demand)
    first = min(most, _PATIENCE * len(demand) + 1)
    choice, opened, new_high, new_low = _explore(
        *(demand, free, prefer, tier, spare, high, low, found, best_high, best_low, first)
    )
    if opened > first and first < most:
        if new_high > best_high or (new_high == best_high and new_low > best_low):
            best_high, best_low = new_high, new_low - 1
        found = bounds.with_second(found, demand, free, high, cells)
        choice, opened, _, _ = _explore(
            *(demand, free, prefer, tier, spare, high, low, found, best_high, best_low, most - first)
        )
        opened += first
    return choice, opened - len(demand) if opened <= most else -1


@njit
def _dive(demand, free, prefer, high, low, found):
    """(high, low) of a plan that is often the best: each session in turn where the bound falls least."""
    n, m = prefer.shape
    left = free.copy()
    sum_high, sum_low = np.int64(0), np.int64(0)
    for i in range(n):
        pick, most = -1, np.int64(0)
        for k in range(m):
            b = prefer[i, k]
            if b < 0:
                break
            if left[b] < demand[i]:
                continue
            gain = high[i, b] - bounds.taken(found, i, b, left[b], demand[i])
            if gain > most or (gain == most and (pick < 0 or left[b] > left[pick])):
                pick, most = b, gain
        if pick >= 0:
            left[pick] -= demand[i]
            sum_high, sum_low = sum_high + high[i, pick], sum_low + low[i]
    return sum_high, sum_low


@njit
def _explore(demand, free, prefer, tier, spare, high, low, found, best_high, best_low, limit):
    """The first best plan worth more than (best_high, best_low): (choice, states opened, high, low of it).

    If more than `limit` states are opened, it is the best so far.
    """
    n, m = prefer.shape
    choice, node, left = np.full(n, -1, np.int64), np.full(n, -1, np.int64), free.copy()
    got, top = np.zeros((n + 1, 2), np.int64), np.zeros((n + 1, 2), np.int64)  # value before i, from i on
    offer, rest, mark = np.empty((n, m + 2), np.int64), np.empty(n + 1, np.int64), np.zeros(n + 1, np.int64)
    slots, memo = np.full(128, -1, np.int64), np.empty((64, m + 4), np.int64)  # left, i, mark, bound (2)
    rest_low = np.zeros(n + 1, np.int64)
    for i in range(n - 1, -1, -1):
        rest_low[i] = rest_low[i + 1] + low[i]
    rest[0], most = bounds.at_first(found, free)
    i, count, opened, arrived = 0, 0, 0, True
    while i >= 0 and opened <= limit:
        closed = False
        if arrived and i == n:
            best_high, best_low, closed, opened = got[n, 0], got[n, 1], True, opened + 1
            for j in range(n):
                choice[j] = node[j]
            if best_high == most and best_low == rest_low[0]:
                break
        elif arrived:
            s = slots[_find(slots, memo, left, i, mark[i])] if count else -1
            if s >= 0:
                top[i, 0], top[i, 1] = memo[s, m + 2], memo[s, m + 3]
                reach = got[i, 0] + top[i, 0]
                closed = reach < best_high or (reach == best_high and got[i, 1] + top[i, 1] <= best_low)
            if not closed:
                _offers(offer, rest[i], i, left, demand, prefer, high, found)
                top[i, 0], top[i, 1], opened = -1, 0, opened + 1
        b = m + 1
        if not closed:
            need = best_low - got[i, 1] - rest_low[i + 1]
            b = _next(offer, i, left, prefer, tier, spare, best_high - got[i, 0], low[i] > need, need < 0)
        arrived = b <= m
        if arrived:
            offer[i, b], node[i], rest[i + 1], mark[i + 1] = _SPENT, -1, offer[i, m + 1], mark[i]
            got[i + 1, 0], got[i + 1, 1] = got[i, 0], got[i, 1]
            if b < m:
                _place(i, b, node, left, got, rest, mark, demand, high, low, found)
            i += 1
            continue
        if not closed:
            _settle(top, offer, i, prefer, low, rest_low)
            count, slots, memo = _keep(slots, memo, count, left, i, mark[i], top)
        i -= 1
        if i >= 0:
            _back(i, node[i], left, top, demand, high, low)
    return choice, opened, best_high, best_low


@njit
def _offers(offer, most, i, left, demand, prefer, high, found):
    """Bound the value of the state (i, left) for each node that session i may go to, and for skipping it.

    most : the first bound on that state. offer : int64[n, m + 2], row i is written: node b in column b,
    `_SPENT` if i does not fit, then skipping, then the first bound for skipping.
    """
    m, pool, room = prefer.shape[1], found.pool, left.sum()
    most = bounds.passed(found, i, most, left)
    offer[i, m] = min(most, pool[i + 1, room >> found.coarse]) if len(pool) else most
    offer[i, m + 1] = most
    for k in range(m):
        b = prefer[i, k]
        if b < 0:
            break
        offer[i, b] = _SPENT
        if left[b] >= demand[i]:
            after = most - bounds.taken(found, i, b, left[b], demand[i])
            if len(pool):
                after = min(after, pool[i + 1, (room - demand[i]) >> found.coarse])
            offer[i, b] = high[i, b] + after


@njit
def _next(offer, i, left, prefer, tier, spare, need, placed, skipped):
    """The next node for session i by the tie rule, m to skip it, m + 1 if no offer is left that can win.

    An offer must exceed `need`, or reach it where `placed` (`skipped`) says that `low` is then enough.
    """
    m, pick = prefer.shape[1], -1
    for k in range(m):
        b = prefer[i, k]
        if b < 0 or (pick >= 0 and tier[i, b] != tier[i, pick]):
            break
        wins = offer[i, b] > need or (offer[i, b] == need and placed)
        if wins and (pick < 0 or left[b] + spare[b] > left[pick] + spare[pick]):
            pick = b
    if pick < 0:
        pick = m if offer[i, m] > need or (offer[i, m] == need and skipped) else m + 1
    return pick


@njit
def _place(i, b, node, left, got, rest, mark, demand, high, low, found):
    """Place session i on node b: what is left, collected, bounded and hashed before session i + 1."""
    now, then = left[b], left[b] - demand[i]
    rest[i + 1] -= bounds.taken(found, i, b, now, demand[i])
    mark[i + 1] = (mark[i] - _hash(b, now) + _hash(b, then)) & _MASK
    node[i], left[b] = b, then
    got[i + 1, 0] += high[i, b]
    got[i + 1, 1] += low[i]


@njit
def _raise(top, i, high, low):
    """Let the pair top[i] be at least (high, low)."""
    if high > top[i, 0] or (high == top[i, 0] and low > top[i, 1]):
        top[i, 0], top[i, 1] = high, low


@njit
def _settle(top, offer, i, prefer, low, rest_low):
    """Let top[i] bound the state of session i whose options are done: what was not tried could not win."""
    m = prefer.shape[1]
    for k in range(m):
        if prefer[i, k] >= 0:
            _raise(top, i, offer[i, prefer[i, k]], low[i] + rest_low[i + 1])
    _raise(top, i, offer[i, m], rest_low[i + 1])


@njit
def _back(i, b, left, top, demand, high, low):
    """Take session i off node b again, if it was placed, and let top[i] know what came of it."""
    if b < 0:
        _raise(top, i, top[i + 1, 0], top[i + 1, 1])
    else:
        left[b] += demand[i]
        _raise(top, i, top[i + 1, 0] + high[i, b], top[i + 1, 1] + low[i])


@njit
def _keep(slots, memo, count, left, i, mark, top):
    """Write the bound top[i] of state (i, left): (states in `memo`, slots, memo), for they may grow."""
    m, at = len(left), _find(slots, memo, left, i, mark)
    s = slots[at]
    if s < 0:
        s, count = count, count + 1
        slots[at], memo[s, m], memo[s, m + 1] = s, i, mark
        for b in range(m):
            memo[s, b] = left[b]
    memo[s, m + 2], memo[s, m + 3] = top[i, 0], top[i, 1]
    if count == len(memo):
        slots, memo = _doubled(slots, memo)
    return count, slots, memo


@njit
def _find(slots, memo, left, i, mark):
    """Where in `slots` the state (i, left), whose entries hash to `mark`, is or has its place."""
    m = len(left)
    at = (mark + 7919 * i) & (len(slots) - 1)
    while slots[at] >= 0:
        s = slots[at]
        same = memo[s, m] == i and memo[s, m + 1] == mark
        for b in range(m):
            if not same:
                break
            same = memo[s, b] == left[b]
        if same:
            break
        at = (at + 1) & (len(slots) - 1)
    return at


@njit
def _doubled(slots, memo):
    """(slots, memo) with room for twice as many states."""
    count, width = memo.shape
    wider, more = np.full(4 * count, -1, np.int64), np.empty((2 * count, width), np.int64)
    for s in range(count):
        for c in range(width):
            more[s, c] = memo[s, c]
        at = (memo[s, width - 3] + 7919 * memo[s, width - 4]) & (4 * count - 1)
        while wider[at] >= 0:
            at = (at + 1) & (4 * count - 1)
        wider[at] = s
    return wider, more


@njit
def _hash(b, left):
    """A number below 2**31 for `left` quanta on node b, mixed so that sums over nodes rarely agree."""
    mixed = ((left ^ (left >> 25)) & _MASK) * (2654435 * (b % 256) + 40503) & _MASK
    mixed = (mixed ^ (mixed >> 15)) * 739982445 & _MASK
    mixed = (mixed ^ (mixed >> 12)) * 695872825 & _MASK
    return mixed ^ (mixed >> 15)
