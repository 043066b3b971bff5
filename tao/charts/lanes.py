"""What every session did when: one lane each, from the turns of a run."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from tao import checks
from tao.charts._style import GREY, INK, LINE, PALETTE, PLOT_WIDTH, few_enough, number, styled, title
from tao.checks import InputError
from tao.history import History
from tao.profiles import PS_PER_S

EDGES = "arrived_ps", "submitted_ps", "scheduled_ps", "first_token_ps", "finished_ps", "tool_end_ps"
PHASES = {  # a phase, from one edge to the next: color and thickness in px (computing is thick, tools thin)
    "pool wait": (PALETTE["orange"], 7),
    "queue wait": (PALETTE["purple"], 7),
    "prefill": (PALETTE["sky"], 13),
    "decode": (PALETTE["green"], 13),
    "tool": (GREY, 4),
}
LANE_HEIGHT = 26  # px
CHARACTER = 6.0  # px of one character at 10 px, rounded up


def phases(history: History) -> pd.DataFrame:
    """Every turn cut into its five phases, which follow each other without a gap, in whole picoseconds.

    Rows (session, turn, node, phase, begin_ps, end_ps), five per turn, also where a phase took no time. What
    a request waits after a preemption counts as decode.

    >>> import tao
    >>> table = phases(tao.simulate("swe-lite", "tao", nodes=1, workers=1, tasks=1))
    >>> list(table["phase"][:5])
    ['pool wait', 'queue wait', 'prefill', 'decode', 'tool']
    """
    edges = np.stack([history.column(name) for name in EDGES], axis=1)
    five = {
        "session": np.array(history.session_ids, object)[history.column("session")],
        "turn": history.column("turn"),
        "node": np.array(history.node_ids, object)[history.column("node")],
    }
    return pd.DataFrame(
        {name: np.repeat(values, len(PHASES)) for name, values in five.items()}
        | {"phase": list(PHASES) * len(edges)}
        | {"begin_ps": edges[:, :-1].ravel(), "end_ps": edges[:, 1:].ravel()}
    )


def swimlane(history: History, first: float = 0, seconds: float = 120, sessions: int = 20) -> alt.LayerChart:
    """Lanes of the first sessions that run in the `seconds` from `first` on: waiting, computing, tools.

    A line above each lane says on which node the session is. Phases too short to see are left out of the
    picture, not of the table `phases`.

    >>> import tao
    >>> chart = swimlane(tao.simulate("swe-lite", "tao", nodes=1, workers=1, tasks=1), seconds=10)
    >>> chart.to_dict()["description"].split(" of ")[0]
    'What 1 session'
    """
    checks.at_least_zero(first, "first")
    checks.positive(seconds, "seconds")
    checks.whole(sessions, "sessions", 1)
    rows, until = _window(phases(history), first, first + seconds)
    lanes = list(dict.fromkeys(rows["session"]))[:sessions]
    rows = rows[rows["session"].isin(lanes)]
    seen = rows[rows["end_s"] - rows["begin_s"] >= (until - first) / PLOT_WIDTH / 4]
    few_enough("swimlane", len(seen))
    x = alt.X(
        "begin_s:Q",
        title="seconds since the run began",
        scale=alt.Scale(domain=[first, until], nice=False),
    )
    y = alt.Y("session:N", sort=lanes, title=None, axis=alt.Axis(labelLimit=120, ticks=False, domain=False))
    base = alt.Chart(seen, width=PLOT_WIDTH, height=alt.Step(LANE_HEIGHT)).encode(
        x=x, x2="end_s:Q", y=y, tooltip=["session:N", "turn:Q", "node:N", "phase:N", "begin_s:Q", "end_s:Q"]
    )
    legend = alt.Legend(title=None, orient="bottom", symbolType="square", direction="horizontal")
    names, looks = list(PHASES), list(PHASES.values())
    color = alt.Color("phase:N", scale=alt.Scale(domain=names, range=[c for c, _ in looks]), legend=legend)
    thick = alt.Size("phase:N", scale=alt.Scale(domain=names, range=[px for _, px in looks]), legend=None)
    stays = alt.Chart(_stays(rows)).encode(x=x, y=y)
    wide = stays.transform_filter(
        f"(datum.end_s - datum.begin_s) * {PLOT_WIDTH / (until - first)} > length(datum.node) * {CHARACTER} + 6"
    )
    label = {"align": "left", "dx": 4, "dy": -8, "fontSize": 10}
    drawn = [
        base.mark_bar(yOffset=4, cornerRadius=0).encode(color=color, size=thick),
        stays.mark_rule(yOffset=-8, color=LINE).encode(x2="end_s:Q"),
        wide.mark_text(stroke="white", strokeWidth=5, **label).encode(text="node:N"),
        wide.mark_text(color=INK, **label).encode(text="node:N"),
    ]
    what = f"What {len(lanes)} session{'s' * (len(lanes) > 1)} of {history.settings.get('policy')} did"
    heading = title(
        what, "the line above a lane: its node; bars: thick where it computes, thin where a tool runs"
    )
    spent = (rows["end_s"] - rows["begin_s"]).groupby(rows["phase"]).sum() / (
        rows["end_s"] - rows["begin_s"]
    ).sum()
    shares = ", ".join(f"{name} {spent.get(name, 0):.0%}" for name in PHASES)
    return styled(
        alt.LayerChart(layer=drawn, title=heading),
        f"{what} from {number(first)} to {number(until)} s, on {', '.join(sorted(set(rows['node'])))}. Of their time: {shares}.",
    )


def _window(rows: pd.DataFrame, first: float, last: float) -> tuple[pd.DataFrame, float]:
    """The phases between two seconds, cut there, sessions in the order they came; and the end of what is shown."""
    order = rows.groupby("session")["begin_ps"].transform("min")
    rows = rows.assign(order=order).sort_values(["order", "session", "begin_ps", "end_ps"])
    end = rows["end_ps"].max() / PS_PER_S if len(rows) else 0.0
    until = min(last, end)
    cut = rows.assign(
        begin_s=(rows["begin_ps"] / PS_PER_S).clip(lower=first),
        end_s=(rows["end_ps"] / PS_PER_S).clip(upper=until),
    )
    cut = cut[cut["begin_s"] < cut["end_s"]]
    if cut.empty:
        raise InputError(
            f"no session runs from {number(first)} to {number(last)} s; the run lasts {number(end)} s"
        )
    return cut.drop(columns=["order", "begin_ps", "end_ps"]), until


def _stays(rows: pd.DataFrame) -> pd.DataFrame:
    """Where a session is without a break: from its placement on a node to its end, its next pause or move."""
    on = rows[rows["phase"] != "pool wait"]  # who waits in the pool is on no node
    moved = (on[["session", "node"]] != on[["session", "node"]].shift()).any(axis=1)
    broken = on["begin_s"] > on["end_s"].shift()
    stay = on.groupby((moved | broken).cumsum())
    return stay.agg(
        session=("session", "first"),
        node=("node", "first"),
        begin_s=("begin_s", "first"),
        end_s=("end_s", "last"),
    )
