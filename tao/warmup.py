"""Compile (or load) every kernel before it is needed, so that the first plan or slider is not slow."""

from __future__ import annotations

from tao import _jit, planners, proof, readiness
from tao.model import CacheNote, Node, Params, Session, Snapshot, ToolCall
from tao.policies import POLICIES
from tao.simulator import simulate


def ready(simulator: bool = False, lab: bool = False) -> None:
    """Make the planners' kernels ready, on request those of the simulator and the readiness lab, and say so.

    With `simulator` also the engine, every policy and what live runs need, with `lab` the replay of tool
    calls. On the first call after an installation it takes about a minute, with the simulator two and a
    half, with the lab some seconds more; afterwards a second.

    >>> ready()  # doctest: +ELLIPSIS
    tao is ready: its kernels ...
    """
    sessions = (Session("a", 3, cached={"n0": CacheNote(2, 0.0)}), Session("b", 2), Session("c", 4))
    snapshot = Snapshot(0.0, (Node("n0", 4), Node("n1", 4)), sessions)
    params = Params(quantum_tokens=1, reserve_tokens=0)
    plans = [planners.plan(snapshot, planner, params) for planner in ("dp", "bfd", "exact")]
    proof.certificate(snapshot, plans[-1], params)
    if simulator:
        for policy in POLICIES:
            simulate("swe-lite", policy, nodes=2, workers=2, tasks=2)
        # In the stepper policies are asked, and snapshots kept, as in live runs; too little room, for some
        # have to be taken while a tool runs.
        simulate("swe-lite", nodes=1, workers=4, tasks=4, capacity_tokens=30_000, keep_snapshots=True)
    if lab:
        _predict()
    compiled = _jit.cache_misses() > 0
    print(f"tao is ready: its kernels {'have been compiled' if compiled else 'were in the disk cache'}")


def _predict() -> None:
    """One call, and a few on record, through all that the lessons on readiness ask of predictors."""
    from tao.lab import ToolCalls, decisions  # brings pandas in

    readiness.timeline(ToolCall("bash", 0.0), Params())
    two = ToolCalls.of_rows("two", [("a", "bash", "", at_s, 0.5, None) for at_s in (0.0, 1.0)])
    decisions(two)
