"""How the command line prints: numbers, tables, JSON, and a progress bar."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def number(x: float | None) -> str:
    """A figure to three or four digits; - for None."""
    if x is None:
        return "-"
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3f}" if abs(x) < 10 else f"{x:.1f}"


def with_interval(x: dict[str, float | None]) -> str:
    """A mean with its interval, if it has one."""
    if x["mean"] is None:
        return "-"
    if x["lo"] is None:
        return number(x["mean"])
    return f"{number(x['mean'])} [{number(x['lo'])}, {number(x['hi'])}]"


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, the first column to the left and the others to the right."""
    widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]
    for row in [head, ["-" * w for w in widths], *rows]:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)),
        ]
        print("  ".join(cells).rstrip())


def print_json(data: Any) -> None:
    """Print JSON; a nan or an infinity in it is a bug."""
    print(json.dumps(data, indent=1, allow_nan=False))


@contextmanager
def progress(what: str) -> Iterator[Callable[[float], None]]:
    """A progress bar on stderr after one second; none where stderr is not a terminal."""
    from tqdm import tqdm

    form = "{desc} {percentage:3.0f}% |{bar}| {elapsed}, {remaining} left"
    with tqdm(total=1.0, desc=what, delay=1.0, disable=None, leave=False, bar_format=form) as bar:
        yield lambda share: bar.update(share - bar.n) and None
