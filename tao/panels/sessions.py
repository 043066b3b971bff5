"""SessionsPanel: step through a small run, forward and back, and see who reasons, waits or is with a tool."""

from __future__ import annotations

from typing import Any, NamedTuple

import altair as alt
import ipywidgets as widgets

from tao import charts, checks, timeline
from tao.history import History
from tao.model import InputError
from tao.panels import html
from tao.panels.base import guard, wrapped
from tao.panels.figure import Figure
from tao.panels.stepper import Stepper
from tao.panels.table import Table
from tao.profiles import PS_PER_S
from tao.timeline import Moment, Span
from tao.workloads import Workload

TOOLS = {  # the delays are those of the TAO paper's replays
    "as recorded": (0.0, 0.0),
    "1 to 5 s longer": (1.0, 5.0),
    "2 to 10 s longer": (2.0, 10.0),
    "4 to 20 s longer": (4.0, 20.0),
}
MAX_SESSIONS, MAX_SEED = 8, 999
ALL = "all"
WIDE = {"description_width": "72px"}


class Case(NamedTuple):
    """What is run: how long tools take, how many sessions come at once, and the seed that draws them."""

    tools: str = "as recorded"
    sessions: int = 6
    seed: int = 1


class SessionsPanel(Stepper):
    """A run of a few sessions on one small node, moment by moment; a lane per session, up to now.

    `case` is what is shown, `pending` what the controls say and `reset` applies. `history`, `spans` and
    `moments` are the run as plain objects; set `step` to go to a moment.

    >>> panel = SessionsPanel(Case(sessions=1))
    >>> panel.count, panel.percent("reasoning")
    (12, 86)
    >>> panel.close()
    """

    def __init__(self, case: Case | None = None) -> None:
        self._run(case or Case())
        super().__init__(len(self.moments), "Moment")
        shown = self.case
        self.tools = widgets.Dropdown(
            options=list(TOOLS), value=shown.tools, description="Tools", style=WIDE, layout={"width": "230px"}
        )
        self.sessions = _whole("Sessions", shown.sessions, 1, MAX_SESSIONS)
        self.seed = _whole("Seed", shown.seed, 0, MAX_SEED)
        for control in (self.tools, self.sessions, self.seed):
            control.observe(self._on_setting, "value")
        self.reset_button = widgets.Button(description="Reset", tooltip="run what the controls say")
        self.reset_button.on_click(lambda _: self.reset())
        self.note = widgets.HTML()
        self.doing = widgets.HTML(layout={"flex": "1 1 420px", "min_width": "0"})
        self.doing.add_class("tao-narrow")
        self.figure = Figure(self.chart(), "lanes", charts.STEPPED_SIZE)
        self.root.children = [
            self.controls,
            wrapped(self.tools, self.sessions, self.seed, self.reset_button),
            self.note,
            widgets.VBox([self.status, self.error]),
            wrapped(self.figure.widget, self.doing),
        ]
        self.draw()

    @property
    def pending(self) -> Case:
        """What the controls say; shown after the next `reset`."""
        return Case(str(self.tools.value), int(self.sessions.value), int(self.seed.value))

    @property
    def moment(self) -> Moment:
        """The moment of the current step."""
        return self.moments[self.step - 1]

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return self.moment.at_ps / PS_PER_S

    @property
    def end_s(self) -> float:
        """Seconds after which all sessions of the run are done."""
        return self.history.end_ps / PS_PER_S

    def percent(self, phase: timeline.Doing) -> int:
        """The share of all seconds of all sessions that the whole run spends in a phase, in percent."""
        spent = timeline.seconds(self.spans)
        return round(100 * spent[phase] / sum(spent.values()))

    @guard
    def reset(self) -> None:
        """Run what the controls say, from the first moment."""
        self._run(self.pending)
        self.count = self.number.max = len(self.moments)
        self.controls.children[-1].value = f"of {self.count}"
        self.step = 1
        self.draw()

    def draw(self) -> None:
        """Show the current moment."""
        lanes, doing = self._tables()
        self.note.value = html.lines(*self._notes(), room="two")
        self.status.value = html.status(self._headline())
        self.figure.update(charts.stepped_lanes_value(*self._drawn()), lanes.html())
        self.doing.value = doing.html()

    def chart(self) -> alt.LayerChart:
        """The figure as a chart of its own."""
        return charts.stepped_lanes(*self._drawn())

    def text(self) -> str:
        """The run so far in plain text: what happens now, who does what, and every phase."""
        lanes, doing = self._tables()
        return "\n\n".join(["\n".join(self._notes()), self._headline(), doing.text(), lanes.text()])

    def _run(self, case: Case) -> None:
        if case.tools not in TOOLS:
            raise InputError(f"tools is {case.tools!r}; it must be one of {', '.join(TOOLS)}")
        checks.whole(case.sessions, "sessions", 1, MAX_SESSIONS)
        checks.whole(case.seed, "seed", 0, MAX_SEED)
        self.case = case
        self.workload: Workload = timeline.short_sessions(case.sessions, TOOLS[case.tools], case.seed)
        self.history: History = timeline.small_run(self.workload)
        self.spans = timeline.spans(self.history)
        self.moments = timeline.moments(self.spans)

    def _drawn(self) -> tuple[list[Span], list[str], float, float]:
        return timeline.until(self.spans, self.moment.at_ps), self.workload.ids, self.now_s, self.end_s

    def _notes(self) -> tuple[str, str]:
        case = self.case
        sessions = f"{case.sessions} session{'s' * (case.sessions > 1)}"
        about = (
            f"SIMULATED: {sessions} on one node that holds {timeline.CAPACITY_TOKENS:,} tokens; "
            f"tools {case.tools}; seed {case.seed}."
        )
        if self.pending == case:
            return about, "The controls show what is run."
        tools, count, seed = self.pending
        return about, f"Pending: tools {tools}, sessions {count}, seed {seed}. Reset runs it."

    def _headline(self) -> str:
        moment = self.moment
        said = [
            (phase, [self._turn(span) for span in moment.begin if span.phase == phase])
            for phase in timeline.PHASES
        ]
        verbs = {
            "waiting": "no room yet for",
            "reasoning": "the model takes up",
            "tool": "answered, now with a tool:",
        }
        parts = [f"{verbs[phase]} {', '.join(names)}" for phase, names in said if names]
        parts += [f"{name} is done" for name in moment.done]
        return f"{self.now_s:.2f} s: {'; '.join(parts)}"

    def _turn(self, span: Span) -> str:
        turns = next(task.turns for task in self.workload.tasks if task.id == span.session)
        kind = f", {turns[span.turn].tool_class}" if span.phase == "tool" else ""
        return f"{span.session} (turn {span.turn + 1} of {len(turns)}{kind})"

    def _tables(self) -> tuple[Table, Table]:
        """Every phase so far, which is what the figure shows; and who does what now."""
        told = timeline.until(self.spans, self.moment.at_ps)
        lanes = [
            (
                s.session,
                str(s.turn + 1),
                s.phase,
                f"{s.begin_ps / PS_PER_S:.2f}",
                f"{s.end_ps / PS_PER_S:.2f}",
            )
            for s in told
        ]
        columns = "session", "turn", "phase", "from, s", "to, s"
        rows = [self._doing(name, told) for name in (*self.workload.ids, ALL)]
        names = "session", "now", "prompt", *(f"{phase}, s" for phase in timeline.PHASES)
        caption = f"Who does what at {self.now_s:.2f} s, and seconds so far"
        return Table("Every phase so far", columns, lanes), Table(caption, names, rows)

    def _doing(self, name: str, told: list[Span]) -> tuple[str | int, ...]:
        spent = [f"{s:.1f}" for s in timeline.seconds(told, "" if name == ALL else name).values()]
        latest = {span.session: span for span in told}
        over = {moment_name for m in self.moments[: self.step] for moment_name in m.done}
        at_work = [span for each, span in latest.items() if each not in over and span.phase == "reasoning"]
        if name == ALL:
            return name, f"{len(at_work)} reasoning", sum(span.prompt_tokens for span in at_work), *spent
        if name in over:
            return name, "done", 0, *spent
        return name, latest[name].phase, latest[name].prompt_tokens, *spent

    @guard
    def _on_setting(self, change: dict[str, Any]) -> None:
        self.note.value = html.lines(*self._notes(), room="two")


def _whole(name: str, value: int, least: int, most: int) -> widgets.BoundedIntText:
    return widgets.BoundedIntText(
        value=value, min=least, max=most, description=name, style=WIDE, layout={"width": "150px"}
    )
