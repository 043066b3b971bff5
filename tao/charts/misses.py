"""Which planner misses the optimum on which snapshot, and how far the search of `dp` had to go."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from tao.charts import style

CELL, ROW, STRIP, LABELS, COUNTS = 14, 24, 84, 88, 70  # px
MOST_STATES = 400_000  # ours: the axis ends above the default budget
AS_GOOD, ONLY_REST, LESS, UNPROVEN = (
    *("as good as the optimum", "less readiness or tokens only"),
    *("less credit (larger: a larger share)", "optimum not proven"),
)
KINDS = {
    AS_GOOD: (style.GREY, "circle"),
    ONLY_REST: (style.PALETTE["orange"], "triangle-up"),
    LESS: (style.PALETTE["vermilion"], "square"),
    UNPROVEN: (style.INK, "cross"),
}
FIELDS = "n", "planner", "kind", "size", "words"
COUNTED = "planner", "words"
SEARCHED = "n", "states", "over", "words"


def misses(
    table: pd.DataFrame, budget: int, chosen: int = 1, *, label: str = "recomputed"
) -> alt.VConcatChart:
    """A mark per planner and snapshot: as good as the optimum or not; below, the states of dp's search.

    `table` has the rows of `tao.quality.misses`, planner `dp` among them; `budget` is dp's, in states, and
    `chosen` the snapshot to point at. The chart reads `misses_value` from its parameter `misses`, which may
    have other rows for the same planners and number of snapshots; `label` as for `charts.rounding_loss`, or
    "" where the rows may change.

    >>> from tao import load, quality
    >>> chart = misses(quality.misses([load("dp_beats_short_first")]), 200_000)
    >>> chart.to_dict()["params"][0]["value"]["rows"][1]["words"]
    'short_first on snapshot 1: 3,167 of 16,791 tokens of credit less than the optimum'
    """
    style.few_enough("misses", len(table))
    count, names = int(table["snapshot"].max()), list(dict.fromkeys(table["planner"]))
    what = "Each planner on each snapshot, against the optimum"
    value = alt.param(name="misses", value=misses_value(table, budget, chosen))
    views = alt.vconcat(_grid(names, count), _strip(count), spacing=8).add_params(value)
    return style.drawn(
        views,
        what,
        f"{label}{'; ' * bool(label)}below: states that dp's search opened, and its budget (dashed)",
        f"{what}: one mark per planner and snapshot, with the number of misses at the right. Below, the "
        "states of dp's search on each snapshot, on a logarithmic axis, and the budget.",
    )


def misses_size(planners: int, snapshots: int) -> tuple[int, int]:
    """Width and height in px of a card that holds `misses` with its title, axes and legend."""
    return LABELS + CELL * snapshots + COUNTS + 48, ROW * planners + STRIP + 168


def misses_value(table: pd.DataFrame, budget: int, chosen: int = 1) -> dict[str, Any]:
    """The parameter of `misses`: marks with their words, counts, and the states of dp's search."""
    rows = [_mark(row) for row in table.to_dict("records")]
    counts = [
        {"planner": name, "words": f"{int(of['below'].sum())} of {len(of)}"}
        for name, of in table.groupby("planner", sort=False)
    ]
    searched = [_searched(row, budget) for row in table[table["planner"] == "dp"].to_dict("records")]
    return {"rows": rows, "counts": counts, "states": searched, "budget": budget, "chosen": chosen}


def _mark(row: dict[Any, Any]) -> dict[str, Any]:
    credit, where = row["credit"], f"{row['planner']} on snapshot {row['snapshot']}"
    share = credit / row["most"] if row["most"] else 0.0
    if not row["below"]:
        kind, words = (AS_GOOD, "as good as the optimum") if row["proven"] else (UNPROVEN, "not proven")
    elif credit > 0:
        kind = LESS
        words = f"{credit:,} of {row['most']:,} tokens of credit less than the optimum"
    else:
        part = "ready" if row["ready"] else "tokens"
        kind, words = ONLY_REST, f"as much credit as the optimum, {row[part]:,} {part} less"
    size = 24 if kind == AS_GOOD else 60 if kind != LESS else 45 + 130 * min(share, 1.0)
    found = row["snapshot"], row["planner"], kind, round(size), f"{where}: {words}"
    return dict(zip(FIELDS, found, strict=True))


