"""One node of the cluster, compiled: the rules of `tao.node`, with steps of equal composition taken at once.

While a batch only decodes, each step is longer than the one before by the same time, since every
sequence reads one more token. Such steps form a *segment*, played as one event; whoever comes in
between cuts it at the next boundary. Sequences that decode are not touched at every step either: all
gain a token per step, so that a node's count of steps says how far each one is and when it is done.
Nothing is approximated: results equal `tao.node` exactly.
"""

from __future__ import annotations

from typing import NamedTuple

from tao._jit import njit
from tao.engine.cache import make_room, own_tokens, release, unlink
from tao.engine.layout import (
    AT,
    BORN,
    CHUNK,
    COMPUTED,
    CONTEXT,
    DECODES,
    EMITTED,
    ENDS_PS,
    FILLS,
    FIRST_PS,
    HEAD,
    HIT,
    LOST,
    NEVER,
    NEXT,
    NEXT_DUE,
    OUTPUT,
    PARTIAL,
    PREEMPTIONS,
    PROMPT,
    RECOMPUTED,
    REUSABLE,
    SCHEDULED_PS,
    STEPS_DONE,
    SUBMITTED_PS,
    TAIL,
    TAKING,
    WARM,
)
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
    STREAMED,
    boundary_ps,
    scrape,
    steps_by,
)


@njit
def submit(machine, b, i, now_ps):
    """Queue session i's request on node b; True if that cuts the segment in flight (ENDS_PS has changed)."""
    node, inner, request = machine.node, machine.inner, machine.request
    if machine.law.lag_ps:
        scrape(node, b, now_ps, machine.law.lag_ps)
    request[i, SUBMITTED_PS], request[i, NEXT] = now_ps, -1
    request[i, SCHEDULED_PS] = -1
    for column in (COMPUTED, EMITTED, CHUNK, FIRST_PS, HIT, RECOMPUTED, PREEMPTIONS, LOST):
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
    node, inner = machine.node, machine.inner
    if machine.law.lag_ps:
        scrape(node, b, now_ps, machine.law.lag_ps)
    steps = node[b, STEPS]
    gained = inner[b, TAKING] * steps
    inner[b, ENDS_PS] = -1
    inner[b, STEPS_DONE] += steps
    inner[b, CONTEXT] += gained
    node[b, PINNED] += gained
    node[b, STEPS] = node[b, BATCH] = 0
    if inner[b, PARTIAL]:
        _sit_out(machine, b)
    if inner[b, FILLS]:
        _advance(machine, b, now_ps)
    if steps > 1:
        make_room(machine, b, 0)
    if inner[b, NEXT_DUE] <= inner[b, STEPS_DONE]:
        return _take_done(machine, b, ended, count)
    return count


@njit
def _sit_out(machine, b):
    """Whoever got no token in this step is a step further from its end."""
    request = machine.request
    machine.inner[b, PARTIAL] = 0
    for k in range(machine.node[b, RUNNING]):
        i = machine.running[b, k]
        if machine.due[b, k] != NEVER and not request[i, CHUNK]:
            request[i, BORN] += 1
            machine.due[b, k] += 1


@njit
def _advance(machine, b, now_ps):
    """Apply the chunks of the requests that do not decode yet; who is through decodes from now on."""
    node, inner, fills, shared = machine.node, machine.inner, machine.fills, machine.law.shared_tokens
    kept = 0
    for k in range(inner[b, FILLS]):
        i = fills[b, k]
        row = machine.request[i]
        before = max(row[COMPUTED], shared)
        row[COMPUTED] += row[CHUNK]
        row[CHUNK] = 0
        node[b, PINNED] += max(row[COMPUTED], shared) - before
        if row[COMPUTED] >= shared:
            inner[b, WARM] = 1
        missing = row[PROMPT] + row[EMITTED] - row[COMPUTED]
        if missing == 0:
            row[EMITTED] += 1
            if row[EMITTED] == 1:
                row[FIRST_PS] = now_ps
                node[b, PREFILLING] -= machine.session[i, CHARGE]
                machine.session[i, CHARGE] = 0
        if missing == 0 or (missing == 1 and row[EMITTED]):
            _decode(machine, b, i)
        else:
            fills[b, kept] = i
            kept += 1
    inner[b, FILLS] = kept


@njit
def _decode(machine, b, i):
    """Session i's request, computed but for its last token, decodes from the next step on."""
    inner, row = machine.inner, machine.request[i]
    row[BORN] = inner[b, STEPS_DONE] - row[EMITTED]
    machine.due[b, row[AT]] = row[BORN] + row[OUTPUT]
    inner[b, NEXT_DUE] = min(inner[b, NEXT_DUE], row[BORN] + row[OUTPUT])
    inner[b, DECODES] += 1
    inner[b, CONTEXT] += row[PROMPT] + row[EMITTED] - 1


