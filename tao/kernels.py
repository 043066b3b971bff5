"""The planners' inner loops: arrays in, arrays out, compiled by `tao._jit`.

Symbols, the same in every kernel. There are n sessions (sorted by id) and m nodes (sorted by id).

    demand : int64[n]      what session i takes on a node, in quanta (DP) or tokens (greedy)
    free   : int64[m]      room on node b, same unit, >= 0
    prefer : int64[n, m]   nodes that session i may use and fits on, best tie first, then -1
    tier   : int64[n, m]   of nodes with equal tier[i, b] the tie goes to the one with more room left
    spare  : int64[m]      quanta on node b beyond `free`, which only count for that tie

The recurrence of the DP, with r the vector of remaining quanta and e_b the unit vector of node b:

    V[i, r] = max( V[i+1, r],  max over b of  value[i, b] + V[i+1, r - demand[i] * e_b] )

`tao.explain` has the same recurrence in plain Python. Two kernels fill it. `fill_grid` visits every
vector r of a small grid in long contiguous loops. `search_reachable` visits only the vectors that
can be reached, whatever the size of the grid. They return the same plan.

Arrays are copied in loops, for numba compiles an assignment of slices seconds longer (the text of its
error message does that).
"""

from __future__ import annotations

import numpy as np

from tao._jit import njit

_MASK = 2**31 - 1  # hashes stay below it, so that no product leaves int64, compiled or interpreted


@njit
def fill_grid(demand, prefer, packed, strides, sizes, table):
    """Fill `table` with value-to-go: most value that sessions i.. can bring from remaining vector r.

    packed : int64[n, m], the triple packed into one integer that adds and compares like it.
    strides, sizes : int64[m], r is stored at sum(r[b] * strides[b]), sizes[b] = free[b] + 1.
    table : int64[n + 1, prod(sizes)], written in place; row n is all 0.
    """
    n, m = prefer.shape
    last = m - 1
    slab = strides[last]  # cells that share the last node's remaining quanta: they fit the L1 cache
    digit = np.arange(slab) % sizes[0]  # remaining quanta of node 0
    barred = np.empty(slab, np.int64)
    for s in range(table.shape[1]):
        table[n, s] = 0
    for i in range(n - 1, -1, -1):
        for s in range(slab):
            barred[s] = 0 if digit[s] >= demand[i] else -(2**62)
        for top in range(sizes[last]):
            base = top * slab
            here = table[i, base : base + slab]
            after = table[i + 1, base : base + slab]
            for s in range(slab):
                here[s] = after[s]  # skip session i
            for k in range(m):
                b = prefer[i, k]
                if b < 0:
                    break
                worth = packed[i, b]
                shift = demand[i] * strides[b]
                if b == last:
                    if top >= demand[i]:
                        source = table[i + 1, base - shift : base - shift + slab]
                        for s in range(slab):
                            here[s] = max(here[s], worth + source[s])
                elif b == 0:  # runs of node 0 are short: one long loop, barred where i does not fit
                    target, source, bar = here[shift:], after[: slab - shift], barred[shift:]
                    for s in range(slab - shift):
                        target[s] = max(target[s], worth + source[s] + bar[s])
                else:
                    block = sizes[b] * strides[b]  # within a block, session i fits from `shift` on
                    for start in range(0, slab, block):
                        target = here[start + shift : start + block]
                        source = after[start : start + block - shift]
                        for s in range(block - shift):
                            target[s] = max(target[s], worth + source[s])


