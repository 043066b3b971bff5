"""What planning costs and what it loses: tables of `tao.quality` and `tao.bench.costs`."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from tao.charts import style
from tao.charts.style import DASHED, DOTTED, SOLID, Look
from tao.checks import InputError, listing

PLANNER_LOOKS = {
    "exact": Look(style.PALETTE["blue"], "circle", SOLID),
    "dp": Look(style.PALETTE["sky"], "diamond", DASHED),
    "bfd": Look(style.PALETTE["orange"], "triangle-up", SOLID),
    "short_first": Look(style.PALETTE["vermilion"], "square", SOLID),
    "worst_fit": Look(style.PALETTE["orange"], "triangle-down", DASHED),
    "fifo": Look(style.LINE, "cross", DOTTED),
    "cp-sat": Look(style.PALETTE["purple"], "triangle-right", DASHED),
    "highs": Look(style.PALETTE["green"], "triangle-left", DOTTED),
}
"""How planners and solvers are drawn; others are dark."""

_OTHER = Look(style.INK, "cross", SOLID)
COSTS = {"plan_median_ms": "median of plan(), ms", "plan_p95_ms": "95th percentile of plan(), ms"}
COSTS |= {
    "kernel_median_ms": "median of the kernel, ms",
    "kernel_p95_ms": "95th percentile of the kernel, ms",
}


def planner_costs(rows: pd.DataFrame, *, value: str = "plan_median_ms") -> alt.LayerChart:
    """What a plan costs by the size of the problem, both logarithmic: one line per planner.

    `rows` are those of `tao.bench.costs` as a table (`planner`, `n`, `nodes`, and the column `value`), of one
    family and one room; of several the mean is drawn.

    >>> rows = [("dp", 40, 4, 0.9), ("dp", 160, 4, 3.0)]
    >>> chart = planner_costs(pd.DataFrame(rows, columns=["planner", "n", "nodes", "plan_median_ms"]))
    >>> chart.to_dict()["description"].split(": ", 1)[1]
    'dp: 0.9 at 40 × 4, 3 at 160 × 4.'
    """
    if value not in COSTS:
        raise InputError(f"value is {value!r}; it must be one of {listing(list(COSTS))}")
    kept = style.checked("planner_costs", rows, ("planner", "n", "nodes"), (value,))
    means = kept.groupby(["planner", "n", "nodes"], sort=False)[value].mean().reset_index()
    means = means.sort_values(["n", "nodes"], kind="stable")
    means["size"] = [f"{n:,} × {m}" for n, m in zip(means["n"], means["nodes"], strict=True)]
    names = list(dict.fromkeys(kept["planner"]))
    log = alt.Scale(type="log", nice=False, padding=14)
    ticks = sorted(set(means["n"]))
    labels = dict(zip(means["n"], means["size"], strict=True))
    said = " : ".join(f"datum.value == {n} ? '{labels[n]}'" for n in ticks) + " : ''"
    axis = alt.Axis(values=ticks, labelExpr=said)
    base = alt.Chart(means, width=style.WIDTH, height=320).encode(
        x=alt.X("n:Q", scale=log, axis=axis, title="waiting sessions × nodes"),
        y=alt.Y(f"{value}:Q", scale=log, axis=alt.Axis(format="~g"), title=COSTS[value]),
        tooltip=["planner:N", "size:N", f"{value}:Q"],
        **_by_planner(names),
    )
    facts = style.spoken(
        (row["planner"], f"{style.number(row[value])} at {row['size']}") for row in means.to_dict("records")
    )
    return style.drawn(
        alt.LayerChart(layer=_lines(base, names)),
        "What a plan costs by the size of the problem",
        "on this machine; both axes are logarithmic",
        f"{COSTS[value].capitalize()}, by waiting sessions × nodes: {facts}.",
    )


def rounding_loss(losses: pd.DataFrame, *, label: str = "recomputed") -> alt.LayerChart:
    """The share of credit that dp's rounding loses, by quantum: mean and worst, with the states it takes.

    `losses` are rows of `tao.quality.rounding_loss`; `label` says what they are: "recomputed" from given
    snapshots, or "simulated" where these are recorded in a simulated run.

    >>> rows = [(1024, 9, 600.0, 0.05, 0.2), (512, 9, 8000.0, 0.02, 0.1)]
    >>> columns = ["quantum_tokens", "snapshots", "states_mean", "loss_mean", "loss_worst"]
    >>> rounding_loss(pd.DataFrame(rows, columns=columns)).to_dict()["description"].split(": ", 1)[1]
    '1,024: mean 5.0%, worst 20.0%, 600 states; 512: mean 2.0%, worst 10.0%, 8,000 states.'
    """
    needed = ("quantum_tokens", "snapshots", "states_mean")
    rows = style.checked("rounding_loss", losses, needed, ("loss_mean", "loss_worst"))
    states = [f"{x:,.0f} states" for x in rows["states_mean"]]
    quanta = [f"{q:,}" for q in rows["quantum_tokens"]]
    long = rows.assign(quantum=quanta, states=states).melt(
        ["quantum", "states"], ["loss_mean", "loss_worst"], "kind", "loss"
    )
    long["kind"] = long["kind"].str.removeprefix("loss_")
    x = alt.X("quantum:N", sort=quanta, title="quantum, tokens", axis=alt.Axis(labelAngle=0))
    y = alt.Y("loss:Q", title="share of the best credit lost", axis=alt.Axis(format="%"))
    colors = [style.PALETTE["blue"], style.PALETTE["orange"]]
    legend = alt.Legend(title=None, orient="bottom")
    scale = alt.Scale(domain=["mean", "worst"], range=colors)
    shapes = alt.Scale(domain=["mean", "worst"], range=["circle", "square"])
    base = alt.Chart(long, width=style.WIDTH, height=280).encode(
        x=x,
        y=y,
        color=alt.Color("kind:N", scale=scale, legend=legend),
        shape=alt.Shape("kind:N", scale=shapes, legend=legend),
        tooltip=["quantum:N", "kind:N", "loss:Q", "states:N"],
    )
    dots = base.mark_point(filled=True, opacity=1, size=110)
    means = alt.Chart(long[long["kind"] == "mean"]).encode(x=x, y=y)
    layers = [base.mark_line(strokeWidth=1.5), dots, *style.text(means, "states", dy=-14, fontSize=11)]
    said = "; ".join(
        f"{q}: mean {row['loss_mean']:.1%}, worst {row['loss_worst']:.1%}, {text}"
        for q, text, row in zip(quanta, states, rows.to_dict("records"), strict=True)
    )
    count = int(rows["snapshots"].iloc[0])
    return style.drawn(
        alt.LayerChart(layer=layers),
        "What rounding to quanta loses",
        f"{label} on {count:,} snapshots; above each mean: states of dp's search, on average",
        f"Share of the best credit that dp loses, by quantum, {label} on {count:,} snapshots: {said}.",
    )


def differences(table: pd.DataFrame, *, label: str = "recomputed") -> alt.LayerChart:
    """In how many snapshots each planner misses the optimum, as bars, and by how much credit, in words.

    `table` has the rows of `tao.quality.differences`; `label` as for `rounding_loss`.

    >>> rows = [("dp", 35, 23, 6, 4, 900.0, 3000.0), ("bfd", 35, 23, 0, 0, None, None)]
    >>> columns = "planner snapshots contested below below_credit lost_mean lost_worst".split()
    >>> differences(pd.DataFrame(rows, columns=columns)).to_dict()["description"].split(": ", 1)[1]
    'dp: 6 of 35, 900 credit lost on average, 3,000 at worst; bfd: 0 of 35.'
    """
    needed = ("planner", "contested", "lost_mean", "lost_worst")
    rows = style.checked("differences", table, needed, ("snapshots", "below"))
    shown = ("below", "snapshots", "lost_mean", "lost_worst")
    rows["share"] = rows["below"] / rows["snapshots"].clip(lower=1)
    rows["words"] = [_missed(*x) for x in zip(*(rows[name] for name in shown), strict=True)]
    y = alt.Y("planner:N", sort=list(rows["planner"]), title=None, axis=alt.Axis(ticks=False, domain=False))
    x = alt.X(
        "share:Q", title="share of snapshots", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])
    )
    base = alt.Chart(rows, width=style.WIDTH - 60, height=alt.Step(style.ROW)).encode(
        y=y, tooltip=["planner:N", "words:N"]
    )
    words = base.encode(x=alt.value(5), text="words:N", color=alt.value(style.INK))
    layers = [
        base.mark_bar(height=22, color=style.GREY).encode(x=x),
        words.mark_text(align="left", fontSize=11),
    ]
    count, contested = int(rows["snapshots"].iloc[0]), int(rows["contested"].iloc[0])
    said = style.spoken(zip(rows["planner"], rows["words"], strict=True))
    what = "How often a plan is worth less than the optimum"
    return style.drawn(
        alt.LayerChart(layer=layers),
        what,
        f"{label} on {count:,} snapshots with a proven optimum; in {contested:,} more than one session fits",
        f"{what}, {label} on {count:,} snapshots, more than one session fits in {contested:,}: {said}.",
    )


def _missed(below: int, snapshots: int, mean: float, worst: float) -> str:
    """How often and by how much, in words."""
    text = f"{below:,.0f} of {snapshots:,.0f}"
    if pd.isna(mean):
        return text
    return f"{text}, {style.number(mean)} credit lost on average, {style.number(worst)} at worst"


def _by_planner(names: list[str]) -> dict[str, Any]:
    """The encodings that tell planners apart, with one legend for both."""
    found = [PLANNER_LOOKS.get(name, _OTHER) for name in names]
    legend = alt.Legend(title=None, orient="bottom", columns=4, symbolSize=90, symbolStrokeWidth=0)
    colors = alt.Scale(domain=names, range=[look.color for look in found])
    shapes = alt.Scale(domain=names, range=[look.shape for look in found])
    return {
        "color": alt.Color("planner:N", scale=colors, legend=legend),
        "shape": alt.Shape("planner:N", scale=shapes, legend=legend),
    }


def _lines(base: alt.Chart, names: list[str]) -> list[alt.Chart]:
    dashes = [PLANNER_LOOKS.get(name, _OTHER).dash for name in names]
    dash = alt.StrokeDash("planner:N", scale=alt.Scale(domain=names, range=dashes), legend=None)
    return [
        base.mark_line(strokeWidth=1.7).encode(strokeDash=dash),
        base.mark_point(filled=True, opacity=1, size=70),
    ]
