"""What becomes of the placements of a plan while the plan is made and the world moves on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from tao.charts.style import INK, LINE, PALETTE, few_enough, styled

VALIDITY = {"holds": PALETTE["blue"], "void": PALETTE["vermilion"]}
WORLD, PLANNER = "the world", "the planner"
FATES = {"applied": "circle", "dropped": "cross"}
FIELDS = ("lane", "part", "begin", "end", "words", "note")
STALE_WIDTH, LANE_HEIGHT, MAX_ROWS = 470, 26, 120
_LABELS, _NOTES = 96, 104  # px, left and right of the lanes


def stale_plan(rows: pd.DataFrame, placements: Sequence[str]) -> alt.LayerChart:
    """A lane for the world, one for the planner, and one for each of the `placements`, over seconds.

    `rows` has columns `lane`, `part` ("event", "planning", "holds", "void", "applied", "dropped", "now"),
    `begin_s`, `end_s`, `words` and `note` (short, at the end of its lane). The chart reads
    `stale_plan_value` from its parameter `plan`.

    >>> columns = ["lane", "part", "begin_s", "end_s", "words", "note"]
    >>> rows = pd.DataFrame([("a to n0", "holds", 0.0, 1.0, "a to n0 holds", "")], columns=columns)
    >>> stale_plan(rows, ["a to n0"]).to_dict()["params"][0]["value"]["rows"][0]["words"]
    'a to n0 holds'
    """
    lanes = [WORLD, PLANNER, *placements]
    base = (
        alt.Chart(
            alt.sequence(0, MAX_ROWS, as_="i"), width=STALE_WIDTH + _NOTES, height=LANE_HEIGHT * len(lanes)
        )
        .transform_filter("datum.i < length(plan.rows)")
        .transform_calculate(**{name: f"plan.rows[datum.i].{name}" for name in FIELDS})
    )
    reach = alt.Scale(domain=[0, alt.ExprRef("plan.end")], range=[0, STALE_WIDTH], nice=False)
    axis = alt.Axis(ticks=False, domain=False, labelFontSize=12)
    ticks = alt.Axis(tickCount=10)
    x = alt.X("begin:Q", title="seconds since the plan was asked for", scale=reach, axis=ticks)
    y = alt.Y("lane:N", title=None, scale=alt.Scale(domain=lanes), axis=axis)
    at = base.encode(x=x, y=y, description="words:N", tooltip="words:N")
    shapes = alt.Scale(domain=list(FATES), range=list(FATES.values()))
    legend = alt.Legend(orient="bottom", title=None, direction="horizontal", offset=6)
    layers = [
        _only(at, "planning").mark_bar(height=8, color=LINE).encode(x2="end:Q"),
        _bars(at),
        _only(at, "event").mark_point(shape="diamond", filled=True, size=100, color=INK, opacity=1),
        _only(at, *FATES)
        .mark_point(filled=True, size=110, opacity=1, color=INK)
        .encode(shape=alt.Shape("part:N", scale=shapes, legend=legend)),
        base.transform_filter("datum.note != ''")
        .mark_text(align="left", fontSize=11, color=INK, x=STALE_WIDTH + 6, aria=False)
        .encode(y=y, text="note:N"),
        _only(base, "now").mark_rule(color=INK).encode(x=x, description="words:N"),
    ]
    chart = alt.LayerChart(layer=layers, title="what still holds of the plan, and from when on not")
    return styled(
        chart.add_params(alt.param(name="plan", value=stale_plan_value(rows))),
        "Time runs to the right. Above: what happens to the cluster, and how long the planner works. Below a "
        "lane per placement: bars while it holds or is void, and a mark where it is applied or dropped.",
    )


def stale_plan_size(placements: int) -> tuple[int, int]:
    """Width and height in px of a card that holds `stale_plan` with its title, axis and legend."""
    return STALE_WIDTH + _LABELS + _NOTES, LANE_HEIGHT * (placements + 2) + 92


def stale_plan_value(rows: pd.DataFrame) -> dict[str, Any]:
    """The parameter of `stale_plan`: rows in drawing order, and how far the axis reaches (seconds)."""
    few_enough("stale_plan", len(rows))
    plain = rows.rename(columns={"begin_s": "begin", "end_s": "end"})[list(FIELDS)]
    return {"rows": plain.to_dict("records"), "end": round(max([*plain["end"], 1.0]) * 1.03, 6)}


def _only(base: alt.Chart, *parts: str) -> alt.Chart:
    named: Any = alt.FieldOneOfPredicate(field="part", oneOf=list(parts))
    chart: alt.Chart = base.transform_filter(named)
    return chart


def _bars(at: alt.Chart) -> alt.Chart:
    legend = alt.Legend(orient="bottom", title=None, direction="horizontal", symbolType="square", offset=6)
    colors = alt.Scale(domain=list(VALIDITY), range=list(VALIDITY.values()))
    height = alt.when("datum.part == 'void'").then(alt.value(6)).otherwise(alt.value(14))
    chart: alt.Chart = _only(at, *VALIDITY).mark_bar()
    return chart.encode(
        x2="end:Q", size=height, color=alt.Color("part:N", scale=colors, legend=legend), order="i:Q"
    )
