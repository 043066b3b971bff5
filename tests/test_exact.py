"""The exact planner against brute force and CP-SAT, and its bounds when it is stopped early."""

from __future__ import annotations

import dataclasses

import strategies
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tao import planners

many = settings(max_examples=strategies.EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
DRAWN = ("unique", "replicated", "shared", "cold")


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
