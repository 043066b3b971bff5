"""Several nodes that want the same session: a price on it, so that each node can decide by itself.

A session may be placed once. Whoever takes it pays its price u >= 0, and the price is handed back in
the sum, so for any prices

    all u  +  over the nodes, the best profit after prices    >=   credit of every plan

(Fisher, Jaikumar and Van Wassenhove 1986). Where no session is wanted twice and none with a price is
left out, the bound is reached, and the plan is an optimum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tao._jit import njit
from tao.exact.knapsack import BUDGET, SPENT, knapsack, sort_node

ROUNDS = 60  # ours: steps towards the prices of room
STALE = 3  # ours: price changes without progress before the search branches


class Duals(NamedTuple):
    """Prices u int64[n] of sessions, value int64[m] of each node after prices, and how many nodes want
    each session, wanted int64[n].
    """

    u: npt.NDArray[np.int64]
    value: npt.NDArray[np.int64]
    wanted: npt.NDArray[np.int64]


@njit
def decide(lists, duals, b, worth, demand, free):
    """Node b takes its best set at the present prices."""
    lo, hi, item, inside, wanted = lists.start[b], lists.start[b + 1], lists.item, lists.inside, duals.wanted
    for p in range(lo, hi):
        wanted[item[p]] -= inside[p]
    sort_node(lists, b, worth, duals.u, demand)
    duals.value[b] = knapsack(lists, b, free[b], np.int64(-1), inside)[1]
    for p in range(lo, hi):
        wanted[item[p]] += inside[p]


@njit
def adopt(lists, duals, b):
    """Node b takes the set in `lists.other` instead of its own."""
    item, inside, other, wanted = lists.item, lists.inside, lists.other, duals.wanted
    for p in range(lists.start[b], lists.start[b + 1]):
        if inside[p] != other[p]:
            wanted[item[p]] += 1 if other[p] else -1
            inside[p] = other[p]


@njit
def reprice(lists, b, worth, price, demand):
    """Sort node b again after a price has changed; its set stays."""
    lo, hi, item, inside = lists.start[b], lists.start[b + 1], lists.item, lists.inside
    kept = np.zeros(len(price), np.bool_)
    for p in range(lo, hi):
        kept[item[p]] = inside[p]
    sort_node(lists, b, worth, price, demand)
    for p in range(lo, hi):
        inside[p] = kept[item[p]]


@njit
def room_prices(lists, worth, demand, free, known):
    """Prices of room float64[m], credit per token: subgradient steps (Polyak) towards the least bound.

    known : credit of a plan that exists. The bound that these prices give is that of linear programming.
    """
    n, m = worth.shape
    price, best, least = np.zeros(m), np.zeros(m), np.inf
    for b in range(m):  # each node by itself: the density of the first that does not fit
        left = free[b]
        for p in range(lists.start[b], lists.start[b + 1]):
            left -= lists.size[p]
            if left < 0:
                price[b] = max(-lists.key[p], 0.0)
                break
    slack, gain, node = np.empty(m), np.empty(n), np.empty(n, np.int64)
    pace, idle = 1.0, 0
    for _ in range(ROUNDS):
        bound, norm = _offer_room(lists, worth, demand, free, price, gain, node, slack)
        if bound < least:
            least, idle = bound, 0
            for b in range(m):
                best[b] = price[b]
        else:
            idle += 1
            if idle == 5:
                pace, idle = pace / 2, 0
        if norm == 0 or least <= known:
            break
        for b in range(m):
            price[b] = max(0.0, price[b] - pace * max(bound - known, 1.0) / norm * slack[b])
    return best


@njit
def _offer_room(lists, worth, demand, free, price, gain, node, slack):
    """Each session takes the node where it gains most after paying for its room: (bound, norm of slack)."""
    m, start, item = len(free), lists.start, lists.item
    gain[:] = 0.0
    node[:] = -1
    bound, norm = 0.0, 0.0
    for b in range(m):
        slack[b] = free[b]
        bound += price[b] * free[b]
        for p in range(start[b], start[b + 1]):
            i = item[p]
            here = worth[i, b] - price[b] * demand[i]
            if here > gain[i]:
                gain[i], node[i] = here, b
    for i in range(len(gain)):
        bound += gain[i]
        if node[i] >= 0:
            slack[node[i]] -= demand[i]
    for b in range(m):
        if slack[b] > 0 and price[b] <= 0:
            slack[b] = 0.0
        norm += slack[b] * slack[b]
    return bound, norm


@njit
def first_prices(lists, worth, demand, price, u):
    """u of each session between what it gains on its best and on its second node, room paid for."""
    n, start, item = len(u), lists.start, lists.item
    most, second = np.full(n, -np.inf), np.full(n, -np.inf)
    for b in range(len(price)):
        for p in range(start[b], start[b + 1]):
            i = item[p]
            here = worth[i, b] - price[b] * demand[i]
            if here > most[i]:
                most[i], second[i] = here, most[i]
            elif here > second[i]:
                second[i] = here
    for i in range(n):
        u[i] = max(0, int((most[i] + second[i]) / 2)) if second[i] > -np.inf else 0


@njit
def settle(lists, duals, worth, demand, free, enough):
    """Change one price at a time until nobody objects: (bound, an objecting session or -1).

    Stops when the bound falls below `enough`, or after some changes without progress.
    """
    u, value, wanted, start, item = duals.u, duals.value, duals.wanted, lists.start, lists.item
    n, m = worth.shape
    at, score = np.empty(m, np.int64), np.zeros(m, np.int64)
    pointer, stale = 0, 0
    while True:
        i = -1
        for q in range(n):
            j = (pointer + q) % n
            if wanted[j] > 1 or (wanted[j] == 0 and u[j] > 0):
                i = j
                break
        bound = u.sum() + value.sum()
        done = stale > STALE or bound < enough or lists.meter[SPENT] >= lists.meter[BUDGET]
        if i < 0 or done:
            return bound, i
        pointer = i + 1
        for b in range(m):
            at[b] = -1
            if worth[i, b] > 0:
                for p in range(start[b], start[b + 1]):
                    if item[p] == i:
                        at[b] = p
        before = u[i]
        if wanted[i] > 1:
            _raise_price(lists, duals, i, at, score, free)
        else:
            _lower_price(lists, duals, i, at, worth, free)
        stale = stale + 1 if u[i] == before else 0
        for b in range(m):
            if at[b] >= 0 and u[i] != before:
                reprice(lists, b, worth, u, demand)


@njit
def _raise_price(lists, duals, i, at, without, free):
    """All nodes but the one that would lose most without session i let it go, at the price they would pay."""
    u, value, inside = duals.u, duals.value, lists.inside
    most, highest, rise = -1, -1, 0
    for b in range(len(at)):
        if at[b] >= 0 and inside[at[b]]:
            without[b] = min(knapsack(lists, b, free[b], at[b], lists.other)[1], value[b])
            loss = value[b] - without[b]
            if loss > highest:
                most, highest, rise = b, loss, max(highest, 0)
            else:
                rise = max(rise, loss)
    u[i] += rise
    for b in range(len(at)):
        if at[b] >= 0 and inside[at[b]]:
            if b == most:
                value[b] -= rise
            else:
                value[b] = without[b]
                adopt(lists, duals, b)  # each node has its own part of `lists.other`


@njit
def _lower_price(lists, duals, i, at, worth, free):
    """Nobody takes session i at its price: down to where the first node would, and that node takes it."""
    to, node = 0, np.int64(-1)
    for b in range(len(at)):
        if at[b] >= 0:
            rest = knapsack(lists, b, free[b] - lists.size[at[b]], at[b], lists.other)[1]
            bid = rest + worth[i, b] - duals.value[b]
            if bid > to:
                to, node = bid, b
    duals.u[i] = min(duals.u[i], to)
    if node >= 0:
        lists.other[at[node]] = True
        adopt(lists, duals, node)
