"""Who wins: policies against each other, by room in memory, seed by seed, by load and tool delay."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from tao.charts import style
from tao.checks import InputError
from tao.comparisons import interval

RATIO = "capacity_over_live"
KNEE = (0.85, 1.2)  # ours: in between, a little more memory changes a lot
TICKS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 7, 10, 15, 20, 30, 50)
BETTER, WORSE = "#5FB0E5", "#F09A5B"  # as strong as each other, and dark text is readable on both
UNCLEAR = "unclear"
CELL_HEIGHT = 46  # px
LEAST_CHANGE = 0.05  # ours: the strongest color stands for this much at least
HATCH_GAP = 8  # px
DOTS_WIDTH = 360  # px; the rest is for the numbers beside the dots


def latency_vs_capacity(
    runs: pd.DataFrame,
    reported: pd.DataFrame | None = None,
    *,
    metric: str = "task_latency_s",
    by: str = "capacity_tokens",
) -> alt.LayerChart:
    """A metric against capacity over live working set: a dot per seed, a line through each policy's means.

    `runs` has one row per run, as `tao.sweep` returns them: `policy`, `seed`, `capacity_over_live`, the
    metric, and what was varied, `by`: rows of a policy with the same value of it make one mean. Each row of
    `reported` (`label`; `lo` and `hi` of the metric; where known, `x_lo` and `x_hi` of the ratio) is a band.

    >>> rows = [("tao", 0, 9, 0.8, 30.0), ("tao", 0, 18, 1.6, 20.0)]
    >>> columns = ["policy", "seed", "capacity_tokens", "capacity_over_live", "task_latency_s"]
    >>> latency_vs_capacity(pd.DataFrame(rows, columns=columns)).to_dict()["description"].split("; ")[1]
    'one seed. tao: 30 at 0.8, 20 at 1.6. From 0.85 to 1.2 lies the knee.'
    """
    runs = style.checked("latency_vs_capacity", runs, ("policy", "seed", by), (RATIO, metric))
    names = style.policies(runs)
    means = runs.groupby(["policy", by], sort=False)[[RATIO, metric]].mean().reset_index()
    means = style.grouped(means.sort_values(RATIO, kind="stable"))
    scale = alt.Scale(type="log", nice=False, padding=12)
    axis = alt.Axis(values=list(TICKS), format="~g", labelOverlap=True)
    base = alt.Chart(means, width=style.WIDTH, height=320).encode(
        x=alt.X(f"{RATIO}:Q", scale=scale, axis=axis, title="KV capacity over live working set"),
        y=alt.Y(f"{metric}:Q", title=style.words(metric)),
        tooltip=["policy:N", f"{by}:N", f"{RATIO}:Q", f"{metric}:Q"],
        **style.by_policy(names),
    )
    dots = base.properties(data=style.grouped(runs))
    knee = alt.Chart(pd.DataFrame([KNEE], columns=["x_lo", "x_hi"])).encode(x="x_lo:Q", x2="x_hi:Q")
    bands, others = _bands(reported, metric)
    layers = [
        knee.mark_rect(fill=style.GREY, opacity=0.45),
        *bands,
        dots.mark_point(filled=True, opacity=0.4).encode(size=style.emphasized(30, 22)),
        *style.lines(base, names),
    ]
    said = style.spoken(
        (row["policy"], f"{style.number(row[metric])} at {style.number(row[RATIO])}")
        for row in means.to_dict("records")
    )
    name, seeds = style.words(metric, unit=False), runs["seed"].nunique()
    count = f"{seeds} seeds" if seeds > 1 else "one seed"
    over = f"the mean of {count} (small marks: single runs)" if seeds > 1 else count
    return style.drawn(
        alt.LayerChart(layer=layers),
        f"{name.capitalize()} by room in memory",
        [f"line: {over}; shaded: the knee, {KNEE[0]} to {KNEE[1]}", *others],
        f"{style.words(metric).capitalize()}, at KV capacity over live working set; {count}. {said}. "
        f"From {KNEE[0]} to {KNEE[1]} lies the knee.{''.join(f' {text}.' for text in others)}",
    )


def _bands(reported: pd.DataFrame | None, metric: str) -> tuple[list[alt.Chart], list[str]]:
    """What others reported, as outlined bands, and in words."""
    if reported is None:
        return [], []
    known = ("x_lo", "x_hi") if "x_lo" in reported else ()
    rows = style.checked("latency_vs_capacity", reported, ("label",), ("lo", "hi", *known))
    ends = rows["lo"].map(style.number) + " to " + rows["hi"].map(style.number)
    said = ("dashed: reported, " + rows["label"] + ", " + ends).tolist()
    place: dict[str, Any] = {"x": "x_lo:Q", "x2": "x_hi:Q"} if known else {}
    band = alt.Chart(rows).encode(y=alt.Y("lo:Q", title=style.words(metric)), y2="hi:Q", **place)
    edge = band.mark_rect(fill=style.INK, fillOpacity=0.08, stroke=style.INK, strokeDash=[4, 3])
    text = alt.Chart(rows).encode(y="lo:Q", x=place.get("x", alt.value(0)), description="label:N")
    note = text.mark_text(
        text="reported", color=style.INK, align="left", baseline="top", dx=3, dy=4, fontSize=11
    )
    return [edge, note], said


def paired_dots(
    differences: pd.DataFrame, *, metric: str = "task_latency_s", against: str = style.OURS
) -> alt.LayerChart:
    """How much each policy differs from `against` on the same sessions: a dot per seed, mean and interval.

    `differences` are those of `Comparison.differences(metric, against)`: `policy`, `seed`, `change` (0.1 is
    10 % above). Intervals are Student's t, 95 %; one seed has none.

    >>> rows = [("sticky", 0, 0.1), ("sticky", 1, 0.3)]
    >>> chart = paired_dots(pd.DataFrame(rows, columns=["policy", "seed", "change"]))
    >>> chart.to_dict()["description"].split(": ", 1)[1]
    'sticky: +20.0% (−107.1% to +147.1%).'
    """
    rows = style.checked("paired_dots", differences, ("policy", "seed"), ("change",))
    names = style.policies(rows)
    means = pd.DataFrame([_mean(name, rows[rows["policy"] == name]["change"]) for name in names])
    at = alt.X("change:Q", title=f"change against {against}", axis=alt.Axis(format="+~%", tickCount=6))
    color = style.by_policy(names)["color"].legend(None)
    both: dict[str, Any] = {"y": style.rows_of(names), "color": color}
    dots = alt.Chart(rows, width=DOTS_WIDTH, height=alt.Step(style.ROW)).encode(x=at, **both)
    spread = alt.Chart(means).encode(tooltip=["policy:N", "words:N"], **both)
    numbers = spread.encode(x=alt.value(DOTS_WIDTH + 8), text="words:N", color=alt.value(style.INK))
    layers = [
        alt.Chart(pd.DataFrame({"change": [0.0]})).mark_rule(color=style.INK).encode(x=at),
        spread.mark_rule(strokeWidth=2.5, yOffset=-6).encode(x="lo:Q", x2="hi:Q"),
        spread.mark_point(shape="diamond", filled=True, opacity=1, size=110, yOffset=-6).encode(x="mean:Q"),
        dots.mark_point(filled=True, opacity=0.6, size=36, yOffset=7).encode(tooltip=["seed:N", "change:Q"]),
        numbers.mark_text(align="left", fontSize=11),
    ]
    worse = "left" if metric in style.HIGHER_IS_BETTER else "right"
    said = style.spoken(zip(means["policy"], means["words"], strict=True))
    what = f"Change of {style.words(metric, unit=False)} against {against}, seed by seed"
    return style.drawn(
        alt.LayerChart(layer=layers),
        what,
        f"{worse} of 0 {against} is better; dot: a seed; diamond and line: mean and its 95 % interval",
        f"{what}, mean and 95 % interval: {said}.",
    )


def _mean(name: str, changes: pd.Series[float]) -> dict[str, Any]:
    """Mean and interval of a policy's changes, also in words."""
    found = interval(np.asarray(changes, float))
    mean, lo, hi = (style.change(x) for x in found.values())
    return {"policy": name, **found, "words": mean if math.isnan(found["lo"]) else f"{mean} ({lo} to {hi})"}


