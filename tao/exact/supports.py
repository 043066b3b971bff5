"""All ways to earn the most credit: which sessions go where they have credit, node by node.

A *support* is the part of a plan that earns credit. Equal credit may come from several supports, and
they leave different room for the sessions without credit, so each of them is looked at.
"""

from __future__ import annotations

import numpy as np

from tao._jit import njit
from tao.exact.fill import fill
from tao.exact.knapsack import SLACK, SPENT, share

CREDIT, READY, TOKENS, READY_BOUND, TOKENS_BOUND = range(5)  # of a record: the best plan so far


@njit
def note(record, credit, node, problem, meter, choice):
    """Complete a support worth `credit`, and take it into the record int64[5] of the best plan."""
    if credit > record[CREDIT]:
        record[:] = -1
        record[CREDIT] = credit
    r, t, most_r, most_t = fill(problem, node, record[READY], record[TOKENS], meter, choice)
    if (r, t) > (record[READY], record[TOKENS]):
        record[READY], record[TOKENS] = r, t
    if most_r > record[READY_BOUND]:
        record[READY_BOUND], record[TOKENS_BOUND] = most_r, most_t
    elif most_r == record[READY_BOUND]:
        record[TOKENS_BOUND] = max(record[TOKENS_BOUND], most_t)


@njit
def visit(problem, lists, duals, worth, target, steps, record, choice):
    """Visit all supports worth at least `target`, or more once one is found: whether that was all.

    Node by node, densest session first; what later nodes can earn at most is known from their own best sets.
    """
    p, start, u, meter = problem, lists.start, duals.u, lists.meter
    item, profit, size = lists.item, lists.profit, lists.size
    n, m = worth.shape
    pairs = len(item)
    last, node = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    for q in range(pairs):
        last[item[q]] = q
    later = np.zeros(m + 1, np.int64)
    for b in range(m - 1, -1, -1):
        later[b] = later[b + 1] + duals.value[b]
    saved = np.empty((pairs + 1, 5), np.int64)
    zero = np.int64(0)
    depth, q, b, bound, gain = 0, zero, zero, u.sum(), zero
    room = p.free[0] if m else zero
    end, most = meter[SPENT] + steps, bound + later[0]
    while True:
        alive = True
        while alive:
            while b < m and q == start[b + 1]:
                b += 1
                room = p.free[b] if b < m else 0
            if b == m:
                break
            meter[SPENT] += 1
            best = _at_most(item, profit, size, node, q, start[b + 1], room, bound, meter[SLACK])
            alive = best + later[b + 1] >= target
            while alive and q < start[b + 1]:
                i, q = item[q], q + 1
                if node[i] >= 0:
                    continue
                if worth[i, b] > 0 and size[q - 1] <= room:
                    row = saved[depth]
                    row[0], row[1], row[2], row[3], row[4] = q - 1, b, room, bound, gain
                    depth, node[i] = depth + 1, b
                    room, bound, gain = room - size[q - 1], bound + profit[q - 1], gain + worth[i, b]
                    if profit[q - 1] <= 0:
                        break
                else:
                    bound -= u[i] if last[i] == q - 1 else 0  # nobody pays its price any more
                    break
        if alive and gain >= target:
            target = gain
            note(record, gain, node, p, meter, choice)
            meter[SPENT] += n // 16
            if record[CREDIT] == most and everybody_in(p, record):
                return True
        if depth == 0 or meter[SPENT] >= end:
            return depth == 0
        depth -= 1
        q, b, room, bound, gain = saved[depth]
        i = item[q]
        node[i] = -1
        bound -= u[i] if last[i] == q else 0
        q += 1


@njit
def everybody_in(problem, record):
    """Whether a plan places all sessions that fit anywhere at all."""
    r, t = 0, 0
    for i in range(len(problem.ready)):
        if problem.prefer.shape[1] and problem.prefer[i, 0] >= 0:
            r, t = r + problem.ready[i], t + problem.tokens[i]
    return record[READY] == r and record[TOKENS] == t


@njit
def _at_most(item, profit, size, node, q, end, room, bound, slack):
    """`bound`, and what the positions from q to `end` can add in `room` (Dantzig)."""
    while q < end and profit[q] > 0:
        if node[item[q]] < 0:
            if size[q] > room:
                return bound + share(profit[q], room, size[q], slack)
            bound += profit[q]
            room -= size[q]
        q += 1
    return bound
