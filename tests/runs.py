"""Runs of a few small sessions in which everything happens, and what to compare of two of them.

A run is made of bytes: zeros, or none left, choose what comes first in each list. So hypothesis draws,
shrinks and repeats whole runs quickly, and a test may just as well number them.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from hypothesis import strategies as st

from tao.history import DECISION, FALLBACK, PAUSED, VERDICT, History
from tao.model import InputError, Params
from tao.profiles import PROFILES, Profile
from tao.simulator import simulate
from tao.workloads import Task, Turn, Workload

T = TypeVar("T")

SIZE = 320  # bytes of a run
DATA = st.binary(min_size=SIZE, max_size=SIZE)

QWEN = PROFILES["qwen3-32b-2xh100"]
CLOCKWORK = dataclasses.replace(  # every step takes 10 ms, so that many things happen at one moment
    QWEN, name="clockwork", t0_ms=10.0, t2_us=0.0, kv_us_per_1k=0.0, prefill_ms=0.0, prefill_us=0.0,
    attention_us_per_1k=0.0, host_ms=0.0, max_batched_tokens=512,
)  # fmt: skip
ENGINES = (
    QWEN,
    CLOCKWORK,
    dataclasses.replace(QWEN, name="small batches", max_batched_tokens=64),
    dataclasses.replace(QWEN, name="few seats", max_seqs=2, block_tokens=1),
    dataclasses.replace(QWEN, name="slow cache", kv_us_per_1k=9_000.0, max_batched_tokens=33),
    dataclasses.replace(PROFILES["deepseek-v4-flash-4xh100"], block_tokens=64, max_seqs=5),
)
CALLS = (("bash", "test"), ("bash", "git"), ("web", ""), ("bash", "sleep"))
PARAMS: dict[str, tuple[Any, ...]] = {
    "statistic": ("mean", "median", "survival"),
    "ageing_tokens_per_s": (0.0, 0.0, 50.0, 1e9),
    "share_prefix": (False, True),
    "planner": ("dp", "dp", "dp", "dp", "short_first", "bfd", "worst_fit", "fifo", "exact"),
    "pause_rule": ("smallest", "least_value"),
    "plan_cost_s": (0.0005, 0.0, 0.3, 7.0),
    "plan_cost_per_state_s": (1e-7, 0.0, 0.001),
    "replan_gap_s": (0.05, 0.0, 1.0),
    "quantum_tokens": (1024, 1, 16, 256),
    "state_budget": (200_000, 1, 3),
    "reserve_tokens": (0, 1, 64, 512),
    "half_life_s": (10.0, 0.5),
    "decay": (True, True, False),
    "readiness": (True, True, False),
    "stale_from": ("due", "made"),
    "stale_s": (30.0, 0.5),
    "horizon_s": (1.0, 0.0, 30.0),
    "probe_s": (1.0, 0.0),
    "margin_s": (0.0, 0.25),
    "fallback_s": (5.0, 0.1),
}


class Dice:
    """Choices out of bytes."""

    def __init__(self, data: bytes) -> None:
        self._left = iter(data)

    def pick(self, items: Sequence[T]) -> T:
        return items[next(self._left, 0) % len(items)]


class Run(NamedTuple):
    """What to simulate: arguments of `simulate`, apart from the policy."""

    workload: Workload
    settings: dict[str, Any]

    def play(self, policy: Any, **kw: Any) -> History:
        return simulate(self.workload, policy, **(self.settings | kw))


def numbered(count: int) -> list[Run]:
    """So many runs, always the same ones."""
    return [run(random.Random(k).randbytes(SIZE)) for k in range(count)]


def run(data: bytes) -> Run:
    """The run that these bytes stand for."""
    dice = Dice(data)
    params = Params(**{name: dice.pick(choices) for name, choices in PARAMS.items()})
    settings: dict[str, Any] = {
        "params": params,
        "nodes": dice.pick((1, 2, 3, 4)),
        "workers": dice.pick(range(1, 13)),
        "profile": dice.pick(ENGINES),
        "tool_servers": dice.pick((None, None, 1, 2)),
        "arrivals": dice.pick(("closed", "closed", "poisson", "trace")),
    }
    if settings["arrivals"] == "poisson":
        settings["rate_per_s"] = dice.pick((1.0, 0.2, 50.0))
    workload = _workload(dice)
    slack = dice.pick((100_000, 0, 0, 9, 64, 101, 202, 500, 1500, -1))
    settings["capacity_tokens"] = max(t.peak_tokens for t in workload.tasks) + params.reserve_tokens + slack
    return Run(workload, settings)


def _workload(dice: Dice) -> Workload:
    """Up to 12 sessions of up to 5 turns; ids are not in order, sizes are often equal."""
    count, shared = dice.pick(range(1, 13)), dice.pick((0, 0, 1, 16, 100, 250))
    alike, numbers = dice.pick((False, False, True)), list(range(count))
    tasks: list[Task] = []
    arrival_s = 0.0
    for _ in range(count):
        name = f"s{numbers.pop(dice.pick(range(len(numbers)))):02}"
        arrival_s += dice.pick((0.0, 0.0, 0.05, 1.0, 6.0)) + (not numbers)
        turns = tasks[0].turns if alike and tasks else _turns(dice, shared)
        tasks.append(Task(name, turns, arrival_s))
    return Workload("small", tuple(tasks), dice.pick(range(4)), shared_prefix_tokens=shared)


def _turns(dice: Dice, shared: int) -> tuple[Turn, ...]:
    """A conversation that grows, and now and then is rewritten from some point on."""
    turns: list[Turn] = []
    context = 0
    for left in range(dice.pick((1, 2, 3, 4, 5)) - 1, -1, -1):
        kept = dice.pick((1.0, 1.0, 1.0, 0.5, 0.99, 0.0))
        prefix, output = int(context * kept), dice.pick((1, 2, 3, 1, 17, 40, 75))
        prompt = max(prefix + dice.pick((1, 2, 15, 16, 17, 80, 300, 900)), shared)
        if left:
            tool, tool_class = dice.pick(CALLS)
            tool_s = dice.pick((0.0, 0.0, 0.01, 0.1, 0.3, 1.0, 4.0, 5.0, 9.99, 40.0))
            asked_s = tool_s * dice.pick((1.0, 0.5, 3.0)) if tool_class == "sleep" else None
            turns.append(Turn(prompt, prefix, output, tool, tool_class, tool_s, asked_s))
        else:
            turns.append(Turn(prompt, prefix, output))
        context = prompt + output
    return tuple(turns)


def append_only(*sessions: Sequence[tuple[int, int, float]]) -> Workload:
    """Sessions whose conversations grow, from (new tokens, output tokens, tool seconds) per turn."""
    tasks = []
    for k, rows in enumerate(sessions):
        context, turns = 0, []
        for j, (new, output, tool_s) in enumerate(rows):
            call = ("bash", "test", tool_s) if j < len(rows) - 1 else ()
            turns.append(Turn(context + new, context, output, *call))
            context += new + output
        tasks.append(Task(f"s{k:03}", tuple(turns)))
    return Workload("by hand", tuple(tasks), 0)


def by_hand(workload: Workload, **settings: Any) -> Run:
    """A run with all settings that one made of bytes has: one node, nobody waits for a worker."""
    plain = {"params": Params(reserve_tokens=0), "nodes": 1, "workers": len(workload.tasks), "profile": QWEN}
    plain |= {"tool_servers": None, "arrivals": "closed", "capacity_tokens": 100_000}
    return Run(workload, plain | settings)


def outcome(play: Callable[[], History]) -> History | str:
    """The history of a run, or why it could not go on."""
    try:
        return play()
    except InputError as e:
        return str(e)


def assert_equal(one: History | str, other: History | str) -> None:
    """Two runs went the same way, turn by turn and decision by decision."""
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
        return
    for name in ("turn_rows", "decision_rows", "move_rows"):
        a, b = getattr(one, name).array, getattr(other, name).array
        k = min(len(a), len(b))
        different = np.flatnonzero((a[:k] != b[:k]).any(axis=1))
        first = int(different[0]) if len(different) else k
        assert np.array_equal(a, b), f"{name}, row {first}: {a[first : first + 1]} or {b[first : first + 1]}"
    for name in ("started_ps", "finished_ps", "steps", "end_ps", "session_ids", "node_ids", "notes"):
        assert getattr(one, name) == getattr(other, name), name


def happened(history: History | str, profile: Profile) -> set[str]:
    """What occurred in a run, in words."""
    if isinstance(history, str):
        return {"stuck" if "cannot go on" in history else "nothing fits"}
    moves, found = history.move_rows.array, set()
    marks = {
        "preemption": history.column("preemptions").any(),
        "queue": (history.column("scheduled_ps") > history.column("submitted_ps")).any(),
        "pool": (history.column("submitted_ps") > history.column("arrived_ps")).any(),
        "pause": (moves[:, VERDICT] == PAUSED).any(),
        "session changed": (moves[:, VERDICT] == 1).any(),
        "would overflow": (moves[:, VERDICT] == 2).any(),
        "more states than the budget": (history.decision_rows.array[:, FALLBACK] == 1).any(),
        "dp leaves a node empty": (history.decision_rows.array[:, FALLBACK] == 2).any(),
        "several placed at once": (np.bincount(moves[moves[:, VERDICT] == 0, DECISION]) > 1).any(),
    }
    found |= {name for name, mark in marks.items() if mark}
    for i in range(len(history.session_ids)):
        rows = [t for t in history.turns if t.session == i]
        for a, b in pairwise(rows):
            context = a.prompt_tokens + a.output_tokens
            block = profile.block_tokens
            if b.reusable_tokens < context:
                found.add("rewriting")
            elif a.node != b.node:
                found.add("move to another node")
            elif b.hit_tokens < (context - 1) // block * block:
                found.add("eviction")
    return found
