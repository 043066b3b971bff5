"""Checks of notebook 06: how often planners miss the optimum, and what rounding and budgets cost."""

from __future__ import annotations

from typing import Any

from tao import planners
from tao.exercises.base import judge
from tao.library import load
from tao.model import Params, Snapshot

HURT = "quantum_hurts"  # the packaged snapshot that the exercise on rounding is about
MOST_QUANTUM = 4096


def check_ties(answer: Any, table: Any) -> None:
    """Judge on how many snapshots of `table` (see `tao.quality.misses`) short_first is as good as dp.

    >>> from tao import load, quality
    >>> check_ties(..., quality.misses([load("session_177")]))
    not answered yet
    """
    from tao.quality import against

    def fault(said: Any) -> str:
        more, less, same = against(table, "dp", "short_first")
        if int(said) == more + same and less:
            return "On some of those dp is worth more. Count only those on which both are worth the same."
        if int(said) != same:
            return "Choose short_first and read the line in bold: it counts more, less and the same."
        return ""

    judge(answer, fault, "Most decisions are so easy, or so hopeless, that any rule gets them right.")


def check_quantum(answer: Any) -> None:
    """Judge a quantum at which dp is as good as the optimum on `quantum_hurts`, and not finer than needed.

    >>> check_quantum(4096)
    not yet: With quanta of 4,096 tokens dp still keeps less credit than the optimum there.
    """

    def fault(said: Any) -> str:
        quantum, snapshot = int(said), load(HURT)
        if quantum not in _powers():
            return f"{quantum:,} is not a power of two from 1 to {max(_powers()):,}."
        if not _as_good(snapshot, quantum):
            return f"With quanta of {quantum:,} tokens dp still keeps less credit than the optimum there."
        if any(_as_good(snapshot, coarser) for coarser in _powers() if coarser > quantum):
            return "That is fine enough, but a coarser power of two would do as well."
        return ""

    judge(answer, fault, "Sizes are rounded up and room down, so one session too many fell between them.")


def check_fallback(answer: Any) -> None:
    """Judge who places when dp's search outgrows its budget.

    >>> check_fallback("bfd")
    right. Largest first, each where least room is left: quick, and it guarantees nothing.
    """

    def fault(said: Any) -> str:
        name = str(said).strip().lower().replace("-", "_")
        if name not in planners.PLANNERS:
            return f"There is no planner {said!r} here; the buttons name them."
        if name != "bfd":
            return "Set the budget to 1 state and look at a snapshot with a cross: its line says who placed."
        return ""

    judge(answer, fault, "Largest first, each where least room is left: quick, and it guarantees nothing.")


def _as_good(snapshot: Snapshot, quantum: int) -> bool:
    best = planners.plan(snapshot, "exact")
    return planners.plan(snapshot, "dp", Params(quantum_tokens=quantum)).value.credit == best.value.credit


def _powers() -> list[int]:
    return [2**k for k in range(MOST_QUANTUM.bit_length())]
