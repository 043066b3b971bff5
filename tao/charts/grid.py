"""The table of the dynamic program: a column of cells per session, the cell in work and those it reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from tao.charts.style import INK, LINE, MAX_ROWS, PALETTE, checked, drawn

PLOT = 780, 210  # px
GRID_SIZE = PLOT[0] + 60, PLOT[1] + 118  # px of a card that holds it, with title and legend
MOST_MARKS, MOST_COLUMNS = 40, 13
GAP, WIDEST = 14, 200  # px between two columns, and of one
BACK, OPEN, DONE = "#F5F6F7", "#D3D8DC", "#8F969D"
NOW, READ, PATH = "cell in work", "cell it reads", "the plan"
LOOKS = {
    NOW: (PALETTE["blue"], "circle"),
    READ: (PALETTE["orange"], "diamond"),
    PATH: (PALETTE["green"], "square"),
}


def dp_grid(
    cells: pd.DataFrame, marks: pd.DataFrame, columns: Sequence[str], nodes: Sequence[str]
) -> alt.LayerChart:
    """The cells of a DP table, column by column, and marks on some of them.

    `cells` has one row per cell in the order of computation: `column`, `left0`, `left1` (quanta left on the
    first and second node) and `done`. `marks`: the same without `done`, with `kind` (one of `LOOKS`),
    `words` and `to` (the row of `marks` that a line leads to, -1: none). `columns` are their titles, `nodes`
    one or two names. The chart reads `dp_grid_value` from its parameter `grid`. At most 5,000 cells.
    """
    value = dp_grid_value(cells, marks, columns)
    layers = [*_columns(), _cells(), *_marks()]
    chart = alt.LayerChart(layer=layers, width=PLOT[0], height=PLOT[1]).add_params(
        alt.param(name="grid", value=value)
    )
    up = f", upwards the room on {nodes[1]}" if len(nodes) > 1 else ""
    explained = [
        "A column per session, in order of id; it decides on the room that those before it have left.",
        f"In a column: to the right the room left on {nodes[0]}{up}. Dark cells are computed.",
    ]
    description = (
        "The table of the dynamic program: a column of cells per session. Marked are the cell in work, the "
        "cells of the next column that it reads, and at the end the cells of the plan."
    )
    return drawn(chart, "The best value for each room that can be left", explained, description)


def dp_grid_value(cells: pd.DataFrame, marks: pd.DataFrame, columns: Sequence[str]) -> dict[str, Any]:
    """The parameter of `dp_grid`: all positions in px."""
    frame = checked("dp_grid", cells, ("done",), ("column", "left0", "left1"))
    width = min(WIDEST, (PLOT[0] - GAP * len(columns)) / len(columns))
    steps = int(frame["left0"].max()) + 1, int(frame["left1"].max()) + 1
    w, h = width / steps[0], PLOT[1] / steps[1]

    def place(rows: pd.DataFrame) -> tuple[list[float], list[float]]:
        x = rows["column"] * (width + GAP) + rows["left0"] * w
        return x.round(1).tolist(), (PLOT[1] - (rows["left1"] + 1) * h).round(1).tolist()

    x, y = place(frame)
    mx, my = place(marks)
    found = [
        {"x": mx[k] + w / 2, "y": my[k] + h / 2, "kind": row["kind"], "words": row["words"]}
        | {"x2": mx[row["to"]] + w / 2, "y2": my[row["to"]] + h / 2, "line": bool(row["to"] >= 0)}
        for k, row in enumerate(marks.to_dict("records"))
    ]
    titles = [{"x": k * (width + GAP), "title": title} for k, title in enumerate(columns)]
    edge = min(w, h) >= 5  # thin lines between cells that are large enough
    places = {"x": x, "y": y, "done": frame["done"].astype(int).tolist(), "w": w - edge, "h": h - edge}
    return places | {"marks": found, "titles": titles, "width": width}


def _x(field: str) -> alt.X:
    return alt.X(f"{field}:Q", axis=None, scale=alt.Scale(domain=[0, PLOT[0]], nice=False))


def _y(field: str) -> alt.Y:
    return alt.Y(f"{field}:Q", axis=None, scale=alt.Scale(domain=[PLOT[1], 0], nice=False))


def _cells() -> alt.Chart:
    rows = alt.Chart(alt.sequence(0, MAX_ROWS, as_="i")).transform_filter("datum.i < length(grid.x)")
    rows = rows.transform_calculate(
        x="grid.x[datum.i]", y="grid.y[datum.i]", xx="datum.x + grid.w", yy="datum.y + grid.h"
    )
    shade: Any = alt.when("grid.done[datum.i]").then(alt.value(DONE)).otherwise(alt.value(OPEN))
    cells: alt.Chart = rows.mark_rect(aria=False).encode(
        x=_x("x"), y=_y("y"), x2="xx:Q", y2="yy:Q", fill=shade
    )
    return cells


def _columns() -> list[alt.Chart]:
    rows = alt.Chart(alt.sequence(0, MOST_COLUMNS, as_="i")).transform_filter("datum.i < length(grid.titles)")
    rows = rows.transform_calculate(
        x="grid.titles[datum.i].x", xx="datum.x + grid.width", title="grid.titles[datum.i].title"
    )
    style: dict[str, Any] = {"align": "left", "baseline": "top", "color": INK, "fontSize": 11, "aria": False}
    return [
        rows.mark_rect(fill=BACK, aria=False).encode(x=_x("x"), x2="xx:Q"),
        rows.mark_text(dy=5, **style).encode(x=_x("x"), y=alt.value(PLOT[1]), text="title:N"),
    ]


def _marks() -> list[alt.Chart]:
    rows = alt.Chart(alt.sequence(0, MOST_MARKS, as_="i")).transform_filter("datum.i < length(grid.marks)")
    names = ("x", "y", "x2", "y2", "kind", "words", "line")
    rows = rows.transform_calculate(**{name: f"grid.marks[datum.i].{name}" for name in names})
    places = {"x": _x("x"), "y": _y("y")}
    lines = rows.transform_filter("datum.line").mark_rule(color=LINE, strokeWidth=1.5, aria=False)
    colors, shapes = map(list, zip(*LOOKS.values(), strict=True))
    legend = alt.Legend(orient="bottom", title=None, direction="horizontal", offset=26, symbolSize=90)
    look = {
        "fill": alt.Fill("kind:N", scale=alt.Scale(domain=list(LOOKS), range=colors), legend=legend),
        "shape": alt.Shape("kind:N", scale=alt.Scale(domain=list(LOOKS), range=shapes), legend=legend),
    }
    points = rows.mark_point(size=110, stroke="white", strokeWidth=1.5, opacity=1)
    words: dict[str, Any] = {"description": "words:N", "tooltip": "words:N", "order": "i:Q"}
    return [lines.encode(**places, x2="x2:Q", y2="y2:Q"), points.encode(**places, **look, **words)]
