"""Which policy is better: all of them on the same sessions, with intervals over seeds."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tao import checks, jobs
from tao.checks import InputError
from tao.executors import run_all
from tao.jobs import Arm as Arm
from tao.jobs import Outcome, arm_of, make_job, source_of
from tao.metrics import METRICS
from tao.model import Params
from tao.policies import POLICIES
from tao.profiles import DEFAULT_PROFILE, Profile
from tao.simulator import PolicyLike
from tao.sweeps import table
from tao.workloads import Workload

DEFAULT_POLICIES = ("tao", "thunderagent", "sticky")
RESAMPLES = 10_000  # ours: more change the bounds by less than a hundredth of their distance


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

    def differences(self, metric: str, against: str | None = None) -> pd.DataFrame:
        """How much each policy differs from `against` (None: the first one), seed by seed, relative to it.

        Tidy rows (policy, seed, change): 0.1 is 10 % above. nan where `against` is 0 or has no value.
        """
        if metric not in self.runs:
            raise InputError(f"there is no metric {metric!r}; it must be one of {', '.join(METRICS)}")
        names = list(self.runs["policy"].unique())
        first = names[0] if against is None else against
        if first not in names:
            raise InputError(f"against is {against!r}; it must be one of {', '.join(names)}")
        values = self.runs.pivot(index="seed", columns="policy", values=metric)
        base = values[first].where(values[first] != 0)
        changes = values[[name for name in names if name != first]].div(base, axis="index") - 1.0
        tidy = changes.melt(ignore_index=False, var_name="policy", value_name="change").reset_index()
        return tidy[["policy", "seed", "change"]]

    def paired(self, metric: str, against: str | None = None) -> pd.DataFrame:
        """The mean of the `differences` of each policy, with two 95 % intervals and a count of signs.

        The same sessions are behind both values of a difference, which tells more than two intervals side by
        side. Rows (policy, mean, lo, hi, boot_lo, boot_hi, above, seeds): `lo` and `hi` are Student's t,
        `boot_lo` and `boot_hi` the percentile bootstrap over seeds, `above` counts the seeds on which the
        policy's value is the higher one, of `seeds` that have a difference.

        Trust t first: it is wide where seeds are few. The bootstrap assumes nothing about the shape of the
        differences, but it can only mix those it has seen: of two seeds its interval reaches from the one
        to the other, which covers the truth half the time, and even of eight about 90 times in 100.
        """
        rows = []
        for policy, group in self.differences(metric, against).groupby("policy", sort=False):
            change = group["change"].dropna().to_numpy(float)
            signs = {"above": int((change > 0).sum()), "seeds": len(change)}
            rows.append({"policy": policy, **interval(change), **bootstrap(change), **signs})
        columns = ["policy", "mean", "lo", "hi", "boot_lo", "boot_hi", "above", "seeds"]
        return pd.DataFrame(rows, columns=columns)

    def to_dict(self) -> dict[str, Any]:
        """The settings, and per policy each metric as {mean, lo, hi}, ready for JSON."""
        policies: dict[str, dict[str, Any]] = {}
        for row in self.summary().to_dict("records"):
            entry = policies.setdefault(row["policy"], {"policy": row["policy"]})
            entry[row["metric"]] = {k: None if pd.isna(row[k]) else row[k] for k in ("mean", "lo", "hi")}
        return {"settings": self.settings, "policies": list(policies.values())}


def compare(
    workload: str | os.PathLike[str] | Workload = "swe-lite",
    policies: str | Arm | Sequence[PolicyLike | Arm] = DEFAULT_POLICIES,
    nodes: int = 2,
    workers: int = 64,
    *,
    tasks: int | None = None,
    seeds: int = 8,
    profile: str | Profile = DEFAULT_PROFILE,
    capacity_tokens: int | None = None,
    params: Params | None = None,
    arrivals: str = "closed",
    rate_per_s: float | None = None,
    tool_servers: int | None = None,
    extra_delay_s: tuple[float, float] | None = None,
    output_scale: float | None = None,
    strict: bool = False,
    executor: Executor | int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Comparison:
    """Race policies over the same sessions: seeds 0, 1, ... draw the sessions, every policy gets each.

    A policy is a name, a class of your own that takes `Params` (made afresh for each run), or an
    `Arm(name, policy, params)` with parameters of its own. A workload in which nothing is drawn is run
    once. `extra_delay_s` (least, most) lengthens every tool call, `output_scale` every answer; the other
    arguments are those of `tao.simulate`, and `executor` and `progress` those of `tao.sweep`: the result is
    the same whatever carries it out. Raises `InputError` on unusable arguments.

    >>> quick = {"workload": "swe-lite", "nodes": 1, "workers": 2, "tasks": 2, "seeds": 2}
    >>> race = compare(policies=["tao", Arm("dull", "tao", Params(readiness=False))], **quick)
    >>> list(race.paired("ttft_s")["policy"]), race.settings["seeds"]
    (['dull'], [0, 1])
    """
    common = {
        "workload": source_of(workload),
        "nodes": nodes,
        "workers": workers,
        "tasks": tasks,
        "profile": profile,
        "capacity_tokens": capacity_tokens,
        "params": params or Params(),
        "arrivals": arrivals,
        "rate_per_s": rate_per_s,
        "tool_servers": tool_servers,
        "extra_delay_s": extra_delay_s,
        "output_scale": output_scale,
        "strict": strict,
    }
    return _race(_arms(policies), common, checks.whole(seeds, "seeds", 1), executor, progress)


def _race(
    arms: Sequence[Arm],
    common: dict[str, Any],
    count: int,
    executor: Executor | int | None,
    progress: Callable[[float], None] | None,
) -> Comparison:
    params: Params = common["params"]
    seeds, notes = _seeds(common | {"policy": arms[0]}, count)
    # The sessions that fit in the books of every arm: arms with other reserves would leave out others.
    reserve = max((arm.params or params).reserve_tokens for arm in arms)
    points = [(seed, arm) for seed in seeds for arm in arms]
    runs = [
        make_job(common | {"policy": arm, "seed": seed}, _named(arm, seed), reserve) for seed, arm in points
    ]
    outcomes = run_all(runs, executor, progress)
    rows = [
        {"policy": arm.name, "seed": seed, **outcome.values}
        for (seed, arm), outcome in zip(points, outcomes, strict=True)
    ]
    return Comparison(_settings(outcomes, arms, params, seeds, notes), table(rows, ("policy", "seed")))


def _arms(policies: str | Arm | Sequence[PolicyLike | Arm]) -> list[Arm]:
    arms = [arm_of(policy) for policy in ([policies] if isinstance(policies, str | Arm) else policies)]
    names = [arm.name for arm in arms]
    if not names or len(set(names)) < len(names):
        raise InputError(
            f"policies are {', '.join(names) or 'none'}; name each once, of {', '.join(POLICIES)}"
        )
    return arms


def _named(arm: Arm, seed: int) -> str:
    """Where an error comes from; a policy of ours does what it should, so that it need not be named."""
    return "" if arm.policy == arm.name else f"policy {arm.name!r}, seed {seed}"


def _seeds(common: dict[str, Any], count: int) -> tuple[list[int], list[str]]:
    """The seeds to run, with a note if nothing depends on them."""
    draws = [make_job(common | {"seed": seed}).draw for seed in range(count)]
    first = jobs.sessions(draws[0])
    varied = common["arrivals"] == "poisson" or any(
        draw != draws[0] and jobs.sessions(draw).tasks != first.tasks for draw in draws[1:]
    )
    if varied or count == 1:
        return [first.seed] if count == 1 else list(range(count)), []
    return [first.seed], ["nothing here is drawn, so one run stands for all seeds and there is no interval"]


def _settings(
    outcomes: Sequence[Outcome], arms: Sequence[Arm], params: Params, seeds: list[int], notes: list[str]
) -> dict[str, Any]:
    """The settings that all runs share, with every note once, in order."""
    shared = {k: v for k, v in outcomes[-1].settings.items() if k not in ("policy", "seed")}
    shared["params"] = params.changed()
    if any(arm.params is not None for arm in arms):
        shared["arms"] = {arm.name: (arm.params or params).changed() for arm in arms}
    all_notes = dict.fromkeys([*notes, *(note for outcome in outcomes for note in outcome.notes)])
    return shared | {"seeds": seeds, "label": "simulated", "notes": list(all_notes)}


# Student's t, 97.5 %, by degrees of freedom from 1; beyond the table the normal distribution's 1.96.
_T975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306),
    *(2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
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


def bootstrap(values: npt.NDArray[np.float64]) -> dict[str, float]:
    """The 95 % percentile interval of the mean over resamples of a sample, the same in every call.

    >>> {k: round(v, 1) for k, v in bootstrap(np.array([1.0, 3.0, 2.0, 2.5])).items()}
    {'boot_lo': 1.4, 'boot_hi': 2.8}
    """
    if len(values) < 2:
        return {"boot_lo": np.nan, "boot_hi": np.nan}
    lo, hi = np.quantile(values[_resamples(len(values))].mean(axis=1), (0.025, 0.975))
    return {"boot_lo": float(lo), "boot_hi": float(hi)}


@lru_cache(maxsize=8)
def _resamples(n: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(0).integers(0, n, (RESAMPLES, n))
