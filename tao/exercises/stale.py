"""Checks of notebook 07: which changes void a placement, and how far a node may fill."""

from __future__ import annotations

from functools import cache
from typing import Any

from tao import library
from tao.changes import CHANGES, EXAMPLE, grew, world
from tao.exercises.base import judge
from tao.model import Params, Snapshot
from tao.worker import Proposal, propose, revalidate

FILLED = "node filled"


@cache
def _asked() -> tuple[Snapshot, Proposal]:
    """The snapshot of the notebook, and the plan made on it."""
    snapshot = library.load(EXAMPLE)
    return snapshot, propose(snapshot, "dp", Params())


def _dropped(*names: str) -> set[str]:
    """The sessions whose placements are dropped when those changes have happened."""
    snapshot, proposal = _asked()
    live = world(snapshot, names, 1.0)
    return {d.placement.session for d in revalidate(proposal, live, Params()).dropped}


def check_harmless(answer: Any) -> None:
    """The name of the change that voids no placement.

    >>> check_harmless("session grew")
    not yet: After this, 1 of the placements is dropped.
    """
    judge(answer, _harmless_fault, "Readiness is a reason to be placed, not a reason to fit.")


def _harmless_fault(answer: Any) -> str:
    if answer not in CHANGES:
        return f"Answer with one of the names {', '.join(CHANGES)}."
    dropped = _dropped(answer)
    return f"After this, {len(dropped)} of the placements is dropped." if dropped else ""


def check_room(answer: Any) -> None:
    """By how many tokens busy-n0 may grow at most, so that nothing of the plan is dropped.

    >>> check_room(10_000)
    not yet: With so much, a placement is dropped.
    """
    judge(answer, _room_fault, "That is what the plan left free on n0.")


def _room_fault(answer: Any) -> str:
    if isinstance(answer, bool) or int(answer) != answer:
        return "Answer with a whole number of tokens."
    if _dropped_if_grown(int(answer)):
        return "With so much, a placement is dropped."
    return "" if _dropped_if_grown(int(answer) + 1) else "It may grow by more than that."


def _dropped_if_grown(tokens: int) -> bool:
    snapshot, proposal = _asked()
    return bool(revalidate(proposal, grew(snapshot, "busy-n0", tokens), Params()).dropped)


def check_rescue(answer: Any) -> None:
    """The change that, together with "node filled", saves the placement that this alone voids.

    >>> check_rescue("tool returned")
    not yet: With both, s06 is dropped all the same.
    """
    judge(answer, _rescue_fault, "One is dropped for what it changed, and its room serves another.")


def _rescue_fault(answer: Any) -> str:
    if answer not in CHANGES or answer == FILLED:
        return f"Answer with one of the names {', '.join(name for name in CHANGES if name != FILLED)}."
    still = _dropped(FILLED) & _dropped(FILLED, answer)
    return f"With both, {min(still)} is dropped all the same." if still else ""
