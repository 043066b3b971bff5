"""Can these sessions be packed into the rooms there are? By exchanges until the room left lies together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tao._jit import njit
from tao.exact.deal import deal, next_node
from tao.exact.knapsack import BUDGET, CHEAP, SPENT, empty_lists, knapsack


class Problem(NamedTuple):
    """A plan to be made: sizes int64[n], room int64[m], values, `prefer` as in `tao.kernels`.

    by_size int64[n] lists the sessions, largest first; restricted: some may not use all nodes they fit on.
    """

    demand: npt.NDArray[np.int64]
    free: npt.NDArray[np.int64]
    credit: npt.NDArray[np.int64]
    ready: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    prefer: npt.NDArray[np.int64]
    by_size: npt.NDArray[np.int64]
    restricted: bool


@njit
def fullest(i, problem, room):
    """The fullest node that session i fits on, or -1."""
    return next_node(i, problem.prefer, room, problem.demand[i], np.int64(-1), problem.restricted)


@njit
def best_fit(problem, items, room, slot):
    """Place the sessions one after the other where least room is left: how many; room, slot written."""
    placed = 0
    for i in items:
        b = fullest(i, problem, room)
        slot[i] = b
        if b >= 0:
            room[b] -= problem.demand[i]
            placed += 1
    return placed


@njit
def pack(problem, items, chosen, rooms, slot, meter, steps):
    """True if the chosen of `items` (chosen[q] >= 0) fit into `rooms` together; then slot is written."""
    p, count = problem, 0
    who, slots, room = np.empty(len(items), np.int64), slot.copy(), rooms.copy()
    for q in range(len(items)):
        slots[items[q]] = -1
        if chosen[q] >= 0:
            who[count] = items[q]
            count += 1
    who = who[:count]
    packed = best_fit(p, who, room, slots) == count or _exchange(p, who, room, slots, meter)
    if not packed:
        steps = min(steps, meter[BUDGET] - meter[SPENT])
        ones, zeros = np.ones(len(slot), np.int64), np.zeros(len(slot), np.int64)
        node = np.empty(count, np.int64)
        placed = deal(
            *(who, p.demand, ones, zeros, p.prefer, rooms.copy()),
            *(count - 1, zeros[0], p.restricted, meter, steps, node),
        )[0]
        packed = placed == count
        for q in range(count):
            slots[who[q]] = node[q]
    for i in items:
        slot[i] = slots[i] if packed else slot[i]
    return packed


@njit
def _exchange(problem, who, room, slot, meter):
    """Gather the room left on one node after the other, and see who fits there then: True if all do."""
    m, idle, b = len(room), 0, np.int64(0)
    lists = empty_lists(_two(len(who)), who.copy(), meter)
    while idle <= m and meter[SPENT] < meter[BUDGET]:
        idle += 1
        for a in range(m):
            if a != b and room[a] > 0:
                _gather(problem, a, b, who, room, slot, lists)
        while _trade(problem, b, who, room, slot, meter):
            idle = 0
        b = (b + 1) % m
    placed = 0
    for i in who:
        placed += slot[i] >= 0
    return placed == len(who)


@njit
def _two(count):
    start = np.zeros(2, np.int64)
    start[1] = count
    return start


@njit
def _gather(problem, a, b, who, room, slot, lists):
    """Move sessions between nodes a and b so that a is as full as can be."""
    count, space = 0, room[a]
    for i in who:
        other = b if slot[i] == a else a
        if (slot[i] == a or slot[i] == b) and may_use(problem, i, other):
            lists.item[count], lists.profit[count] = i, problem.demand[i]
            lists.size[count] = problem.demand[i]
            count += 1
            space += problem.demand[i] if slot[i] == a else 0
    lists.start[1] = count
    left = space - knapsack(lists, np.int64(0), space, np.int64(-1), lists.inside)[0]
    if left < room[a]:
        room[b] += room[a] - left
        room[a] = left
        for q in range(count):
            slot[lists.item[q]] = a if lists.inside[q] else b


@njit
def may_use(problem, i, b):
    """Whether session i may use node b and fits on it."""
    found = False
    for other in problem.prefer[i]:
        found = found or other == b
    return found


@njit
def _trade(problem, b, who, room, slot, meter):
    """One more session on node b, or a larger one instead of one there: what fills it most, if anything."""
    most, leaves, comes = 0, -1, -1
    for y in who:
        if slot[y] >= 0 or not may_use(problem, y, b):
            continue
        size = problem.demand[y]
        meter[SPENT] += 1 + len(who) // CHEAP
        if most < size <= room[b]:
            most, leaves, comes = size, -1, y
        for x in who:
            if slot[x] == b and most < size - problem.demand[x] <= room[b]:
                most, leaves, comes = size - problem.demand[x], x, y
    if comes < 0:
        return False
    if leaves >= 0:
        slot[leaves] = -1
    slot[comes] = b
    room[b] -= most
    return True
