"""One run as a value that can be sent elsewhere: which sessions, which policy, which cluster."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from tao import checks
from tao.checks import InputError, shown
from tao.metrics import measure
from tao.model import Params
from tao.policies import Compiled
from tao.profiles import DEFAULT_PROFILE, Profile
from tao.profiles import profile as profile_named
from tao.simulator import PolicyLike, make_policy, policy_name, simulate
from tao.traces import open_workload
from tao.workloads import WORKLOADS, Workload, check_seconds

_AS_THEY_ARE = (
    "nodes",
    "workers",
    "arrivals",
    "rate_per_s",
    "tool_servers",
)  # go to `simulate` as they are
NAMES = (
    *("workload", "seed", "tasks", "output_scale", "extra_delay_s", "policy", "params"),
    *("profile", "capacity_tokens", "strict", *_AS_THEY_ARE),
)
"""What a run may be given by name, beside the fields of `Params`."""


class Arm(NamedTuple):
    """A policy under a name of its own, for example with its own `params`, as ablations need it.

    >>> Arm("tao without readiness", "tao", Params(readiness=False)).name
    'tao without readiness'
    """

    name: str
    policy: PolicyLike
    params: Params | None = None


@dataclass(frozen=True, eq=False)
class Given:
    """A workload handed over as it is; equal only to itself, as comparing all turns takes long."""

    workload: Workload


class Draw(NamedTuple):
    """All that decides which sessions a run has: runs of equal draws share one `Workload`."""

    source: str | Given
    seed: int | None  # None: that of the workload given
    tasks: int | None
    output_scale: float | None
    extra_delay_s: tuple[float, float] | None


class Job(NamedTuple):
    """One run. `fit`: (capacity, reserve, strict) for which its sessions are chosen; `where` names it."""

    draw: Draw
    fit: tuple[int, int, bool]
    arm: Arm
    options: dict[str, Any]
    where: str


class Outcome(NamedTuple):
    """What a run leaves: its metrics, settings and notes."""

    values: dict[str, float | None]
    settings: dict[str, Any]
    notes: list[str]


def source_of(workload: str | os.PathLike[str] | Workload) -> str | Given:
    """A workload's name or path, or the workload itself, as a `Draw` holds it."""
    return Given(workload) if isinstance(workload, Workload) else os.fspath(workload)


def arm_of(policy: PolicyLike | Arm) -> Arm:
    """A policy as an arm; raises `InputError` unless it is one."""
    arm = policy if isinstance(policy, Arm) else Arm(policy_name(policy), policy)
    checks.name(arm.name, "name of an arm")
    make_policy(arm.policy, arm.params or Params())
    return arm


def params_of(values: Mapping[str, Any]) -> Params:
    """The parameters of a run with these `NAMES`: those of its policy's arm before those of all."""
    params = values["policy"].params or values.get("params") or Params()
    if not isinstance(params, Params):
        raise InputError(f"params is {shown(params)}; it must be a Params, such as Params(horizon_s=2.0)")
    return params


def make_job(values: Mapping[str, Any], where: str = "", reserve_tokens: int | None = None) -> Job:
    """The run with these `NAMES`; `workload` and `policy` as made by `source_of` and `arm_of`.

    Its sessions leave room for `reserve_tokens` (None: those of its params).
    """
    with naming(where):
        arm: Arm = values["policy"]
        params = params_of(values)
        profile = values.get("profile", DEFAULT_PROFILE)
        engine = profile if isinstance(profile, Profile) else profile_named(profile)
        capacity = values.get("capacity_tokens")
        if capacity is not None:
            checks.whole(capacity, "capacity_tokens", 1)
        options = {name: values[name] for name in _AS_THEY_ARE if name in values}
        options |= {"profile": engine, "capacity_tokens": capacity, "params": params}
        reserve = params.reserve_tokens if reserve_tokens is None else reserve_tokens
        fit = (capacity or engine.capacity_tokens, reserve, bool(values.get("strict", False)))
        return Job(_draw(values), fit, arm, options, where)


def _draw(values: Mapping[str, Any]) -> Draw:
    source, scale, delay = values["workload"], values.get("output_scale"), values.get("extra_delay_s")
    if delay is not None:
        if not isinstance(delay, Sequence) or isinstance(delay, str) or len(delay) != 2:
            raise InputError(f"extra_delay_s is {shown(delay)}; it must be a pair (least, most) of seconds")
        for seconds in delay:
            check_seconds(seconds, "extra_delay_s")
    if (scale is not None or delay is not None) and source not in WORKLOADS:
        raise InputError(
            "output_scale and extra_delay_s change how sessions are drawn, but these are recorded or given; "
            f"leave them out or name a workload of {', '.join(WORKLOADS)}"
        )
    seed: int | None = checks.whole(values.get("seed", 0), "seed", 0)
    tasks = values.get("tasks")
    if tasks is not None:
        checks.whole(tasks, "tasks", 1)
    if isinstance(source, Given) and values.get("arrivals") != "poisson":
        seed = None
    return Draw(source, seed, tasks, scale, None if delay is None else tuple(delay))


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Errors say at which point they came up."""
    try:
        yield
    except InputError as e:
        raise InputError(f"{e} (at {where})" if where else str(e)) from None
    except Exception as e:
        e.add_note(f"at {where}")
        raise


# Sessions. Workers keep the last few workloads, as the runs that share one come one after the other.


def sessions(draw: Draw) -> Workload:
    """The workload of a draw, drawn or read once."""
    return _sessions(draw, _origin(draw.source))


def _origin(source: str | Given) -> object:
    """What changes when the workload behind a name or path does."""
    if isinstance(source, Given) or source in WORKLOADS:
        return WORKLOADS.get(source) if isinstance(source, str) else None
    try:
        found = os.stat(source)  # noqa: PTH116 - as open_workload
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=4)
def _sessions(draw: Draw, origin: object) -> Workload:
    source, seed, tasks, scale, delay = draw
    if isinstance(source, Given):
        work = source.workload if seed is None else replace(source.workload, seed=seed)
        return work if tasks is None else work.head(tasks)
    if source in WORKLOADS:
        return WORKLOADS[source](seed=seed, tasks=tasks, output_scale=scale, extra_delay_s=delay)
    return open_workload(source, seed or 0, tasks)


@lru_cache(maxsize=4)
def _fitting(draw: Draw, origin: object, fit: tuple[int, int, bool]) -> Workload:
    return _sessions(draw, origin).fitting(*fit)


# Runs


def carry_out(job: Job, progress: Callable[[float], None] | None = None) -> Outcome:
    """Play one run. A policy that is an object is copied first, so that no run sees what another did."""
    with naming(job.where):
        work = _fitting(job.draw, _origin(job.draw.source), job.fit)
        policy = job.arm.policy
        if not (isinstance(policy, str | Compiled) or callable(policy)):
            policy = copy.deepcopy(policy)
        history = simulate(work, policy, progress=progress, **job.options)
        return Outcome(measure(history), history.settings, history.notes)
