"""What many plans say about their planners, as tables and sentences; pure, no widgets."""

from __future__ import annotations

from typing import Any

import pandas as pd

from tao import quality
from tao.model import Plan, Snapshot
from tao.panels.table import Table


def about(family: str, snapshot: Snapshot, misses: pd.DataFrame, label: str) -> str:
    """What the set is, and what the label of its figures means here."""
    count, contested = misses["snapshot"].nunique(), misses.groupby("snapshot")["contested"].first().sum()
    origin = {
        "simulated": "decisions of policy tao in runs of our simulator",
        "recomputed": "drawn or given ones, planned here",
    }
    return (
        f"{family}: {count} snapshots ({label}: {origin[label]}), the one shown with "
        f"{len(snapshot.pool)} in the waiting pool of {len(snapshot.nodes)} nodes. "
        f"In {contested} of them more than one session fits, so that there is something to decide."
    )


def headline(misses: pd.DataFrame, planner: str) -> str:
    """How often a planner misses the optimum, and how it fares against dp."""
    of = misses[misses["planner"] == planner]
    below, credit = int(of["below"].sum()), int((of["credit"] > 0).sum())
    text = f"{planner} is as good as the optimum on {len(of) - below} of {len(of)} snapshots"
    if below:
        text += f" and misses it on {below}, {credit} of these in credit"
    if planner in ("dp", "exact"):
        return f"{text}."
    more, less, same = quality.against(misses, "dp", planner)
    return f"{text}; dp is worth more on {more}, less on {less}, the same on {same}."


def here(misses: pd.DataFrame, planner: str, number: int, plan: Plan) -> str:
    """What the planner does on one snapshot, and who placed if it gave up."""
    row = misses[(misses["planner"] == planner) & (misses["snapshot"] == number)].iloc[0]
    value = ", ".join(f"{x:,} {name}" for name, x in plan.value._asdict().items())
    admits = f"{planner} admits {_counted(len(plan.placements), 'session')}"
    text = f"Snapshot {number}: {admits} worth {value}, {_lost(row)}."
    if plan.states:
        text += f" Its search opened {_counted(plan.states, 'state')}."
    return f"{text} Fallback, {plan.reason}." if plan.reason else text


def _lost(row: pd.Series[Any]) -> str:
    if not row["below"]:
        return "as much as the optimum" if row["proven"] else "the best value known"
    parts = [f"{row[name]:,} {name}" for name in ("credit", "ready", "tokens") if row[name]]
    return f"{parts[0]} less than the optimum"


def missed(misses: pd.DataFrame, shown: str) -> Table:
    """Each planner over all snapshots: how often it misses, how much credit it loses then, who placed."""
    rows = []
    name: Any
    for name, of in misses.groupby("planner", sort=False):
        lost = of["credit"][of["credit"] > 0]
        others = int((of["placed_by"] != name).sum())
        counted = int(of["below"].sum()), len(lost), round(lost.mean()) if len(lost) else 0
        rows.append(
            (
                f"▸ {name}" if name == shown else str(name),
                *counted,
                int(lost.max()) if len(lost) else 0,
                others,
            )
        )
    columns = "planner", "misses", "in credit", "lost then, mean", "worst", "placed by another"
    names = list(dict.fromkeys(misses["planner"]))
    caption = f"Against the optimum on {misses['snapshot'].nunique()} snapshots (tokens of credit)"
    return Table(caption, columns, rows, names.index(shown))


def rounding(losses: pd.DataFrame, chosen: int) -> Table:
    """What dp's rounding loses by quantum, with the states that its search opens."""
    rows = [
        (
            f"{'▸ ' if row['quantum_tokens'] == chosen else ''}{row['quantum_tokens']:,.0f}",
            f"{row['loss_mean']:.1%}",
            f"{row['loss_worst']:.1%}",
            f"{row['states_mean']:,.1f}",
            f"{row['states_worst']:,.0f}",
            f"{row['fallbacks']:.0%}",
        )
        for row in losses.to_dict("records")
    ]
    columns = "quantum, tokens", "credit lost, mean", "worst", "states, mean", "most", "fallback"
    quanta = list(losses["quantum_tokens"])
    return Table("dp by quantum", columns, rows, quanta.index(chosen) if chosen in quanta else -1)


def everywhere(misses: pd.DataFrame) -> Table:
    """The figure as a table: the credit that each planner loses on each snapshot, and dp's states."""
    names = list(dict.fromkeys(misses["planner"]))
    rows: list[tuple[Any, ...]] = []
    number: Any
    for number, of in misses.groupby("snapshot"):
        by = of.set_index("planner")
        rows.append((str(number), *(_cell(by.loc[name]) for name in names), int(by["states"].loc["dp"])))
    return Table("What each plan is worth less than the optimum", ("snapshot", *names, "dp's states"), rows)


def _cell(row: pd.Series[Any]) -> str:
    if not row["below"]:
        return "–" if row["proven"] else "not proven"
    part = next(name for name in ("credit", "ready", "tokens") if row[name])
    return f"{row[part]:,} {part}"


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
