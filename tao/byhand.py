"""A placement made by hand: what it is worth, and where it does not fit (ours, for lessons).

A plan made here may overflow, which no plan of a planner does; then it is no plan that servers could carry
out, whatever it would be worth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tao import planners
from tao.checks import InputError, listing, shown
from tao.model import Params, Plan, Snapshot


class Attempt(NamedTuple):
    """The plan that a placement amounts to, and by how many tokens each overfull node overflows."""

    plan: Plan
    over: dict[str, int]

    @property
    def fits(self) -> bool:
        """Whether no node overflows."""
        return not self.over


def by_hand(snapshot: Snapshot, placed: Mapping[str, str], params: Params | None = None) -> Attempt:
    """Value the placement of the sessions `placed` (session id -> node id) on true sizes, in that order.

    Raises `InputError` for a session that does not wait, or a node that it may not use.

    >>> from tao import library
    >>> trap = library.load("two_nodes_trap")
    >>> by_hand(trap, {"anna": "n1", "ben": "n0"}).plan.value.credit
    15500
    >>> by_hand(trap, {"anna": "n0", "ben": "n0"}).over
    {'n0': 8784}
    """
    params = params or Params()
    problem = planners.case(snapshot, params)
    index = {b.id: k for k, b in enumerate(problem.nodes)}
    waiting = {s.id: i for i, s in enumerate(problem.sessions)}
    choice, room = np.full(len(waiting), -1, np.int64), snapshot.free_tokens(params)
    for session, node in placed.items():
        if session not in waiting:
            raise InputError(f"no session {shown(session)} waits here; there are {listing(list(waiting))}")
        i = waiting[session]
        eligible = problem.sessions[i].eligible
        usable = [b for b in index if eligible is None or b in eligible]
        if node not in usable:
            raise InputError(
                f"session {shown(session)} cannot go to {shown(node)}; it may use {listing(usable)}"
            )
        choice[i] = index[node]
        room[node] -= int(problem.demand[i])
    plan = planners.decode(problem, planners.Solution(choice, "by hand", False, "true"))
    order = list(placed)
    plan = replace(plan, placements=tuple(sorted(plan.placements, key=lambda p: order.index(p.session))))
    used = set(placed.values())
    return Attempt(plan, {b: -left for b, left in room.items() if left < 0 and b in used})
