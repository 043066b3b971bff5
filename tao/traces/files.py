"""Opens logs: plain, .gz or .zst, by content and not by name, with bounds on all that a file can blow up.

A damaged line costs itself and nothing more: what can still be read of it is, the rest is counted.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from tao.checks import InputError
from tao.traces.report import Ledger

MB = 1024 * 1024
MAX_LINE = 16 * MB  # no request of any agent is longer; a file without line ends is
MAX_VALUES = 5_000_000  # ours: in a document; each takes up to 64 bytes once parsed
MAX_DOCUMENT = 256 * MB  # ours: parsed as a whole, it takes several times that
MAX_RATIO = 200  # ours: agents' logs shrink to a tenth; past the floor, what shrinks more is a bomb
RATIO_FLOOR = 64 * MB
HEAD = 256 * 1024  # of the content, to recognize the format by
BOM = b"\xef\xbb\xbf"
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
        self._document: dict[str, Any] | None = None
        self.torn = False  # it began as a JSON document
        self._cut = False  # what is compressed in it ends or breaks in the middle

    def head(self) -> bytes:
        """The first part of the content."""
        with self._open() as stream:
            return stream.read(HEAD).removeprefix(BOM)

    def whole(self) -> bytes:
        """All of the content; raises `TooLargeError` where it is larger than a document may be."""
        with self._open() as stream:
            found = stream.read(self.limits.document + 1)
        if len(found) > self.limits.document:
            raise TooLargeError(
                f"a JSON document of over {self.limits.document // MB} MB; write one record per line (JSONL)"
            )
        if crowded(found):
            raise TooLargeError(
                f"a JSON document of more than {MAX_VALUES:,} values; write one record per line (JSONL)"
            )
        return found.removeprefix(BOM)

    def digest(self) -> str:
        """What tells the file from any that does not hold the very same."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def document(self) -> dict[str, Any]:
        """The one JSON object that the file is; empty where it is none."""
        if self._document is None:
            content = self.whole()
            try:
                found = parsed(content)
            except (ValueError, RecursionError) as e:
                found, self.torn = None, not str(e).startswith("Extra data")
            self._document = found if isinstance(found, dict) else {}
        return self._document

    def table(self) -> Iterator[dict[str, str]]:
        """The rows of a table parted by commas, semicolons or tabs, by the names in its first line.

        A row that has not as many fields as the first line is skipped and counted. A quoted field may hold
        line ends; where that leads nowhere (a quote that nothing ends), each line is a row again.
        """
        lines = (decoded(line, self.ledger) for line in self.lines())
        header, part = _header(next(lines, ""))
        self.ledger.rows -= 1  # the first line is none
        taken: list[str] = []

        def noted() -> Iterator[str]:
            for line in lines:
                taken.append(line)
                yield line

        reader = _fields(noted(), part)
        while True:
            taken.clear()
            fields = next(reader, None)
            if fields is None:
                return
            if len(fields) == len(header):
                self.ledger.rows -= len(taken) - 1
                yield dict(zip(header, fields, strict=True))
                continue
            for line in taken:
                alone = next(_fields([line], part), [])
                if len(alone) == len(header) and len(taken) > 1:
                    yield dict(zip(header, alone, strict=True))
                else:
                    self.ledger.skip("rows that have not as many fields as the first line")

    def columns(self) -> list[str]:
        """The names in the first line of a table."""
        first = next(Source(self.path, Ledger(), self.limits).lines(), b"")
        return _header(decoded(first, Ledger()))[0]

    def lines(self, most: float = math.inf) -> Iterator[bytes]:
        """Its lines, but those too long, within so many bytes; the ledger counts them all."""
        ledger, limit, rest, long = self.ledger, self.limits.line, b"", False
        ledger.line = 0
        with self._open() as stream:
            while most > 0 and (chunk := stream.read(MB)):
                most -= len(chunk)
                parts = (rest + chunk).split(b"\n")
                rest = parts.pop()
                for line in parts:
                    ledger.line += 1
                    if long or len(line) > limit:
                        long = False
                        self._too_long()
                    elif len(line) > 2 or line.strip():
                        ledger.rows += 1
                        yield line
                if long or len(rest) > limit:
                    rest, long = b"", True
        ledger.line += 1
        if long:
            self._too_long()
        elif rest.strip():
            ledger.rows += 1
            yield rest

    def _too_long(self) -> None:
        self.ledger.rows += 1
        self.ledger.skip(f"lines of over {self.limits.line // MB} MB, not read")

    def records(self) -> Iterator[dict[str, Any]]:
        """The JSON objects in its lines, or in lists of them; what is none is skipped and counted."""
        for line in self.lines():
            try:
                found = orjson.loads(line)
            except ValueError:
                found = None
            if type(found) is dict:  # nearly always
                yield found
            else:
                yield from objects(line, self.ledger)

    def _open(self) -> io.BufferedReader:
        raw, limit = self.path.open("rb"), self.limits.content
        try:
            magic = raw.read(4)
            raw.seek(0)
            if magic[:2] == b"\x1f\x8b":
                opened: Any = gzip.GzipFile(fileobj=raw)
            elif magic == b"\x28\xb5\x2f\xfd":
                opened = _zstd(raw)
            else:
                return raw if limit is None else io.BufferedReader(_Bounded(raw, raw, limit, self._broken))
            limit = limit or max(RATIO_FLOOR, MAX_RATIO * os.fstat(raw.fileno()).st_size)
            return io.BufferedReader(_Bounded(opened, raw, limit, self._broken), MB)
        except BaseException:
            raw.close()
            raise

    def _broken(self, why: str) -> None:
        if not self._cut:
            self._cut = True
            self.ledger.skip(f"the rest of compressed data that ends or breaks in the middle ({why})")


