"""How cache credit falls with the age of what was seen: a curve per session, and where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from tao.charts import style
from tao.charts.style import DASHED, DOTTED, SOLID, Look

CREDIT_PLOT = 470, 230  # px
CREDIT_SIZE = 560, 330  # px of a card with the chart, its axes and its legend
MOST = 500  # rows
LEAST_TOKENS = 4_000  # the vertical axis does not shrink below that, or a lost credit would look like any
LOOKS = (
    Look(style.PALETTE["blue"], "circle", SOLID),
    Look(style.PALETTE["vermilion"], "square", DASHED),
    Look(style.PALETTE["purple"], "diamond", DOTTED),
)
FIELDS = "session", "x", "y", "words"
Point = tuple[str, float, int]


def credit_curves(curves: Sequence[Point], now: Sequence[Point], reach_s: float) -> alt.LayerChart:
    """Curves (session, seconds older, credit in tokens), and the points of `now`, up to `reach_s` seconds.

    The chart reads `credit_curves_value` from its parameter `credit`; it has a look for three sessions.

    >>> chart = credit_curves([("a", 0.0, 80), ("a", 10.0, 40)], [("a", 10.0, 40)], 10.0)
    >>> chart.to_dict()["params"][0]["value"]["now"][0]["words"]
    'a: credit 40 if its cache is 10 s older'
    """
    names = list(dict.fromkeys(name for name, _, _ in curves))
    looks = LOOKS[: len(names)]
    reach = alt.Scale(domain=[0, alt.ExprRef("credit.reach")], nice=False)
    most = alt.Scale(domain=[0, alt.ExprRef("credit.most")], nice=True)
    legend = alt.Legend(title=None, orient="bottom", symbolSize=90, symbolOpacity=1)
    hues = alt.Scale(domain=names, range=[look.color for look in looks])
    both = {
        "x": alt.X(
            "x:Q", title="seconds by which each cache is older", scale=reach, axis=alt.Axis(tickCount=6)
        ),
        "y": alt.Y("y:Q", title="cache credit, tokens", scale=most, axis=alt.Axis(tickCount=5)),
        "color": alt.Color("session:N", scale=hues, legend=legend),
    }
    dash = alt.StrokeDash(
        "session:N", scale=alt.Scale(domain=names, range=[look.dash for look in looks]), legend=None
    )
    shape = alt.Shape(
        "session:N", scale=alt.Scale(domain=names, range=[look.shape for look in looks]), legend=legend
    )
    lines = _rows("rows").mark_line(aria=False).encode(**both, strokeDash=dash)
    rule = _rows("now").mark_rule(color=style.INK, aria=False).encode(x=both["x"])
    points = (
        _rows("now")
        .mark_point(filled=True, size=120, opacity=1)
        .encode(**both, shape=shape, description="words:N", tooltip="words:N")
    )
    value = credit_curves_value(curves, now, reach_s)
    chart = alt.LayerChart(layer=[lines, rule, points]).add_params(alt.param(name="credit", value=value))
    return style.styled(
        chart,
        "Cache credit over the seconds by which the caches are older, a falling curve per session that has "
        "one. The vertical line is the age chosen, and the marks on it are the credit counted.",
    )


def credit_curves_value(curves: Sequence[Point], now: Sequence[Point], reach_s: float) -> dict[str, Any]:
    """The parameter of `credit_curves`: curves, present points with a sentence each, and the axis' end."""
    style.few_enough("credit_curves", len(curves))
    words = [f"{name}: credit {y:,} if its cache is {x:g} s older" for name, x, y in now]
    return {
        "rows": [dict(zip(FIELDS, (*point, ""), strict=True)) for point in curves],
        "now": [
            dict(zip(FIELDS, (*point, said), strict=True)) for point, said in zip(now, words, strict=True)
        ],
        "reach": reach_s,
        "most": max([LEAST_TOKENS, *(y for _, _, y in curves)]),
    }


def _rows(part: str) -> alt.Chart:
    width, height = CREDIT_PLOT
    return (
        alt.Chart(alt.sequence(0, MOST, as_="i"), width=width, height=height)
        .transform_filter(f"datum.i < length(credit.{part})")
        .transform_calculate(**{name: f"credit.{part}[datum.i].{name}" for name in FIELDS})
    )
