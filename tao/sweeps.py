"""What-if tables: one run per point of a grid, on one core or many machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from tao import checks, jobs
from tao.checks import InputError, shown
from tao.executors import run_all
from tao.jobs import Arm, Given, Job, arm_of, make_job, source_of
from tao.metrics import METRICS
from tao.model import Params
from tao.profiles import Profile

PARAMS = tuple(f.name for f in fields(Params))


def sweep(
    grid: Mapping[str, Iterable[Any]],
    executor: Executor | int | None = None,
    progress: Callable[[float], None] | None = None,
    **base: Any,
) -> pd.DataFrame:
    """Run every combination of the values in `grid`; `base` gives what is the same for all.

    Names in both are the arguments of `tao.simulate` (`workload`, `policy`, `nodes`, `workers`, `tasks`,
    `seed`, `profile`, `capacity_tokens`, `params`, `arrivals`, `rate_per_s`, `tool_servers`, `strict`), how
    sessions are drawn (`output_scale`, and `extra_delay_s`: a pair) and every field of `Params`. `seeds` is
    for short: 8 are the seeds 0 to 7, varied last. Sessions are drawn from the seed alone, so that points
    with the same seed are pairs; those that outgrow a node are left out point by point.

    Returns one row per point, in the order of `itertools.product`: the point's values (policies, workloads
    and profiles by name), `seed`, `sessions` (how many ran) and all of `METRICS`, nan where there is nothing
    to average. The table does not depend on `executor`:

    - None: one after the other, here. `progress` (called with the share done) then moves within runs too.
    - a number: so many new processes. In a script call it below `if __name__ == "__main__":`.
    - any `concurrent.futures.Executor`, such as a pool of threads, or a Dask cluster:
      `sweep(grid, executor=distributed.Client("tcp://...").get_executor())`. Its workers need `tao`, and
      paths of recorded workloads have to exist there.

    Runs that are lost with a worker that dies are repeated, with new processes where they are our own,
    otherwise here. A policy of your own goes to another process only if it can be imported there. Raises
    `InputError`, which names the point, on unusable values.

    >>> table = sweep({"policy": ["tao", "sticky"], "workers": [1, 2]}, workload="swe-lite", tasks=2)
    >>> table[["policy", "workers", "seed", "sessions"]].values.tolist()
    [['tao', 1, 0, 2], ['tao', 2, 0, 2], ['sticky', 1, 0, 2], ['sticky', 2, 0, 2]]
    """
    axes, common = _seeded(grid, base)
    _check_names([*axes, *common])
    axes = {name: [_taken(name, x) for x in _listed(name, values)] for name, values in axes.items()}
    common = {"workload": source_of("swe-lite"), "policy": arm_of("tao"), "seed": 0} | {
        name: _taken(name, x) for name, x in common.items()
    }
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    outcomes = run_all([_job(common, point) for point in points], executor, progress)
    rows = [
        {name: _shown(x) for name, x in ({"seed": common["seed"]} | point).items()}
        | {"sessions": outcome.settings["tasks"], **outcome.values}
        for point, outcome in zip(points, outcomes, strict=True)
    ]
    return table(rows, [*axes, *(() if "seed" in axes else ("seed",)), "sessions"])


def table(rows: list[dict[str, Any]], first: Iterable[str]) -> pd.DataFrame:
    """Rows of values and metrics as a table: the columns `first`, then `METRICS` as floats."""
    return pd.DataFrame(rows, columns=[*first, *METRICS]).astype(dict.fromkeys(METRICS, float))


def _seeded(
    grid: Mapping[str, Iterable[Any]], base: Mapping[str, Any]
) -> tuple[dict[str, Iterable[Any]], dict[str, Any]]:
    """Grid and base with `seed` in place of `seeds`."""
    if not isinstance(grid, Mapping):
        raise InputError(f"grid is {shown(grid)}; it must be a dict of names and lists of values")
    axes = {"seed" if name == "seeds" else name: values for name, values in grid.items()}
    common = {name: x for name, x in base.items() if name != "seeds"}
    if "seeds" in base:
        if "seed" in axes or "seed" in common:
            raise InputError("both seed and seeds are given; give one of them")
        seeds = base["seeds"]
        axes["seed"] = seeds if isinstance(seeds, Iterable) else range(checks.whole(seeds, "seeds", 1))
    return axes, common


def _check_names(names: list[str]) -> None:
    allowed = (*jobs.NAMES, "seeds", *PARAMS)
    for name in names:
        if name not in allowed:
            raise InputError(f"there is no {shown(name)} to vary; it must be one of {', '.join(allowed)}")
        if names.count(name) > 1:
            raise InputError(f"{name} is in the grid and given for all points; give it once")


def _listed(name: str, values: Iterable[Any]) -> list[Any]:
    if isinstance(values, str | Mapping | Arm) or not isinstance(values, Iterable):
        raise InputError(f"{name} in the grid is {shown(values)}; it must be a list of values")
    listed = list(values)
    if not listed:
        raise InputError(f"{name} in the grid has no values; give it at least one or leave it out")
    return listed


def _taken(name: str, x: Any) -> Any:
    """A value as jobs take it."""
    if name == "workload":
        return source_of(x)
    if name == "policy":
        return arm_of(x)
    return x.item() if isinstance(x, np.generic) else x


def _job(common: Mapping[str, Any], point: Mapping[str, Any]) -> Job:
    where = ", ".join(f"{name}={shown(_shown(x))}" for name, x in point.items())
    values = {**common, **point}
    with jobs.naming(where):
        params = jobs.params_of(values)
        changed = {name: values.pop(name) for name in PARAMS if name in values}
        if changed:
            params = replace(params, **changed)
    arm = values["policy"]._replace(params=params)
    return make_job(values | {"policy": arm}, where)


def _shown(x: Any) -> Any:
    """How a value stands in the table."""
    if isinstance(x, Arm | Profile):
        return x.name
    return x.workload.name if isinstance(x, Given) else x
