"""TraceLab's round traces (a JSON line per request) and its tables for replay, which have no times of day.

Tokens that the provider found in its cache are `prefix_tokens`; the prompt is those and the appended ones.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tao.traces.builder import Builder
from tao.traces.files import Source, decoded, number
from tao.traces.values import mappings, name, scaled

TITLE, REPLAY = "TraceLab rounds", "TraceLab replay table"
_ROUND = ("session_id", "round_index", "input_tokens_total", "timing_events")
_COLUMNS = ("round_idx", "prefix_len", "input_len", "output_len")
_INPUTS = ("user_message", "tool_result")
_ANSWERS = ("reasoning", "text", "tool_call")
_PARENTS = ("parent_session_id", "parent_id")


def fits(row: Mapping[str, Any]) -> bool:
    """Whether a row is a round."""
    return sum(key in row for key in _ROUND) >= len(_ROUND) - 1 and "round_index" in row


def read(source: Source, into: Builder) -> None:
    """All rounds, their tool calls, and the results that stand in a later round."""
    waiting: dict[tuple[int, str], int] = {}
    last: dict[int, float] = {}
    for row in source.records():
        session = name(row.get("session_id"))
        if session is None or not fits(row):
            source.ledger.skip("rows that are no round of a session")
            continue
        events = [
            (event, into.moment(event.get("timestamp"))) for event in mappings(row.get("timing_events"))
        ]
        if _copied(row, session, events, into):
            source.ledger.skip("rows that are copies of another one")
            continue
        above = next((name(row.get(key)) for key in _PARENTS if name(row.get(key))), None)
        parent = into.session(("tracelab", above)) if above and above != session else -1
        number = into.session(("tracelab", session), parent)
        said = [at for event, at in events if event.get("event_type") in _ANSWERS]
        asked = [at for event, at in events if event.get("event_type") in _INPUTS]
        began, ended = _latest(asked), _latest(said)
        for event, at in events:
            call = waiting.pop((number, str(event.get("tool_call_id"))), None)
            if call is not None and event.get("event_type") == "tool_result":
                into.result(call, at, event.get("is_error") is True)
        index = row.get("round_index")
        place = float(index) if isinstance(index, int) and abs(index) < 1e9 else math.nan
        if not math.isnan(began):
            last[number] = began
        turn = into.turn(
            number, _prompt(row, into), row.get("output_tokens"), row.get("prefix_tokens"), began, ended,
            order=last.get(number, place),
        )  # fmt: skip
        waiting |= {(number, key): call for key, call in _tools(row, events, turn, into)}


def _copied(row: Mapping[str, Any], session: str, events: list[Any], into: Builder) -> bool:
    """Whether this round was read before, which only its time can tell."""
    if not events or math.isnan(events[0][1]):
        return False
    key = hash(
        (session, name(row.get("round_id")), name(row.get("round_index")), events[0][1], events[-1][1])
    )
    found = key in into.seen
    into.seen.add(key)
    return found


def _latest(moments: list[float]) -> float:
    return max((at for at in moments if not math.isnan(at)), default=math.nan)


def _prompt(row: Mapping[str, Any], into: Builder) -> Any:
    if row.get("input_tokens_total") is not None:
        return row["input_tokens_total"]
    parts = [into.tokens(row.get(key)) for key in ("prefix_tokens", "newly_append_tokens")]
    return sum(parts) if min(parts) >= 0 else None


def _tools(row: Mapping[str, Any], events: list[Any], turn: int, into: Builder) -> Iterator[tuple[str, int]]:
    """Takes down the calls of a round; yields those whose results stand elsewhere."""
    listed = {name(tool.get("tool_call_id")) for tool in mappings(row.get("tools"))}
    calls = [event for event, _ in events if event.get("event_type") == "tool_call"]
    results = {
        name(event.get("tool_call_id")): at for event, at in events if event.get("event_type") in _INPUTS
    }
    others = [event for event in calls if name(event.get("tool_call_id")) not in listed]
    for tool in (*mappings(row.get("tools")), *others):
        key = name(tool.get("tool_call_id"))
        seconds = tool.get("tool_internal_latency_ms")
        seconds = tool.get("tool_wall_latency_ms") if seconds is None else seconds
        began = into.moment(tool.get("emitted_at", tool.get("timestamp")))
        call = into.call(turn, tool.get("tool_name"), began=began, seconds=scaled(seconds, 1e-3))
        at = into.moment(tool.get("result_at"))
        at = results.get(key, math.nan) if math.isnan(at) else at
        if not math.isnan(at):
            into.result(call, at, tool.get("is_error") is True)
        elif key is not None:
            yield key, call


def fits_replay(columns: Mapping[str, Any]) -> bool:
    """Whether a table is one for replay, by its columns."""
    return all(column in columns for column in _COLUMNS)


def read_replay(source: Source, into: Builder) -> None:
    """All rounds of a table; sessions are those of this file, since ids start from 0 in each."""
    lines = source.lines()
    header = decoded(next(lines, b""), source.ledger).strip()
    source.ledger.rows -= 1
    delimiter = next(iter(re.findall(r"[,;\t]", header)), ",")
    columns = [column.strip().strip('"') for column in header.split(delimiter)]
    before: dict[int, int] = {}
    for line in lines:
        row = _cells(line, columns, delimiter, source)
        if row is None:
            continue
        key = row.get("session_id") or row.get("id")
        session = into.session(("tracelab-replay", source.ledger.file, key))
        parts = [into.tokens(row.get(column)) for column in ("prefix_len", "input_len")]
        index, rewound = into.tokens(row.get("round_idx")), 0 <= parts[0] < before.get(session, 0)
        before[session] = parts[0]
        turn = into.turn(
            session, sum(parts) if min(parts) >= 0 else None, row.get("output_len"), row.get("prefix_len"),
            prefix=parts[0] if rewound else None, order=float(index) if index >= 0 else math.nan,
        )  # fmt: skip
        if "arrival_time" in columns:
            source.ledger.repair("arrival times, which the maker of such tables draws at random: left out")
        wait = scaled(row.get("tool_wait_after_ms"), 1e-3)
        if wait is not None and into.seconds(wait, turn) > 0:
            into.call(turn, "tool", seconds=wait)
        into.take(turn, tool=wait)


def _cells(line: bytes, columns: list[str], delimiter: str, source: Source) -> dict[str, Any] | None:
    """A row of the table with its numbers, None where it has not as many cells as columns."""
    try:
        cells = next(csv.reader([decoded(line, source.ledger).strip()], delimiter=delimiter))
    except (csv.Error, StopIteration):
        cells = []
    if len(cells) != len(columns):
        source.ledger.skip("rows with more or fewer cells than the table has columns")
        return None
    if cells == columns:
        source.ledger.skip("header lines in the middle of a table")
        return None
    row = dict(zip(columns, cells, strict=True))
    return row | {key: number(row[key]) for key in (*_COLUMNS, "tool_wait_after_ms") if key in row}
