"""SnapshotPanel: step through frozen clusters, see how each planner fills them, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import ipywidgets as widgets
import pandas as pd

from tao import charts, explain, library, planners
from tao.model import InputError, Params, Plan, Snapshot, Value
from tao.panels import html, words
from tao.panels.base import guard, wrapped
from tao.panels.figure import Figure
from tao.panels.stepper import Stepper
from tao.panels.table import Table

SHOWN = {
    "dp": "dynamic programming, the paper's: all places together, sizes rounded up to quanta",
    "short_first": "smallest first, each to the node with most room",
    "bfd": "best-fit decreasing: largest first, each to the node with least room left",
    "worst_fit": "worst-fit decreasing: largest first, each to the node with most room",
    "fifo": "longest waiting first, each to the node with most room",
    "exact": "all places together on true sizes, with a proof",
}
"""The planners that the panel offers, in words."""

BOX_HEIGHT = 176  # px, of each box with a table
TITLE_HEIGHT = 24  # px
LIST_WIDTHS = 380, 330, 330  # px, at least: comparison, admitted, deferred


class SnapshotPanel(Stepper):
    """Named snapshots to step through; any planner's decision on each, with its reasons and its rivals.

    Without `snapshots` it shows those of the package, constructed ones first. `snapshot`, `plan` (of the
    planner chosen) and `plans` are plain objects; set `step` and `planner` to drive the panel from Python.
    `banner`: what stands above the figure, such as where the snapshots were taken.

    >>> panel = SnapshotPanel()
    >>> panel.planner = "short_first"
    >>> panel.plan.value.credit, panel.best.value.credit, panel.regret.credit
    (13624, 16791, 3167)
    >>> panel.close()
    """

    def __init__(
        self,
        snapshots: Sequence[tuple[str, Snapshot]] | None = None,
        params: Params | None = None,
        banner: str = "",
    ) -> None:
        self.banner = banner
        self.snapshots = tuple(packaged() if snapshots is None else snapshots)
        super().__init__(len(self.snapshots), "Snapshot")
        self.params = params or Params()
        self.plans: dict[str, Plan] = {}
        self.toggle = widgets.ToggleButtons(
            options=list(SHOWN),
            tooltips=list(SHOWN.values()),
            description="Planner",
            style={"button_width": "88px", "description_width": "56px"},
            layout={"width": "618px", "margin": "2px"},
        )
        self.toggle.observe(self._on_planner, "value")
        self._decide()
        self._lay_out()
        self._render()

    @property
    def planner(self) -> str:
        """The name of the planner shown; set it to switch."""
        return str(self.toggle.value)

    @planner.setter
    def planner(self, name: str) -> None:
        if name not in SHOWN:
            raise InputError(f"planner is {name!r}; this panel shows {', '.join(SHOWN)}")
        self.toggle.value = name

    @property
    def plan(self) -> Plan:
        """The decision of the planner shown."""
        return self.plans[self.planner]

    @property
    def best(self) -> Plan:
        """The plan of highest value; of equals, the first in the panel's order."""
        return max(self.plans.values(), key=lambda plan: plan.value)

    @property
    def regret(self) -> Value:
        """What the plan shown gives up against the best one."""
        return explain.regret(self.plan, self.best)

    def draw(self) -> None:
        """Plan the current snapshot with every planner and show the result."""
        self._decide()
        self._render()

    def chart(self) -> alt.HConcatChart:
        """The figure as a chart of its own."""
        return self._titled(charts.node_bars(self._bars()))

    def _titled(self, chart: alt.HConcatChart) -> alt.HConcatChart:
        return chart.properties(title=self.banner) if self.banner else chart

    def text(self) -> str:
        """The panel in plain text: snapshot, decision, every table, and why no plan can do better."""
        known, facts = words.origin(self.name, self.snapshot)
        lines = f"{self.name}: {known}", facts, self._headline(), self._guarantee()
        proof = explain.certificate(self.snapshot, self.plan, self.params).words
        return "\n\n".join(["\n".join(lines), *(table.text() for table in self._tables()), proof])

    def _decide(self) -> None:
        name, snapshot = self.snapshots[self.step - 1]
        plans = {planner: planners.plan(snapshot, planner, self.params) for planner in SHOWN}
        self.name, self.snapshot, self.plans = name, snapshot, plans

    def _lay_out(self) -> None:
        nodes = max(len(snapshot.nodes) for _, snapshot in self.snapshots)
        rows = max(2 * len(snapshot.nodes) + len(snapshot.pool) for _, snapshot in self.snapshots)
        chart = self._titled(charts.node_bars(self._bars(), nodes, rows))
        width, height = charts.node_bars_size(nodes)
        self.figure = Figure(chart, "bars", (width, height + (TITLE_HEIGHT if self.banner else 0)))
        self.origin, self.guarantee = widgets.HTML(), widgets.HTML()
        self.lists = [
            widgets.HTML(layout={"flex": f"1 1 {width}px", "min_width": "0"}) for width in LIST_WIDTHS
        ]
        self.lists[0].add_class("tao-narrow")
        self.root.children = [
            wrapped(self.controls, self.toggle),
            self.origin,
            widgets.VBox([self.status, self.error, self.guarantee]),
            wrapped(self.figure.widget, *self.lists),
        ]

    def _render(self) -> None:
        nodes, *others = self._tables()
        self.origin.value = html.lines(*words.origin(self.name, self.snapshot), room="two", name=self.name)
        self.status.value = html.status(self._headline())
        self.guarantee.value = html.lines(self._guarantee(), room="three")
        self.figure.update(charts.node_bars_value(self._bars()), nodes.html())
        for box, table in zip(self.lists, others, strict=True):
            box.value = html.scroll(table.html(), table.caption, BOX_HEIGHT)

    def _bars(self) -> pd.DataFrame:
        return words.bars(self.snapshot, self.plan, self.params)

    def _tables(self) -> list[Table]:
        return [
            words.nodes(self._bars()),
            words.comparison(self.plans, self.best, self.planner),
            words.admitted(self.snapshot, self.plan, self.params),
            words.deferred(self.snapshot, self.plan, self.params),
        ]

    def _headline(self) -> str:
        asked, made_by = self.planner, self.plan.planner
        who = asked if asked == made_by else f"{asked} (placed by {made_by})"
        return words.headline(who, self.plan, self.best, len(self.snapshot.pool))

    def _guarantee(self) -> str:
        how = f"{self.planner}: {SHOWN[self.planner]}."
        sentences = (
            how,
            words.guarantee(self.plan, self.params, self.plans["exact"]),
            words.regret(self.plan, self.best),
        )
        return " ".join(filter(None, sentences))

    @guard
    def _on_planner(self, change: dict[str, Any]) -> None:
        self._render()


def packaged() -> list[tuple[str, Snapshot]]:
    """The snapshots that come with the package: constructed ones first, then the recorded ones in order."""
    recorded = [name for name in library.snapshot_names() if name not in library.PRESETS]
    return [(name, library.load(name)) for name in (*library.PRESETS, *recorded)]
