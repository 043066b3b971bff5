"""Recorded workloads: one module per format, each recognized by what is in the file and not by its name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from tao.commands import COMMAND_CLASSES
from tao.model import InputError
from tao.traces import asciinema, atif, claude_code, codex, dynamo, normalized, otel, tracelab
from tao.traces.builder import Builder
from tao.traces.files import Limits, Source, TooLargeError, decoded, document, objects, paths_of
from tao.traces.recording import CALL, TURN, Flag, Recording
from tao.traces.report import Ledger, Report
from tao.workloads import WORKLOADS, Workload

__all__ = [
    "CALL",
    "READERS",
    "TURN",
    "Flag",
    "Limits",
    "Reader",
    "Recording",
    "Report",
    "load",
    "open_workload",
]


class Reader(NamedTuple):
    """A format: what its files consist of, whether a row of them is of this format, and how to read them.

    `fits` takes a JSON object of a line, the whole document, or the columns of a table as keys.
    """

    title: str
    shape: Literal["lines", "document", "table"]
    fits: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Source, Builder], None]


READERS: dict[str, Reader] = {
    "claude-code": Reader(claude_code.TITLE, "lines", claude_code.fits, claude_code.read),
    "codex": Reader(codex.TITLE, "lines", codex.fits, codex.read),
    "tracelab": Reader(tracelab.TITLE, "lines", tracelab.fits, tracelab.read),
    "tracelab-replay": Reader(tracelab.REPLAY, "table", tracelab.fits_replay, tracelab.read_replay),
    "dynamo": Reader(dynamo.TITLE, "lines", dynamo.fits, dynamo.read),
    "opentelemetry": Reader(otel.TITLE, "lines", otel.fits, otel.read),
    "asciinema": Reader(asciinema.TITLE, "lines", asciinema.fits, asciinema.read),
    "atif": Reader(atif.TITLE, "lines", atif.fits, atif.read),
}


def load(
    *paths: str | os.PathLike[str],
    keep_names: bool = False,
    classes: Mapping[str, str] | None = None,
    limits: Limits | None = None,
) -> Recording:
    """What the logs in these files and folders tell, with `report` on all that was left out or repaired.

    `keep_names` keeps the names of unknown tools, else they are `tool-1`, ...; `classes` adds to
    `tao.commands.COMMAND_CLASSES`. Raises `InputError` only for a path that is not there.
    """
    ledger, limits = Ledger(), limits or Limits()
    into = Builder(ledger, COMMAND_CLASSES | dict(classes or {}), keep_names)
    for path in paths_of(list(paths)):
        ledger.file, ledger.line = ledger.file + 1, 0
        source = Source(path, ledger, limits)
        try:
            reader = recognized(source)
            if reader is None:
                ledger.unread(f"files of no known format ({', '.join(READERS)})")
                continue
            ledger.format(reader.title)
            reader.read(source, into)
        except TooLargeError as e:
            ledger.unread(str(e))
        except OSError as e:
            ledger.unread(f"files that cannot be read ({e.strerror})")
    return into.finish()


def recognized(source: Source) -> Reader | None:
    """The format of a file: that of most of the rows at its beginning."""
    head = source.head()
    rows: list[Mapping[str, Any]] = []
    for line in head[: head.rfind(b"\n") + 1 or len(head)].splitlines()[:50]:
        rows += objects(line, Ledger())
    votes = {name: sum(map(reader.fits, rows)) for name, reader in READERS.items() if reader.shape == "lines"}
    best = max(votes, key=lambda name: votes[name])
    if votes[best]:
        return READERS[best]
    if head.lstrip()[:1] in (b"{", b"["):
        return _of_document(source, rows)
    columns = dict.fromkeys(re.split(r"[,;\t]", decoded(head.partition(b"\n")[0], Ledger()).strip()))
    return next((r for r in READERS.values() if r.shape == "table" and r.fits(columns)), None)


def _of_document(source: Source, rows: list[Mapping[str, Any]]) -> Reader | None:
    readers = [r for r in READERS.values() if r.shape != "table"]
    for found in (*rows[:1], document(source)):
        for reader in readers:
            if reader.fits(found):
                return reader
    return None


def open_workload(name_or_path: str | os.PathLike[str], seed: int = 0, tasks: int | None = None) -> Workload:
    """The seeded workload of that name, or the trace in that file; its first `tasks` sessions.

    >>> len(open_workload("swe-lite", tasks=3).tasks)
    3
    """
    name = os.fspath(name_or_path)
    if name in WORKLOADS:
        return WORKLOADS[name](seed=seed, tasks=tasks)
    if not os.path.exists(name):  # noqa: PTH110 - Path.exists() raises on a name too long for a file
        raise InputError(
            f"{name!r} is neither a workload nor a file; name one of {', '.join(WORKLOADS)}, "
            "or give the path of a trace (.csv or .csv.gz)"
        )
    workload = normalized.read(name, seed)
    return workload if tasks is None else workload.head(tasks)
