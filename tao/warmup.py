"""Compile (or load) every kernel before it is needed, so that the first plan or slider is not slow."""

from __future__ import annotations

from tao import _cold, _jit, assign, planners, proof, readiness
from tao.exact import search
from tao.model import CacheNote, Node, Params, Session, Snapshot, ToolCall
from tao.policies import POLICIES
from tao.simulator import simulate

LAST = assign.solve_dp, search.solve  # compiled after all that they call
JOBS = (  # for two processes that take about as long
    "from tao import warmup; warmup.plan('dp', 'bfd')",
    "from tao import warmup; warmup.plan('exact')",
)


def ready(simulator: bool = False, lab: bool = False, wait: bool = True) -> None:
    """Make the planners' kernels ready, on request those of the simulator and the readiness lab, and say so.

    With `simulator` also the engine, every policy and what live runs need, with `lab` the replay of tool
    calls. On the first call after an installation it takes about a minute, with the simulator two and a
    half, with the lab some seconds more; afterwards a second. Without `wait` planners need not wait either:
    while others compile their kernels in the background, Python interprets them, which is slower and gives
    the same plans.

    >>> ready()  # doctest: +ELLIPSIS
    tao is ready: its kernels ...
    """
    cold = _cold.is_cold(LAST)
    if cold:
        _cold.begin(JOBS)
        if not (wait or simulator or lab):
            print("tao is ready, and compiles its kernels in the background: once, for about a minute")
            return
        _cold.settle(wait=True)
    plan("dp", "bfd", "exact")
    if simulator:
        for policy in POLICIES:
            simulate("swe-lite", policy, nodes=2, workers=2, tasks=2)
        # In the stepper policies are asked, and snapshots kept, as in live runs; too little room, for some
        # have to be taken while a tool runs.
        simulate("swe-lite", nodes=1, workers=4, tasks=4, capacity_tokens=30_000, keep_snapshots=True)
    if lab:
        _predict()
    compiled = cold or _jit.cache_misses() > 0
    print(f"tao is ready: its kernels {'have been compiled' if compiled else 'were in the disk cache'}")


def plan(*names: str) -> None:
    """Compile what these planners need, and the certificate of an exact plan, by planning a little."""
    sessions = (Session("a", 3, cached={"n0": CacheNote(2, 0.0)}), Session("b", 2), Session("c", 4))
    snapshot = Snapshot(0.0, (Node("n0", 4), Node("n1", 4)), sessions)
    params = Params(quantum_tokens=1, reserve_tokens=0)
    for name in names:
        made = planners.plan(snapshot, name, params)
        if name == "exact":
            proof.certificate(snapshot, made, params)


def _predict() -> None:
    """One call, and a few on record, through all that the lessons on readiness ask of predictors."""
    from tao.lab import ToolCalls, decisions  # brings pandas in

    readiness.timeline(ToolCall("bash", 0.0), Params())
    two = ToolCalls.of_rows("two", [("a", "bash", "", at_s, 0.5, None) for at_s in (0.0, 1.0)])
    decisions(two)
