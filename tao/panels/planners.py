"""PlannersPanel: every planner on many snapshots, who misses the optimum how often, and why on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import altair as alt
import ipywidgets as widgets
import pandas as pd

from tao import charts, explain, planners, quality
from tao.checks import listing
from tao.model import InputError, Params, Plan, Snapshot
from tao.panels import html, miss_words
from tao.panels.base import guard, wrapped
from tao.panels.figure import Figure
from tao.panels.snapshot import SHOWN
from tao.panels.stepper import Stepper
from tao.panels.table import Table
from tao.workloads import snapshots

RECORDED = {"recorded, 32 workers": (32, 2, 2), "recorded, 160 workers": (160, 4, 8)}  # every 2nd, 8th
QUANTA = 4096, 2048, 1024, 512, 256, 1
BUDGETS = 200_000, 1_000, 100, 10, 1
HEIGHTS = 150, 200  # px, of the boxes with tables, of the one with the proof
WIDTHS = 520, 460, 620  # px, at least: misses, rounding, proof


class Choice(NamedTuple):
    """What is asked: a set of snapshots, dp's quantum in tokens, and the state budget of all searches."""

    family: str
    quantum_tokens: int = 1024
    state_budget: int = 200_000


class PlannersPanel(Stepper):
    """Sets of snapshots to plan with every planner; which of them miss the optimum, where, and by how much.

    `sets`: snapshots by name, in each set as many; without it some of `tao.workloads.snapshots`, the
    recorded ones first. `choose` and `undo` change set, quantum and budget, `step` and `planner` what is
    looked at; `misses` (see `tao.quality.misses`), `snapshot`, `plan`, `best` and `history` are plain
    objects. `recorded`: the sets whose figures are *simulated*; all others are *recomputed*.

    >>> panel = PlannersPanel()
    >>> panel.choose("cached twice", state_budget=1)
    >>> bool((panel.misses.query("planner == 'dp'")["placed_by"] == "bfd").any())
    True
    >>> panel.undo(); panel.choice.state_budget
    200000
    >>> panel.close()
    """

    def __init__(
        self,
        sets: Mapping[str, Sequence[Snapshot]] | None = None,
        params: Params | None = None,
        recorded: Sequence[str] = (),
    ) -> None:
        self.sets = {name: tuple(given) for name, given in (packaged() if sets is None else sets).items()}
        self.recorded = tuple(RECORDED if sets is None else recorded)
        sizes = {len(given) for given in self.sets.values()}
        if len(sizes) != 1:
            found = listing(list(map(str, sorted(sizes))))
            raise InputError(f"sets have {found} snapshots; give each as many, at least one")
        super().__init__(sizes.pop(), "Snapshot")
        self._params = params or Params()
        self.history: list[Choice] = []
        self.choice = Choice(next(iter(self.sets)))
        self._misses: dict[Choice, pd.DataFrame] = {}
        self._losses: dict[Choice, pd.DataFrame] = {}
        self._make_controls()
        self._lay_out()
        self._render()

    # --- from Python ------------------------------------------------------------------------------

    @property
    def params(self) -> Params:
        """The parameters that all planners get."""
        _, quantum, budget = self.choice
        return replace(self._params, quantum_tokens=quantum, state_budget=budget)

    @property
    def planner(self) -> str:
        """The planner that is looked at; set it to switch."""
        return str(self.toggle.value)

    @planner.setter
    def planner(self, name: str) -> None:
        if name not in SHOWN:
            raise InputError(f"planner is {name!r}; this panel shows {', '.join(SHOWN)}")
        self.toggle.value = name

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot that is looked at."""
        return self.sets[self.choice.family][self.step - 1]

    @property
    def plan(self) -> Plan:
        """What the planner looked at decides on it."""
        return planners.plan(self.snapshot, self.planner, self.params)

    @property
    def best(self) -> Plan:
        """The plan of `exact` on it, within the default budget."""
        return planners.plan(self.snapshot, "exact", replace(self.params, state_budget=BUDGETS[0]))

    @property
    def misses(self) -> pd.DataFrame:
        """What each planner's plans are worth less than the optimum (see `tao.quality.misses`)."""
        if self.choice not in self._misses:
            given = self.sets[self.choice.family]
            self._misses[self.choice] = quality.misses(given, list(SHOWN), params=self.params)
        return self._misses[self.choice]

    @property
    def losses(self) -> pd.DataFrame:
        """What rounding loses, by quantum (see `tao.quality.rounding_loss`), at the present budget."""
        key = self.choice._replace(quantum_tokens=0)
        if key not in self._losses:
            found = quality.rounding_loss(self.sets[self.choice.family], QUANTA, params=self.params)
            self._losses[key] = found
        return self._losses[key]

    def choose(
        self, family: str | None = None, quantum_tokens: int | None = None, state_budget: int | None = None
    ) -> None:
        """Another set, quantum or budget; raises `InputError` for what is not offered."""
        asked: dict[str, Any] = {
            "family": family,
            "quantum_tokens": quantum_tokens,
            "state_budget": state_budget,
        }
        new = {name: x for name, x in asked.items() if x is not None}
        for name, x in new.items():
            values = [value for _, value in self.fields[name].options]
            if x not in values:
                raise InputError(f"{name} is {x!r}; it must be one of {listing(list(map(str, values)))}")
        self._set(self.choice._replace(**new), remember=True)

    @guard
    def undo(self) -> None:
        """Take the latest choice back; nothing happens before the first."""
        if self.history:
            self._set(self.history.pop(), remember=False)

    def draw(self) -> None:
        """Show what has been planned, at the current snapshot."""
        self._render()

    def chart(self) -> alt.VConcatChart:
        """The figure as a chart of its own."""
        return charts.misses(self.misses, self.choice.state_budget, self.step, label=self._label())

    def text(self) -> str:
        """The panel in plain text: who misses how often, what rounding costs, and the proof of one plan."""
        tables = [table.text() for table in self._tables()]
        heads = [self._about(), self._headline(), self._here()]
        return "\n\n".join(["\n".join(heads), *tables, self._proof()])

    # --- inside -----------------------------------------------------------------------------------

    def _make_controls(self) -> None:
        self.toggle = widgets.ToggleButtons(
            options=list(SHOWN),
            tooltips=list(SHOWN.values()),
            description="Planner",
            style={"button_width": "88px", "description_width": "56px"},
            layout={"width": "618px", "margin": "2px"},
        )
        self.toggle.observe(self._on_planner, "value")
        offers: dict[str, tuple[str, list[tuple[str, Any]]]] = {
            "family": ("Set", [(name, name) for name in self.sets]),
            "quantum_tokens": ("Quantum", [(f"{x:,} tokens", x) for x in QUANTA]),
            "state_budget": ("Budget", [(f"{x:,} state{'s' * (x > 1)}", x) for x in BUDGETS]),
        }
        self.fields = {
            name: widgets.Dropdown(
                options=options,
                value=getattr(self.choice, name),
                description=label,
                layout={"width": "230px"},
                style={"description_width": "72px"},
            )
            for name, (label, options) in offers.items()
        }
        for field in self.fields.values():
            field.observe(self._on_field, "value")
        self.undoing = widgets.Button(description="Undo", layout={"width": "84px"})
        self.undoing.tooltip = "take the latest choice of set, quantum or budget back"
        self.undoing.on_click(lambda _: self.undo())

    def _lay_out(self) -> None:
        chart = charts.misses(self.misses, self.choice.state_budget, self.step, label="")
        self.figure = Figure(chart, "misses", charts.misses_size(len(SHOWN), self.count))
        self.about, self.here = widgets.HTML(), widgets.HTML()
        self.boxes = [widgets.HTML(layout={"flex": f"1 1 {width}px", "min_width": "0"}) for width in WIDTHS]
        for box in self.boxes[:2]:
            box.add_class("tao-narrow")
        self.root.children = [
            wrapped(*self.fields.values(), self.undoing),
            wrapped(self.controls, self.toggle),
            self.about,
            widgets.VBox([self.status, self.error, self.here]),
            wrapped(self.figure.widget, *self.boxes),
        ]

    def _set(self, choice: Choice, *, remember: bool) -> None:
        if choice == self.choice:
            return
        if remember:
            self.history.append(self.choice)
        self.choice = choice
        for name, field in self.fields.items():
            field.value = getattr(choice, name)
        self._render()

    def _render(self) -> None:
        missed, rounding = self._tables()
        self.about.value = html.lines(self._about(), room="two")
        self.status.value = html.status(self._headline())
        self.here.value = html.lines(self._here(), room="two")
        value = charts.misses_value(self.misses, self.choice.state_budget, self.step)
        self.figure.update(value, miss_words.everywhere(self.misses).html())
        for box, table in zip(self.boxes, (missed, rounding), strict=False):
            box.value = html.scroll(table.html(), table.caption, HEIGHTS[0])
        proof = html.paragraphs("Why no plan is worth more", self._proof())
        self.boxes[2].value = html.scroll(proof, "Why no plan is worth more", HEIGHTS[1])

    def _tables(self) -> list[Table]:
        return [
            miss_words.missed(self.misses, self.planner),
            miss_words.rounding(self.losses, self.choice.quantum_tokens),
        ]

    def _about(self) -> str:
        return miss_words.about(self.choice.family, self.snapshot, self.misses, self._label())

    def _headline(self) -> str:
        return miss_words.headline(self.misses, self.planner)

    def _here(self) -> str:
        return miss_words.here(self.misses, self.planner, self.step, self.plan)

    def _proof(self) -> str:
        words = explain.certificate(self.snapshot, self.best, self.params).words
        return f"Snapshot {self.step}, the plan of exact.\n{words}"

    def _label(self) -> str:
        return "simulated" if self.choice.family in self.recorded else "recomputed"

    @guard
    def _on_field(self, change: dict[str, Any]) -> None:
        chosen = {name: field.value for name, field in self.fields.items()}
        if chosen != self.choice._asdict():
            self._set(Choice(**chosen), remember=True)

    @guard
    def _on_planner(self, change: dict[str, Any]) -> None:
        self._render()


def packaged() -> dict[str, list[Snapshot]]:
    """Six sets of 35 snapshots: decisions of simulated runs, and drawn ones of 24 sessions on 3 nodes."""
    drawn = {
        "cached once": "unique",
        "cached twice": "replicated",
        "shared beginning": "shared",
        "nothing cached": "cold",
    }
    sets = {
        name: [snapshots("recorded", workers, nodes, step * k) for k in range(35)]
        for name, (workers, nodes, step) in RECORDED.items()
    }
    return sets | {name: [snapshots(of, 24, 3, seed) for seed in range(35)] for name, of in drawn.items()}
