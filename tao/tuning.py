"""A setting to race policies in, as data: what to run, on what, with which parameters, and as a program."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from tao import checks
from tao.checks import InputError
from tao.metrics import waits
from tao.model import Params
from tao.profiles import PROFILES, Profile
from tao.simulator import simulate
from tao.workloads import WORKLOADS

METRICS = ("task_latency_s", "ttft_s", "decode_tok_s")
RIVALS = ("thunderagent", "vllm_cache_aware", "sticky", "llmd", "dynamo_kv")
DELAYS: dict[str, tuple[float, float] | None] = {
    "none": None,
    "1 to 5 s": (1.0, 5.0),
    "2 to 10 s": (2.0, 10.0),
    "4 to 20 s": (4.0, 20.0),
}
STATISTICS = "mean", "median", "survival"
FEWEST = 24  # ours: sessions of a race
SIZES = {"small": 3, "middle": 7, "large": 10}  # ours: up to which tenth of all prompts


@dataclass(frozen=True)
class Setting:
    """What is raced: sessions, machines, the delay added to every tool call, TAO's parameters, and rivals.

    `workload` is a name or a path, which is kept as text. Raises `InputError` for anything else.
    """

    workload: str = "swe-lite"
    nodes: int = 2
    workers: int = 16
    capacity_tokens: int = 60_000
    delay: str = "none"
    half_life_s: float = 10.0
    horizon_s: float = 1.0
    statistic: str = "mean"
    seeds: int = 8
    rivals: tuple[str, ...] = RIVALS[:3]

    def __post_init__(self) -> None:
        path: Any = os.fspath(self.workload) if isinstance(self.workload, os.PathLike) else self.workload
        if not isinstance(path, str):
            raise InputError(
                f"workload is a {type(path).__name__}; a setting holds the name of a workload or the path of "
                "a log: give one of these, or call tao.compare, which takes the workload itself"
            )
        object.__setattr__(self, "workload", path)
        object.__setattr__(self, "rivals", checks.all_of(self.rivals, str, "rivals"))

    @property
    def tasks(self) -> int:
        """How many sessions run: two for each worker, so that places are taken over."""
        return max(FEWEST, 2 * self.workers)

    def params(self) -> Params:
        """The parameters of all policies that have some."""
        statistic: Any = self.statistic
        return Params(half_life_s=self.half_life_s, horizon_s=self.horizon_s, statistic=statistic)

    def arguments(self) -> dict[str, Any]:
        """The arguments of `tao.compare`."""
        return {
            "workload": self.workload,
            "policies": ("tao", *self.rivals),
            "nodes": self.nodes,
            "workers": self.workers,
            "tasks": self.tasks,
            "seeds": self.seeds,
            "capacity_tokens": self.capacity_tokens,
            "extra_delay_s": DELAYS[self.delay],
            "params": self.params(),
        }


PRESETS = {
    "crowded, quick tools": Setting(),
    "crowded, slow tools": Setting(workers=24, delay="2 to 10 s"),
    "room for all": Setting(capacity_tokens=180_000),
    "few workers, one node": Setting(nodes=1, workers=4, capacity_tokens=180_000),
}
"""Settings in which TAO wins, loses, ties, and is a little slower."""


GROUPS = [f"{size}, {cache}" for size in SIZES for cache in ("cold", "warm")]
"""What `who_waits` tells apart: size of the prompt, and whether most of it was found in a cache."""


def who_waits(
    policies: Sequence[str], setting: Setting | None = None, seeds: int | None = None
) -> pd.DataFrame:
    """Mean seconds that a turn waits for a place, and turns, per policy: by size of the prompt and its cache.

    Sizes are the smallest three tenths of the prompts, the middle four, the largest three; a *warm* turn
    found most of its prompt in a cache. `setting` (default: `Setting()`) says what runs; `seeds` (default: as
    many as there) how often. Means over all of them, without an interval.

    >>> table = who_waits(["sticky"], Setting(workers=4), seeds=1)
    >>> table.columns.tolist()
    [('sticky', 'wait, s'), ('sticky', 'turns')]
    """
    chosen = setting or Setting()
    drawn = [
        WORKLOADS[chosen.workload](seed, chosen.tasks, extra_delay_s=DELAYS[chosen.delay] or (0.0, 0.0))
        for seed in range(chosen.seeds if seeds is None else seeds)
    ]
    tables = {}
    for policy in policies:
        run = partial(
            simulate,
            policy=policy,
            nodes=chosen.nodes,
            workers=chosen.workers,
            capacity_tokens=chosen.capacity_tokens,
            params=chosen.params(),
        )
        runs = [run(work) for work in drawn]
        turns = pd.concat(map(waits, runs))
        size = pd.cut(turns["decile"], [0, *SIZES.values()], labels=list(SIZES)).rename("prompt")
        total = (turns["wait_mean_s"] * turns["turns"]).rename("wait, s")
        groups = pd.concat([size, turns["cache"], total, turns["turns"]], axis=1)
        sums = groups.groupby(["prompt", "cache"], observed=True).sum()
        tables[policy] = sums.assign(**{"wait, s": (sums["wait, s"] / sums["turns"]).round(2)})
    return pd.concat(tables, axis=1)


def longest_wait(table: pd.DataFrame, policy: str) -> str:
    """The group of `who_waits` whose turns wait longest under a policy, in words: "large, cold".

    >>> longest_wait(who_waits(["sticky"], Setting(workers=4), seeds=1), "sticky") in GROUPS
    True
    """
    return GROUPS[int(table[policy, "wait, s"].to_numpy().argmax())]


def code(setting: Setting, profile: str | os.PathLike[str] | Profile) -> str:
    """The race as a program, which spells a profile out and finds its files where this process does.

    >>> "workers=16," in code(Setting(), "qwen3-32b-2xh100")
    True
    """
    lines = [f"    {name}={value!r}," for name, value in setting.arguments().items() if name != "params"]
    imports = ["import tao"]
    if isinstance(profile, Profile) and PROFILES.get(profile.name) != profile:
        imports.append("from tao.profiles import Profile")
        # A fit may leave numbers of numpy, whose repr no program knows.
        plain = {k: x.item() if isinstance(x, np.generic) else x for k, x in asdict(profile).items()}
        lines += ["    profile=Profile(", *(f"        {k}={x!r}," for k, x in plain.items()), "    ),"]
    else:
        name = profile.name if isinstance(profile, Profile) else os.fspath(profile)
        lines.append(f"    profile={name!r},")
    changed = ", ".join(f"{name}={value!r}" for name, value in setting.params().changed().items())
    lines.append(f"    params=tao.Params({changed}),")
    shown = [f'print(race.paired("{metric}"))' for metric in METRICS]
    return "\n".join([*imports, "", "race = tao.compare(", *lines, ")", *shown])