def _searched(row: dict[Any, Any], budget: int) -> dict[str, Any]:
    over = row["placed_by"] != "dp"
    states = f"{row['states']:,} state{'' if row['states'] == 1 else 's'}"
    words = f"more than {budget:,}, so {row['placed_by']} placed" if over else states
    found = row["snapshot"], max(row["states"], 1), over, f"dp on snapshot {row['snapshot']}: {words}"
    return dict(zip(SEARCHED, found, strict=True))


def _rows(length: int, of: str, fields: tuple[str, ...]) -> alt.Chart:
    """The rows `of` the parameter, at most `length`, with their fields."""
    found: alt.Chart = (
        alt.Chart(alt.sequence(0, length, as_="i"))
        .transform_filter(f"datum.i < length(misses.{of})")
        .transform_calculate(**{name: f"misses.{of}[datum.i].{name}" for name in fields})
    )
    return found


def _at(count: int, axis: alt.Axis | None) -> alt.X:
    return alt.X("n:O", scale=alt.Scale(domain=list(range(1, count + 1))), axis=axis, title="snapshot")


def _pointer(count: int, axis: alt.Axis | None) -> alt.Chart:
    """A light band behind the snapshot chosen."""
    at = alt.Chart(alt.sequence(0, 1, as_="i")).transform_calculate(n="misses.chosen")
    band: alt.Chart = at.mark_rect(color=style.PALETTE["sky"], opacity=0.35, aria=False).encode(
        x=_at(count, axis)
    )
    return band


def _grid(names: list[str], count: int) -> alt.LayerChart:
    labels = alt.Axis(
        ticks=False, domain=False, minExtent=LABELS, maxExtent=LABELS, labelFontSize=12, labelLimit=LABELS
    )
    y = alt.Y("planner:N", scale=alt.Scale(domain=names), axis=labels, title=None)
    colors, shapes = ([KINDS[kind][k] for kind in KINDS] for k in (0, 1))
    legend = alt.Legend(title=None, orient="top", columns=2, symbolSize=70, symbolStrokeWidth=0)
    marks = _rows(len(names) * count, "rows", FIELDS).mark_point(filled=True, opacity=1)
    dots = marks.encode(
        x=_at(count, None),
        y=y,
        size=alt.Size("size:Q", scale=None, legend=None),
        color=alt.Color("kind:N", scale=alt.Scale(domain=list(KINDS), range=colors), legend=legend),
        shape=alt.Shape("kind:N", scale=alt.Scale(domain=list(KINDS), range=shapes), legend=legend),
        description="words:N",
        tooltip="words:N",
    )
    counts = _rows(len(names), "counts", COUNTED).mark_text(align="left", color=style.INK, aria=False)
    right = counts.encode(x=alt.value(CELL * count + 8), y=y, text="words:N")
    return alt.LayerChart(
        layer=[_pointer(count, None), dots, right], width=CELL * count, height=ROW * len(names)
    )


def _strip(count: int) -> alt.LayerChart:
    scale = alt.Scale(type="log", domain=[0.7, MOST_STATES], nice=False)
    axis = alt.Axis(values=[1, 100, 10_000], format=",", minExtent=LABELS, maxExtent=LABELS, titlePadding=-40)
    y = alt.Y("states:Q", scale=scale, axis=axis, title="dp's states")
    every = alt.Axis(labelExpr="datum.value % 5 == 0 || datum.value == 1 ? datum.label : ''", labelAngle=0)
    over = alt.datum.over
    found = _rows(count, "states", SEARCHED).mark_point(filled=True, opacity=1, size=55)
    points = found.encode(
        x=_at(count, every),
        y=y,
        color=alt.when(over)
        .then(alt.value(style.PALETTE["vermilion"]))
        .otherwise(alt.value(style.PALETTE["blue"])),
        shape=alt.when(over).then(alt.value("cross")).otherwise(alt.value("diamond")),
        description="words:N",
        tooltip="words:N",
    )
    line = alt.Chart(alt.sequence(0, 1, as_="i")).transform_calculate(
        states="misses.budget", words="'budget ' + format(misses.budget, ',')"
    )
    budget = line.mark_rule(color=style.INK, strokeDash=[4, 3], aria=False).encode(y=y)
    note = line.mark_text(align="left", color=style.INK, aria=False, fontSize=11)
    noted = note.encode(y=y, x=alt.value(CELL * count + 4), text="words:N")
    return alt.LayerChart(
        layer=[_pointer(count, every), budget, points, noted], width=CELL * count, height=STRIP
    )
