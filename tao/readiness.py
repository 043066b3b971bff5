"""When will the tool return? Evidence from strong to weak, and what happens when it was wrong.

TAO paper. The ladder: observed completion; a return deadline published by the tool; a
parsed `sleep`; history of this (tool, command class), of this tool, of all tools; 5 s. A prediction
that lies too far in the past is void and the next rung is tried. One that is merely overdue gives
the session a short *probe* opportunity, then nothing until the tool returns or evidence changes.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from tao import shell
from tao.model import Params, Session, Statistic, ToolCall

Rule = Literal["no tool", "completed", "deadline", "sleep", "history", "fallback", "void"]

parsed_sleep = lru_cache(maxsize=4096)(shell.sleep_seconds)


class Prediction(NamedTuple):
    """The moment a tool is expected back (seconds; inf: never), by which rule, and the ready bit.

    `probe` marks a ready bit that is only the short chance given to an overdue tool.
    """

    return_s: float
    rule: Rule
    ready: bool
    probe: bool = False


def evidence(tool: ToolCall, params: Params) -> Iterator[tuple[float, Rule]]:
    """The (return moment in seconds, rule) that each rung of the ladder gives, strongest first."""
    if tool.deadline_s is not None:
        yield tool.deadline_s + params.margin_s, "deadline"
    if tool.command is not None:
        asked_s = parsed_sleep(tool.command)
        if asked_s is not None:
            yield tool.started_s + asked_s + params.margin_s, "sleep"
    if tool.expected_s is not None:
        yield tool.started_s + tool.expected_s + params.margin_s, "history"
    yield tool.started_s + params.fallback_s + params.margin_s, "fallback"


def predict(tool: ToolCall | None, now_s: float, params: Params) -> Prediction:
    """The prediction in force at `now_s`, with the rule that gave it.

    >>> predict(ToolCall("bash", 0.0, command="sleep 4"), 3.5, Params())
    Prediction(return_s=4.0, rule='sleep', ready=True, probe=False)
    """
    if tool is None:
        return Prediction(now_s, "no tool", True)
    if tool.finished_s is not None:
        return Prediction(tool.finished_s, "completed", True)
    for due_s, rule in evidence(tool, params):
        void_from_s = (due_s if params.stale_from == "due" else tool.started_s) + params.stale_s
        if now_s < void_from_s:
            overdue = now_s > due_s
            soon = due_s - params.horizon_s <= now_s <= due_s + params.probe_s
            return Prediction(due_s, rule, soon, probe=soon and overdue)
    return Prediction(math.inf, "void", False)


def session_ready(session: Session, now_s: float, params: Params) -> bool:
    """Readiness (r): does the session need inference within the horizon?"""
    return session.phase != "tool" or predict(session.tool, now_s, params).ready


def changes(tool: ToolCall, params: Params) -> list[float]:
    """All moments (seconds, ascending) at which the prediction or its ready bit may change.

    A change counts from just after its moment, except that a horizon begins at it.
    """
    moments = {tool.started_s}
    for due_s, _ in evidence(tool, params):
        start_s = due_s if params.stale_from == "due" else tool.started_s
        moments |= {due_s - params.horizon_s, due_s, due_s + params.probe_s, start_s + params.stale_s}
    return sorted(m for m in moments if tool.started_s <= m < math.inf)


def timeline(tool: ToolCall, params: Params, until_s: float | None = None) -> list[tuple[float, Prediction]]:
    """Replay a tool's life: (moment in seconds, prediction from then on), one row per change.

    `until_s` defaults to the moment after which nothing changes any more, or the completion.

    >>> for at, p in timeline(ToolCall("bash", 0.0), Params()):
    ...     print(at, p.rule, p.ready, p.probe)
    0.0 fallback False False
    4.0 fallback True False
    5.0 fallback True True
    6.0 fallback False False
    35.0 void False False
    """
    finished_s = tool.finished_s
    running = replace(tool, finished_s=None)
    rows: list[tuple[float, Prediction]] = []
    for at in changes(running, params):
        for moment in (at, math.nextafter(at, math.inf)):
            prediction = predict(running, moment, params)
            if not rows or rows[-1][1] != prediction:
                rows.append((at, prediction))
    end_s = math.inf if until_s is None else until_s
    if finished_s is not None and finished_s <= end_s:
        rows = [row for row in rows if row[0] < finished_s]
        rows.append((finished_s, predict(tool, finished_s, params)))
    return [row for row in rows if row[0] <= end_s]


@dataclass(slots=True)
class _Durations:
    """Durations of one kind of call: a running sum for the mean, a sorted list for the median."""

    ordered: list[float]
    total: float = 0.0

    def add(self, seconds: float) -> None:
        insort(self.ordered, seconds)
        self.total += seconds

    def estimate(self, statistic: Statistic) -> float:
        n = len(self.ordered)
        if statistic == "mean":
            return self.total / n
        return (self.ordered[(n - 1) // 2] + self.ordered[n // 2]) / 2.0


class History:
    """Learns how long tools take, per (tool, command class), per tool, and over all.

    >>> history = History()
    >>> for seconds in (0.1, 0.1, 3.1):
    ...     history.add("bash", "test", seconds)
    >>> history.estimate("bash", "test", "median"), history.estimate("bash", "git", "mean")
    (0.1, 1.1)
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[str | None, str | None], _Durations] = {}

    def add(self, tool: str, command_class: str | None, seconds: float) -> None:
        """Note one completed call of `seconds`."""
        for kind in {(tool, command_class), (tool, None), (None, None)}:
            self._kinds.setdefault(kind, _Durations([])).add(seconds)

    def estimate(self, tool: str, command_class: str | None, statistic: Statistic) -> float | None:
        """Seconds such a call takes, from the most specific kind seen so far; None without any."""
        for kind in ((tool, command_class), (tool, None), (None, None)):
            if kind in self._kinds:
                return self._kinds[kind].estimate(statistic)
        return None
