"""Mooncake's traces: one JSON line per request with its length and the hashes of its blocks; no sessions.

A hash stands for a block and all before it. So a request that begins with all whole blocks of an earlier one
goes on with its conversation, unless others go on from there too: then they only share a beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from tao.traces.builder import Builder
from tao.traces.files import Source, numbers

TITLE = "Mooncake"
BLOCK = 512  # tokens
MS = 1e-3
_OTHERS = frozenset(["session_id", "wait_for", "tao", "request_id", "chat_id"])  # keys of other formats
LEARN = 1000  # ours: requests of which all beginnings are kept, to know those that many share


def fits(row: Mapping[str, Any]) -> bool:
    """Whether a row is a request of such a trace, without sessions."""
    return "input_length" in row and "output_length" in row and _OTHERS.isdisjoint(row)


def read(source: Source, into: Builder) -> None:
    """All requests of a trace, with sessions found by their blocks."""
    sessions, rows, joined = _Sessions(), 0, 0
    for row in source.records():
        if not fits(row):
            source.ledger.skip("rows that are no request, or one of another format")
            continue
        rows += 1
        prompt, blocks = into.tokens(row["input_length"]), numbers(row.get("hash_ids"))
        if -(-prompt // BLOCK) != len(blocks):
            source.ledger.repair(f"hashes that are not one for each {BLOCK} tokens, left aside")
            blocks = []
        whole = blocks[: prompt // BLOCK]  # the last one is cut, and another once it is longer
        before = sessions.find(whole, prompt)
        joined += before is not None
        number = into.session(("mooncake", source.ledger.file, rows)) if before is None else before
        sessions.add(whole, prompt, number)
        into.turn(number, prompt, row["output_length"], None, into.moment(row.get("timestamp"), MS))
    source.ledger.line = 0  # they stand in no one line
    source.ledger.repair("requests joined to a session whose last prompt's whole blocks begin theirs", joined)


class _End(NamedTuple):
    """Where a conversation stands: its session, its last prompt and that prompt's whole blocks."""

    session: int
    prompt: int
    length: int
    blocks: int  # a hash over them


class _Sessions:
    """Where conversations stand, by the last whole block of their last prompt."""

    def __init__(self) -> None:
        self._ends: dict[int, _End] = {}
        self._next: dict[int, int] = {}  # -> the block that followed
        self._shared: set[int] = set()  # several different blocks followed
        self._rows = 0

    def find(self, whole: list[int], prompt: int) -> int | None:
        """The session that such a prompt goes on with: the one of which most blocks are in it."""
        self._rows += 1
        learns, follow, ends = self._rows <= LEARN, self._next, self._ends
        for block, later in pairwise(whole):
            if (learns or block in follow or block in ends) and follow.setdefault(block, later) != later:
                self._shared.add(block)
        for block in reversed([b for b in whole if b in ends]):
            end = ends[block]
            same = hash(tuple(whole[: end.length])) == end.blocks
            if same and end.prompt < prompt and block not in self._shared:
                return ends.pop(block).session
        return None

    def add(self, whole: list[int], prompt: int, session: int) -> None:
        """A session now stands at the end of this prompt."""
        if whole and whole[-1] not in self._shared:
            self._ends[whole[-1]] = _End(session, prompt, len(whole), hash(tuple(whole)))
