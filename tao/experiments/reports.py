"""Run presets and lay what comes out beside what the paper reports, whether they agree or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tao import checks
from tao.comparisons import interval
from tao.executors import run_all
from tao.experiments import recorded
from tao.experiments.figures import Figure, reported
from tao.experiments.presets import BASELINES, HIGHER_IS_BETTER, Contrast, Preset, chosen
from tao.jobs import Job, make_job
from tao.model import Params
from tao.sweeps import table

SEEDS = 8
COLUMNS = (
    *("preset", "metric", "arm", "baseline", "reported_baseline", "reported_tao", "reported_change", "claim"),
    *("simulated_baseline", "simulated_tao", "simulated_change", "lo", "hi", "agrees", "tao_is", "note"),
)


@dataclass(frozen=True)
class Report:
    """What came of some presets. `runs` has one row per preset, policy and seed.

    `table` has a row per comparison. The baseline of "best" is the best of the four by the mean of that
    metric. `simulated_change` is the mean over seeds of the paired change and `lo`, `hi` its 95 % interval;
    where there is no baseline they are nan and of the value. `agrees` with the reported change: see `agrees`;
    "" where none is reported. `tao_is` better or worse where the interval excludes 0, else "unclear". The
    absolute changes are in points of a share, or seconds.
    """

    presets: tuple[Preset, ...]
    settings: dict[str, dict[str, Any]]
    table: pd.DataFrame
    runs: pd.DataFrame
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Presets with their settings, the rows of the table, and notes, ready for JSON."""
        presets = [
            {
                "name": p.name,
                "what": p.what,
                "ours": p.ours,
                "cannot": p.cannot,
                "settings": self.settings[p.name],
            }
            for p in self.presets
        ]
        rows = self.table.astype(object).where(self.table.notna(), None).to_dict("records")
        return {"label": "simulated", "presets": presets, "rows": rows, "notes": list(self.notes)}


