"""Checks of notebook 03: when a prediction is void, and which evidence makes a lost call found again."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tao.exercises.base import judge
from tao.model import Params, ToolCall
from tao.readiness import changes, predict, ready_spans

BACK_S = 60.0
LOST = ToolCall("pytest", 0.0, expected_s=3.0)  # as it runs; it is back at BACK_S


def check_void(answer: Any) -> None:
    """The second from which nothing is expected of the call "lost" any more.

    >>> check_void(33.0)
    not yet: From there on history is void, but one more rule is left to go by.
    """
    judge(answer, _void_fault, "The fallback expects it at 5 s, and that is void 30 s later.")


def _void_fault(answer: Any) -> str:
    second = float(answer)
    void_s = next(at for at in changes(LOST, Params()) if _rule(math.nextafter(at, math.inf)) == "void")
    if abs(second - void_s) < 0.05:
        return ""
    rule = _rule(second)
    if rule == "void":
        return "It is void earlier: step back to the first moment at which nothing is left."
    if rule == "fallback":
        return "From there on history is void, but one more rule is left to go by."
    return "Then history is still in force. Overdue is not yet void."


def _rule(at_s: float) -> str:
    return predict(LOST, at_s, Params()).rule


def check_announced(answer: Any) -> None:
    """The latest deadline, to half a second, with which the return of the call "lost" is still foreseen.

    >>> check_announced(30.0)
    not yet: It counts as ready, but too early: its chance is over long before it is back.
    """
    judge(answer, _announced_fault, "What the tool itself announces beats every statistic.")


def _announced_fault(answer: Any) -> str:
    if not _foreseen(float(answer)):
        spans = ready_spans(replace(LOST, deadline_s=float(answer), finished_s=BACK_S), Params())
        if not spans:
            return "With this it never counts as ready before it is back."
        return "It counts as ready, but too early: its chance is over long before it is back."
    return "Foreseen; but a later deadline would do as well." if _foreseen(float(answer) + 0.5) else ""


def _foreseen(deadline_s: float) -> bool:
    spans = ready_spans(replace(LOST, deadline_s=deadline_s, finished_s=BACK_S), Params())
    return bool(spans) and spans[-1][1] >= BACK_S


def check_command(answer: Any) -> None:
    """A shell command from which the ladder can tell that it takes 12 s.

    >>> check_command("make test")
    not yet: The ladder finds no wait in this command.
    """
    judge(answer, _command_fault, "The command itself says it; nothing had to be learned.")


def _command_fault(answer: Any) -> str:
    tool = ToolCall("bash", 0.0, command=answer, expected_s=2.0)
    p = predict(tool, 0.0, Params())
    if p.rule != "sleep":
        return "The ladder finds no wait in this command."
    if abs(p.return_s - 12.0) > 0.05:
        return f"The ladder takes this to wait for {p.return_s:g} s."
    return ""
