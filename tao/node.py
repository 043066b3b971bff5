"""One node of the cluster, stepped: continuous batching and a prefix cache in the shape of vLLM V1.

A node works in steps. At each step's end `SimNode.step` applies it (decodes gain a token, prefills
advance), says what happened, and forms the next batch: running requests first, decodes one token
each, unfinished prefills from the rest of the token budget, then the waiting queue in order. Where
the KV cache is full, idle prefixes are evicted, oldest session first and from its tail; then the
request admitted last is preempted. Time is in whole picoseconds and belongs to the caller.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from tao.model import InputError
from tao.profiles import Profile


@dataclass(slots=True, eq=False)
class Request:
    """One turn at the engine. `reusable` bounds how much of the prompt an earlier turn can have cached."""

    session: int
    prompt_tokens: int
    output_tokens: int
    reusable: int
    submitted_ps: int = 0
    scheduled_ps: int = -1  # first time in a batch
    first_token_ps: int = -1
    finished_ps: int = -1
    computed: int = 0  # tokens of this request in the KV cache
    emitted: int = 0  # output tokens produced
    hit_tokens: int = 0  # prefix found at the first admission
    recomputed_tokens: int = 0  # computed a second time after a preemption
    preemptions: int = 0
    chunk: int = 0  # tokens it computes in the step in flight
    lost: int = 0  # tokens it had in the KV cache when it was preempted last

    @property
    def to_compute(self) -> int:
        """Tokens of the prompt and of the output so far that are not in the KV cache; 0 emits a token."""
        return self.prompt_tokens + self.emitted - self.computed

    @property
    def decoding(self) -> bool:
        """True if its next step only feeds back the token emitted last."""
        return self.emitted > 0 and self.to_compute == 1


class Event(NamedTuple):
    """What a step's end brought to one request."""

    kind: Literal["first token", "finished", "preempted"]
    request: Request


class PrefixCache(Protocol):
    """Idle prefixes on a node: those that no running request pins."""

    tokens: int

    def held(self, session: int) -> int:
        """Idle tokens of a session."""

    def match(self, request: Request) -> int:
        """How many tokens of the request's prompt are cached here."""

    def take(self, request: Request) -> None:
        """Remove what is cached for the request's session: it becomes pinned, or is dropped."""

    def put(self, request: Request) -> None:
        """Keep the request's computed tokens as the newest idle prefix."""

    def evict(self, tokens: int) -> int:
        """Free up to `tokens`, least recently used first; how many were freed."""


class SessionCache:
    """A prefix cache that knows only how many tokens of each session it holds (LRU, cut at the tail).

    The first `shared_tokens` of every session are the same; they are not counted here, see `SimNode`.
    """

    def __init__(self, shared_tokens: int = 0) -> None:
        self.tokens = 0
        self.shared_tokens = shared_tokens
        self._held: dict[int, int] = {}  # own tokens, in order of last use

    def held(self, session: int) -> int:
        """Idle tokens of a session, the shared ones before them included."""
        own = self._held.get(session, 0)
        return own + self.shared_tokens if own else 0

    def match(self, request: Request) -> int:
        return min(self.held(request.session), request.reusable)

    def take(self, request: Request) -> None:
        self.tokens -= self._held.pop(request.session, 0)

    def put(self, request: Request) -> None:
        self.take(request)
        own = request.computed - self.shared_tokens
        if own > 0:
            self._held[request.session] = own
            self.tokens += own

    def evict(self, tokens: int) -> int:
        freed = 0
        while freed < tokens and self._held:
            session, held = next(iter(self._held.items()))
            cut = min(held, tokens - freed)
            if cut == held:
                del self._held[session]
            else:
                self._held[session] = held - cut
            freed += cut
        self.tokens -= freed
        return freed


@dataclass(slots=True)
class _Batch:
    """The step being formed: what is left of the token budget, and what the step-time law asks for."""

    budget: int
    tokens: int = 0
    room: int = 0  # tokens of KV cache that it fills
    decodes: int = 0
    context: int = 0  # KV tokens that the decodes read
    chunks: list[tuple[int, int]] = field(default_factory=list)  # (new tokens, tokens before them)

    def add(self, r: Request, chunk: int) -> None:
        if r.decoding:
            self.decodes += 1
            self.context += r.computed
        else:
            self.chunks.append((chunk, r.computed))
        r.chunk = chunk
        self.budget -= chunk
        self.tokens += chunk


