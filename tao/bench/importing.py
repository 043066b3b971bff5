"""What it costs to read agents' logs: CPU time beside `json.loads` on the same lines, and memory."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tao.traces import load
from tao.traces.files import MB

COMMANDS = (  # ours, of the kinds that recorded agents send
    "cd /testbed && python -m pytest tests/test_{w}.py -q 2>&1 | tail -{n}",
    "grep -rn '{w}' src/ --include=*.py | head -{n}",
    "ls -la src/{w}",
    "git diff HEAD~{n} -- src/{w}.py",
    "sed -n '{n},$(({n} + 40))p' src/{w}.py",
    "cat > /tmp/{w}.py << 'EOF'\nimport {w}\nprint({w}.run({n}))\nEOF\npython /tmp/{w}.py",
    "find . -name '*{w}*' -not -path './node_modules/*'",
    "pip install -e '.[{w}]' && make {w}",
    "for i in 1 2 3; do curl -s localhost:80{n} && break; sleep 1; done",
)
_WORDS = ("value", "node", "cache", "test", "list", "path", "class", "return", "import", "config", "parse")
_COPY = "@@"
_START = datetime(2026, 1, 1, tzinfo=UTC)


def log_lines(turns: int, seed: int = 0, copy: str = "") -> Iterator[str]:
    """A made-up log of so many requests as Claude Code writes them, three lines each; ids begin with `copy`.

    >>> len(list(log_lines(2)))
    6
    """
    draw, at, context = random.Random(seed), _START, 15_000
    text = " ".join(
        draw.choice(_WORDS) + draw.choice(("", ".", ",\n", "('x')", ' = "y"')) for _ in range(20_000)
    )
    for k in range(turns):
        session, context = f"{copy}session-{k // 40}", 15_000 if k % 40 == 0 else context
        frame: dict[str, Any] = {
            "isSidechain": False,
            "userType": "external",
            "cwd": "/testbed",
            "sessionId": session,
        }
        frame |= {"version": "2.1.69", "gitBranch": "main"}
        usage: dict[str, Any] = {
            "input_tokens": 8,
            "cache_creation_input_tokens": 500,
            "cache_read_input_tokens": context,
        }
        usage |= {"output_tokens": draw.randint(50, 900), "service_tier": "standard"}
        command = draw.choice(COMMANDS).format(w=draw.choice(_WORDS), n=draw.randint(1, 99))
        parts: list[dict[str, Any]] = [
            {"type": "thinking", "thinking": _piece(text, draw, 6.2), "signature": "x" * 300},
            {"type": "tool_use", "id": f"{copy}toolu_{k}", "name": "Bash", "input": {"command": command}},
        ]
        for j, part in enumerate(parts):
            at += timedelta(seconds=draw.random() * 3)
            message: dict[str, Any] = {
                "model": "claude",
                "id": f"{copy}msg_{k}",
                "type": "message",
                "role": "assistant",
            }
            message |= {"content": [part], "stop_reason": "tool_use" if j else None, "usage": usage}
            row = {
                "parentUuid": f"{copy}u{k - 1}",
                "message": message,
                "requestId": f"{copy}req_{k}",
                "type": "assistant",
            }
            yield json.dumps(frame | row | {"uuid": f"{copy}a{k}.{j}", "timestamp": at.isoformat()}) + "\n"
        at += timedelta(seconds=draw.lognormvariate(-1, 1.5))
        result = {
            "tool_use_id": f"{copy}toolu_{k}",
            "type": "tool_result",
            "content": _piece(text, draw, 7.3),
        }
        said = {
            "parentUuid": f"{copy}a{k}.1",
            "type": "user",
            "message": {"role": "user", "content": [result]},
        }
        yield json.dumps(frame | said | {"uuid": f"{copy}u{k}", "timestamp": at.isoformat()}) + "\n"
        context += usage["output_tokens"] + 500


def _piece(text: str, draw: random.Random, mu: float) -> str:
    length = min(int(draw.lognormvariate(mu, 1.0)), 60_000)
    start = draw.randrange(len(text) - 60_000) if len(text) > 60_000 else 0
    return text[start : start + length]


def importing(progress: Callable[[float], None] = lambda share: None, mb: int = 64) -> list[dict[str, Any]]:
    """CPU seconds of `json.loads` on a log of `mb` MB and of `load`, median of 3, and memory of `load`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        turns, written = _write(path, mb, lambda share: progress(share / 2))
        parsed = statistics.median(_cpu_s(lambda: _parse(path)) for _ in range(3 if mb <= 256 else 1))
        progress(0.6)
        loaded = statistics.median(_cpu_s(lambda: load(path)) for _ in range(3 if mb <= 256 else 1))
        progress(0.8)
        peak_mb, base_mb = _memory_mb(path)
    row = {"what": "made-up Claude Code log", "mb": written / MB, "turns": turns, "parse_s": parsed}
    row |= {"load_s": loaded, "times_parse": loaded / parsed, "us_per_turn": 1e6 * loaded / turns}
    return [row | {"peak_mb": peak_mb, "base_mb": base_mb, "allowed_mb": base_mb + 150 + 200 * turns / MB}]


def _write(path: Path, mb: int, progress: Callable[[float], None]) -> tuple[int, int]:
    """Writes about `mb` MB; (turns, bytes)."""
    block = list(log_lines(2_000, copy=_COPY))  # the same turns again under other ids: quick to make
    size = copy = lines = 0
    with path.open("w") as out:
        while size < mb * MB:
            for line in block:
                size += out.write(line.replace(_COPY, f"{copy}."))
                lines += 1
            copy += 1
            progress(min(1.0, size / mb / MB))
    return lines // 3, size


def _parse(path: Path) -> None:
    with path.open("rb") as log:
        for line in log:
            json.loads(line)


def _cpu_s(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


_CHILD = """
import resource, sys
from pathlib import Path
from tao.traces import load
def peak_kb():  # Linux: of this program alone; elsewhere what the system tells, in bytes
    try:
        return next(int(x.split()[1]) for x in Path("/proc/self/status").open() if x.startswith("VmHWM"))
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
base = peak_kb()
load(sys.argv[1])
print(peak_kb(), base)
"""


def _memory_mb(path: Path) -> tuple[float, float]:
    """Peak memory of a process that loads the log, and what it held before."""
    found = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path)], capture_output=True, text=True, check=True
    )
    peak, base = (int(x) / 1024 for x in found.stdout.split())
    return peak, base


NOTE = (
    "CPU seconds, median of 3: json.loads on each line, and tao.traces.load (the public call) on the file;\n"
    "memory of a process of its own: peak, and before; allowed: 150 MB and 200 bytes a turn more"
)


def cells(row: dict[str, Any]) -> dict[str, str]:
    """A row as it is printed."""
    return {
        k: x if isinstance(x, str) else f"{x:,.2f}" if k.endswith("_s") or k == "times_parse" else f"{x:,.0f}"
        for k, x in row.items()
    }
