"""What the planner did on decisions that were kept one by one: worth, readiness' part in it, and its cost."""

from __future__ import annotations

import time

import numpy as np

from tao.experiments.presets import RECORDED, Preset
from tao.model import Params, Snapshot
from tao.planners import plan
from tao.simulator import simulate
from tao.workloads import WORKLOADS

Answer = tuple[str, float | None, str]  # metric, value, note


def answers(preset: Preset, seeds: int, tasks: int | None = None) -> list[Answer]:
    """What `preset.recorded` asks of the decisions of `tao`; nothing where it asks nothing."""
    if not preset.recorded:
        return []
    if preset.recorded == "resumes":
        return [("resumes", float(np.mean([_resumes(preset, seed, tasks) for seed in range(seeds)])), "")]
    kept = snapshots(preset, tasks)
    if preset.recorded == "cost":
        return _cost(kept)
    if preset.recorded == "readiness":
        changed = sum(_without_readiness(snapshot) for snapshot in kept)
        return [_share("changed_without_readiness", changed, len(kept))]
    better = sum(plan(s, "dp").value > plan(s, "short_first").value for s in kept)
    several = sum(len(s.pool) > 1 for s in kept)
    return [
        _share("dp_above_short_first", better, len(kept)),
        _share("dp_above_short_first_of_several", better, several),
    ]


def snapshots(preset: Preset, tasks: int | None = None) -> list[Snapshot]:
    """Every snapshot that `tao` planned on in one run of the readable stepper, `RECORDED` sessions or more."""
    most = len(WORKLOADS[preset.workload](tasks=preset.tasks).tasks)
    enough = min(max(RECORDED, preset.workers + RECORDED // 2), most)
    work = WORKLOADS[preset.workload](tasks=min(enough, tasks or most), extra_delay_s=preset.extra_delay_s)
    history = simulate(
        work,
        "tao",
        preset.nodes,
        preset.workers,
        profile=preset.profile,
        capacity_tokens=preset.capacity_tokens,
        keep_snapshots=True,
    )
    return [snapshot for snapshot, made in history.kept.values() if made is not None]


def _without_readiness(snapshot: Snapshot) -> bool:
    """Whether the plan of the same state is another one if nothing is known of tools."""
    return plan(snapshot).node_of() != plan(snapshot, "dp", Params(readiness=False)).node_of()


def _share(metric: str, count: int, of: int) -> Answer:
    return metric, count / of if of else None, f"{count:,} of {of:,} decisions, seed 0"


def _cost(kept: list[Snapshot]) -> list[Answer]:
    """Milliseconds of `plan` on this machine, from snapshot to plan: with preparation, failure and fallback."""
    if not kept:
        return []
    plan(kept[0])  # compiled before the clock starts
    taken = []
    for snapshot in kept:
        start = time.perf_counter()
        plan(snapshot)
        taken.append(1000 * (time.perf_counter() - start))
    note = f"measured on this machine, {len(kept):,} decisions, all costs included"
    return [
        ("plan_ms_mean", float(np.mean(taken)), note),
        ("plan_ms_p95", float(np.quantile(taken, 0.95)), note),
    ]


def _resumes(preset: Preset, seed: int, tasks: int | None = None) -> int:
    """How often `tao` placed a session that had been placed before, in one run."""
    work = WORKLOADS[preset.workload](seed=seed, tasks=tasks or preset.tasks)
    history = simulate(work, "tao", preset.nodes, preset.workers, profile=preset.profile)
    return sum(len(decision.placed) for decision in history.decisions) - len(history.started_ps)