def win_loss_map(frame: pd.DataFrame, *, metric: str = "task_latency_s") -> alt.LayerChart:
    """TAO's change against the best rival, by workers and tool delay, losses as visible as wins.

    `frame` has one row per cell, shortest delay first: `workers`, `extra_delay_s` (a number, a pair or a
    name), `mean`, `lo` and `hi` of the paired change (0.1 is 10 % above; see `Comparison.paired`), `rival`.
    Cells whose interval includes 0, or that have none, are hatched and called unclear.

    >>> rows = [(8, 5.0, -0.2, -0.3, -0.1, "sticky"), (16, 5.0, 0.04, -0.1, 0.2, "llmd")]
    >>> columns = ["workers", "extra_delay_s", "mean", "lo", "hi", "rival"]
    >>> win_loss_map(pd.DataFrame(rows, columns=columns)).to_dict()["description"].split(": ")[1]
    '8 workers, delay 5 s, −20.0% vs sticky, better; 16 workers, delay 5 s, +4.0% vs llmd, unclear.'
    """
    needed = "workers", "extra_delay_s", "rival", "lo", "hi"
    cells = _cells(style.checked("win_loss_map", frame, needed, ("mean",)), metric)
    width = min(104, style.WIDTH // cells["workers"].nunique())
    delays = list(dict.fromkeys(cells["delay"]))[::-1]
    base = alt.Chart(cells, width=alt.Step(width), height=alt.Step(CELL_HEIGHT)).encode(
        x=alt.X("workers:O", title="workers (sessions at a time)", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("delay:O", title="added tool delay, s", sort=delays),
        tooltip="words:N",
        description="words:N",
    )
    unclear = base.transform_filter(alt.datum.verdict == UNCLEAR)
    shape: Any = _hatch(width / 2 - 1, CELL_HEIGHT / 2 - 1)
    layers = [
        base.mark_rect(stroke=style.LINE).encode(color=_diverging(cells["mean"], metric)),
        unclear.mark_point(shape=shape, size=4, stroke=style.LINE, strokeWidth=0.8, opacity=0.7),
        *style.text(base, "change", dy=-12, limit=width - 6, fontSize=13, fontWeight="bold"),
        *style.text(base, "against", dy=3, limit=width - 6, fontSize=10),
        *style.text(unclear, "verdict", dy=15, limit=width - 6, fontSize=10, fontStyle="italic"),
    ]
    better = "above" if metric in style.HIGHER_IS_BETTER else "below"
    what = f"TAO's change of {style.words(metric, unit=False)} against the best rival"
    return style.drawn(
        alt.LayerChart(layer=layers),
        what,
        f"{better} 0 TAO is better; hatched: the 95 % interval includes 0, or there is none",
        f"{what}: {'; '.join(cells['words'])}.",
    )


def _cells(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The cells with what is written in them."""
    above, below = ("better", "worse") if metric in style.HIGHER_IS_BETTER else ("worse", "better")
    rows = []
    for row in frame.to_dict("records"):
        delay, against, change = _delay(row["extra_delay_s"]), f"vs {row['rival']}", style.change(row["mean"])
        verdict = above if row["lo"] > 0 else below if row["hi"] < 0 else UNCLEAR
        words = f"{row['workers']} workers, delay {delay} s, {change} {against}, {verdict}"
        rows.append((row["workers"], delay, row["mean"], change, against, verdict, words))
    columns = ["workers", "delay", "mean", "change", "against", "verdict", "words"]
    cells = pd.DataFrame(rows, columns=columns)
    twice = cells["words"][cells.duplicated(["workers", "delay"])]
    if len(twice):
        raise InputError(f"charts.win_loss_map was given a cell twice ({twice.iloc[0]}); give each once")
    return cells


def _delay(x: Any) -> str:
    """5 as "5", (1, 5) as "1 to 5", and (5, 5) as "5"."""
    parts = dict.fromkeys(x if isinstance(x, tuple | list) else [x])
    return " to ".join(part if isinstance(part, str) else f"{part:g}" for part in parts)


def _diverging(change: pd.Series[float], metric: str) -> alt.Color:
    """Two hues that are equally strong at equal distances from 0."""
    most = max(float(change.abs().max()), LEAST_CHANGE)
    ends = [BETTER, "white", WORSE] if metric not in style.HIGHER_IS_BETTER else [WORSE, "white", BETTER]
    legend = alt.Legend(title="change", format="+.0%", gradientLength=120, values=[-most, 0, most])
    scale = alt.Scale(domain=[-most, 0, most], range=ends, interpolate="rgb")
    return alt.Color("mean:Q", scale=scale, legend=legend)


def _hatch(x: float, y: float) -> str:
    """Parallel diagonals that fill a cell from -x to x and -y to y, as an SVG path."""
    path, c = "", HATCH_GAP - x - y
    while c < x + y:  # the diagonal of all points whose coordinates add up to c
        left, right = max(-x, c - y), min(x, c + y)
        path += f"M{left:g},{c - left:g}L{right:g},{c - right:g}"
        c += HATCH_GAP
    return path
