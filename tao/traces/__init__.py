"""Recorded workloads: one module per format, each recognized by what is in the file and not by its name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tao import recipes
from tao.model import InputError
from tao.traces import (
    asciinema,
    atif,
    claude_code,
    codex,
    dynamo,
    lmcache,
    mini_swe,
    mooncake,
    native,
    normalized,
    otel,
    replay,
    swe_agent,
    terminal_bench,
    thunderagent,
    tracelab,
    weka,
)
from tao.traces.builder import Builder
from tao.traces.files import MB, Limits, Source, TooLargeError, crowded, listed, objects, parsed, paths_of
from tao.traces.recording import CALL, TURN, Flag, Recording
from tao.traces.report import Ledger, Report
from tao.workload_params import Recipe
from tao.workloads import WORKLOADS, Workload, generate

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


TRIED = 50  # ours: lines at the beginning of a file that decide what it is


class Reader(NamedTuple):
    """A format: what its files consist of, whether a row of them is of this format, and how to read them.

    `fits` takes a JSON object of a line, the whole document, or the columns of a table as keys.
    """

    title: str
    shape: Literal["lines", "document", "table"]
    fits: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Source, Builder], None]
    anonymous: bool = False  # nothing in its rows tells a copy from another recording


READERS: dict[str, Reader] = {
    "native": Reader(native.TITLE, "lines", native.fits, native.read, True),
    "claude-code": Reader(claude_code.TITLE, "lines", claude_code.fits, claude_code.read),
    "weka": Reader(weka.TITLE, "document", weka.fits, weka.read),
    "mini-swe-agent": Reader(mini_swe.TITLE, "document", mini_swe.fits, mini_swe.read),
    "swe-agent": Reader(swe_agent.TITLE, "document", swe_agent.fits, swe_agent.read, True),
    "lmcache": Reader(lmcache.TITLE, "lines", lmcache.fits, lmcache.read),
    "mooncake": Reader(mooncake.TITLE, "lines", mooncake.fits, mooncake.read, True),
    "thunderagent": Reader(thunderagent.TITLE, "table", thunderagent.fits, thunderagent.read),
    "terminal-bench": Reader(terminal_bench.TITLE, "document", terminal_bench.fits, terminal_bench.read),
    "codex": Reader(codex.TITLE, "lines", codex.fits, codex.read),
    "tracelab": Reader(tracelab.TITLE, "lines", tracelab.fits, tracelab.read),
    "tracelab-replay": Reader(tracelab.REPLAY, "table", tracelab.fits_replay, tracelab.read_replay, True),
    "dynamo": Reader(dynamo.TITLE, "lines", dynamo.fits, dynamo.read),
    "opentelemetry": Reader(otel.TITLE, "lines", otel.fits, otel.read),
    "asciinema": Reader(asciinema.TITLE, "lines", asciinema.fits, asciinema.read),
    "atif": Reader(atif.TITLE, "lines", atif.fits, atif.read),
    "csv": Reader(normalized.TITLE, "table", normalized.fits, normalized.read_into, True),
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
    into = Builder(ledger, classes, keep_names)
    for path in paths_of(list(paths)):
        ledger.file, ledger.line = ledger.file + 1, 0
        source = Source(path, ledger, limits)
        try:
            reader = recognized(source)
            if reader is None:
                formats = f"files of no known format ({', '.join(READERS)})"
                ledger.unread("JSON documents that are torn or cut off" if source.torn else formats)
                continue
            ledger.format(reader.title)
            if reader.anonymous and into.copied(source.digest()):
                ledger.skip("lines of files that are copies of another one", sum(1 for _ in source.lines()))
                continue
            reader.read(source, into)
        except TooLargeError as e:
            ledger.unread(str(e))
        except OSError as e:
            ledger.unread(f"files that cannot be read ({e.strerror})")
    return into.finish()


def recognized(source: Source) -> Reader | None:
    """The format of a file: that of most of the rows at its beginning, or of the first that is of any."""
    head = source.head()
    rows: list[Mapping[str, Any]] = []
    lines = head[: head.rfind(b"\n") + 1 or len(head)].splitlines()[:TRIED]
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            rows += [row for row in listed(parsed(line)) if isinstance(row, dict)]
    if not rows:  # all of them torn, or one long line of several
        rows = [row for line in lines for row in objects(line, Ledger())]
    found = _elected(rows) or _of_later_lines(source)
    if found is not None:
        return found
    if head.lstrip()[:1] in (b"{", b"["):
        return _of_document(source)
    columns = dict.fromkeys(source.columns())
    return next((r for r in READERS.values() if r.shape == "table" and r.fits(columns)), None)


def _elected(rows: list[Mapping[str, Any]]) -> Reader | None:
    votes = {name: sum(map(reader.fits, rows)) for name, reader in READERS.items() if reader.shape == "lines"}
    best = max(votes, key=lambda name: votes[name])
    return READERS[best] if votes[best] else None


def _of_later_lines(source: Source) -> Reader | None:
    """Of a log that begins with a long line, or with many that tell nothing: by the first line that does."""
    odd, quiet = 0, Source(source.path, Ledger(), source.limits)
    for line in quiet.lines(4 * source.limits.line):
        rows: list[Any] = []
        if len(line) < MB or not crowded(line):
            with contextlib.suppress(ValueError, RecursionError):
                rows = [row for row in listed(parsed(line)) if isinstance(row, dict)]
        if rows:
            if found := _elected(rows):
                return found
        elif (odd := odd + 1) == TRIED:  # a document over many lines, or a table
            break
    return None


def _of_document(source: Source) -> Reader | None:
    found = source.document()
    return next((r for r in READERS.values() if r.shape != "table" and r.fits(found)), None)


def open_workload(name_or_path: str | os.PathLike[str], seed: int = 0, tasks: int | None = None) -> Workload:
    """The seeded workload of that name, or the logs in that file or folder; its first `tasks` sessions.

    A table of one row per turn has to be without a fault; of other logs what can be read is replayed, and
    the notes tell the rest. Raises `InputError` where there is nothing to replay.

    >>> len(open_workload("swe-lite", tasks=3).tasks)
    3
    """
    name = os.fspath(name_or_path)
    if name in WORKLOADS:
        return WORKLOADS[name](seed=seed, tasks=tasks)
    if not os.path.exists(name):  # noqa: PTH110 - Path.exists() raises on a name too long for a file
        raise InputError(
            f"{name!r} is neither a workload nor a file; name one of {', '.join(WORKLOADS)}, "
            "or give the path of a log or of a folder of logs"
        )
    if os.path.isdir(name) or _other_log(name):  # noqa: PTH112 - likewise
        workload = replay.workload(load(name), os.path.basename(os.path.normpath(name)), seed)  # noqa: PTH119
    elif recipe := _recipe(name):
        return generate(Path(name).stem, recipe, seed, tasks)
    else:
        workload = normalized.read(name, seed)
    return workload if tasks is None else workload.head(tasks)


def _recipe(path: str) -> Recipe | None:
    """The parameters of a synthetic twin, if that is what a file holds."""
    with contextlib.suppress(OSError, TooLargeError):
        if "first_prompt" in Source(Path(path), Ledger()).document():
            return recipes.from_json(Path(path).read_text(encoding="utf-8"), path)
    return None


def _other_log(path: str) -> bool:
    """Whether a file is in a format other than our table, whose faults are told one by one."""
    try:
        reader = recognized(Source(Path(path), Ledger()))
    except (TooLargeError, OSError):
        return False
    return reader is not None and reader.title != normalized.TITLE
