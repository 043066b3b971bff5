"""The types everything hangs on: sessions, nodes and snapshots in, values and plans out.

All are frozen and checked when built, so any `Snapshot` that exists is a valid one. Nothing here
knows the time of day, a network or a random number. JSON lives in `tao.codec`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from tao import checks
from tao.checks import InputError as InputError  # part of the interface of the types
from tao.checks import shown

if TYPE_CHECKING:
    import pandas as pd


MAX_STATES = 100_000_000  # ours: more would not fit into memory

Phase = Literal["reasoning", "tool", "waiting"]
Problem = Literal["true", "quantized"]
StaleFrom = Literal["due", "made"]
Statistic = Literal["mean", "median"]
Planner = Literal["dp", "short_first", "bfd", "worst_fit", "fifo"]
PauseRule = Literal["smallest", "least_value"]


@dataclass(frozen=True, slots=True)
class Params:
    """Every constant of valuation, readiness and planning; the source of each is beside it in the code.

    Value: `half_life_s` in which cache credit halves; `horizon_s` within which a tool has to return to
    count as ready; `ageing_tokens_per_s` of credit for waiting.
    Readiness: `fallback_s` a tool takes when nothing is known; `stale_s` after which a prediction is void,
    counted from `stale_from` ("due" or "made"); `statistic` of history ("mean" or "median"); `probe_s` for
    which an overdue tool stays ready; `margin_s` added to every prediction.
    Planning: `quantum_tokens` to which dp rounds; `state_budget` beyond which bfd places; `reserve_tokens`
    held for each session to grow into; `share_prefix`: charge the shared prefix once per node.
    The `tao` policy: `planner` it places with, and `pause_rule` for an overfull node ("smallest" first and no
    more than needed; "least_value": those worth least, by the same dynamic program). `decay` and `readiness`
    switch a part of the value off. In simulation: a plan takes `plan_cost_s` + `plan_cost_per_state_s` * states, and at least
    `replan_gap_s` lie between two plans.

    >>> Params(half_life_s=20.0).half_life_s
    20.0
    """

    half_life_s: float = 10.0  # TAO paper: credit halves every 10 s
    horizon_s: float = 1.0  # TAO paper: ready = needed within 1 s
    fallback_s: float = 5.0  # TAO paper: tool time when nothing is known
    stale_s: float = 30.0  # TAO paper: a prediction this far out of date is void
    stale_from: StaleFrom = "due"  # ours: the paper leaves open from when the 30 s count
    statistic: Statistic = "mean"  # TAO paper: averages; "median" is ours, better on real tools
    probe_s: float = 1.0  # ours: the paper gives no length for its probe of an overdue tool
    margin_s: float = 0.0  # ours: the paper adds a margin but does not say how large
    quantum_tokens: int = 1024  # ours: the paper does not give its quantum
    state_budget: int = 200_000  # ours: the paper does not give its budget
    reserve_tokens: int = 512  # ours: room to grow, held for every session on a node
    share_prefix: bool = False  # ours: charge the shared prefix once per node, not per session
    ageing_tokens_per_s: float = 0.0  # ours: extra credit per second of waiting, off
    plan_cost_s: float = 0.0005  # ours: simulated cost of a plan = this + plan_cost_per_state_s * states
    plan_cost_per_state_s: float = 1e-7  # ours: in the range of the paper's 1.59 ms mean
    replan_gap_s: float = 0.05  # ours: the least time between two plans
    decay: bool = True  # TAO paper: E3 and E5 switch it off
    readiness: bool = True  # TAO paper: E3 and E5 switch it off
    planner: Planner = "dp"  # TAO paper
    pause_rule: PauseRule = "smallest"  # ours: ThunderAgent's order, but no more than needed

    def __post_init__(self) -> None:
        for name in ("half_life_s", "stale_s"):
            checks.positive(getattr(self, name), f"Params.{name}")
        for name in _PARAM_SECONDS:
            checks.at_least_zero(getattr(self, name), f"Params.{name}")
        for name, least in (("quantum_tokens", 1), ("reserve_tokens", 0)):
            checks.whole(getattr(self, name), f"Params.{name}", least)
        checks.whole(self.state_budget, "Params.state_budget", 1, MAX_STATES)
        checks.one_of(self.stale_from, StaleFrom, "Params.stale_from")
        checks.one_of(self.statistic, Statistic, "Params.statistic")
        checks.one_of(self.planner, Planner, "Params.planner")
        checks.one_of(self.pause_rule, PauseRule, "Params.pause_rule")
        for name in ("share_prefix", "decay", "readiness"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"Params.{name} is {shown(getattr(self, name))}; it must be True or False")

    def changed(self) -> dict[str, object]:
        """The parameters that differ from their defaults.

        >>> Params(half_life_s=20.0).changed()
        {'half_life_s': 20.0}
        """
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}


    @property
    def settings(self) -> Settings:
        """The same as plain numbers, for compiled code."""
        return _settings(self)


class Settings(NamedTuple):
    """`Params` as compiled code takes them: words as their position among the allowed ones."""

    half_life_s: float  # inf without decay
    horizon_s: float
    fallback_s: float
    stale_s: float
    stale_from: int
    statistic: int
    probe_s: float
    margin_s: float
    quantum_tokens: int
    state_budget: int
    reserve_tokens: int
    share_prefix: bool
    ageing_tokens_per_s: float
    plan_cost_s: float
    plan_cost_per_state_s: float
    readiness: bool
    planner: int
    pause_rule: int


@lru_cache(maxsize=256)
def _settings(params: Params) -> Settings:
    numbers: dict[str, object] = {}
    for f in fields(params):
        given = getattr(params, f.name)
        numbers[f.name] = _CODES[f.name].index(given) if f.name in _CODES else type(f.default)(given)
    if not params.decay:
        numbers["half_life_s"] = math.inf
    return Settings(**{name: numbers[name] for name in Settings._fields})  # type: ignore[arg-type]


_CODES: dict[str, tuple[str, ...]] = {
    "stale_from": get_args(StaleFrom),
    "statistic": get_args(Statistic),
    "planner": get_args(Planner),
    "pause_rule": get_args(PauseRule),
}
_PARAM_SECONDS = (
    "horizon_s",
    "fallback_s",
    "probe_s",
    "margin_s",
    "ageing_tokens_per_s",
    "plan_cost_s",
    "plan_cost_per_state_s",
    "replan_gap_s",
)


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
        return tuple(s for s in self.sessions if s.resident_on is None)

    def demand_tokens(self, session: Session, params: Params) -> int:
        """Tokens that `session` takes on a node: its context and the reserve (ours)."""
        shared = self.shared_prefix_tokens if params.share_prefix else 0
        return max(session.context_tokens - shared, 0) + params.reserve_tokens

    def used_tokens(self, params: Params) -> dict[str, int]:
        """Tokens held by residents, per node id; idle cache of others counts as free."""
        used = dict.fromkeys((n.id for n in self.nodes), 0)
        if params.share_prefix:
            used = dict.fromkeys(used, self.shared_prefix_tokens)
        for s in self.sessions:
            if s.resident_on is not None:
                used[s.resident_on] += self.demand_tokens(s, params)
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
    `planner` made it; `reason` says why it was not the one asked for. `states` counts search
    states. `ageing_tokens` is the part of `value.credit` that waiting earned, not the cache.
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
