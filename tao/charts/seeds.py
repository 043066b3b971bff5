"""Policies against TAO on the same sessions, a dot per seed; the rows may change while it is shown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tao.charts import style
from tao.comparisons import Comparison

PLOT, ROW, LABELS, WORDS = 330, 40, 130, 230  # px
BETTER, WORSE, UNCLEAR = "TAO better", "TAO worse", "unclear"
COLORS = {BETTER: style.PALETTE["blue"], WORSE: style.PALETTE["vermilion"], UNCLEAR: style.LINE}
LEAST_REACH = 0.02  # ours: changes of a hundredth or two are not to look large
FIELDS = "slot", "x", "verdict", "words"
MEANS = "slot", "policy", "mean", "lo", "hi", "verdict", "change", "words"


def seed_dots(
    means: Sequence[Mapping[str, Any]], dots: Sequence[Mapping[str, Any]], most: int
) -> alt.LayerChart:
    """By how much each policy differs from TAO: a dot per seed, above them the mean and its 95 % interval.

    `means` and `dots` as `seed_rows` makes them; room for `most` policies. The chart reads
    `seed_dots_value` from its parameter `race`.

    >>> chart = seed_dots([], [], 3)
    >>> chart.to_dict()["params"][0]["value"]["means"]
    []
    """
    x = alt.X("x:Q", title="change against tao", axis=alt.Axis(format="+~%", tickCount=6), scale=_reach())
    slots = alt.Scale(domain=list(range(most)), paddingInner=0.2)
    y = alt.Y("slot:O", axis=None, scale=slots)
    colors = alt.Scale(domain=list(COLORS), range=list(COLORS.values()))
    legend = alt.Legend(title=None, orient="bottom", symbolType="circle")
    color = alt.Color("verdict:N", scale=colors, legend=legend)
    told: dict[str, Any] = {"description": "words:N", "tooltip": "words:N"}
    seeds = _rows("dots", FIELDS, style.MAX_ROWS // 4).encode(x=x, y=y, color=color, **told)
    spread = _rows("means", MEANS, most).transform_calculate(told="datum.change + ' ' + datum.verdict")
    placed = spread.encode(y=y, color=color)
    zero = alt.Chart(alt.sequence(0, 1, as_="i")).transform_calculate(x="0")
    side: dict[str, Any] = {"aria": False, "color": style.INK}
    name = spread.mark_text(align="right", fontSize=12, limit=LABELS - 8, **side)
    text = spread.mark_text(align="left", fontSize=11, **side)
    layers = [
        zero.mark_rule(color=style.INK, aria=False).encode(x=x),
        placed.mark_rule(strokeWidth=3, yOffset=-9, aria=False).encode(
            x=alt.X("lo:Q", scale=_reach()), x2="hi:Q"
        ),
        placed.mark_point(shape="diamond", filled=True, opacity=1, size=130, yOffset=-9).encode(
            x=alt.X("mean:Q", scale=_reach()), **told
        ),
        seeds.mark_point(filled=True, opacity=0.6, size=40, yOffset=9),
        name.encode(x=alt.value(-8), y=y, text="policy:N"),
        text.encode(x=alt.value(PLOT + 8), y=y, text="told:N"),
    ]
    chart = alt.LayerChart(layer=layers, width=PLOT, height=ROW * most)
    what = "Change against tao on the same sessions, seed by seed"
    return style.drawn(
        chart.add_params(alt.param(name="race", value=seed_dots_value(means, dots))),
        what,
        "small dot: one seed; diamond and line: the mean and its 95 % interval",
        f"{what}: per policy a dot for each seed, and their mean with its 95 % interval.",
    )


def seed_dots_size(most: int) -> tuple[int, int]:
    """Width and height in px of a card that holds `seed_dots`."""
    return PLOT + LABELS + WORDS + 20, ROW * most + 158


def seed_dots_value(means: Sequence[Mapping[str, Any]], dots: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The parameter of `seed_dots`: its rows, and how far the axis reaches on both sides."""
    ends = [0.0, *(row["x"] for row in dots), *(row[k] for row in means for k in ("mean", "lo", "hi"))]
    least, most = (1.08 * x for x in (min(ends), max(ends)))
    return {
        "dots": list(dots),
        "means": list(means),
        "least": min(least, -LEAST_REACH),
        "most": max(most, LEAST_REACH),
    }


def seed_rows(race: Comparison, metric: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The means and the dots of `seed_dots`, from a race of `tao` against others."""
    means, dots = [], []
    changes = race.differences(metric, style.OURS)
    for slot, row in enumerate(race.paired(metric, style.OURS).to_dict("records")):
        name, mean = row["policy"], row["mean"]
        lo, hi = (mean if math.isnan(row[k]) else row[k] for k in ("lo", "hi"))
        verdict = verdict_of(row["lo"], row["hi"], metric)
        text = style.change(mean) + ("" if lo == hi else f" ({style.change(lo)} to {style.change(hi)})")
        words = f"{name}: {text}, {verdict}"
        found = slot, name, mean, lo, hi, verdict, text, words
        means.append(dict(zip(MEANS, found, strict=True)))
        for dot in changes[changes["policy"] == name].dropna().to_dict("records"):
            said = f"{name}, seed {dot['seed']}: {style.change(dot['change'])}"
            dots.append(dict(zip(FIELDS, (slot, dot["change"], verdict, said), strict=True)))
    return means, dots


def verdict_of(lo: float, hi: float, metric: str) -> str:
    """Who is better by the interval of a rival's change against TAO; unclear where it holds 0, or is none.

    >>> verdict_of(0.1, 0.2, "ttft_s"), verdict_of(0.1, 0.2, "decode_tok_s"), verdict_of(-0.1, 0.2, "ttft_s")
    ('TAO better', 'TAO worse', 'unclear')
    """
    above, below = (WORSE, BETTER) if metric in style.HIGHER_IS_BETTER else (BETTER, WORSE)
    return above if lo > 0 else below if hi < 0 else UNCLEAR


def verdict(race: Comparison, rival: str, metric: str = "task_latency_s") -> str:
    """Whether TAO is better or worse than a rival by the interval over seeds, or whether that is unclear."""
    return str(next(row["verdict"] for row in seed_rows(race, metric)[0] if row["policy"] == rival))


def _reach() -> alt.Scale:
    return alt.Scale(domain=[alt.ExprRef("race.least"), alt.ExprRef("race.most")], nice=False)


def _rows(of: str, fields: tuple[str, ...], most: int) -> alt.Chart:
    return (
        alt.Chart(alt.sequence(0, most, as_="i"))
        .transform_filter(f"datum.i < length(race.{of})")
        .transform_calculate(**{name: f"race.{of}[datum.i].{name}" for name in fields})
    )
