"""When will the tool return? Evidence from strong to weak, and what happens when it was wrong.

TAO paper. The ladder: observed completion; a return deadline published by the tool; a
parsed `sleep`; history of this (tool, command class), of this tool, of all tools; 5 s. A prediction
that lies too far in the past is void and the next rung is tried. One that is merely overdue gives
the session a short *probe* opportunity, then nothing until the tool returns or evidence changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from tao import shell
from tao._jit import njit
from tao.durations import Floats as Floats
from tao.durations import Ints as Ints
from tao.durations import Kinds as Kinds
from tao.model import Params, Session, ToolCall

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


RULES: tuple[Rule, ...] = ("no tool", "completed", "deadline", "sleep", "history", "fallback", "void")


class Evidence(NamedTuple):
    """What is known of a running tool, as compiled code takes it: seconds, nan where there is nothing.

    `deadline_s` is a moment; `asked_s` (by a `sleep`) and `expected_s` (by history) are durations.
    """

    started_s: float
    deadline_s: float
    asked_s: float
    expected_s: float


def evidence(tool: ToolCall) -> Evidence:
    """The rungs of the ladder that a tool call offers."""
    return Evidence(*map(float, _rungs(tool)))


def _rungs(tool: ToolCall) -> tuple[float, float, float, float]:
    """The fields of `Evidence`, in a plain tuple and of any kind of number, which is quicker to make."""
    deadline_s, command, expected_s = tool.deadline_s, tool.command, tool.expected_s
    asked_s = None if command is None else parsed_sleep(command)
    return (
        tool.started_s,
        math.nan if deadline_s is None else deadline_s,
        math.nan if asked_s is None else asked_s,
        math.nan if expected_s is None else expected_s,
    )


@njit
def _due_s(tool, rung, settings):
    """The return moment by one rung (an index into `RULES`), nan if it says nothing."""
    if rung == 2:
        return tool.deadline_s + settings.margin_s
    if rung == 3:
        return tool.started_s + tool.asked_s + settings.margin_s
    if rung == 4:
        return tool.started_s + tool.expected_s + settings.margin_s
    return tool.started_s + settings.fallback_s + settings.margin_s


@njit
def forecast(tool, now_s, settings):
    """The prediction in force: (return moment or inf, index into `RULES`, ready bit)."""
    for rung in range(2, 6):
        due_s = _due_s(tool, rung, settings)
        counted_from_s = due_s if settings.stale_from == 0 else tool.started_s
        if not math.isnan(due_s) and now_s < counted_from_s + settings.stale_s:
            soon = due_s - settings.horizon_s <= now_s and now_s <= due_s + settings.probe_s
            return due_s, rung, soon
    return math.inf, 6, False


@njit
def next_change(tool, now_s, settings):
    """The first moment after `now_s` at which the prediction or its ready bit may change; inf: none."""
    found = tool.started_s if tool.started_s > now_s else math.inf
    for rung in range(2, 6):
        due_s = _due_s(tool, rung, settings)
        if math.isnan(due_s):
            continue
        stale_s = (due_s if settings.stale_from == 0 else tool.started_s) + settings.stale_s
        for at in (due_s - settings.horizon_s, due_s, due_s + settings.probe_s, stale_s):
            if at > now_s and at >= tool.started_s and at < found:
                found = at
    return found


def predict(tool: ToolCall | None, now_s: float, params: Params) -> Prediction:
    """The prediction in force at `now_s`, with the rule that gave it.

    >>> predict(ToolCall("bash", 0.0, command="sleep 4"), 3.5, Params())
    Prediction(return_s=4.0, rule='sleep', ready=True, probe=False)
    """
    if tool is None:
        return Prediction(now_s, "no tool", True)
    if tool.finished_s is not None:
        return Prediction(tool.finished_s, "completed", True)
    due_s, rung, ready = forecast(evidence(tool), float(now_s), params.settings)
    return Prediction(due_s, RULES[rung], bool(ready), probe=bool(ready and now_s > due_s))


def session_ready(session: Session, now_s: float, params: Params) -> bool:
    """Readiness (r): does the session need inference within the horizon? Never where it is switched off."""
    if not params.readiness:
        return False
    return session.phase != "tool" or predict(session.tool, now_s, params).ready


def ready_bits(sessions: Sequence[Session], now_s: float, params: Params) -> Ints:
    """`session_ready` of many sessions at once: int64[n], 0 or 1."""
    ready = np.full(len(sessions), params.readiness, np.int64)
    if not params.readiness:
        return ready
    acting: list[bool] = []
    rungs: list[float] = []
    for s in sessions:
        tool = s.tool
        if s.phase == "tool" and tool is not None and tool.finished_s is None:
            acting.append(True)
            rungs += _rungs(tool)
        else:
            acting.append(False)
    known = np.array(rungs, np.float64).reshape(-1, len(Evidence._fields))
    ready[np.array(acting, np.bool_)] = _soon(known, float(now_s), params.settings)
    return ready


@njit
def _soon(known, now_s, settings):
    """The ready bits int64[k] that `forecast` gives to the rows float64[k, 4] of `Evidence`."""
    ready = np.empty(len(known), np.int64)
    for a in range(len(known)):
        tool = Evidence(known[a, 0], known[a, 1], known[a, 2], known[a, 3])
        ready[a] = forecast(tool, now_s, settings)[2]
    return ready


def changes(tool: ToolCall, params: Params) -> list[float]:
    """All moments (seconds, ascending) at which the prediction or its ready bit may change.

    A change counts from just after its moment, except that a horizon begins at it.
    """
    known, settings = evidence(tool), params.settings
    moments: list[float] = []
    at = next_change(known, math.nextafter(known.started_s, -math.inf), settings)
    while at < math.inf:
        moments.append(at)
        at = next_change(known, at, settings)
    return moments


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


def ready_spans(tool: ToolCall, params: Params) -> list[tuple[float, float, bool]]:
    """When a call counts as ready before it is back: (from, to, whether as a probe), seconds.

    >>> ready_spans(ToolCall("bash", 0.0, expected_s=3.0, finished_s=3.5), Params())
    [(2.0, 3.0, False), (3.0, 3.5, True)]
    """
    rows = timeline(tool, params)
    return [(at, end, p.probe) for (at, p), (end, _) in pairwise(rows) if p.ready]
