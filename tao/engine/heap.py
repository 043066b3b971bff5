"""A binary heap of events in arrays, in which every event stands at most once and can be made earlier."""

from __future__ import annotations

from tao._jit import njit
from tao.engine.layout import HEAP


@njit
def push(count, heap_ps, heap_id, heap_at, what, at_ps):
    """Enter an event, or make it earlier."""
    k = heap_at[what]
    if k < 0:
        k = count[HEAP]
        count[HEAP] += 1
    while k > 0:
        above = (k - 1) >> 1
        if heap_ps[above] < at_ps or (heap_ps[above] == at_ps and heap_id[above] < what):
            break
        heap_ps[k], heap_id[k] = heap_ps[above], heap_id[above]
        heap_at[heap_id[k]] = k
        k = above
    heap_ps[k], heap_id[k], heap_at[what] = at_ps, what, k


@njit
def pop(count, heap_ps, heap_id, heap_at):
    """Take out the first event: whose it is."""
    first = heap_id[0]
    heap_at[first] = -1
    count[HEAP] -= 1
    size = count[HEAP]
    if size == 0:
        return first
    at_ps, what, k = heap_ps[size], heap_id[size], 0
    while True:
        below = 2 * k + 1
        if below >= size:
            break
        other = below + 1
        if other < size and (
            heap_ps[other] < heap_ps[below]
            or (heap_ps[other] == heap_ps[below] and heap_id[other] < heap_id[below])
        ):
            below = other
        if at_ps < heap_ps[below] or (at_ps == heap_ps[below] and what < heap_id[below]):
            break
        heap_ps[k], heap_id[k] = heap_ps[below], heap_id[below]
        heap_at[heap_id[k]] = k
        k = below
    heap_ps[k], heap_id[k], heap_at[what] = at_ps, what, k
    return first
