"""From values and sizes to a placement, compiled: what `plan()` and the simulated scheduler share.

Symbols as in `tao.kernels`: n sessions and m nodes, both in order of id; demand, free in tokens;
credit int64[n, m], ready int64[n], tokens int64[n]; prefer and tier int64[n, m] as `arrange` makes them.
"""

from __future__ import annotations

import numpy as np

from tao import exact, kernels
from tao._jit import njit
from tao.dp import search
from tao.model import Planner

DP, SHORT_FIRST, BFD, WORST_FIT, FIFO, EXACT = range(6)  # as in model.Planner
assert Planner.__args__ == ("dp", "short_first", "bfd", "worst_fit", "fifo", "exact")  # type: ignore[attr-defined]

BOUND_CELLS = 200_000  # ours: tables of dp's bound up to 1.6 MB
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
def pack(credit, ready, tokens, prefer):
    """(high int64[n, m], low int64[n]) of each triple: packed into `high` if it fits, with `low` 0.

    Packed triples add and compare like triples. Otherwise `high` is the credit and `low` the rest of it.
    high is -1 on nodes that are not in `prefer`.
    """
    n, m = credit.shape
    base, most = token_base(tokens), 0
    high, low = np.full((n, m), -1, np.int64), np.zeros(n, np.int64)
    for i in range(n):
        best = 0
        for b in range(m):
            best = max(best, credit[i, b])
        most += best
    fits = float(most + 1) * float(n + 1) * float(base) < 2.0**60
    for i in range(n):
        rest = ready[i] * base + tokens[i]
        if not fits:
            low[i] = rest
        for k in range(m):
            b = prefer[i, k]
            if b < 0:
                break
            high[i, b] = credit[i, b] * (n + 1) * base + rest if fits else credit[i, b]
    return high, low


@njit
def solve_dp(demand, free, credit, ready, tokens, prefer, tier, quantum, budget):
    """The paper's DP: (int64[n] node or -1, number of states); states = -1 beyond the budget."""
    n, m = prefer.shape
    size, room, fitting, spare = quantize(demand, free, prefer, quantum)
    choice, who, k = np.full(n, -1, np.int64), np.empty(n, np.int64), 0
    for i in range(n):
        if m and fitting[i, 0] >= 0:
            who[k] = i
            k += 1
    if k == 0:
        return choice, 1
    who = who[:k]
    size, fitting = size[who], fitting[who]
    high, low = pack(credit[who], ready[who], tokens[who], fitting)
    found, states = search.solve(size, room, fitting, tier[who], spare, high, low, BOUND_CELLS, budget)
    for a in range(k):
        choice[who[a]] = found[a]
    return choice, states


@njit
def or_better(choice, demand, free, credit, ready, tokens, prefer, tier, quantum, budget, restricted):
    """The plan that `tao.exact.solve` could not prove, or that of bfd, short_first or dp if it is better.

    Returns (choice, planner). restricted : some sessions may not use all nodes that they fit on.
    """
    planner = EXACT
    for other in (BFD, SHORT_FIRST, DP):
        best = total(choice, credit, ready, tokens)
        if other == DP:
            found = _best_in_quanta(
                *(demand, free, credit, ready, tokens, prefer, tier, quantum, budget, restricted), best
            )
        else:
            found = place(other, demand, free, demand, prefer)
        if total(found, credit, ready, tokens) > best:
            choice, planner = found, other
    return choice, planner


@njit
def _best_in_quanta(demand, free, credit, ready, tokens, prefer, tier, quantum, budget, restricted, best):
    """A plan at least as good as dp's, or none if dp's cannot be better than `best`.

    Mostly the exact search on sizes rounded as dp rounds them can tell, and is faster.
    """
    size, room, fitting, _ = quantize(demand, free, prefer, quantum)
    size, room = size * quantum, room * quantum
    found, bound, proven, _ = exact.solve(size, room, credit, ready, tokens, fitting, restricted, budget)
    undecided = proven < 3
    for part in range(3):
        if 0 <= bound[part] < best[part]:
            undecided = False
        if bound[part] != best[part]:
            break
    if undecided:
        again, states = solve_dp(demand, free, credit, ready, tokens, prefer, tier, quantum, budget)
        found = again if states >= 0 else found
    return found


@njit
def total(choice, credit, ready, tokens):
    """(credit, ready, tokens) of a plan."""
    k, r, t = 0, 0, 0
    for i in range(len(choice)):
        if choice[i] >= 0:
            k, r, t = k + credit[i, choice[i]], r + ready[i], t + tokens[i]
    return k, r, t


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
