"""What still fits beside a support, for the two lesser parts of the value: ready sessions, then tokens."""

from __future__ import annotations

import numpy as np

from tao._jit import njit
from tao.exact.deal import deal, most_ready, most_tokens, sums_of, usable
from tao.exact.knapsack import BUDGET, SPENT
from tao.exact.pack import best_fit, fullest, pack


@njit
def fill(problem, node, best_ready, best_tokens, meter, choice):
    """Complete a support: (ready, tokens, no more ready than, no more tokens than), all of the whole plan.

    node int64[n]: where the support places sessions, or -1. choice int64[n] receives the whole plan if it
    has more than (best_ready, best_tokens).
    """
    p = problem
    none = np.int64(0)  # a literal would compile what it is passed to once more
    room, items, r, t = beside(p, node)
    if len(items) == 0:
        found = (r, t, r, t)
        slot = node
    else:
        _, most, tokens = as_one_room(p, items, room, none)
        if (r + most, t + tokens) <= (best_ready, best_tokens):
            return r, t, r + most, t + tokens
        slot = node.copy()
        more_ready, most = _place_ready(p, items, room, most, slot, meter)
        if r + most < best_ready:
            return r, t, r + most, t + tokens
        more_ready, more_tokens, tokens = _place_rest(p, items, room, slot, meter)
        found = (r + more_ready, t + more_tokens, r + max(most, more_ready), t + tokens)
    if (found[0], found[1]) > (best_ready, best_tokens):
        for i in range(len(node)):
            choice[i] = slot[i]
    return found


@njit
def beside(problem, node):
    """Beside a support: (room left int64[m], sessions that may still fit, its ready ones, its tokens)."""
    p, r, t = problem, np.int64(0), np.int64(0)
    room = p.free.copy()
    for i in range(len(node)):
        if node[i] >= 0:
            room[node[i]] -= p.demand[i]
            r, t = r + p.ready[i], t + p.tokens[i]
    return room, _left_over(p, node, room), r, t


@njit
def as_one_room(problem, items, rooms, need):
    """As if all rooms were one: (its size, no more ready than, no more tokens than); `need` of them ready."""
    p, none = problem, np.int64(0)
    total, sums = usable(rooms, p.demand[items[-1]]), sums_of(items, p.demand, p.ready, p.tokens)
    return total, most_ready(sums, none, total), most_tokens(sums, none, total, need)


@njit
def _left_over(problem, node, room):
    """The sessions without a place that still fit somewhere, largest first."""
    items, count = np.empty(len(node), np.int64), 0
    most = room.max() if len(room) else -1
    for i in problem.by_size:
        if node[i] < 0 and problem.demand[i] <= most and fullest(i, problem, room) >= 0:
            items[count] = i
            count += 1
    return items[:count]


@njit
def _place_ready(problem, items, rooms, most, slot, meter):
    """Place as many ready sessions as possible: (how many, no more than); slot int64[n] written.

    The smallest ones do best, so it is enough to see whether the k smallest can be packed.
    """
    p = problem
    ready = np.empty(len(items), np.int64)
    count = 0
    for i in items:
        if p.ready[i]:
            ready[count] = i
            count += 1
    placed = most
    while placed:
        if best_fit(p, ready[count - placed : count], rooms.copy(), slot) == placed:
            break
        placed -= 1
    for i in ready[: count - placed]:
        slot[i] = -1
    if placed == most:
        return placed, most
    node = np.full(count, -1, np.int64)
    steps = (meter[BUDGET] - meter[SPENT]) // 4
    none = np.zeros(len(slot), np.int64)
    more, _, proven = deal(
        *(ready[:count], p.demand, p.ready, none, p.prefer, rooms.copy()),
        *(placed, none[0], p.restricted, meter, steps, node),
    )
    if more > placed:
        for q in range(count):
            slot[ready[q]] = node[q]
    return more, more if proven else most


@njit
def _place_rest(problem, items, rooms, slot, meter):
    """Place more tokens beside the ready sessions: (ready, tokens, no more tokens than); slot written.

    First as if all rooms were one, which bounds the tokens; then these sessions are packed into the
    rooms there are. Only where that fails, all placements are searched.
    """
    p = problem
    none = np.int64(0)
    room, r, t = rooms.copy(), none, none
    for i in items:
        if slot[i] >= 0:
            room[slot[i]] -= p.demand[i]
    for i in items:
        if slot[i] < 0:
            slot[i] = fullest(i, p, room)
            if slot[i] >= 0:
                room[slot[i]] -= p.demand[i]
        if slot[i] >= 0:
            r, t = r + p.ready[i], t + p.tokens[i]
    total, _, bound = as_one_room(p, items, rooms, r)
    if t >= bound:
        return r, t, t
    node = np.full(len(items), -1, np.int64)
    steps = (meter[BUDGET] - meter[SPENT]) // 3
    pooled = (np.zeros((len(slot), 1), np.int64), np.full(1, total))
    more, most, proven = deal(items, p.demand, p.ready, p.tokens, *pooled, r, t, False, meter, steps, node)
    if proven and more == r:
        bound = most
    if (more, most) > (r, t) and pack(p, items, node, rooms, slot, meter, steps):
        return more, most, max(bound, most)
    if t >= bound:
        return r, t, t
    more, most, proven = deal(
        *(items, p.demand, p.ready, p.tokens, p.prefer, rooms.copy()),
        *(r, t, p.restricted, meter, meter[BUDGET] - meter[SPENT], node),
    )
    if (more, most) > (r, t):
        for q in range(len(items)):
            slot[items[q]] = node[q]
    return more, most, most if proven else bound
