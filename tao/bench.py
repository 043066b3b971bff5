"""Timings on this machine, as medians of warm calls beside a yardstick; never part of a test."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tao import planners, runner
from tao._jit import njit
from tao.history import PLANNED, History
from tao.model import CacheNote, Node, Params, Session, Snapshot
from tao.policies import POLICIES, Compiled
from tao.profiles import PROFILES, PS_PER_S
from tao.simulator import simulate
from tao.workloads import MAX_TASKS, WORKLOADS, Workload


def median_s(call: Callable[[], object], repeats: int = 20) -> float:
    """Median seconds of `repeats` calls, after one that does not count."""
    return statistics.median(times_s(call, repeats))


def times_s(call: Callable[[], object], repeats: int = 20) -> list[float]:
    """Seconds of each of `repeats` calls, after one that does not count."""
    call()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return taken


def crowded(sessions: int = 40, quanta: tuple[int, ...] = (10, 10, 9, 9), seed: int = 0) -> Snapshot:
    """A seeded snapshot of nearly full nodes, node b with room for `quanta[b]` quanta of 1,024 tokens."""
    rng = np.random.default_rng(seed)
    params = Params()
    names = [f"n{b}" for b in range(len(quanta))]
    pool = []
    for i in range(sessions):
        tokens = int(rng.integers(100, 5_000))
        home, age_s = names[rng.integers(len(names))], float(rng.exponential(8.0))
        cached = (
            {home: CacheNote(int(tokens * rng.uniform(0.5, 1.0)), 100.0 - age_s)}
            if rng.random() < 0.8
            else {}
        )
        pool.append(Session(f"s{i:02}", tokens, cached=cached))
    full = 310_000 - params.reserve_tokens
    inside = [
        Session(f"busy-{name}", full - room * params.quantum_tokens, "reasoning", resident_on=name)
        for name, room in zip(names, quanta, strict=True)
    ]
    return Snapshot(100.0, tuple(Node(name, 310_000) for name in names), (*pool, *inside))


def planner(progress: Callable[[float], None] = lambda share: None) -> list[dict[str, Any]]:
    """Kernel and public call of each planner on 40 sessions x 4 nodes, and the yardstick, in milliseconds.

    `progress` is called with the share that is done.
    """
    snapshot, params = crowded(), Params()
    problem = planners.case(snapshot, params)
    states = planners.dp(problem).states
    shape = {"sessions": len(problem.sessions), "nodes": len(problem.nodes)}
    rows = []
    timed = {name: solve for name, solve in planners.PLANNERS.items() if name != "exhaustive"}
    for k, (name, solve) in enumerate(timed.items()):
        progress(k / len(timed))
        counted = shape | {"states": states if name == "dp" else 0}
        rows.append(_row(f"{name}, kernel", counted, partial(solve, problem)))
        rows.append(_row(f"{name}, plan()", counted, partial(planners.plan, snapshot, name, params)))
    cells = np.zeros((2, states), np.int64)
    passes = shape["sessions"] * shape["nodes"]
    rows.append(_row("yardstick", shape | {"states": states}, lambda: _yardstick(cells, passes)))
    return rows


PAPER_PLANS_PER_S = 0.71  # TAO paper, E6: plans a second at most, from its totals


def simulator(progress: Callable[[float], None] = lambda share: None) -> list[dict[str, Any]]:
    """CPU time of whole runs: engine alone, public call, stepper, and a large cluster, in milliseconds.

    300 sessions of swe-lite with 64 workers on two nodes, each turn recorded; then 4,096 workers on 128
    nodes. `plans_per_s` are plans per simulated second.
    """
    work = WORKLOADS["swe-lite"](0, 300)
    rows = []
    shown = ("deepseek-v4-flash-4xh100", "qwen3-32b-2xh100")
    for k, name in enumerate(shown):
        progress(k / 5)
        rows += [
            _run_row(f"{policy}, engine", work, policy, 2, 64, name, 5)
            for policy in ("sticky", "thunderagent", "tao")
        ]
    progress(2 / 5)
    call = partial(simulate, work, "sticky", 2, 64, profile=shown[0])
    rows.append(_timed("sticky, simulate()", call, 5, lambda history: history.events))
    progress(3 / 5)
    call = partial(simulate, work, "sticky", 2, 64, profile=shown[0], stepper=True)
    rows.append(_timed("sticky, stepper", call, 1, lambda history: rows[0]["events"]))
    progress(4 / 5)
    large = WORKLOADS["swe-lite"](0, MAX_TASKS)
    rows.append(_run_row("sticky, engine, 4,096 on 128 nodes", large, "sticky", 128, 4096, shown[0], 1))
    return rows


def _run_row(
    what: str, work: Workload, policy: str, nodes: int, workers: int, profile: str, repeats: int
) -> dict[str, Any]:
    """A run in the compiled engine alone; what its arrays cost is not counted."""
    chosen, engine_profile = POLICIES[policy](Params()), PROFILES[profile]
    assert isinstance(chosen, Compiled)
    shape = (work, chosen, nodes, workers, engine_profile, engine_profile.capacity_tokens)
    runner.Run(*shape).finish()  # warm
    taken = []
    for _ in range(repeats):
        run = runner.Run(*shape)
        start = time.process_time()
        history = run.finish()
        taken.append(time.process_time() - start)
    row = _summary(f"{what}, {profile}", taken, history.events)
    decisions = history.decision_rows.array
    plans = int((decisions[:, PLANNED] == 1).sum())
    return row | {"plans": plans, "plans_per_s": plans / history.end_ps * PS_PER_S}


def _timed(
    what: str, call: Callable[[], History], repeats: int, events: Callable[[History], int]
) -> dict[str, Any]:
    call()
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        history = call()
        taken.append(time.process_time() - start)
    return _summary(what, taken, events(history))


def _summary(what: str, taken: list[float], events: int) -> dict[str, Any]:
    median = statistics.median(taken)
    return {
        "what": what,
        "events": events,
        "median_ms": 1000 * median,
        "worst_ms": 1000 * max(taken),
        "ns_per_event": 1e9 * median / events,
    }


def _row(what: str, shape: dict[str, int], call: Callable[[], object]) -> dict[str, Any]:
    taken = times_s(call)
    return {
        "what": what,
        **shape,
        "median_ms": 1000 * statistics.median(taken),
        "worst_ms": 1000 * max(taken),
    }


@njit
def _yardstick(cells: Any, passes: int) -> None:
    """The least a dense DP of that size can do: one max and one add per cell, session and node."""
    source, target = cells[0], cells[1]
    for worth in range(passes):
        for s in range(source.shape[0]):
            target[s] = max(target[s], source[s] + worth)


BENCHES: dict[str, Callable[[Callable[[float], None]], list[dict[str, Any]]]] = {
    "planner": planner,
    "simulator": simulator,
}

NOTES = {
    "planner": "median and worst of 20 warm calls; the yardstick: one pass of max and add over as many cells",
    "simulator": "CPU time, median and worst of 5 warm runs (1 of the stepper and of the large cluster);\n"
    "engine: its arrays ready; plans per second of simulated time "
    f"(TAO paper: at most {PAPER_PLANS_PER_S})",
}


def cell(column: str, value: Any) -> str:
    """One entry of a table of timings."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:.3f}" if column.endswith(("_ms", "_s")) else f"{value:,.0f}"
