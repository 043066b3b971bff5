"""Run a workload on a simulated cluster: `simulate` from names and numbers to a `History`."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from tao import _cold, checks, runner
from tao.checks import shown
from tao.cluster import Cluster
from tao.history import History
from tao.invariants import check
from tao.model import InputError, Params
from tao.policies import POLICIES, Compiled, Policy
from tao.profiles import DEFAULT_PROFILE, PS_PER_S, Profile
from tao.profiles import profile as profile_named
from tao.state import Ints
from tao.traces import open_workload
from tao.workloads import MAX_TASKS, Workload

LEAST_PERIOD_S = 0.001  # ours: a simulation that decides more often does not get on
ARRIVALS = ("closed", "poisson", "trace")
PolicyLike = str | Policy | Callable[[Params], Policy]


def simulate(
    workload: str | os.PathLike[str] | Workload,
    policy: PolicyLike = "tao",
    nodes: int = 2,
    workers: int = 64,
    *,
    tasks: int | None = None,
    seed: int = 0,
    profile: str | Profile = DEFAULT_PROFILE,
    capacity_tokens: int | None = None,
    params: Params | None = None,
    arrivals: str = "closed",
    rate_per_s: float | None = None,
    tool_servers: int | None = None,
    strict: bool = False,
    keep_snapshots: bool = False,
    debug: bool = False,
    stepper: bool = False,
    progress: Callable[[float], None] | None = None,
) -> History:
    """Replay `workload` with `workers` at a time on `nodes` nodes under one policy.

    `workload` is a name of `WORKLOADS`, a path to a recorded one, or a `Workload`; `policy` a name of
    `POLICIES`, or an object or class of your own with the interface of `tao.policies`. `arrivals`:
    "closed" (a worker takes the next session when its last one is done), "poisson" (`rate_per_s` sessions
    a second) or "trace" (as recorded); the last two whatever `workers` says. `tool_servers`: how many tools
    run at a time (None: all). Sessions larger than a node are left out and counted in `History.notes` (an
    error if `strict`). `progress` is called with the share of sessions done.

    Built-in policies run in the compiled engine; with `stepper` in the readable one, which gives the
    same result, as it has to where the policy is your own, with `keep_snapshots` and with `debug`, which
    checks the invariants after every event. `tao.measure` gives the metrics of the result. Raises
    `InputError` on unusable arguments.

    >>> history = simulate("swe-lite", "sticky", nodes=1, workers=2, tasks=2)
    >>> len(history.finished_ps), history.settings["policy"]
    (2, 'sticky')
    """
    _cold.settle(wait=True)
    params = params or Params()
    for name, given in (("nodes", nodes), ("workers", workers), ("capacity_tokens", capacity_tokens)):
        if given is not None:
            checks.whole(given, name, 1)
    if tool_servers is not None:
        checks.whole(tool_servers, "tool_servers", 1)
    engine = profile if isinstance(profile, Profile) else profile_named(profile)
    capacity = capacity_tokens or engine.capacity_tokens
    work = workload_of(workload, seed, tasks).fitting(capacity, params.reserve_tokens, strict)
    chosen = make_policy(policy, params)
    come_ps = arrival_times(work, arrivals, rate_per_s)
    shape = (nodes, workers, engine, capacity)
    if isinstance(chosen, Compiled) and not (stepper or keep_snapshots or debug):
        history = runner.Run(work, chosen, *shape, come_ps, tool_servers).finish(progress)
    else:
        after = check if debug else None
        cluster = Cluster(work, chosen, *shape, params, keep_snapshots, after, come_ps, tool_servers)
        _run(cluster, progress)
        history = cluster.history
    history.job_ends = work.job_ends
    history.settings = {
        "workload": work.name,
        "policy": policy_name(policy),
        "nodes": nodes,
        "workers": workers,
        "tasks": len(work.tasks),
        "seed": work.seed,
        "capacity_tokens": capacity,
        "shared_prefix_tokens": work.shared_prefix_tokens,
        "arrivals": arrivals,
        "rate_per_s": rate_per_s,
        "tool_servers": tool_servers,
        "params": params.changed(),
        "profile": engine.name,
        "provenance": engine.provenance,
        "known_error": engine.known_error,
    }
    return history


def arrival_times(work: Workload, arrivals: str, rate_per_s: float | None) -> Ints | None:
    """When each session comes, int64[n] in picoseconds, ascending; None where workers fetch them."""
    if arrivals not in ARRIVALS:
        raise InputError(f"arrivals is {shown(arrivals)}; it must be one of {', '.join(ARRIVALS)}")
    if (arrivals == "poisson") != (rate_per_s is not None):
        raise InputError(
            f"arrivals is {arrivals!r} and rate_per_s is {rate_per_s}; give a rate with 'poisson', only then"
        )
    if arrivals == "closed":
        return None
    if rate_per_s is not None:
        checks.positive(rate_per_s, "rate_per_s")
        rng = np.random.default_rng([work.seed, MAX_TASKS])  # session k < MAX_TASKS draws from [seed, k]
        at_s = np.cumsum(rng.exponential(1.0 / rate_per_s, len(work.tasks)))
    else:
        at_s = np.array([task.arrival_s for task in work.tasks])
        if not at_s.any():
            raise InputError(f"arrivals is 'trace', but workload {work.name!r} records none; use 'poisson'")
        if (np.diff(at_s) < 0).any():
            raise InputError(
                f"arrivals is 'trace', but the sessions of workload {work.name!r} do not come in order; "
                "sort its tasks by arrival_s"
            )
    return np.rint(at_s * PS_PER_S).astype(np.int64)


def _run(cluster: Cluster, progress: Callable[[float], None] | None) -> None:
    """Step to the end, reporting the share of sessions done whenever it has changed."""
    reported, count = -1, len(cluster.workload.tasks)
    while cluster.step():
        done = len(cluster.history.finished_ps)
        if progress is not None and done != reported:
            progress(done / count)
            reported = done


def workload_of(workload: str | os.PathLike[str] | Workload, seed: int, tasks: int | None) -> Workload:
    """A workload by name, path or as it is; `tasks` takes only its first sessions."""
    if not isinstance(workload, Workload):
        return open_workload(workload, seed, tasks)
    return workload if tasks is None else workload.head(tasks)


def make_policy(policy: PolicyLike, params: Params) -> Policy:
    """A policy by name, or what a class or function of one's own makes of `params`, or the object itself."""
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise InputError(f"policy is {policy!r}; it must be one of {', '.join(POLICIES)}")
        return POLICIES[policy](params)
    made = policy(params) if callable(policy) else policy
    missing = [n for n in ("route", "on_finish", "tick", "period_s", "gap_s") if not hasattr(made, n)]
    if missing:
        raise InputError(f"policy {policy_name(policy)} lacks {', '.join(missing)}; see tao.policies.Policy")
    if made.period_s is not None:
        check_at_least(made.period_s, f"policy {policy_name(policy)}: period_s", LEAST_PERIOD_S)
    check_at_least(made.gap_s, f"policy {policy_name(policy)}: gap_s", 0.0)
    return made


def check_at_least(seconds: object, what: str, least_s: float) -> None:
    """Raises `InputError` unless it is a number of seconds not below `least_s`."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= least_s:
        raise InputError(f"{what} is {shown(seconds)}; it must be at least {least_s:g} seconds")


def policy_name(policy: PolicyLike) -> str:
    """What a policy is called in tables."""
    if isinstance(policy, str):
        return policy
    return str(getattr(policy, "__name__", type(policy).__name__))
