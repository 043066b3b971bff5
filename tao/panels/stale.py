"""StalePanel: a plan is made on a frozen snapshot while the cluster moves on; what of it still holds?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import altair as alt
import ipywidgets as widgets

from tao import charts, library
from tao.changes import CHANGES, EXAMPLE
from tao.model import InputError, Params, Snapshot
from tao.panels import html, stale_words
from tao.panels.base import guard, wrapped
from tao.panels.figure import Figure
from tao.panels.stale_words import Story
from tao.panels.stepper import Stepper
from tao.worker import Proposal, Verdict, propose

BOX_HEIGHT = 206, 100  # px, of the tables: placements, nodes
MOST_S = 5.0


class StalePanel(Stepper):
    """A background plan from its snapshot to the moment when it is applied, step by step, in virtual time.

    `changes` names what happens meanwhile (some of `tao.changes.CHANGES`), `delay_s` how long the plan
    takes, `look` whether it is revalidated before it is applied. `proposal`, `verdict`, `live` and
    `overfull` are plain objects.

    >>> panel = StalePanel()
    >>> panel.changes = ["node filled"]
    >>> [(d.placement.session, d.reason) for d in panel.verdict.dropped]
    [('s06', 'would overflow')]
    >>> panel.close()
    """

    def __init__(self, changes: Iterable[str] = (), params: Params | None = None) -> None:
        params = params or Params()
        snapshot = library.load(EXAMPLE)
        proposal = propose(snapshot, "dp", params)
        self.story = Story(snapshot, proposal, _in_order(changes), 1.0, True, params)
        super().__init__(len(self.story.moments), "Moment")
        self._writing = False
        self._make_controls()
        self._lay_out()
        self.draw()

    @property
    def changes(self) -> tuple[str, ...]:
        """What happens while the plan is made, in order; set it to other names of `CHANGES`."""
        return self.story.happening

    @changes.setter
    def changes(self, names: Iterable[str]) -> None:
        self._change(happening=_in_order(names))

    @property
    def delay_s(self) -> float:
        """How many seconds the plan takes; set it between 0 and 5."""
        return self.story.delay_s

    @delay_s.setter
    def delay_s(self, seconds: float) -> None:
        if not 0 <= seconds <= MOST_S:
            raise InputError(f"delay_s is {seconds!r}; it must be from 0 to {MOST_S:g} s")
        self._change(delay_s=float(seconds))

    @property
    def look(self) -> bool:
        """Whether the plan is revalidated before it is applied; set it to False to apply it blindly."""
        return self.story.look

    @look.setter
    def look(self, look: bool) -> None:
        self._change(look=bool(look))

    @property
    def proposal(self) -> Proposal:
        """The plan made on the frozen snapshot, with its signature."""
        return self.story.proposal

    @property
    def live(self) -> Snapshot:
        """The cluster at the current step."""
        return self.story.moments[self.step - 1].live

    @property
    def verdict(self) -> Verdict:
        """What is applied in the end, and what is dropped and why."""
        return self.story.verdict

    @property
    def overfull(self) -> dict[str, int]:
        """The nodes that hold too much in the end, and by how many tokens."""
        return self.story.overfull

    def draw(self) -> None:
        """Show the current moment."""
        story, step = self.story, self.step
        tables = stale_words.placements(story, step), stale_words.nodes(story, step)
        self.figure.update(charts.stale_plan_value(stale_words.rows(story, step)), tables[0].html())
        self.status.value = html.status(stale_words.headline(story, step))
        self.verdict_line.value = html.lines(stale_words.outcome(story, step), room="two")
        for box, table, height in zip(self.lists, tables, BOX_HEIGHT, strict=True):
            box.value = html.scroll(table.html(), table.caption, height)

    def chart(self) -> alt.LayerChart:
        """The figure as a chart of its own."""
        return charts.stale_plan(stale_words.rows(self.story, self.step), self._lanes())

    def text(self) -> str:
        """What happened so far, how each placement stands, and the room on each node, in plain text."""
        story, step = self.story, self.step
        happened = [f"  {m.at_s:.1f} s  {m.words}" for m in story.moments[:step]]
        lines = [stale_words.headline(story, step), stale_words.outcome(story, step)]
        tables = stale_words.placements(story, step), stale_words.nodes(story, step)
        told = "\n".join([*filter(None, lines), "So far", *happened])
        return "\n\n".join([told, *(table.text() for table in tables)])

    def _lanes(self) -> list[str]:
        return [stale_words.lane(p) for p in self.proposal.plan.placements]

    def _change(self, **changes: Any) -> None:
        """Another story: every control in line with it, and the panel at the last moment, where it shows."""
        self.story = self.story._replace(**changes)
        count = len(self.story.moments)
        self._writing = True
        try:
            for name, box in self.boxes.items():
                box.value = name in self.changes
            self.delay.value, self.look_box.value = self.delay_s, self.look
            self.number.max, self.number.value, self.count = count, count, count
            self.controls.children[-1].value = f"of {count}"
        finally:
            self._writing = False
        self.draw()

    def _make_controls(self) -> None:
        self.boxes = {
            name: widgets.Checkbox(
                value=name in self.changes,
                description=f"{name}, {change.at_s:g} s",
                tooltip=change.words,
                indent=False,
                layout={"width": "170px"},
            )
            for name, change in CHANGES.items()
        }
        for box in self.boxes.values():
            box.observe(self._on_box, "value")
        self.delay = widgets.BoundedFloatText(
            value=self.delay_s,
            min=0.0,
            max=MOST_S,
            step=0.1,
            description="planning, s",
            style={"description_width": "84px"},
            layout={"width": "168px"},
        )
        self.delay.observe(self._on_delay, "value")
        self.look_box = widgets.Checkbox(
            value=True, description="revalidate before it is applied", indent=False, layout={"width": "260px"}
        )
        self.look_box.observe(self._on_look, "value")

    def _lay_out(self) -> None:
        lanes = self._lanes()
        chart = charts.stale_plan(stale_words.rows(self.story, 1), lanes)
        self.figure = Figure(chart, "plan", charts.stale_plan_size(len(lanes)))
        self.verdict_line = widgets.HTML()
        self.lists = [widgets.HTML() for _ in BOX_HEIGHT]
        side = widgets.VBox(self.lists, layout={"flex": "1 1 420px", "min_width": "0", "grid_gap": "6px"})
        self.root.children = [
            self.controls,
            wrapped(widgets.Label("Meanwhile:"), *self.boxes.values()),
            wrapped(self.delay, self.look_box),
            widgets.VBox([self.status, self.error, self.verdict_line]),
            wrapped(self.figure.widget, side),
        ]

    @guard
    def _on_box(self, change: dict[str, Any]) -> None:
        if not self._writing:
            self.changes = [name for name, box in self.boxes.items() if box.value]

    @guard
    def _on_delay(self, change: dict[str, Any]) -> None:
        if not self._writing:
            self.delay_s = change["new"]

    @guard
    def _on_look(self, change: dict[str, Any]) -> None:
        if not self._writing:
            self.look = change["new"]

    @guard
    def _on_number(self, change: dict[str, Any]) -> None:
        if not self._writing:
            self.draw()


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Some of the names of `CHANGES`, in the order in which they happen."""
    wanted = set(names)
    if unknown := wanted - set(CHANGES):
        raise InputError(f"there is no change {min(unknown)!r}; name some of {', '.join(CHANGES)}")
    return tuple(name for name in CHANGES if name in wanted)
