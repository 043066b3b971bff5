"""A bounded probe of one vLLM server that nobody else uses: how long its steps take, as a `Profile`.

Prefills are timed by their first tokens on an idle server, decoding by one stream beside others, and the
two together by the longest gap in a stream while a prompt is prefilled next to it, in which there is no
network. What cannot be measured is said in the profile.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import median, median_low
from typing import Any, NamedTuple

from tao import checks
from tao.checks import InputError
from tao.live.client import Client
from tao.live.faults import BUSY, Failed, LiveError
from tao.live.fit import OUTSIDE, Kind, Point, Step, fit, predicted_s, profile_of
from tao.live.metrics_page import Load
from tao.live.stream import Reply, count
from tao.profiles import Profile

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
ROUNDS = 3  # ours: a median of so many
SHARE = 8  # ours: no measurement may take more than this part of the time
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


@dataclass(frozen=True)
class Calibration:
    """The profile, every measured point beside what the profile says to it, and what the probe cost.

    Keys of `points`: kind, decodes, context_tokens, new_tokens, cached_tokens, measured_ms, predicted_ms,
    error (predicted over measured, less 1), repeats, held_out. Keys of `load`: requests, prompt_tokens,
    generated_tokens (at most), seconds.
    """

    profile: Profile
    points: tuple[dict[str, Any], ...]
    load: dict[str, float]
    notes: tuple[str, ...] = ()


def calibrate(
    client: Client,
    *,
    max_s: float = 60.0,
    max_requests: int = 600,
    tell: Callable[[str], object] | None = None,
) -> Calibration:
    """Measure one server's step times; `tell` gets the load that this makes, before any of it.

    The server must be idle but for us. Raises `InputError` if it is not, or hides what a profile needs, or
    if there was too little time; `Failed` or `Retryable` if it fails.
    """
    checks.positive(max_s, "max_s")
    checks.whole(max_requests, "max_requests", 1)
    return client.begin(measure, client, max_s, max_requests, tell).result()


async def measure(
    client: Any, max_s: float, max_requests: int, tell: Callable[[str], object] | None = None
) -> Calibration:
    """`calibrate`, in the loop of a client, or of whatever has its `models`, `metrics` and `complete`."""
    model, first = (await client.models())[0], await client.metrics()
    for lacking, what in (
        (first.kv_tokens is None, "its /metrics does not tell its KV capacity; let /metrics through"),
        (first.engines > 1, f"it hides {first.engines} engines; start that many servers instead"),
    ):
        if lacking:
            raise InputError(f"{client.name} cannot be calibrated: {what}")
    assert first.kv_tokens is not None
    block = first.block_size or Profile.block_tokens
    capacity = max(first.kv_tokens - block, 1)  # vLLM keeps one block for itself
    longest = min(count(model.get("max_model_len")) or capacity, capacity)
    probes = plan(capacity, longest, block, first.prefix_caching is not False)
    requests, prompt, generated = (ROUNDS * sum(x) for x in zip(*(p.load for p in probes), strict=True))
    if tell:
        tell(
            f"{client.name} gets at most {min(requests + 2, max_requests):,} requests with {prompt:,} prompt "
            f"tokens in all and {generated:,} to generate, in {max_s:g} s"
        )
    s = _Session(client, first, asyncio.get_running_loop().time())
    await s.idle("calibrate a server that nobody else uses")
    try:
        version = await client.ask("/version")
        async with asyncio.timeout_at(s.began_s + max_s):
            await s.warm_up()
            for probe in probes * ROUNDS:
                if s.requests + probe.load[0] > max_requests:
                    s.skip(f"more than {max_requests:,} requests", probe)
                elif s.expected_s(probe) > max_s / SHARE:
                    s.skip(f"longer than {max_s / SHARE:.1f} s each", probe)
                elif probe.beside > (s.max_seqs or probe.beside):
                    s.skip(f"more than {s.max_seqs} sequences do not run at a time", probe)
                else:
                    await s.take(probe)
    except TimeoutError:
        s.notes.append(f"Stopped after {max_s:g} s")
    except LiveError as error:
        done = f"the calibration ended after {s.requests} requests, without a profile"
        raise Failed(client.name, error.status, f"{error.reason}; {done}", error.suspect) from None
    await s.foreign()
    rough = dict.fromkeys([f.name for f in fields(Profile) if f.type == "float"], 1.0)
    about = Profile(str(model["id"]), capacity, block_tokens=block, **rough)  # type: ignore[arg-type]
    return _result(
        s, about, str(version.get("version") if isinstance(version, dict) else "of unknown release")
    )


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
class _Session:
    """What a calibration has seen so far."""

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
        return asyncio.get_running_loop().time()

    def load(self) -> dict[str, float]:
        return {n: getattr(self, n) for n in ("requests", "prompt_tokens", "generated_tokens")}

    def skip(self, why: str, probe: Probe) -> None:
        self.skipped[why].add(probe)

    def expected_s(self, probe: Probe) -> float:
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
        how = {"prefill": self.prefill, "decode": self.decode, "mixed": self.mixed}[probe.kind]
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

    async def prefill(self, probe: Probe, before: Load) -> tuple[Step, float] | None:
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

    async def decode(self, probe: Probe, _: Load) -> tuple[Step, float] | None:
        others = _Streams(self, probe.beside - 1, probe.tokens, probe.room)
        try:
            if not await others.begun(self.expected_s(probe)):
                self.skip("so many sequences do not run at a time", probe)
                self.max_seqs = others.most if others.waited else self.max_seqs
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

    async def mixed(self, probe: Probe, _: Load) -> tuple[Step, float] | None:
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
        try:
            load = await self.client.metrics()
        except LiveError:
            return
        if load.prompt_tokens is None or self.first.prompt_tokens is None:
            self.notes.append("Whether others used the server meanwhile is unknown")
        elif (more := load.prompt_tokens - self.first.prompt_tokens - self.prompt_tokens) > SHORT:
            self.notes.append(f"Others sent {more:,.0f} prompt tokens meanwhile: do not trust this profile")


class _Streams:
    """Streams that keep a server busy while something is measured."""

    def __init__(self, session: _Session, count: int, tokens: int, generate: int) -> None:
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


def _result(s: _Session, about: Profile, version: str) -> Calibration:
    points = [
        Point(
            probe.kind,
            Step(probe.beside, round(median(context for context, _ in seen)), new, cached),
            median_low(seconds for _, seconds in seen),
            len(seen),
            probe[:3] in HELD_OUT,
        )
        for (probe, new, cached), seen in s.found.items()
    ]
    fitted = [p for p in points if not p.held_out]
    kinds = [p.kind for p in fitted]
    if kinds.count("decode") < 2 or kinds.count("prefill") < 3:
        why = "; ".join([*s.notes, *s.skipped]) or "there is too little room"
        raise InputError(f"too little was measured on {s.client.name}: {why}; allow more time and requests")
    found = fit(fitted, Profile.max_batched_tokens)
    profile = profile_of(found, replace(about, max_seqs=s.max_seqs or Profile.max_seqs))
    outside_s = float(found.constants[OUTSIDE])
    rows = tuple(_row(p, predicted_s(p, profile, outside_s)) for p in points)
    notes = (*s.notes, *_limits(s, fitted, profile, outside_s))
    profile = replace(
        profile,
        provenance=f"tao calibrate on one vLLM {version}: {len(points)} points, each the median of up to "
        f"{max(p.repeats for p in points)}, {s.requests} requests; non-negative least squares",
        known_error=f"{'; '.join(_errors(rows))}. {'. '.join(notes)}",
    )
    return Calibration(profile, rows, s.load() | {"seconds": s.clock() - s.began_s}, notes)


def _row(p: Point, predicted_s: float) -> dict[str, Any]:
    return {
        "kind": p.kind,
        "decodes": p.step.decodes,
        "context_tokens": p.step.context,
        "new_tokens": p.step.new,
        "cached_tokens": p.step.cached,
        "measured_ms": 1e3 * p.seconds,
        "predicted_ms": 1e3 * predicted_s,
        "error": predicted_s / p.seconds - 1,
        "repeats": p.repeats,
        "held_out": p.held_out,
    }


def _errors(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """How far the law is off, in words."""
    for name in ("decode", "prefill", "mixed", "held out"):
        off = [abs(r["error"]) for r in rows if name == ("held out" if r["held_out"] else r["kind"])]
        if off:
            yield f"{name}: off by {median(off):.1%} (median of {len(off)} points), {max(off):.1%} at most"


def _limits(s: _Session, points: Sequence[Point], profile: Profile, outside_s: float) -> Iterator[str]:
    """What was not measured, or not apart."""
    most = {kind: [p.step for p in points if p.kind == kind] for kind in ("decode", "prefill", "mixed")}
    prompt, chunk = max(x.new for x in most["prefill"]), max((x.new for x in most["mixed"]), default=0)
    yield (
        f"Measured up to {max(x.decodes for x in most['decode'])} sequences, "
        f"{max(x.context for x in most['decode']):,} tokens of context in all, and prompts of {prompt:,} "
        "tokens; beyond that it is extrapolated"
    )
    yield "host_ms is 0: nothing tells it from t0_ms and prefill_ms, which hold it"
    yield f"A first token takes {1e3 * outside_s:.1f} ms more than its steps, which no profile holds" + (
        "" if s.own_times else " (by our clock, network included: the server does not tell its own times)"
    )
    inferred = profile.max_batched_tokens < chunk
    yield f"max_batched_tokens cannot be read: {profile.max_batched_tokens:,} is " + (
        "the power of two that explains the gaps best" if inferred else f"not seen up to {chunk:,} tokens"
    )
    yield f"max_seqs cannot be read: {profile.max_seqs:,} is " + (
        "how many ran while others waited" if s.max_seqs else "vLLM's default on large GPUs"
    )
    if not any(x.cached for x in most["prefill"]):
        yield "Attention to cached tokens was not measured, only that among new ones"
    done = {probe for probe, *_ in s.found}
    for why, probes in s.skipped.items():
        if missed := probes - done:
            yield f"{len(missed)} measurements left out: {why}"
