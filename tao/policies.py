"""Policies: who is let in, where, and who has to pause; TAO and its rivals behind one interface.

A policy is any object with these three functions and two settings; it sees a `View` of arrays and
never a tool's true duration or an answer's length. The simulator calls

* `route(view, i)` when session i has a request and no node: a node, or HOLD for the waiting pool;
* `on_finish(view, i)` when an answer of session i is complete;
* `tick(view)` every `period_s` (or, if that is None, whenever something changed, at most every
  `gap_s`): placements out of the pool, and sessions to pause.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tao import readiness
from tao.model import CacheNote, Node, Params, Session, Snapshot, ToolCall
from tao.profiles import PS_PER_S
from tao.worker import Proposal, propose

HOLD = -1
NEW, WAITING, REASONING, TOOL, DONE = range(5)  # phases; NEW and DONE are not on the cluster

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class View:
    """What a policy may see: int64 arrays over n sessions and m nodes; times in picoseconds.

    `resident` is the node that holds a session, or -1: a live session without one is in the waiting
    pool. `leaving` is 1 for one that pauses when its answer is complete; `streamed_tokens` is what
    that answer has brought so far; `noted_tokens[i, b]` and `noted_at_ps[i, b]` are the prefix of
    session i last seen on node b.
    """

    session_ids: list[str]
    node_ids: list[str]
    capacity_tokens: Ints
    phase: Ints
    context_tokens: Ints
    turn: Ints
    resident: Ints
    leaving: Ints
    last_node: Ints
    waiting_since_ps: Ints
    streamed_tokens: Ints
    noted_tokens: Ints
    noted_at_ps: Ints
    tools: dict[int, ToolCall] = field(default_factory=dict)  # the running ones, by session
    now_ps: int = 0

    @classmethod
    def empty(cls, session_ids: list[str], capacity_tokens: list[int]) -> View:
        """A cluster on which no session has started; nodes are called n0, n1, ..."""
        n, m = len(session_ids), len(capacity_tokens)
        width = len(str(m - 1))
        return cls(
            session_ids=session_ids,
            node_ids=[f"n{b:0{width}}" for b in range(m)],
            capacity_tokens=np.array(capacity_tokens, np.int64),
            phase=np.full(n, NEW, np.int64),
            context_tokens=np.zeros(n, np.int64),
            turn=np.zeros(n, np.int64),
            resident=np.full(n, -1, np.int64),
            leaving=np.zeros(n, np.int64),
            last_node=np.full(n, -1, np.int64),
            waiting_since_ps=np.zeros(n, np.int64),
            streamed_tokens=np.zeros(n, np.int64),
            noted_tokens=np.zeros((n, m), np.int64),
            noted_at_ps=np.zeros((n, m), np.int64),
        )

    @property
    def live(self) -> Ints:
        """Indices of the sessions on the cluster, ascending."""
        return np.flatnonzero((self.phase != NEW) & (self.phase != DONE))

    @property
    def pool(self) -> Ints:
        """Indices of the waiting pool, ascending."""
        return np.flatnonzero((self.resident < 0) & (self.phase != NEW) & (self.phase != DONE))

    def residents(self, b: int) -> Ints:
        """Indices of the sessions on node b, ascending."""
        return np.flatnonzero(self.resident == b)

    def freeze(self, paused: frozenset[int] = frozenset()) -> Snapshot:
        """The snapshot of this moment; `paused` sessions count as in the pool already."""
        nodes = [Node(name, int(c)) for name, c in zip(self.node_ids, self.capacity_tokens, strict=True)]
        sessions = [self._session(int(i), int(i) in paused) for i in self.live]
        return Snapshot(self.now_ps / PS_PER_S, tuple(nodes), tuple(sessions))

    def _session(self, i: int, paused: bool) -> Session:
        b = -1 if paused else int(self.resident[i])
        waiting = b < 0 and self.phase[i] == WAITING
        return Session(
            self.session_ids[i],
            int(self.context_tokens[i]),
            {WAITING: "waiting", REASONING: "reasoning", TOOL: "tool"}[int(self.phase[i])],  # type: ignore[arg-type]
            int(self.turn[i]),
            None if b < 0 else self.node_ids[b],
            int(self.waiting_since_ps[i]) / PS_PER_S if waiting else None,
            {
                self.node_ids[c]: CacheNote(
                    int(self.noted_tokens[i, c]), int(self.noted_at_ps[i, c]) / PS_PER_S
                )
                for c in np.flatnonzero(self.noted_tokens[i])
            },
            self.tools.get(i),
        )


@dataclass(slots=True)
class Decision:
    """What a tick decided: sessions to place, sessions to pause (by index), and when to ask again.

    A `proposal` was planned on a snapshot and takes `cost_s`; it is revalidated before it is applied
    and replaces `placements`. A session that is answering pauses when its answer is complete.
    """

    placements: list[tuple[int, int]] = field(default_factory=list)
    pauses: list[int] = field(default_factory=list)
    proposal: Proposal | None = None
    snapshot: Snapshot | None = None
    cost_s: float = 0.0
    wake_ps: int | None = None


class Policy(Protocol):
    """See the module's docstring."""

    @property
    def period_s(self) -> float | None:
        """Seconds between two ticks; None: after every change."""

    @property
    def gap_s(self) -> float:
        """The least seconds between two ticks after changes."""

    def route(self, view: View, i: int) -> int:
        """A node for session i's request, or HOLD."""

    def on_finish(self, view: View, i: int) -> None:
        """Session i's answer is complete."""

    def tick(self, view: View) -> Decision:
        """Placements and pauses now."""


