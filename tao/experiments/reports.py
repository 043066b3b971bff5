"""Run presets and lay what comes out beside what the paper reports, whether they agree or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from math import isnan
from typing import Any

import pandas as pd

from tao import checks
from tao.comparisons import interval
from tao.executors import run_all
from tao.experiments import recorded
from tao.experiments.figures import Figure, reported
from tao.experiments.presets import BASELINES, Contrast, Preset, chosen
from tao.jobs import Job, make_job
from tao.model import Params
from tao.sweeps import table

SEEDS = 8
HIGHER_IS_BETTER = ("decode_tok_s", "prefix_hit_rate")
COLUMNS = (
    *("preset", "capacity_over_live", "metric", "arm", "baseline"),
    *("reported_baseline", "reported_tao", "reported_change", "claim"),
    *("simulated_baseline", "simulated_tao", "simulated_change", "absolute", "lo", "hi"),
    *("agrees", "tao_is", "note"),
)


@dataclass(frozen=True)
class Report:
    """What came of some presets. `runs` has one row per preset, policy and seed.

    `table` has one row per comparison. Its `baseline` is, for "best", that of the four whose mean is best in
    that metric; there is none where only a value is looked at. `simulated_change` is the mean over seeds of
    the paired change, relative or `absolute` (in the metric's unit), and `lo`, `hi` are its 95 % interval, or
    that of the value. `agrees`: see the function; "" where nothing is reported. `tao_is` "better" or
    "worse" where the interval excludes 0, else "unclear". No row is left out, whatever it shows.
    """

    presets: tuple[Preset, ...]
    settings: dict[str, dict[str, Any]]
    table: pd.DataFrame
    runs: pd.DataFrame
    seeds: int
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Presets with their settings, the rows of the table, and notes, ready for JSON."""
        told = ("name", "experiment", "what", "ours", "cannot")
        presets = [
            {name: getattr(p, name) for name in told} | {"settings": self.settings[p.name]}
            for p in self.presets
        ]
        rows = self.table.astype(object).where(self.table.notna(), None).to_dict("records")
        shared = {"label": "simulated", "seeds": self.seeds, "notes": list(self.notes)}
        return shared | {"presets": presets, "rows": rows}


def run(
    preset: str | Preset,
    seeds: int = SEEDS,
    *,
    tasks: int | None = None,
    executor: Executor | int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Report:
    """Play a preset, all settings of an experiment ("E1"), or "losses", on seeds 0, 1, ...

    `tasks`: so many sessions instead of the preset's. `executor` and `progress` are those of `tao.sweep`;
    single decisions are looked at here, after the runs. Raises `InputError` on unusable arguments.

    >>> report = run("E7-session-hash-16", seeds=2, tasks=2)
    >>> report.table[["metric", "baseline", "reported_tao"]].values.tolist()[0]
    ['decode_tok_s', 'session_hash', 886.772]
    """
    presets = (preset,) if isinstance(preset, Preset) else chosen(preset)
    checks.whole(seeds, "seeds", 1)
    jobs = [(p, *job) for p in presets for job in _jobs(p, seeds, tasks)]
    outcomes = run_all([job for *_, job in jobs], executor, progress)
    rows, settings, notes = [], {}, _shrunk(seeds, tasks)
    for (p, arm, seed, _), outcome in zip(jobs, outcomes, strict=True):
        rows.append({"preset": p.name, "policy": arm, "seed": seed, **outcome.values})
        settings[p.name] = {k: v for k, v in outcome.settings.items() if k not in ("policy", "seed")}
        notes += outcome.notes
    runs = _with_planning(table(rows, ("preset", "policy", "seed")))
    lines = [line for p in presets for line in _lines(p, runs[runs["preset"] == p.name], seeds, tasks)]
    numbers = [name for name in COLUMNS if name.startswith(("reported", "simulated", "capacity"))]
    filled = pd.DataFrame(lines, columns=list(COLUMNS)).astype(dict.fromkeys([*numbers, "lo", "hi"], float))
    return Report(presets, settings, filled, runs, seeds, tuple(dict.fromkeys(notes)))


def losses(seeds: int = SEEDS, **how: Any) -> pd.DataFrame:
    """The rows of `run("losses")` in which TAO is worse than the best rival; `how` as for `run`."""
    found = run("losses", seeds, **how).table
    return found[found["tao_is"] == "worse"].reset_index(drop=True)


def _jobs(preset: Preset, seeds: int, tasks: int | None) -> Iterator[tuple[str, int, Job]]:
    as_they_are = ("workload", "profile", "nodes", "workers", "capacity_tokens", "extra_delay_s")
    common = {name: getattr(preset, name) for name in as_they_are} | {
        "tasks": preset.tasks if tasks is None else tasks
    }
    for seed in range(seeds):
        for arm in preset.arms:
            yield arm.name, seed, make_job(common | {"policy": arm, "seed": seed}, preset.name)


def _shrunk(seeds: int, tasks: int | None) -> list[str]:
    notes = [] if tasks is None else [f"{tasks:,} sessions instead of the preset's: not the paper's setting"]
    if seeds < SEEDS:
        notes.append(
            f"{seeds} seeds instead of {SEEDS}" + (", so there is no interval" if seeds == 1 else "")
        )
    return notes


def _with_planning(runs: pd.DataFrame) -> pd.DataFrame:
    """Adds the simulated seconds of all plans, failed searches included, and their share of the run."""
    cost = Params()
    planning_s = runs["planner_calls"] * (cost.plan_cost_s + cost.plan_cost_per_state_s * runs["plan_states"])
    return runs.assign(planning_s=planning_s, planning_share=planning_s / runs["total_completion_s"])


def _lines(preset: Preset, runs: pd.DataFrame, seeds: int, tasks: int | None) -> Iterator[dict[str, Any]]:
    ratio = runs.loc[runs["policy"] == "tao", "capacity_over_live"].mean()
    common = {"preset": preset.name, "capacity_over_live": ratio, "arm": "tao", "baseline": ""}
    for contrast in preset.contrasts:
        metric, arm, against, _ = contrast
        values = runs.pivot(index="seed", columns="policy", values=metric)
        figure = reported().get((preset.name, metric, arm, against)) or _value(preset, metric)
        yield common | _reported(figure) | _line(contrast, values, figure)
    for metric, value, note in recorded.answers(preset, seeds, tasks):
        row = _reported(_value(preset, metric), note)
        yield common | row | {"metric": metric, "simulated_tao": value}


def _value(preset: Preset, metric: str) -> Figure:
    return reported().get((preset.name, metric, "", ""), Figure())


def _reported(figure: Figure, note: str = "") -> dict[str, Any]:
    whom = f"the paper's baseline is {figure.baseline}" if figure.baseline else ""
    share = f"reported {figure.successes:,} of {figure.of:,}" if figure.of else ""
    return {
        "reported_baseline": figure.baseline_value,
        "reported_tao": figure.tao_value,
        "reported_change": figure.change,
        "claim": figure.claim,
        "absolute": False,
        "agrees": "",
        "tao_is": "",
        "note": "; ".join(text for text in (whom, share, figure.note, note) if text),
    }


def _line(contrast: Contrast, values: pd.DataFrame, figure: Figure) -> dict[str, Any]:
    """The values of one comparison, the paired change with its interval, and what follows from that."""
    metric, arm, against, absolute = contrast
    mine = values[arm]
    row = {"metric": metric, "arm": arm, "simulated_tao": mine.mean()}
    if not against:
        spread = interval(mine.dropna().to_numpy(float))
        return row | {"lo": spread["lo"], "hi": spread["hi"]}
    baseline = _best(values, metric) if against == "best" else against
    base = values[baseline]
    change = mine - base if absolute else mine / base.where(base != 0) - 1.0
    spread = interval(change.dropna().to_numpy(float))
    lo, hi = spread["lo"], spread["hi"]
    return row | {
        "baseline": baseline,
        "simulated_baseline": base.mean(),
        "simulated_change": spread["mean"],
        "absolute": absolute,
        "lo": lo,
        "hi": hi,
        "agrees": agrees(figure.change, lo, hi, figure.claim),
        "tao_is": _verdict(metric, lo, hi),
    }


def _best(values: pd.DataFrame, metric: str) -> str:
    means = values[list(BASELINES)].mean()
    return str(means.idxmax() if metric in HIGHER_IS_BETTER else means.idxmin())


def agrees(change: float | None, lo: float, hi: float, claim: str = "change") -> str:
    """Whether a simulated interval agrees with a reported change: "yes", "no", "unclear"; "" without one.

    A "change" asks for its direction only: the interval has to exclude 0. The bounds "at_most", "at_least"
    and "within" are kept or broken by the whole interval.

    >>> agrees(-0.268, -0.10, -0.02), agrees(-0.268, 0.01, 0.05), agrees(-0.268, -0.02, 0.01)
    ('yes', 'no', 'unclear')
    >>> agrees(0.023, -0.01, 0.02, "at_most"), agrees(0.02, -0.01, 0.03, "within")
    ('yes', 'unclear')
    """
    if change is None:
        return ""
    if isnan(lo) or isnan(hi):
        return "unclear"
    kept, broken = {
        "change": (lo > 0, hi < 0) if change > 0 else (hi < 0, lo > 0),
        "at_most": (hi <= change, lo > change),
        "at_least": (lo >= change, hi < change),
        "within": (-change <= lo and hi <= change, lo > change or hi < -change),
    }[claim]
    return "yes" if kept else "no" if broken else "unclear"


def _verdict(metric: str, lo: float, hi: float) -> str:
    if isnan(lo) or lo <= 0 <= hi:
        return "unclear"
    return "better" if (lo > 0) == (metric in HIGHER_IS_BETTER) else "worse"
