"""From values and sizes to a placement, compiled: what `plan()` and the simulated scheduler share.

Symbols as in `tao.kernels`: n sessions and m nodes, both in order of id; demand, free in tokens;
credit int64[n, m], ready int64[n], tokens int64[n]; prefer and tier int64[n, m] as `arrange` makes them.
"""

from __future__ import annotations

import numpy as np

from tao import kernels
from tao._jit import njit
from tao.model import Planner

DP, SHORT_FIRST, BFD, WORST_FIT, FIFO, EXACT = range(6)  # as in model.Planner
assert Planner.__args__ == ("dp", "short_first", "bfd", "worst_fit", "fifo", "exact")  # type: ignore[attr-defined]

GRID_CELLS = 4_000_000  # ours: tables up to 32 MB are filled as a grid, larger ones searched
OK, CHANGED, OVERFLOW = range(3)  # verdicts on a placement


@njit
def arrange(credit, last, usable, demand, free):
    """(prefer, tier): the nodes that each session may use and fits on, in the order of the tie rule.

    last : int64[n], the node where a session was seen last, or -1. usable : bool[n, m].
    More credit first, then the last node, then the lower id; nodes of equal tier tie in the first two.
    """
    n, m = credit.shape
    prefer = np.full((n, m), -1, np.int64)
    tier = np.zeros((n, m), np.int64)
    for i in range(n):
        count = 0
        for b in range(m):
            if not usable[i, b] or demand[i] > free[b]:
                continue
            at = count
            while at > 0:
                c = prefer[i, at - 1]
                if credit[i, c] > credit[i, b] or (credit[i, c] == credit[i, b] and b != last[i]):
                    break
                prefer[i, at] = c
                at -= 1
            prefer[i, at] = b
            count += 1
        for k in range(count):
            b = prefer[i, k]
            c = prefer[i, k - 1] if k else b
            new = k == 0 or credit[i, b] != credit[i, c] or (b == last[i]) != (c == last[i])
            tier[i, b] = k if new else tier[i, c]
    return prefer, tier


