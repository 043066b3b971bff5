"""ValuationPanel: what a place is worth to each waiting session, and on what the winner hangs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import altair as alt
import ipywidgets as widgets

from tao import charts, explain, ranking, valuation
from tao.charts.decay import Point
from tao.model import InputError, Params, Snapshot
from tao.panels import html
from tao.panels.base import Panel, guard, wrapped
from tao.panels.figure import Figure
from tao.panels.table import Table
from tao.ranking import NODE, ORDERS, Ranked

REACHES_S = 60.0, 300.0  # the axis of the curves: as far as the age chosen needs
SAMPLES = 61  # per curve
STYLE = {"description_width": "140px"}


class Setting(NamedTuple):
    """What the learner may change: two parameters of the value, the caches' age, and the order."""

    half_life_s: float = 10.0
    horizon_s: float = 1.0
    older_s: float = 0.0
    order: str = "credit, ready, tokens"


class ValuationPanel(Panel):
    """Five waiting sessions and one place: credit as it falls, all values ranked, and who wins.

    `only`: the sessions to show, by id. `setting` is what the controls say; set it to change them, `undo`
    takes the last change back. `snapshot`, `ranks` and `winner` are plain objects.

    >>> panel = ValuationPanel()
    >>> panel.winner.session, panel.winner.value.credit
    ('fresh', 3958)
    >>> panel.setting = Setting(half_life_s=20.0)
    >>> panel.winner.session
    'big'
    >>> panel.close()
    """

    def __init__(self, setting: Setting | None = None, only: Sequence[str] = ()) -> None:
        super().__init__()
        known = [s.id for s in ranking.five_waiting().sessions]
        if unknown := [name for name in only if name not in known]:
            raise InputError(f"only names {unknown[0]!r}; it may name {', '.join(known)}")
        self.only = tuple(only)
        first = setting or Setting()
        _check(first)
        self.half_life = _seconds("Half-life, s", first.half_life_s, 0.1, 600.0)
        self.horizon = _seconds("Horizon, s", first.horizon_s, 0.0, 60.0)
        self.older = _seconds("Caches older by, s", first.older_s, 0.0, 300.0)
        self.order = widgets.ToggleButtons(  # no radio buttons: JupyterLab takes their arrow keys for itself
            options=list(ORDERS),
            value=first.order,
            description="Order",
            style={"button_width": "158px", "description_width": "44px"},
            layout={"width": "550px", "margin": "2px"},
        )
        self._controls = self.half_life, self.horizon, self.older, self.order
        for control in self._controls:
            control.observe(self._on_setting, "value")
        self.undo_button = widgets.Button(description="Undo", tooltip="take the last change back")
        self.undo_button.on_click(lambda _: self.undo())
        self._trail, self._moving = [first], False
        self.cost = widgets.HTML()
        self.list = widgets.HTML(layout={"flex": "1 1 420px", "min_width": "0"})
        self.list.add_class("tao-narrow")
        self.figure = Figure(self.chart(), "credit", charts.CREDIT_SIZE)
        numbers = [self.half_life, *([] if self.only else [self.horizon]), self.older]
        ways = [self.undo_button] if self.only else [self.order, self.undo_button]
        self.root.children = [
            wrapped(widgets.VBox(numbers), widgets.VBox(ways)),
            widgets.VBox([self.status, self.error, self.cost]),
            wrapped(self.figure.widget, self.list),
        ]
        self.draw()

    @property
    def setting(self) -> Setting:
        """What the controls say; set it to change several at once."""
        half_life_s, horizon_s = float(self.half_life.value), float(self.horizon.value)
        return Setting(half_life_s, horizon_s, float(self.older.value), str(self.order.value))

    @setting.setter
    def setting(self, setting: Setting) -> None:
        _check(setting)
        self._put(setting)
        self._changed()

    @property
    def params(self) -> Params:
        """The parameters of the value."""
        return Params(half_life_s=self.setting.half_life_s, horizon_s=self.setting.horizon_s)

    @property
    def snapshot(self) -> Snapshot:
        """The node and its waiting sessions."""
        return self._pool(self.setting.older_s)

    @property
    def ranks(self) -> list[Ranked]:
        """All sessions, the one of highest value first."""
        return ranking.ranked(self.snapshot, NODE, self.params, self.setting.order)

    @property
    def winner(self) -> Ranked:
        """The session that gets the place."""
        return self.ranks[0]

    @property
    def thrashing(self) -> bool:
        """Whether the winner has nothing cached here while another session has."""
        return ranking.thrashes(self.ranks)

    @guard
    def undo(self) -> None:
        """Take the last change back, unless there was none."""
        if len(self._trail) > 1:
            self._trail.pop()
            self._put(self._trail[-1])
            self.draw()

    def facts(self) -> Table:
        """What is known of each session, before any of it is valued."""
        rows = []
        for s in self.snapshot.pool:
            note = s.cached.get(NODE)
            seen = f"{self.snapshot.now_s - note.seen_at_s:g} s ago" if note else "never"
            due = explain.readiness_words(s, self.snapshot.now_s, self.params).partition("(")[2].rstrip(")")
            rows.append((s.id, s.context_tokens, note.tokens if note else 0, seen, due))
        columns = "session", "context", "cached here", "seen", "its tool"
        return Table("Who waits for the place (tokens)", columns, rows)

    def draw(self) -> None:
        """Show the values under the present setting."""
        ranks, curves = self._tables()
        wrong = ' tao-error" role="alert' if self.thrashing else '" role="status'
        self.status.value = f'<div class="tao-status{wrong}">{escape(self._headline())}</div>'
        self.cost.value = html.lines(self._cost(), room="two")
        self.figure.update(charts.credit_curves_value(*self._drawn()), curves.html())
        self.list.value = ranks.html()

    def chart(self) -> alt.LayerChart:
        """The figure as a chart of its own."""
        return charts.credit_curves(*self._drawn())

    def text(self) -> str:
        """The panel in plain text: the facts, the setting, who wins, all ranks, and the curves."""
        s = self.setting
        given = f"Half-life {s.half_life_s:g} s, horizon {s.horizon_s:g} s, caches {s.older_s:g} s older."
        head = "\n".join((f"{given} Order: {s.order}.", self._headline(), self._cost()))
        return "\n\n".join([self.facts().text(), head, *(table.text() for table in self._tables())])

    def _pool(self, older_s: float) -> Snapshot:
        everybody = ranking.five_waiting(older_s)
        kept = tuple(s for s in everybody.sessions if not self.only or s.id in self.only)
        return Snapshot(everybody.now_s, everybody.nodes, kept)

    def _points(self, older_s: float) -> list[Point]:
        """(session, age added, credit) of each session that has a cache."""
        pool = self._pool(older_s)
        credit = [(s.id, valuation.credit(s.cached.get(NODE), pool.now_s, self.params)) for s in pool.pool]
        held = {s.id for s in pool.pool if s.cached}
        return [(name, older_s, k) for name, k in credit if name in held]

    def _drawn(self) -> tuple[list[Point], list[Point], float]:
        older = self.setting.older_s
        reach = next(r for r in REACHES_S if older <= r)
        ages = [round(reach * k / (SAMPLES - 1), 3) for k in range(SAMPLES)]
        return [point for age in ages for point in self._points(age)], self._points(older), reach

    def _headline(self) -> str:
        name, value = self.winner.session, self.winner.value
        worth = f"credit {value.credit:,}, ready {value.ready}, tokens {value.tokens:,}"
        if self.thrashing:
            return f"Thrashing: {name} wins with nothing cached here ({worth})"
        return f"{name} gets the place: {worth}"

    def _cost(self) -> str:
        name, reads = self.winner.session, self.winner.to_read_tokens
        held = f"If the node still holds what was seen, it reads {reads:,} tokens for {name}"
        if not self.thrashing:
            return f"{held}."
        best = min(self.ranks, key=lambda row: row.to_read_tokens / (row.cached_tokens or 0.5))
        lost = f"and may drop the {best.cached_tokens:,} of {best.session}, who needs only "
        return f"{held}, {lost}{best.to_read_tokens:,} more. Undo takes the change back."

    def _tables(self) -> tuple[Table, Table]:
        """All values, best first; and the curves at a few ages, which is what the figure shows."""
        ranks = [
            (f"{place}. {row.session}", *row.value, row.to_read_tokens)
            for place, row in enumerate(self.ranks, start=1)
        ]
        columns = "rank", "credit", "ready", "tokens", "to read"
        curves, now, _ = self._drawn()
        kept = [point for k, age in enumerate(dict.fromkeys(x for _, x, _ in curves)) if k % 6 == 0
                for point in curves if point[1] == age]  # fmt: skip
        told = [(name, f"{x:g}", y) for name, x, y in (*now, *kept)]
        caption = "Credit: as chosen, then along the curves"
        return (
            Table(f"Ranked by {self.setting.order}", columns, ranks, 0),
            Table(caption, ("session", "older by, s", "credit"), told),
        )

    def _put(self, setting: Setting) -> None:
        self._moving = True
        for control, value in zip(self._controls, setting, strict=True):
            control.value = value
        self._moving = False

    def _changed(self) -> None:
        if self.setting != self._trail[-1]:
            self._trail.append(self.setting)
        self.draw()

    @guard
    def _on_setting(self, change: dict[str, Any]) -> None:
        if not self._moving:
            self._changed()


def _check(setting: Setting) -> None:
    bounds = {"half_life_s": (0.1, 600.0), "horizon_s": (0.0, 60.0), "older_s": (0.0, 300.0)}
    for name, (least, most) in bounds.items():
        value = getattr(setting, name)
        if not least <= value <= most:
            raise InputError(f"{name} is {value}; it must be from {least:g} to {most:g} s")
    if setting.order not in ORDERS:
        raise InputError(f"order is {setting.order!r}; it must be one of {'; '.join(ORDERS)}")


def _seconds(name: str, value: float, least: float, most: float) -> widgets.BoundedFloatText:
    return widgets.BoundedFloatText(
        value=value, min=least, max=most, step=1, description=name, style=STYLE, layout={"width": "230px"}
    )
