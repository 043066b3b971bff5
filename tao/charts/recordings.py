"""What recordings are like: the tables of `tao.statistics`, alone or beside those of a synthetic twin."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from tao.charts import style
from tao.checks import InputError

SOURCES = ("recorded", "twin")
LEAST_S = 1e-3  # ours: shorter times are drawn there, most clocks tell milliseconds
FEWEST = 10  # ours: of fewer sessions, quantiles are single sessions
BINS = 20  # ours
ALL = "all"
DECADES_S = tuple(10.0**k for k in range(-3, 7))


def beside(recorded: pd.DataFrame, twin: pd.DataFrame) -> pd.DataFrame:
    """The same table of a recording and of its twin, in one, told apart by the column `source`.

    >>> beside(pd.DataFrame({"turns": [3]}), pd.DataFrame({"turns": [4]})).values.tolist()
    [[3, 'recorded'], [4, 'twin']]
    """
    both = zip((recorded, twin), SOURCES, strict=True)
    return pd.concat([table.assign(source=source) for table, source in both], ignore_index=True)


def _sourced(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows with a column `source`, checked."""
    if "source" not in getattr(frame, "columns", ()):
        return frame.assign(source=SOURCES[0]) if isinstance(frame, pd.DataFrame) else frame
    if wrong := sorted(set(map(str, frame["source"])) - set(SOURCES)):
        raise InputError(f"source is {wrong[0]!r}; it must be one of {', '.join(SOURCES)}")
    return frame


def _dash(rows: pd.DataFrame) -> alt.StrokeDash:
    """Solid for what was recorded, dashed for the twin; a legend only where there are both."""
    legend = alt.Legend(title=None, orient="bottom", symbolSize=600) if rows["source"].nunique() > 1 else None
    scale = alt.Scale(domain=list(SOURCES), range=[style.SOLID, style.DASHED])
    return alt.StrokeDash("source:N", scale=scale, legend=legend)


def _twin_words(rows: pd.DataFrame, words: str) -> str:
    return f"{words}; dashed: its synthetic twin" if rows["source"].nunique() > 1 else words


def duration_curves(durations: pd.DataFrame, *, classes: int = 6) -> alt.Chart:
    """Which share of the tool calls ends within which time: a line for all, and for the first `classes`.

    `durations` are rows of `tao.statistics.durations`, in its order: the most frequent classes come first.

    >>> rows = [("all", 0.1, 0.5), ("all", 2.0, 1.0), ("test", 2.0, 1.0)]
    >>> chart = duration_curves(pd.DataFrame(rows, columns=["tool_class", "seconds", "share"]))
    >>> chart.to_dict()["description"].split(": ", 1)[1]
    'all recorded: 0.1, 2 s; test recorded: 2, 2 s.'
    """
    most = len(style.PALETTE)
    if not isinstance(classes, int) or not 0 <= classes <= most:
        raise InputError(f"classes is {classes!r}; it must be a whole number from 0 to {most}")
    names = [name for name in dict.fromkeys(getattr(durations, "tool_class", ())) if name != ALL][:classes]
    rows = style.checked(
        "duration_curves", _sourced(durations), ("tool_class", "source"), ("seconds", "share")
    )
    rows = rows[rows["tool_class"].isin([ALL, *names])]
    rows["at_s"] = rows["seconds"].clip(lower=LEAST_S)
    scale = alt.Scale(domain=[ALL, *names], range=[style.INK, *style.PALETTE.values()][: len(names) + 1])
    axis = alt.Axis(values=list(DECADES_S), format="~g")
    chart: alt.Chart = (
        alt.Chart(rows, width=style.WIDTH, height=300)
        .mark_line(interpolate="step-after")
        .encode(
            x=alt.X("at_s:Q", title="seconds", scale=alt.Scale(type="log", nice=False), axis=axis),
            y=alt.Y("share:Q", title="share of calls", scale=alt.Scale(domain=[0, 1])).axis(format="%"),
            color=alt.Color("tool_class:N", scale=scale, legend=alt.Legend(title=None, orient="bottom")),
            strokeWidth=alt.when(alt.datum.tool_class == ALL).then(alt.value(3)).otherwise(alt.value(1.7)),
            strokeDash=_dash(rows),
            tooltip=["tool_class:N", "source:N", "seconds:Q", alt.Tooltip("share:Q", format=".1%")],
        )
    )
    said = style.spoken(
        (f"{name} {source}", f"{_reached(curve, 0.5)}, {_reached(curve, 0.95)} s")
        for (name, source), curve in rows.groupby(["tool_class", "source"], sort=False)
    )
    return style.drawn(
        chart,
        "How long tools take",
        _twin_words(rows, "share of the calls of a class that end within a time; a logarithmic axis"),
        f"Seconds within which half and 95% of the tool calls end: {said}.",
    )


