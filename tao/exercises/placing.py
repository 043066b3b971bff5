"""Checks of the exercises about placing by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tao import library, planners
from tao.byhand import by_hand
from tao.checks import InputError, shown
from tao.exercises.base import judge, number
from tao.model import Plan, Snapshot


def check_who_moves(answer: Any) -> None:
    """Which session of `two_nodes_trap` has to leave the node where it has most cache credit?

    >>> check_who_moves(...)
    not answered yet
    """
    snapshot = library.load("two_nodes_trap")
    plan = _best(snapshot)
    judge(
        answer,
        lambda given: _who_moves(snapshot, plan, given),
        "It loses a little on its second-best node; the other one has no second-best.",
    )


def check_placement(answer: Any) -> None:
    """Place the sessions of `dp_beats_short_first` (session -> node): more credit than short-first keeps.

    >>> check_placement({"s01": "n0"})
    not yet: It fits, but keeps 12,468 tokens of credit less than short_first.
    """
    snapshot = library.load("dp_beats_short_first")
    most = _best(snapshot).value.credit
    judge(answer, lambda given: _misplaced(snapshot, given), f"No plan that fits keeps more than {most:,}.")


def check_without_177(answer: Any) -> None:
    """How much credit could a plan for `session_177` keep if session 177 stayed out?

    >>> check_without_177(4125)
    not yet: More is possible: short_first keeps that much, and it uses n0 where nobody short has any cache.
    """
    full = library.load("session_177")
    rest = replace(full, sessions=tuple(s for s in full.sessions if s.id != "177"))
    most, short = _best(rest).value.credit, planners.plan(rest, "short_first").value.credit
    low = "More is possible: put each of the others where its cache is, as far as they fit."
    if type(answer) is int and answer == short:
        low = (
            "More is possible: short_first keeps that much, and it uses n0 where nobody short has any cache."
        )
    high = "Without 177 no plan that fits keeps that much; does a node overflow, or is 177 still in?"
    praise = (
        f"With it the best plan keeps {_best(full).value.credit:,}: a long session can outweigh all others."
    )
    judge(answer, number(most, most, low, high), praise)


def _best(snapshot: Snapshot) -> Plan:
    return planners.plan(snapshot, "exact")


def _who_moves(snapshot: Snapshot, plan: Plan, given: Any) -> str:
    for p in plan.placements:
        if p.session == given:
            credits = {b.id: by_hand(snapshot, {given: b.id}).plan.value.credit for b in snapshot.nodes}
            moves = p.value.credit < max(credits.values())
            return "" if moves else "What would that session keep anywhere else?"
    return f"{shown(given)} does not wait there; give the name of a session, as text."


def _misplaced(snapshot: Snapshot, given: Any) -> str:
    try:
        attempt = by_hand(snapshot, given)
    except InputError as error:
        return f"{error}."
    if attempt.over:
        return (
            " and ".join(f"{node} overflows by {tokens:,} tokens" for node, tokens in attempt.over.items())
            + "."
        )
    rival = planners.plan(snapshot, "short_first").value.credit
    behind = rival - attempt.plan.value.credit
    if behind > 0:
        return f"It fits, but keeps {behind:,} tokens of credit less than short_first."
    return "" if behind else "It fits and ties with short_first; more is possible."
