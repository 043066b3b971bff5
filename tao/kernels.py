"""Arrays in, arrays out, compiled by `tao._jit`: the heuristics' inner loop, and sorting.

Symbols, the same in every kernel. There are n sessions (sorted by id) and m nodes (sorted by id).

    demand : int64[n]      what session i takes on a node, in quanta (DP) or tokens (greedy)
    free   : int64[m]      room on node b, same unit, >= 0
    prefer : int64[n, m]   nodes that session i may use and fits on, best tie first, then -1
    tier   : int64[n, m]   of nodes with equal tier[i, b] the tie goes to the one with more room left
    spare  : int64[m]      quanta on node b beyond `free`, which only count for that tie

Arrays are copied in loops, for numba compiles an assignment of slices seconds longer (the text of its
error message does that).
"""

from __future__ import annotations

import numpy as np

from tao._jit import njit


@njit
def place_in_order(order, demand, free, prefer, tightest):
    """Place sessions one by one in `order`: int64[n], the node of each or -1 if it fits nowhere.

    order : int64[n], session indices. tightest : take the node with the least room that is enough
    (best fit) instead of the one with the most. A tie goes to the node that comes first in `prefer`.
    """
    m = prefer.shape[1]
    left = free.copy()
    choice = np.full(order.shape[0], -1, np.int64)
    for i in order:
        for k in range(m):
            b = prefer[i, k]
            if b < 0:
                break
            if left[b] < demand[i]:
                continue
            c = choice[i]
            if c < 0 or (left[b] < left[c] if tightest else left[b] > left[c]):
                choice[i] = b
        if choice[i] >= 0:
            left[choice[i]] -= demand[i]
    return choice


@njit
def sort_by(keys, items):
    """Sort items by key, then by item, both int64[n], in place (Shell's method)."""
    n, gap = len(items), 1
    while gap < n:
        gap = 3 * gap + 1
    while gap > 0:
        for a in range(gap, n):
            key, item, b = keys[a], items[a], a
            while b >= gap and (keys[b - gap], items[b - gap]) > (key, item):
                keys[b], items[b] = keys[b - gap], items[b - gap]
                b -= gap
            keys[b], items[b] = key, item
        gap //= 3
