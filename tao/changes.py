"""What may happen to a cluster while a plan is made: a snapshot in, the changed one out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from tao.checks import InputError, listing, shown
from tao.model import Placement, Session, Snapshot


class Change(NamedTuple):
    """Something that happens `at_s` seconds after a plan was asked for, in words and as a function."""

    at_s: float
    words: str
    happen: Callable[[Snapshot], Snapshot]


def grew(snapshot: Snapshot, session: str, tokens: int) -> Snapshot:
    """The context of a session, waiting or resident, is larger by so many tokens (negative: smaller).

    >>> grew(Snapshot(0.0, (), (Session("a", 5),)), "a", 3).sessions[0].context_tokens
    8
    """
    s = _find(snapshot, session)
    return _put(snapshot, session, replace(s, context_tokens=s.context_tokens + tokens))


def left(snapshot: Snapshot, session: str) -> Snapshot:
    """A session has ended.

    >>> left(Snapshot(0.0, (), (Session("a", 5),)), "a").sessions
    ()
    """
    _find(snapshot, session)
    return _put(snapshot, session, None)


def returned(snapshot: Snapshot, session: str) -> Snapshot:
    """The tool of a session is back, at the snapshot's moment.

    >>> from tao.model import ToolCall
    >>> acting = Session("a", 5, "tool", tool=ToolCall("bash", 0.0))
    >>> returned(Snapshot(2.0, (), (acting,)), "a").sessions[0].tool.finished_s
    2.0
    """
    s = _find(snapshot, session)
    if s.tool is None:
        raise InputError(f"session {shown(session)} has no tool that could return; name one that has")
    tool = replace(s.tool, finished_s=snapshot.now_s)
    return _put(snapshot, session, replace(s, phase="waiting", tool=tool))


def placed(snapshot: Snapshot, placements: Iterable[Placement]) -> Snapshot:
    """Placements carried out without a look: whoever is still there becomes resident, whatever room there is.

    >>> from tao.model import Node, Value
    >>> snap = Snapshot(0.0, (Node("n0", 9),), (Session("a", 5),))
    >>> placed(snap, [Placement("a", "n0", Value(0, 1, 5))]).sessions[0].resident_on
    'n0'
    """
    where = {p.session: p.node for p in placements}
    found = (replace(s, resident_on=where.get(s.id, s.resident_on)) for s in snapshot.sessions)
    return replace(snapshot, sessions=tuple(found))


EXAMPLE = "dp_beats_short_first"
CHANGES = {
    "tool returned": Change(0.2, "the tool of s02 is back", lambda x: returned(x, "s02")),
    "session grew": Change(0.4, "s05 appends 900 tokens", lambda x: grew(x, "s05", 900)),
    "session left": Change(0.6, "s08 is called off by its user", lambda x: left(x, "s08")),
    "node filled": Change(
        0.8, "an answer on n0 has grown by 4,000 tokens", lambda x: grew(x, "busy-n0", 4_000)
    ),
}
"""Changes of the packaged snapshot `EXAMPLE`, all made up, in the order in which they happen."""


def world(snapshot: Snapshot, names: Iterable[str], after_s: float) -> Snapshot:
    """The snapshot `after_s` seconds later, with those of the `CHANGES` that have happened by then.

    >>> from tao import library
    >>> later = world(library.load(EXAMPLE), ["session left", "node filled"], 0.7)
    >>> round(later.now_s, 1), "s08" in [s.id for s in later.sessions]
    (100.7, False)
    """
    happening = set(names)
    if unknown := happening - set(CHANGES):
        raise InputError(f"there is no change {shown(min(unknown))}; name some of {listing(list(CHANGES))}")
    live = replace(snapshot, now_s=snapshot.now_s + after_s)
    for name, change in CHANGES.items():
        if name in happening and change.at_s <= after_s:
            live = change.happen(live)
    return live


def _find(snapshot: Snapshot, session: str) -> Session:
    for s in snapshot.sessions:
        if s.id == session:
            return s
    raise InputError(f"there is no session {shown(session)} in this snapshot; name one that is")


def _put(snapshot: Snapshot, session: str, new: Session | None) -> Snapshot:
    """The session replaced, or taken out."""
    found = (new if s.id == session else s for s in snapshot.sessions)
    return replace(snapshot, sessions=tuple(s for s in found if s is not None))
