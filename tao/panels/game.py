"""GamePanel: place the waiting sessions by hand, and see how far from the best plan that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import altair as alt
import ipywidgets as widgets

from tao import charts, explain, library, planners
from tao.byhand import Attempt, by_hand
from tao.checks import InputError, listing
from tao.model import Params, Plan, Session, Snapshot, Value
from tao.panels import html, words
from tao.panels.base import Panel, guard, wrapped
from tao.panels.figure import Figure
from tao.panels.lock import Lock
from tao.panels.table import Table

PUZZLES = "two_nodes_trap", "dp_beats_short_first", "session_177"
MOST_SESSIONS, MOST_NODES = 12, 4  # more buttons than that nobody wants to press
OUT = ""  # the option of a session that stays in the pool
SETTLED = "No plan that fits is worth more than the best plan; others may tie with it."


class GamePanel(Panel):
    """Puzzles in which one places each waiting session by hand: on a node, or nowhere.

    Without `snapshots` it poses `PUZZLES`. `placed` (session -> node), `plan`, `over` (tokens by which a node
    overflows), `best` (proven, true sizes) and `regret` are plain objects; `place`, `undo` and `show_best` do
    what the controls do. Raises `InputError` for a snapshot with too much to place.

    >>> game = GamePanel()
    >>> game.place("anna", "n0")
    >>> game.place("ben", "n0")
    >>> game.over
    {'n0': 8784}
    >>> game.undo()
    >>> game.place("ben", "n1")
    >>> game.regret.credit
    7500
    >>> game.close()
    """

    def __init__(
        self, snapshots: Sequence[tuple[str, Snapshot]] | None = None, params: Params | None = None
    ) -> None:
        given = [(name, library.load(name)) for name in PUZZLES] if snapshots is None else list(snapshots)
        for name, snapshot in given:
            _check_small(name, snapshot)
        if not given:
            raise InputError("GamePanel was given no snapshots; give at least one to place sessions in")
        super().__init__()
        self.params = params or Params()
        names = [name for name, _ in given]
        self.choice = widgets.ToggleButtons(
            options=names, description="Puzzle", style={"button_width": "auto", "description_width": "56px"}
        )
        self.choice.observe(self._on_puzzle, "value")
        self.rounds = {name: Round(name, snapshot, self) for name, snapshot in given}
        self.buttons = {"Undo": _button("Undo", self.undo), "Start over": _button("Start over", self.restart)}
        self._lay_out()
        self._render()

    @property
    def puzzle(self) -> str:
        """The name of the snapshot to place in; set it to switch. Each keeps what has been placed."""
        return str(self.choice.value)

    @puzzle.setter
    def puzzle(self, name: str) -> None:
        if name not in self.rounds:
            raise InputError(f"puzzle is {name!r}; this panel poses {listing(list(self.rounds))}")
        self.choice.value = name

    @property
    def _round(self) -> Round:
        return self.rounds[self.puzzle]

    @property
    def snapshot(self) -> Snapshot:
        """The cluster of this puzzle."""
        return self._round.snapshot

    @property
    def placed(self) -> dict[str, str]:
        """Who has been placed where, in the order of the moves."""
        return dict(self._round.moves[-1])

    @property
    def attempt(self) -> Attempt:
        """What that amounts to."""
        return by_hand(self.snapshot, self.placed, self.params)

    @property
    def plan(self) -> Plan:
        """What that is worth, if it fits."""
        return self.attempt.plan

    @property
    def over(self) -> dict[str, int]:
        """By how many tokens each overfull node overflows; empty where all fits."""
        return self.attempt.over

    @property
    def best(self) -> Plan:
        """The best plan on true sizes."""
        return self._round.best

    @property
    def regret(self) -> Value:
        """What the placement gives up against the best plan."""
        return explain.regret(self.plan, self.best)

    @property
    def lock(self) -> Lock:
        """The prediction to make before the best plan is shown."""
        return self._round.lock

    @guard
    def place(self, session: str, node: str | None) -> None:
        """Put a session on a node, or (None) back into the pool."""
        if session not in self._round.toggles:
            raise InputError(
                f"no session {session!r} waits here; there are {listing(list(self._round.toggles))}"
            )
        after = {s: b for s, b in self.placed.items() if s != session} | ({session: node} if node else {})
        by_hand(self.snapshot, after, self.params)  # refuses a node that is not allowed
        self._move(after)

    @guard
    def undo(self) -> None:
        """Take the last move back, unless there is none."""
        if len(self._round.moves) > 1:
            self._round.moves.pop()
        self._render()

    @guard
    def restart(self) -> None:
        """Take everything out again; this can be undone as well."""
        self._move({})

    @guard
    def show_best(self) -> None:
        """Place as the best plan does, once a prediction has been made; Undo brings the own plan back."""
        if not self.lock.opened:
            raise InputError("the best plan is still hidden; commit to a prediction first, or press Skip")
        self._move(self.best.node_of())

    def text(self) -> str:
        """The panel in plain text."""
        facts = words.origin(self.puzzle, self.snapshot)[1]  # the rest would give the puzzle away
        tables = words.nodes(self._bars()).text(), self._round.offers().text()
        lock = self.lock.text()
        head = f"{self.puzzle}: {facts}\n{self._headline()}\n{self._advice()}"
        return "\n\n".join([head, *tables, lock])

    def chart(self) -> alt.HConcatChart:
        """The figure as a chart of its own."""
        return charts.node_bars(self._bars(), overflow=True)

    def against(self) -> Table:
        """The own triple beside that of a rule of thumb and of the best plan."""
        own, short = self.plan, planners.plan(self.snapshot, "short_first", self.params)
        plans = {"the best plan": self.best, "short_first": short, "yours": own}
        table = words.comparison(plans, self.best, "yours")
        rows = list(table.rows)
        if self.over:
            rows[-1] = ("▸ yours", "no plan", "", "", len(own.placements), "does not fit")
        return table._replace(caption="Your plan against others", rows=rows)

    def _lay_out(self) -> None:
        snapshots = [each.snapshot for each in self.rounds.values()]
        nodes = max(len(snapshot.nodes) for snapshot in snapshots)
        rows = max(2 * len(snapshot.nodes) + len(snapshot.pool) for snapshot in snapshots)
        chart = charts.node_bars(self._bars(), nodes, rows, overflow=True)
        self.figure = Figure(chart, "bars", charts.node_bars_size(nodes))
        self.origin, self.advice = widgets.HTML(), widgets.HTML()
        self.root.children = [
            self.choice,
            self.origin,
            *(each.box for each in self.rounds.values()),
            wrapped(*self.buttons.values()),
            widgets.VBox([self.status, self.error, self.advice]),
            self.figure.widget,
            *(each.lock.root for each in self.rounds.values()),
        ]

    def _move(self, after: dict[str, str]) -> None:
        if after != self._round.moves[-1]:
            self._round.moves.append(after)
        self._render()

    def _render(self) -> None:
        for each in self.rounds.values():
            here = None if each is self._round else "none"
            each.box.layout.display = each.lock.root.layout.display = here
        self._round.show(self.placed)
        facts = words.origin(self.puzzle, self.snapshot)[1]
        self.origin.value = html.lines(facts, room="two", name=self.puzzle)
        self.status.value = html.status(self._headline())
        self.advice.value = html.lines(self._advice(), room="two")
        bars = self._bars()
        self.figure.update(charts.node_bars_value(bars), words.nodes(bars).html())
        self._round.reveal.draw()

    def _bars(self) -> Any:
        return words.bars(self.snapshot, self.plan, self.params)

    def _headline(self) -> str:
        plan, pool = self.plan, len(self.snapshot.pool)
        if over := self.over:
            nodes = " and ".join(f"{node} overflows by {tokens:,} tokens" for node, tokens in over.items())
            return f"No plan: {nodes}."
        credit, ready, tokens = (f"{part:,}" for part in plan.value)
        return f"You admit {len(plan.placements)} of {pool}: credit {credit}, ready {ready}, tokens {tokens}"

    def _advice(self) -> str:
        if self.over:
            return (
                "No server can hold more than its memory, so this is worth nothing, whatever its credit. "
                "Undo takes the last move back, or take somebody else out of that node."
            )
        room = self.snapshot.free_tokens(self.params)
        for p in self.plan.placements:
            room[p.node] -= self.snapshot.demand_tokens(self._round.sessions[p.session], self.params)
        left = ", ".join(f"{max(tokens, 0):,} on {node}" for node, tokens in room.items())
        return f"Room left, in tokens: {left}."

    @guard
    def _on_puzzle(self, change: dict[str, Any]) -> None:
        self._render()

    @guard
    def on_toggle(self, session: str, node: str) -> None:
        """The learner has chosen for a session."""
        self.place(session, node or None)


class Round:
    """One puzzle: its snapshot, its best plan, the moves so far (the last one last) and its controls."""

    def __init__(self, name: str, snapshot: Snapshot, game: GamePanel) -> None:
        self.snapshot, self.params = snapshot, game.params
        self.best = planners.plan(snapshot, "exact", game.params)
        self.moves: list[dict[str, str]] = [{}]
        self.sessions = {s.id: s for s in planners.case(snapshot, game.params).sessions}
        self._worth = {s: self._worths(session) for s, session in self.sessions.items()}
        self._quiet = False
        self.toggles = {s: self._toggle(s, game.on_toggle) for s in self.sessions}
        self.box = wrapped(*self.toggles.values())
        self.reveal = Reveal(game)
        most = sum(max((v.credit for v in worth.values()), default=0) for worth in self._worth.values())
        question = (
            f"All on their best node would be worth {most:,}. How much credit can a plan that fits keep?"
        )
        self.lock = Lock(question, (0, most), self.reveal, lambda: self.best.value.credit, "tokens")

    def show(self, placed: Mapping[str, str]) -> None:
        """Press the buttons that belong to a placement, without that being a move."""
        self._quiet = True
        for session, toggle in self.toggles.items():
            toggle.value = placed.get(session, OUT)
        self._quiet = False

    def offers(self) -> Table:
        """What each session takes, and what it is worth where."""
        nodes = sorted(node.id for node in self.snapshot.nodes)
        rows = []
        for s, worth in self._worth.items():
            credits = [worth[b].credit if b in worth else "not allowed" for b in nodes]
            ready = next((v.ready for v in worth.values()), 0)
            where = self.moves[-1].get(s, "out")
            rows.append((s, self._takes(s), *credits, ready, self.sessions[s].context_tokens, where))
        columns = "session", "takes", *(f"credit on {b}" for b in nodes), "ready", "tokens", "placed"
        return Table("Who waits, what each takes and what it is worth where", columns, rows)

    def _takes(self, session: str) -> int:
        return self.snapshot.demand_tokens(self.sessions[session], self.params)

    def _worths(self, session: Session) -> dict[str, Value]:
        nodes = [b.id for b in self.snapshot.nodes if session.eligible is None or b.id in session.eligible]
        return {b: by_hand(self.snapshot, {session.id: b}, self.params).plan.value for b in sorted(nodes)}

    def _toggle(self, session: str, moved: Callable[[str, str], None]) -> Any:
        worth = self._worth[session]
        options = [("out", OUT), *((f"{b}: {v.credit:,}", b) for b, v in worth.items())]
        where = [f"cache credit {v.credit:,} on {b}" for b, v in worth.items()]
        toggle = widgets.ToggleButtons(
            options=options,
            tooltips=["stays in the pool", *where],
            description=f"{session} ({self._takes(session):,})",
            style={"button_width": "84px", "description_width": "104px"},
            layout={"width": f"{118 + 88 * len(options)}px"},
        )
        toggle.observe(partial(self._on_value, session, moved), "value")
        return toggle

    def _on_value(self, session: str, moved: Callable[[str, str], None], change: dict[str, Any]) -> None:
        if not self._quiet:
            moved(session, str(change["new"]))


class Reveal(Panel):
    """What a lock opens: the own triple against the best, and a button that shows the best plan."""

    def __init__(self, game: GamePanel) -> None:
        super().__init__()
        self._game = game
        self.table = widgets.HTML(layout={"max_width": "640px"})
        self.button = _button("Show best", game.show_best)
        self.root.children = [self.table, self.button, self.status, self.error]

    def text(self) -> str:
        """The comparison, and where the puzzle comes from."""
        return f"{self._game.against().text()}\n{SETTLED}\n{self._origin()}"

    def draw(self) -> None:
        """Compare once more."""
        note = html.lines(SETTLED + " Undo brings yours back.", self._origin(), room="three")
        self.table.value = self._game.against().html() + note

    def _origin(self) -> str:
        return f"This puzzle: {words.origin(self._game.puzzle, self._game.snapshot)[0]}."


def _button(name: str, press: Callable[[], None]) -> widgets.Button:
    button = widgets.Button(description=name, layout={"width": "96px"})
    button.on_click(lambda _: press())
    return button


def _check_small(name: str, snapshot: Snapshot) -> None:
    sessions, nodes = len(snapshot.pool), len(snapshot.nodes)
    if not (1 <= sessions <= MOST_SESSIONS and 1 <= nodes <= MOST_NODES):
        raise InputError(
            f"snapshot {name!r} has {sessions} waiting sessions and {nodes} nodes; by hand one places "
            f"1 to {MOST_SESSIONS} on 1 to {MOST_NODES}: take some out, or use SnapshotPanel"
        )
