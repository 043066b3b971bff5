"""What every session did when: one lane each, from the turns of a run."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from tao import checks
from tao.charts import style
from tao.checks import InputError
from tao.history import History
from tao.profiles import PS_PER_S

EDGES = "arrived_ps", "submitted_ps", "scheduled_ps", "first_token_ps", "finished_ps", "tool_end_ps"
PHASES = {  # from one edge to the next: color, and height in px, the second cue
    "pool wait": (style.PALETTE["orange"], 8),
    "queue wait": (style.PALETTE["purple"], 8),
    "prefill": (style.PALETTE["sky"], 14),
    "decode": (style.PALETTE["green"], 14),
    "tool": (style.GREY, 4),
}
LANE = 28  # px
LETTER = 6  # px of one at 10 px, rounded up
LEAST = 0.25  # px of a phase that is drawn


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

    The line above a lane says on which node its session is; who waits in the pool is on none. Phases too
    short to see are left out of the picture, not of the table `phases`.

    >>> import tao
    >>> chart = swimlane(tao.simulate("swe-lite", "tao", nodes=1, workers=1, tasks=1), seconds=10)
    >>> chart.to_dict()["description"].partition(". ")[0]
    'Sessions of tao from 0 to 10 s: 1, on n0'
    """
    checks.at_least_zero(first, "first")
    checks.positive(seconds, "seconds")
    checks.whole(sessions, "sessions", 1)
    rows = _window(phases(history), first, first + seconds)
    lanes = list(dict.fromkeys(rows["session"]))[:sessions]
    rows = rows[rows["session"].isin(lanes)]
    end = max(rows["end_s"])
    pixels = style.WIDTH / (end - first)
    visible = rows[(rows["end_s"] - rows["begin_s"]) * pixels >= LEAST].round({"begin_s": 3, "end_s": 3})
    style.few_enough("swimlane", len(visible))
    scale = alt.Scale(domain=[first, end], nice=False)
    x = alt.X("begin_s:Q", title="seconds since the run began", scale=scale)
    y = alt.Y("session:N", sort=lanes, title=None, axis=alt.Axis(labelLimit=110, ticks=False, domain=False))
    base = alt.Chart(visible, width=style.WIDTH, height=alt.Step(LANE)).encode(
        x=x, x2="end_s:Q", y=y, tooltip=[f"{name}:N" for name in visible.columns]
    )
    stays = alt.Chart(_stays(rows)).encode(x=x, y=y)
    roomy = (alt.datum.end_s - alt.datum.begin_s) * pixels > LETTER * alt.expr.length(alt.datum.node) + 6
    layers = [
        *_bars(base),
        stays.mark_rule(yOffset=-9, color=style.LINE).encode(x2="end_s:Q"),
        *style.text(stays.transform_filter(roomy), "node", align="left", dx=4, dy=-9, fontSize=10),
    ]
    lasted = (rows["end_s"] - rows["begin_s"]).groupby(rows["phase"]).sum()
    spent = ", ".join(f"{name} {lasted.get(name, 0.0) / lasted.sum():.0%}" for name in PHASES)
    what = f"Sessions of {history.settings.get('policy')} from {style.number(first)} to {style.number(end)} s"
    return style.drawn(
        alt.LayerChart(layer=layers),
        what,
        "line above a lane: its node; bars: high where it computes, low where a tool runs",
        f"{what}: {len(lanes)}, on {', '.join(sorted(set(rows['node'])))}. Of their time: {spent}.",
    )


def _bars(base: alt.Chart) -> list[alt.Chart]:
    colors = [color for color, _ in PHASES.values()]
    legend = alt.Legend(title=None, orient="bottom", symbolType="square")
    color = alt.Color("phase:N", scale=alt.Scale(domain=list(PHASES), range=colors), legend=legend)
    bars = base.encode(color=color)
    return [
        bars.transform_filter(alt.datum.phase == name).mark_bar(yOffset=4, height=height)
        for name, (_, height) in PHASES.items()
    ]


def _window(rows: pd.DataFrame, first: float, last: float) -> pd.DataFrame:
    """The phases between two seconds, cut there, in the order in which their sessions came."""
    came = rows.groupby("session")["begin_ps"].transform("min")
    rows = rows.assign(came=came).sort_values(["came", "session", "begin_ps", "end_ps"], kind="stable")
    begin, end = rows.pop("begin_ps") / PS_PER_S, rows.pop("end_ps") / PS_PER_S
    cut = rows.drop(columns="came").assign(begin_s=begin.clip(lower=first), end_s=end.clip(upper=last))
    cut = cut[cut["begin_s"] < cut["end_s"]]
    if cut.empty:
        raise InputError(
            f"no session runs between {style.number(first)} and {style.number(last)} s; "
            f"the last turn ends at {style.number(end.max() if len(end) else 0.0)} s"
        )
    return cut


def _stays(rows: pd.DataFrame) -> pd.DataFrame:
    """Where a session is without a break: from its placement on a node to its end, next pause or move."""
    on = rows[rows["phase"] != "pool wait"]
    before = on.shift()
    moved = (on["session"] != before["session"]) | (on["node"] != before["node"])
    stays = on.groupby((moved | (on["begin_s"] > before["end_s"])).cumsum())
    return stays[["session", "node", "begin_s"]].first().assign(end_s=stays["end_s"].last())
