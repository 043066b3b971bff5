"""How long one call takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SLOW_S = 0.1  # ours: a call this long is not repeated


def median_s(call: Callable[[], object], repeats: int = 20) -> float:
    """Median seconds of `repeats` calls, after one that does not count."""
    call()
    return statistics.median(seconds(call)[0] for _ in range(repeats))


def seconds(call: Callable[[], T]) -> tuple[float, T]:
    """Seconds of one call, and what it returns."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def typical_s(call: Callable[[], T], repeats: int = 5) -> tuple[float, T]:
    """Median seconds of `repeats` calls, of one where it is slow, after one that does not count."""
    first_s, result = seconds(call)
    count = repeats if first_s < SLOW_S else 1
    return statistics.median(seconds(call)[0] for _ in range(count)), result
