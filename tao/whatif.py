"""What if: the best plan with more room on one node, or without one of the residents (ours)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tao import checks, planners
from tao.model import Params, Snapshot, Value


class WhatIf(NamedTuple):
    """A change of room, and how the value of the plan would change with it.

    `tokens` more on `node`; `leaver` is the resident that makes the room, "" for new room. `exact` says
    that both plans, with and without the change, are proven to be the best on true sizes.
    """

    node: str
    tokens: int
    leaver: str
    change: Value
    exact: bool

    @property
    def words(self) -> str:
        """The question and its answer in a sentence."""
        given = f"With {self.tokens:,} more tokens on {self.node}"
        if self.leaver:
            given = f"If {self.leaver} left {self.node}, freeing {self.tokens:,} tokens,"
        effect = f"would change by {signed(self.change)}" if any(self.change) else "would stay"
        doubt = "" if self.exact else ", but not both plans are proven to be the best"
        return f"{given} the value {effect}{doubt}."


def more_room(
    snapshot: Snapshot, params: Params | None = None, more_tokens: int = 1_000, planner: str = "exact"
) -> dict[str, WhatIf]:
    """What `more_tokens` of room more would be worth on each node, by planning anew.

    >>> from tao.model import Node, Session
    >>> snap = Snapshot(0.0, (Node("n0", 5_000), Node("n1", 900)), (Session("a", 4_000), Session("b", 1_200)))
    >>> for node in more_room(snap).values(): print(node.words)
    With 1,000 more tokens on n0 the value would stay.
    With 1,000 more tokens on n1 the value would change by (+0, +1, +1,200).
    """
    more = checks.whole(more_tokens, "more_tokens", 0)
    nodes = sorted(b.id for b in snapshot.nodes)
    return {w.node: w for w in _answered(snapshot, params, planner, [(node, more, "") for node in nodes])}


def who_should_leave(
    snapshot: Snapshot, params: Params | None = None, planner: str = "exact"
) -> dict[str, WhatIf]:
    """What the plan would gain if a resident left its node (and did not queue): the best one first.

    Of equals the smaller one comes first, then the lower id.

    >>> from tao.model import Node, Session
    >>> residents = Session("r", 1_000, resident_on="n0"), Session("s", 2_000, resident_on="n0")
    >>> snap = Snapshot(0.0, (Node("n0", 5_000),), (Session("a", 2_500), *residents))
    >>> for left in who_should_leave(snap).values(): print(left.words)
    If s left n0, freeing 2,512 tokens, the value would change by (+0, +1, +2,500).
    If r left n0, freeing 1,512 tokens, the value would stay.
    """
    checked = planners.checked(snapshot, planner, params)
    asked = [
        (s.resident_on, snapshot.demand_tokens(s, checked), s.id)
        for s in snapshot.sessions
        if s.resident_on is not None
    ]
    asked.sort(key=lambda x: x[1:])
    found = _answered(snapshot, checked, planner, asked)
    return {w.leaver: w for w in sorted(found, key=lambda w: w.change, reverse=True)}


def _answered(
    snapshot: Snapshot, params: Params | None, planner: str, asked: list[tuple[str, int, str]]
) -> Iterable[WhatIf]:
    """The change of value for each (node, tokens, leaver)."""
    params = planners.checked(snapshot, planner, params)
    values = []
    for problem in planners.cases(snapshot, params, [{}, *({node: more} for node, more, _ in asked)]):
        solution = planners.PLANNERS[planner](problem)
        values.append((problem.total(solution.choice), solution.exact and solution.problem == "true"))
    (now, proven), *then = values
    return [
        WhatIf(*what, Value(*(x - y for x, y in zip(value, now, strict=True))), proven and sure)
        for what, (value, sure) in zip(asked, then, strict=True)
    ]


def signed(v: Value) -> str:
    """A change of value, such as "(+3,000, +0, -12)"."""
    return "(" + ", ".join(f"{x:+,}" for x in v) + ")"