@njit
def quantize(demand, free, prefer, quantum):
    """(demand, free, prefer, spare) in quanta: demand rounded up, free down to what all could take.

    spare : int64[m], quanta beyond `free`, which no set of sessions could use.
    """
    n, m = prefer.shape
    size, room = np.empty(n, np.int64), np.empty(m, np.int64)
    for i in range(n):
        size[i] = -(-demand[i] // quantum)
    wanted, spare = np.zeros(m, np.int64), np.zeros(m, np.int64)
    for b in range(m):
        room[b] = free[b] // quantum
    fitting = np.full((n, m), -1, np.int64)
    for i in range(n):
        count = 0
        for k in range(m):
            b = prefer[i, k]
            if b >= 0 and size[i] <= room[b]:
                fitting[i, count] = b
                count += 1
                wanted[b] += size[i]
    for b in range(m):
        spare[b] = max(room[b] - wanted[b], 0)
        room[b] -= spare[b]
    return size, room, fitting, spare


@njit
def token_base(tokens):
    """More than the tokens of any plan: the base in which ready counts and tokens share one integer."""
    total = np.int64(1)
    for t in tokens:
        total += t
    return total


@njit
def pack(credit, ready, tokens):
    """int64[n, m]: each triple as one integer that adds and compares like it; empty if it does not fit."""
    n, m = credit.shape
    base, ready_base, most = token_base(tokens), n + 1, 0
    for i in range(n):
        best = 0
        for b in range(m):
            best = max(best, credit[i, b])
        most += best
    if float(most + 1) * float(ready_base) * float(base) >= 2.0**62:
        return np.empty((0, m), np.int64)
    packed = np.empty((n, m), np.int64)
    for i in range(n):
        for b in range(m):
            packed[i, b] = (credit[i, b] * ready_base + ready[i]) * base + tokens[i]
    return packed


@njit
def _surely_more(size, room, fitting, budget):
    """True if a count that is quick to take already exceeds the budget of states.

    Deal the sessions out, each to one node it fits on: every combination of the sums that subsets can
    take up on each node is a state of its own, and there are many more.
    """
    n, m = fitting.shape
    product, next_turn = 1, 0
    sums = np.zeros((m, room.max() + 1), np.bool_)
    counts = np.ones(m, np.int64)
    for b in range(m):
        sums[b, 0] = True
    for i in range(n):
        if fitting[i, 0] < 0 or size[i] == 0:
            continue
        k = next_turn % m
        b = fitting[i, k] if fitting[i, k] >= 0 else fitting[i, 0]
        next_turn += 1
        product //= counts[b]
        for s in range(room[b], size[i] - 1, -1):
            if sums[b, s - size[i]] and not sums[b, s]:
                sums[b, s] = True
                counts[b] += 1
        product *= counts[b]
        if product > budget:
            return True
    return False


@njit
def _one_each(size, fitting):
    """How many states there are at least where every node takes one session at most.

    Sessions of different sizes that fit everywhere leave different room wherever they go.
    """
    n, m = fitting.shape
    kinds = 0
    for i in range(min(n, 64)):
        new = size[i] > 0 and fitting[i, m - 1] >= 0
        for j in range(i):
            new = new and size[j] != size[i]
        kinds += new
    total, ways = 1.0, 1.0
    for j in range(min(kinds, m)):
        ways *= (kinds - j) * (m - j) / (j + 1.0)
        total += ways
    return total


@njit
def solve_dp(demand, free, credit, ready, tokens, prefer, tier, quantum, budget, grid_cells):
    """The paper's DP: (int64[n] node or -1, number of states); states = -1 beyond the budget."""
    n, m = prefer.shape
    size, room, fitting, spare = quantize(demand, free, prefer, quantum)
    candidates, cells, ways = 0, 1.0, 1.0
    for b in range(m):
        cells *= room[b] + 1
    for i in range(n):
        if m and fitting[i, 0] >= 0:
            candidates += 1
            ways *= m + 1
    if candidates == 0:
        return np.full(n, -1, np.int64), 1
    many = min(ways, cells) > budget
    if many and (_one_each(size, fitting) > budget or _surely_more(size, room, fitting, budget)):
        return np.full(n, -1, np.int64), -1
    packed = pack(credit, ready, tokens)
    if packed.shape[0] == 0 or (n + 1) * cells > grid_cells:
        low = np.empty((n, m), np.int64)
        base = token_base(tokens)
        for i in range(n):
            for b in range(m):
                low[i, b] = ready[i] * base + tokens[i]
        held = int(min(float(budget), ways, cells))
        return kernels.search_reachable(size, room, fitting, tier, spare, credit, low, held)
    sizes, strides = np.empty(m, np.int64), np.empty(m, np.int64)
    step = 1
    for b in range(m):
        sizes[b], strides[b] = room[b] + 1, step
        step *= sizes[b]
    states = kernels.count_grid(size, fitting, strides, sizes)
    if states > budget:
        return np.full(n, -1, np.int64), -1
    table = np.empty((n + 1, step), np.int64)
    kernels.fill_grid(size, fitting, packed, strides, sizes, table)
    return kernels.trace_grid(size, fitting, tier, spare, packed, strides, sizes, table), states


@njit
def place(planner, demand, free, since, prefer):
    """A heuristic's placement on true sizes: int64[n] node or -1; since int64[n] orders FIFO."""
    n = len(demand)
    order, keys = np.arange(n), np.empty(n, np.int64)
    for i in range(n):
        by_size = demand[i] if planner == SHORT_FIRST else -demand[i]
        keys[i] = since[i] if planner == FIFO else by_size
    kernels.sort_by(keys, order)  # ties stay in order of id
    return kernels.place_in_order(order, demand, free, prefer, planner == BFD)


@njit
def verdicts(objection, demand, node, free):
    """What still holds of placements tried one by one: int64[k], `OK`, `OVERFLOW`, or their objection.

    objection : int64[k], not OK where a placement is void already. node : int64[k], into free int64[m],
    which is written: what is placed takes its room.
    """
    found = objection.copy()
    for k in range(len(found)):
        if found[k] != OK:
            continue
        if demand[k] > free[node[k]]:
            found[k] = OVERFLOW
        else:
            free[node[k]] -= demand[k]
    return found
