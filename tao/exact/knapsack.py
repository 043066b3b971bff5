"""One node by itself: which of the sessions that gain something there to take, so that they gain most.

A 0/1 knapsack, solved depth first with Dantzig's bound (Martello and Toth 1990, section 2.5): take
the densest while they fit; what the next would bring if it could be cut bounds all that can follow.
Pareto lists (Nemhauser and Ullmann 1969) are the other way; this one needs no memory.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tao import kernels
from tao._jit import njit

KNAPSACK_STEPS = 20_000  # ours: beyond it a node's knapsack counts with its bound
CHEAP = 8  # ours: so many steps inside a knapsack cost about as much as one across nodes
SPENT, BUDGET, SLACK = range(3)  # of a meter
EXACT_RATIOS = 2**26  # of numbers below it, floats tell any two ratios apart


class Lists(NamedTuple):
    """For each node the sessions that gain there: node b has the positions start[b] to start[b + 1] - 1.

    start int64[m + 1]. Per position: item int64[p] the session, profit and size int64[p], inside bool[p]
    whether it is in the node's best set; densest first (profit per token). The rest is scratch.
    meter int64[3]: steps spent, how many may be, and 1 where floats may not tell two densities apart.
    """

    start: npt.NDArray[np.int64]
    item: npt.NDArray[np.int64]
    profit: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    inside: npt.NDArray[np.bool_]
    other: npt.NDArray[np.bool_]
    key: npt.NDArray[np.float64]
    taken: npt.NDArray[np.int64]
    meter: npt.NDArray[np.int64]


@njit
def lists_of(worth, prefer, meter):
    """`Lists` of all pairs of session and node that are worth something, in order of session."""
    n, m = prefer.shape
    start = np.zeros(m + 1, np.int64)
    for i in range(n):
        for k in range(m):
            b = prefer[i, k]
            if b < 0 or worth[i, b] <= 0:  # the nodes worth most come first
                break
            start[b + 1] += 1
    for b in range(m):
        start[b + 1] += start[b]
    at, p = start.copy(), start[m]
    item = np.empty(p, np.int64)
    for i in range(n):
        for k in range(m):
            b = prefer[i, k]
            if b < 0 or worth[i, b] <= 0:
                break
            item[at[b]] = i
            at[b] += 1
    return empty_lists(start, item, meter)


@njit
def empty_lists(start, item, meter):
    """`Lists` with nothing computed yet."""
    p = len(item)
    numbers = (np.empty(p, np.int64), np.empty(p, np.int64))
    marks = (np.zeros(p, np.bool_), np.zeros(p, np.bool_))
    return Lists(start, item, *numbers, *marks, np.empty(p, np.float64), np.empty(p + 1, np.int64), meter)


@njit
def sort_node(lists, b, worth, price, demand):
    """Profit = worth - price of each session of node b, and its positions densest first."""
    lo, hi = lists.start[b], lists.start[b + 1]
    item, key, profit, size = lists.item, lists.key, lists.profit, lists.size
    for p in range(lo, hi):
        i = item[p]
        gain = worth[i, b] - price[i]
        if demand[i] > 0:
            key[p] = -gain / demand[i]
        else:
            key[p] = -math.inf if gain > 0 else 0.0
    kernels.sort_by(key[lo:hi], item[lo:hi])
    for p in range(lo, hi):
        i = item[p]
        profit[p], size[p] = worth[i, b] - price[i], demand[i]


@njit
def share(profit, room, size, slack):
    """Profit of the part of a session that fits: room / size of it, rounded down, never too low."""
    if profit < 2**31 and room < 2**31:
        return profit * room // size + slack
    return int(profit / size * room * (1 + 2.0**-48)) + 1


@njit
def knapsack(lists, b, room, skip, best):
    """The best set of node b in `room`, position `skip` left out (-1: none): (profit, bound on it).

    best bool[p] is written for the node's positions. Both numbers are equal unless the steps run out.
    """
    lo, hi, taken, meter = lists.start[b], lists.start[b + 1], lists.taken, lists.meter
    profit, size = lists.profit, lists.size  # numba counts references each time it takes one from a tuple
    allowed = min(KNAPSACK_STEPS, CHEAP * (meter[BUDGET] - meter[SPENT]))
    value, left, p, depth, steps = 0, room, lo, 0, 0
    found, root = -1, -1
    while True:
        steps += 1
        sum_, rest, stop = value, left, p
        while stop < hi and profit[stop] > 0 and (stop == skip or size[stop] <= rest):
            if stop != skip:
                sum_ += profit[stop]
                rest -= size[stop]
            stop += 1
        cut = stop < hi and profit[stop] > 0
        bound = sum_ + share(profit[stop], rest, size[stop], meter[SLACK]) if cut else sum_
        if root < 0:
            root = bound
        if bound > found:
            for q in range(p, stop):
                if q != skip:
                    taken[depth] = q
                    depth += 1
            value, left, p = sum_, rest, stop + 1
            if cut and (steps < allowed or found < 0):
                continue
            if value > found:
                found = value
                for q in range(lo, hi):
                    best[q] = False
                for d in range(depth):
                    best[taken[d]] = True
        if depth == 0 or steps >= allowed:
            break
        depth -= 1
        last = taken[depth]
        value, left, p = value - profit[last], left + size[last], last + 1
    meter[SPENT] += 1 + steps // CHEAP
    return found, found if steps < allowed or found == root or depth == 0 else root
