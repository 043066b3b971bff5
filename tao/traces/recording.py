"""Recorded sessions as columns: what a log tells about requests and tool calls, and what it leaves open.

Unknown is unknown here: -1 for tokens, nan for seconds. `tao.traces.replay` makes a `Workload` of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntFlag
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tao.recipes import MAX_TOKENS as MAX_TOKENS
from tao.traces.report import Report

Rows = npt.NDArray[Any]  # a structured array

TURN = np.dtype(
    [
        ("session", "i4"),
        ("context_tokens", "i4"),  # the whole prompt, cached tokens included
        ("new_tokens", "i4"),  # of it, what people and tools added; all of it on a first turn
        ("prefix_tokens", "i4"),  # of it, what is the beginning of the context before, unchanged
        ("output_tokens", "i4"),
        ("cached_tokens", "i4"),  # as the provider reported
        ("start_s", "f8"),  # of the request, from the first moment of the recording
        ("llm_s", "f8"),  # to the end of the answer
        ("tool_s", "f8"),  # from there to the last tool result, or until the agent asks again at once
        ("human_s", "f8"),  # a person's wait in place of tools, or after them
        ("flags", "i2"),
    ]
)
CALL = np.dtype(
    [
        ("turn", "i4"),  # a row of the turns
        ("tool", "i4"),
        ("tool_class", "i2"),
        ("seconds", "f8"),
        ("asked_s", "f8"),  # by a `sleep`, or as an explicit wait
    ]
)


class Flag(IntFlag):
    """What is odd about a turn."""

    CTX_DROP = 1  # the context was cut or rewritten
    OUTPUT_ESTIMATED = 2
    CONTEXT_ESTIMATED = 4
    NEGATIVE = 8  # a duration below zero, taken as 0
    NO_RESULT = 16  # a tool call of which no end is known
    ZERO_CONTEXT = 32
    ZERO_OUTPUT = 64
    BACKGROUND = 128  # work goes on after the call has returned
    ERROR = 256  # a tool reported an error
    OUT_OF_ORDER = 512  # stood elsewhere in the log


@dataclass(frozen=True, eq=False)
class Recording:
    """Sessions, turns (`TURN`) and tool calls (`CALL`), in that order, and the report of the import.

    `parents` has the number of the session that started a session, -1 for none. Sessions are named by
    number, tools by name where it is a known one.
    """

    sessions: tuple[str, ...]
    parents: npt.NDArray[np.int32]  # int32[sessions]
    turns: Rows  # TURN[turns], by session, in order of time
    calls: Rows  # CALL[calls], by turn
    tools: tuple[str, ...]
    classes: tuple[str, ...]
    report: Report = field(default_factory=Report)

    @cached_property
    def first(self) -> npt.NDArray[np.int64]:
        """int64[sessions + 1]: the first turn of each session."""
        return np.searchsorted(self.turns["session"], np.arange(len(self.sessions) + 1)).astype(np.int64)

    @cached_property
    def first_call(self) -> npt.NDArray[np.int64]:
        """int64[turns + 1]: the first call of each turn."""
        return np.searchsorted(self.calls["turn"], np.arange(len(self.turns) + 1)).astype(np.int64)

    def __len__(self) -> int:
        return len(self.sessions)

    def same(self, other: Recording) -> bool:
        """Whether both tell the same, their reports aside.

        >>> from tao.traces.builder import Builder
        >>> Builder().finish().same(Builder().finish())
        True
        """
        mine, theirs = self.named(), other.named()
        return mine[0] == theirs[0] and all(
            np.array_equal(a[name], b[name], equal_nan=a[name].dtype.kind == "f")
            for a, b in ((mine[1], theirs[1]), (mine[2], theirs[2]))
            for name in a.dtype.names or ()
        )

    def named(self) -> tuple[tuple[Any, ...], Rows, Rows]:
        """Its parts for comparison: tools and classes by name in order of use, whatever their numbers."""
        calls = self.calls.copy()
        names = []
        for column, texts in (("tool", self.tools), ("tool_class", self.classes)):
            used = list(dict.fromkeys(calls[column].tolist()))
            renumber = np.full(max(used, default=0) + 1, -1)
            renumber[used] = range(len(used))
            calls[column] = renumber[calls[column]] if used else calls[column]
            names.append(tuple(texts[k] for k in used))
        return (self.sessions, self.parents.tolist(), *names), self.turns, calls

    def kept(self, sessions: npt.NDArray[np.bool_], note: str) -> Recording:
        """Only some of the sessions, bool[sessions], with a word on why in the report."""
        number = np.cumsum(sessions) - 1
        of_turn = sessions[self.turns["session"]]
        of_call = of_turn[self.calls["turn"]]
        turns, calls = self.turns[of_turn].copy(), self.calls[of_call].copy()
        turns["session"] = number[turns["session"]]
        calls["turn"] = (np.cumsum(of_turn) - 1)[calls["turn"]]
        parents = np.array(
            [number[p] if p >= 0 and sessions[p] else -1 for p in self.parents[sessions]], np.int32
        )
        names = tuple(name for name, keep in zip(self.sessions, sessions, strict=True) if keep)
        report = replace(self.report, signs=(*self.report.signs, note))
        return replace(self, sessions=names, parents=parents, turns=turns, calls=calls, report=report)
