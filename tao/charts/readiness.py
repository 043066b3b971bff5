"""How well returns of tools are predicted: the tables of `tao.lab`, recomputed from recordings."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from tao.charts import style
from tao.charts.style import DASHED, DOTTED, INK, PALETTE, SOLID, Look
from tao.checks import InputError, listing

PREDICTORS = {
    "mean": Look(PALETTE["orange"], "square", DASHED),
    "median": Look(PALETTE["green"], "triangle-up", SOLID),
    "survival": Look(PALETTE["blue"], "circle", SOLID),
    "mean by class": Look(PALETTE["vermilion"], "square", DOTTED),
    "median by class": Look(PALETTE["purple"], "triangle-down", DASHED),
    "hindsight": Look(INK, "diamond", DOTTED),
}
"""The looks of the predictors, the same in every chart."""

LOSSES = {"brier": "Brier score", "log_loss": "log loss"}
ENDS = {"start": "when a call begins", "final": "the last before it returns"}


def _known(chart: str, frame: pd.DataFrame, column: str, names: Any) -> pd.DataFrame:
    """The rows, in the order of `names`; refused if another one is among them."""
    if strange := [x for x in frame[column].unique() if x not in names]:
        raise InputError(
            f"charts.{chart}: {column} is {strange[0]!r}; it must be one of {listing(list(names))}"
        )
    return frame.sort_values(column, key=lambda x: x.map(list(names).index), kind="stable")


def _base(frame: pd.DataFrame, column: str, width: int) -> alt.Chart:
    """The rows with a color and a shape per predictor."""
    names = list(dict.fromkeys(frame[column]))
    legend = alt.Legend(title=None, orient="bottom", columns=3, symbolSize=90, symbolStrokeWidth=0)
    colors, shapes, dashes = ([PREDICTORS[name][k] for name in names] for k in range(3))
    scales = [alt.Scale(domain=names, range=x) for x in (colors, shapes, dashes)]
    return alt.Chart(frame, width=width, height=280).encode(
        color=alt.Color(f"{column}:N", scale=scales[0], legend=legend),
        shape=alt.Shape(f"{column}:N", scale=scales[1], legend=legend),
        strokeDash=alt.StrokeDash(f"{column}:N", scale=scales[2], legend=None),
    )


def _lines(base: alt.Chart) -> list[alt.Chart]:
    solid = base.mark_point(filled=True, opacity=1, size=60).encode(strokeDash=alt.value(SOLID))
    return [base.mark_line(strokeWidth=1.8), solid]


def reliability(table: pd.DataFrame, name: str = "", label: str = "recomputed") -> alt.LayerChart:
    """What was said against what happened, of the rows of `tao.lab.reliability`; `name`: of the recording.

    `label`: "recomputed" from a recording, or "simulated" where tool times were drawn.

    >>> rows = [("survival", 0.1, 0.2, 50), ("survival", 0.9, 0.8, 50)]
    >>> chart = reliability(pd.DataFrame(rows, columns=["predictor", "said", "seen", "decisions"]))
    >>> chart.to_dict()["description"].split(": ", 1)[1]
    'survival: said 0.1 seen 0.2, said 0.9 seen 0.8.'
    """
    rows = style.checked("reliability", table, ("predictor", "decisions"), ("said", "seen"))
    rows = _known("reliability", rows, "predictor", PREDICTORS)
    ends = alt.Scale(domain=[0, 1])
    base = _base(rows, "predictor", style.WIDTH - 100).encode(
        x=alt.X("said:Q", scale=ends, title="chance to return within the horizon, as predicted"),
        y=alt.Y("seen:Q", scale=ends, title="share that did return"),
        tooltip=["predictor:N", "said:Q", "seen:Q", "decisions:Q"],
    )
    same = alt.Chart(pd.DataFrame({"said": [0, 1], "seen": [0, 1]})).encode(x="said:Q", y="seen:Q")
    said = style.spoken(
        (row["predictor"], f"said {style.number(row['said'])} seen {style.number(row['seen'])}")
        for row in rows.to_dict("records")
    )
    what = f"What was predicted, and what happened{_of(name)}"
    return style.drawn(
        alt.LayerChart(layer=[same.mark_line(color=style.LINE, strokeDash=[4, 3]), *_lines(base)]),
        what,
        f"{label}; on the dashed line calls return as often as predicted",
        f"{what}, {label}: {said}.",
    )


def _of(name: str) -> str:
    return f", {name}" if name else ""


def prediction_errors(
    table: pd.DataFrame,
    reported: float | None = None,
    name: str = "",
    label: str = "recomputed from the recording",
) -> alt.LayerChart:
    """The share of predictions within 0.5 s, of the rows of `tao.lab.ladder`: at the start, and final ones.

    `reported`: the share of final ones that a paper gives for tools of its own. `label`: where the rows come
    from.

    >>> rows = [("mean", "start", 0.3), ("mean", "final", 0.4)]
    >>> chart = prediction_errors(pd.DataFrame(rows, columns=["statistic", "when", "within"]), 0.829)
    >>> chart.to_dict()["description"].split(": ", 1)[1]
    'mean: start 30.0%, final 40.0%. Line: reported, 82.9% of final predictions.'
    """
    rows = style.checked("prediction_errors", table, ("statistic", "when"), ("within",))
    rows = _known(
        "prediction_errors", _known("prediction_errors", rows, "when", ENDS), "statistic", PREDICTORS
    )
    rows["words"] = rows["within"].map("{:.1%}".format)
    shapes = alt.Scale(domain=list(ENDS), range=["circle", "diamond"])
    colors = alt.Scale(domain=list(ENDS), range=[PALETTE["sky"], PALETTE["blue"]])
    legend = alt.Legend(title=None, orient="bottom", symbolSize=90, labelExpr=f"{ENDS}[datum.label]")
    height = alt.Step(2 * style.ROW, **{"for": "position"})
    base = alt.Chart(rows, width=style.WIDTH - 60, height=height).encode(
        x=alt.X(
            "within:Q",
            scale=alt.Scale(domain=[0, 1]),
            axis=alt.Axis(format="%"),
            title="share of predictions within 0.5 s of the return",
        ),
        y=alt.Y("statistic:N", sort=list(dict.fromkeys(rows["statistic"])), title=None),
        yOffset=alt.YOffset("when:N", sort=list(ENDS)),
        tooltip=["statistic:N", "when:N", "words:N"],
    )
    marks = base.mark_point(filled=True, size=90, opacity=1).encode(
        color=alt.Color("when:N", scale=colors, legend=legend),
        shape=alt.Shape("when:N", scale=shapes, legend=legend),
    )
    layers = [marks, base.mark_text(align="left", dx=9, fontSize=11, color=INK).encode(text="words:N")]
    note = ""
    if reported is not None:
        note = f"line: reported, {reported:.1%} of final predictions"
        line = alt.Chart(pd.DataFrame({"within": [reported]})).encode(x="within:Q")
        layers.insert(0, line.mark_rule(color=INK, strokeDash=[4, 3]))
    said = style.spoken((r["statistic"], f"{r['when']} {r['words']}") for r in rows.to_dict("records"))
    what = f"How often the return was predicted to half a second{_of(name)}"
    return style.drawn(
        alt.LayerChart(layer=layers),
        what,
        [label, note] if note else label,
        f"{what}, {label.split()[0]}: {said}.{f' {note[0].upper()}{note[1:]}.' if note else ''}",
    )


def readiness_gain(
    paired: pd.DataFrame, *, score: str = "brier", ours: str = "survival", name: str = ""
) -> alt.LayerChart:
    """A predictor's loss minus that of each other one, with its interval, of the rows of `tao.lab.paired`.

    >>> rows = [("mean", "brier", -0.03, -0.04, -0.02)]
    >>> columns = ["against", "score", "difference", "boot_lo", "boot_hi"]
    >>> readiness_gain(pd.DataFrame(rows, columns=columns)).to_dict()["description"].split(": ", 1)[1]
    'mean: −0.03 (−0.04 to −0.02).'
    """
    if score not in LOSSES:
        raise InputError(f"score is {score!r}; it must be one of {listing(list(LOSSES))}")
    rows = style.checked("readiness_gain", paired, ("against", "score"), ("difference", "boot_lo", "boot_hi"))
    rows = _known("readiness_gain", rows[rows["score"] == score], "against", PREDICTORS)
    ends = [rows[column].map(style.number) for column in ("difference", "boot_lo", "boot_hi")]
    rows["words"] = (ends[0] + " (" + ends[1] + " to " + ends[2] + ")").str.replace("-", "−")
    base = alt.Chart(rows, width=style.WIDTH - 140, height=alt.Step(style.ROW)).encode(
        y=alt.Y("against:N", sort=list(rows["against"]), title=None), tooltip=["against:N", "words:N"]
    )
    x = alt.X(
        "boot_lo:Q", title=f"{LOSSES[score]} of {ours}, minus that of the other", scale=alt.Scale(zero=True)
    )
    zero = alt.Chart(pd.DataFrame({"boot_lo": [0.0]})).encode(x="boot_lo:Q")
    layers = [
        zero.mark_rule(color=style.LINE),
        base.mark_rule(strokeWidth=2, color=PALETTE["blue"]).encode(x=x, x2="boot_hi:Q"),
        base.mark_point(filled=True, shape="diamond", size=110, opacity=1, color=PALETTE["blue"]).encode(
            x="difference:Q"
        ),
        base.mark_text(dy=-11, fontSize=11, color=INK).encode(x="difference:Q", text="words:N"),
    ]
    what = f"{LOSSES[score]} of {ours} against other predictors{_of(name)}"
    return style.drawn(
        alt.LayerChart(layer=layers),
        what,
        f"recomputed; left of 0 {ours} is better; line: 95 % interval over sessions",
        f"{what}, difference and 95 % interval over sessions: "
        f"{style.spoken(zip(rows['against'], rows['words'], strict=True))}.",
    )


def readiness_sweep(
    table: pd.DataFrame, parameter: str, *, score: str = "brier", name: str = ""
) -> alt.LayerChart:
    """A loss over the values of one parameter, a line per predictor, of the rows of `tao.lab.sweep`.

    >>> rows = [("horizon_s", 0.5, "mean", 0.1), ("horizon_s", 1.0, "mean", 0.2)]
    >>> table = pd.DataFrame(rows, columns=["parameter", "value", "predictor", "brier"])
    >>> readiness_sweep(table, "horizon_s").to_dict()["description"].split(": ", 1)[1]
    'mean: 0.1 at 0.5, 0.2 at 1.'
    """
    if score not in LOSSES:
        raise InputError(f"score is {score!r}; it must be one of {listing(list(LOSSES))}")
    rows = style.checked("readiness_sweep", table, ("parameter", "predictor"), ("value", score))
    rows = rows[rows["parameter"] == parameter]
    if rows.empty:
        found = listing(sorted(set(table["parameter"])))
        raise InputError(f"charts.readiness_sweep: nothing of {parameter!r} is in the table, only {found}")
    rows = _known("readiness_sweep", rows, "predictor", PREDICTORS)
    base = _base(rows, "predictor", style.WIDTH - 100).encode(
        x=alt.X("value:Q", title=style.words(parameter)),
        y=alt.Y(f"{score}:Q", title=f"{LOSSES[score]} (less is better)"),
        tooltip=["predictor:N", "value:Q", f"{score}:Q"],
    )
    said = style.spoken(
        (row["predictor"], f"{style.number(row[score])} at {style.number(row['value'])}")
        for row in rows.to_dict("records")
    )
    what = f"{LOSSES[score]} by {style.words(parameter, unit=False)}{_of(name)}"
    return style.drawn(
        alt.LayerChart(layer=_lines(base)), what, "recomputed from the recording", f"{what}: {said}."
    )
