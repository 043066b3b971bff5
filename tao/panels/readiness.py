"""ReadinessPanel: what is expected of one tool call while it runs, and whether it counts as ready."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import altair as alt
import ipywidgets as widgets

from tao import charts
from tao.model import InputError, Params, ToolCall
from tao.panels import call_words, html
from tao.panels.base import guard, wrapped
from tao.panels.figure import Figure
from tao.panels.stepper import Stepper
from tao.readiness import Prediction, parsed_sleep, ready_spans, timeline

CALLS = {
    "known": ToolCall("pytest", 0.0, expected_s=6.0, finished_s=6.4),
    "sleep": ToolCall("bash", 0.0, command="sleep 4", expected_s=2.0, finished_s=4.1),
    "announced": ToolCall("deploy", 0.0, deadline_s=9.0, expected_s=2.0, finished_s=8.8),
    "unknown": ToolCall("search", 0.0, finished_s=12.0),
    "overdue": ToolCall("pytest", 0.0, expected_s=3.0, finished_s=9.0),
    "lost": ToolCall("pytest", 0.0, expected_s=3.0, finished_s=60.0),
}
"""Calls to look at, all constructed; each begins at 0 s."""

WORDS = {
    "known": "history knows the tool, and is about right",
    "sleep": "a command that waits for 4 s; history, which knows only the tool, says 2 s",
    "announced": "the tool itself says when it will be back; history says 2 s",
    "unknown": "nobody has seen this tool before",
    "overdue": "history says 3 s, but this time it takes longer",
    "lost": "history says 3 s, but it takes a minute",
    "your own": "a call of your own",
}
OWN = "your own"
BOX_HEIGHT = 276  # px, of the table
MOST_S = 600.0
EVIDENCE = {
    "deadline": "the tool announces its return at this second; 0: it announces nothing",
    "sleep": "the command waits for so many seconds; 0: it does not",
    "history": "calls like it took so many seconds; 0: none was seen",
    "took": "seconds after which it is back; the scheduler does not know",
}
RULES = {"horizon_s": "horizon", "probe_s": "probe", "stale_s": "stale after"}


class State(NamedTuple):
    """The call looked at, its name in the panel, and the parameters."""

    name: str
    tool: ToolCall
    params: Params


class ReadinessPanel(Stepper):
    """One tool call from its start to its return: a step per moment at which a prediction changes.

    `call` names one of `CALLS`; set `tool` or `params` for your own, `undo` takes a change back.
    `prediction` is the one in force at the current step.

    >>> panel = ReadinessPanel("overdue")
    >>> panel.step = 3
    >>> panel.prediction.rule, panel.prediction.probe, panel.ready_s
    ('history', True, 2.0)
    >>> panel.close()
    """

    def __init__(self, call: str = "known", params: Params | None = None) -> None:
        self.state = State(_known(call), CALLS[call], params or Params())
        self.past: list[State] = []
        super().__init__(len(self._life()), "Moment")
        self._writing = False
        self._make_controls()
        self._lay_out()
        self._write()

    @property
    def call(self) -> str:
        """The name of the call looked at; set it to one of `CALLS`."""
        return self.state.name

    @call.setter
    def call(self, name: str) -> None:
        self._change(State(_known(name), CALLS[name], self.params))

    @property
    def tool(self) -> ToolCall:
        """The call itself; set it to look at another, which must begin at 0 s and be back at some time."""
        return self.state.tool

    @tool.setter
    def tool(self, tool: ToolCall) -> None:
        if tool.started_s != 0.0 or tool.finished_s is None:
            raise InputError(
                f"the call starts at {tool.started_s} and ends at {tool.finished_s}; "
                "give started_s=0.0 and a finished_s"
            )
        self._change(State(OWN, tool, self.params))

    @property
    def params(self) -> Params:
        """Horizon, probe, staleness and the other constants; set them to see what changes."""
        return self.state.params

    @params.setter
    def params(self, params: Params) -> None:
        self._change(self.state._replace(params=params))

    @property
    def now_s(self) -> float:
        """The moment of the current step, in seconds since the call began."""
        return self._life()[self.step - 1][0]

    @property
    def prediction(self) -> Prediction:
        """The prediction in force from the current moment on."""
        return self._life()[self.step - 1][1]

    @property
    def ready_s(self) -> float:
        """For how many seconds the call counts as ready before it is back."""
        return sum(end - at for at, end, _ in ready_spans(self.tool, self.params))

    @guard
    def undo(self) -> None:
        """Take the latest change of the call or of a parameter back, if there is one."""
        if self.past:
            self.state = self.past.pop()
            self._write()

    def draw(self) -> None:
        """Show the current moment."""
        tool, params = self.tool, self.params
        rows, life = call_words.rows(tool, params, self.step), call_words.life(tool, params, self.step)
        self.figure.update(charts.call_life_value(rows), life.html())
        self.status.value = html.status(call_words.headline(tool, params, self.step))
        self.verdict.value = html.lines(
            f"{WORDS[self.call]}.", call_words.outcome(tool, params), room="two", name=self.call
        )
        self.list.value = html.scroll(life.html(), life.caption, BOX_HEIGHT)

    def chart(self) -> alt.LayerChart:
        """The figure as a chart of its own."""
        return charts.call_life(call_words.rows(self.tool, self.params, self.step))

    def text(self) -> str:
        """The call, the moment looked at, and every other moment, in plain text."""
        tool, params = self.tool, self.params
        dues = call_words.due(tool, params)
        told = ", ".join(f"{name} {at:.1f} s" for name, at in dues.items() if at is not None)
        lines = [
            f"{self.call}: {WORDS[self.call]}. Return expected by: {told}.",
            call_words.headline(tool, params, self.step),
            call_words.outcome(tool, params),
        ]
        return "\n".join(lines) + "\n\n" + call_words.life(tool, params, self.step).text()

    def _life(self) -> list[tuple[float, Prediction]]:
        return timeline(self.tool, self.params)

    def _change(self, state: State) -> None:
        if state != self.state:
            self.past.append(self.state)
            self.state = state
        self._write()

    def _write(self) -> None:
        """Bring every control in line with the state, and start again at the first moment."""
        tool, params, count = self.tool, self.params, len(self._life())
        asked_s = None if tool.command is None else parsed_sleep(tool.command)
        given = {
            "deadline": tool.deadline_s,
            "sleep": asked_s,
            "history": tool.expected_s,
            "took": tool.finished_s,
        }
        self._writing = True
        try:
            self.toggle.value = self.call
            for name, seconds in given.items():
                self.fields[name].value = seconds or 0.0
            for name in RULES:
                self.fields[name].value = getattr(params, name)
            self.number.value, self.number.max, self.count = 1, count, count
            self.controls.children[-1].value = f"of {count}"
        finally:
            self._writing = False
        self.draw()

    def _make_controls(self) -> None:
        self.toggle = widgets.ToggleButtons(
            options=[*CALLS, OWN],
            tooltips=list(WORDS.values()),
            description="Call",
            style={"button_width": "98px", "description_width": "40px"},
            layout={"width": "770px", "margin": "2px"},
        )
        self.toggle.observe(self._on_call, "value")
        least = {"took": 0.1, "stale_s": 0.1}
        self.fields = {
            name: widgets.BoundedFloatText(
                min=least.get(name, 0.0),
                max=MOST_S,
                step=0.5,
                description=f"{RULES.get(name, name)}, s",
                tooltip=EVIDENCE.get(name, "TAO's own rule"),
                style={"description_width": "84px"},
                layout={"width": "168px"},
            )
            for name in (*EVIDENCE, *RULES)
        }
        for field in self.fields.values():
            field.observe(self._on_field, "value")
        self.undo_button = widgets.Button(description="Undo", layout={"width": "84px"})
        self.undo_button.on_click(lambda _: self.undo())

    def _lay_out(self) -> None:
        chart = charts.call_life(call_words.rows(self.tool, self.params, 1))
        self.figure = Figure(chart, "life", charts.LIFE_SIZE)
        self.verdict = widgets.HTML()
        self.list = widgets.HTML(layout={"flex": "1 1 420px", "min_width": "0"})
        fields = list(self.fields.values())
        self.root.children = [
            wrapped(self.controls, self.undo_button),
            self.toggle,
            wrapped(*fields[: len(EVIDENCE)]),
            wrapped(*fields[len(EVIDENCE) :]),
            widgets.VBox([self.status, self.error, self.verdict]),
            wrapped(self.figure.widget, self.list),
        ]

    def _own(self) -> State:
        """What the fields say; a command stays as long as its seconds do."""
        given = {name: field.value for name, field in self.fields.items()}
        asked_s = 0.0 if self.tool.command is None else parsed_sleep(self.tool.command) or 0.0
        command = f"sleep {given['sleep']:g}" if given["sleep"] else None
        tool = replace(
            self.tool,
            deadline_s=given["deadline"] or None,
            command=self.tool.command if given["sleep"] == asked_s else command,
            expected_s=given["history"] or None,
            finished_s=given["took"],
        )
        params = replace(self.params, **{name: given[name] for name in RULES})
        return State(self.call if tool == self.tool else OWN, tool, params)

    @guard
    def _on_call(self, change: dict[str, Any]) -> None:
        if not self._writing:
            chosen = str(change["new"])
            self._change(State(chosen, CALLS.get(chosen, self.tool), self.params))

    @guard
    def _on_field(self, change: dict[str, Any]) -> None:
        if not self._writing:
            self._change(self._own())

    @guard
    def _on_number(self, change: dict[str, Any]) -> None:
        if not self._writing:
            self.draw()


def _known(call: str) -> str:
    if call not in CALLS:
        raise InputError(f"call is {call!r}; this panel knows {', '.join(CALLS)}")
    return call
