"""The one place that imports numba: how kernels are compiled, cached and warmed up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

KERNELS: list[Callable[..., Any]] = []
"""Every kernel compiled through `njit`, in order of definition."""


def njit(function: F) -> F:
    """Compile a kernel: cached on disk where a place can be found, releasing the GIL as it runs."""
    try:
        kernel = cast(F, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # numba found no folder to cache in (a read-only tree and no HOME)
        kernel = cast(F, numba.njit(nogil=True)(function))
    KERNELS.append(kernel)
    return kernel


def cache_misses() -> int:
    """How many signatures of all kernels had to be compiled in this process; 0 if compiling is disabled."""
    return sum(sum(k.stats.cache_misses.values()) for k in KERNELS if hasattr(k, "stats"))
