"""What a plan costs: planners, and general solvers beside them, over families of snapshots."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from tao import checks, planners
from tao._jit import njit
from tao.bench import solvers
from tao.bench.timing import seconds, typical_s
from tao.checks import InputError, shown
from tao.families import COLD_TOKENS, recorded_sets, snapshots
from tao.model import CacheNote, Gap, Node, Params, Session, Snapshot, Value

TIMED = tuple(name for name in ("exact", "dp", "bfd", "short_first") if name in planners.PLANNERS)
SOLVABLE = 80  # ours: above so many sessions the solvers are not asked
LEAST, SOLVED = 3, 5  # ours: snapshots per row at least, and of a solver at most
ROW_S, SHORT_ROW_S = 4.0, 1.0  # ours: no more snapshots of a row are begun after this time
Progress = Callable[[float], None]


class Size(NamedTuple):
    """Snapshots of one kind: `snapshots(family, n, nodes, seed, room_tokens=room_tokens)`."""

    family: str
    n: int
    nodes: int
    room_tokens: int | None = None


SCALING = ((40, 4), (160, 4), (1_000, 16), (10_000, 64))
CLUSTERS = ((30, 2), (40, 4), (80, 4), (160, 4))
ROOMS = (60_000, 300_000)
_SIZES: dict[str, tuple[tuple[int, int], ...]] = {
    "unique": (*CLUSTERS, *SCALING[2:]),
    "replicated": (*CLUSTERS, SCALING[2]),
    "shared": CLUSTERS,
    "cold": CLUSTERS,
    "stress": SCALING,
}
_SHORT = (
    *(Size(f, 40, 4, 60_000) for f in ("unique", "replicated", "shared")),
    Size("cold", 40, 4, COLD_TOKENS),
)

NOTE = (
    "milliseconds: median / 95th percentile / worst over the snapshots, of each the median of 5 warm calls;\n"
    "kernel: a planner alone, a solver's search; plan(): from the snapshot, a solver's model and search;\n"
    "proven: share of plans that are proven; gap: share of the bound's credit not reached, median / 95th\n"
    "percentile; states: median / most; bfd: share of dp's plans beyond its budget, placed by bfd"
)


def sizes(family: str) -> tuple[Size, ...]:
    """What `tao bench planner --family` measures; raises `InputError` for an unknown family."""
    if family == "recorded":
        return tuple(Size(family, *key) for key in recorded_sets())
    if family not in _SIZES:
        raise InputError(f"family is {shown(family)}; it must be one of {', '.join((*_SIZES, 'recorded'))}")
    rooms = (COLD_TOKENS,) if family == "cold" else ROOMS
    return tuple(Size(family, *key, room) for key, room in product(_SIZES[family], rooms))


def planner(
    progress: Progress = lambda share: None,
    family: str | None = None,
    count: int | None = None,
    limit_s: float | None = None,
) -> list[dict[str, Any]]:
    """Rows of `costs` of a family; without one a short choice of all, a crowded cluster, and a yardstick.

    The yardstick: a pass of max and add over the table of a dp that drops nothing, per pair.
    """
    if family is not None:
        return costs(sizes(family), count=count, limit_s=limit_s, progress=progress)
    chosen = (*_SHORT, Size("recorded", 160, 4), Size("crowded", 40, 4))
    rows = costs(
        chosen, count=count, limit_s=1.0 if limit_s is None else limit_s, row_s=SHORT_ROW_S, progress=progress
    )
    problem = planners.case(crowded(), Params())
    table = math.prod((planners.quantize(problem).free + 1).tolist())
    cells, pairs = np.zeros((2, table), np.int64), problem.credit.size
    _yardstick(cells, pairs)
    taken = [seconds(partial(_yardstick, cells, pairs))[0] for _ in range(20)]
    yardstick = {"family": "crowded", "planner": "yardstick", "n": 40, "nodes": 4, "snapshots": 1}
    return [*rows, yardstick | _spread("kernel", taken) | {"states_worst": cells.shape[1]}]


def costs(
    chosen: Sequence[Size],
    timed: Sequence[str] | None = None,
    count: int | None = None,
    limit_s: float | None = None,
    row_s: float = ROW_S,
    progress: Progress = lambda share: None,
) -> list[dict[str, Any]]:
    """One row per size and planner: milliseconds of kernel and plan(), what is proven, gap, states.

    `timed` names planners and solvers (default: those of `TIMED`, and the solvers up to 80 sessions).
    `count` snapshots each, however long it takes; by default 300 or fewer where they are large, 5 for
    solvers, and no more after `row_s` seconds. `limit_s` (5) is for a solver per snapshot. A solver that is
    not installed gets one row with a `note`.

    >>> (row,) = costs([Size("unique", 6, 2)], ["bfd"], count=2)
    >>> row["planner"], row["snapshots"], row["states_worst"], row["plan_median_ms"] > 0
    ('bfd', 2, 0, True)
    """
    if count is not None:
        checks.whole(count, "count", 1)
    if limit_s is not None:
        checks.positive(limit_s, "limit_s")
    names = [*TIMED, *solvers.SOLVERS] if timed is None else list(timed)
    notes = {name: solvers.missing(name) for name in names if name in solvers.SOLVERS}
    present = [name for name in names if not notes.get(name)]
    rows = []
    for k, size in enumerate(chosen):
        small = size.n <= SOLVABLE or size.family == "recorded"
        asked = [name for name in present if small or name not in notes]
        for j, name in enumerate(asked):
            progress((k + j / len(asked)) / len(chosen))
            ask = partial(_solved, limit_s=limit_s or 5.0) if name in notes else _planned
            until_s = row_s if count is None else math.inf
            found = _measured(ask, name, size, _seeds(size, count, name in notes), until_s)
            rows.append(_row(size, name, found))
    return rows + [{"planner": name, "note": note} for name, note in notes.items() if note]


def _seeds(size: Size, count: int | None, solver: bool) -> list[int]:
    """Which snapshots of a size are planned: the first ones, of recorded ones an even choice."""
    usual = SOLVED if solver else 300 if size.n <= 200 else 20 if size.n <= 2_000 else LEAST
    wanted = usual if count is None else count
    if size.family != "recorded":
        return list(range(wanted))
    there = recorded_sets()[size.n, size.nodes]
    return [(2 * k + 1) * there // (2 * min(wanted, there)) for k in range(min(wanted, there))]


class _Outcome(NamedTuple):
    """What one snapshot cost, and how good the plan is."""

    kernel_s: float
    plan_s: float
    value: Value
    bound: Value
    states: int
    replaced: bool

    @property
    def gap(self) -> Gap:
        credit, ready, tokens = (b - v for b, v in zip(self.bound, self.value, strict=True))
        if credit:
            return Gap(credit, None, None)
        return Gap(0, ready, None if ready else tokens)


def _measured(
    ask: Callable[[str, Snapshot], _Outcome], name: str, size: Size, seeds: Sequence[int], row_s: float
) -> list[_Outcome]:
    ask(name, crowded(4))  # compiles what there is to compile
    found: list[_Outcome] = []
    begun = time.perf_counter()
    for seed in seeds:
        if len(found) >= LEAST and time.perf_counter() - begun > row_s:
            break
        found.append(ask(name, _snapshot(size, seed)))
    return found


def _snapshot(size: Size, seed: int) -> Snapshot:
    if size.family == "crowded":
        return crowded(size.n, seed=seed)
    return snapshots(size.family, size.n, size.nodes, seed, room_tokens=size.room_tokens)


def _planned(name: str, snapshot: Snapshot) -> _Outcome:
    plan_s, plan = typical_s(partial(planners.plan, snapshot, name))
    kernel_s, _ = typical_s(partial(planners.PLANNERS[name], planners.case(snapshot, Params())))
    return _Outcome(kernel_s, plan_s, plan.value, plan.bound, plan.states, plan.planner != name)


def _solved(name: str, snapshot: Snapshot, limit_s: float) -> _Outcome:
    found = solvers.solve(name, planners.case(snapshot, Params()), limit_s)
    return _Outcome(found.solve_s, found.build_s + found.solve_s, found.value, found.bound, 0, False)


def _row(size: Size, name: str, found: Sequence[_Outcome]) -> dict[str, Any]:
    gaps = [x.gap for x in found]
    credit = [g.credit / max(x.bound.credit, 1) for g, x in zip(gaps, found, strict=True)]
    tokens = [
        g.tokens / max(x.bound.tokens, 1) for g, x in zip(gaps, found, strict=True) if g.tokens is not None
    ]
    return {
        "family": size.family,
        "planner": name,
        "n": size.n,
        "nodes": size.nodes,
        "room_tokens": size.room_tokens,
        "snapshots": len(found),
        **_spread("kernel", [x.kernel_s for x in found]),
        **_spread("plan", [x.plan_s for x in found]),
        "proven": statistics.mean(gap == (0, 0, 0) for gap in gaps),
        "proven_credit": statistics.mean(gap.credit == 0 for gap in gaps),
        "proven_ready": statistics.mean(gap[:2] == (0, 0) for gap in gaps),
        "gap_median": statistics.median(credit),
        "gap_p95": float(np.percentile(credit, 95)),
        "tokens_gap_p95": float(np.percentile(tokens, 95)) if tokens else None,
        "states_median": statistics.median(x.states for x in found),
        "states_worst": max(x.states for x in found),
        "fallbacks": statistics.mean(x.replaced for x in found),
    }


def _spread(what: str, taken_s: Sequence[float]) -> dict[str, float]:
    ms = 1000 * np.array(taken_s)
    found = {"mean": ms.mean(), "median": np.median(ms), "p95": np.percentile(ms, 95), "worst": ms.max()}
    return {f"{what}_{name}_ms": float(x) for name, x in found.items()}


def cells(row: dict[str, Any]) -> dict[str, str]:
    """A row as it is printed."""

    def joined(form: str, *names: str) -> str:
        return " / ".join(format(row[x], form) for x in names) if names[0] in row else "-"

    room = row.get("room_tokens")
    return {
        "family": row["family"],
        "planner": row["planner"],
        "n": f"{row['n']:,}",
        "nodes": f"{row['nodes']}",
        "room": f"{room:,}" if room else "-",
        "snapshots": f"{row['snapshots']}",
        "kernel ms": joined(".3f", *(f"kernel_{x}_ms" for x in ("median", "p95", "worst"))),
        "plan() ms": joined(".3f", *(f"plan_{x}_ms" for x in ("median", "p95", "worst"))),
        "proven": joined(".1%", "proven"),
        "gap": joined(".2%", "gap_median", "gap_p95"),
        "states": joined(",.0f", "states_median", "states_worst"),
        "bfd": joined(".1%", "fallbacks") if row["planner"] == "dp" else "-",
    }


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


@njit
def _yardstick(cells: Any, passes: int) -> None:
    """The least a dense DP of that size can do: one max and one add per cell, session and node."""
    source, target = cells[0], cells[1]
    for worth in range(passes):
        for s in range(source.shape[0]):
            target[s] = max(target[s], source[s] + worth)
