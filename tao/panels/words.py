"""What a plan says about a snapshot, as tables and sentences; pure, no widgets."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from tao import explain, library
from tao.model import Params, Plan, Snapshot, Value
from tao.panels.table import Table


def bars(snapshot: Snapshot, plan: Plan, params: Params) -> pd.DataFrame:
    """One row per segment of a node's bar, as `charts.node_bars` wants them."""
    size = {s.id: snapshot.demand_tokens(s, params) for s in snapshot.pool}
    used = snapshot.used_tokens(params)
    rows: list[tuple[str, int, str, str, int, int]] = []
    for node in snapshot.nodes:
        count = sum(s.resident_on == node.id for s in snapshot.sessions)
        rows.append((node.id, node.capacity_tokens, "resident", _count(count, "resident"), used[node.id], 0))
        left = node.capacity_tokens - used[node.id]
        for p in (p for p in plan.placements if p.node == node.id):
            left -= size[p.session]
            part = "over" if left < 0 else "admitted"
            rows.append((node.id, node.capacity_tokens, part, p.session, size[p.session], p.value.credit))
        rows.append((node.id, node.capacity_tokens, "free", "", max(left, 0), 0))
    return pd.DataFrame(rows, columns=["node", "capacity_tokens", "part", "label", "tokens", "credit"])


def nodes(bars: pd.DataFrame) -> Table:
    """The figure as a table: every segment of every node."""
    rows = list(bars.itertuples(index=False, name=None))
    columns = ("node", "capacity", "part", "who", "tokens", "cache credit")
    return Table("The nodes, segment by segment (tokens)", columns, rows)


def comparison(plans: Mapping[str, Plan], best: Plan, shown: str) -> Table:
    """All planners side by side; those that no other beats are marked best."""
    rows = [
        (
            f"▸ {name}" if name == shown else name,
            *plan.value,
            len(plan.placements),
            behind(plan, best) or "best",
        )
        for name, plan in plans.items()
    ]
    columns = ("planner", "credit", "ready", "tokens", "admits", "behind by")
    return Table("All planners on this snapshot", columns, rows, list(plans).index(shown))


def admitted(snapshot: Snapshot, plan: Plan, params: Params) -> Table:
    """Who gets in where, and why there: what the place is worth."""
    why = explain.why_admitted(snapshot, plan, params)
    rows = [(p.session, p.node, why[p.session]) for p in plan.placements]
    caption = f"Admitted: {len(rows)} of {len(snapshot.pool)}"
    return Table(caption, ("session", "node", "what this place is worth"), rows)


def deferred(snapshot: Snapshot, plan: Plan, params: Params) -> Table:
    """Who stays out, and what kept each out."""
    why = explain.why_deferred(snapshot, plan, params)
    rows = [(session, why[session]) for session in plan.deferred]
    return Table(f"Deferred: {len(rows)} of {len(snapshot.pool)}", ("session", "what kept it out"), rows)


def origin(name: str, snapshot: Snapshot) -> tuple[str, str]:
    """What the snapshot is and where it comes from; its size, and where the totals come from."""
    known = library.describe(name) if name in library.snapshot_names() else "your own snapshot"
    pool = len(snapshot.pool)
    parts = [_count(len(snapshot.nodes), "node"), _count(len(snapshot.sessions) - pool, "resident session")]
    facts = f"{', '.join(parts)}, {pool:,} in the waiting pool; frozen at {snapshot.now_s:.1f} s."
    return known, f"{facts} All totals below are recomputed here."


def headline(who: str, plan: Plan, best: Plan, pool: int) -> str:
    """The decision in one line: how many get in, the triple, and whether another planner does better."""
    v = plan.value
    gap = behind(plan, best)
    rank = f"behind {best.planner} by {gap}" if gap else "no planner here does better"
    return (
        f"{who} admits {len(plan.placements)} of {pool}: "
        f"credit {v.credit:,}, ready {v.ready:,}, tokens {v.tokens:,}; {rank}"
    )


def behind(plan: Plan, best: Plan) -> str:
    """The regret by its first component that counts, such as "3,167 credit"; empty where they tie."""
    regret = explain.regret(plan, best)
    return next((f"{part:,} {name}" for name, part in zip(Value._fields, regret, strict=True) if part), "")


def regret(plan: Plan, best: Plan) -> str:
    """The whole triple that a plan gives up against the best; empty where they tie."""
    lost = explain.regret(plan, best)
    triple = ", ".join(f"{part:,} {name}" for name, part in zip(Value._fields, lost, strict=True))
    return f"Regret against {best.planner}: {triple}." if any(lost) else ""


def guarantee(plan: Plan, params: Params, proven: Plan | None = None) -> str:
    """What is proven about a plan, and how it was found; `proven`: the plan of `exact` for this snapshot."""
    if not plan.exact:
        found = "A rule of thumb on true sizes; by itself it guarantees nothing."
    elif plan.problem == "true":
        found = "The best plan on true sizes."
    else:
        found = f"The best plan for sizes rounded up to quanta of {params.quantum_tokens:,} tokens"
        found += f" ({_count(plan.states, 'state')})."
    aged = f" Waiting earned {plan.ageing_tokens:,} of the credit." if plan.ageing_tokens else ""
    fallback = f" Fallback, {plan.reason}." if plan.reason else ""
    return f"{found}{fallback}{aged} {_bound(plan, proven)}"


def _bound(plan: Plan, proven: Plan | None) -> str:
    if proven is not None and proven.exact and plan is not proven:
        same = plan.value == proven.value
        return f"On true sizes {'no plan is worth more' if same else 'the best plan is worth more'}."
    gaps = zip(Value._fields, plan.gap, plan.bound, strict=True)
    for name, gap, most in gaps:
        if gap:
            most_words = f"On true sizes no plan can have more {name} than {most:,}"
            return f"{most_words}, {gap:,} more than here; perhaps none has that much."
    return "Its value meets the upper bound: on true sizes no plan is worth more."


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
