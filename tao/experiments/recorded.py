"""Questions about single decisions: what the plan was worth, what readiness changed, what planning took."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from tao.experiments.presets import Preset
from tao.history import History
from tao.model import Params, Snapshot
from tao.planners import plan
from tao.simulator import simulate
from tao.workloads import WORKLOADS

Answer = tuple[str, float | None, str]  # metric, value, note
RECORDED = 96  # ours: sessions of a run whose decisions are kept, which takes some seconds


def answers(preset: Preset, seeds: int, tasks: int | None = None) -> list[Answer]:
    """What `preset.recorded` asks of the decisions of policy `tao`; nothing where it asks nothing."""
    if not preset.recorded:
        return []
    if preset.recorded == "resumes":
        return [("resumes", float(np.mean([_resumes(preset, seed, tasks) for seed in range(seeds)])), "")]
    kept = snapshots(preset, tasks)
    if preset.recorded == "cost":
        return _cost(kept)
    if preset.recorded == "readiness":
        params = _params(preset)
        blind = replace(params, readiness=False)
        changed = sum(plan(s, "dp", params).node_of() != plan(s, "dp", blind).node_of() for s in kept)
        return [_share("changed_share", changed, len(kept))]
    better = sum(plan(s, "dp").value > plan(s, "short_first").value for s in kept)
    several = sum(len(s.pool) > 1 for s in kept)
    return [
        _share("dp_better_share", better, len(kept)),
        _share("dp_better_share_of_several", better, several),
    ]


def snapshots(preset: Preset, tasks: int | None = None) -> list[Snapshot]:
    """Every snapshot that `tao` planned on in a short run of seed 0, in the readable stepper."""
    most = max(RECORDED, preset.workers + RECORDED // 2)
    history = _played(preset, 0, min(tasks or most, most), keep_snapshots=True)
    return [snapshot for snapshot, made in history.kept.values() if made is not None]


def _played(preset: Preset, seed: int, tasks: int | None, keep_snapshots: bool = False) -> History:
    work = WORKLOADS[preset.workload](seed=seed, tasks=tasks, extra_delay_s=preset.extra_delay_s)
    return simulate(
        *(work, "tao", preset.nodes, preset.workers),
        profile=preset.profile,
        capacity_tokens=preset.capacity_tokens,
        params=_params(preset),
        keep_snapshots=keep_snapshots,
    )


def _params(preset: Preset) -> Params:
    return next(arm.params for arm in preset.arms if arm.name == "tao") or Params()


def _resumes(preset: Preset, seed: int, tasks: int | None) -> int:
    """Placements of sessions that had been placed before."""
    history = _played(preset, seed, tasks or preset.tasks)
    return sum(len(decision.placed) for decision in history.decisions) - len(history.started_ps)


def _share(metric: str, count: int, of: int) -> Answer:
    return metric, count / of if of else None, f"here {count:,} of {of:,}, seed 0"


def _cost(kept: list[Snapshot]) -> list[Answer]:
    """Milliseconds from snapshot to plan here: state preparation, failed search and fallback included."""
    taken_ms = []
    for snapshot in kept[:1] + kept:  # the first one twice: compiling does not count
        start = time.perf_counter()
        plan(snapshot)
        taken_ms.append(1000 * (time.perf_counter() - start))
    note = f"here measured on this machine over {len(kept):,} decisions, all costs included"
    mean, p95 = (
        (float(np.mean(taken_ms[1:])), float(np.quantile(taken_ms[1:], 0.95))) if kept else (None, None)
    )
    return [("plan_ms_mean", mean, note), ("plan_ms_p95", p95, note)]