class Sticky:
    """Each session stays on the node that had the fewest sessions when it came; nobody waits (ours)."""

    period_s = None
    gap_s = 0.0

    def __init__(self, params: Params) -> None:
        del params

    def route(self, view: View, i: int) -> int:
        return min(range(len(view.node_ids)), key=lambda b: len(view.residents(b)))

    def on_finish(self, view: View, i: int) -> None:
        pass

    def tick(self, view: View) -> Decision:
        return Decision()


class Tao:
    """TAO: joint placement of the whole pool by `plan()`, whenever somebody in it could be let in."""

    period_s = None

    def __init__(self, params: Params, planner: str = "dp") -> None:
        self.params, self.planner = params, planner
        self.gap_s = params.replan_gap_s

    def route(self, view: View, i: int) -> int:
        return HOLD

    def on_finish(self, view: View, i: int) -> None:
        pass

    def tick(self, view: View) -> Decision:
        pauses = self._pauses(view)
        gone = [i for i in pauses if view.phase[i] != REASONING]
        resident = view.resident.copy()
        resident[gone] = -1
        if not self._somebody_fits(view, resident):
            return Decision(pauses=pauses)
        snapshot = view.freeze(frozenset(gone))
        proposal = propose(snapshot, self.planner, self.params)
        if not proposal.plan.placements and len(np.unique(resident[resident >= 0])) < len(view.node_ids):
            # Rounding must not keep a session for ever from a node that is empty.
            proposal = propose(snapshot, "bfd", self.params)
        cost_s = self.params.plan_cost_s + self.params.plan_cost_per_state_s * proposal.plan.states
        return Decision([], pauses, proposal, snapshot, cost_s, self._wake_ps(snapshot))

    def _somebody_fits(self, view: View, resident: Ints) -> bool:
        """Does any session of the pool fit on any node, with these residents?"""
        live = view.live
        demand = view.context_tokens[live] + self.params.reserve_tokens
        inside = resident[live] >= 0
        used = np.bincount(resident[live][inside], demand[inside], len(view.node_ids))
        room = (view.capacity_tokens - used).max()
        return bool((demand[~inside] <= room).any())

    def _pauses(self, view: View) -> list[int]:
        """ThunderAgent's order, smallest in a tool and then smallest answering, but no more than needed."""
        pauses: list[int] = []
        reserve = self.params.reserve_tokens
        for b in range(len(view.node_ids)):
            staying = view.residents(b)
            staying = staying[view.leaving[staying] == 0]
            over = int((view.context_tokens[staying] + reserve).sum()) - int(view.capacity_tokens[b])
            for i in sorted(
                staying.tolist(), key=lambda i: (view.phase[i] != TOOL, view.context_tokens[i], i)
            ):
                if over <= 0:
                    break
                pauses.append(i)
                over -= int(view.context_tokens[i]) + reserve
        return pauses

    def _wake_ps(self, snapshot: Snapshot) -> int | None:
        """The next moment at which a tool of the pool may change its ready bit."""
        later = [
            at
            for s in snapshot.pool
            if s.phase == "tool" and s.tool is not None
            for at in readiness.changes(s.tool, self.params)
            if at > snapshot.now_s
        ]
        return int(min(later) * PS_PER_S) + 1 if later else None


