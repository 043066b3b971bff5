"""Recorded workloads: one module per file format, each a function `(path, seed) -> Workload`."""

from __future__ import annotations

import os
from collections.abc import Callable

from tao.model import InputError
from tao.traces import normalized
from tao.workloads import WORKLOADS, Workload

READERS: dict[str, Callable[[str | os.PathLike[str], int], Workload]] = {"normalized": normalized.read}


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
    workload = READERS["normalized"](name, seed)
    return workload if tasks is None else workload.head(tasks)
