"""Planners: from a frozen snapshot to a plan, each through the same arrays and the same tie rule.

`plan(snapshot, "dp")` is the paper's dynamic program: demand rounded up and free capacity rounded
down to quanta, exact for that rounded problem, best-fit decreasing beyond the state budget. The
heuristics work on true token sizes. `exhaustive` tries everything, for lessons and tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import compress
from operator import attrgetter
from typing import NamedTuple, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from tao import _cold, assign, bounds, readiness, valuation
from tao.checks import InputError, shown
from tao.exact import solve as solve_exact
from tao.model import Node, Params, Placement, Plan, Planner, Problem, Session, Snapshot, Value

T = TypeVar("T", bound=tuple[object, ...])
Ints = npt.NDArray[np.int64]

EXHAUSTIVE_LIMIT = 200_000  # ours: about a second of plain Python


@dataclass(frozen=True)
class Case:
    """A snapshot as arrays: n pool sessions and m nodes, both sorted by id.

    demand int64[n] and free int64[m] in tokens (free >= 0), credit int64[n, m], ready int64[n],
    tokens int64[n], ageing int64[n] (part of the credit); prefer int64[n, m] lists the nodes that a
    session may use and fits on, in the order of the tie rule (more credit, last node, lower id), padded
    with -1. Nodes of equal tier[i, b] tie in the first two; `dp` and `exhaustive` then take the one with
    more room left, so that sessions without any cache spread over the nodes (ours).
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
    ageing: Ints

    def value(self, i: int, b: int) -> Value:
        """The triple of session i on node b."""
        return Value(int(self.credit[i, b]), int(self.ready[i]), int(self.tokens[i]))

    @property
    def limited(self) -> bool:
        """Whether some session may not use all nodes."""
        return any(s.eligible is not None for s in self.sessions)

    def searched(self) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints, bool, int]:
        """The arguments of the searches in `tao.exact`."""
        arrays = self.demand, self.free, self.credit, self.ready, self.tokens, self.prefer
        return *arrays, self.limited, self.params.state_budget

    def total(self, choice: Ints) -> Value:
        """The value of placing each session i on node choice[i] (-1: nowhere)."""
        return Value.sum(self.value(i, b) for i, b in enumerate(choice.tolist()) if b >= 0)


class Solution(NamedTuple):
    """What a planner returns for a `Case`: int64[n] node or -1, and what it can say about it.

    A planner that knows a better `bound` than `upper_bound` gives it here.
    """

    choice: Ints
    planner: str
    exact: bool
    problem: Problem
    states: int = 0
    reason: str = ""
    bound: Value | None = None


def case(snapshot: Snapshot, params: Params) -> Case:
    """The arrays of a snapshot; raises `InputError` if its sums could leave 64 bits."""
    return next(cases(snapshot, params, [{}]))


def cases(snapshot: Snapshot, params: Params, changes: Iterable[Mapping[str, int]]) -> Iterator[Case]:
    """The arrays of a snapshot once for each change, which says how many tokens a node had more (ours)."""
    sessions = tuple(sorted(snapshot.pool, key=attrgetter("id")))
    nodes = tuple(sorted(snapshot.nodes, key=attrgetter("id")))
    index = {b.id: k for k, b in enumerate(nodes)}
    contexts = [s.context_tokens for s in sessions]
    _check_sums(contexts)
    demand = np.array(snapshot.demands(sessions, params), np.int64)
    credit, last, aged = valuation.credits(sessions, index, snapshot.now_s, params)
    _check_credits(credit)
    usable, free_of = _usable(sessions, index), snapshot.free_tokens(params)
    ready = readiness.ready_bits(sessions, snapshot.now_s, params)
    tokens = np.array(contexts, np.int64)
    for more in changes:  # free is below 0 on an overfull node: nothing fits
        free = np.array([free_of[b] + more.get(b, 0) for b in index], np.int64)
        prefer, tier = assign.arrange(credit, last, usable, demand, free)
        room = np.maximum(free, 0)
        yield Case(sessions, nodes, params, demand, room, credit, ready, tokens, prefer, tier, aged)


def _usable(sessions: tuple[Session, ...], index: dict[str, int]) -> npt.NDArray[np.bool_]:
    """bool[n, m]: which nodes each session may use."""
    usable = np.ones((len(sessions), len(index)), np.bool_)
    limited = [(i, s.eligible) for i, s in enumerate(sessions) if s.eligible is not None]
    if limited:
        usable[[i for i, _ in limited]] = False
        pairs = [(i, index[node]) for i, eligible in limited for node in eligible]
        usable[[i for i, _ in pairs], [b for _, b in pairs]] = True
    return usable


def plan(snapshot: Snapshot, planner: str = "dp", params: Params | None = None) -> Plan:
    """Decide jointly which sessions of the waiting pool go to which node.

    Raises `InputError` for an unknown planner, or when `exhaustive` would have too much to try.

    >>> from tao.model import CacheNote
    >>> snap = Snapshot(0.0, (Node("n0", 10_000),), (
    ...     Session("a", 6_000), Session("b", 5_000, cached={"n0": CacheNote(4_000, 0.0)})))
    >>> plan(snap).node_of(), plan(snap).value
    ({'b': 'n0'}, Value(credit=4000, ready=1, tokens=5000))
    """
    _cold.settle()
    problem = case(snapshot, checked(snapshot, planner, params))
    return decode(problem, PLANNERS[planner](problem))


