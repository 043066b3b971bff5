"""Checks of the exercises about the dynamic program."""

from __future__ import annotations

from typing import Any

from tao import explain, library, planners
from tao.checks import InputError, shown
from tao.exercises.base import judge, number
from tao.model import Params, Value

COARSEST = 4_095  # tokens: the lesson itself shows 4,096


def check_quanta(answer: Any) -> None:
    """How many quanta of 1,024 tokens does `s04` of `dp_beats_short_first` take?

    >>> check_quanta(11)
    not yet: A size is rounded up: what does not fill a quantum takes a whole one.
    """
    problem = planners.case(library.load("dp_beats_short_first"), Params())
    place = [s.id for s in problem.sessions].index("s04")
    size = int(planners.quantize(problem).demand[place])
    low = "A size is rounded up: what does not fill a quantum takes a whole one."
    high = "It takes its context and 512 tokens to grow into, in quanta of 1,024; that is less."
    judge(answer, number(size, size, low, high), "Rounded up, so that whatever the plan places does fit.")


def check_reads(answer: Any) -> None:
    """Which values does the first cell of `anna` (all room left) choose among, best first, as (k, r, t)?

    >>> check_reads([(15500, 2, 18000)])
    not yet: That cell reads 3 cells of the next column; give one value for each.
    """
    judge(answer, _reads, "One for each node that she fits on, and one for skipping her.")


def check_coarse(answer: Any) -> None:
    """A quantum below 4,096 tokens with which dp leaves somebody out of `two_nodes_trap`, although both fit.

    >>> check_coarse(1024)
    not yet: With quanta of 1,024 tokens dp still admits both.
    """
    judge(answer, _coarse, "The room was rounded down and the sizes up, until they met.")


def _reads(given: Any) -> str:
    problem = planners.case(library.load("two_nodes_trap"), Params())
    steps = explain.recurrence(problem)
    first = explain.backtrack(problem, steps)[0]
    skip, *places = [steps[cell].value for cell in first.reads]
    offers = [skip, *(Value.sum((problem.value(0, b), v)) for b, v in enumerate(places))]
    values = [tuple(int(part) for part in value) for value in given]
    if len(values) != len(offers):
        return f"That cell reads {len(offers)} cells of the next column; give one value for each."
    if sorted(values) != sorted(map(tuple, offers)):
        wrong = next((v for v in values if v not in map(tuple, offers)), values[0])
        return f"{wrong} is not among them; add what the place is worth to the cell that is left then."
    return "" if values == sorted(values, reverse=True) else "These are the values; put the best one first."


def _coarse(given: Any) -> str:
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= COARSEST:
        return f"{shown(given)} is no quantum; give a whole number from 1 to {COARSEST:,}."
    try:
        plan = planners.plan(library.load("two_nodes_trap"), "dp", Params(quantum_tokens=given))
    except InputError as error:
        return f"{error}."
    return "" if plan.deferred else f"With quanta of {given:,} tokens dp still admits both."
