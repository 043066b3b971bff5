"""One style for all charts: colors, titles, checks of the rows, and the widget that shows a chart."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

import altair as alt
import pandas as pd

from tao.checks import InputError, listing

PALETTE = {  # Okabe and Ito (2008), without their yellow, which is too faint on white
    "blue": "#0072B2",
    "orange": "#E69F00",
    "green": "#009E73",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
    "sky": "#56B4E9",
}
GREY, LINE, INK = "#C8CCD0", "#6B7075", "#1F2328"  # light fill, outline, text; on white
MAX_ROWS = 5_000  # Altair refuses more, and nobody can read them
NEVER_MS = 10**9  # 11 days
WIDTH = 560  # px of a plot; with labels, axis and padding less than 720
ROW = 34  # px

SOLID, DASHED, DOTTED = [1, 0], [7, 3], [2, 2]
OURS = "tao"  # the policy that every chart emphasizes
HIGHER_IS_BETTER = (
    *("decode_tok_s", "decode_tok_s_makespan", "credit_realized"),
    *("prefix_hit_rate", "prefix_hit_rate_with_recompute"),
)

Chart = TypeVar("Chart", alt.Chart, alt.LayerChart, alt.HConcatChart, alt.VConcatChart)


class Look(NamedTuple):
    """How a policy is drawn: a color and, for those who do not see it, a shape and a dash."""

    color: str
    shape: str
    dash: list[int]


LOOKS = {
    "tao": Look(PALETTE["blue"], "circle", SOLID),
    "previous": Look(PALETTE["sky"], "circle", DASHED),
    "oracle": Look(PALETTE["sky"], "diamond", DOTTED),
    "thunderagent": Look(PALETTE["vermilion"], "square", SOLID),
    "thunderagent_paper": Look(PALETTE["vermilion"], "diamond", DASHED),
    "thunderagent_dynamo": Look(PALETTE["vermilion"], "cross", DOTTED),
    "vllm_cache_aware": Look(PALETTE["orange"], "triangle-up", SOLID),
    "vllm_rr": Look(PALETTE["orange"], "triangle-right", DASHED),
    "vllm_dplb": Look(PALETTE["orange"], "cross", DOTTED),
    "sglang_cache_aware": Look(PALETTE["purple"], "triangle-down", SOLID),
    "llmd": Look(PALETTE["purple"], "square", DASHED),
    "dynamo_kv": Look(PALETTE["green"], "diamond", SOLID),
    "sticky": Look(LINE, "cross", SOLID),
    "session_hash": Look(LINE, "triangle-left", DASHED),
}
"""The looks of the built-in policies, the same in every chart; a hue per family."""

_OTHERS = [
    Look(INK, shape, dash)
    for dash in (SOLID, DASHED, DOTTED)
    for shape in ("diamond", "cross", "triangle-down", "triangle-right")
]


def looks(names: Iterable[str]) -> dict[str, Look]:
    """The look of each policy; one of your own gets a dark one by its name, the same in every chart.

    Only where two of them would look the same in one chart does the second take the next.

    >>> looks(["mine", "tao"])["tao"].color == PALETTE["blue"]
    True
    """
    found: dict[str, Look] = {}
    for name in names:
        start = crc32(name.encode())
        own = [_OTHERS[(start + k) % len(_OTHERS)] for k in range(len(_OTHERS))]
        found[name] = LOOKS.get(name) or next((x for x in own if x not in found.values()), own[0])
    return found


def policies(frame: pd.DataFrame) -> list[str]:
    """Each policy once, in the order of the rows, but the emphasized one first."""
    return sorted(dict.fromkeys(frame["policy"]), key=lambda name: name != OURS)


def grouped(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows policy by policy, the emphasized one first: its wide line lies below the thin ones."""
    return pd.concat([frame[frame["policy"] == name] for name in policies(frame)])


def by_policy(names: Sequence[str]) -> dict[str, Any]:
    """The encodings that tell policies apart, with one legend for both."""
    legend = alt.Legend(
        title=None, orient="bottom", columns=5, symbolSize=90, symbolOpacity=1, symbolStrokeWidth=0
    )
    colors, shapes, _ = map(list, zip(*looks(names).values(), strict=True))
    return {
        "color": alt.Color("policy:N", scale=alt.Scale(domain=list(names), range=colors), legend=legend),
        "shape": alt.Shape("policy:N", scale=alt.Scale(domain=list(names), range=shapes), legend=legend),
    }


def lines(base: alt.Chart, names: Sequence[str]) -> list[alt.Chart]:
    """A dashed or solid line per policy and the points on it; ours is wide and lies below the others."""
    dashes = alt.Scale(domain=list(names), range=[look.dash for look in looks(names).values()])
    dash = alt.StrokeDash("policy:N", scale=dashes, legend=None)
    return [
        base.mark_line().encode(strokeWidth=emphasized(5, 1.7), strokeDash=dash),
        base.mark_point(filled=True, opacity=1).encode(size=emphasized(150, 60)),
    ]


def emphasized(ours: float, others: float) -> Any:
    """A value that is another one for the policy that charts emphasize."""
    return alt.when(alt.datum.policy == OURS).then(alt.value(ours)).otherwise(alt.value(others))