class _Bounded(io.RawIOBase):
    """Passes a stream on up to a number of bytes, or to where it breaks; closes the file below it."""

    def __init__(self, stream: Any, file: BinaryIO, limit: int, broken: Callable[[str], None]) -> None:
        self._stream, self._file, self._left, self._limit = stream, file, limit, limit
        self._broken = broken

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            found = self._stream.read1(min(len(buffer), 256 * 1024))
        except Exception as e:  # each decompressor has its own; `read` would lose what stands before it
            self._broken(type(e).__name__)
            return 0
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
        self._file.close()
        super().close()


def _zstd(raw: BinaryIO) -> Any:
    try:
        import zstandard
    except ImportError:
        raise TooLargeError("compressed with zstd; pip install zstandard, or decompress it") from None
    return zstandard.ZstdDecompressor(max_window_size=2**27).stream_reader(raw, read_across_frames=True)


def _header(first: str) -> tuple[list[str], str]:
    """The names in a table's first line, and what parts them."""
    part = max(",;\t", key=first.count)
    return next(_fields([first], part), []), part


def _fields(lines: Iterable[str], part: str) -> Iterator[list[str]]:
    """The rows of a table; one that cannot be read has no fields."""
    reader = csv.reader(iter(lines), delimiter=part, skipinitialspace=True, strict=True)
    while True:
        try:
            yield next(reader)
        except csv.Error:
            yield []
        except StopIteration:
            return


def documents(source: Source) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file that is one, over many lines, or has one in each line."""
    try:
        parsed(next(Source(source.path, Ledger(), source.limits).lines(), b""))
    except (ValueError, RecursionError):
        if whole := source.document():
            source.ledger.rows += 1
            yield whole
            return
    yield from source.records()


_decoder = json.JSONDecoder()
_BLANK = re.compile(r"[\s,\x00\x1e]*")  # also what stands between the objects of a list, or of json-seq


def parsed(content: bytes) -> Any:
    """JSON, by the quicker parser, or by the one that takes NaN and odd text where that refuses."""
    try:
        return orjson.loads(content)
    except ValueError:
        return json.loads(content)


def crowded(content: bytes) -> bool:
    """Whether JSON holds more values than a document may: it would take too much memory once parsed."""
    return sum(content.count(mark) for mark in (b",", b"[", b"{")) > MAX_VALUES


def listed(x: Any) -> list[Any]:
    """A list as it is, anything else as one of a single thing."""
    return x if isinstance(x, list) else [x]


def objects(line: bytes, ledger: Ledger) -> Iterator[dict[str, Any]]:
    """The JSON objects in a line: normally one; of torn and glued lines what can still be read.

    >>> ledger = Ledger()
    >>> list(objects(b'{"a": 1}{"b": 2}{"c": {"d": ', ledger)), [str(c) for c in ledger.counts("skipped")]
    ([{'a': 1}, {'b': 2}], ['lines that are torn or no JSON: 1 (file 0)'])
    """
    try:
        found = parsed(line)
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
    while (at := _past_blank(text, at)) < len(text):
        try:
            found, end = _decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            found, end = None, at
        if isinstance(found, dict) and (not torn or _stands_alone(text, at, end)):
            yield found
            at = end
            continue
        torn, tries = torn or text[at] != "]", tries - 1
        at = text.find('{"', at + 1) if tries else -1
        if at < 0:
            break
    if torn:
        ledger.skip("lines that are torn or no JSON")


def _stands_alone(text: str, at: int, end: int) -> bool:
    """Whether an object in a torn line is a record, and no part of what is torn."""
    after = _past_blank(text, end)
    before = text[max(0, at - 9) : at].rstrip()[-1:]
    return text[after : after + 1] in ("", "{") and before not in ("[", ":", ",")


def _past_blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


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
    """The files among `paths` and in the folders among them, each once, in order of name.

    Links in folders are not followed. Raises `InputError` for what is not there.
    """
    found: dict[Path, Path] = {}  # by where it really is
    for given in paths:
        path = Path(given)
        try:
            if path.is_dir():
                inside = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
                inside = (p for p in inside if p.is_file() and not p.is_symlink() and p.name[:1] != ".")
                here = sorted(inside)
            elif path.is_file():
                here = [path]
            else:
                raise FileNotFoundError(2, "no such file or folder")
            for one in here:
                found.setdefault(one.resolve(), one)
        except (ValueError, OSError) as e:
            why = getattr(e, "strerror", None) or e
            raise InputError(f"{os.fspath(given)!r:.200} cannot be opened ({why}); check the path") from None
    return list(found.values())


def numbers(x: Any) -> list[int]:
    """A list of whole numbers, empty where it is none.

    >>> numbers([1, 2]), numbers([1, "2"]), numbers(None)
    ([1, 2], [], [])
    """
    return x if isinstance(x, list) and set(map(type, x)) <= {int} else []


def number(text: str | None) -> int | float | str | None:
    """The number that a field of a table holds; what is none stays a text, and an empty field is None.

    >>> number("12"), number(" 0.5"), number("x"), number("")
    (12, 0.5, 'x', None)
    """
    text = (text or "").strip()
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None
