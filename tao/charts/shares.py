"""Who waits, and what the memory is used for: the tables of `tao.metrics`, policy by policy."""

from __future__ import annotations

import altair as alt
import pandas as pd

from tao.charts import style
from tao.checks import InputError, listing
from tao.metrics import TERMS

WAITS = {
    "wait_mean_s": "mean wait in pool and queue",
    "wait_p95_s": "95th percentile of the wait in pool and queue",
    "ttft_mean_s": "mean time to first token",
    "ttft_p95_s": "95th percentile of the time to first token",
}
CACHES = {"warm": "warm: found half or more of its context", "cold": "cold: all other requests"}
LINEAR_S = 0.01  # ours: waits below it are drawn in proportion, longer ones by their logarithm
WAIT_TICKS = (0, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
TERM_COLORS = ("green", "sky", "orange", "purple")  # the last term is gray
READABLE = 0.055  # the least share with room for its number


def wait_by_size(waits: pd.DataFrame, *, value: str = "wait_mean_s") -> alt.HConcatChart:
    """How long requests wait by the size of their context, one line per policy, warm and cold side by side.

    `waits` are rows of `tao.metrics.waits` (`decile`, `cache`, `turns` and the column `value`) with a column
    `policy`. Those of several seeds are averaged, weighted by their turns.

    >>> rows = [("tao", 1, "warm", 9, 0.5), ("tao", 10, "warm", 9, 2.0)]
    >>> table = pd.DataFrame(rows, columns=["policy", "decile", "cache", "turns", "wait_mean_s"])
    >>> wait_by_size(table).to_dict()["description"].split(", ", 1)[1]
    's in each tenth: tao warm: 1: 0.5, 10: 2.'
    """
    if value not in WAITS:
        raise InputError(f"value is {value!r}; it must be one of {listing(list(WAITS))}")
    keys = ["policy", "cache", "decile"]
    rows = style.checked("wait_by_size", waits, keys, ("turns", value))
    rows[value] *= rows["turns"]
    names = style.policies(rows)
    sums = rows.groupby(keys, sort=False)[[value, "turns"]].sum().sort_index(level="decile")
    means = style.grouped((sums[value] / sums["turns"]).rename(value).reset_index())
    scale = alt.Scale(
        type="symlog", constant=LINEAR_S, domain=[0, max(1.1 * means[value].max(), 0.1)], nice=False
    )
    y = alt.Y(f"{value}:Q", scale=scale, axis=alt.Axis(values=list(WAIT_TICKS), format="~g"))
    x = alt.X("decile:O", axis=alt.Axis(labelAngle=0), scale=alt.Scale(domain=list(range(1, 11))))
    base = alt.Chart(width=style.WIDTH // 2, height=260).encode(
        x=x.title("tenth of the requests, by size of prompt"),
        tooltip=[*(f"{key}:N" for key in keys), f"{value}:Q"],
        **style.by_policy(names),
    )
    views = []
    for cache, heading in CACHES.items():
        view = base.properties(data=means[means["cache"] == cache]).encode(
            y=y.title(f"{WAITS[value]}, s" if cache == "warm" else None)
        )
        views.append(alt.LayerChart(layer=style.lines(view, names), title=heading))
    said = style.spoken(
        (f"{row['policy']} {row['cache']}", f"{row['decile']}: {style.number(row[value])}")
        for row in means.to_dict("records")
    )
    what = f"{WAITS[value].capitalize()} by size of context"
    return style.drawn(
        alt.hconcat(*views, spacing=20),
        what,
        f"tenth 1: the smallest prompts of a run; logarithmic above {LINEAR_S} s",
        f"{what}, s in each tenth: {said}.",
    )


def cost_bars(costs: pd.DataFrame) -> alt.LayerChart:
    """What the KV memory was used for: one bar per policy, made of the five cost terms.

    `costs` are rows of `tao.metrics.costs` (`term`, `share`) with a column `policy`; those of several seeds
    are averaged.

    >>> rows = [("tao", term, 0.2) for term in TERMS]
    >>> chart = cost_bars(pd.DataFrame(rows, columns=["policy", "term", "share"]))
    >>> chart.to_dict()["description"].split(": ", 1)[1]
    'tao: decode 20%, prefill 20%, recompute 20%, caching 20%, unused 20%.'
    """
    rows = style.checked("cost_bars", costs, ("policy", "term"), ("share",))
    table = rows.pivot_table("share", "policy", "term", aggfunc="mean", sort=False)
    table = table.reindex(style.policies(rows), columns=list(TERMS)).fillna(0.0)
    bars = table.reset_index().melt("policy", value_name="share")
    bars["end"] = bars.groupby("policy")["share"].cumsum()
    bars["begin"] = bars["end"] - bars["share"]
    bars["middle"] = bars["end"] - bars["share"] / 2
    bars["words"] = bars["share"].map("{:.0%}".format)
    colors = [*(style.PALETTE[name] for name in TERM_COLORS), style.GREY]
    legend = alt.Legend(title=None, orient="bottom", symbolType="square")
    color = alt.Color("term:N", scale=alt.Scale(domain=list(TERMS), range=colors), legend=legend)
    base = alt.Chart(bars, width=style.WIDTH - 40, height=alt.Step(style.ROW)).encode(
        y=style.rows_of(list(table.index)), tooltip=["policy:N", "term:N", "words:N"]
    )
    x = alt.X("begin:Q", title="share of KV capacity × time", axis=alt.Axis(format="%"))
    roomy = base.transform_filter(alt.datum.share >= READABLE)
    layers = [
        base.mark_bar(stroke="white", height=24).encode(x=x.scale(domain=[0, 1]), x2="end:Q", color=color),
        roomy.mark_text(color=style.INK, fontSize=11).encode(x="middle:Q", text="words:N"),
    ]
    said = style.spoken(zip(bars["policy"], bars["term"] + " " + bars["words"], strict=True))
    what = "What the KV memory of all nodes was used for"
    return style.drawn(
        alt.LayerChart(layer=layers),
        what,
        "a scheduler can lower recompute, caching and unused",
        f"{what}: {said}.",
    )
