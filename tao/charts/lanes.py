"""What every session did when: one lane each, from the turns of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from tao import checks
from tao.charts import style
from tao.checks import InputError
from tao.history import History
from tao.profiles import PS_PER_S
from tao.timeline import Span

EDGES = "arrived_ps", "submitted_ps", "scheduled_ps", "first_token_ps", "finished_ps", "tool_end_ps"
PHASES = {  # from one edge to the next: color, and height in px, the second cue
    "pool wait": (style.PALETTE["orange"], 8),
    "queue wait": (style.PALETTE["purple"], 8),
    "prefill": (style.PALETTE["sky"], 14),
    "decode": (style.PALETTE["green"], 14),
    "tool": (style.GREY, 4),
}
DOING = {  # the same in the words of the glossary
    "waiting": PHASES["pool wait"],
    "reasoning": PHASES["decode"],
    "tool": PHASES["tool"],
}
STEPPED = 600, 256  # px of the plot of `stepped_lanes`
STEPPED_SIZE = 664, 352  # px of a card with it, its axes and its legend
FIELDS = "session", "phase", "begin_s", "end_s", "thick", "words"
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


def stepped_lanes(
    spans: Sequence[Span], sessions: Sequence[str], now_s: float, end_s: float
) -> alt.LayerChart:
    """Lanes of `sessions` up to `now_s` of a run of `end_s` seconds: waiting, reasoning, with a tool.

    `spans` as `tao.timeline.until` gives them. The chart reads `stepped_lanes_value` from its parameter
    `lanes`, so that a panel can step through a run, or take another one, without drawing it again.

    >>> spans = [Span("s1", 0, "reasoning", 0, 2 * PS_PER_S, 90)]
    >>> chart = stepped_lanes(spans, ["s1"], 2.0, 9.0)
    >>> chart.to_dict()["params"][0]["value"]["rows"][0]["words"]
    's1, turn 1: reasoning from 0.00 to 2.00 s'
    """
    scale = alt.Scale(domain=[0, alt.ExprRef("lanes.end")], nice=False)
    x = alt.X("begin_s:Q", title="seconds since the run began", scale=scale, axis=alt.Axis(tickCount=8))
    names = alt.Scale(domain=alt.ExprRef("lanes.sessions"), type="band")
    axis = alt.Axis(labelLimit=60, labelFontSize=12, ticks=False, domain=False)
    width, height = STEPPED
    base = (
        alt.Chart(alt.sequence(0, style.MAX_ROWS, as_="i"), width=width, height=height)
        .transform_filter("datum.i < length(lanes.rows)")
        .transform_calculate(**{name: f"lanes.rows[datum.i].{name}" for name in FIELDS})
    )
    bars = base.mark_bar().encode(
        x=x,
        x2="end_s:Q",
        y=alt.Y("session:N", title=None, scale=names, axis=axis),
        color=_colors(DOING),
        size=alt.Size("thick:Q", scale=None),  # one layer, so that none is ever empty
        description="words:N",
        tooltip="words:N",
        order="i:Q",
    )
    now = alt.Chart(alt.sequence(0, 1, as_="i")).transform_calculate(now="lanes.now")
    rule = now.mark_rule(color=style.INK, strokeWidth=1.5, aria=False).encode(x="now:Q")
    value = stepped_lanes_value(spans, sessions, now_s, end_s)
    return style.styled(
        alt.LayerChart(layer=[bars, rule]).add_params(alt.param(name="lanes", value=value)),
        "One lane per session over the seconds of a run, up to the vertical line, which is now. Bars: high "
        "where the model works for it, middle where it waits, low where a tool runs.",
    )


def stepped_lanes_value(
    spans: Sequence[Span], sessions: Sequence[str], now_s: float, end_s: float
) -> dict[str, Any]:
    """The parameter of `stepped_lanes`: bars with a sentence each, the lanes, now, and the run's end."""
    style.few_enough("stepped_lanes", len(spans))
    rows = []
    for span in spans:
        begin, end = round(span.begin_ps / PS_PER_S, 3), round(span.end_ps / PS_PER_S, 3)
        words = f"{span.session}, turn {span.turn + 1}: {span.phase} from {begin:.2f} to {end:.2f} s"
        row = span.session, span.phase, begin, end, DOING[span.phase][1], words
        rows.append(dict(zip(FIELDS, row, strict=True)))
    return {"rows": rows, "sessions": list(sessions), "now": round(now_s, 3), "end": round(end_s, 3)}


def _bars(base: alt.Chart) -> list[alt.Chart]:
    bars = base.encode(color=_colors(PHASES))
    return [
        bars.transform_filter(alt.datum.phase == name).mark_bar(yOffset=4, height=height)
        for name, (_, height) in PHASES.items()
    ]


def _colors(looks: dict[str, tuple[str, int]]) -> alt.Color:
    scale = alt.Scale(domain=list(looks), range=[color for color, _ in looks.values()])
    legend = alt.Legend(title=None, orient="bottom", symbolType="square", symbolSize=100)
    return alt.Color("phase:N", scale=scale, legend=legend)


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
