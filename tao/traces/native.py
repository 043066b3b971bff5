"""Our own format: the rows of Dynamo's agentic Mooncake traces, and all else under the key `tao`.

Described in `data/README.md`, with a JSON Schema beside it. Nothing that a recording holds is lost; rows of
Dynamo, without our key, are read as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any

import numpy as np

from tao.traces.builder import Builder
from tao.traces.derive import PERSON_S
from tao.traces.files import Source
from tao.traces.recording import Flag, Recording
from tao.traces.values import scaled, texts

TITLE = "native (agentic Mooncake)"
BLOCK_TOKENS = 512  # Mooncake FAST25: tokens that one of the `hash_ids` stands for
_BLOCKS = (16, 32, 64, 128, 256, 512, 1024)
MOST_S = 1e10  # of a wait: hundreds of years
_TIMES = ("start_s", "llm_s", "tool_s", "human_s")


def fits(row: Mapping[str, Any]) -> bool:
    """Whether a row is such a request."""
    return "input_length" in row and ("tao" in row or "wait_for" in row or "session_id" in row)


def rows(recording: Recording, ours: bool = True) -> Iterator[dict[str, Any]]:
    """A row per turn, by session; without `ours` only what Dynamo knows.

    >>> from tao.traces.builder import Builder
    >>> b = Builder()
    >>> turn = b.turn(b.session("a"), context=600, output=20, began=0.0, ended=1.5)
    >>> [row["hash_ids"] for row in rows(b.finish())]
    [[0, 1]]
    """
    fresh, ids = 0, list[int]()
    waits, branches = _links(recording)
    for row, turn in enumerate(recording.turns):
        session = int(turn["session"])
        place = row - int(recording.first[session])
        context, prefix = int(turn["context_tokens"]), int(turn["prefix_tokens"])
        kept = max(prefix, 0) // BLOCK_TOKENS if place else 0
        count = math.ceil(max(context, 0) / BLOCK_TOKENS)
        ids = [*ids[:kept], *range(fresh, fresh + count - min(kept, len(ids)))] if count else []
        fresh = max(fresh, max(ids, default=-1) + 1)
        before = recording.turns[row - 1] if place else None
        told: dict[str, Any] = {
            "request_id": _id(recording, row),
            "session_id": recording.sessions[session],
            "input_length": _known(context),
            "output_length": _known(int(turn["output_tokens"])),
            "hash_ids": ids,
            "timestamp": _ms(turn["start_s"]),
            "delay": _ms(before["human_s"]) if before is not None else None,
            "wait_for": [_id(recording, other) for other in waits.get(row, ())],
            "branches": [_id(recording, other) for other in branches.get(row, ())],
            "prefix_reset": not kept,
            "tool_wait_ms": _ms(_wait(recording, row, waits[row])) if before is not None else None,
            "tool_events": _events(recording, row - 1) if before is not None else [],
        }
        yield told | ({"tao": _ours(recording, row, session, place)} if ours else {})


def _ours(recording: Recording, row: int, session: int, place: int) -> dict[str, Any]:
    turn, parent = recording.turns[row], int(recording.parents[session])
    told: dict[str, Any] = {"version": 1}
    if not place and parent >= 0:
        told["parent"] = recording.sessions[parent]
    told |= {name: _number(turn[name]) for name in _TIMES}
    told |= {name: _known(int(turn[name])) for name in ("prefix_tokens", "cached_tokens")}
    told["flags"] = [flag.name.lower() for flag in Flag(int(turn["flags"])) if flag.name]
    told["calls"] = [
        {
            "tool": tool,
            "class": kind,
            "seconds": _number(call["seconds"]),
            "asked_s": _number(call["asked_s"]),
        }
        for call, tool, kind in _calls(recording, row)
    ]
    return {key: value for key, value in told.items() if value not in (None, [])}


def _calls(recording: Recording, row: int) -> Iterator[tuple[Any, str, str]]:
    for call in recording.calls[recording.first_call[row] : recording.first_call[row + 1]]:
        yield call, recording.tools[call["tool"]], recording.classes[call["tool_class"]]


def _events(recording: Recording, row: int) -> list[dict[str, Any]]:
    return [
        {"tool_class": tool, "duration_ms": _ms(call["seconds"])} for call, tool, _ in _calls(recording, row)
    ]


def _links(recording: Recording) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Which turns each turn waits for, and which sessions' first turns it starts (by row)."""
    turns, first = recording.turns, recording.first
    waits = {
        row: [row - 1] for row in range(1, len(turns)) if turns["session"][row] == turns["session"][row - 1]
    }
    branches: dict[int, list[int]] = {}
    for child, parent in enumerate(recording.parents.tolist()):
        begin, end = (int(x) for x in (first[child], first[child + 1]))
        if parent < 0 or begin == end:
            continue
        starts = turns["start_s"][first[parent] : first[parent + 1]]
        before = np.flatnonzero(starts <= turns["start_s"][begin])  # none where times are unknown
        if len(before):
            spawn = int(first[parent] + before[-1])
            branches.setdefault(spawn, []).append(begin)
            waits.setdefault(begin, []).append(spawn)
            # A parent that asks again while its child still does has not waited for it.
            if spawn + 1 < first[parent + 1] and not turns["start_s"][end - 1] >= turns["start_s"][spawn + 1]:
                waits.setdefault(spawn + 1, []).append(end - 1)
    return waits, branches


