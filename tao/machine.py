"""One node of the cluster, compiled: the rules of `tao.node`, with steps of equal composition taken at once.

While a batch only decodes, each step is longer than the one before by the same time, since every
sequence reads one more token. Such steps form a *segment*, played as one event; whoever comes in
between cuts it at the next boundary. Nothing is approximated: results equal `tao.node` exactly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tao._jit import njit
from tao.profiles import Profile
from tao.state import (
    BATCH,
    CACHED,
    CAPACITY,
    CHARGE,
    GROWTH_PS,
    PINNED,
    PREFILLING,
    QUEUED,
    RUNNING,
    SEGMENT_PS,
    STEP_PS,
    STEPS,
    boundary_ps,
    scrape,
    steps_by,
)

Ints = npt.NDArray[np.int64]

# Columns of Machine.request, one row per session, as in `tao.node.Request`; the last three are the host's.
(
    PROMPT,
    OUTPUT,
    REUSABLE,
    SUBMITTED_PS,
    SCHEDULED_PS,
    FIRST_PS,
    COMPUTED,
    EMITTED,
    HIT,
    RECOMPUTED,
    PREEMPTIONS,
    CHUNK,
    LOST,
    NEXT,  # in the node's queue, or in the queue for a tool
    ARRIVED_PS,
    PROMISED,
    ROW,  # the turn's row in the history
    STARTED_PS,
    FINISHED_PS,
) = range(19)
REQUEST_COLUMNS = 19

# Columns of Machine.inner, one row per node.
ENDS_PS, IDLE, WARM, HEAD, TAIL, OLDEST, NEWEST, STEPS_DONE, TOUCHED = range(9)
INNER_COLUMNS = 9

OLDER, NEWER = range(2)  # Machine.links: neighbors in a node's least-recently-used list


class Law(NamedTuple):
    """`profiles.StepLaw` and the engine's limits, as compiled code takes them."""

    base: int
    per_sequence: int
    per_kv_token: int
    prefill: int
    per_prefill_token: int
    attention: int
    host: int
    max_batched_tokens: int
    max_seqs: int
    block_tokens: int
    shared_tokens: int
    lag_ps: int
    skipping: bool
    experts: Ints


class Machine(NamedTuple):
    """The nodes: n sessions, m nodes, at most r requests at a time."""

    session: Ints  # State.session
    node: Ints  # State.node
    pair: Ints  # State.pair
    request: Ints  # int64[n, REQUEST_COLUMNS]
    running: Ints  # int64[m, r], in order of admission; the first node[b, RUNNING] count
    inner: Ints  # int64[m, INNER_COLUMNS]
    links: Ints  # int64[m, n, 2]
    law: Law


def law_of(profile: Profile, shared_tokens: int, lag_ps: int, skipping: bool) -> Law:
    """The constants of a profile for the compiled engine."""
    law = profile.law
    return Law(
        *(law.base, law.per_sequence, law.per_kv_token, law.prefill, law.per_prefill_token),
        *(law.attention, law.host),
        *(profile.max_batched_tokens, profile.max_seqs, profile.block_tokens),
        *(shared_tokens, lag_ps, skipping),
        profile.experts,
    )


@njit
def _own(machine, tokens):
    """How many of a request's first `tokens` are its own, not the shared prefix."""
    return max(tokens - machine.law.shared_tokens, 0)


@njit
def _unlink(machine, b, i):
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
    inner[b, IDLE] -= _own(machine, machine.pair[i, b, CACHED])
    machine.pair[i, b, CACHED] = 0


@njit
def _release(machine, b, i):
    """Session i's request stops running: what it computed stays as the newest idle prefix."""
    inner, links, computed = machine.inner, machine.links, machine.request[i, COMPUTED]
    own = _own(machine, computed)
    machine.node[b, PINNED] -= own
    if machine.pair[i, b, CACHED]:
        _unlink(machine, b, i)
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
def _make_room(machine, b, tokens):
    """Evict idle prefixes, oldest first and from the tail, until `tokens` are free; False if they are not."""
    node, inner = machine.node, machine.inner
    room = node[b, CAPACITY] - machine.law.shared_tokens - node[b, PINNED] - tokens
    while inner[b, IDLE] > room and inner[b, OLDEST] >= 0:
        i = inner[b, OLDEST]
        cut = inner[b, IDLE] - room
        if cut >= _own(machine, machine.pair[i, b, CACHED]):
            _unlink(machine, b, i)
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
        _make_room(machine, b, node[b, BATCH] * begun)


