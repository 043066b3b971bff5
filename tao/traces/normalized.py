"""Reads a trace of one CSV row per turn, plain or gzipped: the format that we turn recordings into.

Needed columns: `session, turn, context_tokens` (the whole prompt), `output_tokens`. Used where
present: `tool, tool_class, tool_seconds, sleep_req` (seconds asked of `sleep`), `human_seconds` (a
person's wait in place of a tool), `cached_tokens` (as the provider reported), `flags` (joined by +;
`ctx_drop` = the context was cut), `kind` (`sub` = sub-agent). Others are ignored. Empty = not known.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tao import checks
from tao.checks import InputError
from tao.traces.builder import Builder
from tao.traces.files import Source, number
from tao.traces.recording import Flag
from tao.traces.stand_ins import drawn
from tao.workloads import HUMAN, MAX_TOOL_S, Task, Turn, Workload

TITLE = "CSV, a row per turn"
COLUMNS = (
    *("session", "turn", "kind", "context_tokens", "output_tokens", "out_src", "cached_tokens"),
    *("tool", "tool_class", "tool_seconds", "sleep_req", "human_seconds", "llm_seconds", "t_start"),
    *("tools", "flags"),
)
NEEDED = ("session", "turn", "context_tokens", "output_tokens")


class _Row(NamedTuple):
    """One line of the file, checked; None where it does not tell."""

    session: str
    turn: int
    prompt_tokens: int
    output_tokens: int | None
    cached_tokens: int | None
    tool: str
    tool_class: str
    tool_s: float | None
    sleep_s: float | None
    human_s: float | None
    ctx_drop: bool
    sub: bool


def read(path: str | os.PathLike[str], seed: int = 0) -> Workload:
    """The trace in `path` as a workload: sessions in file order, sub-agents as sessions of their own.

    Tool times that the file lacks are drawn per command class from (seed, session); `notes` counts
    them and all that was repaired or left out. Raises `InputError` naming the file and the line.
    """
    checks.whole(seed, "seed", 0)
    path = Path(path)
    sessions: dict[str, list[_Row]] = {}
    for row in _rows(path):
        sessions.setdefault(row.session, []).append(row)
    if not sessions:
        raise InputError(f"{path}: holds no turns; give a file with a row for every turn")
    counts: Counter[str] = Counter()
    tasks = tuple(_task(session, rows, seed, counts) for session, rows in sessions.items())
    name = re.sub(r"\.csv(\.gz)?$", "", path.name) or path.name
    notes = tuple(f"{text}: {counts[key]:,}" for key, text in _NOTES.items() if counts[key])
    return Workload(name, tasks, seed, notes)


_NOTES = {
    "sub": "sub-agent sessions, replayed on their own",
    "drawn": "tool times not in the file, drawn by command class",
    "human": "waits for a person, replayed as recorded as tool 'human'",
    "within": "tool calls before a person's wait, replayed as part of that wait",
    "output": "outputs that were zero or missing, set to 1 token",
    "final": "tools after the last request of a session, left out",
    "repeated": "rows that repeat a turn number of their session, kept in file order",
}


def _task(session: str, rows: list[_Row], seed: int, counts: Counter[str]) -> Task:
    rows = sorted(rows, key=lambda r: r.turn)
    rng = np.random.default_rng([seed, zlib.crc32(session.encode())])
    turns: list[Turn] = []
    for i, row in enumerate(rows):
        prefix = _prefix(row, turns[-1]) if turns else 0
        call = _call(row, rng, counts) if i + 1 < len(rows) else ()
        turns.append(Turn(row.prompt_tokens, prefix, row.output_tokens or 1, *call))
    counts["sub"] += rows[0].sub
    counts["output"] += sum(not r.output_tokens for r in rows)
    counts["final"] += bool(rows[-1].tool)
    counts["repeated"] += len(rows) - len({r.turn for r in rows})
    return Task(session, tuple(turns))


def _prefix(row: _Row, before: Turn) -> int:
    """How many tokens of the context before are the beginning of this prompt."""
    if row.ctx_drop or row.prompt_tokens < before.prompt_tokens:
        # The history was rewritten. What survived is what the provider still found cached: most of
        # it where a few tokens went, the shared prompt after a compaction. Not told: nothing.
        return min(row.cached_tokens or 0, row.prompt_tokens, before.prompt_tokens)
    if row.prompt_tokens < before.context_tokens:  # hidden reasoning was not fed back
        return before.prompt_tokens
    return before.context_tokens


def _call(row: _Row, rng: np.random.Generator, counts: Counter[str]) -> tuple[str, str, float, float | None]:
    """(tool, class, seconds, seconds asked of `sleep`) of the call after `row`."""
    untold = row.tool_s is None and not row.tool
    if row.human_s is not None and (row.human_s > 0 or untold):
        counts["human"] += 1
        counts["within"] += bool(row.tool) and row.tool_class != HUMAN
        return HUMAN, HUMAN, min(row.human_s + (row.tool_s or 0.0), MAX_TOOL_S), None
    if row.tool_s is not None:
        return row.tool or "tool", row.tool_class, row.tool_s, row.sleep_s
    counts["drawn"] += 1
    tool = row.tool or "tool"
    return tool, row.tool_class, *drawn(row.tool_class, row.sleep_s, rng)


def _rows(path: Path) -> Iterator[_Row]:
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True, skipinitialspace=True)
    try:
        header = next(reader, [])
        _check_header(path, header)
        for fields in reader:
            if not fields:
                continue
            where = f"{path}, line {reader.line_num}"
            if len(fields) != len(header):
                raise InputError(
                    f"{where}: {len(fields)} fields where the header has {len(header)}; is the file complete?"
                )
            yield _row(dict(zip(header, fields, strict=True)), where)
    except csv.Error as e:
        raise InputError(
            f"{path}, line {reader.line_num}: not valid CSV ({e}); is the file complete?"
        ) from None


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror}); check the path") from None
    if raw.startswith(b"\x1f\x8b"):
        try:
            raw = gzip.decompress(raw)
        except (EOFError, OSError, zlib.error) as e:
            raise InputError(f"{path}: broken gzip ({e}); copy the file again") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = raw.count(b"\n", 0, e.start) + 1
        raise InputError(f"{path}, line {line}: neither gzip nor UTF-8 text; save it as UTF-8 CSV") from None


def _check_header(path: Path, header: list[str]) -> None:
    missing = [c for c in NEEDED if c not in header]
    if missing and ("_trials" in path.name or "total_output_tokens" in header):
        raise InputError(
            f"{path}: totals per trial, without turns to replay; use a file with a row per turn, "
            "such as terminal_bench_mini_sonnet4.csv.gz"
        )
    if missing:
        found = ", ".join(c if c in COLUMNS else "..." for c in header)[:200] or "nothing"
        raise InputError(
            f"{path}, line 1: no column {', '.join(missing)} (found: {found}); "
            f"the first line must name {', '.join(NEEDED)}, parted by commas"
        )
    repeated = [c for c, n in Counter(header).items() if n > 1]
    if repeated:
        place = header.index(repeated[0]) + 1
        raise InputError(f"{path}, line 1: the name of column {place} appears twice; remove one")


def _row(cells: dict[str, str], where: str) -> _Row:
    session, turn = cells["session"], _whole_cell(cells, "turn", where, 0)
    prompt_tokens = _whole_cell(cells, "context_tokens", where, 1)
    if not session or turn is None or prompt_tokens is None:
        raise InputError(f"{where}: session, turn or context_tokens is empty; fill it in or drop the row")
    return _Row(
        session,
        turn,
        prompt_tokens,
        _whole_cell(cells, "output_tokens", where, 0),
        _whole_cell(cells, "cached_tokens", where, 0),
        cells.get("tool", ""),
        cells.get("tool_class", ""),
        _seconds_cell(cells, "tool_seconds", where),
        _seconds_cell(cells, "sleep_req", where),
        _seconds_cell(cells, "human_seconds", where),
        "ctx_drop" in cells.get("flags", "").split("+"),
        cells.get("kind") == "sub",
    )


def _whole_cell(cells: dict[str, str], column: str, where: str, least: int) -> int | None:
    text = cells.get(column, "").strip()
    if not text:
        return None
    # pandas writes whole numbers as 12.0 where a column has gaps
    found = re.fullmatch(r"(\d{1,15})(\.0*)?", text, re.ASCII)
    if found is None or not least <= int(found[1]) <= checks.MAX_TOKENS:  # never quoted: logs are private
        raise InputError(f"{where}: {column} is no whole number from {least} to 2**40; mend that cell")
    return int(found[1])


def _seconds_cell(cells: dict[str, str], column: str, where: str) -> float | None:
    text = cells.get(column, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_TOOL_S:
        raise InputError(f"{where}: {column} is no number of seconds up to {MAX_TOOL_S:,.0f}; mend that cell")
    return value


_SECONDS = ("tool_seconds", "sleep_req", "human_seconds", "llm_seconds")
_FLAGS = {flag.name.lower(): flag for flag in Flag if flag.name} | {
    "err": Flag.ERROR,
    "bg": Flag.BACKGROUND,
    "neg_tool": Flag.NEGATIVE,
    "zero_out": Flag.ZERO_OUTPUT,
    "file_out_of_order": Flag.OUT_OF_ORDER,
}


def fits(row: Mapping[str, Any]) -> bool:
    """Whether these are the columns of such a table, or of one of totals."""
    return all(name in row for name in NEEDED) or "total_output_tokens" in row


def read_into(source: Source, into: Builder) -> None:
    """All turns of a table, with what its further columns tell; rows that fail are skipped and counted."""
    last: dict[str, tuple[int, int]] = {}
    for cells in source.table():
        if any(name not in cells for name in NEEDED):
            source.ledger.unread("totals per trial, without turns; give a file with a row per turn")
            return
        negative = _mended(cells, into)
        try:
            row = _row(cells, "")
        except InputError:
            source.ledger.skip("rows without a session, or whose turn or tokens are no whole numbers")
            continue
        key = row.turn, hash(tuple(cells.values()))
        if last.get(row.session) == key:
            source.ledger.skip("rows that repeat the one before")
            continue
        if last.get(row.session, key)[0] == row.turn and row.session in last:
            source.ledger.repair("rows that repeat a turn number of their session, kept in file order")
        last[row.session] = key
        _turn(into, row, cells, negative)


def _mended(cells: dict[str, str], into: Builder) -> bool:
    """Sets seconds and further tokens that are none to unknown, negative seconds to 0; says if any were."""
    negative = False
    for name in _SECONDS:
        if cells.get(name):
            value = number(cells[name])
            seconds = into.seconds(value)
            negative = negative or (isinstance(value, int | float) and value < 0)
            cells[name] = "" if math.isnan(seconds) else repr(seconds)
    for name in ("output_tokens", "cached_tokens"):
        if not cells.get(name, "").isdecimal():
            tokens = into.tokens(number(cells.get(name)))
            cells[name] = "" if tokens < 0 else str(tokens)
    return negative


def _turn(into: Builder, row: _Row, cells: dict[str, str], negative: bool) -> None:
    session = _session(into, row.session, row.sub)
    began = into.moment(number(cells.get("t_start")))
    flags = Flag.NEGATIVE if negative else 0
    flags |= Flag.OUTPUT_ESTIMATED if cells.get("out_src") == "est" else 0
    for name in cells.get("flags", "").split("+"):
        flags |= _FLAGS.get("no_result" if name.startswith("no_result") else name, 0)
    turn = into.turn(
        session, row.prompt_tokens, row.output_tokens, row.cached_tokens, began,
        order=row.turn, flags=flags,
    )  # fmt: skip
    into.take(turn, tool=row.tool_s, human=row.human_s, llm=number(cells.get("llm_seconds")))
    asked = row.sleep_s
    for tool, kind, seconds in _calls(row, cells):
        longest = tool == (row.tool or "tool") and kind in ("", row.tool_class)
        into.call(
            turn, tool, seconds=seconds, asked=asked if longest else None,
            kind=kind or (row.tool_class if longest else ""),
        )  # fmt: skip
        asked = None if longest else asked


def _session(into: Builder, name: str, sub: bool) -> int:
    """A sub-agent's session is named by the one that started it, and `.s` with a number."""
    parent = re.fullmatch(r"(.+)\.s\d+", name, re.DOTALL) if sub else None
    above = -1 if parent is None else into.session(("csv", parent[1]))
    return into.session(("csv", name), above)


def _calls(row: _Row, cells: dict[str, str]) -> list[tuple[str, str, Any]]:
    """(tool, class, seconds) of each call: of `tools`, `name/class:seconds` parted by bars, or of the one."""
    found = []
    for text in filter(None, cells.get("tools", "").split("|")):
        said, _, seconds = text.rpartition(":")
        tool, _, kind = said.partition("/")
        found.append((tool, kind, number(seconds)))
    if not found and (row.tool or row.tool_s is not None):
        found = [(row.tool or "tool", row.tool_class, row.tool_s)]
    return found
