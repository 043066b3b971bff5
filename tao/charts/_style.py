"""One style for all charts: colors, sizes, checks of the rows, and the widget that shows a chart."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

import altair as alt
import pandas as pd

from tao.checks import InputError

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
PLOT_WIDTH = 560  # px; with labels, axis and padding less than 720

SOLID, DASHED, DOTTED = [1, 0], [7, 3], [2, 2]
FAMILIES = (  # a hue per family of policies; its members differ in shape and dash
    ("blue", ("tao",)),
    ("sky", ("previous", "oracle")),
    ("vermilion", ("thunderagent", "thunderagent_paper", "thunderagent_dynamo")),
    ("orange", ("vllm_cache_aware", "vllm_rr", "vllm_dplb")),
    ("purple", ("sglang_cache_aware", "llmd")),
    ("green", ("dynamo_kv",)),
)
OURS = "tao"  # the policy that every chart emphasizes
HIGHER_IS_BETTER = (
    *("decode_tok_s", "decode_tok_s_makespan", "credit_realized"),
    *("prefix_hit_rate", "prefix_hit_rate_with_recompute"),
)

Chart = TypeVar("Chart", alt.Chart, alt.LayerChart, alt.HConcatChart)


class Look(NamedTuple):
    """How a policy is drawn: a color and, for those who do not see it, a shape and a dash."""

    color: str
    shape: str
    dash: list[int]


_MARKS = (("circle", SOLID), ("square", DASHED), ("triangle-up", DOTTED))
LOOKS = {
    name: Look(PALETTE[hue], *mark)
    for hue, names in FAMILIES
    for name, mark in zip(names, _MARKS, strict=False)
} | {"sticky": Look(LINE, "circle", SOLID), "session_hash": Look(LINE, "square", DASHED)}
"""The looks of the built-in policies, the same in every chart."""

_OTHERS = [
    Look(INK, shape, dash)
    for dash in (SOLID, DASHED, DOTTED)
    for shape in ("diamond", "cross", "triangle-down", "triangle-right")
]


def looks(names: Iterable[str]) -> dict[str, Look]:
    """The look of each policy; one of your own gets a dark one by its name, the same in every chart.

    Only where two of them would look the same in one chart does the second take the next.

    >>> looks(["sticky", "tao"])["tao"].color == PALETTE["blue"]
    True
    """
    found: dict[str, Look] = {}
    for name in names:
        start = crc32(name.encode())
        own = [_OTHERS[(start + k) % len(_OTHERS)] for k in range(len(_OTHERS))]
        found[name] = LOOKS.get(name) or next((x for x in own if x not in found.values()), own[0])
    return found


def by_policy(policies: Sequence[str], columns: int = 4) -> dict[str, Any]:
    """The encodings that tell policies apart, with one legend for all three."""
    scales: dict[str, list[Any]] = {
        "color": [look.color for look in looks(policies).values()],
        "shape": [look.shape for look in looks(policies).values()],
        "strokeDash": [look.dash for look in looks(policies).values()],
    }
    legend = alt.Legend(title=None, orient="bottom", columns=columns, symbolSize=90, symbolStrokeWidth=2)
    channels = {"color": alt.Color, "shape": alt.Shape, "strokeDash": alt.StrokeDash}
    return {
        name: channels[name]("policy:N", scale=alt.Scale(domain=list(policies), range=values), legend=legend)
        for name, values in scales.items()
    }


def emphasized(ours: float, others: float) -> Any:
    """A value that is another one for the policy that charts emphasize."""
    return alt.when(alt.datum.policy == OURS).then(alt.value(ours)).otherwise(alt.value(others))


def ours_last(policies: Iterable[str]) -> list[str]:
    """Each policy once, in the order given, the emphasized one last, so that it is drawn on top."""
    return sorted(dict.fromkeys(policies), key=lambda name: name == OURS)


def policy_axis(policies: Sequence[str]) -> alt.Y:
    """Rows of policies, the emphasized one in bold."""
    ours: Any = alt.condition(f"datum.value == '{OURS}'", alt.value("bold"), alt.value("normal"))
    axis = alt.Axis(labelFontWeight=ours, labelLimit=140, labelFontSize=12, ticks=False, domain=False)
    return alt.Y("policy:N", sort=list(policies), title=None, axis=axis)


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


def few_enough(chart: str, rows: int) -> int:
    """The number of rows, refused if it is more than can be drawn."""
    if rows > MAX_ROWS:
        raise InputError(
            f"charts.{chart} was given {rows:,} rows and draws at most {MAX_ROWS:,}; "
            "aggregate them, or show fewer at a time"
        )
    return rows


def checked(chart: str, frame: pd.DataFrame, *columns: str, values: Sequence[str] = ()) -> pd.DataFrame:
    """The rows that have all `values`; refused if columns are missing, or if there are none or too many."""
    needed = [*columns, *values]
    missing = [name for name in needed if name not in frame]
    if missing:
        raise InputError(f"charts.{chart} needs the columns {', '.join(needed)}; {missing[0]!r} is missing")
    kept = frame.dropna(subset=list(values))
    if kept.empty:
        raise InputError(f"charts.{chart} was given no rows with values; give it at least one")
    few_enough(chart, len(kept))
    return kept


def title(text: str, *lines: str) -> alt.TitleParams:
    """A chart's title, with lines of explanation below it."""
    style: dict[str, Any] = {"subtitleFontSize": 11, "subtitleColor": LINE, "subtitlePadding": 4}
    return alt.TitleParams(text, subtitle=list(lines), fontSize=14, fontWeight="bold", offset=10, **style)


def styled(chart: Chart, description: str) -> Chart:
    """The chart in the house style, described for those who do not see it."""
    text: dict[str, Any] = {"labelFontSize": 11, "labelColor": INK}
    titles: dict[str, Any] = {"titleFontSize": 12, "titleFontWeight": "normal", "titleColor": INK}
    return (
        chart.properties(description=description, background="white", padding=8)
        .configure(font="Arial, Liberation Sans, Helvetica, sans-serif")
        .configure_text(fontSize=12)
        .configure_view(stroke=None)
        .configure_axis(domainColor=LINE, tickColor=LINE, gridColor="#ECEEF0", **text, **titles)
        .configure_legend(symbolStrokeColor=LINE, labelLimit=0, **text, **titles)
        .configure_title(anchor="start", fontSize=12, fontWeight="normal", color=INK, offset=6)
    )


def live(chart: alt.TopLevelSpec) -> alt.JupyterChart:
    """The chart as a widget, without a menu, whose parameters only Python changes.

    The browser loads the drawing library from a public server. With TAO_OFFLINE=1 in the environment each
    chart brings it along instead (about a megabyte), for places without internet.
    """
    if os.environ.get("TAO_OFFLINE") == "1":
        alt.JupyterChart.enable_offline()
    # By default the browser sends each parameter back after 10 ms, which can undo the next quick change.
    return alt.JupyterChart(chart, debounce_wait=NEVER_MS, max_wait=False, embed_options={"actions": False})