def rows_of(names: Sequence[str]) -> alt.Y:
    """One row per policy, the emphasized one's name in bold."""
    bold: Any = alt.condition(f"datum.value == '{OURS}'", alt.value("bold"), alt.value("normal"))
    axis = alt.Axis(labelFontWeight=bold, labelFontSize=12, labelLimit=140, ticks=False, domain=False)
    return alt.Y("policy:N", sort=list(names), title=None, axis=axis)


def words(metric: str, unit: bool = True) -> str:
    """A metric's name, with its unit, for titles.

    >>> words("task_latency_s"), words("decode_tok_s", unit=False), words("pauses")
    ('task latency, s', 'decode throughput', 'pauses')
    """
    for ending, name in (("tok_s_makespan", "throughput over the whole run"), ("tok_s", "throughput")):
        if metric.endswith(ending):
            return metric.removesuffix(ending).replace("_", " ") + name + ", tokens/s" * unit
    name = metric.removesuffix("_s").replace("_", " ").replace("ttft", "time to first token")
    return name + ", s" * (unit and metric.endswith("_s"))


def number(x: float) -> str:
    """A number as descriptions say it.

    >>> number(1234.5), number(0.01234)
    ('1,234', '0.0123')
    """
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}"


def change(x: float) -> str:
    """A relative change with its sign.

    >>> change(-0.1234)
    '−12.3%'
    """
    return f"{x:+.1%}".replace("-", "−")


def spoken(facts: Iterable[tuple[str, str]]) -> str:
    """Facts, collected by what they are about, for a description.

    >>> spoken([("tao", "1 s"), ("tao", "2 s"), ("llmd", "3 s")])
    'tao: 1 s, 2 s; llmd: 3 s'
    """
    about: dict[str, list[str]] = {}
    for name, fact in facts:
        about.setdefault(name, []).append(fact)
    return "; ".join(f"{name}: {', '.join(said)}" for name, said in about.items())


def few_enough(chart: str, rows: int) -> int:
    """The number of rows, refused if it is more than can be drawn."""
    if rows > MAX_ROWS:
        raise InputError(
            f"charts.{chart} was given {rows:,} rows and draws at most {MAX_ROWS:,}; "
            "aggregate them, or show fewer at a time"
        )
    return rows


def checked(chart: str, frame: pd.DataFrame, names: Sequence[str], values: Sequence[str]) -> pd.DataFrame:
    """The columns `names` and `values` of the rows that have all `values`; refused if there are none."""
    needed = list(dict.fromkeys([*names, *values]))
    if missing := [name for name in needed if name not in getattr(frame, "columns", ())]:
        raise InputError(f"charts.{chart} needs a table with {listing(needed)}; {missing[0]!r} is missing")
    kept = frame.loc[:, needed].dropna(subset=list(values))
    if kept.empty:
        raise InputError(f"charts.{chart} was given no rows with values; give it at least one")
    few_enough(chart, len(kept))
    return kept


def text(base: alt.Chart, field: str, **look: Any) -> list[alt.Chart]:
    """Text that stays readable on whatever it lies on: a light outline, and the letters above it."""
    halo: dict[str, Any] = {"stroke": "white", "strokeWidth": 4, "strokeJoin": "round", "opacity": 0.85}
    return [base.mark_text(color=INK, **look, **extra).encode(text=f"{field}:N") for extra in (halo, {})]


def drawn(chart: Chart, title: str, explained: str | list[str], description: str) -> Chart:
    """The chart in the house style, under a title and lines that explain its marks."""
    small: dict[str, Any] = {"subtitleFontSize": 11, "subtitleColor": LINE, "subtitlePadding": 4}
    head = alt.TitleParams(title, subtitle=explained, fontSize=14, fontWeight="bold", offset=10, **small)
    return styled(chart.properties(title=head), description)


def styled(chart: Chart, description: str) -> Chart:
    """The chart in the house style, described for those who do not see it."""
    labels: dict[str, Any] = {"labelFontSize": 11, "labelColor": INK}
    titles: dict[str, Any] = {"titleFontSize": 12, "titleFontWeight": "normal", "titleColor": INK}
    head: dict[str, Any] = {"fontSize": 12, "fontWeight": "normal", "color": INK, "offset": 6}
    config = alt.Config(
        font="Arial, Liberation Sans, Helvetica, sans-serif",
        text=alt.MarkConfig(fontSize=12),
        view=alt.ViewConfig(stroke=None),
        axis=alt.AxisConfig(domainColor=LINE, tickColor=LINE, gridColor="#ECEEF0", **labels, **titles),
        legend=alt.LegendConfig(symbolStrokeColor=LINE, labelLimit=0, **labels, **titles),
        title=alt.TitleConfig(anchor="start", **head),
    )
    # At once: each `configure_...` would copy the whole chart.
    styled: Chart = chart.properties(description=description, background="white", padding=8, config=config)
    return styled


def live(chart: alt.TopLevelSpec) -> alt.JupyterChart:
    """The chart as a widget, without a menu, whose parameters only Python changes.

    The browser loads the drawing library from a public server. With TAO_OFFLINE=1 in the environment each
    chart brings it along instead (about a megabyte), for places without internet.
    """
    if os.environ.get("TAO_OFFLINE") == "1":
        alt.JupyterChart.enable_offline()
    # By default the browser sends each parameter back after 10 ms, which can undo the next quick change.
    return alt.JupyterChart(chart, debounce_wait=NEVER_MS, max_wait=False, embed_options={"actions": False})