class SimNode:
    """A node that serves requests: `submit`, `cancel`, and `step` at `ends_ps`, over any prefix cache.

    Room for the first `shared_tokens` of every prompt, the same in all, is set aside from the start; the
    first request that has computed them makes the node warm for the others.
    """

    def __init__(
        self,
        profile: Profile,
        capacity_tokens: int | None = None,
        cache: PrefixCache | None = None,
        shared_tokens: int = 0,
    ):
        self.profile = profile
        self.capacity_tokens = capacity_tokens or profile.capacity_tokens
        self.shared_tokens = shared_tokens
        self.warm = False  # the shared prefix has been computed here
        self.cache: PrefixCache = SessionCache(shared_tokens) if cache is None else cache
        self.running: list[Request] = []  # in order of admission
        self.waiting: deque[Request] = deque()
        self.pinned_tokens = 0  # KV tokens of the running requests
        self.ends_ps: int | None = None  # end of the step in flight; None: the node is idle
        self.steps = 0

    @property
    def free_tokens(self) -> int:
        """Tokens that neither a running request nor an idle prefix holds."""
        return self.capacity_tokens - self.shared_tokens - self.pinned_tokens - self.cache.tokens

    def _own(self, tokens: int) -> int:
        """How many of a request's first `tokens` are its own."""
        return max(tokens - self.shared_tokens, 0)

    def submit(self, request: Request, now_ps: int) -> None:
        """Queue a request; raises `InputError` if it can never fit. An idle node then needs a `step`."""
        needed = request.prompt_tokens + request.output_tokens
        if needed > self.capacity_tokens:
            raise InputError(
                f"session {request.session} needs {needed:,} tokens but the node holds "
                f"{self.capacity_tokens:,}; raise the capacity or leave the session out"
            )
        request.submitted_ps = now_ps
        self.waiting.append(request)

    def cancel(self, session: int) -> bool:
        """Drop a session's request, keeping what it computed as idle cache; False if it has none."""
        for request in self.waiting:
            if request.session == session:
                self.waiting.remove(request)
                return True
        for request in self.running:
            if request.session == session:
                self._release(request)
                return True
        return False

    def step(self, now_ps: int) -> list[Event]:
        """End the step in flight (if any) and start the next; `ends_ps` then says when that one ends."""
        return self.finish(now_ps) + self.start(now_ps)

    def finish(self, now_ps: int) -> list[Event]:
        """End the step in flight, if any: first tokens and finished requests."""
        if self.ends_ps is None:
            return []
        self.ends_ps = None
        return self._apply(now_ps)

    def start(self, now_ps: int) -> list[Event]:
        """Form the next batch and start its step: the preempted requests, if any."""
        events: list[Event] = []
        self._schedule(now_ps, events)
        return events

    def _apply(self, now_ps: int) -> list[Event]:
        events, finished = [], []
        for r in self.running:
            if not r.chunk:
                continue
            self.pinned_tokens += self._own(r.computed + r.chunk) - self._own(r.computed)
            r.computed += r.chunk
            r.chunk = 0
            self.warm = self.warm or r.computed >= self.shared_tokens
            if r.to_compute:  # a prefill that is not through yet
                continue
            r.emitted += 1
            if r.emitted == 1:
                r.first_token_ps = now_ps
                events.append(Event("first token", r))
            if r.emitted == r.output_tokens:
                finished.append(r)
        for r in finished:
            r.finished_ps = now_ps
            self._release(r)
            events.append(Event("finished", r))
        return events

    def _release(self, r: Request) -> None:
        self.running.remove(r)
        self.pinned_tokens -= self._own(r.computed)
        self.cache.put(r)

    def _schedule(self, now_ps: int, events: list[Event]) -> None:
        batch = _Batch(self.profile.max_batched_tokens)
        preempted = False
        i = 0
        while i < len(self.running) and batch.budget:
            r = self.running[i]
            chunk = min(r.to_compute, batch.budget)
            while not self._make_room(r, chunk, batch):
                victim = self.running[-1]
                self._preempt(victim)
                events.append(Event("preempted", victim))
                preempted = True
                if victim is r:
                    break
            else:
                batch.add(r, chunk)
                i += 1
        if not preempted:
            self._admit(now_ps, batch)
        if batch.tokens:
            self.ends_ps = now_ps + self.profile.law.step_ps(batch.decodes, batch.context, batch.chunks)
            self.steps += 1

    def _admit(self, now_ps: int, batch: _Batch) -> None:
        block = self.profile.block_tokens
        while self.waiting and batch.budget and len(self.running) < self.profile.max_seqs:
            r = self.waiting[0]
            hit = min(self._known(r), r.to_compute - 1) // block * block
            chunk = min(r.to_compute - hit, batch.budget)
            if not self._fits(r, hit, chunk, batch):
                return  # the head of the queue blocks it
            self._pin(r, hit)
            self._make_room(r, chunk, batch)
            if r.scheduled_ps < 0:
                r.scheduled_ps, r.hit_tokens = now_ps, hit
            else:
                r.recomputed_tokens += max(0, r.lost - hit)
            self.running.append(self.waiting.popleft())
            batch.add(r, chunk)

    def _known(self, r: Request) -> int:
        """Tokens at the start of a waiting request that are cached here."""
        return max(self.cache.match(r), self.shared_tokens if self.warm else 0)

    def _fits(self, r: Request, hit: int, chunk: int, batch: _Batch) -> bool:
        """Whether a waiting request, of which `hit` tokens are cached, finds room for a first chunk."""
        pinned = self.pinned_tokens + self._own(hit + chunk) + batch.room
        return pinned <= self.capacity_tokens - self.shared_tokens

    def _pin(self, r: Request, hit: int) -> None:
        """Take the cached start of a request that is admitted."""
        self.cache.take(r)
        r.computed = hit
        self.pinned_tokens += self._own(hit)

    def _make_room(self, r: Request, chunk: int, batch: _Batch) -> bool:
        """Room in the batch for `chunk` more tokens, evicting idle prefixes; False if there is not enough."""
        room = self._own(r.computed + chunk) - self._own(r.computed)
        short = batch.room + room - self.free_tokens
        if short > 0 and self.cache.evict(short) < short:
            return False
        batch.room += room
        return True

    def _preempt(self, victim: Request) -> None:
        """Send a request back to the front of the queue; what it computed stays as newest idle cache."""
        self._release(victim)
        victim.reusable = victim.lost = victim.computed
        victim.computed = 0
        victim.preemptions += 1
        self.waiting.appendleft(victim)
