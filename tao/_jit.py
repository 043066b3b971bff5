"""The one place that imports numba: how kernels are compiled, cached and warmed up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])

KERNELS: list[Callable[..., Any]] = []
"""Every kernel compiled through `njit`, in order of definition."""


def njit(function: F) -> F:
    """Compile a kernel: cached on disk where a place can be found, releasing the GIL as it runs."""
    try:
        kernel: F = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba found no folder to cache in (a read-only tree and no HOME)
        kernel = numba.njit(nogil=True)(function)
    KERNELS.append(kernel)
    return kernel


def cache_hits() -> tuple[int, int]:
    """(signatures loaded from the disk cache, signatures compiled here) over all kernels."""
    stats = [k.stats for k in KERNELS if hasattr(k, "stats")]
    return (
        sum(sum(s.cache_hits.values()) for s in stats),
        sum(sum(s.cache_misses.values()) for s in stats),
    )
