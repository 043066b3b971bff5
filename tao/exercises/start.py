"""Checks and a result of notebook 00: who is left out, and what many tokens are worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tao import library, planners
from tao.exercises.base import judge
from tao.model import Plan

SNAPSHOT = "session_177"


def admitted_by(session: str, plans: Mapping[str, Plan]) -> str:
    """Which of dp and short-first admit a session, as the prediction of notebook 00 puts it.

    >>> snapshot = library.load(SNAPSHOT)
    >>> admitted_by("177", {name: planners.plan(snapshot, name) for name in ("dp", "short_first")})
    'only dp'
    """
    dp, short = (session in plans[name].node_of() for name in ("dp", "short_first"))
    return ("both" if short else "only dp") if dp else ("only short_first" if short else "neither")


def check_left_out(answer: Any) -> None:
    """The names of all sessions that short-first leaves out in `session_177`.

    >>> check_left_out({"171"})
    not yet: It lets 171 in.
    """
    judge(answer, _left_out_fault, "It fills the nodes with the small ones first, and then neither fits.")


def _left_out_fault(answer: Any) -> str:
    snapshot = library.load(SNAPSHOT)
    placed = planners.plan(snapshot, "short_first").node_of()
    names = {answer} if isinstance(answer, str) else set(answer)
    known = {session.id for session in snapshot.pool}
    if unknown := names - known:
        return f"Nobody of that name waits: {', '.join(sorted(unknown))}."
    if wrong := sorted(names & set(placed)):
        return f"It lets {', '.join(wrong)} in."
    return "" if names == known - set(placed) else "There is one more."


def check_most_tokens(answer: Any) -> None:
    """The name of a planner that keeps the most tokens in `session_177`.

    >>> check_most_tokens("dp")
    not yet: Another one keeps more.
    """

    def fault(said: Any) -> str:
        snapshot = library.load(SNAPSHOT)
        if said not in planners.PLANNERS:
            return f"Answer with one of {', '.join(planners.PLANNERS)}."
        names = [name for name in planners.PLANNERS if name != "exhaustive"]
        tokens = {name: planners.plan(snapshot, name).value.tokens for name in names}
        return "" if tokens.get(said) == max(tokens.values()) else "Another one keeps more."

    judge(answer, fault, "Yet it is behind: tokens count only where credit and readiness tie.")
