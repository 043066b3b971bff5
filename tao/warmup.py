"""Compile (or load) every kernel before it is needed, so that the first plan or slider is not slow."""

from __future__ import annotations

from tao import _jit, planners
from tao.model import CacheNote, Node, Params, Session, Snapshot


def ready() -> None:
    """Make every kernel ready, and say in one line whether the disk cache had them.

    A few seconds on the first call after an installation, a fraction of one second afterwards.
    """
    sessions = (Session("a", 3, cached={"n0": CacheNote(2, 0.0)}), Session("b", 2))
    snapshot = Snapshot(0.0, (Node("n0", 4), Node("n1", 4)), sessions)
    problem = planners.case(snapshot, Params(quantum_tokens=1, reserve_tokens=0))
    planners.dp(problem)
    planners.bfd(problem)
    compiled = _jit.cache_misses() > 0
    print(f"tao is ready: its kernels {'have been compiled' if compiled else 'were in the disk cache'}")
