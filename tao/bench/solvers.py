"""General solvers on a planner's problem: OR-Tools CP-SAT and HiGHS, one thread (extra `bench`).

Each maximizes the three parts of the value in turn: credit, then readiness among all plans of that
credit, then tokens. Binary x[i, b] places session i on node b; a session goes to one node at most, and
the demand on a node stays within its free room, both as in `tao.planners.Case`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import numpy as np

from tao.checks import InputError, shown
from tao.model import Value
from tao.planners import Case, Ints

Pairs = list[tuple[int, int]]  # (session, node), in the order of the variables


class Solved(NamedTuple):
    """What a solver found: a plan int64[n] (node or -1), and what it proved.

    `bound` is lexicographically at least every plan's value; `proven` counts the parts of the value that
    are proven, in order. `status` is the solver's word on the last part it came to.
    """

    choice: Ints
    value: Value
    bound: Value
    proven: int
    status: str
    build_s: float
    solve_s: float


class _Found(NamedTuple):
    taken: Sequence[float] | None  # per pair; None: no plan found
    bound: float
    optimal: bool
    status: str


class _Model(Protocol):
    def maximize(self, weights: list[int], limit_s: float) -> _Found: ...
    def keep(self, weights: list[int], least: int) -> None: ...


def solve(solver: str, problem: Case, limit_s: float = 60.0) -> Solved:
    """The three parts in turn, within `limit_s` seconds in all; raises `InputError` if it is not installed.

    Later parts start from the plan of the part before.
    """
    if reason := missing(solver):
        raise InputError(reason)
    package, make = SOLVERS[solver]
    library = import_module(package)
    prefer, credit = problem.prefer.tolist(), problem.credit.tolist()
    ready, tokens = problem.ready.tolist(), problem.tokens.tolist()
    pairs = [(i, b) for i, nodes in enumerate(prefer) for b in nodes if b >= 0]
    parts = [[credit[i][b] for i, b in pairs], [ready[i] for i, _ in pairs], [tokens[i] for i, _ in pairs]]
    choice, bound, proven, status = np.full(len(prefer), -1, np.int64), list(map(sum, parts)), 0, "not asked"
    begun = time.perf_counter()
    model = make(library, problem, pairs)
    built = time.perf_counter()
    for k, weights in enumerate(parts if pairs else ()):
        left_s = limit_s - (time.perf_counter() - built)
        if left_s <= 0:
            break
        found = model.maximize(weights, left_s)
        status = found.status
        if found.taken is not None:
            choice = np.full(len(prefer), -1, np.int64)
            for (i, b), x in zip(pairs, found.taken, strict=True):
                if x > 0.5:
                    choice[i] = b
        best = problem.total(choice)[k]
        bound[k] = best if found.optimal else max(best, int(min(found.bound + 1e-6, bound[k])))
        if not found.optimal:
            break
        proven += 1
        model.keep(weights, best)
    solved = time.perf_counter()
    value = problem.total(choice)
    ends = Value(*bound) if pairs else value
    return Solved(choice, value, ends, proven if pairs else 3, status, built - begun, solved - built)


def missing(solver: str) -> str:
    """Why a solver cannot be used here; "" if it can."""
    if solver not in SOLVERS:
        return f"solver is {shown(solver)}; it must be one of {', '.join(SOLVERS)}"
    package = SOLVERS[solver][0].partition(".")[0]
    if find_spec(package) is None:
        return f"{solver} is not installed here; pip install {package}, or 'tao-scheduler[bench]' for all"
    return ""


class _CpSat:
    def __init__(self, library: Any, problem: Case, pairs: Pairs) -> None:
        self.library, self.model = library, library.CpModel()
        self.x = [self.model.new_bool_var("") for _ in pairs]
        of_session, of_node = _rows(pairs)
        demand, free = problem.demand.tolist(), problem.free.tolist()
        for row in of_session.values():
            self.model.add_at_most_one([self.x[k] for k in row])
        for b, row in of_node.items():
            self.model.add(self._sum([demand[pairs[k][0]] for k in row], row) <= free[b])
        self.solver = library.CpSolver()
        self.solver.parameters.num_workers = 1
        self.solver.parameters.random_seed = 0
        self.solver.parameters.catch_sigint_signal = False  # Ctrl-C is Python's

    def _sum(self, weights: list[int], row: Sequence[int]) -> Any:
        return self.library.LinearExpr.weighted_sum([self.x[k] for k in row], weights)

    def maximize(self, weights: list[int], limit_s: float) -> _Found:
        self.model.maximize(self._sum(weights, range(len(weights))))
        self.solver.parameters.max_time_in_seconds = limit_s
        status = self.solver.solve(self.model)
        some = status in (self.library.OPTIMAL, self.library.FEASIBLE)
        taken = [self.solver.value(x) for x in self.x] if some else None
        self.model.clear_hints()
        for x, given in zip(self.x, taken or (), strict=bool(taken)):
            self.model.add_hint(x, given)
        bound = self.solver.best_objective_bound if some else float(sum(weights))
        return _Found(taken, bound, status == self.library.OPTIMAL, self.solver.status_name(status))

    def keep(self, weights: list[int], least: int) -> None:
        self.model.add(self._sum(weights, range(len(weights))) >= least)


class _Highs:
    def __init__(self, library: Any, problem: Case, pairs: Pairs) -> None:
        with _silence():
            self.library, self.highs = library, library.Highs()
        options: dict[str, float] = {"output_flag": False, "threads": 1, "random_seed": 0}
        # Parts count whole things: less than one is no gap, and no rounded plan may be too large.
        options |= {"mip_rel_gap": 0.0, "mip_abs_gap": 0.5, "mip_feasibility_tolerance": 1e-9}
        for name, given in options.items():
            self.highs.setOptionValue(name, given)
        count = len(pairs)
        self.all = np.arange(count, dtype=np.int32)
        self.highs.addVars(count, np.zeros(count), np.ones(count))
        self.highs.changeColsIntegrality(count, self.all, np.ones(count, np.uint8))
        self.highs.changeObjectiveSense(library.ObjSense.kMaximize)
        of_session, of_node = _rows(pairs)
        rows = [*of_session.values(), *of_node.values()]
        most = [1.0] * len(of_session) + [float(problem.free[b]) for b in of_node]
        sizes = problem.demand[[pairs[k][0] for row in of_node.values() for k in row]]
        starts = np.cumsum([0, *map(len, rows)])[:-1].astype(np.int32)
        columns = np.array([k for row in rows for k in row], np.int32)
        factors = np.concatenate([np.ones(count), sizes])
        least = np.full(len(rows), -library.kHighsInf)
        self.highs.addRows(len(rows), least, np.array(most), len(columns), starts, columns, factors)

    def maximize(self, weights: list[int], limit_s: float) -> _Found:
        highs = self.highs
        highs.changeColsCost(len(weights), self.all, np.array(weights, float))
        highs.setOptionValue("time_limit", limit_s)
        highs.run()
        status, info = highs.getModelStatus(), highs.getInfo()
        some = info.primal_solution_status == self.library.SolutionStatus.kSolutionStatusFeasible
        solution = highs.getSolution()
        taken = list(solution.col_value) if some else None
        optimal = status == self.library.HighsModelStatus.kOptimal
        return _Found(taken, info.mip_dual_bound, optimal, highs.modelStatusToString(status))

    def keep(self, weights: list[int], least: int) -> None:
        solution = self.highs.getSolution()
        infinity = self.library.kHighsInf
        self.highs.addRow(least - 0.5, infinity, len(weights), self.all, np.array(weights, float))
        self.highs.setSolution(solution)


@contextmanager
def _silence() -> Iterator[None]:
    """Nothing that C++ prints: HiGHS greets on standard output, where JSON may be wanted."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _rows(pairs: Pairs) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """The variables of each session and of each node."""
    of_session: dict[int, list[int]] = {}
    of_node: dict[int, list[int]] = {}
    for k, (i, b) in enumerate(pairs):
        of_session.setdefault(i, []).append(k)
        of_node.setdefault(b, []).append(k)
    return of_session, of_node


# name -> (what to import, how to build its model)
SOLVERS: dict[str, tuple[str, Callable[[Any, Case, Pairs], _Model]]] = {
    "cp-sat": ("ortools.sat.python.cp_model", _CpSat),
    "highs": ("highspy", _Highs),
}
