"""What is asked of a server to learn how long its steps take, and the clock beside it.

Prefills are timed by their first tokens on an idle server, decoding by one stream beside others, and the
two together by the longest gap in a stream while a prompt is prefilled next to it, in which there is no
network.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from tao.checks import InputError
from tao.live.faults import BUSY, Failed, LiveError
from tao.live.fit import Kind, Step
from tao.live.metrics_page import Load
from tao.live.stream import Reply

DECODES = 24  # ours: tokens whose mean time is a measurement
SHORT = 32  # ours: tokens of a prompt that costs almost nothing
LONG = 4096  # ours: long contexts, where there is room
PREFILLS = (SHORT, 128, 512, 1024, 2048, 4096, 8192)  # ours
HELD_OUT: tuple[tuple[Kind, int, int], ...] = (
    ("prefill", 0, 768),
    ("mixed", 4, 1024),
    ("decode", 3, SHORT),
    ("decode", 6, 1024),
)  # ours
PATIENCE_S = 2.0  # ours: until a server that was left alone is idle
LOOK_S = 0.25  # ours: between two looks at a server that is busy with us
REFUSALS = 5  # ours: so many in a row are enough


class Probe(NamedTuple):
    """Something to measure: `beside` other sequences, or as one of them, with so many tokens each."""

    kind: Kind
    beside: int
    tokens: int
    cached: int = 0

    @property
    def load(self) -> tuple[int, int, int]:
        """Requests, prompt tokens, and tokens generated at most."""
        if self.kind == "prefill":
            return 1 + (self.cached > 0), self.tokens + 2 * self.cached, 2
        if self.kind == "mixed":
            return 1 + self.beside, self.tokens + SHORT * self.beside, 1 + 2 * DECODES * self.beside
        return self.beside, self.beside * self.tokens, self.beside * self.room

    @property
    def room(self) -> int:
        """Tokens that a stream beside the measured one may generate until it is stopped."""
        return 4 * DECODES + 4 * self.beside


def plan(capacity: int, longest: int, block: int, caching: bool) -> list[Probe]:
    """What to measure on a server of that size, the cheap things first.

    >>> plan(1_000, 500, 16, True)[:3]
    [Probe(kind='prefill', beside=0, tokens=32, cached=0), Probe(kind='prefill', beside=0, tokens=128, \
cached=0), Probe(kind='decode', beside=1, tokens=32, cached=0)]
    """
    sizes = [n for n in PREFILLS if n + 2 <= longest]
    probes = [Probe("prefill", 0, n) for n in sizes]
    probes += [Probe("decode", b, SHORT) for b in (1, 2, 4, 8, 16, 32, 64)]
    probes += [Probe("mixed", 1, n) for n in sizes if n >= 512]
    probes += [Probe("mixed", 16, 1024)]  # tells what each sequence costs from what experts do
    if caching:
        wanted = [(256, c) for c in sizes if c >= 1024]
        probes += [Probe("prefill", 0, n, c // block * block) for n, c in wanted]
    for b in (1, 4, 16):
        each = min(LONG, longest // 2, capacity // b - 2 * Probe("decode", b, 0).room)
        probes += [Probe("decode", b, each)] if each >= 4 * SHORT else []
    probes += [Probe(*held) for held in HELD_OUT]
    return [p for p in probes if _fits(p, capacity, longest, block)]


def _fits(p: Probe, capacity: int, longest: int, block: int) -> bool:
    own = p.tokens + p.cached + (p.room if p.kind == "decode" else 2)
    others = p.beside * (SHORT + 2 * DECODES + block) if p.kind == "mixed" else 0
    return own <= longest and (own + block) * (p.beside if p.kind == "decode" else 1) + others <= capacity


@dataclass
class Session:
    """One server while it is measured: what was asked of it, and what was seen."""

    client: Any
    first: Load
    began_s: float
    found: dict[tuple[Probe, int, int], list[tuple[int, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )  # by what was measured, new and cached tokens: context tokens, seconds
    notes: list[str] = field(default_factory=list)
    skipped: dict[str, set[Probe]] = field(default_factory=lambda: defaultdict(set))
    requests: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    refused: int = 0
    max_seqs: int | None = None
    own_times: bool = True  # the server tells its own TTFT
    prefill_s: float = 0.0  # per token, the worst so far
    step_s: float = 0.0

    def clock(self) -> float:
        """The loop's time, in seconds."""
        return asyncio.get_running_loop().time()

    def load(self) -> dict[str, float]:
        """What was asked of the server."""
        return {n: getattr(self, n) for n in ("requests", "prompt_tokens", "generated_tokens")}

    def skip(self, why: str, probe: Probe) -> None:
        """Note that a measurement is lacking."""
        self.skipped[why].add(probe)

    def expected_s(self, probe: Probe) -> float:
        """How long a measurement may take, after what was seen so far."""
        _, prompt, _ = probe.load
        return prompt * self.prefill_s + (2 * DECODES * self.step_s if probe.kind != "prefill" else 0.0)

    def ask(self, tokens: int, generate: int, salt: str = "", on_text: Any = None) -> Any:
        """Begin a request of so many tokens; without a salt it shares nothing with any other."""
        self.requests += 1
        self.prompt_tokens += tokens
        self.generated_tokens += generate
        prompt = [32 + (k * k * 31 + k * 7) % 200 for k in range(tokens)]  # in every vocabulary
        return self.client.complete(
            prompt,
            on_text=on_text,
            max_tokens=generate,
            ignore_eos=True,
            temperature=0,
            cache_salt=salt or uuid.uuid4().hex,
        )

    async def idle(self, advice: str) -> Load:
        """Wait until nothing runs; others' work raises `InputError`, another process `Failed`."""
        until_s = self.clock() + PATIENCE_S
        while True:
            load: Load = await self.client.metrics()
            if load.restarted_since(self.first):
                raise Failed(self.client.name, None, "it was restarted")
            if not (busy := (load.running or 0) + (load.waiting or 0)):
                return load
            if self.clock() > until_s:
                raise InputError(f"{self.client.name} works on {busy:.0f} requests of others; {advice}")
            await asyncio.sleep(0.02)

    async def warm_up(self) -> None:
        """Two requests that are not measured, for the first ones compile and connect."""
        for _ in range(2):
            await self.ask(SHORT, 2)

    async def take(self, probe: Probe) -> None:
        """One measurement; a busy server's refusal only loses it."""
        before = await self.idle("the calibration ended, without a profile")
        how = {"prefill": self._prefill, "decode": self._decode, "mixed": self._mixed}[probe.kind]
        try:
            measured = await how(probe, before)
        except LiveError as error:
            self.refused += 1
            if error.status not in BUSY or self.refused == REFUSALS:
                raise
            self.skip("refused by the server (503)", probe)
            await asyncio.sleep(0.2 * self.refused)
            return
        self.refused = 0
        if measured is not None:
            step, seconds = measured
            self.found[probe, step.new, step.cached].append((step.context, seconds))

    async def _prefill(self, probe: Probe, before: Load) -> tuple[Step, float] | None:
        salt, hit = uuid.uuid4().hex, 0
        if probe.cached:
            await self.ask(probe.cached, 1, salt)
            before = await self.client.metrics()
        reply: Reply = await self.ask(probe.cached + probe.tokens, 1, salt)
        if probe.cached:
            cached = reply.cached_tokens
            if cached is None:
                cached = (await self.client.metrics()).hits_since(before)
            if not cached:
                self.skip("their cached tokens are unknown or 0", probe)
                return None
            hit = cached
        self.own_times = self.own_times and reply.server_ttft_s is not None
        seconds = reply.ttft_s if reply.server_ttft_s is None else reply.server_ttft_s
        new = probe.cached + probe.tokens - hit
        self.prefill_s = max(self.prefill_s, seconds / new if new >= 512 else 0.0)
        return Step(0, 0, new, hit), seconds

    async def _decode(self, probe: Probe, _: Load) -> tuple[Step, float] | None:
        others = _Streams(self, probe.beside - 1, probe.tokens, probe.room)
        try:
            if not await others.begun(self.expected_s(probe)):
                self.skip("so many sequences do not run at a time", probe)
                if others.waited and probe.tokens == SHORT:  # longer ones may have waited for their prefill
                    self.max_seqs = others.most
                return None
            reply: Reply = await self.ask(probe.tokens, DECODES + 1)
            middle_s = reply.sent_s + (reply.ttft_s + reply.total_s) / 2
            if others.ended or reply.tpot_s is None:
                self.skip("another stream ended before", probe)
                return None
        finally:
            others.cancel()
        self.step_s = max(self.step_s, reply.tpot_s)
        emitted = sum((middle_s - at_s) / reply.tpot_s for at_s in others.first_s) + DECODES / 2
        return Step(probe.beside, round(probe.beside * probe.tokens + emitted)), reply.tpot_s

    async def _mixed(self, probe: Probe, _: Load) -> tuple[Step, float] | None:
        others = _Streams(self, probe.beside, SHORT, 2 * DECODES)
        try:
            await others.begun(0.1)
            reply: Reply = await self.ask(probe.tokens, 1)
            streams: list[Reply] = [await call for call in others.calls]
        finally:
            others.cancel()
        first_s = reply.sent_s + reply.ttft_s
        if any(not s.sent_s + s.ttft_s <= reply.sent_s < first_s < s.sent_s + s.total_s for s in streams):
            self.skip("another stream ended before", probe)
            return None
        context = probe.beside * (SHORT + DECODES // 2)
        return Step(probe.beside, context, probe.tokens), median(s.longest_gap_s for s in streams)

    async def foreign(self) -> None:
        """A note if the server computed clearly more than we asked for."""
        load = await self.client.metrics()
        if load.prompt_tokens is None or self.first.prompt_tokens is None:
            self.notes.append("Whether others used the server meanwhile is unknown")
        elif (more := load.prompt_tokens - self.first.prompt_tokens - self.prompt_tokens) > SHORT:
            self.notes.append(f"Others sent {more:,.0f} prompt tokens meanwhile: do not trust this profile")


class _Streams:
    """Streams that keep a server busy while something is measured."""

    def __init__(self, session: Session, count: int, tokens: int, generate: int) -> None:
        self.session, self.first_s, self.most, self.waited = session, [0.0] * count, 0, False
        self.calls = [session.ask(tokens, generate, on_text=self._seen(k)) for k in range(count)]

    def _seen(self, k: int) -> Callable[[str], None]:
        def seen(_: str) -> None:
            self.first_s[k] = self.first_s[k] or self.session.clock()

        return seen

    @property
    def ended(self) -> bool:
        return any(call.done() for call in self.calls)

    async def begun(self, expected_s: float) -> bool:
        """Wait for the first text of all; False if one has ended by then, or it takes far too long."""
        look_s = self.session.clock() + LOOK_S
        until_s = look_s + PATIENCE_S + 4 * expected_s
        while not all(self.first_s):
            if self.ended or self.session.clock() > until_s:
                for call in self.calls:
                    if call.done():
                        await call  # raises what went wrong
                return False
            if self.session.clock() > look_s:  # seldom, for a page costs the server some milliseconds
                load = await self.session.client.metrics()
                self.most, self.waited = max(self.most, int(load.running or 0)), bool(load.waiting)
                look_s = self.session.clock() + LOOK_S
            await asyncio.sleep(LOOK_S / 50)
        return True

    def cancel(self) -> None:
        for call in self.calls:
            call.cancel()
