"""Planners: from a frozen snapshot to a plan, each through the same arrays and the same tie rule.

`plan(snapshot, "dp")` is the paper's dynamic program: demand rounded up and free capacity rounded
down to quanta, exact for that rounded problem, best-fit decreasing beyond the state budget. The
heuristics work on true token sizes. `exhaustive` tries everything, for lessons and tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from tao import assign, readiness, valuation
from tao.checks import InputError, shown
from tao.model import Node, Params, Placement, Plan, Planner, Problem, Session, Snapshot, Value

Ints = npt.NDArray[np.int64]

EXHAUSTIVE_LIMIT = 200_000  # ours: about a second of plain Python


@dataclass(frozen=True)
class Case:
    """A snapshot as arrays: n pool sessions and m nodes, both sorted by id.

    demand int64[n] and free int64[m] in tokens (free >= 0), credit int64[n, m], ready int64[n],
    tokens int64[n]; prefer int64[n, m] lists the nodes that a session may use and fits on, in the
    order of the tie rule (more credit, last node, lower id), padded with -1. Nodes of equal
    tier[i, b] tie in the first two; `dp` and `exhaustive` then take the one with more room left, so
    that sessions without any cache spread over the nodes (ours).
    """

    sessions: tuple[Session, ...]
    nodes: tuple[Node, ...]
    params: Params
    demand: Ints
    free: Ints
    credit: Ints
    ready: Ints
    tokens: Ints
    prefer: Ints
    tier: Ints
    ageing: tuple[int, ...]

    def value(self, i: int, b: int) -> Value:
        """The triple of session i on node b."""
        return Value(int(self.credit[i, b]), int(self.ready[i]), int(self.tokens[i]))

    def total(self, choice: Ints) -> Value:
        """The value of placing each session i on node choice[i] (-1: nowhere)."""
        return Value.sum(self.value(i, b) for i, b in enumerate(choice.tolist()) if b >= 0)


class Solution(NamedTuple):
    """What a planner returns for a `Case`: int64[n] node or -1, and what it can say about it."""

    choice: Ints
    planner: str
    exact: bool
    problem: Problem
    states: int = 0
    reason: str = ""


def case(snapshot: Snapshot, params: Params) -> Case:
    """The arrays of a snapshot; raises `InputError` if its sums could leave 64 bits."""
    sessions = tuple(sorted(snapshot.pool, key=lambda s: s.id))
    nodes = tuple(sorted(snapshot.nodes, key=lambda b: b.id))
    free_of = snapshot.free_tokens(params)
    free = [free_of[b.id] for b in nodes]  # below 0 on an overfull node: nothing fits, not even size 0
    demand = [snapshot.demand_tokens(s, params) for s in sessions]
    extra = tuple(valuation.ageing(s, snapshot.now_s, params) for s in sessions)
    index = {b.id: k for k, b in enumerate(nodes)}
    credit = np.empty((len(sessions), len(nodes)), np.int64)
    usable = np.ones((len(sessions), len(nodes)), np.bool_)
    for i, s in enumerate(sessions):
        credit[i] = extra[i]
        for node, note in s.cached.items():
            credit[i, index[node]] += valuation.credit(note, snapshot.now_s, params)
        if s.eligible is not None:
            usable[i] = [b.id in s.eligible for b in nodes]
    last = np.array([index.get(valuation.last_node(s) or "", -1) for s in sessions], np.int64)
    sizes, room = np.array(demand, np.int64), np.array(free, np.int64)
    prefer, tier = assign.arrange(credit, last, usable, sizes, room)
    built = Case(
        sessions,
        nodes,
        params,
        sizes,
        np.maximum(room, 0),
        credit,
        np.array([readiness.session_ready(s, snapshot.now_s, params) for s in sessions], np.int64),
        np.array([s.context_tokens for s in sessions], np.int64),
        prefer,
        tier,
        extra,
    )
    _check_sums(built)
    return built


def plan(snapshot: Snapshot, planner: str = "dp", params: Params | None = None) -> Plan:
    """Decide jointly which sessions of the waiting pool go to which node.

    Raises `InputError` for an unknown planner, or when `exhaustive` would have too much to try.

    >>> from tao.model import CacheNote
    >>> snap = Snapshot(0.0, (Node("n0", 10_000),), (
    ...     Session("a", 6_000), Session("b", 5_000, cached={"n0": CacheNote(4_000, 0.0)})))
    >>> plan(snap).node_of(), plan(snap).value
    ({'b': 'n0'}, Value(credit=4000, ready=1, tokens=5000))
    """
    if planner not in PLANNERS:
        raise InputError(f"planner is {planner!r}; it must be one of {', '.join(PLANNERS)}")
    if not isinstance(snapshot, Snapshot):
        raise InputError(f"snapshot is {shown(snapshot)}; it must be a Snapshot, as tao.load returns")
    params = Params() if params is None else params
    if not isinstance(params, Params):
        raise InputError(f"params is {shown(params)}; it must be tao.Params, such as Params(half_life_s=20)")
    problem = case(snapshot, params)
    return decode(problem, PLANNERS[planner](problem))


def decode(problem: Case, solution: Solution) -> Plan:
    """The `Plan` that a planner's solution stands for, with its upper bound."""
    placements, deferred, aged = [], [], 0
    for i, (s, b) in enumerate(zip(problem.sessions, solution.choice.tolist(), strict=True)):
        if b < 0:
            deferred.append(s.id)
        else:
            placements.append(Placement(s.id, problem.nodes[b].id, problem.value(i, b)))
            aged += problem.ageing[i]
    value = Value.sum(p.value for p in placements)
    rounding_lost_nothing = bool((problem.demand % problem.params.quantum_tokens == 0).all())
    proven = solution.exact and (solution.problem == "true" or rounding_lost_nothing)
    return Plan(
        tuple(placements),
        tuple(deferred),
        value,
        solution.planner,
        solution.exact,
        solution.problem,
        value if proven else upper_bound(problem),
        solution.reason,
        solution.states,
        aged,
    )


