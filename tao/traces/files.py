"""Opens logs: plain, .gz or .zst, by content and not by name, with bounds on all that a file can blow up.

A damaged line costs itself and nothing more: what can still be read of it is, the rest is counted.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tao.checks import InputError
from tao.traces.report import Ledger

MB = 1024 * 1024
MAX_LINE = 16 * MB  # no request of any agent is longer; a file without line ends is
MAX_DOCUMENT = 256 * MB  # ours: parsed as a whole, it takes several times that
MAX_RATIO = (
    200  # ours: agents' logs shrink to a tenth; what shrinks more than this, past the floor, is a bomb
)
RATIO_FLOOR = 64 * MB
HEAD = 256 * 1024  # of the content, to recognize the format by
RETRIES = 32  # ours: places in a torn line at which a record may begin again


class TooLargeError(Exception):
    """A bound is reached; the text says which one, and what to do."""


@dataclass(frozen=True)
class Limits:
    """Bounds in bytes: of a line, of a file once decompressed (None: by its size), of a JSON document."""

    line: int = MAX_LINE
    content: int | None = None
    document: int = MAX_DOCUMENT


class Source:
    """A file with the bounds on reading it, and the ledger that takes down what is wrong with it."""

    def __init__(self, path: Path, ledger: Ledger, limits: Limits = Limits()) -> None:
        self.path, self.ledger, self.limits = path, ledger, limits

    def head(self) -> bytes:
        """The first part of the content."""
        with self._open() as stream:
            return stream.read(HEAD)

    def whole(self) -> bytes:
        """All of the content; raises `TooLargeError` where it is larger than a document may be."""
        with self._open() as stream:
            found = stream.read(self.limits.document + 1)
        if len(found) > self.limits.document:
            raise TooLargeError(
                f"a JSON document of over {self.limits.document // MB} MB; write one record per line (JSONL)"
            )
        return found

    def lines(self) -> Iterator[bytes]:
        """Its lines, but those too long; the ledger counts them all."""
        with self._open() as stream:
            self.ledger.line = 0
            while line := stream.readline(self.limits.line + 1):
                self.ledger.line += 1
                if len(line) > self.limits.line and not line.endswith(b"\n"):
                    self.ledger.rows += 1
                    self.ledger.skip(f"lines of over {self.limits.line // MB} MB, not read")
                    while (rest := stream.readline(MB)) and not rest.endswith(b"\n"):
                        pass
                elif not line.isspace():
                    self.ledger.rows += 1
                    yield line

    def records(self) -> Iterator[dict[str, Any]]:
        """The JSON objects in its lines, or in lists of them; what is none is skipped and counted."""
        for line in self.lines():
            yield from objects(line, self.ledger)

    def _open(self) -> io.BufferedReader:
        raw: BinaryIO = self.path.open("rb")
        magic = raw.read(4)
        raw.seek(0)
        limit = self.limits.content
        if magic[:2] == b"\x1f\x8b":
            opened: Any = gzip.GzipFile(fileobj=raw)
        elif magic == b"\x28\xb5\x2f\xfd":
            opened = _zstd(raw)
        else:
            return raw if limit is None else io.BufferedReader(_Bounded(raw, limit))  # type: ignore[return-value]
        size = os.fstat(raw.fileno()).st_size
        return io.BufferedReader(_Bounded(opened, limit or max(RATIO_FLOOR, MAX_RATIO * size)), 256 * 1024)


class _Bounded(io.RawIOBase):
    """Passes a stream on up to a number of bytes."""

    def __init__(self, stream: Any, limit: int) -> None:
        self._stream, self._left, self._limit = stream, limit, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            found = self._stream.read(min(len(buffer), 256 * 1024))
        except (EOFError, zlib.error, OSError, ValueError) as e:
            raise TooLargeError(
                f"the compressed data ends or breaks in the middle ({type(e).__name__})"
            ) from None
        self._left -= len(found)
        if self._left < 0:
            raise TooLargeError(
                f"more than {max(1, self._limit // MB):,} MB once decompressed; "
                "decompress it yourself, or raise the limit (--max-mb)"
            )
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _zstd(raw: BinaryIO) -> Any:
    try:
        import zstandard
    except ImportError:
        raise TooLargeError("compressed with zstd; pip install zstandard, or decompress it") from None
    return zstandard.ZstdDecompressor(max_window_size=2**27).stream_reader(raw, read_across_frames=True)


def document(source: Source) -> dict[str, Any]:
    """The one JSON object that a file is; empty where it is none."""
    try:
        found = json.loads(source.whole())
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def documents(source: Source) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file that is one, over many lines, or has one in each line."""
    try:
        json.loads(next(Source(source.path, Ledger(), source.limits).lines(), b""))
        whole = {}
    except (ValueError, RecursionError):
        whole = document(source)
    if whole:
        source.ledger.rows += 1
        yield whole
    else:
        yield from source.records()


_decoder = json.JSONDecoder()
_BLANK = re.compile(r"[\s,\x00\x1e]*")  # also what stands between the objects of a list, or of json-seq


def objects(line: bytes, ledger: Ledger) -> Iterator[dict[str, Any]]:
    """The JSON objects in a line: normally one; of torn and glued lines what can still be read.

    >>> ledger = Ledger()
    >>> list(objects(b'{"a": 1}{"b": 2}{"c": {"d": ', ledger)), [str(c) for c in ledger.counts("skipped")]
    ([{'a': 1}, {'b': 2}], ['lines that are torn or no JSON: 1 (file 0)'])
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        yield from _salvaged(line, ledger)
        return
    if isinstance(found, dict):
        yield found
    elif isinstance(found, list) and found and all(isinstance(x, dict) for x in found):
        ledger.rows += len(found) - 1
        yield from found
    else:
        ledger.skip("lines of JSON that are no object")


def _salvaged(line: bytes, ledger: Ledger) -> Iterator[dict[str, Any]]:
    text, at, torn = decoded(line, ledger), 0, False
    tries = min(RETRIES, max(2, 32 * MB // max(1, len(text))))
    while at < len(text):
        at = _BLANK.match(text, at).end()  # type: ignore[union-attr]
        try:
            found, at = _decoder.raw_decode(text, at)
            if isinstance(found, dict):
                yield found
            else:
                torn = torn or bool(text[at:].strip())
        except (ValueError, RecursionError):
            tries -= 1
            torn = torn or bool(text[at:].strip(" \t\r\n\x00]"))
            at = text.find('{"', at + 1) if tries > 0 else len(text)
            at = len(text) if at < 0 else at
    if torn:
        ledger.skip("lines that are torn or no JSON")


def decoded(line: bytes, ledger: Ledger) -> str:
    """The text of a line, whatever its encoding."""
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
        return line.decode("utf-16", "replace")
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError:
        ledger.repair("lines that are no UTF-8, read with replacement characters")
        return line.decode("utf-8", "replace")


def paths_of(paths: list[str | os.PathLike[str]]) -> list[Path]:
    """The files among `paths` and in the folders among them, in order of name; links are not followed.

    Raises `InputError` for what is not there.
    """
    found: list[Path] = []
    for given in paths:
        path = Path(given)
        try:
            if path.is_dir():
                inside = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
                found += sorted(p for p in inside if p.is_file() and not p.is_symlink() and p.name[:1] != ".")
            elif path.is_file():
                found.append(path)
            else:
                raise InputError(f"{os.fspath(given)!r} is no file or folder; check the path")
        except (ValueError, OSError) as e:
            raise InputError(f"{os.fspath(given)!r:.200} cannot be opened ({e}); check the path") from None
    return found
