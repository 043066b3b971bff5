"""A node's prefix cache, compiled: idle prefixes in a least-recently-used list, evicted from the tail."""

from __future__ import annotations

from tao._jit import njit
from tao.engine.layout import COMPUTED, ENDS_PS, IDLE, NEWER, NEWEST, OLDER, OLDEST
from tao.state import BATCH, CACHED, CAPACITY, PINNED, STEPS, steps_by


@njit
def own_tokens(machine, tokens):
    """How many of a request's first `tokens` are its own, not the shared prefix."""
    return max(tokens - machine.law.shared_tokens, 0)


@njit
def unlink(machine, b, i):
    """Take session i out of node b's list of idle prefixes."""
    inner, links = machine.inner, machine.links
    older, newer = links[b, i, OLDER], links[b, i, NEWER]
    if older >= 0:
        links[b, older, NEWER] = newer
    else:
        inner[b, OLDEST] = newer
    if newer >= 0:
        links[b, newer, OLDER] = older
    else:
        inner[b, NEWEST] = older
    inner[b, IDLE] -= own_tokens(machine, machine.pair[i, b, CACHED])
    machine.pair[i, b, CACHED] = 0


@njit
def release(machine, b, i):
    """Session i's request stops running: what it computed stays as the newest idle prefix."""
    inner, links, computed = machine.inner, machine.links, machine.request[i, COMPUTED]
    own = own_tokens(machine, computed)
    machine.node[b, PINNED] -= own
    if machine.pair[i, b, CACHED]:
        unlink(machine, b, i)
    if own:
        newest = inner[b, NEWEST]
        links[b, i, OLDER], links[b, i, NEWER] = newest, -1
        if newest >= 0:
            links[b, newest, NEWER] = i
        else:
            inner[b, OLDEST] = i
        inner[b, NEWEST] = i
        inner[b, IDLE] += own
        machine.pair[i, b, CACHED] = computed


@njit
def make_room(machine, b, tokens):
    """Evict idle prefixes, oldest first and from the tail, until `tokens` are free; False if they are not."""
    node, inner = machine.node, machine.inner
    room = node[b, CAPACITY] - machine.law.shared_tokens - node[b, PINNED] - tokens
    while inner[b, IDLE] > room and inner[b, OLDEST] >= 0:
        i = inner[b, OLDEST]
        cut = inner[b, IDLE] - room
        if cut >= own_tokens(machine, machine.pair[i, b, CACHED]):
            unlink(machine, b, i)
        else:
            machine.pair[i, b, CACHED] -= cut
            inner[b, IDLE] -= cut
    return inner[b, IDLE] <= room


@njit
def evict_pending(machine, b, now_ps):
    """Evict now what the steps that have begun before this moment needed to be evicted."""
    node = machine.node
    if machine.inner[b, ENDS_PS] >= 0 and node[b, BATCH]:
        begun = min(steps_by(node, b, now_ps - 1) + 1, node[b, STEPS])
        make_room(machine, b, node[b, BATCH] * begun)