def run(
    preset: str | Preset,
    seeds: int = SEEDS,
    *,
    tasks: int | None = None,
    executor: Executor | int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Report:
    """Play a preset, all settings of an experiment ("E1"), or "losses", on seeds 0, 1, ...

    `tasks` takes fewer sessions than the paper, which the report then says. `executor` and `progress` are
    those of `tao.sweep`; decisions that are recorded one by one are always played here. Raises `InputError`
    for an unknown name.

    >>> report = run("E7-session-hash-16", seeds=2, tasks=2)
    >>> report.table[["metric", "reported_tao", "agrees"]].values.tolist()[0]
    ['decode_tok_s', 886.772, 'unclear']
    """
    presets = (preset,) if isinstance(preset, Preset) else chosen(preset)
    checks.whole(seeds, "seeds", 1)
    jobs = [(p, *job) for p in presets for job in _jobs(p, seeds, tasks)]
    asked = sum(len(jobs) / 4 for p in presets if p.recorded)  # ours: roughly how long it takes
    share = len(jobs) / (len(jobs) + asked)
    outcomes = run_all(
        [job for *_, job in jobs], executor, progress and (lambda done: progress(done * share))
    )
    rows, settings, notes = [], {}, _shrunk(presets, seeds, tasks)
    for (p, name, seed, _), outcome in zip(jobs, outcomes, strict=True):
        rows.append({"preset": p.name, "policy": name, "seed": seed, **outcome.values})
        settings[p.name] = {
            k: v for k, v in outcome.settings.items() if k not in ("policy", "seed", "params")
        }
        notes += outcome.notes
    runs = _with_planning(table(rows, ("preset", "policy", "seed")))
    lines = [line for p in presets for line in _lines(p, runs[runs["preset"] == p.name], tasks, seeds)]
    filled = pd.DataFrame(lines, columns=list(COLUMNS))
    return Report(presets, settings, filled, runs, tuple(dict.fromkeys(notes)))


def losses(
    seeds: int = SEEDS,
    *,
    tasks: int | None = None,
    executor: Executor | int | None = None,
    progress: Callable[[float], None] | None = None,
) -> pd.DataFrame:
    """The rows of `run("losses")` in which TAO is worse than the best rival and the interval excludes 0."""
    found = run("losses", seeds, tasks=tasks, executor=executor, progress=progress).table
    return found[found["tao_is"] == "worse"].reset_index(drop=True)


def _jobs(preset: Preset, seeds: int, tasks: int | None) -> Iterable[tuple[str, int, Job]]:
    common = {
        "workload": preset.workload,
        "profile": preset.profile,
        "nodes": preset.nodes,
        "workers": preset.workers,
        "tasks": preset.tasks if tasks is None else tasks,
        "capacity_tokens": preset.capacity_tokens,
        "extra_delay_s": preset.extra_delay_s,
    }
    for seed in range(seeds):
        for arm in preset.arms:
            yield arm.name, seed, make_job(common | {"policy": arm, "seed": seed}, preset.name)


def _shrunk(presets: Sequence[Preset], seeds: int, tasks: int | None) -> list[str]:
    notes = []
    if tasks is not None:
        notes.append(f"shrunk to {tasks:,} sessions: not the paper's load, so not its setting")
    if seeds < SEEDS:
        notes.append(f"{seeds} instead of {SEEDS} seeds" + (": no interval" if seeds == 1 else ""))
    return notes


def _with_planning(runs: pd.DataFrame) -> pd.DataFrame:
    """Adds the simulated seconds of all plans, failed searches included, and their share of the run."""
    params = Params()
    per_plan = params.plan_cost_s + params.plan_cost_per_state_s * runs["plan_states"]
    runs["planning_s"] = runs["planner_calls"] * per_plan
    runs["planning_share"] = runs["planning_s"] / runs["total_completion_s"]
    return runs


def _lines(preset: Preset, runs: pd.DataFrame, tasks: int | None, seeds: int) -> Iterable[dict[str, Any]]:
    for contrast in preset.contrasts:
        key = (preset.name, contrast.metric)
        figure = reported().get((*key, contrast.arm, contrast.against)) or reported().get((*key, "", ""))
        values = runs.pivot(index="seed", columns="policy", values=contrast.metric)
        yield {"preset": preset.name, **_line(contrast, values, figure or Figure())}
    for metric, value, note in recorded.answers(preset, seeds, tasks):
        figure = reported().get((preset.name, metric, "", ""), Figure())
        theirs = f"{figure.count:,} of {figure.of:,} reported" if figure.count is not None else ""
        notes = (theirs, figure.note, note)
        yield {
            "preset": preset.name,
            **_reported(figure),
            "metric": metric,
            "arm": "tao",
            "simulated_tao": value,
            "note": "; ".join(text for text in notes if text),
        }


def _line(contrast: Contrast, values: pd.DataFrame, figure: Figure) -> dict[str, Any]:
    """One comparison: its values, the paired change with its interval, and what follows from that."""
    metric, arm, against, absolute = contrast
    row = {**_reported(figure), "metric": metric, "arm": arm, "simulated_tao": values[arm].mean()}
    if not against:
        spread = interval(values[arm].dropna().to_numpy(float))
        return row | {"lo": spread["lo"], "hi": spread["hi"]}
    baseline = _best(values, metric) if against == "best" else against
    base = values[baseline].where(values[baseline] != 0) if not absolute else values[baseline]
    change = values[arm] - base if absolute else values[arm] / base - 1.0
    spread = interval(change.dropna().to_numpy(float))
    lo, hi = spread["lo"], spread["hi"]
    return row | {
        "baseline": baseline,
        "simulated_baseline": values[baseline].mean(),
        "simulated_change": spread["mean"],
        "lo": lo,
        "hi": hi,
        "agrees": agrees(figure.change, lo, hi, figure.claim),
        "tao_is": _verdict(metric, lo, hi),
    }


def _reported(figure: Figure) -> dict[str, Any]:
    return {
        "baseline": "",
        "reported_baseline": figure.baseline_value,
        "reported_tao": figure.tao_value,
        "reported_change": figure.change,
        "claim": figure.claim,
        "agrees": "",
        "tao_is": "",
        "note": "; ".join(x for x in (figure.baseline and f"paper: {figure.baseline}", figure.note) if x),
    }


def _best(values: pd.DataFrame, metric: str) -> str:
    means = values[list(BASELINES)].mean()
    return str(means.idxmax() if metric in HIGHER_IS_BETTER else means.idxmin())


def agrees(change: float | None, lo: float, hi: float, claim: str = "change") -> str:
    """Whether a simulated interval agrees with a reported change: "yes", "no", "unclear", or "" without one.

    A plain change asks for the direction only: the interval has to exclude 0. A bound is kept, broken, or
    unclear where the interval reaches over it.

    >>> agrees(-0.268, -0.10, -0.02), agrees(-0.268, 0.01, 0.05), agrees(-0.268, -0.02, 0.01)
    ('yes', 'no', 'unclear')
    >>> agrees(0.023, -0.01, 0.02, "at_most"), agrees(0.02, -0.01, 0.03, "within")
    ('yes', 'unclear')
    """
    if change is None:
        return ""
    if np.isnan(lo) or np.isnan(hi):
        return "unclear"
    kept, broken = {
        "change": (lo > 0, hi < 0) if change > 0 else (hi < 0, lo > 0),
        "at_most": (hi <= change, lo > change),
        "at_least": (lo >= change, hi < change),
        "within": (-change <= lo and hi <= change, lo > change or hi < -change),
    }[claim]
    return "yes" if kept else "no" if broken else "unclear"


def _verdict(metric: str, lo: float, hi: float) -> str:
    if np.isnan(lo) or lo <= 0 <= hi:
        return "unclear"
    return "better" if (lo > 0) == (metric in HIGHER_IS_BETTER) else "worse"
