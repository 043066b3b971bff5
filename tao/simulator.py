"""Run a workload on a simulated cluster: `simulate` from names and numbers to a `History`."""

from __future__ import annotations

from collections.abc import Callable

from tao.cluster import Cluster
from tao.history import History
from tao.invariants import check
from tao.model import InputError, Params
from tao.policies import POLICIES, Policy
from tao.profiles import DEFAULT_PROFILE, PS_PER_S, Profile
from tao.profiles import profile as profile_named
from tao.traces import open_workload
from tao.workloads import Workload


def simulate(
    workload: str | Workload,
    policy: str | Policy = "tao",
    nodes: int = 2,
    workers: int = 16,
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
    `POLICIES` or any object with that interface. Sessions larger than a node are left out and
    counted in `History.notes` (an error if `strict`). `debug` checks the invariants after every event.
    `progress` is called with the share of sessions done. Raises `InputError` on unusable arguments.

    >>> history = simulate("swe-lite", "sticky", nodes=1, workers=2, tasks=2)
    >>> len(history.finished_ps), history.settings["policy"]
    (2, 'sticky')
    """
    params = params or Params()
    for name, given in (("nodes", nodes), ("workers", workers), ("capacity_tokens", capacity_tokens)):
        if given is not None and (not isinstance(given, int) or given < 1):
            raise InputError(f"{name} is {given!r}; it must be a whole number above 0")
    engine = profile_named(profile) if isinstance(profile, str) else profile
    capacity = capacity_tokens or engine.capacity_tokens
    work = open_workload(workload, seed, tasks) if isinstance(workload, str) else workload
    work = work.fitting(capacity, params.reserve_tokens, strict)
    chosen = make_policy(policy, params) if isinstance(policy, str) else policy
    cluster = Cluster(
        work, chosen, nodes, workers, engine, capacity, params, keep_snapshots, check if debug else None
    )
    cluster.history.settings = {
        "workload": work.name,
        "policy": policy if isinstance(policy, str) else type(policy).__name__,
        "profile": engine.name,
        "nodes": nodes,
        "workers": workers,
        "tasks": len(work.tasks),
        "seed": work.seed,
        "capacity_tokens": capacity,
    }
    reported = -1
    while cluster.step():
        done = len(cluster.history.finished_ps)
        if progress is not None and done != reported:
            progress(done / len(work.tasks))
            reported = done
    cluster.history.end_ps = cluster.now_ps
    cluster.history.steps = sum(node.steps for node in cluster.nodes)
    return cluster.history


def make_policy(name: str, params: Params) -> Policy:
    """The policy of that name, fresh; raises `InputError` listing the names."""
    if name not in POLICIES:
        raise InputError(f"policy is {name!r}; it must be one of {', '.join(POLICIES)}")
    return POLICIES[name](params)


def live_tokens(history: History) -> float:
    """Mean context tokens of the sessions on the cluster, over time: the live working set."""
    return history.live_token_ps / history.end_ps if history.end_ps else 0.0


def seconds(ps: int) -> float:
    """Picoseconds as seconds."""
    return ps / PS_PER_S
