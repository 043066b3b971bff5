"""The life of one tool call: which evidence was in force when, and when the call counted as ready."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from tao.charts.style import INK, LINE, PALETTE, few_enough, styled

LANES = ("deadline", "sleep", "history", "fallback", "ready")
PARTS = {"in force": PALETTE["blue"], "ready": PALETTE["green"], "ready as a probe": PALETTE["orange"]}
FIELDS = ("lane", "part", "begin", "end", "when", "words")
MAX_ROWS = 80  # four kinds of evidence, at most five changes each, and what they make ready
LIFE_WIDTH, LANE_HEIGHT = 580, 32  # px
LIFE_SIZE = LIFE_WIDTH + 78, LANE_HEIGHT * len(LANES) + 104  # px of a card with axis, title and legend


def call_life(rows: pd.DataFrame) -> alt.LayerChart:
    """One lane per kind of evidence and one for the ready bit; what is still to come is pale.

    `rows` has columns `lane`, `part` ("valid", "due", "none", "in force", "ready", "ready as a probe",
    "now", "back"), `begin_s`, `end_s`, `when` ("past", "now" or "later") and `words`. The chart reads
    `call_life_value` from its parameter `life`.

    >>> columns = ["lane", "part", "begin_s", "end_s", "when", "words"]
    >>> chart = call_life(pd.DataFrame([("sleep", "in force", 0.0, 4.0, "now", "sleep")], columns=columns))
    >>> chart.to_dict()["params"][0]["value"]["end"]
    4.2
    """
    base = (
        alt.Chart(alt.sequence(0, MAX_ROWS, as_="i"), width=LIFE_WIDTH, height=LANE_HEIGHT * len(LANES))
        .transform_filter("datum.i < length(life.rows)")
        .transform_calculate(**{name: f"life.rows[datum.i].{name}" for name in FIELDS})
    )
    reach = alt.Scale(domain=[0, alt.ExprRef("life.end")], nice=False)
    axis = alt.Axis(ticks=False, domain=False, labelFontSize=12)
    x = alt.X("begin:Q", title="seconds since the call began", scale=reach)
    y = alt.Y("lane:N", title=None, scale=alt.Scale(domain=list(LANES)), axis=axis)
    lanes = base.encode(x=x, y=y)
    layers = [
        _only(lanes, "valid").mark_rule(color=LINE, strokeDash=[2, 3], aria=False).encode(x2="end:Q"),
        _spans(lanes),
        _only(lanes, "due")
        .mark_point(shape="diamond", filled=True, size=90, color=INK, opacity=1)
        .encode(description="words:N", tooltip="words:N"),
        _only(base, "none").mark_text(color=LINE, align="left", x=6, text="no such evidence").encode(y=y),
        *_moment(base.encode(x=x), "now", [1, 0], "right", -5),
        *_moment(base.encode(x=x), "back", [6, 3], "left", 5),
    ]
    chart = alt.LayerChart(layer=layers, title="what is expected of one call, and whether it counts as ready")
    return styled(
        chart.add_params(alt.param(name="life", value=call_life_value(rows))),
        "Time runs to the right. A lane per kind of evidence: a diamond where it expects the return, a "
        "dotted line as long as it is valid, a bar while it is in force. The lowest lane: when the call "
        "counts as ready. Lines across mark the moment looked at and the return.",
    )


def call_life_value(rows: pd.DataFrame) -> dict[str, Any]:
    """The parameter of `call_life`: rows in drawing order, and how far the axis reaches (seconds)."""
    few_enough("call_life", len(rows))
    plain = rows.rename(columns={"begin_s": "begin", "end_s": "end"})[list(FIELDS)]
    end = max(plain.loc[plain["part"] != "valid", "end"], default=1.0)
    return {"rows": plain.to_dict("records"), "end": round(1.05 * float(end), 6)}


def _only(base: alt.Chart, part: str) -> alt.Chart:
    chart: alt.Chart = base.transform_filter(f"datum.part == '{part}'")
    return chart


def _spans(lanes: alt.Chart) -> alt.Chart:
    legend = alt.Legend(orient="bottom", title=None, direction="horizontal", symbolType="square", offset=6)
    colors = alt.Scale(domain=list(PARTS), range=list(PARTS.values()))
    named: Any = alt.FieldOneOfPredicate(field="part", oneOf=list(PARTS))
    pale = alt.when("datum.when == 'later'").then(alt.value(0.25)).otherwise(alt.value(1))
    edge = alt.when("datum.when == 'now'").then(alt.value(INK)).otherwise(alt.value("white"))
    chart: alt.Chart = lanes.transform_filter(named).mark_bar(height=16, clip=True)
    return chart.encode(
        x2="end:Q",
        color=alt.Color("part:N", scale=colors, legend=legend),
        opacity=pale,
        stroke=edge,
        description="words:N",
        tooltip="words:N",
        order="i:Q",
    )


def _moment(base: alt.Chart, part: str, dash: list[int], align: Any, dx: int) -> list[alt.Chart]:
    """A line across all lanes with its name above."""
    rows = _only(base, part)
    line = rows.mark_rule(color=INK, strokeWidth=1.5, strokeDash=dash).encode(description="words:N")
    text = rows.mark_text(align=align, dx=dx, y=-7, fontSize=11, color=INK, text=part, aria=False)
    return [line, text]
