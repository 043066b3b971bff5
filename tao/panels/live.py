"""LivePanel: submit agent sessions to live or simulated servers, watch them, stop them, look back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import altair as alt
import ipywidgets as widgets

from tao import charts
from tao.charts.live import SIZE
from tao.checks import InputError, listing
from tao.history import History
from tao.live.agents import Agent
from tao.live.connection import Connection, connect
from tao.live.runs import Run, run
from tao.model import Params
from tao.panels import html, run_words
from tao.panels.base import Panel, guard, wrapped
from tao.panels.figure import Figure
from tao.panels.snapshot import SnapshotPanel
from tao.panels.updates import Updates
from tao.policies import POLICIES
from tao.profiles import DEFAULT_PROFILE, Profile
from tao.simulator import simulate
from tao.workloads import WORKLOADS, Task, Workload

BUSY = (
    "While a cell computes, a run goes on by itself, with its time stamps and its record; buttons and "
    "figures answer when the cell ends. A run stops by itself at its most seconds (of the servers' time) or "
    "requests."
)
FIELDS = {  # name: what it is called, value, most
    "sessions": ("Sessions", 8, 2_000),
    "turns": ("Turns each", 6, 10_000),
    "workers": ("At a time", 8, 2_000),
    "max_seconds": ("Max seconds", 600, 86_400),
    "max_requests": ("Max requests", 1_000, 1_000_000),
}
VIEWS = {
    "Run": "first tokens, nodes and sessions, as the run goes on",
    "Simulator": "what was measured beside a simulation of the same sessions",
    "Cache": "cache credit as estimated against what servers had cached",
    "Decisions": "step through what the planner decided on",
}
LIST_HEIGHT = 150  # px


class LivePanel(Panel):
    """Sessions on the servers of a connection, under a policy that can be switched while they run.

    Without `connection` it connects by itself (`tao.connect`). `workload`: a name or a `Workload`; each
    Submit takes its next sessions, and of each the first turns. `profile`: what the simulator takes the
    servers for. `kv_events`: as in `tao.live.run`. Raises `InputError` where `tao.connect` does.
    """

    def __init__(
        self,
        connection: Connection | None = None,
        workload: str | Workload = "swe-lite",
        *,
        profile: str | Profile = DEFAULT_PROFILE,
        params: Params | None = None,
        kv_events: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._owned, self._kv_events = connection is None, kv_events
        self.connection = connect() if connection is None else connection
        self.banner = self.connection.banner
        self.run: Run | None = None
        self.submitted: Workload | None = None  # of this run; None if it has sessions of another kind
        self.simulated: History | None = None
        self.decisions: SnapshotPanel | None = None
        self._workload, self._profile, self._params = workload, profile, params or Params()
        self._policies: list[str] = []  # of this run, in order
        self._over: History | None = None
        self._firsts: list[dict[str, Any]] = []
        self._nodes: list[dict[str, Any]] = []
        self._sessions: list[dict[str, Any]] = []
        self._updates = Updates(self._update)
        self._make_controls()
        self._lay_out()
        self.refresh()

    # --- from Python ------------------------------------------------------------------------------

    @property
    def history(self) -> History | None:
        """The record of the run, so far if it is under way; None before the first one."""
        return self._over or (self.run.history if self.run else None)

    def submit(self, agents: Mapping[str, Agent] | None = None, **fields: float) -> None:
        """Begin a run, or add sessions to the one under way: the workload's next ones, or `agents`.

        `fields`: values for the fields of the panel: sessions, turns, workers, max_seconds, max_requests.
        Raises `InputError`.
        """
        if unknown := [name for name in fields if name not in FIELDS]:
            raise InputError(f"there is no field {unknown[0]!r}; the fields are {listing(list(FIELDS))}")
        for name, value in fields.items():
            self.fields[name].value = value
        more = self.run is not None and not self.run.done
        batch = self._next_sessions(more) if agents is None else None
        if self.run and more:
            self.run.submit(batch or agents or {})
            self.submitted = _together(self.submitted, batch)
        else:
            self._begin(batch or agents or {})
            self.submitted = batch
        self.refresh()

    def stop(self) -> None:
        """Stop the run, and everything it has begun."""
        if self.run:
            self.run.stop()
        self.refresh()

    def switch(self, policy: str) -> None:
        """Another policy decides from now on; raises `InputError` for one that cannot."""
        if policy not in self.policy.options:
            raise InputError(f"policy is {policy!r}; here it may be {listing(list(self.policy.options))}")
        self.policy.value = policy
        if self.run and not self.run.done and policy != self._policies[-1]:
            self.run.switch(policy)
            self._policies.append(policy)
        self.refresh()

    def wait(self, timeout_s: float | None = None) -> History:
        """Wait for the run's end and show it; `await panel.run` does not hold the figures up meanwhile.

        Raises what ended it, or `TimeoutError`, upon which it goes on.
        """
        if self.run is None:
            raise InputError("nothing has been submitted; call submit() before wait()")
        try:
            return self.run.wait(timeout_s)
        finally:
            self.refresh()

    def refresh(self) -> None:
        """Bring the panel up to date with its run."""
        if self.run:
            done = self.run.done  # before the rest: what comes after belongs to the next time
            self._firsts += self.run.first_tokens(len(self._firsts))
            self._nodes, self._sessions = self.run.nodes(), self.run.sessions()
            if done:
                self._over = self._over or self.run.history
                self._nodes = [row | {"others": None} for row in self._nodes]  # nobody looks any more
        if self._over or self.view.value != "Cache":  # a copy of the record, five times a second, is too much
            self._render()

    def text(self) -> str:
        """The panel in plain text."""
        tables = [table.text() for table in self._tables()] if self.run else []
        late = [self.cached(), self.compared()] if self._over else []
        return "\n\n".join([f"{self.banner}\n{self._said()}\n{BUSY}", *tables, *late])

    def compared(self) -> str:
        """What was measured beside a simulation of the same sessions, or why there is none, in plain text."""
        return "\n".join(self._beside())

    def cached(self) -> str:
        """How well cache credit was estimated, in a few sentences."""
        if not (self.run and self.history):
            return "Nothing has run yet."
        return f"{run_words.credit_summary(self.history)} {run_words.residency(self.run.credit())}".strip()

    def chart(self) -> alt.LayerChart:
        """The first tokens as a chart of its own."""
        return charts.first_tokens(self._firsts, self.banner)

    def close(self) -> None:
        """Stop the run, close the widgets, and let go of the connection, which is closed if it is our own."""
        self._updates.close()
        try:
            if self.run and not self.run.done:
                self.run.stop()
        finally:
            self.run = None
            connection = vars(self).pop("connection", None)  # so that it ends once others drop it too
            if connection and self._owned:
                connection.close()
            super().close()

    # --- sessions -----------------------------------------------------------------------------------

    def _next_sessions(self, more: bool) -> Workload:
        """The next sessions of the workload, the first turns of each."""
        first = len(self.submitted.tasks) if more and self.submitted else 0
        turns, last = int(self.fields["turns"].value), first + int(self.fields["sessions"].value)
        given = self._workload
        if isinstance(given, str):
            if given not in WORKLOADS:
                raise InputError(
                    f"workload is {given!r}; it may be {listing(list(WORKLOADS))}, or a Workload"
                )
            whole = WORKLOADS[given](tasks=last)
        else:
            whole = given.head(last)
        tasks = tuple(_cut(task, turns) for task in whole.tasks[first:])
        return replace(whole, tasks=tasks, seed=whole.seed + first)  # other contents than those before

    def _begin(self, agents: Mapping[str, Agent] | Workload) -> None:
        options = {name: self.fields[name].value for name in ("workers", "max_seconds", "max_requests")}
        options["workers"], options["max_requests"] = int(options["workers"]), int(options["max_requests"])
        policy = str(self.policy.value)
        options |= {"params": self._params, "kv_events": self._kv_events, "on_change": self._updates.poke}
        begun = run(self.connection, agents, policy, **options)
        self._policies, self._over, self._firsts, self.simulated = [policy], None, [], None
        self.run = begun
        self._forget_decisions()
        begun.then(self._updates.poke)

    def _beside(self) -> list[str]:
        """The simulation of the same sessions as a table; or in words why there is none."""
        history = self._over
        if history is None:
            return ["What was measured is set beside a simulation once the run is over."]
        if self.submitted is None:
            return ["Sessions of one's own code are no workload, so nothing is simulated beside them."]
        if len(set(self._policies)) > 1:
            return ["The policy was switched during the run, so no simulation of one policy is beside it."]
        if self.simulated is None:
            try:
                self.simulated = self._simulate(self.submitted, history)
            except InputError as error:
                return [f"Nothing is simulated beside it: {error}."]
        table = run_words.compared(history, self.simulated, self.banner)
        return [table.text(), run_words.caveats(history, self.simulated)]

    def _simulate(self, work: Workload, history: History) -> History:
        return simulate(
            work,
            self._policies[0],
            nodes=len(history.node_ids),
            workers=history.settings["workers"],
            capacity_tokens=history.settings["capacity_tokens"],
            profile=self._profile,
            params=self._params,
        )

    # --- what is seen -------------------------------------------------------------------------------

    def _make_controls(self) -> None:
        names = [
            name for name, make in POLICIES.items() if not getattr(make(self._params), "sees_tools", False)
        ]
        style = {"description_width": "initial"}
        self.policy = widgets.Dropdown(
            options=names, value="tao", description="Policy", style=style, layout={"width": "220px"}
        )
        self.fields = {
            name: (widgets.BoundedFloatText if name == "max_seconds" else widgets.BoundedIntText)(
                value=value, min=1, max=most, description=words, style=style, layout={"width": "170px"}
            )
            for name, (words, value, most) in FIELDS.items()
        }
        presses = {"Submit": self._on_submit, "Stop": self._on_stop, "Switch": self._on_switch}
        self.buttons = {name: widgets.Button(description=name, layout={"width": "104px"}) for name in presses}
        for name, press in presses.items():
            self.buttons[name].on_click(press)
        self.view = widgets.ToggleButtons(
            options=list(VIEWS),
            tooltips=list(VIEWS.values()),
            description="Show",
            style={"button_width": "96px"},
        )
        self.view.observe(self._on_view, "value")

    def _lay_out(self) -> None:
        self.firsts = Figure(charts.first_tokens([], self.banner), "firsts", SIZE)
        self.credit = Figure(charts.cache_credit([], self.banner), "credit", SIZE)
        self.node_table, self.session_table, self.beside = (
            widgets.HTML(layout={"min_width": "0"}) for _ in range(3)
        )
        self.credit_words = widgets.HTML(layout={"min_width": "0", "flex": "1 1 320px"})
        lists = widgets.VBox(
            [self.node_table, self.session_table], layout={"flex": "1 1 320px", "min_width": "0"}
        )
        self._stepper = widgets.VBox()
        boxes = (
            wrapped(self.firsts.widget, lists),
            self.beside,
            wrapped(self.credit.widget, self.credit_words),
            self._stepper,
        )
        self._boxes = dict(zip(VIEWS, boxes, strict=True))
        self.root.children = [
            widgets.HTML(html.banner(self.banner)),
            wrapped(self.policy, *self.fields.values(), *self.buttons.values()),
            widgets.VBox([self.status, self.error, widgets.HTML(html.lines(BUSY, room="two"))]),
            self.view,
            *boxes,
        ]

    def _render(self) -> None:
        """Draw the view that is chosen."""
        self.status.value = html.status(self._said())
        for name, box in self._boxes.items():
            box.layout.display = None if name == self.view.value else "none"
        if self.view.value == "Run":
            firsts, nodes, sessions = self._tables()
            self.firsts.update(charts.first_tokens_value(self._firsts), firsts.html())
            self.node_table.value = html.scroll(nodes.html(), nodes.caption, LIST_HEIGHT)
            self.session_table.value = html.scroll(sessions.html(), sessions.caption, LIST_HEIGHT)
        elif self.view.value == "Simulator":
            self._render_beside()
        elif self.view.value == "Cache":
            self._render_credit()
        elif self.decisions is None:
            self._show_decisions()

    def _render_beside(self) -> None:
        words = self._beside()
        if self._over and self.simulated:
            table = run_words.compared(self._over, self.simulated, self.banner)
            self.beside.value = table.html() + html.lines(words[-1], room="two")
        else:
            self.beside.value = html.lines(*words, room="two")

    def _render_credit(self) -> None:
        history = self.history
        rows = run_words.credit_rows(history) if history else []
        table = run_words.credit(rows, self.banner)
        self.credit.update(charts.cache_credit_value(rows), table.html())
        self.credit_words.value = html.lines(self.cached(), room="three")

    def _show_decisions(self) -> None:
        history = self.history
        found = run_words.decisions(history, self.banner) if history else []
        if found:
            self.decisions = SnapshotPanel(found, self._params, self.banner)
            self._stepper.children = [self.decisions.root]
        else:
            words = "No planner has decided yet: policies that plan, such as tao, keep what they decided on."
            self._stepper.children = [widgets.HTML(html.lines(words, room="two"))]

    def _forget_decisions(self) -> None:
        if self.decisions:
            self.decisions.close()
        self.decisions, self._stepper.children = None, ()

    def _said(self) -> str:
        if self.run is None:
            return "Nothing has run yet: choose a policy and how many sessions, then press Submit."
        return run_words.progress(
            " then ".join(self._policies), self._sessions, len(self._firsts), self._over
        )

    def _tables(self) -> list[Any]:
        return [
            run_words.first_tokens(self._firsts, self.banner),
            run_words.nodes(self._nodes, self.banner),
            run_words.sessions(self._sessions, self.banner),
        ]

    # --- presses ------------------------------------------------------------------------------------

    def _update(self) -> None:
        """Called by the run; an error of a button stays in sight."""
        try:
            self.refresh()
        except Exception as error:
            self.show_error(error)

    @guard
    def _on_submit(self, _button: widgets.Button) -> None:
        self.submit()

    @guard
    def _on_stop(self, _button: widgets.Button) -> None:
        self.stop()

    @guard
    def _on_switch(self, _button: widgets.Button) -> None:
        self.switch(str(self.policy.value))

    @guard
    def _on_view(self, _change: dict[str, Any]) -> None:
        if self.view.value == "Decisions":
            self._forget_decisions()  # there may be more by now
        self._render()


def _cut(task: Task, turns: int) -> Task:
    """The first turns of a session; after the last one nothing follows."""
    if turns >= len(task.turns):
        return task
    last = replace(task.turns[turns - 1], tool="", tool_class="", tool_s=0.0, sleep_s=None)
    return replace(task, turns=(*task.turns[: turns - 1], last))


def _together(before: Workload | None, batch: Workload | None) -> Workload | None:
    if before is None or batch is None:
        return None
    return replace(before, tasks=before.tasks + batch.tasks)
