"""A setting to race policies in, as data: what to run, on what, with which parameters, and as a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tao.model import Params

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


@dataclass(frozen=True)
class Setting:
    """What is raced: sessions, machines, the delay added to every tool call, TAO's parameters, and rivals."""

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


def code(setting: Setting, profile: str) -> str:
    """The race as a program.

    >>> "workers=16," in code(Setting(), "qwen3-32b-2xh100")
    True
    """
    given = setting.arguments() | {"params": None, "profile": profile}
    lines = [f"    {name}={value!r}," for name, value in given.items() if name != "params"]
    changed = ", ".join(f"{name}={value!r}" for name, value in setting.params().changed().items())
    lines.append(f"    params=tao.Params({changed}),")
    shown = [f'print(race.paired("{metric}"))' for metric in METRICS]
    return "\n".join(["import tao", "", "race = tao.compare(", *lines, ")", *shown])
