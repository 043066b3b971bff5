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
    params = params or Params()
    pairs = [(s, planners.plan(s, best, params)) for s in _given(snapshots)]
    proven = [(s, plan) for s, plan in pairs if plan.gap == (0, 0, 0)]
    fitting = [(planners.case(s, params).prefer >= 0).any(axis=1).sum() for s, _ in proven]
    contested = sum(int(n) > 1 for n in fitting)
    rows = []
    for name in names:
        values = [(planners.plan(s, name, params).value, plan.value) for s, plan in proven]
        lost = pd.Series([most.credit - value.credit for value, most in values if value.credit < most.credit])
        below = sum(value < most for value, most in values)
        counted = (len(proven), len(pairs) - len(proven), contested, below, len(lost))
        rows.append((name, *counted, lost.mean(), lost.max()))
    columns = ["snapshots", "unproven", "contested", "below", "below_credit", "lost_mean", "lost_worst"]
    return pd.DataFrame(rows, columns=["planner", *columns])


def _given(snapshots: Iterable[Snapshot]) -> list[Snapshot]:
    given = list(snapshots)
    if not given:
        raise InputError("no snapshots were given; give at least one")
    return given
