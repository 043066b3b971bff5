"""Damages logs in every way we could think of, loads them, and tells what went wrong: a program of its own.

`python tests/fuzz_logs.py COUNT FILE...` makes COUNT mutations of each file, the same ones every time, and
prints a JSON object: mutations, failures [(file, number, what)], the slowest load and the most memory.
"""

from __future__ import annotations

import copy
import gzip
import json
import math
import random
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

import numpy as np

from tao.model import InputError
from tao.traces import load, replay

ODD = [
    None,
    -1,
    0,
    1e308,
    -1e308,
    2**63,
    2**31,
    -5.5,
    math.nan,
    math.inf,
    True,
    "",
    "x",
    "\ud800",
    "a\0b",
    [],
    {},
]
ODD += [
    [[]],
    {"a": {"b": []}},
    "2026-01-01T00:00:00Z",
    "0001-01-01T00:00:00",
    "9999-12-31T23:59:59+14:00",
    "1e999",
]


def truncated(data, draw):
    return data[: draw.randrange(len(data) + 1)]


def flipped(data, draw):
    found = bytearray(data)
    for _ in range(draw.randint(1, 30)):
        found[draw.randrange(len(found))] = draw.randrange(256)
    return bytes(found)


def lines_moved(data, draw):
    lines = data.split(b"\n")
    for _ in range(draw.randint(1, 6)):
        i, j = draw.randrange(len(lines)), draw.randrange(len(lines))
        kind = draw.randrange(4)
        if kind == 0:
            lines.insert(i, lines[j])
        elif kind == 1:
            lines[i], lines[j] = lines[j], lines[i]
        elif kind == 2:
            lines[i] = lines[i][: len(lines[i]) // 2] + lines[j]
        else:
            lines[i] += lines[j]
    return b"\n".join(lines)


def shuffled(data, draw):
    lines = data.split(b"\n")
    draw.shuffle(lines)
    return b"\n".join(lines)


def bytes_in(data, draw):
    at, junk = (
        draw.randrange(len(data) + 1),
        [b"\0" * 9, b"\xff\xfe", b"\xed\xa0\x80", b"\xe9", b"\r", b"[" * 5000],
    )
    return data[:at] + draw.choice(junk) + data[at:]


def encoded(data, draw):
    text = data.decode("utf-8", "replace")
    return text.encode(draw.choice(["utf-16", "utf-8-sig", "latin-1", "utf-32"]), "replace")


def joined(data, draw):
    return data.replace(b"\n", draw.choice([b"", b",", b"\r\n", b"\r", b"\n\n", b"\x1e"]))


def packed(data, draw):
    found = gzip.compress(data, 1)
    return draw.choice(
        [found, found[: draw.randrange(1, len(found))], found + found, gzip.compress(found), found + b"x"]
    )


def values_changed(data, draw):
    """Odd values, of any type, in the place of some; of a table its cells."""
    try:
        rows = [json.loads(line) for line in data.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        try:
            rows = [json.loads(data)]
        except (ValueError, RecursionError):
            return cells_changed(data, draw)
    for _ in range(draw.randint(1, 8)):
        change(draw.choice(rows), draw)
    return b"\n".join(json.dumps(row).encode() for row in rows)


def change(node, draw):
    for _ in range(12):
        if not isinstance(node, dict | list) or not node:
            return
        key = draw.choice(list(node)) if isinstance(node, dict) else draw.randrange(len(node))
        if draw.random() < 0.4 or not isinstance(node[key], dict | list):
            kind = draw.random()
            if kind < 0.7:
                node[key] = copy.deepcopy(draw.choice(ODD))
            elif kind < 0.8:
                del node[key]
            elif kind < 0.9 and isinstance(node, dict):
                node[draw.choice(list(node))] = copy.deepcopy(node[key])
            else:
                deep: object = 1
                for _ in range(200):
                    deep = [deep]
                node[key] = deep
            return
        node = node[key]


def cells_changed(data, draw):
    lines = [line.split(b",") for line in data.split(b"\n")]
    for _ in range(draw.randint(1, 8)):
        row = draw.choice(lines)
        row[draw.randrange(len(row))] = draw.choice(
            [b"", b"-1", b"nan", b"1e400", b"x", b'"', b"9" * 400, b"\0", b"inf"]
        )
    return b"\n".join(b",".join(row) for row in lines)


MUTATIONS = [
    truncated,
    flipped,
    lines_moved,
    shuffled,
    bytes_in,
    encoded,
    joined,
    packed,
    values_changed,
    values_changed,
]


def check(path):
    """Loads it and looks whether what comes out makes sense; raises if not."""
    recording = load(path)
    assert str(recording.report)
    turns, calls = recording.turns, recording.calls
    for name in ("context_tokens", "new_tokens", "prefix_tokens", "output_tokens", "cached_tokens"):
        assert (turns[name] >= -1).all(), name
    for rows, names in ((turns, ("llm_s", "tool_s", "human_s")), (calls, ("seconds", "asked_s"))):
        for name in names:
            known = rows[name][~np.isnan(rows[name])]
            assert ((known >= 0) & np.isfinite(known)).all(), name
    assert (np.diff(turns["session"]) >= 0).all()
    assert (np.diff(calls["turn"]) >= 0).all()
    assert len(set(recording.sessions)) == len(recording.sessions) == len(np.unique(turns["session"]))
    with suppress(InputError):
        replay.workload(recording)


def peak_mb():
    """The most memory that this program has held (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main(count, files):
    failures, slowest, before_mb = [], 0.0, peak_mb()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        for file in files:
            data = Path(file).read_bytes()
            for k in range(count):
                draw = random.Random(f"{Path(file).name} {k}")
                found = data
                for _ in range(draw.randint(1, 2)):
                    found = draw.choice(MUTATIONS)(found or b"{}", draw)
                path.write_bytes(found)
                began = time.monotonic()
                try:
                    check(path)
                except Exception:
                    failures.append((Path(file).name, k, traceback.format_exc(limit=-3)))
                slowest = max(slowest, time.monotonic() - began)
    told = {"mutations": count * len(files), "failures": failures[:20], "failed": len(failures)}
    print(json.dumps(told | {"slowest_s": slowest, "memory_mb": peak_mb() - before_mb}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
