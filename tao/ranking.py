"""Who is worth most on a node, under any order of the three numbers; and five sessions to ask it about."""

from __future__ import annotations

from typing import NamedTuple

from tao import readiness, valuation
from tao.checks import InputError
from tao.model import CacheNote, Node, Params, Session, Snapshot, ToolCall, Value

ORDERS = {
    "credit, ready, tokens": (0, 1, 2),  # TAO paper
    "ready, credit, tokens": (1, 0, 2),
    "tokens, ready, credit": (2, 1, 0),
}
"""Orders in which the numbers of a value can be compared, in words."""

NODE, NOW_S = "n0", 1000.0


class Ranked(NamedTuple):
    """A session, what it is worth, and the tokens to read for it if the node holds what it was seen to."""

    session: str
    value: Value
    cached_tokens: int
    to_read_tokens: int


def five_waiting(older_s: float = 0.0) -> Snapshot:
    """One node and five waiting sessions (constructed); their caches were seen `older_s` seconds earlier.

    >>> [s.id for s in five_waiting().pool]
    ['big', 'fresh', 'long', 'new', 'small']
    """
    sessions = (
        _session("big", 18_000, 16_000, 24.0 + older_s),
        _session("fresh", 7_000, 6_000, 6.0 + older_s, due_in_s=3.0),
        _session("long", 24_000, due_in_s=0.5),
        _session("new", 3_000),
        _session("small", 5_000, due_in_s=8.0),
    )
    return Snapshot(NOW_S, (Node(NODE, 30_000),), sessions)


def _session(
    name: str, context: int, cached: int = 0, age_s: float = 0.0, due_in_s: float | None = None
) -> Session:
    notes = {NODE: CacheNote(cached, NOW_S - age_s)} if cached else {}
    if due_in_s is None:
        return Session(name, context, cached=notes, waiting_since_s=NOW_S)
    tool = ToolCall("bash", NOW_S - 1.0, deadline_s=NOW_S + due_in_s)
    return Session(name, context, "tool", cached=notes, tool=tool)


def ranked(
    snapshot: Snapshot, node: str, params: Params, order: str = "credit, ready, tokens"
) -> list[Ranked]:
    """The waiting pool by what a place on `node` is worth to each, best first; of equals the lower id.

    >>> [r.session for r in ranked(five_waiting(), NODE, Params())]
    ['fresh', 'big', 'long', 'new', 'small']
    """
    if order not in ORDERS:
        raise InputError(f"order is {order!r}; it must be one of {'; '.join(ORDERS)}")
    rows = [_ranked(s, node, snapshot.now_s, params) for s in snapshot.pool]
    return sorted(rows, key=lambda row: (*(-row.value[k] for k in ORDERS[order]), row.session))


def _ranked(s: Session, node: str, now_s: float, params: Params) -> Ranked:
    value = valuation.value(s, node, readiness.session_ready(s, now_s, params), now_s, params)
    cached = min(s.cached[node].tokens, s.context_tokens) if node in s.cached else 0
    return Ranked(s.id, value, cached, s.context_tokens - cached)


def thrashes(rows: list[Ranked]) -> bool:
    """Whether the first of the rows has nothing cached here while another one has."""
    return bool(rows) and not rows[0].cached_tokens and any(row.cached_tokens for row in rows)
