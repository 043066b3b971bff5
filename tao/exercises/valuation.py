"""Checks of notebook 02: credit by hand, the half-life at which the winner changes, and three values."""

from __future__ import annotations

from typing import Any

from tao import ranking
from tao.exercises.base import judge, number
from tao.model import Params, Value
from tao.valuation import decayed

TOKENS, AGE_S, HALF_LIFE_S = 12_000, 20.0, 10.0  # of the first exercise
VALUES = {"a": Value(0, 1, 90_000), "b": Value(1, 0, 10), "c": Value(1, 0, 9)}  # of the third


def check_credit(answer: Any) -> None:
    """The credit of 12,000 tokens seen 20 s ago, at a half-life of 10 s.

    >>> check_credit(...), check_credit(6000)
    not answered yet
    not yet: That is too much: count how many half-lives have passed.
    (None, None)
    """
    truth = decayed(TOKENS, AGE_S, HALF_LIFE_S)
    low = "That is too little: credit halves once per half-life, it is not gone after the second."
    high = "That is too much: count how many half-lives have passed."
    judge(answer, number(truth, truth, low, high))


def check_turning_point(answer: Any) -> None:
    """The smallest half-life in whole seconds at which `big` wins, all else as it was.

    >>> check_turning_point(100)
    not yet: big wins there, but already with a shorter one.
    """
    pool = ranking.five_waiting()

    def wins(half_life_s: int) -> bool:
        return ranking.ranked(pool, ranking.NODE, Params(half_life_s=half_life_s))[0].session == "big"

    def fault(answer: Any) -> str:
        if answer != int(answer) or answer < 1:
            return "Answer with a whole number of seconds."
        if not wins(int(answer)):
            return f"With {answer:g} s big does not win."
        return (
            "big wins there, but already with a shorter one." if answer > 1 and wins(int(answer) - 1) else ""
        )

    judge(answer, fault, "The longer the half-life, the more an old and large cache counts.")


def check_best_value(answer: Any) -> None:
    """Which of a = (0, 1, 90,000), b = (1, 0, 10), c = (1, 0, 9) is worth most, as TAO compares.

    >>> check_best_value("a")
    not yet: a is ready and large, but compare the first numbers first.
    """
    why = {
        "a": "a is ready and large, but compare the first numbers first.",
        "c": "c ties with another in two numbers; look at the third.",
    }
    best = max(VALUES, key=lambda name: VALUES[name])

    def fault(answer: Any) -> str:
        return "" if answer == best else why.get(answer, 'Answer "a", "b" or "c".')

    judge(answer, fault, "One token of credit outweighs everything after it.")