class Quantized(NamedTuple):
    """Demand rounded up and free room down to quanta, and `prefer` for those sizes (see `Case`).

    Room on a node beyond what all sessions together could take is kept apart in `spare`.
    """

    demand: Ints
    free: Ints
    prefer: Ints
    spare: Ints


def quantize(problem: Case) -> Quantized:
    """The rounded problem that the paper's DP solves; its placements always fit, but some are lost."""
    quantum = problem.params.quantum_tokens
    return Quantized(*assign.quantize(problem.demand, problem.free, problem.prefer, quantum))


def dp(problem: Case) -> Solution:
    """Joint placement, exact for sizes in quanta; above the state budget best-fit decreasing instead.

    TAO paper; ours opens a state (a session to decide, the remaining quanta) only if it can still win:
    see `tao.dp.search`. The budget counts those it opens besides one per session.
    """
    p, params = problem, problem.params
    choice, states = assign.solve_dp(
        *(p.demand, p.free, p.credit, p.ready, p.tokens, p.prefer, p.tier),
        *(params.quantum_tokens, params.state_budget),
    )
    if states < 0:
        reason = f"dp: more than {params.state_budget:,} states, so bfd placed"
        return bfd(problem)._replace(reason=reason, states=params.state_budget + 1)
    return Solution(choice, "dp", True, "quantized", int(states))


def bfd(problem: Case) -> Solution:
    """Best-fit decreasing: largest first, each to the fitting node with the least room left."""
    return _in_order(problem, "bfd")


def worst_fit(problem: Case) -> Solution:
    """Worst-fit decreasing: largest first, each to the node with the most room (ThunderAgent's "BFD")."""
    return _in_order(problem, "worst_fit")


def short_first(problem: Case) -> Solution:
    """Smallest first, each to the node with the most room (ThunderAgent's resume rule)."""
    return _in_order(problem, "short_first")


def fifo(problem: Case) -> Solution:
    """Longest waiting first, each to the node with the most room."""
    return _in_order(problem, "fifo")


def _in_order(problem: Case, name: Planner) -> Solution:
    since = [np.inf if s.waiting_since_s is None else s.waiting_since_s for s in problem.sessions]
    code = get_args(Planner).index(name)
    rank = np.unique(np.array(since, np.float64), return_inverse=True)[1]
    choice = assign.place(code, problem.demand, problem.free, rank, problem.prefer)
    return Solution(choice, name, False, "true")


