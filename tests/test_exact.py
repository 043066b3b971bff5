"""The exact planner against brute force and CP-SAT, and its bounds when it is stopped early."""

from __future__ import annotations

import dataclasses

import pytest
import strategies
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tao import planners
from tao.bench import solvers
from tao.exact import solve
from tao.model import CacheNote, InputError, Node, Params, Session, Snapshot
from tao.workloads import snapshots

many = settings(max_examples=strategies.EXAMPLES, suppress_health_check=list(HealthCheck))
DRAWN = ("unique", "replicated", "shared", "cold")
AT_ONCE = {
    "unique": ((30, 2), (40, 4), (80, 4)),
    "replicated": ((30, 2), (40, 4), (80, 4)),
    "shared": ((30, 2),),
}


@many
@given(strategies.cases())
def test_exact_is_exhaustive_and_says_so(case):
    snapshot, params = case
    plan = planners.plan(snapshot, "exact", params)
    assert plan.value == planners.plan(snapshot, "exhaustive", params).value
    assert (plan.exact, plan.problem, plan.planner, plan.reason) == (True, "true", "exact", "")
    assert plan.bound == plan.value


@many
@given(strategies.cases(), st.integers(1, 60))
def test_stopped_early_it_is_never_worse_than_the_others_and_its_bound_holds(case, budget):
    snapshot, params = case
    best = planners.plan(snapshot, "exhaustive", params).value
    stopped = dataclasses.replace(params, state_budget=budget)
    plan = planners.plan(snapshot, "exact", stopped)
    assert plan.bound >= best >= plan.value
    assert plan.exact == (plan.gap == (0, 0, 0)) == (plan.reason == "")
    for name in ("dp", "bfd", "short_first"):
        assert plan.value >= planners.plan(snapshot, name, stopped).value, name


def small(family, seed):
    """Up to 8 sessions on two nodes or 6 on three, of which some fit."""
    nodes = 2 + seed % 2
    room = (20_000, 45_000, 90_000, 300_000)[seed // 2 % 4]
    return snapshots(family, 12 - 2 * nodes - seed // 8 % 3, nodes, seed, room_tokens=room)


@pytest.mark.parametrize("family", DRAWN)
@pytest.mark.parametrize("count", [400, pytest.param(2000, marks=pytest.mark.long)])
def test_small_snapshots_of_each_family_equal_exhaustive(family, count):
    deferred = 0
    for seed in range(count):
        snapshot = small(family, seed)
        plan, best = (planners.plan(snapshot, name) for name in ("exact", "exhaustive"))
        assert plan.value == best.value, seed
        assert plan.exact
        deferred += len(plan.deferred)
    assert deferred > count / 2


def cp_sat(problem, limit_s):
    if reason := solvers.missing("cp-sat"):
        pytest.skip(reason)
    return solvers.solve("cp-sat", problem, limit_s)


@pytest.mark.parametrize("family", ["unique", "replicated", "shared"])
@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.long)])
def test_exact_equals_cp_sat_in_three_stages(family, count):
    shapes = AT_ONCE[family]
    for seed in range(count if family != "shared" else min(count, 40)):
        n, nodes = shapes[seed % len(shapes)]
        problem = planners.case(
            snapshots(family, n, nodes, seed, room_tokens=(60_000, 300_000)[seed % 2]), Params()
        )
        found, solution = cp_sat(problem, 60.0), planners.exact(problem)
        assert solution.exact
        assert solution.bound == problem.total(solution.choice) >= found.value
        assert solution.bound == found.value or found.proven < 3


@pytest.mark.long
def test_exact_equals_cp_sat_on_an_empty_cluster():
    """CP-SAT proves only some of them in a minute; on the others its bound and its plan enclose ours."""
    proven = 0
    for seed in range(40):
        problem = planners.case(snapshots("cold", 30, 2, seed), Params())
        found, solution = cp_sat(problem, 20.0), planners.exact(problem)
        value = problem.total(solution.choice)
        assert found.bound >= value >= found.value
        assert solution.exact
        proven += found.proven == 3
    print(f"CP-SAT proved {proven} of 40")


@pytest.mark.parametrize("family", DRAWN)
@pytest.mark.parametrize("count", [3, pytest.param(40, marks=pytest.mark.long)])
def test_at_any_budget_plan_and_bound_enclose_what_cp_sat_finds(family, count):
    for seed in range(count):
        problem = planners.case(
            snapshots(family, 80, 4, seed, room_tokens=(60_000, 300_000)[seed % 2]), Params()
        )
        found = cp_sat(problem, 1.0)
        for budget in (1, 30, 1_000, 30_000, 200_000):
            stopped = dataclasses.replace(problem, params=Params(state_budget=budget))
            solution = planners.exact(stopped)
            assert problem.total(solution.choice) <= found.bound
            assert solution.bound >= found.value


def test_more_states_never_loosen_the_bound_on_the_credit():
    for seed in range(20):
        p = planners.case(snapshots("replicated", 160, 4, seed, room_tokens=300_000), Params())
        arrays = (p.demand, p.free, p.credit, p.ready, p.tokens, p.prefer, False)
        bounds = [int(solve(*arrays, budget)[1][0]) for budget in (300, 3_000, 30_000, 200_000)]
        assert bounds == sorted(bounds, reverse=True)


def test_counts_near_the_limit_are_exact_and_beyond_it_refused():
    params = Params(reserve_tokens=0)
    cached = {"n0": CacheNote(2**40, 10.0), "n1": CacheNote(2**40 - 3, 10.0)}
    nodes = (Node("n0", 2**40), Node("n1", 2**40))
    few = tuple(Session(f"s{i}", 2**39 + i, cached=cached) for i in range(6))
    plan, best = (planners.plan(Snapshot(10.0, nodes, few), name, params) for name in ("exact", "exhaustive"))
    assert plan.bound >= plan.value == best.value
    crowd = [Session(f"s{i:04}", 2**40 - i, cached=cached) for i in range(3_800)]
    plan = planners.plan(Snapshot(10.0, nodes, tuple(crowd[:1_900])), "exact", params)
    assert plan.bound >= plan.value
    assert plan.value.credit == 2**41 - 3
    with pytest.raises(InputError, match="their sums leave 64 bits"):
        planners.plan(Snapshot(10.0, nodes, tuple(crowd)), "exact", params)


def test_nothing_to_plan_is_proven():
    for nodes in ((), (Node("n", 0),), (Node("n", 10_000),)):
        plan = planners.plan(Snapshot(0.0, nodes, ()), "exact")
        assert (plan.exact, plan.value) == (True, (0, 0, 0))
