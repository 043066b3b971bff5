"""Who wins: policies against each other, over seeds, memory, load and tool delays."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from tao.charts._style import (
    GREY,
    HIGHER_IS_BETTER,
    INK,
    LINE,
    OURS,
    PLOT_WIDTH,
    by_policy,
    checked,
    emphasized,
    number,
    ours_last,
    policy_axis,
    styled,
    title,
    words,
)
from tao.checks import InputError
from tao.comparisons import interval

RATIO = "capacity_over_live"
KNEE = (0.85, 1.2)  # ours: in between, a little more memory changes a lot
TICKS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 7, 10, 15, 20, 30, 50)
BETTER, WORSE = "#5FB0E5", "#F09A5B"  # as strong as each other, and dark text is readable on both
CELL_HEIGHT = 46  # px
DOTS_WIDTH = 360  # px


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
    >>> latency_vs_capacity(pd.DataFrame(rows, columns=columns)).to_dict()["description"].split(". ")[1]
    'tao: 30 at 0.8, 20 at 1.6'
    """
    runs = checked("latency_vs_capacity", runs, "policy", "seed", by, values=(RATIO, metric))
    policies = ours_last(runs["policy"])
    means = runs.groupby(["policy", by])[[RATIO, metric]].mean().reset_index().sort_values(RATIO)
    means = pd.concat([means[means["policy"] == policy] for policy in policies])
    axis = alt.Axis(values=list(TICKS), format="~g", labelOverlap=True)
    x = alt.X(f"{RATIO}:Q", scale=alt.Scale(type="log", nice=False, padding=12), axis=axis)
    base = alt.Chart(means, width=PLOT_WIDTH, height=320).encode(
        x=x.title("KV capacity over live working set (both in tokens)"),
        y=alt.Y(f"{metric}:Q", title=words(metric)),
        tooltip=["policy:N", f"{by}:N", f"{RATIO}:Q", f"{metric}:Q"],
        **by_policy(policies),
    )
    dots = base.properties(data=pd.concat([runs[runs["policy"] == policy] for policy in policies]))
    marks = [
        dots.mark_point(filled=True, opacity=0.4).encode(size=emphasized(32, 20)),
        base.mark_line().encode(strokeWidth=emphasized(3.5, 1.7)),
        base.mark_point(filled=True, opacity=1).encode(size=emphasized(110, 60)),
    ]
    bands, said = _bands(reported, metric)
    seeds = f"{runs['seed'].nunique()} seed(s)"
    heading = title(
        f"{words(metric, unit=False).capitalize()} by room in memory",
        f"line: mean; small marks: each of {seeds}; shaded: the knee, {KNEE[0]} to {KNEE[1]}",
    )
    ends = [f"{policy}: {_points(means, policy, metric)}" for policy in policies]
    lead = f"Mean {words(metric)}, against KV capacity over live working set, over {seeds}"
    said = [lead, "; ".join(ends), f"The knee, {KNEE[0]} to {KNEE[1]}, is shaded", *said]
    return styled(alt.LayerChart(layer=[*bands, *marks], title=heading), ". ".join(said))


def _points(means: pd.DataFrame, policy: str, metric: str) -> str:
    own = means[means["policy"] == policy]
    return ", ".join(f"{number(y)} at {number(x)}" for x, y in zip(own[RATIO], own[metric], strict=True))


def _bands(reported: pd.DataFrame | None, metric: str) -> tuple[list[alt.Chart], list[str]]:
    """What lies behind the lines: the knee, and what others reported; and the latter in words."""
    knee = alt.Chart(pd.DataFrame([KNEE], columns=["x_lo", "x_hi"])).encode(x="x_lo:Q", x2="x_hi:Q")
    bands = [knee.mark_rect(fill=GREY, opacity=0.45)]
    if reported is None:
        return bands, []
    rows = checked("latency_vs_capacity", reported, values=("label", "lo", "hi"))
    rows = rows.assign(label="reported: " + rows["label"])
    band = alt.Chart(rows).encode(y=alt.Y("lo:Q", title=words(metric)), y2="hi:Q")
    text = alt.Chart(rows).encode(y="hi:Q", text="label:N")
    if {"x_lo", "x_hi"} <= set(rows):
        band, text = band.encode(x="x_lo:Q", x2="x_hi:Q"), text.encode(x="x_lo:Q")
    else:
        text = text.encode(x=alt.value(4))
    bands.append(band.mark_rect(fill=INK, opacity=0.12, stroke=INK, strokeDash=[4, 3]))
    bands.append(text.mark_text(align="left", baseline="bottom", dx=2, dy=-2, fontSize=11, color=INK))
    return bands, [f"{r.label}, {number(r.lo)} to {number(r.hi)}" for r in rows.itertuples()]


