"""LMCache's agent traces: one JSON line per request with its texts; the lines are not in order of time.

Tokens are estimated from the length of the texts. Some of the logs leave out the assistant's turns, so that a
prompt grows by less than the answer before it: the answers are added back then.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tao.traces.builder import Builder
from tao.traces.claude_code import CHARS_PER_TOKEN
from tao.traces.derive import plain
from tao.traces.files import Source
from tao.traces.mini_swe import characters, commands
from tao.traces.recording import Flag

TITLE = "LMCache agent trace"
EPOCH = ((1e9, 1e11, 1.0), (1e12, 1e14, 1e-3))  # ours: stamps of this century in s and in ms; else in us
ESTIMATED = Flag.CONTEXT_ESTIMATED | Flag.OUTPUT_ESTIMATED


def fits(row: Mapping[str, Any]) -> bool:
    """Whether a row is a request of such a trace."""
    return {"timestamp", "input", "output", "session_id"} <= row.keys()


@dataclass
class _Session:
    """The requests of a session in the order of the log: when, characters, and the commands asked for."""

    at: array[float] = field(default_factory=lambda: array("d"))
    given: array[int] = field(default_factory=lambda: array("q"))
    said: array[int] = field(default_factory=lambda: array("q"))
    asked: dict[int, str] = field(default_factory=dict)  # by request
    file: int = 0  # the last one in which it is


def read(source: Source, into: Builder) -> None:
    """All requests of a trace; their order is known in the end."""
    sessions, unit_s = into.across(_finish), 0.0
    for row in source.records():
        if not fits(row):
            source.ledger.skip("rows that are no request")
            continue
        if into.copied("lmcache", *(row[name] for name in ("session_id", "timestamp", "input", "output"))):
            source.ledger.skip("requests that are copies from another place")
            continue
        session = sessions.setdefault(plain(row["session_id"]), _Session())
        session.file, unit_s = source.ledger.file, unit_s or _unit_s(row["timestamp"])
        found = commands(row["output"])
        if len(found) == 1:
            session.asked[len(session.at)] = found[0][:1000]  # ours: enough to tell its class
        session.at.append(into.moment(row["timestamp"], unit_s or 1.0))
        session.given.append(characters(row["input"]))
        session.said.append(characters(row["output"]))


def _unit_s(x: Any) -> float:
    """The unit of a file's time stamps, by the magnitude of one; 0 for none."""
    if isinstance(x, bool) or not isinstance(x, int | float):
        return 0.0
    return next((unit for least, most, unit in EPOCH if least <= x < most), 1e-6)


def _finish(into: Builder, sessions: Mapping[Hashable, _Session]) -> None:
    for name, session in sessions.items():
        into.ledger.file = session.file
        _take(into, into.session(("lmcache", name)), session)


def _take(into: Builder, number: int, session: _Session) -> None:
    rows = list(range(len(session.at)))
    if not any(math.isnan(at) for at in session.at):
        rows.sort(key=session.at.__getitem__)
    place = {row: k for k, row in enumerate(rows)}
    slow = sum(session.given[b] - session.given[a] < session.said[a] for a, b in pairwise(rows))
    left_out = slow > (len(rows) - 1) / 2  # else it is a context that was cut now and then
    prompts, before = [0] * len(rows), 0
    for row in rows:
        prompts[row] = session.given[row] + before
        before += session.said[row] if left_out else 0
    into.ledger.repair("prompts without the answers before them, which were added back", left_out * len(rows))
    into.ledger.repair("tokens estimated from the length of the texts", len(rows))
    for row, prompt in enumerate(prompts):
        turn = into.turn(
            number, round(prompt / CHARS_PER_TOKEN), round(session.said[row] / CHARS_PER_TOKEN), None,
            session.at[row], order=place[row], flags=ESTIMATED,
        )  # fmt: skip
        if row in session.asked:
            into.call(turn, "bash", session.asked[row])