def exhaustive(problem: Case) -> Solution:
    """Try every placement on true sizes (ours, for lessons and tests); raises `InputError` if too many."""
    n, m = problem.prefer.shape
    if (m + 1) ** n > EXHAUSTIVE_LIMIT:
        raise InputError(
            f"exhaustive would try {m + 1}**{n} placements of {n} sessions on {m} nodes; "
            f"at most {EXHAUSTIVE_LIMIT:,} are allowed: use dp, or a smaller snapshot"
        )
    return Solution(
        try_everything(problem, problem.demand, problem.free, problem.prefer), "exhaustive", True, "true"
    )


def try_everything(problem: Case, demand: Ints, free: Ints, prefer: Ints) -> Ints:
    """The best choice by brute force, any unit of size: int64[n]; of equals the first by the tie rule."""
    n = len(demand)
    sizes, left = demand.tolist(), free.tolist()
    best_value, best = Value(-1, -1, -1), [-1] * n
    chosen = [-1] * n

    def visit(i: int, value: Value) -> None:
        nonlocal best_value, best
        if i == n:
            if value > best_value:
                best_value, best = value, chosen.copy()
            return
        fitting = [b for b in prefer[i].tolist() if b >= 0 and sizes[i] <= left[b]]
        for b in sorted(fitting, key=lambda b: (problem.tier[i, b], -left[b], b)):
            left[b] -= sizes[i]
            chosen[i] = b
            visit(i + 1, Value.sum((value, problem.value(i, b))))
            left[b] += sizes[i]
        chosen[i] = -1
        visit(i + 1, value)

    visit(0, Value(0, 0, 0))
    return np.array(best, np.int64)


PLANNERS: dict[str, Callable[[Case], Solution]] = {
    "dp": dp,
    "short_first": short_first,
    "bfd": bfd,
    "worst_fit": worst_fit,
    "fifo": fifo,
    "exhaustive": exhaustive,
}


def upper_bound(problem: Case) -> Value:
    """A value that no plan on true sizes can exceed (ours): each component by itself, relaxed.

    Dantzig's bound (1957) lets one session be cut: once with all room pooled into one node, and for the
    credit also node by node, as if a session could collect its credit on each. The lower one counts.
    """
    sizes, rooms = problem.demand.tolist(), problem.free.tolist()
    offers = [
        {b: credit[b] for b in prefer if b >= 0}
        for credit, prefer in zip(problem.credit.tolist(), problem.prefer.tolist(), strict=True)
    ]
    fits = [i for i, offer in enumerate(offers) if offer]
    apart = [[(offers[i][b], sizes[i]) for i in fits if offers[i].get(b)] for b in range(len(rooms))]
    by_node = sum(_fractional(items, room) for items, room in zip(apart, rooms, strict=True))
    ready, tokens = problem.ready.tolist(), problem.tokens.tolist()
    best = {i: max(offers[i].values()) for i in fits}
    credit, r, t = (_fractional([(w[i], sizes[i]) for i in fits], sum(rooms)) for w in (best, ready, tokens))
    return Value(min(credit, by_node), r, t)


def _fractional(items: list[tuple[int, int]], room: int) -> int:
    """Most worth of (worth, size) items that fits into `room` if one may be cut; rounded down."""
    total = sum(worth for worth, size in items if not size)
    # 96 bits behind the point tell any two ratios of sizes below 2**41 apart, in exact integers.
    items = sorted((x for x in items if x[1]), key=lambda x: (x[0] << 96) // x[1], reverse=True)
    for worth, size in items:
        if size > room:
            return total + worth * room // size
        total, room = total + worth, room - size
    return total


def _check_sums(problem: Case) -> None:
    n = len(problem.sessions)
    if (n + 1) * (sum(problem.tokens.tolist()) + 1) >= 2**62:
        raise InputError(
            f"{n} sessions with up to {int(problem.tokens.max()):,} tokens: their sums leave 64 bits; "
            "plan fewer sessions at a time, or count in larger units"
        )