def _reached(curve: pd.DataFrame, share: float) -> str:
    reached = curve.loc[curve["share"] >= share - 1e-9, "seconds"]
    return style.number(float(reached.iloc[0]))


def context_fan(growth: pd.DataFrame) -> alt.LayerChart:
    """How the prompt grows from turn to turn: median, and where half and nine tenths of the sessions are.

    `growth` are rows of `tao.statistics.growth`; turns that fewer than 10 sessions reach are left out.

    >>> rows = [(1, 10, 10, 20, 30, 40, 50), (2, 10, 20, 30, 40, 50, 60)]
    >>> columns = ["turn", "sessions", "p5", "p25", "p50", "p75", "p95"]
    >>> context_fan(pd.DataFrame(rows, columns=columns)).to_dict()["description"].split(": ", 1)[1]
    'recorded: 30 at turn 1, 40 at turn 2.'
    """
    levels = ("p5", "p25", "p50", "p75", "p95")
    kept = style.checked("context_fan", _sourced(growth), ("source",), ("turn", "sessions", *levels))
    rows = kept[kept["sessions"] >= FEWEST]
    if rows.empty:
        raise InputError(
            f"charts.context_fan was given no turn that {FEWEST} sessions reach; give more sessions"
        )
    x = alt.X("turn:Q", title="turn", scale=alt.Scale(nice=False, zero=False), axis=alt.Axis(tickMinStep=1))
    tips = ["source:N", "turn:Q", "sessions:Q", *(f"{level}:Q" for level in levels)]
    base = alt.Chart(rows, width=style.WIDTH, height=300).encode(x=x, tooltip=tips)
    recorded = base.transform_filter(alt.datum.source == SOURCES[0])
    blue: dict[str, Any] = {"color": style.PALETTE["blue"]}
    edges = {level: base.transform_filter(alt.datum.source == SOURCES[1]) for level in ("p5", "p95")}
    layers = [
        recorded.mark_area(opacity=opacity, **blue).encode(y=_tokens(low), y2=f"{high}:Q")
        for low, high, opacity in (("p5", "p95", 0.15), ("p25", "p75", 0.25))
    ]
    layers.append(base.mark_line(strokeWidth=2.5, **blue).encode(y=_tokens("p50"), strokeDash=_dash(rows)))
    if rows["source"].nunique() > 1:
        for level, edge in edges.items():
            layers.append(
                edge.mark_line(strokeWidth=1.2, strokeDash=style.DASHED, **blue).encode(y=_tokens(level))
            )
    said = style.spoken(
        (str(source), f"{style.number(row['p50'])} at turn {row['turn']}")
        for source, part in rows.groupby("source", sort=False)
        for row in part.iloc[sorted({0, len(part) // 2, len(part) - 1})].to_dict("records")
    )
    return style.drawn(
        alt.LayerChart(layer=layers),
        "How the prompt grows",
        _twin_words(rows, "median; dark: half of the sessions, light: nine tenths"),
        f"Median tokens of the prompt: {said}.",
    )


def _tokens(level: str) -> alt.Y:
    return alt.Y(f"{level}:Q", title="tokens of the prompt", axis=alt.Axis(format="~s"))


def class_shares(tools: pd.DataFrame) -> alt.LayerChart:
    """What each class of tools is of all calls, and of all tool time: two bars a class.

    `tools` are rows of `tao.statistics.tools`, of one recording.

    >>> table = pd.DataFrame([("all", 1, 1), ("test", 1, 1)], columns=["tool_class", *_SHARES])
    >>> class_shares(table).to_dict()["description"].split(": ", 1)[1]
    'test: 100.0% of calls, 100.0% of time.'
    """
    rows = style.checked("class_shares", tools, ("tool_class", *_SHARES), ("share_of_calls",))
    rows = rows[rows["tool_class"] != ALL].fillna(0.0)
    if rows.empty:
        raise InputError("charts.class_shares was given no class but 'all'; give the whole table")
    bars = rows.rename(columns=_SHARES).melt("tool_class", var_name="of", value_name="share")
    bars["words"] = bars["share"].map("{:.1%}".format)
    names, of = list(rows["tool_class"]), list(_SHARES.values())
    color = alt.Color(
        "of:N",
        scale=alt.Scale(domain=of, range=[style.PALETTE["sky"], style.PALETTE["vermilion"]]),
        legend=alt.Legend(title=None, orient="bottom", symbolType="square"),
    )
    base = alt.Chart(bars, width=style.WIDTH - 100, height=alt.Step(14)).encode(
        y=alt.Y("tool_class:N", sort=names, title=None, axis=alt.Axis(labelFontSize=12, ticks=False)),
        yOffset=alt.YOffset("of:N", sort=of),
        x=alt.X("share:Q", title="share", axis=alt.Axis(format="%")),
        tooltip=["tool_class:N", "of:N", "words:N"],
    )
    label = base.mark_text(align="left", dx=3, fontSize=10, color=style.INK).encode(text="words:N")
    said = style.spoken(zip(bars["tool_class"], bars["words"] + " " + bars["of"], strict=True))
    return style.drawn(
        alt.LayerChart(layer=[base.mark_bar().encode(color=color), label]),
        "What kinds of tools are called, and what takes the time",
        "a class's share of all calls, and of the time of all calls",
        f"Shares of the classes of tools: {said}.",
    )


_SHARES = {"share_of_calls": "of calls", "share_of_time": "of time"}


def turn_histogram(turns: pd.DataFrame) -> alt.LayerChart:
    """How many turns sessions have: a bar for each range of turns, a stepped line for the twin.

    `turns` are rows of `tao.statistics.turn_counts`.

    >>> table = pd.DataFrame({"turns": [3, 5, 40], "sessions": [2, 1, 1]})
    >>> turn_histogram(table).to_dict()["description"].split(": ", 1)[1]
    'recorded: 4 sessions, half of them up to 3 turns.'
    """
    kept = style.checked("turn_histogram", _sourced(turns), ("source",), ("turns", "sessions"))
    width = max(-(-int(kept["turns"].max()) // BINS), 1)
    kept["from"] = (kept["turns"].astype(int) - 1) // width * width + 1
    rows = kept.groupby(["source", "from"], sort=True)["sessions"].sum().reset_index()
    rows["to"] = rows["from"] + width
    rows["share"] = rows["sessions"] / rows.groupby("source")["sessions"].transform("sum")
    rows["words"] = [f"{a} to {b - 1} turns" for a, b in zip(rows["from"], rows["to"], strict=True)]
    x = alt.X("from:Q", title="turns of a session", scale=alt.Scale(zero=False, nice=False)).axis(
        tickMinStep=1
    )
    y = alt.Y("share:Q", title="share of sessions", axis=alt.Axis(format="%"))
    base = alt.Chart(rows, width=style.WIDTH, height=260).encode(
        x=x,
        x2="to:Q",
        y=y,
        tooltip=["source:N", "words:N", "sessions:Q", alt.Tooltip("share:Q", format=".1%")],
    )
    recorded, twin = (base.transform_filter(alt.datum.source == source) for source in SOURCES)
    layers = [recorded.mark_bar(color=style.PALETTE["sky"], stroke="white").encode(y2=alt.datum(0))]
    if rows["source"].nunique() > 1:
        layers.append(twin.mark_rule(color=style.INK, strokeWidth=2, strokeDash=style.DASHED))
    said = style.spoken((str(source), _half(part)) for source, part in kept.groupby("source", sort=False))
    return style.drawn(
        alt.LayerChart(layer=layers),
        "How many turns sessions have",
        _twin_words(
            rows, f"share of the sessions, in steps of {width}" if width > 1 else "share of the sessions"
        ),
        f"Turns of sessions: {said}.",
    )


def _half(part: pd.DataFrame) -> str:
    ordered = part.sort_values("turns")
    total = int(ordered["sessions"].sum())
    median = ordered.loc[ordered["sessions"].cumsum() * 2 >= total, "turns"].iloc[0]
    return f"{total:,} sessions, half of them up to {int(median):,} turns"
