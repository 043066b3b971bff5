"""What an import did: rows read, skipped, repaired, with reasons and places, but never what stood there."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

PLACES = 3  # ours: how many places of each kind a report names


class Count(NamedTuple):
    """How often something was met, and the first places: "file 2, line 7"."""

    what: str
    times: int
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        places = ", ".join(self.places) + (", ..." if self.times > len(self.places) else "")
        return f"{self.what}: {self.times:,}" + (f" ({places})" if self.places else "")


@dataclass(frozen=True)
class Report:
    """The import of some files. `formats`: files by format; `unread`: files that could not be used.

    `signs` are sentences on what makes the numbers doubtful, or what is not in them.
    """

    files: int = 0
    formats: tuple[Count, ...] = ()
    unread: tuple[Count, ...] = ()
    rows: int = 0
    sessions: int = 0
    turns: int = 0
    calls: int = 0
    skipped: tuple[Count, ...] = ()
    repaired: tuple[Count, ...] = ()
    clock_s: float | None = None  # the resolution of the time stamps; None: there are none
    unknown_share: float | None = None  # of tool calls, those of unknown length
    signs: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The whole report, a line for each count.

        >>> print(Report(files=1, rows=3, skipped=(Count("torn lines", 1, ("file 1, line 3",)),)))
        1 file, 3 rows: 0 sessions, 0 turns, 0 tool calls
        skipped:
          torn lines: 1 (file 1, line 3)
        time stamps: none
        """
        lines = [
            f"{_many(self.files, 'file')}, {_many(self.rows, 'row')}: {_many(self.sessions, 'session')}, "
            f"{_many(self.turns, 'turn')}, {_many(self.calls, 'tool call')}"
        ]
        parts = (
            ("formats", self.formats),
            ("not usable", self.unread),
            ("skipped", self.skipped),
            ("repaired or estimated", self.repaired),
        )
        for title, counts in parts:
            lines += [f"{title}:", *(f"  {count}" for count in counts)] if counts else []
        lines.append("time stamps: none" if self.clock_s is None else f"time stamps: to {self.clock_s:g} s")
        if self.unknown_share is not None:
            lines.append(f"tool calls of unknown length: {self.unknown_share:.1%}")
        return "\n".join([*lines, *(f"note: {sign}" for sign in self.signs)])


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


@dataclass
class Ledger:
    """Takes down, while files are read, what a `Report` will say; `at` is where the reader stands."""

    rows: int = 0
    file: int = 0
    line: int = 0
    _counts: dict[str, Counter[str]] = field(default_factory=dict)
    _places: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    @property
    def at(self) -> str:
        """The place where the reader stands."""
        return f"file {self.file}, line {self.line}" if self.line else f"file {self.file}"

    def format(self, title: str) -> None:
        """A file is of that format."""
        self._count("formats", title, False)

    def unread(self, why: str) -> None:
        """A file cannot be used."""
        self._count("unread", why, True)

    def skip(self, why: str, count: int = 1) -> None:
        """Rows are left out."""
        self._count("skipped", why, True, count)

    def repair(self, how: str, count: int = 1) -> None:
        """Something is changed, estimated, or taken for unknown."""
        self._count("repaired", how, True, count)

    def _count(self, kind: str, what: str, placed: bool, count: int = 1) -> None:
        if count:
            self._counts.setdefault(kind, Counter())[what] += count
            places = self._places.setdefault((kind, what), [])
            if placed and len(places) < PLACES and self.at not in places:
                places.append(self.at)

    def counts(self, kind: str) -> tuple[Count, ...]:
        """All that was counted of a kind, most frequent first."""
        return tuple(
            Count(what, n, tuple(self._places[kind, what]))
            for what, n in self._counts.get(kind, Counter()).most_common()
        )
