"""Timings on this machine, as medians of warm calls beside a yardstick; never part of a test."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tao import planners
from tao._jit import njit
from tao.model import CacheNote, Node, Params, Session, Snapshot


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