def checked(snapshot: Snapshot, planner: str, params: Params | None) -> Params:
    """The parameters to plan with (the defaults for None); raises `InputError` for what is no input."""
    if planner not in PLANNERS:
        raise InputError(f"planner is {planner!r}; it must be one of {', '.join(PLANNERS)}")
    if not isinstance(snapshot, Snapshot):
        raise InputError(f"snapshot is {shown(snapshot)}; it must be a Snapshot, as tao.load returns")
    params = Params() if params is None else params
    if not isinstance(params, Params):
        raise InputError(f"params is {shown(params)}; it must be tao.Params, such as Params(half_life_s=20)")
    return params


def decode(problem: Case, solution: Solution) -> Plan:
    """The `Plan` that a planner's solution stands for, with its upper bound."""
    placed = solution.choice >= 0
    at = solution.choice[placed]
    credit = problem.credit[placed, at].tolist()  # summed as Python's integers, which cannot overflow
    ready, tokens = problem.ready[placed].tolist(), problem.tokens[placed].tolist()
    names, nodes = [s.id for s in problem.sessions], [b.id for b in problem.nodes]
    who, where = compress(names, placed.tolist()), [nodes[b] for b in at.tolist()]
    value = Value(sum(credit), sum(ready), sum(tokens))
    return Plan(
        tuple(_rows(Placement, who, where, _rows(Value, credit, ready, tokens))),
        tuple(compress(names, (~placed).tolist())),
        value,
        solution.planner,
        solution.exact,
        solution.problem,
        _bound(problem, solution, value),
        solution.reason,
        solution.states,
        sum(problem.ageing[placed].tolist()),
    )


def _rows(kind: type[T], *columns: Iterable[object]) -> Iterator[T]:
    """NamedTuples of that kind from columns, in half the time of calling it for each row."""
    return map(partial(tuple.__new__, kind), zip(*columns, strict=True))


def _bound(problem: Case, solution: Solution, value: Value) -> Value:
    """What no plan can exceed: the planner's own bound, the value if it is proven, or `upper_bound`."""
    if solution.bound is not None:
        return solution.bound
    quantum = problem.params.quantum_tokens
    if solution.exact and (solution.problem == "true" or not (problem.demand % quantum).any()):
        return value  # rounding lost nothing
    return upper_bound(problem)


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


def exact(problem: Case) -> Solution:
    """The best plan on true sizes, proven; at the state budget the best one found, with a bound (ours).

    Never worth less than `dp`, `bfd` and `short_first`. A state is a step of the search, see `tao.exact`.
    """
    p, params = problem, problem.params
    choice, most, proven, states = solve_exact(*p.searched())
    bound = Value(*most.tolist())
    if proven == len(bound):
        return Solution(choice, "exact", True, "true", int(states), bound=bound)
    choice, planner = assign.or_better(
        *(choice, p.demand, p.free, p.credit, p.ready, p.tokens, p.prefer, p.tier),
        *(params.quantum_tokens, params.state_budget, p.limited),
    )
    value, loose = p.total(choice), upper_bound(p)
    ready, tokens = (b if b >= 0 else x for b, x in zip(bound[1:], loose[1:], strict=True))
    bound = Value(min(bound.credit, loose.credit), ready, tokens)
    name, reason = get_args(Planner)[planner], ""
    if value != bound:
        part = next(part for part, v, b in zip(bound._fields, value, bound, strict=True) if v < b)
        reason = f"exact: {part} not proven within {params.state_budget:,} states; the best plan found"
    return Solution(choice, name, value == bound, "true", int(states), reason, bound)


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
    since = [np.inf if s.waiting_since_s is None else s.waiting_since_s for s in problem.sessions]
    return _in_order(problem, "fifo", np.unique(np.array(since, np.float64), return_inverse=True)[1])


def _in_order(problem: Case, name: Planner, rank: Ints | None = None) -> Solution:
    """Place one session after the other; rank int64[n] orders FIFO."""
    code, p = get_args(Planner).index(name), problem
    choice = assign.place(code, p.demand, p.free, p.demand if rank is None else rank, p.prefer)
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
    "exact": exact,
    "exhaustive": exhaustive,
}


def upper_bound(problem: Case) -> Value:
    """A value that no plan on true sizes can exceed, by `tao.bounds`."""
    p = problem
    return Value(*map(int, bounds.upper_bound(p.demand, p.free, p.credit, p.ready, p.tokens, p.prefer)))


def _check_sums(contexts: list[int]) -> None:
    n = len(contexts)
    if (n + 1) * (sum(contexts) + 1) >= 2**62:
        raise InputError(
            f"{n} sessions with up to {max(contexts):,} tokens: their sums leave 64 bits; "
            "plan fewer sessions at a time, or count in larger units"
        )


def _check_credits(credit: Ints) -> None:
    n, m = credit.shape
    most = int(credit.max()) if credit.size else 0
    if n * m * most >= 2**62:
        raise InputError(
            f"{n} sessions on {m} nodes with up to {most:,} tokens of credit: their sums leave 64 bits; "
            "plan fewer sessions at a time, or count in larger units"
        )
