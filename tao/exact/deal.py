"""Sessions of equal credit on several nodes: as many ready ones as possible, then as many tokens.

A multiple knapsack in which only size counts. Depth first, largest session first: to the node it fills
best, to the next, left out; against what all rooms together could still take (Martello and Toth 1990,
chapter 6: the surrogate bound), which knows that every session costs room to grow into.
"""

from __future__ import annotations

import numpy as np

from tao._jit import njit
from tao.exact.knapsack import SPENT

UNTRIED, OUT = -2, -1


# Rows of sums over k sessions sorted largest first; column x stands for the x first ones (or, in the rows
# of small ones, the x last ones): sizes, ready ones and tokens of all; sizes of the ready and of the others.
SIZE, READY, TOKENS, READY_SIZE, OTHER_SIZE, SMALL_READY, SMALL, COUNTS = range(8)
ALL, ALL_READY, OTHERS, GROWTH = range(4)  # columns of the last row: how many; the least demand beyond tokens


@njit
def sums_of(items, demand, ready, tokens):
    """The sums over `items`, int64[k], largest first: int64[8, max(k + 1, 4)]."""
    k, r, o = len(items), 0, 0
    sums = np.zeros((8, max(k + 1, 4)), np.int64)
    growth = np.int64(2**62)
    for x in range(k):
        i = items[x]
        sums[SIZE, x + 1] = sums[SIZE, x] + demand[i]
        sums[READY, x + 1] = sums[READY, x] + ready[i]
        sums[TOKENS, x + 1] = sums[TOKENS, x] + tokens[i]
        if ready[i]:
            sums[READY_SIZE, r + 1] = sums[READY_SIZE, r] + demand[i]
            r += 1
        else:
            sums[OTHER_SIZE, o + 1] = sums[OTHER_SIZE, o] + demand[i]
            o += 1
        growth = min(growth, demand[i] - tokens[i])
    for x in range(r):
        sums[SMALL_READY, x + 1] = sums[READY_SIZE, r] - sums[READY_SIZE, r - 1 - x]
    for x in range(k):
        sums[SMALL, x + 1] = sums[SIZE, k] - sums[SIZE, k - 1 - x]
    sums[COUNTS, ALL], sums[COUNTS, ALL_READY], sums[COUNTS, OTHERS] = k, r, o
    sums[COUNTS, GROWTH] = growth
    return sums


@njit
def how_many(sums, row, count, room):
    """How many of `count` can be taken one after the other before their sum exceeds `room`."""
    low, high = 0, count
    while low < high:
        middle = (low + high + 1) // 2
        if sums[row, middle] <= room:
            low = middle
        else:
            high = middle - 1
    return low


@njit
def how_few(sums, row, count, x, room):
    """How many from x on it takes at least for a sum of `room`, if all up to `count` have so much."""
    low, high = x, count
    while low < high:
        middle = (low + high) // 2
        if sums[row, middle] - sums[row, x] >= room:
            high = middle
        else:
            low = middle + 1
    return low - x


@njit
def most_ready(sums, x, room):
    """No plan takes more ready sessions from x on into `room`: the smallest ones fit first."""
    count = sums[COUNTS, ALL_READY]
    return min(count - sums[READY, x], how_many(sums, SMALL_READY, count, room))


@njit
def most_tokens(sums, x, room, need):
    """No plan takes more tokens from x on into `room`, at least `need` of them ready; -1: impossible.

    Few large sessions waste least: fill `room` with as few as possible, each of which costs `growth`.
    """
    k, growth = sums[COUNTS, ALL], sums[COUNTS, GROWTH]
    rest = sums[TOKENS, k] - sums[TOKENS, x]
    if sums[SIZE, k] - sums[SIZE, x] <= room:
        return rest
    if growth < 0:
        return min(rest, room - growth * min(how_many(sums, SMALL, k, room), k - x))
    few, r = how_few(sums, SIZE, k, x, room), sums[READY, x]
    nearly = sums[SIZE, x + few - 1] - sums[SIZE, x]
    if sums[READY, x + few] - r < need:  # then the largest ready ones, and others
        if r + need > sums[COUNTS, ALL_READY]:
            return np.int64(-1)
        base = sums[READY_SIZE, r + need] - sums[READY_SIZE, r]
        if base >= room:
            return min(rest, room - growth * need)
        more, o = how_few(sums, OTHER_SIZE, sums[COUNTS, OTHERS], x - r, room - base), x - r
        few, nearly = need + more, base + sums[OTHER_SIZE, o + more - 1] - sums[OTHER_SIZE, o]
    return min(rest, max(room - growth * few, nearly - growth * (few - 1)))


@njit
def next_node(i, prefer, room, size, was, restricted):
    """The fullest node that session i fits on, after node `was` (-1: from the start); -1: none is left.

    Nodes with equal room are equal, unless some sessions may not use all nodes (`restricted`).
    """
    pick = -1
    for k in range(prefer.shape[1]):
        b = prefer[i, k]
        if b < 0:
            break
        if room[b] < size:
            continue
        if was >= 0 and (room[b] < room[was] or (room[b] == room[was] and (not restricted or b <= was))):
            continue
        if pick < 0 or room[b] < room[pick] or (room[b] == room[pick] and b < pick):
            pick = b
    return pick


@njit
def usable(room, least):
    """The sum of all rooms that can take a session of size `least`."""
    total = 0
    for b in range(len(room)):
        if room[b] >= least:
            total += room[b]
    return total


@njit
def deal(items, demand, ready, tokens, prefer, room, best_ready, best_tokens, restricted, meter, steps, node):
    """Search for more than (best_ready, best_tokens): (ready, tokens, whether nothing better is left).

    items int64[k] largest first; room int64[m], written; node int64[k] receives what is found.
    """
    zero = np.int64(0)
    k, r, t, x, fresh = len(items), zero, zero, zero, True
    sums = sums_of(items, demand, ready, tokens)
    least = demand[items[k - 1]]
    total = usable(room, least)
    at = np.full(k, UNTRIED, np.int64)
    while x >= 0:
        if fresh:
            meter[SPENT] += 1
            steps -= 1
            if x == k and (r, t) > (best_ready, best_tokens):
                best_ready, best_tokens = r, t
                for q in range(k):
                    node[q] = at[q]
            if x == k or not _promising(sums, x, total, r, t, best_ready, best_tokens):
                x, fresh = x - 1, False
                continue
            if steps < 0:
                return best_ready, best_tokens, False
            at[x] = UNTRIED
        i, was = items[x], at[x]
        if was == OUT:
            x, fresh = x - 1, False
            continue
        if was >= 0:
            total -= room[was] if room[was] >= least else 0
            room[was] += demand[i]
            total += room[was]
            r, t = r - ready[i], t - tokens[i]
        b = next_node(i, prefer, room, demand[i], was, restricted)
        at[x] = b
        if b >= 0:
            total -= room[b]
            room[b] -= demand[i]
            total += room[b] if room[b] >= least else 0
            r, t = r + ready[i], t + tokens[i]
        x, fresh = x + 1, True
    return best_ready, best_tokens, True


@njit
def _promising(sums, x, room, r, t, best_ready, best_tokens):
    """Whether sessions from x on can still make (r, t) better than the best."""
    most = r + most_ready(sums, x, room)
    if most != best_ready:
        return most > best_ready
    tokens = most_tokens(sums, x, room, max(best_ready - r, 0))
    return tokens >= 0 and t + tokens > best_tokens
