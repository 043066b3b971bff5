"""What each node holds, and how a plan fills the room that was left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import altair as alt
import pandas as pd

from tao.charts.style import GREY, INK, LINE, PALETTE, few_enough, styled

LABEL_WIDTH, WHOLE_WIDTH, ROOM_WIDTH, FREE_WIDTH = 84, 170, 440, 92  # px
NODE_HEIGHT = 46  # px
CHARACTER = 6.7  # px of one bold character of Arial at 12 px, rounded up

HELD, WARM, COLD, FREE = "held by residents", "admitted with cache credit", "admitted without", "free"
OVER = "does not fit"
PARTS = {HELD: GREY, WARM: PALETTE["blue"], COLD: PALETTE["orange"], FREE: "white"}
OVER_FILL = "#F9DCC8"  # a tint of vermilion, which is its outline
FIELDS = (
    *("node", "capacity", "slot", "part", "label", "note", "whole0", "whole1", "room0", "room1"),
    *("limit", "left", "words"),
)


def node_bars(
    bars: pd.DataFrame, nodes: int = 1, max_rows: int = 0, overflow: bool = False
) -> alt.HConcatChart:
    """What each node holds, and how a plan fills the room that was left: one bar per node, in two views.

    `bars` has one row per segment in drawing order: `node`, `capacity_tokens`, `part` (resident, admitted,
    over or free; one free row per node), `label`, `tokens`, `credit` (tokens; of an admitted session). The
    chart reads `node_bars_value` from its parameter `bars`; `nodes` and `max_rows` leave space for later
    updates. With `overflow` it marks where each node ends and what does not fit.

    >>> columns = ["node", "capacity_tokens", "part", "label", "tokens", "credit"]
    >>> rows = [("n0", 100, "admitted", "a", 60, 9), ("n0", 100, "free", "", 40, 0)]
    >>> chart = node_bars(pd.DataFrame(rows, columns=columns))
    >>> chart.to_dict()["params"][0]["value"]["rows"][0]["words"]
    'n0: a admitted, 60 tokens, cache credit 9'
    """
    max_rows = few_enough("node_bars", max(max_rows, len(bars)))
    nodes = max(nodes, bars["node"].nunique())
    slots = alt.Scale(type="band", domain=list(range(nodes)), paddingInner=0.3, paddingOuter=0.1)
    base = (
        alt.Chart(alt.sequence(0, max_rows, as_="i"), height=NODE_HEIGHT * nodes)
        .transform_filter("datum.i < length(bars.rows)")
        .transform_calculate(**{name: f"bars.rows[datum.i].{name}" for name in FIELDS})
        .encode(y=alt.Y("slot:O", axis=None, scale=slots), order="i:Q")  # so that updates keep reading order
    )
    parts = PARTS | ({OVER: OVER_FILL} if overflow else {})
    views = alt.hconcat(_names(base), _whole(base, parts), _room(base, parts), _left(base), spacing=10)
    return styled(
        views.add_params(alt.param(name="bars", value=node_bars_value(bars))),
        "Two bars per node. Left: the whole node, with what residents hold, what the plan admits and what "
        "stays free. Right: only the room left for the waiting pool, one segment per admitted session."
        + " A thick line marks its end; what lies beyond does not fit."
        * overflow,
    )


def node_bars_size(nodes: int) -> tuple[int, int]:
    """Width and height in px of a card that holds `node_bars` with its title, axis and legend."""
    return LABEL_WIDTH + WHOLE_WIDTH + ROOM_WIDTH + FREE_WIDTH + 58, NODE_HEIGHT * nodes + 84


def node_bars_value(bars: pd.DataFrame) -> dict[str, Any]:
    """The parameter of `node_bars`: positions in tokens, texts that fit, and how far each view reaches."""
    room = max(bars[bars["part"] != "resident"].groupby("node")["tokens"].sum(), default=0) or 1
    whole = max(bars.groupby("node")["tokens"].sum(), default=0) or 1
    slots = {node: slot for slot, node in enumerate(bars["node"].unique())}
    ends = dict.fromkeys(slots, (0, 0))
    rows = []
    for row in bars.to_dict("records"):
        node, tokens, resident = row["node"], row["tokens"], row["part"] == "resident"
        whole0, room0 = ends[node]
        whole1, room1 = ends[node] = whole0 + tokens, room0 + (0 if resident else tokens)
        places = {"whole0": whole0, "whole1": whole1, "room0": room0, "room1": room1}
        limit = max(row["capacity_tokens"] - whole1 + room1, 0)  # where the right view has the node's end
        over = max(whole1 - row["capacity_tokens"], 0)
        width = tokens * (WHOLE_WIDTH / whole if resident else ROOM_WIDTH / room)
        left = f"{over:,} over" if over else f"{tokens:,} free"
        own = {"node": node, "slot": slots[node], "limit": limit, "left": left}
        rows.append(own | places | _texts(row, width, over))
    return {"rows": rows, "room": int(room), "whole": int(whole)}


def _texts(row: Mapping[Any, Any], width: float, over: int = 0) -> dict[str, str]:
    """The kind of a segment, its two lines within `width` px, and a sentence for screen readers."""
    node, label, tokens, credit = row["node"], row["label"], f"{row['tokens']:,}", f"{row['credit']:,}"
    if row["part"] == "free":
        part, label, note, words = FREE, "", "", f"{node}: {tokens} tokens stay free"
        if over:
            words = f"{node}: overflows by {over:,} tokens"
    elif row["part"] == "resident":
        part, words = HELD, f"{node}: {tokens} tokens held by {label}"
        label, note = _first_that_fits(width, label, label.split(" ")[0]), _first_that_fits(width, tokens)
    else:
        part = OVER if row["part"] == "over" else WARM if row["credit"] else COLD
        verb = OVER if part == OVER else "admitted"
        words = f"{node}: {label} {verb}, {tokens} tokens, cache credit {credit}"
        label = _first_that_fits(width, label, *("…" + label[-k:] for k in range(len(label) - 1, 2, -1)))
        note = _first_that_fits(width, f"credit {credit}", credit) if label else ""
    capacity = f"{row['capacity_tokens']:,}"
    return {"part": part, "capacity": capacity, "label": label, "note": note, "words": words}


def _first_that_fits(width: float, *texts: str) -> str:
    return next((text for text in texts if len(text) * CHARACTER + 4 <= width), "")


def _names(base: alt.Chart) -> alt.LayerChart:
    rows = base.transform_filter(f"datum.part == '{FREE}'").encode(x=alt.value(LABEL_WIDTH - 4))
    style: dict[str, Any] = {"align": "right", "limit": LABEL_WIDTH - 8}
    lines = [_text(rows, "node", "bold", -7, **style), _text(rows, "capacity", "normal", 8, **style)]
    return alt.LayerChart(layer=lines, width=LABEL_WIDTH)


def _whole(base: alt.Chart, parts: Mapping[str, str]) -> alt.LayerChart:
    layers = _bars(base, "whole", WHOLE_WIDTH, 0.3, parts)
    texts = _inside(base.transform_filter(f"datum.part == '{HELD}'"), "whole")
    return alt.LayerChart(layer=[*layers, *texts], width=WHOLE_WIDTH, title="the whole node, tokens")


def _room(base: alt.Chart, parts: Mapping[str, str]) -> alt.LayerChart:
    base = base.transform_filter(f"datum.part != '{HELD}'")
    layers = _bars(base, "room", ROOM_WIDTH, 1.5, parts)
    title = "the room left for the waiting pool, and who gets it, tokens"
    ends = []
    if OVER in parts:
        rows = base.transform_filter(f"datum.part == '{FREE}'").encode(x="limit:Q")
        ends = [rows.mark_tick(color=INK, thickness=3, size=NODE_HEIGHT - 4, aria=False)]
    return alt.LayerChart(layer=[*layers, *ends, *_inside(base, "room")], width=ROOM_WIDTH, title=title)


def _left(base: alt.Chart) -> alt.LayerChart:
    rows = base.transform_filter(f"datum.part == '{FREE}'")
    return alt.LayerChart(layer=[_text(rows, "left", "normal", 0, align="left", x=0)], width=FREE_WIDTH)


def _bars(base: alt.Chart, view: str, width: int, gap: float, colors: Mapping[str, str]) -> list[alt.Chart]:
    """The segments of one view from `{view}0` to `{view}1`; free room as a dashed outline."""
    ticks = "datum.value ? format(datum.value, '~s') : '0'"
    axis = alt.Axis(title=None, labelExpr=ticks, tickCount=width // 60, grid=False, labelFlush=True)
    legend = alt.Legend(orient="bottom", title=None, direction="horizontal", symbolType="square", offset=6)
    reach = alt.Scale(domain=[0, alt.ExprRef(f"bars.{view}")], nice=False)
    parts = alt.Scale(domain=list(colors), range=list(colors.values()))
    both = base.encode(
        x=alt.X(f"{view}0:Q", axis=axis, scale=reach),
        x2=f"{view}1:Q",
        description="words:N",
        tooltip="words:N",
    )
    filled = both.mark_bar(stroke="white", strokeWidth=gap).transform_filter(f"datum.part != '{FREE}'")
    if OVER in colors:
        outline = alt.when(f"datum.part == '{OVER}'").then(alt.value(PALETTE["vermilion"]))
        filled = filled.encode(stroke=outline.otherwise(alt.value("white")))
    free = both.mark_bar(fill="white", stroke=LINE, strokeDash=[4, 3]).transform_filter(
        f"datum.part == '{FREE}'"
    )
    return [filled.encode(color=alt.Color("part:N", scale=parts, legend=legend)), free]


def _inside(base: alt.Chart, view: str) -> list[alt.Chart]:
    middle = base.transform_calculate(middle=f"(datum.{view}0 + datum.{view}1) / 2").encode(x="middle:Q")
    return [_text(middle, "label", "bold", -7), _text(middle, "note", "normal", 8)]


def _text(base: alt.Chart, field: str, weight: Literal["bold", "normal"], dy: int, **style: Any) -> alt.Chart:
    ink = alt.when(f"datum.part == '{WARM}'").then(alt.value("white")).otherwise(alt.value(INK))
    marks: alt.Chart = base.mark_text(dy=dy, fontWeight=weight, aria=False, **style)
    return marks.encode(text=f"{field}:N", color=ink)
