"""Recordings from files with a row per turn, for tests: everything they tell goes through the builder."""

from __future__ import annotations

import csv
import gzip
import math
from pathlib import Path

from tao.traces import Recording
from tao.traces.builder import Builder


def recorded(path: Path) -> Recording:
    """The recording in a CSV file; the session `a.s1` was started by `a`."""
    into = Builder(keep_names=True)
    with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            session = row["session"]
            parent = into.session(session.rpartition(".")[0]) if row.get("kind") == "sub" else -1
            turn = into.turn(
                into.session(session, parent),
                _whole(row, "context_tokens"),
                _whole(row, "output_tokens"),
                _whole(row, "cached_tokens"),
                _number(row, "t_start"),
                order=float(row["turn"]),
            )
            for name, column in (
                ("tool", "tool_seconds"),
                ("human", "human_seconds"),
                ("llm", "llm_seconds"),
            ):
                into.take(turn, **{name: _number(row, column)})
            for tool, kind, seconds in _calls(row):
                into.call(turn, tool, seconds=seconds, kind=kind, asked=_number(row, "sleep_req"))
    return into.finish()


def _calls(row: dict[str, str]) -> list[tuple[str, str, float]]:
    if not row.get("tools"):
        return [(row["tool"], row["tool_class"], _number(row, "tool_seconds"))] if row["tool"] else []
    found = []
    for entry in row["tools"].split("|"):
        name, _, seconds = entry.rpartition(":")
        tool, _, kind = name.partition("/")
        if not kind and tool == row["tool"]:
            kind = row["tool_class"]
        found.append((tool, kind, float(seconds) if seconds else math.nan))
    return found


def _whole(row: dict[str, str], column: str) -> int | None:
    return int(row[column]) if row.get(column) else None


def _number(row: dict[str, str], column: str) -> float:
    return float(row[column]) if row.get(column) else math.nan
