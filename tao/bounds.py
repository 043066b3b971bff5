"""What no plan can exceed, by letting one session be cut in two (Dantzig 1957).

Into a knapsack go the items worth most per token, and of the first that does not fit as much as does. A
plan may not cut, so it is worth no more.
"""

from __future__ import annotations

import numpy as np

from tao._jit import njit


@njit
def upper_bound(demand, free, credit, ready, tokens, prefer):
    """(credit, ready, tokens) that no plan on true sizes can exceed, each by itself (ours).

    Symbols as in `tao.assign`. Once with all room pooled into one node, and for the credit also node by
    node, as if a session could collect its credit on each. The lower one counts.
    """
    n, m = prefer.shape
    fits, size, worth = 0, np.empty(n, np.int64), np.empty((3, n), np.int64)
    count = np.zeros(m + 1, np.int64)  # of offers, then the place of each node's first
    for i in range(n):
        if m and prefer[i, 0] >= 0:
            size[fits], worth[0, fits] = demand[i], credit[i, prefer[i, 0]]
            worth[1, fits], worth[2, fits] = ready[i], tokens[i]
            fits += 1
        for b in prefer[i]:
            count[b + 1] += b >= 0 and credit[i, b] > 0
    for b in range(m):
        count[b + 1] += count[b]
    place = count[:m].copy()
    offer, taken = np.empty(count[m], np.int64), np.empty(count[m], np.int64)
    for i in range(n):
        for b in prefer[i]:
            if b >= 0 and credit[i, b] > 0:
                offer[place[b]], taken[place[b]] = credit[i, b], demand[i]
                place[b] += 1
    by_node, room = 0, 0
    for b in range(m):
        by_node += fractional(offer[count[b] : place[b]], taken[count[b] : place[b]], free[b])
        room += free[b]
    pooled = np.empty(3, np.int64)
    for part in range(3):
        pooled[part] = fractional(worth[part, :fits], size[:fits], room)
    return min(pooled[0], by_node), pooled[1], pooled[2]


@njit
def fractional(worth, size, room):
    """Most worth of items, each int64[n], that fits into `room` if one may be cut; rounded down.

    As in quicksort, but only the side on which the room ends is looked at again. Floats never turn two
    ratios around, but may make them equal (above 2**26); the greatest of those counts, so that it stays
    a bound.

    >>> worth, size = np.array([6, 5, 4]), np.array([3, 5, 8])
    >>> int(fractional(worth, size, 6))  # 6 + 5 * 3/5; without cutting nothing beats 6
    9
    """
    count, total = len(size), 0
    ratio, left = np.empty(count), np.arange(count)
    for i in range(count):
        ratio[i] = worth[i] / size[i] if size[i] else np.inf
    while count:
        pivot = ratio[left[count // 2]]
        above, gained, level, level_gained, most = 0, 0, 0, 0, 0
        for i in left[:count]:
            if ratio[i] > pivot:
                above, gained = above + size[i], gained + worth[i]
            elif ratio[i] == pivot:
                level, level_gained = level + size[i], level_gained + worth[i]
        ends_above = above > room
        if not ends_above:
            total, room = total + gained, room - above
            if level > room:
                for i in left[:count]:
                    if ratio[i] == pivot:
                        most = max(most, _part(worth[i], size[i], room))
                return total + most
            total, room = total + level_gained, room - level
        kept = 0
        for i in left[:count]:
            if (ratio[i] > pivot) if ends_above else (ratio[i] < pivot):
                left[kept] = i
                kept += 1
        count = kept
    return total


@njit
def _part(worth, size, room):
    """worth * room // size, where worth and size are at most 2**41: in two steps, as it may pass 2**63."""
    whole, rest = room // size, room % size
    high, low = worth >> 20, worth & 0xFFFFF
    after = ((high * rest % size) << 20) + low * rest
    return worth * whole + (high * rest // size << 20) + after // size
