"""Checks of notebook 01: how many share a place, who waits longest, how many reason at a time."""

from __future__ import annotations

from typing import Any

from tao import timeline
from tao.exercises.base import judge, number

REASONING_S, TOOL_S = 2.0, 8.0  # of the first exercise
SESSIONS, SEED = 8, 1  # of the second
MOMENTS_S = 0.5, 7.7, 12.0, 18.0, 24.0  # at which the third is tried


def check_places(answer: Any) -> None:
    """How many sessions keep one place busy, each reasoning 2 s and then 8 s with a tool, nobody waiting.

    >>> check_places(...), check_places(2)
    not answered yet
    not yet: With so few the place is empty while all of them are with their tools.
    (None, None)
    """
    most = (REASONING_S + TOOL_S) / REASONING_S
    low = "With so few the place is empty while all of them are with their tools."
    high = "With so many somebody always waits: the place has only so many seconds."
    judge(answer, number(most, most, low, high), "The longer the tools, the more sessions share a place.")


def check_longest_wait(answer: Any) -> None:
    """Which session waits longest where eight run at once, tools as recorded, seed 1.

    >>> check_longest_wait("s9")
    not yet: Answer with the name of a lane, such as "s1".
    """
    workload = timeline.short_sessions(SESSIONS, seed=SEED)
    told = timeline.spans(timeline.small_run(workload))
    waits = {name: timeline.seconds(told, name)["waiting"] for name in workload.ids}

    def fault(answer: str) -> str:
        if answer not in waits:
            return 'Answer with the name of a lane, such as "s1".'
        longer = sum(wait > waits[answer] for wait in waits.values())
        return f"{answer} waits {waits[answer]:.1f} s; {longer} of the others wait longer." if longer else ""

    judge(answer, fault, "Its requests came when the node was full, again and again.")


def check_reasoning_at(answer: Any) -> None:
    """A function (spans, at_s) -> how many sessions the model works for then.

    >>> check_reasoning_at(lambda spans, at_s: 0)
    not yet: At 0.5 s your function says 0, which is too few.
    """
    told = timeline.spans(timeline.small_run(timeline.short_sessions(6, seed=SEED)))

    def fault(answer: Any) -> str:
        for at_s in MOMENTS_S:
            said, truth = answer(told, at_s), timeline.reasoning_at(told, at_s)
            if said != truth:
                wrong = "few" if said < truth else "many"
                return f"At {at_s} s your function says {said}, which is too {wrong}."
        return ""

    judge(answer, fault, "So you can ask a run anything: it is a list of phases.")
