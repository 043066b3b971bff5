"""How much the best plan can be worth at most, for `tao.dp.search` to leave out what cannot win; compiled.

Symbols as in `tao.kernels`, and high int64[n, m], the value of session i on node b as one integer, -1 where
it does not fit. V[i, r] is the most value of sessions i.. on the room r. Two bounds on it, from tables:

    V[i, r] <= sum over j >= i of share[j]  +  sum over b of K_b[i, r_b]
    V[i, r] <= P[i, sum over b of r_b]

Each session gets its share once, even if it goes nowhere. K_b is the best knapsack of node b alone, where
session j is worth high[j, b] - share[j]; one session may be packed on several nodes. No plan is worth more,
for it collects the value of each session on one node at most (Lagrangian decomposition; Fisher, Jaikumar
and Van Wassenhove 1986). Where each session has its cache on one node, shares of 0 leave the knapsacks
exact. P is the best knapsack of all room in one piece, each session at its highest value (surrogate
relaxation; Martello and Toth 1990): close where all nodes are as good as each other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tao._jit import njit
from tao.kernels import sort_by

_SWEEPS = 3  # ours: rounds of prices; more of them change little


class Bounds(NamedTuple):
    """What both bounds are read from; without rows, `pool` bounds nothing.

    K_b[i, r] is table[at[i, b] + (r >> grain)] and P[i, r] is pool[i, r >> coarse]: beyond so many cells as
    a table may have, quanta are taken 2**grain at a time, sizes rounded down, which only loosens the bound.
    """

    share: np.ndarray
    table: np.ndarray
    at: np.ndarray
    grain: int
    pool: np.ndarray
    coarse: int


@njit
def bound(demand, free, prefer, high, cells):
    """The first bound for sessions with those values; cells : how many a table may have."""
    share = shares(demand, free, prefer, high)
    table, at, grain = knapsacks(demand, free, high, share, cells)
    return Bounds(share, table, at, grain, np.empty((0, 0), np.int64), 0)


@njit
def with_second(first, demand, free, high, cells):
    """Both bounds; the table of the second is mostly the larger one."""
    pool, coarse = pooled(demand, free, high, cells)
    return Bounds(first.share, first.table, first.at, first.grain, pool, coarse)


@njit
def _rank(best, i, demand, prefer, high, price):
    """Write best[i]: the highest value of session i less the price of its room, the second, and its node."""
    best[i, 0], best[i, 1], best[i, 2] = 0, 0, -1
    for k in range(prefer.shape[1]):
        b = prefer[i, k]
        if b < 0:
            break
        gain = high[i, b] - price[b] * demand[i]
        if gain > best[i, 0]:
            best[i, 0], best[i, 1], best[i, 2] = gain, best[i, 0], b
        elif gain > best[i, 1]:
            best[i, 1] = gain


@njit
def _price(takers, rates, demand, room):
    """What the first taker that finds no room would pay per quantum, the highest rates first; 0 if all do."""
    for i in takers:
        room -= demand[i]
    if room >= 0:
        return np.int64(0)
    sort_by(rates, takers)  # ascending
    last = 0
    while room + demand[takers[last]] < 0:
        room += demand[takers[last]]
        last += 1
    return rates[last]


@njit
def shares(demand, free, prefer, high):
    """A share for each session that makes the first bound low: int64[n], its second value less prices.

    The price per quantum is what just fills the room: of all nodes together first, then of each node
    while the others keep theirs and every session goes where it gains most (coordinate descent). With
    the second value as its share, at most one node gains by a session.
    """
    n, m = prefer.shape
    best, takers, rates, count = np.empty((n, 3), np.int64), np.empty(n, np.int64), np.empty(n, np.int64), 0
    for i in range(n):
        if demand[i] > 0:
            takers[count], rates[count] = i, high[i].max() // demand[i]
            count += 1
    price = np.full(m, _price(takers[:count], rates[:count], demand, free.sum()))
    for i in range(n):
        _rank(best, i, demand, prefer, high, price)
    for _ in range(_SWEEPS):
        moved = False
        for b in range(m):
            count = 0
            for i in range(n):
                elsewhere = best[i, 1] if best[i, 2] == b else best[i, 0]
                if high[i, b] > elsewhere and demand[i] > 0:
                    takers[count], rates[count] = i, (high[i, b] - elsewhere) // demand[i]
                    count += 1
            new = _price(takers[:count], rates[:count], demand, free[b])
            if new != price[b]:
                price[b], moved = new, True
                for i in range(n):
                    if high[i, b] >= 0:
                        _rank(best, i, demand, prefer, high, price)
        if not moved:
            break
    return best[:, 1].copy()


@njit
def knapsacks(demand, free, high, share, cells):
    """The tables K_b: (table, at int64[n + 1, m], grain); a session worth nothing on b adds no row there."""
    n, m = high.shape
    rows, width, at = np.ones(m, np.int64), np.empty(m, np.int64), np.empty((n + 1, m), np.int64)
    for i in range(n):
        for b in range(m):
            rows[b] += high[i, b] > share[i]
    grain, total = -1, cells + 1
    while total > cells and grain < 40:
        grain, total = grain + 1, 0
        for b in range(m):
            at[n, b], width[b] = total, (free[b] >> grain) + 1
            total += rows[b] * width[b]
    table = np.empty(total, np.int64)
    for b in range(m):
        for x in range(at[n, b], at[n, b] + width[b]):
            table[x] = 0
    for i in range(n - 1, -1, -1):
        size = demand[i] >> grain
        for b in range(m):
            after = at[i + 1, b]
            at[i, b], worth = after, high[i, b] - share[i]
            if worth > 0:
                here = at[i, b] = after + width[b]
                for x in range(size):
                    table[here + x] = table[after + x]
                for x in range(size, width[b]):
                    table[here + x] = max(table[after + x], table[after + x - size] + worth)
    return table, at, grain


@njit
def pooled(demand, free, high, cells):
    """The table P and its grain: int64[n + 1, width], the last column for all room."""
    n, grain, width = len(demand), 0, free.sum() + 1
    while (n + 1) * width > cells and width > 1:
        grain += 1
        width = (free.sum() >> grain) + 1
    table = np.zeros((n + 1, width), np.int64)
    for i in range(n - 1, -1, -1):
        size, worth = demand[i] >> grain, high[i].max()
        for x in range(min(size, width)):
            table[i, x] = table[i + 1, x]
        for x in range(size, width):
            table[i, x] = max(table[i + 1, x], table[i + 1, x - size] + worth)
    return table, grain


@njit
def at_first(bounds, free):
    """(first bound, the lower of both) with all room, before the first session."""
    most = bounds.share.sum()
    for b in range(len(free)):
        most += bounds.table[bounds.at[0, b] + (free[b] >> bounds.grain)]
    return most, min(most, bounds.pool[0, -1]) if len(bounds.pool) else most


@njit
def passed(bounds, i, most, left):
    """The first bound on sessions i + 1.. with the room `left`, from `most`, that on sessions i.."""
    at, grain = bounds.at, bounds.grain
    most -= bounds.share[i]
    for b in range(len(left)):
        if at[i, b] != at[i + 1, b]:
            most -= bounds.table[at[i, b] + (left[b] >> grain)]
            most += bounds.table[at[i + 1, b] + (left[b] >> grain)]
    return most


@njit
def taken(bounds, i, b, left, size):
    """How much the first bound on sessions i + 1.. falls if `size` of `left` is taken on node b."""
    after, grain = bounds.at[i + 1, b], bounds.grain
    return bounds.table[after + (left >> grain)] - bounds.table[after + ((left - size) >> grain)]
