"""How good plans are on given snapshots: what rounding loses, and how often heuristics miss the optimum.

Figures follow from the snapshots they are given (*recomputed*); of recorded snapshots of a simulated run
they are *simulated*. See `tao.workloads.snapshots` for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pandas as pd

from tao import planners
from tao.checks import InputError
from tao.model import Params, Plan, Snapshot

HEURISTICS = ("dp", "short_first", "bfd", "worst_fit", "fifo")


def rounding_loss(
    snapshots: Iterable[Snapshot],
    quanta: Sequence[int] = (4096, 2048, 1024, 512, 256),
    *,
    params: Params | None = None,
    best: str = "exact",
) -> pd.DataFrame:
    """What dp's rounding costs: one row per quantum, over the same snapshots.

    `states_mean`, `states_worst`: of the search. `loss_mean`, `loss_worst`: share of the most credit that
    dp's plan does not keep, 0 where there is none to keep. The most is what planner `best` proves, or its
    upper bound where it proves nothing (then a loss is at most that); `proven` is the share of snapshots in
    which it does. `fallbacks`: share of plans beyond the budget, which bfd places; raise `state_budget` in
    `params` to see rounding alone.

    >>> import tao
    >>> rounding_loss([tao.load("quantum_hurts")], [1024, 1], best="exhaustive")[
    ...     ["quantum_tokens", "loss_worst"]].values.tolist()
    [[1024.0, 0.5], [1.0, 0.0]]
    """
    params = params or Params()
    given = _given(snapshots)
    optima = [planners.plan(s, best, params) for s in given]
    proven = sum(plan.gap.credit == 0 for plan in optima) / len(given)
    rows = []
    for quantum in quanta:
        rounded = replace(params, quantum_tokens=quantum)
        plans = [planners.plan(s, "dp", rounded) for s in given]
        losses = pd.Series([_loss(p, o) for p, o in zip(plans, optima, strict=True)])
        states = pd.Series([plan.states for plan in plans])
        fallbacks = sum(plan.planner != "dp" for plan in plans) / len(given)
        counted = (len(given), states.mean(), states.max(), losses.mean(), losses.max(), proven, fallbacks)
        rows.append((quantum, *counted))
    columns = ["snapshots", "states_mean", "states_worst", "loss_mean", "loss_worst", "proven", "fallbacks"]
    return pd.DataFrame(rows, columns=["quantum_tokens", *columns])


def _loss(plan: Plan, best: Plan) -> float:
    most = best.bound.credit
    return (most - plan.value.credit) / most if most else 0.0


def differences(
    snapshots: Iterable[Snapshot],
    names: Sequence[str] = HEURISTICS,
    *,
    params: Params | None = None,
    best: str = "exact",
) -> pd.DataFrame:
    """In how many snapshots each planner's plan is worth less than the optimum: one row per planner.

    Only snapshots count whose optimum planner `best` proves (`snapshots`; `unproven` are left out).
    `contested`: in how many of them more than one session fits somewhere, so that there is something to
    decide. `below`: how many plans are worth less in credit, readiness or tokens; `below_credit`: in credit.
    `lost_mean`, `lost_worst`: by how many tokens of credit, over those plans; nan where there is none.

    >>> import tao
    >>> few = [tao.load(name) for name in ("dp_beats_short_first", "session_177", "two_nodes_trap")]
    >>> table = differences(few, ["dp", "short_first"], best="exhaustive")
    >>> table[["planner", "below", "lost_worst"]].values.tolist()
    [['dp', 0, nan], ['short_first', 3, 13690.0]]
    """
    table = misses(snapshots, names, params=params, best=best)
    rows = []
    for name, of in table.groupby("planner", sort=False):
        known = of[of["proven"]]
        lost = known["credit"][known["credit"] > 0]
        counted = (
            len(known),
            len(of) - len(known),
            known["contested"].sum(),
            known["below"].sum(),
            len(lost),
        )
        rows.append((name, *counted, lost.mean(), lost.max()))
    columns = ["snapshots", "unproven", "contested", "below", "below_credit", "lost_mean", "lost_worst"]
    return pd.DataFrame(rows, columns=["planner", *columns])


def misses(
    snapshots: Iterable[Snapshot],
    names: Sequence[str] = HEURISTICS,
    *,
    params: Params | None = None,
    best: str = "exact",
) -> pd.DataFrame:
    """By how much each plan is worth less than the optimum: one row per planner and snapshot (from 1).

    `below`: the plan is worth less than that of planner `best`, which has at least the default state
    budget; `proven`: that one is proven to be the optimum. `credit`, `ready`, `tokens`: what the plan lacks
    of each (below 0 where it is ahead); `most`: the credit of the optimum. `contested`: more than one
    session fits somewhere. `states` of the search, and `placed_by`, the planner that placed.

    >>> import tao
    >>> table = misses([tao.load("dp_beats_short_first")], ["dp", "short_first"])
    >>> table[["planner", "below", "credit", "ready"]].values.tolist()
    [['dp', False, 0, 0], ['short_first', True, 3167, 1]]
    """
    params = params or Params()
    able = replace(params, state_budget=max(params.state_budget, Params().state_budget))
    rows = []
    for number, snapshot in enumerate(_given(snapshots), start=1):
        optimum = planners.plan(snapshot, best, able)
        proven, most = optimum.gap == (0, 0, 0), optimum.value
        contested = int((planners.case(snapshot, params).prefer >= 0).any(axis=1).sum()) > 1
        for name in names:
            plan = planners.plan(snapshot, name, params)
            lost = (x - y for x, y in zip(most, plan.value, strict=True))
            found = (plan.value < most, *lost, most.credit, proven, contested, plan.states, plan.planner)
            rows.append((name, number, *found))
    columns = ["below", "credit", "ready", "tokens", "most", "proven", "contested", "states", "placed_by"]
    table = pd.DataFrame(rows, columns=["planner", "snapshot", *columns])
    order = {name: k for k, name in enumerate(names)}
    return table.sort_values("planner", key=lambda of: of.map(order), kind="stable", ignore_index=True)


def against(table: pd.DataFrame, name: str, other: str) -> tuple[int, int, int]:
    """On how many snapshots of `misses` planner `name` is worth more, less and the same as `other`.

    >>> import tao
    >>> table = misses([tao.load("dp_beats_short_first")], ["dp", "short_first"])
    >>> against(table, "short_first", "dp")
    (0, 1, 0)
    """
    mine, theirs = (
        list(
            table[table["planner"] == planner][["credit", "ready", "tokens"]].itertuples(
                index=False, name=None
            )
        )
        for planner in (name, other)
    )
    pairs = list(zip(mine, theirs, strict=True))
    more, less = sum(x < y for x, y in pairs), sum(x > y for x, y in pairs)
    return more, less, len(pairs) - more - less


def _given(snapshots: Iterable[Snapshot]) -> list[Snapshot]:
    given = list(snapshots)
    if not given:
        raise InputError("no snapshots were given; give at least one")
    return given
