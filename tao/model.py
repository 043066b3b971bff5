"""The types everything hangs on: sessions, nodes and snapshots in, values and plans out.

All are frozen and checked when built, so any `Snapshot` that exists is a valid one. Nothing here
knows the time of day, a network or a random number. JSON lives in `tao.codec`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal, NamedTuple

from tao import checks
from tao.checks import InputError as InputError  # part of the interface of the types
from tao.checks import shown
from tao.params import Params as Params
from tao.params import PauseRule as PauseRule
from tao.params import Planner as Planner
from tao.params import Settings as Settings
from tao.params import StaleFrom as StaleFrom
from tao.params import Statistic as Statistic

if TYPE_CHECKING:
    import pandas as pd


Phase = Literal["reasoning", "tool", "waiting"]
Problem = Literal["true", "quantized"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool, with all the evidence there is about when it returns (times in seconds).

    `deadline_s` is the moment the tool itself announced, `expected_s` the duration that history
    suggested when the snapshot was frozen, `finished_s` the observed completion.
    """

    name: str
    started_s: float
    command_class: str | None = None
    command: str | None = None
    deadline_s: float | None = None
    expected_s: float | None = None
    finished_s: float | None = None

    def __post_init__(self) -> None:
        checks.name(self.name, "tool name")
        what = f"tool {shown(self.name)}"
        checks.finite(self.started_s, f"{what}: started_s")
        for name in ("command_class", "command"):
            checks.text(getattr(self, name), f"{what}: {name}")
        for name in ("deadline_s", "finished_s"):
            if getattr(self, name) is not None:
                checks.finite(getattr(self, name), f"{what}: {name}")
        if self.expected_s is not None:
            checks.at_least_zero(self.expected_s, f"{what}: expected_s")
        if self.finished_s is not None and self.finished_s < self.started_s:
            raise InputError(
                f"{what}: finished_s {self.finished_s} lies before started_s {self.started_s}; "
                "check the clock they came from"
            )


@dataclass(frozen=True, slots=True)
class CacheNote:
    """How many prefix tokens of a session were seen in a node's KV cache, and when."""

    tokens: int
    seen_at_s: float

    def __post_init__(self) -> None:
        _set(self, tokens=checks.whole(self.tokens, "cache note: tokens", 0))
        checks.finite(self.seen_at_s, "cache note: seen_at_s")


@dataclass(frozen=True, slots=True)
class Node:
    """A replica that serves requests and holds `capacity_tokens` of KV cache."""

    id: str
    capacity_tokens: int

    def __post_init__(self) -> None:
        checks.name(self.id, "node id")
        _set(
            self,
            capacity_tokens=checks.whole(self.capacity_tokens, f"node {shown(self.id)}: capacity_tokens", 0),
        )