@njit
def submit(machine, b, i, now_ps):
    """Queue session i's request on node b; True if that cuts the segment in flight (ENDS_PS has changed)."""
    node, inner, request = machine.node, machine.inner, machine.request
    if machine.law.lag_ps:
        scrape(node, b, now_ps, machine.law.lag_ps)
    request[i, SUBMITTED_PS], request[i, NEXT] = now_ps, -1
    request[i, SCHEDULED_PS] = -1
    for column in range(FIRST_PS, NEXT):
        request[i, column] = 0
    if inner[b, HEAD] < 0:
        inner[b, HEAD] = i
    else:
        request[inner[b, TAIL], NEXT] = i
    inner[b, TAIL] = i
    node[b, QUEUED] += 1
    if inner[b, ENDS_PS] >= 0 and node[b, STEPS] > 1:
        j = steps_by(node, b, now_ps - 1) + 1
        if j < node[b, STEPS]:
            node[b, STEPS], inner[b, ENDS_PS] = j, boundary_ps(node, b, j)
            return True
    return False


@njit
def finish(machine, b, now_ps, ended, count):
    """End what node b has in flight; (b, i) of each finished request is entered in ended[count:].

    Returns the new count.
    """
    node, inner, request, running = machine.node, machine.inner, machine.request, machine.running
    if machine.law.lag_ps:
        scrape(node, b, now_ps, machine.law.lag_ps)
    steps, batch = node[b, STEPS], node[b, BATCH]
    inner[b, ENDS_PS] = -1
    inner[b, STEPS_DONE] += steps
    node[b, STEPS] = node[b, BATCH] = 0
    begin, kept = count, 0
    if batch:
        node[b, PINNED] += batch * steps
        _make_room(machine, b, 0)
    for k in range(node[b, RUNNING]):
        i = running[b, k]
        done = False
        if batch:
            request[i, COMPUTED] += steps
            request[i, EMITTED] += steps
            done = request[i, EMITTED] == request[i, OUTPUT]
        elif request[i, CHUNK]:
            done = _advance(machine, b, i, now_ps)
        request[i, CHUNK] = 0
        if done:
            ended[count, 0], ended[count, 1] = b, i
            count += 1
        else:
            running[b, kept] = i
            kept += 1
    node[b, RUNNING] = kept
    for k in range(begin, count):
        _release(machine, b, ended[k, 1])
    return count


@njit
def _advance(machine, b, i, now_ps):
    """Apply the chunk of one request; True if that finishes it."""
    node, request, before = machine.node, machine.request, machine.request[i, COMPUTED]
    request[i, COMPUTED] += request[i, CHUNK]
    node[b, PINNED] += _own(machine, request[i, COMPUTED]) - _own(machine, before)
    if request[i, COMPUTED] >= machine.law.shared_tokens:
        machine.inner[b, WARM] = 1
    if request[i, COMPUTED] < request[i, PROMPT] + request[i, EMITTED]:
        return False
    request[i, EMITTED] += 1
    if request[i, EMITTED] == 1:
        request[i, FIRST_PS] = now_ps
        node[b, PREFILLING] -= machine.session[i, CHARGE]
        machine.session[i, CHARGE] = 0
    return request[i, EMITTED] == request[i, OUTPUT]


@njit
def _preempt(machine, b, i):
    """Send the request admitted last back to the front of the queue."""
    node, inner, request = machine.node, machine.inner, machine.request
    _release(machine, b, i)
    node[b, RUNNING] -= 1
    request[i, REUSABLE] = request[i, LOST] = request[i, COMPUTED]
    request[i, COMPUTED] = 0
    request[i, PREEMPTIONS] += 1
    request[i, NEXT] = inner[b, HEAD]
    if inner[b, HEAD] < 0:
        inner[b, TAIL] = i
    inner[b, HEAD] = i
    node[b, QUEUED] += 1


