"""From how many workers on does it matter who schedules? Policies on one's own sessions, many at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from tao import checks
from tao.checks import InputError
from tao.comparisons import DEFAULT_POLICIES, Comparison
from tao.executors import run_all
from tao.jobs import Arm, Job, arm_of, make_job, source_of
from tao.model import Params
from tao.profiles import DEFAULT_PROFILE, Profile
from tao.profiles import profile as profile_named
from tao.simulator import PolicyLike
from tao.sweeps import table
from tao.workloads import MAX_TASKS, Workload

METRIC = "task_latency_s"
SHARES = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)  # ours: workers, as parts of those whose contexts just fit
PILOT = 32  # ours: workers of the run that tells how large live contexts are
ROUNDS = 3  # ours: sessions per worker, so that most of a run is crowded
FEW = 20  # ours: below that, resamples say little of what other days would bring
MATTERS = 0.02  # ours: a difference below that is not worth a change of scheduler


class Row(NamedTuple):
    """A policy at some number of workers: mean seconds, and the paired change to the first policy, if any."""

    workers: int
    capacity_over_live: float
    policy: str
    mean: float
    change: float | None = None
    lo: float | None = None
    hi: float | None = None

    @property
    def clear(self) -> bool:
        """Whether the difference is certain, and large enough to matter."""
        if self.change is None or self.lo is None or self.hi is None:
            return False
        return (self.lo > 0 or self.hi < 0) and abs(self.change) >= MATTERS


@dataclass(frozen=True)
class Crowding:
    """The same policies at several numbers of workers: `races` by number of workers, one run per resample."""

    races: dict[int, Comparison]
    sessions: int  # recorded ones that fit
    notes: tuple[str, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """What all races share."""
        return next(iter(self.races.values())).settings

    def rows(self) -> list[Row]:
        """A row for each number of workers and policy."""
        rows = []
        for workers, race in self.races.items():
            changes = race.paired(METRIC).set_index("policy").to_dict("index")
            for policy, runs in race.runs.groupby("policy", sort=False):
                change = changes.get(policy, {})
                told = (change.get(key) for key in ("mean", "lo", "hi"))
                known = (None if x is None or x != x else float(x) for x in told)
                mean, room = float(runs[METRIC].mean()), float(runs["capacity_over_live"].mean())
                rows.append(Row(workers, room, str(policy), mean, *known))
        return rows

    def table(self) -> pd.DataFrame:
        """The same as a tidy table."""
        return pd.DataFrame(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """Settings, rows and verdict, ready for JSON."""
        shared = {k: v for k, v in self.settings.items() if k not in ("workers", "tasks", "notes", "seed")}
        return {
            "settings": shared | {"sessions": self.sessions, "notes": list(self.notes)},
            "rows": [row._asdict() for row in self.rows()],
            "verdict": verdict(self),
        }


def crowding(
    workload: Workload,
    policies: Sequence[PolicyLike | Arm] = DEFAULT_POLICIES,
    nodes: int = 2,
    *,
    workers: Sequence[int] | None = None,
    seeds: int = 8,
    profile: str | Profile = DEFAULT_PROFILE,
    capacity_tokens: int | None = None,
    params: Params | None = None,
    strict: bool = False,
    executor: Executor | int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Crowding:
    """Race policies over resampled sessions at each number of `workers` (None: around where memory fills up).

    Each of `seeds` draws its sessions with replacement, three per worker, and all policies get the same, so
    that the interval tells how much the verdict hangs on which sessions were recorded. Raises `InputError`
    on unusable arguments. Source: ours.

    >>> from tao.workloads import WORKLOADS
    >>> found = crowding(WORKLOADS["swe-lite"](0, 6), ["tao", "sticky"], 1, workers=[2], seeds=2)
    >>> found.table()[["workers", "policy"]].values.tolist()
    [[2, 'tao'], [2, 'sticky']]
    """
    checks.whole(seeds, "seeds", 1)
    engine = profile if isinstance(profile, Profile) else profile_named(profile)
    arms, settled = [arm_of(p) for p in policies], params or Params()
    reserve = max((arm.params or settled).reserve_tokens for arm in arms)
    fitting = workload.fitting(capacity_tokens or engine.capacity_tokens, reserve, strict)
    common = {"nodes": nodes, "profile": engine, "capacity_tokens": capacity_tokens, "params": settled}
    counts = [checks.whole(w, "workers", 1) for w in workers] if workers else _around(fitting, common)
    points = [(w, seed, arm) for w in counts for seed in range(seeds) for arm in arms]
    runs, drawn = [], dict[tuple[int, int], Any]()
    for w, seed, arm in points:
        if (w, seed) not in drawn:
            drawn[w, seed] = source_of(fitting.resampled(min(ROUNDS * w, MAX_TASKS), seed))
        runs.append(_job(common, drawn[w, seed], w, arm))
    outcomes = run_all(runs, executor, progress)
    races = {}
    for w in counts:
        own = [(p, o) for p, o in zip(points, outcomes, strict=True) if p[0] == w]
        rows = [{"policy": arm.name, "seed": seed, **o.values} for (_, seed, arm), o in own]
        settings = own[0][1].settings | {"seeds": list(range(seeds)), "label": "simulated"}
        races[w] = Comparison(settings | {"workload": workload.name}, table(rows, ("policy", "seed")))
    return Crowding(races, len(fitting.tasks), fitting.notes)


def _job(common: dict[str, Any], source: Any, workers: int, arm: Arm) -> Job:
    return make_job(common | {"workload": source, "workers": workers, "policy": arm}, f"{workers} workers")


def _around(workload: Workload, common: dict[str, Any]) -> list[int]:
    """Numbers of workers below and above the one at which live contexts fill the nodes."""
    source = source_of(workload.resampled(ROUNDS * PILOT, 0))
    room = run_all([_job(common, source, PILOT, arm_of("sticky"))])[0].values["capacity_over_live"]
    most = MAX_TASKS // ROUNDS
    if room is None:
        raise InputError("these sessions hold nothing to compare; give some with several requests")
    return sorted({min(most, max(1, round(share * room * PILOT))) for share in SHARES})


def verdict(found: Crowding) -> str:
    """What the races say, in plain words with their uncertainty; cluster and capacity come first."""
    rows, s = found.rows(), found.settings
    first = rows[0].policy
    others = list(dict.fromkeys(row.policy for row in rows[1:] if row.policy != first))
    room = {row.workers: row.capacity_over_live for row in reversed(rows) if row.policy == first}
    counts = sorted(room)
    clear = {w for w in counts if any(row.clear for row in rows if row.workers == w)}
    told = (
        f"{s['profile']} on {s['nodes']} nodes, {s['capacity_tokens']:,} KV tokens each: "
        f"on your {found.sessions:,} session{'s' * (found.sessions > 1)} "
    )
    names = " and ".join(", ".join([first, *others]).rsplit(", ", 1))
    at = {w: f"{w:,} workers (capacity is {room[w]:.2g}x the live contexts)" for w in counts}
    # Of many comparisons one in twenty is clear by chance: it starts to matter where it goes on doing so.
    start = next(
        (w for w, after in zip(counts, [*counts[1:], counts[-1]], strict=True) if {w, after} <= clear), None
    )
    if start is None:
        told += f"{names} cannot be told apart up to {at[counts[-1]]}, the most that were tried. "
    elif start == counts[0]:
        told += f"it matters at {at[start]} already, the fewest that were tried. "
    else:
        before = counts[counts.index(start) - 1]
        told += f"{names} cannot be told apart up to {at[before]}; it starts to matter at {at[start]}. "
    for other in others:
        told += _beside(first, other, [row for row in rows if row.policy == other], len(counts) * len(others))
    seeds = len(s["seeds"])
    if seeds < 2:
        return told + "Simulated once, so without an interval; give more --seeds."
    told += f"Simulated task latency, 95 % intervals over {seeds} resamples of your sessions."
    few = "; of so few sessions they are too narrow" if found.sessions < FEW else ""
    return told.removesuffix(".") + few + "."


def _beside(first: str, other: str, rows: list[Row], comparisons: int) -> str:
    """How another policy's task latency compares with the first one's."""
    text = ""
    for better in (True, False):
        clear = [row for row in rows if row.clear and ((row.change or 0.0) < 0) == better]
        if not clear:
            continue
        shown = [f"{row.change:+.0%} [{row.lo:+.0%}, {row.hi:+.0%}] at {row.workers:,}" for row in clear]
        shown = shown if len(shown) < 4 else [shown[0], shown[len(shown) // 2], shown[-1]]
        text += f"{other} is {'faster' if better else 'slower'} than {first}: {', '.join(shown)} workers"
        text += (
            f" (one of {comparisons} comparisons: may be chance). " if len(clear) == 1 < comparisons else ". "
        )
    return text or (
        f"No clear difference between {other} and {first} at any of them. " if len(rows) > 1 else ""
    )