@dataclass(frozen=True, slots=True)
class Session:
    """One agent run, alternating between requests and tool calls.

    It is *resident* on the node `resident_on`, or (None) in the waiting pool. `cached` maps a node
    id to the last `CacheNote` there; `eligible` lists the nodes it may use (None: all).
    """

    id: str
    context_tokens: int
    phase: Phase = "waiting"
    turn: int = 0
    resident_on: str | None = None
    waiting_since_s: float | None = None
    cached: Mapping[str, CacheNote] = field(default_factory=dict, hash=False)
    tool: ToolCall | None = None
    eligible: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        checks.name(self.id, "session id")
        what = f"session {shown(self.id)}"
        _set(self, context_tokens=checks.whole(self.context_tokens, f"{what}: context_tokens", 0))
        _set(self, turn=checks.whole(self.turn, f"{what}: turn", 0))
        checks.one_of(self.phase, Phase, f"{what}: phase")
        checks.text(self.resident_on, f"{what}: resident_on")
        if self.waiting_since_s is not None:
            checks.finite(self.waiting_since_s, f"{what}: waiting_since_s")
        if self.tool is not None and not isinstance(self.tool, ToolCall):
            raise InputError(f"{what}: tool is {shown(self.tool)}; it must be a ToolCall or null")
        if self.phase == "tool" and self.tool is None:
            raise InputError(f"{what}: phase is 'tool' but tool is null; describe the running tool")
        if not isinstance(self.cached, Mapping):
            raise InputError(f"{what}: cached is {shown(self.cached)}; it must map node ids to cache notes")
        checks.all_of(self.cached, str, f"{what}: cached")
        checks.all_of(self.cached.values(), CacheNote, f"{what}: cached")
        # Private copies, so that nobody else can change a frozen session.
        _set(self, cached=dict(self.cached))
        if self.eligible is not None:
            _set(self, eligible=checks.all_of(self.eligible, str, f"{what}: eligible"))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster frozen at `now_s`: all nodes, and all sessions whether resident or waiting.

    >>> snap = Snapshot(0.0, (Node("n0", 1000),), (Session("a", 300), Session("b", 100, resident_on="n0")))
    >>> [s.id for s in snap.pool], snap.free_tokens(Params(reserve_tokens=50))
    (['a'], {'n0': 850})
    """

    now_s: float
    nodes: tuple[Node, ...]
    sessions: tuple[Session, ...]
    shared_prefix_tokens: int = 0

    def __post_init__(self) -> None:
        _set(self, nodes=checks.all_of(self.nodes, Node, "snapshot: nodes"))
        _set(self, sessions=checks.all_of(self.sessions, Session, "snapshot: sessions"))
        checks.finite(self.now_s, "snapshot: now_s")
        shared = checks.whole(self.shared_prefix_tokens, "snapshot: shared_prefix_tokens", 0)
        _set(self, shared_prefix_tokens=shared)
        checks.unique([n.id for n in self.nodes], "node")
        checks.unique([s.id for s in self.sessions], "session")
        known = {n.id for n in self.nodes}
        for s in self.sessions:
            _check_references(s, known)
            _check_not_in_future(s, self.now_s)

    @property
    def pool(self) -> tuple[Session, ...]:
        """The waiting pool: every session that no node holds, the only candidates of a plan."""
        return tuple([s for s in self.sessions if s.resident_on is None])

    def demands(self, sessions: Iterable[Session], params: Params) -> list[int]:
        """Tokens that each session takes on a node: its context and the reserve (ours)."""
        shared = self.shared_prefix_tokens if params.share_prefix else 0
        reserve = params.reserve_tokens  # and no call of `max`, which would take longest
        return [reserve + (own if (own := s.context_tokens - shared) > 0 else 0) for s in sessions]

    def demand_tokens(self, session: Session, params: Params) -> int:
        """Tokens that `session` takes on a node: its context and the reserve (ours)."""
        return self.demands((session,), params)[0]

    def used_tokens(self, params: Params) -> dict[str, int]:
        """Tokens held by residents, per node id; idle cache of others counts as free."""
        used = dict.fromkeys(
            [n.id for n in self.nodes], self.shared_prefix_tokens if params.share_prefix else 0
        )
        where = [s.resident_on for s in self.sessions if s.resident_on is not None]
        held = [s for s in self.sessions if s.resident_on is not None]
        for node, tokens in zip(where, self.demands(held, params), strict=True):
            used[node] += tokens
        return used

    def free_tokens(self, params: Params) -> dict[str, int]:
        """Tokens left for the pool, per node id; negative where a node is overfull."""
        used = self.used_tokens(params)
        return {n.id: n.capacity_tokens - used[n.id] for n in self.nodes}

    def to_frame(self) -> pd.DataFrame:
        """One row per session, for people who think in pandas."""
        import pandas as pd

        plain = [f.name for f in fields(Session) if f.name not in ("cached", "tool")]
        rows = [
            {name: getattr(s, name) for name in plain}
            | {"cached_tokens": {node: note.tokens for node, note in s.cached.items()}}
            | {"tool": s.tool.name if s.tool else None}
            for s in self.sessions
        ]
        return pd.DataFrame(rows, columns=[*plain, "cached_tokens", "tool"])


class Value(NamedTuple):
    """(credit k, readiness r, tokens t) of a placement or a plan; `>` is the objective (TAO paper).

    >>> Value(5, 0, 0) > Value(4, 9, 9)
    True
    """

    credit: int
    ready: int
    tokens: int

    @classmethod
    def sum(cls, values: Iterable[Value]) -> Value:
        """The component-wise sum."""
        credit = ready = tokens = 0
        for v in values:
            credit, ready, tokens = credit + v.credit, ready + v.ready, tokens + v.tokens
        return cls(credit, ready, tokens)


class Placement(NamedTuple):
    """One session admitted to one node, and what that is worth."""

    session: str
    node: str
    value: Value


class Gap(NamedTuple):
    """How far a plan may be from the optimum: 0 where proven, None after the first unproven part."""

    credit: int
    ready: int | None
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A joint decision: who is admitted where, who is deferred, and how good that provably is.

    `exact` says that no plan of the same `problem` ("true" sizes, or sizes rounded to quanta) is
    worth more. `bound` is lexicographically at least the value of *every* plan on true sizes.
    `planner` made it; `reason` says why it was not the one asked for. `states` counts search states, 1
    where the search went straight to its plan. `ageing_tokens` is the part of `value.credit` that waiting
    earned, not the cache.
    """

    placements: tuple[Placement, ...]
    deferred: tuple[str, ...]
    value: Value
    planner: str
    exact: bool
    problem: Problem
    bound: Value
    reason: str = ""
    states: int = 0
    ageing_tokens: int = 0

    @property
    def gap(self) -> Gap:
        """Bound minus value, component by component, up to the first that is not proven."""
        credit, ready, tokens = (b - v for b, v in zip(self.bound, self.value, strict=True))
        if credit:
            return Gap(credit, None, None)
        return Gap(0, ready, None if ready else tokens)

    def node_of(self) -> dict[str, str]:
        """The node of each admitted session."""
        return {p.session: p.node for p in self.placements}


def _set(frozen: object, **values: object) -> None:
    """Set fields of a frozen dataclass while it is being built."""
    for name, value in values.items():
        object.__setattr__(frozen, name, value)


def _check_references(s: Session, known: set[str]) -> None:
    named = [("is resident on", s.resident_on)] if s.resident_on is not None else []
    named += [("holds a cache note on", node) for node in s.cached]
    named += [("is eligible for", node) for node in s.eligible or ()]
    for verb, node in named:
        if node not in known:
            raise InputError(
                f"session {shown(s.id)} {verb} node {shown(node)}, which is not in this snapshot "
                f"(nodes: {checks.listing(sorted(known))}); add the node or drop the mention"
            )


def _check_not_in_future(s: Session, now_s: float) -> None:
    times = [("waiting_since_s", s.waiting_since_s)]
    times += [(f"cached[{shown(node)}].seen_at_s", note.seen_at_s) for node, note in s.cached.items()]
    if s.tool is not None:
        times += [("tool.started_s", s.tool.started_s), ("tool.finished_s", s.tool.finished_s)]
    for name, at in times:
        if at is not None and at > now_s:
            raise InputError(
                f"session {shown(s.id)}: {name} is {at}, after the snapshot's now_s {now_s}; "
                "use one clock for both"
            )
