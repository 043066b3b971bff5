"""What every check of an exercise does: unanswered, wrong and right, in words, without ever raising."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tao.checks import shown


def judge(answer: Any, fault: Callable[[Any], str], praise: str = "") -> None:
    """Print whether an answer is right; `fault` says what is wrong with it, "" if nothing.

    >>> def fault(answer): return "" if answer == 7 else "Count the one with the long context too."
    >>> judge(..., fault), judge(6, fault), judge(7, fault, "So seven get in.")
    not answered yet
    not yet: Count the one with the long context too.
    right. So seven get in.
    (None, None, None)
    """
    if answer is ...:
        print("not answered yet")
        return
    try:
        wrong = fault(answer)
    except Exception:  # whatever a learner has typed, of any type
        wrong = f"{shown(answer)} is not the kind of answer asked for."
    print(f"not yet: {wrong}" if wrong else f"right. {praise}".rstrip())


def number(least: float, most: float, low: str, high: str) -> Callable[[Any], str]:
    """What is wrong with a number that is to be within bounds: a sentence if too low, if too high."""

    def fault(answer: Any) -> str:
        value = float(answer)
        return low if value < least else high if value > most else ""

    return fault
