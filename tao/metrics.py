"""Tables from histories: what each policy made of the same sessions, with intervals over seeds."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tao.history import History, TurnRow
from tao.model import InputError, Params
from tao.policies import POLICIES
from tao.profiles import DEFAULT_PROFILE, PS_PER_S, Profile
from tao.profiles import profile as profile_named
from tao.simulator import PolicyLike, make_policy, policy_name, simulate, workload_of
from tao.workloads import Workload

DEFAULT_POLICIES = ("tao", "thunderagent", "sticky")

METRICS = {
    "task_latency_s": "mean seconds from a worker taking a session to its last answer, tools included",
    "ttft_s": "mean seconds from a request's arrival at the scheduler to its first token, pool wait included",
    "ttft_engine_s": "mean seconds from a request's arrival at the engine to its first token",
    "pool_wait_s": "mean seconds a request waits in the pool before it goes to an engine",
    "tool_end_to_first_token_s": "mean seconds from a tool's return to the first token after it",
    "decode_tok_s": "output tokens per second of all nodes in the steady window: from the first session's "
    "end to the last session's start (the whole run if there is no such window)",
    "decode_tok_s_makespan": "output tokens per second of all nodes over the whole run",
    "total_completion_s": "seconds until the last session is done",
    "prefix_hit_rate": "share of prompt tokens found in the engine's cache (recomputation after preemption "
    "does not count as a prompt)",
    "credit_realized": "share of the cache credit promised at placements that the engine then found in its "
    "cache (null: nothing was promised)",
    "pauses": "sessions sent back to the waiting pool, per run",
    "migrations": "turns that ran on another node than the turn before, per run",
    "capacity_over_live": "KV capacity of all nodes over the mean context tokens of all running sessions",
}
"""Every metric of `compare`, with its meaning and unit."""


def measure(history: History) -> dict[str, float | None]:
    """All `METRICS` of one run."""
    turns = history.turns
    after_tool = [t for t in turns if t.turn > 0]
    promised = [t for t in turns if t.promised_tokens > 0]
    lasted = [history.finished_ps[i] - history.started_ps[i] for i in history.finished_ps]
    capacity = history.settings["nodes"] * history.settings["capacity_tokens"]
    return {
        "task_latency_s": _mean_s(lasted),
        "ttft_s": _mean_s([t.first_token_ps - t.arrived_ps for t in turns]),
        "ttft_engine_s": _mean_s([t.first_token_ps - t.submitted_ps for t in turns]),
        "pool_wait_s": _mean_s([t.submitted_ps - t.arrived_ps for t in turns]),
        "tool_end_to_first_token_s": _mean_s([t.first_token_ps - t.arrived_ps for t in after_tool]),
        "decode_tok_s": _steady_rate(history),
        "decode_tok_s_makespan": _ratio(sum(t.output_tokens for t in turns) * PS_PER_S, history.end_ps),
        "total_completion_s": history.end_ps / PS_PER_S,
        "prefix_hit_rate": _ratio(sum(t.hit_tokens for t in turns), sum(t.prompt_tokens for t in turns)),
        "credit_realized": _ratio(
            sum(min(t.hit_tokens, t.promised_tokens) for t in promised),
            sum(t.promised_tokens for t in promised),
        ),
        "pauses": float(sum(len(d.paused) for d in history.decisions)),
        "migrations": float(_migrations(turns)),
        "capacity_over_live": _ratio(capacity * history.end_ps, history.live_token_ps),
    }


@dataclass(frozen=True)
class Comparison:
    """Policies on the same seeded sessions: `runs` has one row per policy and seed, a column per metric."""

    settings: dict[str, Any]
    runs: pd.DataFrame

    def summary(self) -> pd.DataFrame:
        """Tidy rows (policy, metric, mean, lo, hi): means over seeds with their 95 % `interval`."""
        rows = [
            {"policy": policy, "metric": metric, **interval(runs[metric].dropna().to_numpy(float))}
            for policy, runs in self.runs.groupby("policy", sort=False)
            for metric in METRICS
        ]
        return pd.DataFrame(rows)

    def paired(self, metric: str) -> pd.DataFrame:
        """How much each policy differs from the first one, relative to it: (policy, mean, lo, hi, above).

        Differences are taken seed by seed, for the same sessions are behind them, which tells more than two
        intervals side by side. `above` counts the seeds on which the policy's value is the higher one.
        """
        values = self.runs.pivot_table(index="seed", columns="policy", values=metric, sort=False)
        first, *others = self.runs["policy"].unique()
        rows = []
        for policy in others:
            change = (values[policy] / values[first] - 1.0).to_numpy(float)
            rows.append({"policy": policy, **interval(change), "above": int((change > 0).sum())})
        return pd.DataFrame(rows, columns=["policy", "mean", "lo", "hi", "above"])

    def to_dict(self) -> dict[str, Any]:
        """The settings, and per policy each metric as {mean, lo, hi}, ready for JSON."""
        policies: dict[str, dict[str, Any]] = {}
        for row in self.summary().to_dict("records"):
            entry = policies.setdefault(row["policy"], {"policy": row["policy"]})
            entry[row["metric"]] = {k: None if pd.isna(row[k]) else row[k] for k in ("mean", "lo", "hi")}
        return {"settings": self.settings, "policies": list(policies.values())}


def compare(
    workload: str | os.PathLike[str] | Workload = "swe-lite",
    policies: str | Sequence[PolicyLike] = DEFAULT_POLICIES,
    nodes: int = 2,
    workers: int = 64,
    *,
    tasks: int | None = None,
    seeds: int = 8,
    profile: str | Profile = DEFAULT_PROFILE,
    capacity_tokens: int | None = None,
    params: Params | None = None,
    strict: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Comparison:
    """Race policies over the same sessions: seeds 0, 1, ... draw the sessions, every policy gets each.

    A policy is a name, or a class of your own that takes `Params` (made afresh for each run). A workload
    in which nothing is drawn is run once. Raises `InputError` on unusable arguments.
    """
    policies = [policies] if isinstance(policies, str) else policies
    names = [policy_name(policy) for policy in policies]
    if not names or len(set(names)) < len(names):
        raise InputError(
            f"policies are {', '.join(names) or 'none'}; name each once, of {', '.join(POLICIES)}"
        )
    for policy in policies:
        make_policy(policy, params or Params())
    if not isinstance(seeds, int) or seeds < 1:
        raise InputError(f"seeds is {seeds!r}; it must be a whole number above 0")
    works = [workload_of(workload, seed, tasks) for seed in range(seeds)]
    notes: dict[str, None] = {}  # each sentence once, in order
    if seeds > 1 and all(work.tasks == works[0].tasks for work in works[1:]):
        works = works[:1]
        notes["nothing here is drawn, so one run stands for all seeds and there is no interval"] = None
    engine = profile_named(profile) if isinstance(profile, str) else profile
    rows = []
    for k, work in enumerate(works):
        for j, policy in enumerate(policies):
            done = (k * len(policies) + j) / (len(works) * len(policies))
            history = simulate(
                work,
                policy,
                nodes,
                workers,
                profile=engine,
                capacity_tokens=capacity_tokens,
                params=params,
                strict=strict,
                progress=_part_of(progress, done, len(works) * len(policies)),
            )
            rows.append({"policy": policy_name(policy), "seed": work.seed, **measure(history)})
            notes.update(dict.fromkeys(history.notes))
    settings = {k: v for k, v in history.settings.items() if k not in ("policy", "seed")}
    settings |= {
        "seeds": [work.seed for work in works],
        "label": "simulated",
        "notes": list(notes),
    }
    return Comparison(settings, pd.DataFrame(rows))


# Student's t, 97.5 %, by degrees of freedom from 1; beyond the table the normal distribution's 1.96.
_T975 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
)


def interval(values: npt.NDArray[np.float64]) -> dict[str, float]:
    """Mean of a sample and its 95 % confidence interval (Student's t); lo and hi are nan below two values.

    >>> {k: round(v, 1) for k, v in interval(np.array([1.0, 3.0])).items()}
    {'mean': 2.0, 'lo': -10.7, 'hi': 14.7}
    """
    n = len(values)
    if n < 2:
        return {"mean": float(values[0]) if n else np.nan, "lo": np.nan, "hi": np.nan}
    t = _T975[n - 2] if n - 2 < len(_T975) else 1.96
    half = t * float(values.std(ddof=1)) / n**0.5
    mean = float(values.mean())
    return {"mean": mean, "lo": mean - half, "hi": mean + half}


def steady_window(history: History) -> tuple[int, int]:
    """From the first session's end to the last one's start (picoseconds); the whole run if that is empty."""
    begin, end = min(history.finished_ps.values()), max(history.started_ps.values())
    return (begin, end) if begin < end else (0, history.end_ps)


def _steady_rate(history: History) -> float | None:
    begin, end = steady_window(history)
    return _ratio(sum(_tokens_within(t, begin, end) for t in history.turns) * PS_PER_S, end - begin)


def _tokens_within(t: TurnRow, begin: int, end: int) -> float:
    """Output tokens of a turn inside a window: the first at its time, the rest evenly until the end."""
    first = begin <= t.first_token_ps <= end
    spread = t.finished_ps - t.first_token_ps
    if not spread:
        return t.output_tokens if first else 0
    inside = max(0, min(t.finished_ps, end) - max(t.first_token_ps, begin))
    return first + (t.output_tokens - 1) * inside / spread


def _migrations(turns: Sequence[TurnRow]) -> int:
    last: dict[int, int] = {}
    moved = 0
    for t in turns:
        moved += last.get(t.session, t.node) != t.node
        last[t.session] = t.node
    return moved


def _mean_s(times_ps: Sequence[int]) -> float | None:
    return sum(times_ps) / len(times_ps) / PS_PER_S if times_ps else None


def _ratio(a: float, b: float) -> float | None:
    return a / b if b else None


def _part_of(
    progress: Callable[[float], None] | None, done: float, parts: int
) -> Callable[[float], None] | None:
    if progress is None:
        return None
    report = progress
    return lambda share: report(done + share / parts)