@njit
def _settle(machine, b, i):
    """Session i's request decodes no more: write down how far it came."""
    inner, row = machine.inner, machine.request[i]
    row[EMITTED] = inner[b, STEPS_DONE] - row[BORN]
    row[COMPUTED] = row[PROMPT] + row[EMITTED] - 1
    inner[b, DECODES] -= 1
    inner[b, CONTEXT] -= row[COMPUTED]


@njit
def _take_done(machine, b, ended, count):
    """Take the finished requests out of the batch, in order of admission; returns the new count."""
    node, inner, running, due = machine.node, machine.inner, machine.running, machine.due
    begin, kept, first, now = count, 0, NEVER, inner[b, STEPS_DONE]
    for k in range(node[b, RUNNING]):
        i = running[b, k]
        if due[b, k] == now:
            _settle(machine, b, i)
            machine.session[i, STREAMED] = machine.request[i, EMITTED]
            ended[count, 0], ended[count, 1] = b, i
            count += 1
        else:
            first = min(first, due[b, k])
            if kept < k:
                running[b, kept], due[b, kept] = i, due[b, k]
                machine.request[i, AT] = kept
            kept += 1
    node[b, RUNNING], inner[b, NEXT_DUE] = kept, first
    for k in range(begin, count):
        release(machine, b, ended[k, 1])
    return count


@njit
def _preempt(machine, b):
    """Send the request admitted last back to the front of the queue: whose it is."""
    node, inner, request = machine.node, machine.inner, machine.request
    node[b, RUNNING] -= 1
    k = node[b, RUNNING]
    i = machine.running[b, k]
    if machine.due[b, k] == NEVER:
        inner[b, FILLS] -= 1
    else:
        _settle(machine, b, i)
    release(machine, b, i)
    request[i, REUSABLE] = request[i, LOST] = request[i, COMPUTED]
    request[i, COMPUTED] = 0
    request[i, PREEMPTIONS] += 1
    request[i, NEXT] = inner[b, HEAD]
    if inner[b, HEAD] < 0:
        inner[b, TAIL] = i
    inner[b, HEAD] = i
    node[b, QUEUED] += 1
    return i


class Batch(NamedTuple):
    """The step being formed: what is left of the token budget, and what the step-time law asks for."""

    budget: int
    room: int  # tokens of KV cache that it fills
    decodes: int
    context: int
    new: int
    attention: int


