"""Writes recordings: our own format loses nothing, the others say what they lose."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tao.checks import InputError
from tao.traces import native
from tao.traces.normalized import COLUMNS
from tao.traces.recording import Flag, Recording
from tao.workloads import MAX_TOOL_S


class Format(NamedTuple):
    """A format to write: its lines, and what it loses, in words."""

    lines: Callable[[Recording], Iterator[str]]
    loses: str


def _native(recording: Recording) -> Iterator[str]:
    return (json.dumps(row) + "\n" for row in native.rows(recording))


def _dynamo(recording: Recording) -> Iterator[str]:
    for row in native.rows(recording, ours=False):
        if row["input_length"]:
            yield json.dumps({k: v for k, v in row.items() if v is not None}) + "\n"


def _mooncake(recording: Recording) -> Iterator[str]:
    rows = [row for row in native.rows(recording, ours=False) if row["input_length"]]
    rows.sort(key=lambda row: row["timestamp"] or 0.0)
    for row in rows:
        row["output_length"] = row["output_length"] or 0
        keys = ("timestamp", "input_length", "output_length", "hash_ids")
        yield json.dumps({key: row[key] for key in keys if row[key] is not None}) + "\n"


def _csv(recording: Recording) -> Iterator[str]:
    yield _line(COLUMNS)
    for row, turn in enumerate(recording.turns):
        session = int(turn["session"])
        calls = recording.calls[recording.first_call[row] : recording.first_call[row + 1]]
        names = [(recording.tools[c["tool"]], recording.classes[c["tool_class"]]) for c in calls]
        longest = int(np.argmax(np.nan_to_num(calls["seconds"], nan=-1.0))) if len(calls) else -1
        tool, kind = names[longest] if len(calls) else ("", "")
        flags = Flag(int(turn["flags"]))
        yield _line(
            (
                recording.sessions[session],
                row - int(recording.first[session]),
                "sub" if recording.parents[session] >= 0 else "main",
                _tokens(turn["context_tokens"]),
                _tokens(turn["output_tokens"]),
                "est" if Flag.OUTPUT_ESTIMATED in flags else "usage",
                _tokens(turn["cached_tokens"]),
                tool,
                kind,
                _seconds(turn["tool_s"], MAX_TOOL_S),
                _seconds(calls["asked_s"][longest]) if len(calls) else "",
                _seconds(turn["human_s"], MAX_TOOL_S),
                _seconds(turn["llm_s"], MAX_TOOL_S),
                _seconds(turn["start_s"]),
                "|".join(f"{a}/{b}:{_seconds(c)}" for (a, b), c in zip(names, calls["seconds"], strict=True)),
                "+".join(flag.name.lower() for flag in flags if flag.name),
            )
        )


def _line(cells: tuple[object, ...]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()


def _tokens(x: int) -> str:
    return "" if x < 0 else str(x)


def _seconds(x: float, most: float = np.inf) -> str:
    return "" if np.isnan(x) else repr(round(min(float(x), most), 6))


FORMATS: dict[str, Format] = {
    "native": Format(_native, ""),
    "dynamo": Format(
        _dynamo,
        "command classes, seconds asked for, cached tokens, whether tokens are estimated, other oddities, "
        "how long answers took and tools that last as long as a sub-agent, calls after the last request, "
        "requests whose prompt is unknown; prefixes are whole blocks of 512 tokens",
    ),
    "mooncake": Format(
        _mooncake,
        "which requests are one session, all tools and waits, cached tokens, whether tokens are estimated, "
        "how long answers took, requests whose prompt is unknown; prefixes are whole blocks of 512 tokens",
    ),
    "csv": Format(
        _csv,
        "seconds asked for by calls that are not the longest of their turn, which session started a "
        "sub-agent beyond its name, prefixes known from block hashes, how far waits go beyond 1,000,000 s",
    ),
}


def write(recording: Recording, path: str | Path, form: str = "native") -> str:
    """Writes a recording to `path`; returns what that format loses, in words ("": nothing).

    Raises `InputError` for an unknown format, or where the file cannot be written.
    """
    if form not in FORMATS:
        raise InputError(f"format is {form!r}; it must be one of {', '.join(FORMATS)}")
    try:
        with Path(path).open("w", encoding="utf-8", newline="") as out:
            out.writelines(FORMATS[form].lines(recording))
    except OSError as e:
        raise InputError(f"{str(path)!r} cannot be written ({e.strerror}); choose another path") from None
    return FORMATS[form].loses
