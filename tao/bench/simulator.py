"""What whole simulated runs cost: the engine alone, the public call, the stepper, a large cluster."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tao import runner
from tao.history import PLANNED, History
from tao.model import Params
from tao.policies import POLICIES, Compiled
from tao.profiles import PROFILES, PS_PER_S
from tao.simulator import simulate
from tao.workloads import MAX_TASKS, WORKLOADS, Workload

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


NOTE = (
    "CPU time, median and worst of 5 warm runs (1 of the stepper and of the large cluster);\n"
    "engine: its arrays ready; plans per second of simulated time "
    f"(TAO paper: at most {PAPER_PLANS_PER_S})"
)


def cells(row: dict[str, Any]) -> dict[str, str]:
    """A row as it is printed."""
    return {name: _cell(name, x) for name, x in row.items()}


def _cell(column: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.3f}" if column.endswith(("_ms", "_s")) else f"{value:,.0f}"
