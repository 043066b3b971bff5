"""From measured times of one node to the step-time law of `tao.profiles`. No network in here.

The law is linear in its constants once two things are given: which steps are bound by computing rather
than by memory, and which share of a mixture's experts a token touches. Both are searched for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tao.profiles import PS_PER_S, Profile

Floats = npt.NDArray[np.float64]

CHUNKS = tuple(2**k for k in range(7, 17))  # ours: steps' token budgets tried; vLLM's defaults are among them
SHARES = (0.0, *np.geomspace(0.003, 0.6, 20).tolist())  # ours: experts per token / all; 8 of 256 to half
FIRST_GUESSES = (
    0,
    64,
    256,
    1024,
)  # ours: tokens from which a prefill is first taken to be so bound
ROUNDS = 8  # ours: of weighting outliers less
CLEARLY = 0.9  # ours: more constants must leave at most this share of the error
SMALL = (
    0.005  # ours: smaller relative errors count squared, larger ones as they are, so that outliers do less
)
UNITS = np.array([1.0, 1.0, 1.0, 1e-6, 1e-9, 1e-6, 1e-9, 1.0])  # of the columns, to seconds
Kind = Literal["decode", "prefill", "mixed"]
BASE, EXPERTS, PREFILL, TOKEN, ATTENTION, SEQUENCE, KV, OUTSIDE = range(8)


class Step(NamedTuple):
    """One step: decoding sequences, their context tokens in all, prefilled tokens, tokens before those."""

    decodes: int
    context: int
    new: int = 0
    cached: int = 0


@dataclass(frozen=True)
class Point:
    """One thing measured, `seconds` being the median of `repeats`.

    "decode": a token while so many sequences decode. "prefill": the first token, on an idle node. "mixed":
    the longest step of a prefill beside decoding sequences. `held_out` from the fit.
    """

    kind: Kind
    step: Step  # without regard to the token budget of a step
    seconds: float
    repeats: int = 1
    held_out: bool = False

    def steps(self, budget: int) -> list[Step]:
        """The steps that it lasts, if a step takes so many tokens."""
        size = max(budget - self.step.decodes, 1)
        starts = range(0, max(self.step.new, 1), size)
        parts = [
            self.step._replace(new=min(size, self.step.new - at), cached=self.step.cached + at)
            for at in starts
        ]
        if self.kind == "mixed":  # the longest
            return parts[-2:-1] if len(parts) > 1 and parts[-1].new < size else parts[-1:]
        return parts


class Fit(NamedTuple):
    """Constants in seconds (column order above), share of experts, token budget, sum of relative errors."""

    constants: Floats
    share: float
    budget: int
    loss: float


def nnls(a: Floats, b: Floats) -> Floats:
    """Least squares without negative unknowns (Lawson and Hanson's active sets).

    >>> nnls(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([2.0, -1.0])).tolist()
    [2.0, 0.0]
    """
    scale = np.linalg.norm(a, axis=0)
    scale[scale == 0] = 1.0
    a, x, used = a / scale, np.zeros(a.shape[1]), np.zeros(a.shape[1], bool)
    for _ in range(3 * len(x)):
        slope = np.where(used, -np.inf, a.T @ (b - a @ x))
        if slope.max() <= 1e-9 * np.linalg.norm(b):
            break
        used[slope.argmax()] = True
        while used.any():
            trial = np.zeros(len(x))
            trial[used] = np.linalg.lstsq(a[:, used], b, rcond=None)[0]
            short = used & (trial <= 0)
            if not short.any():
                x = trial
                break
            x += (x[short] / (x[short] - trial[short])).min() * (trial - x)
            used &= x > 1e-12 * (x.max() or 1.0)
            x[~used] = 0.0
    found: Floats = x / scale
    return found


def fit(points: Sequence[Point], default_budget: int) -> Fit:
    """The law that explains the points best; the relative error of each counts the same.

    A token budget below the longest prompt shows in `mixed` points; where none shows, it is the default, or
    one token more than that prompt.
    """
    longest = max((p.step.new for p in points if p.kind == "mixed"), default=0)
    plain = _best(points, (0.0,), [max(default_budget, longest + 1)])
    chunked = _best(points, (0.0,), [c for c in CHUNKS if c < longest])
    found = chunked if chunked and chunked.loss < CLEARLY * plain.loss else plain
    if len({p.step.decodes for p in points if p.kind == "decode"}) > 3:  # else it looks like SEQUENCE
        mixture = _best(points, SHARES[1:], [found.budget])
        near = mixture.share * np.geomspace(0.8, 1.25, 9)
        mixture = _best(points, near.tolist(), [found.budget])
        found = mixture if mixture.loss < CLEARLY * found.loss - SMALL else found
    return found


def _best(points: Sequence[Point], shares: Iterable[float], budgets: Sequence[int]) -> Fit:
    none = Fit(np.zeros(8), 0.0, 0, np.inf)
    tried = [_given(points, share, budget) for budget in budgets for share in shares]
    return min(tried, key=lambda f: f.loss, default=none)


def _given(points: Sequence[Point], share: float, budget: int) -> Fit:
    """The best constants for a share and a budget."""
    table, owner = _table(points, share, budget)
    seconds = np.array([p.seconds for p in points])
    outside = np.array([p.kind == "prefill" for p in points])
    best = Fit(np.zeros(8), share, budget, np.inf)
    for least in FIRST_GUESSES:
        computing, weight = table[:, 0, TOKEN] * 1e6 >= max(least, 1), 1 / seconds
        for _ in range(ROUNDS):
            a = np.zeros((len(points), 8))
            np.add.at(a, owner, np.where(computing[:, None], table[:, 0], table[:, 1]))
            a[:, OUTSIDE] = outside
            x = nnls(a * weight[:, None], seconds * weight)
            both = table @ x
            total = np.bincount(owner, both.max(axis=1), len(points)) + outside * x[OUTSIDE]
            off = np.abs(total / seconds - 1)
            loss = float(np.where(off < SMALL, off**2 / (2 * SMALL), off - SMALL / 2).sum())
            if loss < best.loss:
                best = best._replace(constants=x * UNITS, loss=loss)
            before = computing, weight
            computing = (both[:, 0] > both[:, 1]) & (table[:, 0, TOKEN] > 0)
            weight = 1 / seconds / np.sqrt(np.maximum(off / SMALL, 1))
            if (computing == before[0]).all() and np.allclose(weight, before[1], rtol=0.02):
                break
    return best


def _table(points: Sequence[Point], share: float, budget: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    """The coefficients of every step, [step, bound by computing or by memory, column], and its point."""
    steps = [(k, s) for k, p in enumerate(points) for s in p.steps(budget)]
    table = np.zeros((len(steps), 2, 8))
    for row, (_, s) in zip(table, steps, strict=True):
        row[:, ATTENTION] = s.new * (s.cached + s.new / 2)
        row[:, SEQUENCE], row[:, KV] = s.decodes, s.context
        row[0, PREFILL], row[0, TOKEN] = s.new > 0, s.new
        row[1, BASE], row[1, EXPERTS] = 1.0, 1.0 - (1.0 - share) ** (s.decodes + s.new)
    return table * UNITS, np.array([k for k, _ in steps], np.int64)


def profile_of(found: Fit, about: Profile) -> Profile:
    """The fitted constants in the place of those of `about`; what nothing tells from t0 and ap is in them."""
    x = found.constants.tolist()
    return replace(
        about,
        host_ms=0.0,
        t0_ms=x[BASE] * 1e3,
        t1_ms=x[EXPERTS] * 1e3,
        expert_share=found.share if x[EXPERTS] else 0.0,
        t2_us=x[SEQUENCE] * 1e6,
        kv_us_per_1k=x[KV] * 1e9,
        prefill_ms=x[PREFILL] * 1e3,
        prefill_us=x[TOKEN] * 1e6,
        attention_us_per_1k=x[ATTENTION] * 1e9,
        max_batched_tokens=found.budget,
    )


def predicted_s(point: Point, profile: Profile, outside_s: float) -> float:
    """What the profile's law says to a point, with what a first token costs besides steps."""
    law = profile.law
    ps = sum(
        law.step_ps(s.decodes, s.context, [(s.new, s.cached)] if s.new else [])
        for s in point.steps(profile.max_batched_tokens)
    )
    return ps / PS_PER_S + (outside_s if point.kind == "prefill" else 0.0)