def win_loss_map(frame: pd.DataFrame, *, metric: str = "task_latency_s") -> alt.LayerChart:
    """Where TAO wins and where it loses: its change against the best rival, by workers and tool delay.

    `frame` has one row per cell, shortest delay first: `workers`, `extra_delay_s` (a number, a pair or a
    name), `mean`, `lo` and `hi` of the paired change (0.1 is 10 % above; see `Comparison.paired`) and, where
    you like, `rival`. Cells whose interval includes 0, or that have none, are hatched and called unclear.

    >>> rows = [(8, 5.0, -0.2, -0.3, -0.1), (16, 5.0, 0.04, -0.1, 0.2)]
    >>> chart = win_loss_map(pd.DataFrame(rows, columns=["workers", "extra_delay_s", "mean", "lo", "hi"]))
    >>> chart.to_dict()["description"].split(": ", 1)[1]
    '8 workers, delay 5 s, -20.0%, better; 16 workers, delay 5 s, +4.0%, unclear.'
    """
    needed = "workers", "extra_delay_s", "lo", "hi"
    cells = _cells(checked("win_loss_map", frame, *needed, values=("mean",)), metric)
    width = min(104, PLOT_WIDTH // cells["workers"].nunique())
    delays = list(dict.fromkeys(cells["delay"]))[::-1]
    base = alt.Chart(cells, width=alt.Step(width), height=alt.Step(CELL_HEIGHT)).encode(
        x=alt.X("workers:O", title="workers (sessions at a time)", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("delay:O", title="added tool delay, s", sort=delays),
        tooltip="words:N",
        description="words:N",
    )
    unclear = base.transform_filter("datum.verdict == 'unclear'")
    shape = _hatch(width, CELL_HEIGHT)
    drawn = [
        base.mark_rect(stroke=LINE).encode(color=_diverging(cells["mean"], metric)),
        unclear.mark_point(shape=shape, size=4, stroke=LINE, strokeWidth=0.8, opacity=0.7),
        *_written(base, "change", -12, width, fontSize=13, fontWeight="bold"),
        *_written(base, "rival", 3, width, fontSize=10),
        *_written(unclear, "verdict", 15, width, fontSize=10, fontStyle="italic"),
    ]
    what = f"TAO's change of {words(metric, unit=False)} against the best rival"
    heading = title(what, f"{_direction(metric)}; hatched: the 95 % interval includes 0, or there is none")
    return styled(alt.LayerChart(layer=drawn, title=heading), f"{what}: {'; '.join(cells['words'])}.")


def _cells(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The cells with what is written in them."""
    above, below = ("better", "worse") if metric in HIGHER_IS_BETTER else ("worse", "better")
    cells = frame.assign(
        delay=frame["extra_delay_s"].map(_delay),
        change=frame["mean"].map("{:+.1%}".format),
        verdict=[
            above if lo > 0 else below if hi < 0 else "unclear"
            for lo, hi in zip(frame["lo"], frame["hi"], strict=True)
        ],
        rival="vs " + frame["rival"] if "rival" in frame else "",
    ).drop(columns="extra_delay_s")  # the chart could not tell pairs from lists
    twice = cells[cells.duplicated(["workers", "delay"])]
    if len(twice):
        raise InputError(
            f"charts.win_loss_map was given two rows for {twice['workers'].iloc[0]} workers and delay {twice['delay'].iloc[0]}; give each cell once"
        )
    texts = (
        f"{c.workers} workers, delay {c.delay} s, {c.change} {c.rival}".rstrip() + f", {c.verdict}"
        for c in cells.itertuples()
    )
    return cells.assign(words=list(texts))


def _delay(x: Any) -> str:
    return (
        " to ".join(f"{part:g}" for part in x)
        if isinstance(x, tuple | list)
        else str(x)
        if isinstance(x, str)
        else f"{x:g}"
    )


def _direction(metric: str) -> str:
    return "higher is better" if metric in HIGHER_IS_BETTER else "lower is better"


def _diverging(change: pd.Series[float], metric: str) -> alt.Color:
    """Two hues that are equally strong at equal distances from 0."""
    most = max(float(change.abs().max()), 0.01)
    ends = [WORSE, "white", BETTER] if metric in HIGHER_IS_BETTER else [BETTER, "white", WORSE]
    legend = alt.Legend(title="change", format="+.0%", gradientLength=120, values=[-most, 0, most])
    return alt.Color("mean:Q", scale=alt.Scale(domain=[-most, 0, most], range=ends), legend=legend)


def _hatch(width: float, height: float, gap: int = 8) -> str:
    """Parallel diagonals that fill a cell, as an SVG path around its middle."""
    x, y = width / 2 - 1, height / 2 - 1
    lines = []
    for c in np.arange(-x - y + gap, x + y, gap):  # the line of all points with px + py = c
        left, right = max(-x, c - y), min(x, c + y)
        lines.append(f"M{left:.1f},{c - left:.1f}L{right:.1f},{c - right:.1f}")
    return "".join(lines)


def _written(base: alt.Chart, field: str, dy: int, width: float, **style: Any) -> list[alt.Chart]:
    """Text that stays readable on hatching: a light outline below it."""
    halo: dict[str, Any] = {"stroke": "white", "strokeWidth": 4, "strokeJoin": "round", "opacity": 0.85}
    both = [style | halo, style]
    return [
        base.mark_text(dy=dy, limit=width - 6, color=INK, **look).encode(text=f"{field}:N") for look in both
    ]


def paired_dots(
    differences: pd.DataFrame, *, metric: str = "task_latency_s", against: str = OURS
) -> alt.LayerChart:
    """How much each policy differs from `against` on the same sessions: a dot per seed, mean and interval.

    `differences` are those of `Comparison.differences(metric, against)`: `policy`, `seed`, `change` (0.1 is
    10 % above). Intervals are Student's t, 95 %; one seed has none.

    >>> rows = [("sticky", 0, 0.1), ("sticky", 1, 0.3)]
    >>> chart = paired_dots(pd.DataFrame(rows, columns=["policy", "seed", "change"]))
    >>> chart.to_dict()["description"].split(": ", 1)[1]
    'sticky +20.0% (-107.1% to +147.1%).'
    """
    rows = checked("paired_dots", differences, "policy", "seed", values=("change",))
    policies = ours_last(rows["policy"])
    means = pd.DataFrame(
        [
            {"policy": name, **interval(group["change"].to_numpy(float))}
            for name, group in rows.groupby("policy", sort=False)
        ]
    )
    means["words"] = [
        f"{m.mean:+.1%}" + ("" if np.isnan(m.lo) else f" ({m.lo:+.1%} to {m.hi:+.1%})")
        for m in means.itertuples()
    ]
    at = alt.X("change:Q", title=f"change against {against}", axis=alt.Axis(format="+~%"))
    y = policy_axis(policies)
    color = by_policy(policies)["color"].legend(None)
    dots = alt.Chart(rows, width=DOTS_WIDTH, height=alt.Step(36)).encode(y=y, color=color)
    spread = alt.Chart(means).encode(y=y, color=color, tooltip=["policy:N", "words:N"])
    drawn = [
        alt.Chart(pd.DataFrame({"change": [0.0]})).mark_rule(color=INK).encode(x=at),
        spread.mark_rule(strokeWidth=2.5, yOffset=-6).encode(x=alt.X("lo:Q"), x2="hi:Q"),
        spread.mark_point(shape="diamond", filled=True, opacity=1, size=110, yOffset=-6).encode(x="mean:Q"),
        dots.mark_point(filled=True, opacity=0.6, size=36, yOffset=7).encode(
            x=at, tooltip=["policy:N", "seed:N", "change:Q"]
        ),
        spread.mark_text(align="left", fontSize=11).encode(
            x=alt.value(DOTS_WIDTH + 8), text="words:N", color=alt.value(INK)
        ),
    ]
    what = f"Change of {words(metric, unit=False)} against {against}, seed by seed"
    heading = title(what, f"{_direction(metric)}; dot: a seed; diamond and line: mean and its 95 % interval")
    said = "; ".join(f"{m.policy} {m.words}" for m in means.itertuples())
    return styled(alt.LayerChart(layer=drawn, title=heading), f"{what}, mean and 95 % interval: {said}.")
