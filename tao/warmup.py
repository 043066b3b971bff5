"""Compile (or load) every kernel before it is needed, so that the first plan or slider is not slow."""

from __future__ import annotations

from tao import _jit, planners
from tao.model import CacheNote, Node, Params, Session, Snapshot
from tao.policies import POLICIES
from tao.simulator import simulate


def ready(simulator: bool = False) -> None:
    """Make the planners' kernels ready, with `simulator` the engine and every policy too, and say so.

    On the first call after an installation about a minute, with the simulator two; afterwards a
    fraction of a second.
    """
    sessions = (Session("a", 3, cached={"n0": CacheNote(2, 0.0)}), Session("b", 2))
    snapshot = Snapshot(0.0, (Node("n0", 4), Node("n1", 4)), sessions)
    for planner in ("dp", "bfd", "exact"):
        planners.plan(snapshot, planner, Params(quantum_tokens=1, reserve_tokens=0))
    if simulator:
        for policy in POLICIES:
            simulate("swe-lite", policy, nodes=2, workers=2, tasks=2)
    compiled = _jit.cache_misses() > 0
    print(f"tao is ready: its kernels {'have been compiled' if compiled else 'were in the disk cache'}")