@njit
def begin(machine, b, now_ps):
    """Form node b's next batch and start its step, or segment; inner[b, ENDS_PS] says until when."""
    node, inner, law = machine.node, machine.inner, machine.law
    if law.lag_ps:
        scrape(node, b, now_ps, law.lag_ps)
    preempted = False
    batch = _everybody(machine, b)
    if batch.budget < 0 or not make_room(machine, b, batch.room):
        batch, preempted = _in_order(machine, b)
    blocked = False
    if not preempted and inner[b, HEAD] >= 0:
        batch, blocked = _admit(machine, b, now_ps, batch)
    if batch.new == 0 and batch.decodes == 0:
        return
    inner[b, TAKING] = batch.decodes
    node[b, SEGMENT_PS], node[b, STEPS], node[b, STEP_PS] = now_ps, 1, _step_ps(law, batch)
    node[b, BATCH] = node[b, GROWTH_PS] = 0
    queue_waits = inner[b, HEAD] < 0 or (blocked and not preempted)
    if law.skipping and batch.new == 0 and not inner[b, PARTIAL] and queue_waits:
        left = node[b, CAPACITY] - law.shared_tokens - node[b, PINNED]
        node[b, STEPS] = min(inner[b, NEXT_DUE] - inner[b, STEPS_DONE], left // batch.decodes)
        node[b, BATCH], node[b, GROWTH_PS] = batch.decodes, law.per_kv_token * batch.decodes
    inner[b, ENDS_PS] = boundary_ps(node, b, node[b, STEPS])


@njit
def _everybody(machine, b):
    """The batch of all running requests with all they need; a budget below 0 says that it is too small."""
    inner, shared = machine.inner, machine.law.shared_tokens
    decodes = inner[b, DECODES]
    room, new, attention = decodes, 0, 0
    for k in range(inner[b, FILLS]):
        row = machine.request[machine.fills[b, k]]
        missing = row[PROMPT] + row[EMITTED] - row[COMPUTED]
        row[CHUNK] = missing
        new += missing
        attention += missing * (2 * row[COMPUTED] + missing)
        room += max(row[COMPUTED] + missing, shared) - max(row[COMPUTED], shared)
    budget = machine.law.max_batched_tokens - decodes - new
    return Batch(budget, room, decodes, inner[b, CONTEXT], new, attention)


@njit
def _in_order(machine, b):
    """(batch, was anybody preempted?) where not all fit: in order of admission, preempting from the end."""
    node, inner, shared = machine.node, machine.inner, machine.law.shared_tokens
    budget, room, decodes, context, new, attention = machine.law.max_batched_tokens, 0, 0, 0, 0, 0
    preempted, k = False, 0
    inner[b, PARTIAL] = 1
    for a in range(node[b, RUNNING]):
        machine.request[machine.running[b, a], CHUNK] = 0
    while k < node[b, RUNNING] and budget > 0:
        i = machine.running[b, k]
        row = machine.request[i]
        decoding = machine.due[b, k] != NEVER
        emitted = inner[b, STEPS_DONE] - row[BORN] if decoding else row[EMITTED]
        computed = row[PROMPT] + emitted - 1 if decoding else row[COMPUTED]
        chunk = min(row[PROMPT] + emitted - computed, budget)
        own = max(computed + chunk, shared) - max(computed, shared)
        fits = make_room(machine, b, room + own)
        while not fits:
            preempted = True
            if _preempt(machine, b) == i:
                break
            fits = make_room(machine, b, room + own)
        if not fits:
            continue
        if decoding:
            decodes += 1
            context += computed
        else:
            new += chunk
            attention += chunk * (2 * computed + chunk)
        row[CHUNK] = chunk
        budget -= chunk
        room += own
        k += 1
    inner[b, NEXT_DUE] = NEVER
    for a in range(node[b, RUNNING]):
        inner[b, NEXT_DUE] = min(inner[b, NEXT_DUE], machine.due[b, a])
    return Batch(budget, room, decodes, context, new, attention), preempted


@njit
def _admit(machine, b, now_ps, batch):
    """Admit from the queue, head first: (batch, can nobody be until the batch or the queue changes?)."""
    node, inner, request, law = machine.node, machine.inner, machine.request, machine.law
    capacity = node[b, CAPACITY] - law.shared_tokens
    budget, room, decodes, context, new, attention = batch
    blocked = False
    while inner[b, HEAD] >= 0 and budget > 0 and node[b, RUNNING] < law.max_seqs:
        i = inner[b, HEAD]
        row = request[i]
        missing = row[PROMPT] + row[EMITTED]
        known = min(machine.pair[i, b, CACHED], row[REUSABLE])
        known = max(known, law.shared_tokens if inner[b, WARM] else 0)
        hit = min(known, missing - 1) // law.block_tokens * law.block_tokens
        chunk = min(missing - hit, budget)
        if node[b, PINNED] + own_tokens(machine, hit + chunk) + room > capacity:
            # Each further step pins a token per sequence more, and evicts as many at most, so that the
            # hit can shrink by that and a block. If that cannot help, nothing does until then.
            least = own_tokens(machine, min(missing, hit + budget - law.block_tokens))
            blocked = node[b, PINNED] + room + least > capacity
            return Batch(budget, room, decodes, context, new, attention), blocked
        if machine.pair[i, b, CACHED]:
            unlink(machine, b, i)
        inner[b, HEAD] = row[NEXT]
        node[b, QUEUED] -= 1
        _join(machine, b, i, hit, now_ps)
        own = own_tokens(machine, hit + chunk) - own_tokens(machine, hit)
        make_room(machine, b, room + own)
        row[CHUNK] = chunk
        if row[EMITTED] and missing - hit == 1:
            inner[b, FILLS] -= 1
            _decode(machine, b, i)
            decodes += 1
            context += hit
        else:
            new += chunk
            attention += chunk * (2 * hit + chunk)
        budget -= chunk
        room += own
    return Batch(budget, room, decodes, context, new, attention), budget > 0


@njit
def _join(machine, b, i, hit, now_ps):
    """Session i's request joins the batch with so many tokens found in the cache."""
    node, inner, row = machine.node, machine.inner, machine.request[i]
    row[COMPUTED] = hit
    node[b, PINNED] += own_tokens(machine, hit)
    if row[SCHEDULED_PS] < 0:
        row[SCHEDULED_PS], row[HIT] = now_ps, hit
    else:
        row[RECOMPUTED] += max(0, row[LOST] - hit)
    k = node[b, RUNNING]
    machine.running[b, k], machine.due[b, k], row[AT] = i, NEVER, k
    machine.fills[b, inner[b, FILLS]] = i
    node[b, RUNNING] += 1
    inner[b, FILLS] += 1


@njit
def emitted(machine, b, i, now_ps):
    """Tokens of its answer that session i's request on node b has brought by now."""
    row = machine.request[i]
    k = row[AT]
    if k < machine.node[b, RUNNING] and machine.running[b, k] == i and machine.due[b, k] != NEVER:
        return machine.inner[b, STEPS_DONE] + steps_by(machine.node, b, now_ps) - row[BORN]
    return row[EMITTED]


@njit
def _step_ps(law, batch):
    """Duration of a step (see `profiles.StepLaw.step_ps`)."""
    work = law.base + law.experts[batch.decodes + batch.new]
    if batch.new:
        work = max(work, law.prefill + law.per_prefill_token * batch.new)
    work += law.host + law.attention * batch.attention // 2
    return work + law.per_sequence * batch.decodes + law.per_kv_token * batch.context
