"""A live run as it goes on: each first token as it comes, and cache credit against what was cached."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tao.charts import style

MOST = 1_000  # ours: marks of a chart that is drawn while a run goes on; the latest ones
PLOT = 400, 190  # px
SIZE = 500, 330  # px of a card with such a chart, its title, axes and legend
MARGIN = 1.05  # of the axes beyond the outermost mark
LETTERS = 76  # of the small print, per line
FIELDS = "x", "y", "kind", "words"
FIRST, LATER = "first turn of a session", "later turn"
KEPT, LOST = "cached as estimated, or more", "cached less than estimated"
KINDS = {
    FIRST: (style.PALETTE["orange"], "circle"),
    LATER: (style.PALETTE["blue"], "square"),
    KEPT: (style.PALETTE["blue"], "square"),
    LOST: (style.PALETTE["vermilion"], "diamond"),
}


def first_tokens(rows: Sequence[Mapping[str, Any]], banner: str) -> alt.LayerChart:
    """Seconds until the first token, over the run's time: a mark per answer that has begun.

    `rows` as `Run.first_tokens` gives them; `banner` says on what servers. The chart reads
    `first_tokens_value` from its parameter `firsts`.

    >>> rows = [{"session": "a", "turn": 0, "node": "n0", "at_s": 2.0, "ttft_s": 0.5}]
    >>> first_tokens(rows, "SIMULATED: 2 nodes").to_dict()["params"][0]["value"]["rows"][0]["words"]
    'a, turn 0, on n0: first token at 2.00 s, after 0.50 s'
    """
    titles = "seconds since the run began", "time to first token, s"
    return _points("firsts", first_tokens_value(rows), titles, (FIRST, LATER), "First tokens", banner)


def first_tokens_value(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The parameter of `first_tokens`: the latest rows, and how far the axes reach."""
    return _value(
        [
            (
                row["at_s"],
                row["ttft_s"],
                LATER if row["turn"] else FIRST,
                f"{_turn(row)}: first token at {row['at_s']:.2f} s, after {row['ttft_s']:.2f} s",
            )
            for row in rows[-MOST:]
        ]
    )


def cache_credit(rows: Sequence[Mapping[str, Any]], banner: str) -> alt.LayerChart:
    """Tokens that a server had cached, over the credit estimated when the session was placed there.

    `rows`: session, turn, node, promised_tokens, hit_tokens, of turns that have both. The chart reads
    `cache_credit_value` from its parameter `credit`. On the dashed line both are the same.

    >>> rows = [{"session": "a", "turn": 1, "node": "n0", "promised_tokens": 90, "hit_tokens": 64}]
    >>> cache_credit(rows, "LIVE: 1 node").to_dict()["params"][0]["value"]["rows"][0]["kind"]
    'cached less than estimated'
    """
    titles = "cache credit estimated at placement, tokens", "cached, says the server, tokens"
    value, about = cache_credit_value(rows), "Cache credit against cached tokens"
    return _points("credit", value, titles, (KEPT, LOST), about, banner, diagonal=True)


def cache_credit_value(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The parameter of `cache_credit`: the latest rows, and how far both axes reach."""
    value = _value(
        [
            (
                row["promised_tokens"],
                row["hit_tokens"],
                KEPT if row["hit_tokens"] >= row["promised_tokens"] else LOST,
                f"{_turn(row)}: estimated {row['promised_tokens']:,}, cached {row['hit_tokens']:,} tokens",
            )
            for row in rows[-MOST:]
        ]
    )
    return value | dict.fromkeys(("x", "y"), max(value["x"], value["y"]))


def _turn(row: Mapping[str, Any]) -> str:
    return f"{row['session']}, turn {row['turn']}, on {row['node']}"


def _value(rows: Sequence[tuple[float, float, str, str]]) -> dict[str, Any]:
    found = [dict(zip(FIELDS, row, strict=True)) for row in rows]
    x, y = (max((float(row[k]) for row in rows), default=0.0) or 1.0 for k in (0, 1))
    return {"rows": found, "x": x, "y": y}


def _points(
    name: str,
    value: dict[str, Any],
    titles: tuple[str, str],
    kinds: tuple[str, str],
    about: str,
    banner: str,
    diagonal: bool = False,
) -> alt.LayerChart:
    """Marks from the parameter `name`; what they show, and on what servers, stands above them."""
    ends = [
        alt.Scale(domain=[0, alt.ExprRef(f"{MARGIN} * {name}.{axis}")], nice=False) for axis in ("x", "y")
    ]
    x, y = (
        alt.X("x:Q", title=titles[0], scale=ends[0], axis=alt.Axis(tickCount=6)),
        alt.Y("y:Q", title=titles[1], scale=ends[1], axis=alt.Axis(tickCount=5)),
    )
    colors, shapes = ([KINDS[kind][k] for kind in kinds] for k in (0, 1))
    legend = alt.Legend(title=None, orient="bottom", symbolSize=90, symbolOpacity=1)
    marks = (
        alt.Chart(alt.sequence(0, MOST, as_="i"), width=PLOT[0], height=PLOT[1])
        .transform_filter(f"datum.i < length({name}.rows)")
        .transform_calculate(**{field: f"{name}.rows[datum.i].{field}" for field in FIELDS})
        .mark_point(filled=True, size=55, opacity=0.75, clip=True)
        .encode(
            x=x,
            y=y,
            color=alt.Color("kind:N", legend=legend, scale=alt.Scale(domain=list(kinds), range=colors)),
            shape=alt.Shape("kind:N", legend=legend, scale=alt.Scale(domain=list(kinds), range=shapes)),
            tooltip="words:N",
            description="words:N",
        )
    )
    same = (
        alt.Chart(alt.sequence(0, 2, as_="i"))
        .transform_calculate(x=f"datum.i * {name}.x", y=f"datum.i * {name}.y")
        .mark_line(color=style.LINE, strokeDash=[4, 3], aria=False)
        .encode(x=x, y=y)
    )
    mode = banner.partition(":")[0]
    return style.drawn(
        alt.LayerChart(layer=[same, marks] if diagonal else [marks]).add_params(
            alt.param(name=name, value=value)
        ),
        f"{mode}: {about[0].lower()}{about[1:]}",
        textwrap.wrap(banner, LETTERS),
        f"{about}, {titles[1]} over {titles[0]}, {len(value['rows'])} marks. {banner}.",
    )
