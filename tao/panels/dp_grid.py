"""DpPanel: the dynamic program cell by cell, then back along the best plan."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from typing import Any, NamedTuple

import altair as alt
import ipywidgets as widgets
import pandas as pd

from tao import charts, explain, library, planners
from tao.charts.grid import NOW, PATH, READ
from tao.checks import InputError, listing
from tao.explain import Cell, Step
from tao.model import Params, Plan, Snapshot, Value
from tao.panels import html, words
from tao.panels.base import guard, wrapped
from tao.panels.figure import Figure
from tao.panels.stepper import Stepper
from tao.panels.table import Table

SNAPSHOTS = "two_nodes_trap", "dp_beats_short_first", "session_177", "quantum_hurts"
QUANTA = 64, 256, 1024, 2048, 4096  # tokens
CODE_LINES, CODE_HEIGHT = 9, 150  # of code that are shown, and the px that they need
CODE: dict[str, tuple[Callable[..., Any], str]] = {
    "base": (explain.recurrence, "steps = {(last, r)"),
    "skip": (explain.decide, "best, choice = steps[skip].value, None"),
    "place": (explain.decide, "best, choice = offer, b"),
    "back": (explain.backtrack, "step = steps[i, left]"),
}
"""Which line of `tao.explain` does what a step shows: a function, and how the line begins."""


class Look(NamedTuple):
    """What one step of the panel shows: the record in work, the plan so far, the words and the line."""

    step: Step
    path: tuple[Step, ...]
    message: str
    line: str


class DpPanel(Stepper):
    """The table of the dynamic program on a small snapshot, step by step, then back along the plan.

    The first step fills the column after the last session, each further one a cell, the last ones go back
    along the plan. `steps` are the records of `tao.explain.recurrence`, `plan` is what the planner `dp` says,
    `best` the proven best on true sizes; set `quantum` and `name` to change what is computed. Raises
    `InputError` for more than two nodes or 5,000 cells.

    >>> panel = DpPanel()
    >>> panel.last()
    >>> panel.plan.value.credit, panel.count
    (15500, 7)
    >>> panel.quantum = 4096
    >>> panel.plan.node_of(), panel.regret.credit
    ({}, 15500)
    >>> panel.close()
    """

    def __init__(
        self,
        snapshots: Sequence[tuple[str, Snapshot]] | None = None,
        quantum: int = 1024,
        params: Params | None = None,
    ) -> None:
        given = [(name, library.load(name)) for name in SNAPSHOTS] if snapshots is None else list(snapshots)
        if not given:
            raise InputError("DpPanel was given no snapshots; give at least one")
        super().__init__(1)
        self.snapshots, self._params = dict(given), params or Params()
        self.quanta = tuple(sorted({*QUANTA, quantum}))
        label = {"button_width": "auto", "description_width": "64px"}
        self.which = widgets.ToggleButtons(options=list(self.snapshots), description="Snapshot", style=label)
        self.unit = widgets.ToggleButtons(
            options=[(f"{q:,}", q) for q in self.quanta], value=quantum, description="Quantum", style=label
        )
        self._past: list[tuple[str, int]] = []  # choices that Undo goes back to
        self._quiet = False
        self._compute(given[0][0], quantum)
        self._lay_out()
        for control in (self.which, self.unit):
            control.observe(self._on_choice, "value")
        self.restart(len(self.looks))

    @property
    def name(self) -> str:
        """The name of the snapshot; set it to switch."""
        return self._shown[0]

    @name.setter
    def name(self, name: str) -> None:
        if name not in self.snapshots:
            raise InputError(f"name is {name!r}; this panel has {listing(list(self.snapshots))}")
        self.which.value = name

    @property
    def quantum(self) -> int:
        """The tokens of a quantum; set it to compute anew."""
        return self._shown[1]

    @quantum.setter
    def quantum(self, quantum: int) -> None:
        if quantum not in self.quanta:
            raise InputError(f"quantum is {quantum!r}; this panel has {listing(list(map(str, self.quanta)))}")
        self.unit.value = quantum

    @property
    def snapshot(self) -> Snapshot:
        """The cluster that is planned for."""
        return self.snapshots[self.name]

    @property
    def look(self) -> Look:
        """What the current step shows."""
        return self.looks[self.step - 1]

    @property
    def regret(self) -> Value:
        """What the plan gives up, by counting in quanta, against the best one on true sizes."""
        return explain.regret(self.plan, self.best)

    @property
    def kept_out(self) -> dict[str, str]:
        """Sessions that fit on true sizes and that rounding keeps out, with the reason."""
        why = explain.why_deferred(self.snapshot, self.plan, self.params)
        return {s: reason for s, reason in why.items() if "in quanta of" in reason}

    def against_best(self, quantum: int) -> str:
        """Whether dp keeps "less" credit in such quanta than the best plan on true sizes, or "the same"."""
        plan = planners.plan(self.snapshot, "dp", self._with(quantum))
        return "less" if plan.value.credit < self.best.value.credit else "the same"

    @guard
    def undo(self) -> None:
        """Go back to the quantum or snapshot before, unless there was none."""
        if self._past:
            self._show(*self._past.pop())

    def draw(self) -> None:
        """Bring everything up to date with the step."""
        look = self.look
        self.status.value = html.status(self._headline())
        self.message.value = html.lines(look.message, *self._kept_out(), room="three")
        self.code.value = self._code(look.line)
        cells, marks = self._cells(), self._marks()
        self.figure.update(charts.dp_grid_value(cells, marks, self._titles()), self._table().html())

    def chart(self) -> alt.LayerChart:
        """The figure as a chart of its own."""
        return charts.dp_grid(self._cells(), self._marks(), self._titles(), self._nodes())

    def text(self) -> str:
        """The panel in plain text."""
        source = inspect.getsource(CODE[self.look.line][0]).splitlines()
        line = next(line.strip() for line in source if CODE[self.look.line][1] in line)
        head = f"{self.name}, quanta of {self.quantum:,} tokens: step {self.step:,} of {self.count:,}"
        told = "\n".join([head, self._headline(), self.look.message, *self._kept_out()])
        return f"{told}\nline: {line}\n\n{self._table().text()}"

    def _compute(self, name: str, quantum: int) -> None:
        snapshot = self.snapshots[name]
        if not 1 <= len(snapshot.nodes) <= 2 or not 1 <= len(snapshot.pool) <= 12:
            raise InputError(
                f"snapshot {name!r} has {len(snapshot.nodes)} nodes and {len(snapshot.pool)} waiting "
                "sessions; the grid draws 1 or 2 nodes and 1 to 12 sessions: choose a smaller one"
            )
        params = self._with(quantum)
        problem = planners.case(snapshot, params)
        self.steps = explain.recurrence(problem, charts.MAX_ROWS)
        self.params, self.problem, self._shown = params, problem, (name, quantum)
        self.plan = planners.plan(snapshot, "dp", params)
        self.best: Plan = planners.plan(snapshot, "exact", params)
        path = tuple(explain.backtrack(problem, self.steps))
        last = len(problem.sessions)
        self._base = sum(i == last for i, _ in self.steps)
        base = "Nobody is left to place: each cell of the last column is worth (0, 0, 0)."
        self.looks = [
            Look(next(iter(self.steps.values())), (), base, "base"),
            *(
                Look(s, (), f"With {_left(s)} left, {s.message}.", "skip" if s.choice is None else "place")
                for s in list(self.steps.values())[self._base :]
            ),
            *(
                Look(s, path[: k + 1], f"Back along the plan. With {_left(s)} left, {s.message}.", "back")
                for k, s in enumerate(path)
            ),
        ]

    def _with(self, quantum: int) -> Params:
        return replace(self._params, quantum_tokens=quantum)

    def _show(self, name: str, quantum: int) -> None:
        try:
            self._compute(name, quantum)
        finally:
            self._quiet = True
            self.which.value, self.unit.value = self._shown
            self._quiet = False
        self.restart(len(self.looks))

    def _lay_out(self) -> None:
        chart = charts.dp_grid(self._cells(), self._marks(), self._titles(), self._nodes())
        self.figure = Figure(chart, "grid", charts.GRID_SIZE)
        self.message, self.code = widgets.HTML(), widgets.HTML()
        self.undo_button = widgets.Button(description="Undo", layout={"width": "84px"})
        self.undo_button.tooltip = "back to the quantum or snapshot before"
        self.undo_button.on_click(lambda _: self.undo())
        self.root.children = [
            self.which,
            wrapped(self.unit, self.undo_button),
            self.controls,
            widgets.VBox([self.status, self.error, self.message]),
            self.figure.widget,
            self.code,
        ]

    def _headline(self) -> str:
        if len(self.look.path) < len(self.problem.sessions):
            v = self.look.step.value
            return f"Best from here on: credit {v.credit:,}, ready {v.ready}, tokens {v.tokens:,}"
        return words.headline("dp", self.plan, self.best, len(self.problem.sessions))

    def _kept_out(self) -> list[str]:
        """A sentence on whom rounding keeps out, once the plan is complete."""
        if len(self.look.path) < len(self.problem.sessions) or not (kept := self.kept_out):
            return []
        return [f"Kept out by rounding: {', '.join(kept)}."]

    def _done(self) -> int:
        return min(self._base + self.step - 1, len(self.steps))

    def _titles(self) -> list[str]:
        demand = planners.quantize(self.problem).demand.tolist()
        pairs = zip(self.problem.sessions, demand, strict=True)
        return [*(f"{s.id} ({size})" for s, size in pairs), "nobody left"]

    def _nodes(self) -> list[str]:
        return [node.id for node in self.problem.nodes]

    def _cells(self) -> pd.DataFrame:
        frame = pd.DataFrame(map(_place, self.steps), columns=["column", "left0", "left1"])
        return frame.assign(done=frame.index < self._done())

    def _marked(self) -> list[tuple[str, Step, int]]:
        """Kind, record and the place in this list that a line leads to (-1: none)."""
        look = self.look
        if look.path:
            ends = [*range(1, len(look.path)), -1]
            return [(PATH, s, to) for s, to in zip(look.path, ends, strict=True)]
        reads = [self.steps[cell] for cell in look.step.reads]
        return [*((READ, s, len(reads)) for s in reads), (NOW, look.step, -1)]

    def _marks(self) -> pd.DataFrame:
        rows = [(*_place(s.cell), kind, _words(kind, s), to) for kind, s, to in self._marked()]
        return pd.DataFrame(rows, columns=["column", "left0", "left1", "kind", "words", "to"])

    def _table(self) -> Table:
        names = [*(s.id for s in self.problem.sessions), "nobody left"]
        rows = [(kind, names[s.cell[0]], _left(s), *s.value) for kind, s, _ in self._marked()]
        columns = ("mark", "column", "room left, quanta", "credit", "ready", "tokens")
        return Table("Marked cells and what they are worth", columns, rows)

    def _code(self, line: str) -> str:
        function, begins = CODE[line]
        code = inspect.getsource(function).splitlines()
        here = next(k for k, text in enumerate(code) if text.strip().startswith(begins))
        first = max(min(here - CODE_LINES // 2, len(code) - CODE_LINES), 0)
        rows = []
        for k, text in enumerate(code[first : first + CODE_LINES], start=first):
            style = (
                ' style="font-weight: 700; background: var(--jp-layout-color2, #eeeeee)"' if k == here else ""
            )
            mark = ' aria-current="true"' if k == here else ""
            rows.append(f"<div{mark}{style}>{'▸ ' if k == here else '  '}{escape(text)}</div>")
        block = f'<pre style="margin: 0; font-size: 12px; line-height: 1.3">{"".join(rows)}</pre>'
        return html.scroll(block, f"tao.explain.{function.__name__}, the line in work marked", CODE_HEIGHT)

    @guard
    def _on_choice(self, change: dict[str, Any]) -> None:
        if not self._quiet:
            before = self._shown
            self._show(str(self.which.value), int(self.unit.value))
            self._past.append(before)


def _place(cell: Cell) -> tuple[int, int, int]:
    """Column and quanta left on the first and the second node, which may not be there."""
    i, left = cell
    return i, left[0], left[1] if len(left) > 1 else 0


def _left(step: Step) -> str:
    return f"({', '.join(map(str, step.cell[1]))})"


def _words(kind: str, step: Step) -> str:
    credit, ready, tokens = (f"{part:,}" for part in step.value)
    return f"{kind}: {_left(step)} quanta left, credit {credit}, ready {ready}, tokens {tokens}"
