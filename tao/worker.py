"""Plan in the background, then check against the live state before anything is applied.

TAO paper: the plan comes from a frozen snapshot in an asynchronous worker; a *signature*
finds the sessions that changed meanwhile, and placements that would now overflow are dropped.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from tao import assign, planners
from tao.model import Params, Placement, Plan, Session, Snapshot

DropReason = Literal["session changed", "session gone", "node gone", "would overflow", "superseded"]


@dataclass(frozen=True, slots=True)
class Signature:
    """What a plan relies on: each session's (turn, context_tokens, resident_on), each node's capacity."""

    sessions: dict[str, tuple[int, int, str | None]]
    nodes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan together with the signature of the snapshot it was made from, and its running number."""

    plan: Plan
    signature: Signature
    number: int = 0


class Dropped(NamedTuple):
    """A placement that was not applied, and why."""

    placement: Placement
    reason: DropReason


class Verdict(NamedTuple):
    """The placements of a proposal that may be applied now, and those that may not."""

    applied: tuple[Placement, ...]
    dropped: tuple[Dropped, ...]


def signature(snapshot: Snapshot) -> Signature:
    """The signature of a snapshot; tool returns and ageing are left out on purpose.

    >>> from tao.model import Node
    >>> signature(Snapshot(0.0, (Node("n0", 9),), (Session("a", 5),)))
    Signature(sessions={'a': (0, 5, None)}, nodes={'n0': 9})
    """
    return Signature(
        {s.id: _mark(s) for s in snapshot.sessions}, {n.id: n.capacity_tokens for n in snapshot.nodes}
    )


def propose(snapshot: Snapshot, planner: str, params: Params, number: int = 0) -> Proposal:
    """Plan now, in this thread."""
    return Proposal(planners.plan(snapshot, planner, params), signature(snapshot), number)


def revalidate(proposal: Proposal, live: Snapshot, params: Params, newest: int | None = None) -> Verdict:
    """Split a proposal's placements by whether they still hold in the `live` state.

    The most valuable placements are tried first, so that they get the room if there is less now.
    `newest` is the number of the newest proposal already applied: an older one is superseded.
    """
    placements = sorted(proposal.plan.placements, key=lambda p: (tuple(-x for x in p.value), p.session))
    if newest is not None and proposal.number < newest:
        return Verdict((), tuple(Dropped(p, "superseded") for p in placements))
    sessions = {s.id: s for s in live.sessions}
    free = live.free_tokens(params)
    index = {node: b for b, node in enumerate(free)}
    reasons = [_objection(p, proposal.signature, sessions.get(p.session), live) for p in placements]
    sizes = [
        0 if reason else live.demand_tokens(sessions[p.session], params)
        for p, reason in zip(placements, reasons, strict=True)
    ]
    found = assign.verdicts(
        np.array([assign.CHANGED if reason else assign.OK for reason in reasons], np.int64),
        np.array(sizes, np.int64),
        np.array([index.get(p.node, -1) for p in placements], np.int64),
        np.array(list(free.values()), np.int64),
    )
    applied, dropped = [], []
    for p, reason, verdict in zip(placements, reasons, found.tolist(), strict=True):
        if verdict == assign.OK:
            applied.append(p)
        else:
            dropped.append(Dropped(p, reason or "would overflow"))
    return Verdict(tuple(applied), tuple(dropped))


def _mark(s: Session) -> tuple[int, int, str | None]:
    return s.turn, s.context_tokens, s.resident_on


def _objection(p: Placement, then: Signature, s: Session | None, live: Snapshot) -> DropReason | None:
    """Why a placement is void whatever room there is."""
    if s is None:
        return "session gone"
    if p.node not in {node.id for node in live.nodes}:
        return "node gone"
    if then.sessions.get(p.session) != _mark(s) or (s.eligible is not None and p.node not in s.eligible):
        return "session changed"
    return None


class Worker:
    """One background thread that plans; of several snapshots waiting for it only the newest counts.

    >>> from tao.model import Node
    >>> snap = Snapshot(0.0, (Node("n0", 9_000),), (Session("a", 5_000),))
    >>> with Worker() as worker:
    ...     worker.submit(snap).result().plan.node_of()
    {'a': 'n0'}
    """

    def __init__(self, planner: str = "dp", params: Params | None = None) -> None:
        self.planner = planner
        self.params = params or Params()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tao-planner")
        self._count = 0
        self._last: Future[Proposal] | None = None

    def submit(self, snapshot: Snapshot) -> Future[Proposal]:
        """Start planning; a snapshot that is still waiting for the thread is canceled (superseded)."""
        if self._last is not None:
            self._last.cancel()
        self._count += 1
        self._last = self._thread.submit(propose, snapshot, self.planner, self.params, self._count)
        return self._last

    def close(self) -> None:
        """Finish the plan in progress and end the thread."""
        self._thread.shutdown(cancel_futures=True)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
