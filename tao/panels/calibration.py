"""CalibrationPanel: how well returns are predicted over many calls, by each statistic of history."""

from __future__ import annotations

from typing import Any, NamedTuple

import altair as alt
import ipywidgets as widgets
import pandas as pd

from tao import charts, lab
from tao.model import InputError
from tao.panels import html
from tao.panels.base import Panel, guard, wrapped
from tao.panels.table import Table
from tao.workloads import WORKLOADS

SHOWN = {"swe-lite": "many short commands", "terminal-bench": "a few long ones among many short"}
VIEWS = {
    "within 0.5 s": "how often the return was predicted to half a second",
    "said and seen": "calibration",
}
STATISTICS = ("mean", "median", "survival")
TASKS, SEED = 40, 0
FEW = 30  # decisions; the share of so few says little
CARD = 590, 424  # px
BOX_HEIGHT = 290, 122  # px, of the tables
SIMULATED = "simulated (tool times drawn)"


class Facts(NamedTuple):
    """The calls of a workload, and the tables of `tao.lab` about them."""

    calls: int
    errors: pd.DataFrame
    scores: pd.DataFrame
    reliability: pd.DataFrame
    paired: pd.DataFrame


class CalibrationPanel(Panel):
    """Drawn tool calls of a workload, predicted from nothing but those before: errors and calibration.

    `workload` and `view` say what is shown; `facts` holds the tables, `closest` the statistic whose final
    predictions are most often within half a second, `best` the one of least Brier score.

    >>> panel = CalibrationPanel()
    >>> panel.facts.calls
    1491
    >>> panel.close()
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, Facts] = {}
        self.cards: dict[tuple[str, str], widgets.Box] = {}
        self.toggles = [
            widgets.ToggleButtons(
                options=list(options),
                tooltips=list(options.values()),
                description=name,
                style={"button_width": "120px", "description_width": "64px"},
                layout={"width": "330px", "margin": "2px"},
            )
            for name, options in (("Workload", SHOWN), ("Show", VIEWS))
        ]
        for toggle in self.toggles:
            toggle.observe(self._on_toggle, "value")
        self.figure = widgets.VBox(layout={"width": f"{CARD[0]}px", "max_width": "100%"})
        self.lists = [widgets.HTML() for _ in BOX_HEIGHT]
        side = widgets.VBox(self.lists, layout={"flex": "1 1 420px", "min_width": "0", "grid_gap": "6px"})
        self.root.children = [
            wrapped(*self.toggles),
            widgets.VBox([self.status, self.error]),
            wrapped(self.figure, side),
        ]
        self._render()

    @property
    def workload(self) -> str:
        """The workload whose calls are predicted; set it to another of `SHOWN`."""
        return str(self.toggles[0].value)

    @workload.setter
    def workload(self, name: str) -> None:
        self.toggles[0].value = _one_of("workload", name, SHOWN)

    @property
    def view(self) -> str:
        """Which figure is shown; set it to another of `VIEWS`."""
        return str(self.toggles[1].value)

    @view.setter
    def view(self, name: str) -> None:
        self.toggles[1].value = _one_of("view", name, VIEWS)

    @property
    def facts(self) -> Facts:
        """The tables about the workload shown."""
        if self.workload not in self._known:
            self._known[self.workload] = _facts(self.workload)
        return self._known[self.workload]

    @property
    def closest(self) -> str:
        """The statistic whose final predictions are most often within half a second."""
        final = self._final()
        return str(final["within"].idxmax())

    @property
    def best(self) -> str:
        """The statistic of least Brier score, about the next second."""
        return str(self.facts.scores.set_index("predictor")["brier"].idxmin())

    def chart(self) -> alt.LayerChart:
        """The figure as a chart of its own."""
        if self.view == "said and seen":
            return charts.reliability(self.facts.reliability, self.workload, SIMULATED)
        within = lab.PAPER["within"]
        return charts.prediction_errors(self.facts.errors, within, self.workload, SIMULATED)

    def text(self) -> str:
        """Every number of the panel, in plain text."""
        tables = *self._tables(), self._reliability()
        return "\n\n".join([self._headline(), *(table.text() for table in tables)])

    def _final(self) -> pd.DataFrame:
        errors = self.facts.errors
        return errors[errors["when"] == "final"].set_index("statistic")

    def _headline(self) -> str:
        shares = ", ".join(f"{name} {row['within']:.1%}" for name, row in self._final().iterrows())
        return (
            f"{self.workload}, {self.facts.calls:,} calls: final predictions within 0.5 s: {shares} "
            f"(simulated). Surest about the next second: {self.best}."
        )

    def _tables(self) -> list[Table]:
        rows = [
            (
                str(row["statistic"]),
                f"simulated, {row['when']}",
                f"{row['within']:.1%}",
                f"{row['mae_s']:.3f} s",
                f"{row['never']:.1%}",
            )
            for row in self.facts.errors.to_dict("records")
        ]
        paper = f"{lab.PAPER['within']:.1%}", f"{lab.PAPER['mae_s']:.3f} s"
        rows.append(("TAO paper", "reported, final", *paper, "not told"))
        columns = ("statistic", "predictions", "within 0.5 s", "mean error", "never back")
        return [Table("How far off", columns, rows), self._scores()]

    def _scores(self) -> Table:
        gain = {
            row["against"]: row for row in self.facts.paired.to_dict("records") if row["score"] == "brier"
        }
        rows, looks = [], 0
        for row in self.facts.scores.to_dict("records"):
            name, looks, against = str(row["predictor"]), int(row["decisions"]), ""
            if name in gain:
                low, mean, high = (f"{gain[name][key]:+.3f}" for key in ("boot_lo", "difference", "boot_hi"))
                against = f"{mean} ({low} to {high})".replace("-", "−")
            rows.append((name, f"{row['brier']:.3f}", f"{row['log_loss']:.3f}", against))
        caption = f"Back within the next second? {looks:,} looks; less is better"
        return Table(caption, ("statistic", "Brier score", "log loss", "survival minus it, 95 %"), rows)

    def _reliability(self) -> Table:
        rows = [
            (str(row["predictor"]), f"{row['said']:.2f}", f"{row['seen']:.2f}", int(row["decisions"]))
            for row in self.facts.reliability.to_dict("records")
        ]
        caption = f"Said and seen, where at least {FEW} looks said about the same"
        return Table(caption, ("statistic", "said", "seen", "looks"), rows)

    def _render(self) -> None:
        key = self.workload, self.view
        if key not in self.cards:
            card = widgets.Box([charts.live(self.chart())], layout={"height": f"{CARD[1]}px"})
            card.add_class("tao-card")
            self.cards[key] = card
            self.figure.children = list(self.cards.values())
        for name, card in self.cards.items():
            card.layout.display = None if name == key else "none"
        self.status.value = html.status(self._headline())
        tables = self._tables()
        if self.view == "said and seen":
            tables[0] = self._reliability()
        for box, table, height in zip(self.lists, tables, BOX_HEIGHT, strict=True):
            box.value = html.scroll(table.html(), table.caption, height)

    @guard
    def _on_toggle(self, change: dict[str, Any]) -> None:
        self._render()


def _one_of(what: str, name: str, known: dict[str, str]) -> str:
    if name not in known:
        raise InputError(f"{what} is {name!r}; it must be one of {', '.join(known)}")
    return name


def _facts(workload: str) -> Facts:
    """The lab's tables about the three statistics."""
    calls = lab.ToolCalls.of_workload(WORKLOADS[workload](seed=SEED, tasks=TASKS))
    said = lab.chances(calls)
    scores, reliability = lab.scores(said), lab.reliability(said)
    kept = reliability["predictor"].isin(STATISTICS) & (reliability["decisions"] >= FEW)
    return Facts(
        len(calls),
        lab.ladder(calls),
        scores[scores["predictor"].isin(STATISTICS)],
        reliability[kept].reset_index(drop=True),
        lab.paired(said, against=[name for name in STATISTICS if name != "survival"]),
    )