def _wait(recording: Recording, row: int, waits: list[int]) -> float:
    """Seconds of tools before a turn; where it waits for a sub-agent, only those after that one's end."""
    before, (_, *joined) = recording.turns[row - 1], waits
    if not joined:
        return float(before["tool_s"])
    ended = [recording.turns["start_s"][k] + recording.turns["llm_s"][k] for k in joined]
    return max(0.0, float(before["start_s"] + before["llm_s"] + before["tool_s"] - np.max(ended)))


def _id(recording: Recording, row: int) -> str:
    session = int(recording.turns["session"][row])
    return f"{recording.sessions[session]}:{row - int(recording.first[session])}"


def _known(tokens: int) -> int | None:
    return None if tokens < 0 else tokens


def _number(x: float) -> float | None:
    return None if math.isnan(x) else float(x)


def _ms(seconds: float) -> float | None:
    return None if math.isnan(seconds) else round(float(seconds) * 1000, 3)


def read(source: Source, into: Builder) -> None:
    """All requests, with what only we write about them where it is there."""
    last: dict[str, int] = {}  # turn by session
    blocks: dict[int, list[Any]] = {}  # the hash ids of a session's last prompt
    turn_of: dict[str, int] = {}  # session by request, for the parents
    begun, asked = dict[int, float](), dict[int, float]()  # moments of a session's first and last request
    for row in source.records():
        if not fits(row):
            source.ledger.skip("rows that are no requests")
            continue
        told = row["tao"] if isinstance(row.get("tao"), dict) else {}
        name = str(row.get("session_id", row.get("request_id")))
        session = into.session(("native", name), _parent(row, told, turn_of, name, into))
        ids = row["hash_ids"] if isinstance(row.get("hash_ids"), list) else []
        prefix = told.get("prefix_tokens") if told else _prefix(row, ids, blocks.get(session))
        blocks[session] = ids
        began = into.moment(told.get("start_s")) if told else into.moment(row.get("timestamp"), 1e-3)
        place = str(row.get("request_id")).rpartition(":")[2] if told else ""
        turn = into.turn(
            session, row.get("input_length"), row.get("output_length"), told.get("cached_tokens"), began,
            prefix=prefix, order=float(place) if place.isdecimal() else math.nan,
            flags=_flags(told.get("flags")),
        )  # fmt: skip
        if isinstance(row.get("request_id"), str):
            turn_of[row["request_id"]] = session
        for child in texts(row.get("branches")):
            turn_of.setdefault(child, session)  # until its own row comes
        if told:
            into.take(turn, MOST_S, **{t: told.get(f"{t}_s") for t in ("llm", "tool", "human")})
            _read_calls(told.get("calls"), turn, into)
        elif name in last:
            waits = [turn_of.get(other, session) for other in texts(row.get("wait_for"))]
            joined = [begun.get(other, math.nan) for other in waits if other != session]
            _read_waits(row, last[name], _since(joined, asked[session], began), into)
        last[name] = turn
        begun.setdefault(session, began)
        asked[session] = began


def _parent(
    row: Mapping[str, Any], told: Mapping[str, Any], known: Mapping[str, int], name: str, into: Builder
) -> int:
    if told:
        return into.session(("native", str(told["parent"]))) if "parent" in told else -1
    named = [*texts([row.get("request_id")]), *texts(row.get("wait_for"))[:1]]
    return next((known[other] for other in named if other in known), -1)


def _prefix(row: Mapping[str, Any], ids: list[Any], before: list[Any] | None) -> int | None:
    """Tokens in the leading blocks that the last prompt of the session had too."""
    length = row.get("input_length")
    if before is None or not ids or not isinstance(length, int):
        return None
    size = next((b for b in _BLOCKS if math.ceil(length / b) == len(ids)), None)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(ids, before, strict=False))
    return None if size is None else min(sum(1 for _ in same) * size, length)


def _flags(names: Any) -> int:
    found = 0
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and name.upper() in Flag.__members__:
            found |= Flag[name.upper()]
    return int(found)


def _read_calls(calls: Any, turn: int, into: Builder) -> None:
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            kind, seconds, asked = call.get("class"), call.get("seconds"), call.get("asked_s")
            kind = kind if isinstance(kind, str) else ""
            into.call(turn, call.get("tool"), seconds=seconds, asked=asked, kind=kind)


def _since(joined: list[float], asked: float, now: float) -> float | None:
    """Seconds since the first of some sessions began, nan if before the last request; None: of none."""
    return (now - min(joined) if min(joined) >= asked else math.nan) if joined else None


def _read_waits(row: Mapping[str, Any], turn: int, spent: float | None, into: Builder) -> None:
    """What a row of Dynamo tells about the time before it: belongs after the turn before."""
    waited, delay = (into.seconds(scaled(row.get(key), 1e-3), turn) for key in ("tool_wait_ms", "delay"))
    person = delay >= PERSON_S
    if spent is not None:  # of a wait for another session the row tells only what comes after that one's end
        into.ledger.repair("tool times that another session is a part of, reckoned from when that one began")
        waited = spent - delay if person else spent
    elif delay < PERSON_S:  # the agent's own time
        waited += delay
    into.take(turn, tool=waited, human=delay if person else None)
    events = row.get("tool_events")
    for event in events if isinstance(events, list) else ():
        if isinstance(event, dict):
            into.call(turn, event.get("tool_class"), seconds=scaled(event.get("duration_ms"), 1e-3))
