"""Run a workload on a simulated cluster: `simulate` from names and numbers to a `History`."""

from __future__ import annotations

import os
from collections.abc import Callable

from tao import checks
from tao.cluster import Cluster
from tao.history import History
from tao.invariants import check
from tao.model import InputError, Params
from tao.policies import POLICIES, Policy
from tao.profiles import DEFAULT_PROFILE, Profile
from tao.profiles import profile as profile_named
from tao.traces import open_workload
from tao.workloads import Workload

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
    strict: bool = False,
    keep_snapshots: bool = False,
    debug: bool = False,
    progress: Callable[[float], None] | None = None,
) -> History:
    """Replay `workload` with `workers` at a time on `nodes` nodes under one policy.

    `workload` is a name of `WORKLOADS`, a path to a recorded one, or a `Workload`; `policy` a name of
    `POLICIES`, or an object or class of your own with the interface of `tao.policies`. Sessions larger
    than a node are left out and counted in `History.notes` (an error if `strict`). `debug` checks the
    invariants after every event. `progress` is called with the share of sessions done. `tao.measure`
    gives the metrics of the result. Raises `InputError` on unusable arguments.

    >>> history = simulate("swe-lite", "sticky", nodes=1, workers=2, tasks=2)
    >>> len(history.finished_ps), history.settings["policy"]
    (2, 'sticky')
    """
    params = params or Params()
    for name, given in (("nodes", nodes), ("workers", workers), ("capacity_tokens", capacity_tokens)):
        if given is not None:
            checks.whole(given, name, 1)
    if params.share_prefix:
        raise InputError(
            "share_prefix is True, but the simulator has no prefix shared by sessions; leave it out"
        )
    engine = profile if isinstance(profile, Profile) else profile_named(profile)
    capacity = capacity_tokens or engine.capacity_tokens
    work = workload_of(workload, seed, tasks).fitting(capacity, params.reserve_tokens, strict)
    chosen = make_policy(policy, params)
    cluster = Cluster(
        work, chosen, nodes, workers, engine, capacity, params, keep_snapshots, check if debug else None
    )
    cluster.history.settings = {
        "workload": work.name,
        "policy": policy_name(policy),
        "nodes": nodes,
        "workers": workers,
        "tasks": len(work.tasks),
        "seed": work.seed,
        "capacity_tokens": capacity,
        "params": params.changed(),
        "profile": engine.name,
        "provenance": engine.provenance,
        "known_error": engine.known_error,
    }
    _run(cluster, progress)
    return cluster.history


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
    return made


def policy_name(policy: PolicyLike) -> str:
    """What a policy is called in tables."""
    if isinstance(policy, str):
        return policy
    return str(getattr(policy, "__name__", type(policy).__name__))