class ThunderAgent:
    """ThunderAgent as its code does it (mode `code`): shortest first, every 5 s, blind to cache and tools.

    One difference: it knows a request's tokens exactly, where the code estimates them from characters.
    """

    period_s: float | None = 5.0  # ThunderAgent a7eef77, config.py: scheduler_interval
    gap_s = 0.0
    buffer_tokens = 100  # ThunderAgent a7eef77, state.py: BUFFER_PER_PROGRAM
    progress_tokens = 20  # ThunderAgent a7eef77, vllm_request_processor.py: counts every 20 chunks
    forced_s = 1800  # ThunderAgent a7eef77, router.py: forced resume

    def __init__(self, params: Params) -> None:
        del params
        self._size_at_pause: dict[int, int] = {}

    def route(self, view: View, i: int) -> int:
        """A new program starts at once if nobody is paused and it fits; a paused one waits for a tick."""
        others = [j for j in view.pool.tolist() if j != i]
        room = self._room(view)
        need = int(view.context_tokens[i]) + self.buffer_tokens
        open_nodes = [b for b, left in enumerate(room) if left >= need]
        if view.turn[i] == 0 and not others and open_nodes:
            return min(open_nodes, key=lambda b: self._tokens(view, view.residents(b)))
        if view.turn[i] == 0:
            self._size_at_pause[i] = int(view.context_tokens[i])
        return HOLD

    def on_finish(self, view: View, i: int) -> None:
        self._size_at_pause[i] = int(view.context_tokens[i])

    def tick(self, view: View) -> Decision:
        room = self._room(view)
        placements = dict(self._forced(view) + self._resume(view, room))  # a resume that fits comes first
        return Decision(list(placements.items()), self._pause(view, placements))

    def _tokens(self, view: View, inside: Ints) -> int:
        streamed = view.streamed_tokens[inside] // self.progress_tokens * self.progress_tokens
        return int((view.context_tokens[inside] + streamed).sum())

    def _room(self, view: View) -> list[int]:
        inside = [view.residents(b) for b in range(len(view.node_ids))]
        return [
            int(c) - self._tokens(view, js) - self.buffer_tokens * len(js)
            for c, js in zip(view.capacity_tokens, inside, strict=True)
        ]

    def _resume(self, view: View, room: list[int]) -> list[tuple[int, int]]:
        """Shortest first into the pooled room, then the longest of these to the node with most room."""
        room = list(room)
        left = sum(c for c in room if c > self.buffer_tokens)
        taken = []
        for i in sorted(view.pool.tolist(), key=lambda i: self._resume_key(view, i)):
            need = int(view.context_tokens[i]) + self.buffer_tokens
            if need <= left:
                left -= need
                taken.append(i)
        placements = []
        for i in sorted(taken, key=lambda i: (-view.context_tokens[i], i)):
            need = int(view.context_tokens[i]) + self.buffer_tokens
            b = max(range(len(room)), key=lambda b: room[b])
            if need <= room[b]:
                room[b] -= need
                placements.append((i, b))
        return placements

    def _resume_key(self, view: View, i: int) -> tuple[int, int, int]:
        """Waiting programs before new ones before those in a tool, each by size when they paused."""
        old = 0 if view.phase[i] == WAITING else 2
        group = 1 if view.turn[i] == 0 else old
        return group, self._size_at_pause.get(i, int(view.context_tokens[i])), i

    def _forced(self, view: View) -> list[tuple[int, int]]:
        late = view.now_ps - self.forced_s * PS_PER_S
        return [
            (i, self._home(view, i))
            for i in view.pool.tolist()
            if view.phase[i] == WAITING and view.waiting_since_ps[i] <= late
        ]

    def _home(self, view: View, i: int) -> int:
        if view.last_node[i] >= 0:
            return int(view.last_node[i])
        return min(range(len(view.node_ids)), key=lambda b: len(view.residents(b)))

    def _pause(self, view: View, resumed: dict[int, int]) -> list[int]:
        """On an overfull node the smallest in a tool pause; if that is not enough, all others are marked."""
        pauses: list[int] = []
        for b in range(len(view.node_ids)):
            inside = view.residents(b).tolist() + [i for i, c in resumed.items() if c == b]
            used = self._tokens(view, np.array(inside, np.int64)) + self.buffer_tokens * len(inside)
            over = used - int(view.capacity_tokens[b])
            acting = [i for i in inside if view.phase[i] == TOOL]
            for i in sorted(acting, key=lambda i: (view.context_tokens[i], i)):
                if over <= 0:
                    break
                pauses.append(i)
                over -= int(view.context_tokens[i]) + self.buffer_tokens
            if over > 0:
                pauses += sorted(i for i in inside if view.phase[i] != TOOL)
        return pauses


POLICIES: dict[str, Callable[[Params], Policy]] = {
    "tao": Tao,
    "thunderagent": ThunderAgent,
    "sticky": Sticky,
}
