"""Who waits, and what the memory is used for: tables of `tao.metrics`, policy by policy."""

from __future__ import annotations

import altair as alt
import pandas as pd

from tao.charts._style import (
    GREY,
    INK,
    PALETTE,
    PLOT_WIDTH,
    by_policy,
    checked,
    emphasized,
    number,
    ours_last,
    policy_axis,
    styled,
    title,
)
from tao.metrics import TERMS

WAITS = {
    "wait_mean_s": "mean wait in pool and queue, s",
    "wait_p95_s": "95th percentile of the wait in pool and queue, s",
    "ttft_mean_s": "mean time to first token, s",
    "ttft_p95_s": "95th percentile of the time to first token, s",
}
CACHES = {
    "warm": "warm: found half or more of its context",
    "cold": "cold: all other requests",
}
TERM_COLORS = {
    "decode": PALETTE["green"],
    "prefill": PALETTE["sky"],
    "recompute": PALETTE["orange"],
    "caching": PALETTE["purple"],
    "unused": GREY,
}
READABLE = 0.055  # the least share with room for its number


def wait_by_size(waits: pd.DataFrame, *, value: str = "wait_mean_s") -> alt.HConcatChart:
    """How long requests wait by the size of their context, one line per policy, warm and cold side by side.

    `waits` are rows of `tao.metrics.waits` (`decile`, `cache`, `turns` and a column of seconds, `value`) with
    a column `policy`. Rows of several seeds are averaged, weighted by their turns.

    >>> rows = [("tao", 1, "warm", 9, 0.5), ("tao", 10, "warm", 9, 2.0)]
    >>> chart = wait_by_size(pd.DataFrame(rows, columns=["policy", "decile", "cache", "turns", "wait_mean_s"]))
    >>> chart.to_dict()["description"].split(": ", 1)[1]
    'tao, warm, 0.5 in the smallest tenth present, 2 in the largest.'
    """
    rows = checked("wait_by_size", waits, "policy", "decile", "cache", "turns", values=(value,))
    policies = ours_last(rows["policy"])
    keys = ["policy", "cache", "decile"]
    sums = rows.assign(sum=rows[value] * rows["turns"]).groupby(keys)[["sum", "turns"]].sum()
    means = (sums["sum"] / sums["turns"]).rename(value).reset_index()
    means = pd.concat([means[means["policy"] == policy] for policy in policies])
    top = alt.Scale(domain=[0, max(float(means[value].max()), 1e-3)])
    views = []
    for cache, heading in CACHES.items():
        base = alt.Chart(
            means[means["cache"] == cache], width=PLOT_WIDTH // 2, height=260, title=heading
        ).encode(
            x=alt.X(
                "decile:O",
                title="tenth of requests, by size of prompt",
                axis=alt.Axis(labelAngle=0),
                scale=alt.Scale(domain=list(range(1, 11))),
            ),
            y=alt.Y(f"{value}:Q", title=WAITS[value] if cache == "warm" else None, scale=top),
            tooltip=[*(f"{key}:N" for key in keys), f"{value}:Q"],
            **by_policy(policies),
        )
        views.append(
            base.mark_line().encode(strokeWidth=emphasized(3.5, 1.7))
            + base.mark_point(filled=True, opacity=1).encode(size=emphasized(80, 45))
        )
    what = f"{WAITS[value].partition(',')[0].capitalize()}, by size of context"
    heading = title(what, "tenth 1: the smallest prompts of a run; 10: the largest")
    said = []
    for (policy, cache), group in means.groupby(["policy", "cache"], sort=False):
        first, last = group.iloc[0], group.iloc[-1]
        said.append(
            f"{policy}, {cache}, {number(first[value])} s in tenth {first['decile']}, {number(last[value])} s in tenth {last['decile']}"
        )
    return styled(alt.hconcat(*views, title=heading, spacing=24), f"{what}: {'; '.join(said)}.")


def cost_bars(costs: pd.DataFrame) -> alt.LayerChart:
    """What the KV memory was used for: one bar per policy, made of the five cost terms.

    `costs` are rows of `tao.metrics.costs` (`term`, `share`) with a column `policy`; those of several seeds
    are averaged.

    >>> rows = [("tao", term, 0.2) for term in TERMS]
    >>> cost_bars(pd.DataFrame(rows, columns=["policy", "term", "share"])).to_dict()["description"][-72:]
    ': tao decode 20%, prefill 20%, recompute 20%, caching 20%, unused 20%.'
    """
    rows = checked("cost_bars", costs, "policy", "term", values=("share",))
    policies = ours_last(rows["policy"])[::-1]
    means = rows.groupby(["policy", "term"])["share"].mean().reset_index()
    means["order"] = means["term"].map(list(TERMS).index)
    means = means.sort_values("order")
    means["end"] = means.groupby("policy")["share"].cumsum()
    means["middle"] = means["end"] - means["share"] / 2
    means["begin"] = means["end"] - means["share"]
    means["words"] = means["share"].map("{:.0%}".format)
    color = alt.Color(
        "term:N",
        scale=alt.Scale(domain=list(TERM_COLORS), range=list(TERM_COLORS.values())),
        legend=alt.Legend(title=None, orient="bottom", symbolType="square"),
    )
    base = alt.Chart(means, width=PLOT_WIDTH - 40, height=alt.Step(34)).encode(
        y=policy_axis(policies), tooltip=["policy:N", "term:N", "words:N"]
    )
    x = alt.X(
        "begin:Q",
        title="share of KV capacity x time",
        axis=alt.Axis(format="%"),
        scale=alt.Scale(domain=[0, 1]),
    )
    drawn = [
        base.mark_bar(stroke="white", height=24).encode(x=x, x2="end:Q", color=color),
        base.transform_filter(f"datum.share >= {READABLE}")
        .mark_text(color=INK, fontSize=11)
        .encode(x="middle:Q", text="words:N"),
    ]
    what = "What the KV memory of all nodes was used for"
    heading = title(what, "; ".join(("a scheduler can lower the last three: recompute, caching, unused",)))
    said = [
        f"{policy} " + ", ".join(f"{r.term} {r.words}" for r in means[means["policy"] == policy].itertuples())
        for policy in policies
    ]
    return styled(alt.LayerChart(layer=drawn, title=heading), f"{what}: {'; '.join(said)}.")
