"""A bounded probe of one vLLM server that nobody else uses: how long its steps take, as a `Profile`.

What cannot be measured is said in the profile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from statistics import median, median_low
from typing import Any

from tao import checks
from tao.checks import InputError
from tao.live.client import Client
from tao.live.faults import Failed, LiveError, one_line
from tao.live.fit import OUTSIDE, Point, Step, fit, predicted_s, profile_of
from tao.live.probes import HELD_OUT, Session, plan
from tao.live.stream import count
from tao.profiles import Profile

ROUNDS = 3  # ours: a median of so many
SHARE = 8  # ours: no measurement may take more than this part of the time


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
    s = Session(client, first, asyncio.get_running_loop().time())
    await s.idle("calibrate a server that nobody else uses")
    try:
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
    took_s, version = s.clock() - s.began_s, "of unknown release"
    with suppress(LiveError):
        await s.foreign()
        said = await client.ask("/version")
        version = one_line(said.get("version")) if isinstance(said, dict) else version
    rough = dict.fromkeys([f.name for f in fields(Profile) if f.type == "float"], 1.0)
    about = Profile(str(model["id"]), capacity, block_tokens=block, **rough)  # type: ignore[arg-type]
    return _result(s, about, version, took_s)


def _result(s: Session, about: Profile, version: str, took_s: float) -> Calibration:
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
    return Calibration(profile, rows, s.load() | {"seconds": took_s}, notes)


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


def _limits(s: Session, points: Sequence[Point], profile: Profile, outside_s: float) -> Iterator[str]:
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