@njit
def begin(machine, b, now_ps):
    """Form node b's next batch and start its step, or the whole segment; inner[b, ENDS_PS] says until when."""
    node, request, running, law = machine.node, machine.request, machine.running, machine.law
    if law.lag_ps:
        scrape(node, b, now_ps, law.lag_ps)
    budget, room, decodes, context, new, attention = law.max_batched_tokens, 0, 0, 0, 0, 0
    preempted, k, least = False, 0, 1 << 62
    while k < node[b, RUNNING] and budget > 0:
        i = running[b, k]
        computed = request[i, COMPUTED]
        missing = request[i, PROMPT] + request[i, EMITTED] - computed
        chunk = min(missing, budget)
        own = _own(machine, computed + chunk) - _own(machine, computed)
        fits = _make_room(machine, b, room + own)
        while not fits:
            victim = running[b, node[b, RUNNING] - 1]
            _preempt(machine, b, victim)
            preempted = True
            if victim == i:
                break
            fits = _make_room(machine, b, room + own)
        if not fits:
            continue
        if missing == 1 and request[i, EMITTED]:
            decodes += 1
            context += computed
            least = min(least, request[i, OUTPUT] - request[i, EMITTED])
        else:
            new += chunk
            attention += chunk * (2 * computed + chunk)
        request[i, CHUNK] = chunk
        budget -= chunk
        room += own
        k += 1
    blocked = False
    if not preempted and machine.inner[b, HEAD] >= 0:
        budget, room, new, attention, blocked = _admit(machine, b, now_ps, budget, room, new, attention)
    if new == 0 and decodes == 0:
        return
    length = _step_ps(law, decodes, context, new, attention)
    node[b, SEGMENT_PS], node[b, STEP_PS], node[b, STEPS] = now_ps, length, 1
    node[b, BATCH] = node[b, GROWTH_PS] = 0
    queue_waits = machine.inner[b, HEAD] < 0 or (blocked and not preempted)
    if law.skipping and new == 0 and decodes == node[b, RUNNING] and queue_waits:
        left = node[b, CAPACITY] - law.shared_tokens - node[b, PINNED]
        node[b, STEPS] = min(least, left // decodes)
        node[b, BATCH], node[b, GROWTH_PS] = decodes, law.per_kv_token * decodes
    machine.inner[b, ENDS_PS] = boundary_ps(node, b, node[b, STEPS])


@njit
def _admit(machine, b, now_ps, budget, room, new, attention):
    """Admit from the queue, head first. The last result: nobody can be until the batch or the queue changes."""
    node, inner, request, law = machine.node, machine.inner, machine.request, machine.law
    capacity = node[b, CAPACITY] - law.shared_tokens
    while inner[b, HEAD] >= 0 and budget > 0 and node[b, RUNNING] < law.max_seqs:
        i = inner[b, HEAD]
        missing = request[i, PROMPT] + request[i, EMITTED]
        known = min(machine.pair[i, b, CACHED], request[i, REUSABLE])
        known = max(known, law.shared_tokens if inner[b, WARM] else 0)
        hit = min(known, missing - 1) // law.block_tokens * law.block_tokens
        chunk = min(missing - hit, budget)
        if node[b, PINNED] + _own(machine, hit + chunk) + room > capacity:
            # Each further step pins a token per sequence more, and evicts as many at most, so that the
            # hit can shrink by that and a block. If that cannot help, nothing does until then.
            least = _own(machine, min(missing, hit + budget - law.block_tokens))
            return budget, room, new, attention, node[b, PINNED] + room + least > capacity
        if machine.pair[i, b, CACHED]:
            _unlink(machine, b, i)
        request[i, COMPUTED] = hit
        node[b, PINNED] += _own(machine, hit)
        own = _own(machine, hit + chunk) - _own(machine, hit)
        _make_room(machine, b, room + own)
        if request[i, SCHEDULED_PS] < 0:
            request[i, SCHEDULED_PS], request[i, HIT] = now_ps, hit
        else:
            request[i, RECOMPUTED] += max(0, request[i, LOST] - hit)
        machine.running[b, node[b, RUNNING]] = i
        node[b, RUNNING] += 1
        inner[b, HEAD] = request[i, NEXT]
        node[b, QUEUED] -= 1
        request[i, CHUNK] = chunk
        new += chunk
        attention += chunk * (2 * hit + chunk)
        budget -= chunk
        room += own
    return budget, room, new, attention, budget > 0


@njit
def _step_ps(law, decodes, context, new, attention):
    """Duration of a step (see `profiles.StepLaw.step_ps`)."""
    work = law.base + law.experts[decodes + new]
    if new:
        work = max(work, law.prefill + law.per_prefill_token * new)
    work += law.host + law.attention * attention // 2
    return work + law.per_sequence * decodes + law.per_kv_token * context