@njit
def trace_grid(demand, prefer, tier, spare, packed, strides, sizes, table):
    """Backtrack through a filled table from the full grid: int64[n], the node of each session or -1."""
    n, m = prefer.shape
    choice = np.full(n, -1, np.int64)
    state = table.shape[1] - 1
    for i in range(n):
        pick, most, next_state = -1, -1, state
        for k in range(m):
            b = prefer[i, k]
            if b < 0 or (pick >= 0 and tier[i, b] != tier[i, pick]):
                break
            left = (state // strides[b]) % sizes[b]
            child = state - demand[i] * strides[b]
            if left < demand[i] or packed[i, b] + table[i + 1, child] != table[i, state]:
                continue
            if left + spare[b] > most:
                pick, most, next_state = b, left + spare[b], child
        choice[i], state = pick, next_state
    return choice


@njit
def count_grid(demand, prefer, strides, sizes):
    """Number of distinct remaining vectors that placing the n sessions can leave, on the same grid."""
    n, m = prefer.shape
    last = m - 1
    slab = strides[last]
    cells = slab * sizes[last]
    digit = np.arange(slab) % sizes[0]
    fits = np.empty(slab, np.uint8)
    reached = np.zeros(cells, np.uint8)
    reached[cells - 1] = 1
    before = np.empty(cells, np.uint8)
    for i in range(n):
        for s in range(cells):
            before[s] = reached[s]
        for s in range(slab):
            fits[s] = digit[s] >= demand[i]
        for k in range(m):
            b = prefer[i, k]
            if b < 0:
                break
            shift = demand[i] * strides[b]
            if b == 0 and b != last:
                for base in range(0, cells, slab):
                    target, source = reached[base : base + slab - shift], before[base + shift : base + slab]
                    mask = fits[shift:]
                    for s in range(slab - shift):
                        target[s] |= source[s] & mask[s]
            else:
                block = sizes[b] * strides[b]
                for base in range(0, cells, block):
                    target, source = reached[base : base + block - shift], before[base + shift : base + block]
                    for s in range(block - shift):
                        target[s] |= source[s]
    count = np.int64(0)
    for s in range(cells):
        count += reached[s]
    return count


@njit
def _hash(b, left):
    """A number below 2**31 for `left` quanta on node b; hashes of a vector's entries are added."""
    return ((left & _MASK) * (2654435 * b + 40503)) & _MASK


@njit
def _find(slots, states, hashes, parent, b, demand):
    """Look up the vector states[parent] with `demand` taken from node b: (id or -1, hash, slot)."""
    left = states[parent, b]
    h = (hashes[parent] - _hash(b, left) + _hash(b, left - demand)) & _MASK
    at = h & (slots.shape[0] - 1)
    while slots[at] >= 0:
        s = slots[at]
        if hashes[s] == h:
            same = True
            for c in range(states.shape[1]):
                expected = states[parent, c] - demand if c == b else states[parent, c]
                if states[s, c] != expected:
                    same = False
                    break
            if same:
                return s, h, at
        at = (at + 1) & (slots.shape[0] - 1)
    return -1, h, at


@njit
def _reach(demand, free, prefer, states, hashes, slots, layers):
    """List all reachable vectors in `states`; layers[i] = how many before session i. -1: too many."""
    n, m = prefer.shape
    hashes[0] = 0
    for b in range(m):
        states[0, b] = free[b]
        hashes[0] = (hashes[0] + _hash(b, free[b])) & _MASK
    slots[hashes[0] & (slots.shape[0] - 1)] = 0
    count = 1
    for i in range(n):
        layers[i] = count
        for parent in range(count):
            for k in range(m):
                b = prefer[i, k]
                if b < 0:
                    break
                if states[parent, b] < demand[i]:
                    continue
                found, h, at = _find(slots, states, hashes, parent, b, demand[i])
                if found >= 0:
                    continue
                if count == states.shape[0]:
                    return -1
                for c in range(m):
                    states[count, c] = states[parent, c]
                states[count, b] -= demand[i]
                hashes[count] = h
                slots[at] = count
                count += 1
    layers[n] = count
    return count


@njit
def search_reachable(demand, free, prefer, tier, spare, high, low, room):
    """The DP over reachable vectors only: (int64[n] node or -1, number of states).

    high, low : int64[n, m], the value in two integers compared one after the other.
    room : how many states may be held; if that is too few, states = -1 and the choice is void.
    """
    n, m = prefer.shape
    slot_count = 1
    while slot_count < 2 * room:
        slot_count *= 2
    slots = np.full(slot_count, -1, np.int32)
    states = np.empty((room, m), np.int64)
    hashes = np.empty(room, np.int64)
    layers = np.empty(n + 1, np.int64)
    choice = np.full(n, -1, np.int64)
    count = _reach(demand, free, prefer, states, hashes, slots, layers)
    if count < 0:
        return choice, count

    starts = np.zeros(n + 1, np.int64)
    for i in range(n):
        starts[i + 1] = starts[i] + layers[i]
    picks = np.full(starts[n], -1, np.int16)
    high_after, low_after = np.zeros(count, np.int64), np.zeros(count, np.int64)
    high_here, low_here = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for i in range(n - 1, -1, -1):
        for s in range(layers[i]):
            best_high, best_low, pick = high_after[s], low_after[s], np.int64(-1)
            for k in range(m):
                b = prefer[i, k]
                if b < 0:
                    break
                if states[s, b] < demand[i]:
                    continue
                child, _, _ = _find(slots, states, hashes, s, b, demand[i])
                h, w = high[i, b] + high_after[child], low[i, b] + low_after[child]
                better = h > best_high or (h == best_high and w > best_low)
                if not better and h == best_high and w == best_low:
                    better = pick < 0 or (
                        tier[i, b] == tier[i, pick]
                        and states[s, b] + spare[b] > states[s, pick] + spare[pick]
                    )
                if better:
                    best_high, best_low, pick = h, w, b
            high_here[s], low_here[s], picks[starts[i] + s] = best_high, best_low, pick
        high_after, high_here = high_here, high_after
        low_after, low_here = low_here, low_after

    s = np.int64(0)
    for i in range(n):
        b = np.int64(picks[starts[i] + s])
        choice[i] = b
        if b >= 0:
            s, _, _ = _find(slots, states, hashes, s, b, demand[i])
    return choice, count


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
