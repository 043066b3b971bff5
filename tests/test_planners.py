"""Every planner against the exhaustive search and the naive twins, on snapshots of every nasty kind."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import naive
import numpy as np
import pytest
import strategies
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import tao
from tao import assign, bench, bounds, explain, planners, readiness, valuation
from tao.dp import search
from tao.model import CacheNote, InputError, Node, Params, Session, Snapshot, Value
from tao.planners import PLANNERS

HEURISTICS = ("short_first", "bfd", "worst_fit", "fifo")
many = settings(max_examples=strategies.EXAMPLES, suppress_health_check=list(HealthCheck))
some = settings(many, max_examples=strategies.EXAMPLES // 5)

sleep = strategies.COMMANDS.get


def solve(snapshot, planner, params):
    return planners.plan(snapshot, planner, params)


@many
@given(strategies.cases())
def test_dp_at_quantum_one_is_exhaustive_is_naive(case):
    snapshot, params = case
    params = dataclasses.replace(params, quantum_tokens=1)
    best = naive.best_value(snapshot, params, sleep, quantized=False)
    plan = solve(snapshot, "dp", params)
    assert plan.exact
    assert plan.value == best == solve(snapshot, "exhaustive", params).value
    assert plan.bound == plan.value


@many
@given(strategies.cases())
def test_dp_is_the_best_of_the_quantized_problem(case):
    snapshot, params = case
    plan = solve(snapshot, "dp", params)
    problem = planners.case(snapshot, params)
    rounded = planners.quantize(problem)
    best = problem.total(planners.try_everything(problem, rounded.demand, rounded.free, rounded.prefer))
    assert plan.value == best == naive.best_value(snapshot, params, sleep, quantized=True)


@many
@given(strategies.cases())
def test_on_the_quantized_problem_no_heuristic_beats_dp(case):
    snapshot, params = case
    plan = solve(snapshot, "dp", params)
    problem = planners.case(snapshot, params)
    rounded = planners.quantize(problem)
    same = dataclasses.replace(
        problem, demand=rounded.demand, free=rounded.free + rounded.spare, prefer=rounded.prefer
    )
    for name in HEURISTICS:
        assert problem.total(PLANNERS[name](same).choice) <= plan.value, name


@many
@given(strategies.cases())
def test_every_plan_is_feasible_and_accounts_for_the_whole_pool(case):
    snapshot, params = case
    worth = naive.values(snapshot, params, sleep)
    for name in PLANNERS:
        plan = solve(snapshot, name, params)
        node_of = plan.node_of()
        assert naive.is_feasible(snapshot, params, node_of, quantized=False) is None, name
        assert len(node_of) == len(plan.placements), f"{name} placed a session twice"
        assert sorted([*node_of, *plan.deferred]) == sorted(s.id for s in snapshot.pool)
        assert plan.value == naive.total(worth, node_of)


@many
@given(strategies.cases())
def test_the_bound_holds_for_every_plan_on_true_sizes(case):
    snapshot, params = case
    best = naive.best_value(snapshot, params, sleep, quantized=False)
    for name in PLANNERS:
        plan = solve(snapshot, name, params)
        assert plan.bound >= best, name
        assert plan.gap.credit >= 0
        if plan.gap == (0, 0, 0):
            assert plan.value == best


@many
@given(strategies.cases(), st.data())
def test_permuting_rows_leaves_every_plan_unchanged(case, data):
    snapshot, params = case
    other = strategies.permuted(data.draw, snapshot)
    for name in PLANNERS:
        assert solve(other, name, params) == solve(snapshot, name, params), name


@many
@given(strategies.cases())
def test_an_order_preserving_renaming_renames_every_plan(case):
    snapshot, params = case
    other = strategies.renamed(snapshot, order_preserving=True)
    for name in PLANNERS:
        before, after = solve(snapshot, name, params), solve(other.snapshot, name, params)
        assert after.node_of() == {other.sessions[s]: other.nodes[b] for s, b in before.node_of().items()}, (
            name
        )
        assert after.value == before.value


@many
@given(strategies.cases())
def test_any_renaming_keeps_the_value_of_an_optimum(case):
    snapshot, params = case
    other = strategies.renamed(snapshot, order_preserving=False).snapshot
    for name in ("dp", "exact", "exhaustive"):
        assert solve(other, name, params).value == solve(snapshot, name, params).value, name


@many
@given(strategies.cases())
def test_ties_go_where_the_rule_says(case):
    snapshot, params = case
    assert solve(snapshot, "exhaustive", params).node_of() == naive.canonical_best(
        snapshot, params, sleep, False
    )
    assert solve(snapshot, "dp", params).node_of() == naive.canonical_best(snapshot, params, sleep, True)


@many
@given(strategies.cases())
def test_heuristics_equal_their_naive_twins(case):
    snapshot, params = case
    for name in HEURISTICS:
        twin = getattr(naive, name)(snapshot, params)
        plan = solve(snapshot, name, params)
        assert plan.node_of() == twin, name
        assert (plan.exact, plan.problem, plan.planner) == (False, "true", name)


def searched(problem, high, low, cells=assign.BOUND_CELLS):
    """(choice, states) of the search on the quantized problem, with tables of so many cells."""
    rounded = planners.quantize(problem)
    room = (rounded.demand, rounded.free, rounded.prefer, problem.tier, rounded.spare)
    choice, states = search.solve(*room, high, low, cells, 10**6)
    return choice.tolist(), states


@many
@given(strategies.cases(), st.sampled_from((0, 30, 1000)))
def test_coarse_bounds_and_values_in_two_integers_give_the_same_plan(case, cells):
    snapshot, params = case
    problem = planners.case(snapshot, params)
    prefer = planners.quantize(problem).prefer
    assume((prefer >= 0).any())
    high, low = assign.pack(problem.credit, problem.ready, problem.tokens, prefer)
    assert not low.any()
    choice, _ = searched(problem, high, low)
    assert choice == searched(problem, high, low, cells)[0]
    base = assign.token_base(problem.tokens)
    rest = problem.ready * base + problem.tokens
    assert choice == searched(problem, np.where(high < 0, -1, problem.credit), rest, cells)[0]
    placed = {problem.sessions[i].id: problem.nodes[b].id for i, b in enumerate(choice) if b >= 0}
    assert placed == solve(snapshot, "dp", params).node_of()


def hard(seed):
    """14 sessions for three crowded nodes; without credit, in every second one, many plans nearly tie."""
    snapshot = bench.crowded(14, (7, 6, 6), seed)
    if seed % 2 == 0:
        return snapshot
    return dataclasses.replace(
        snapshot, sessions=tuple(dataclasses.replace(s, cached={}) for s in snapshot.sessions)
    )


def test_long_searches_find_the_plan_of_the_full_recurrence():
    opened = []
    for seed in range(4 if strategies.INTERPRETED else 20):
        problem = planners.case(hard(seed), Params())
        steps = explain.recurrence(problem)
        solution = planners.dp(problem)
        path = explain.backtrack(problem, steps)
        assert solution.choice.tolist() == [-1 if s.choice is None else s.choice for s in path]
        opened.append(solution.states)
        assert solution.states < len(steps) / 4
    assert max(opened) > search._PATIENCE * 14  # the second bound came in


def test_few_states_are_opened_where_many_can_be_reached():
    states = [planners.dp(planners.case(bench.crowded(seed=seed), Params())).states for seed in range(10)]
    assert sorted(states)[5] < 10  # of 40 layers, the last of which has 12,000
    assert max(states) < 1000


@some
@given(strategies.cases())
def test_one_state_too_few_is_too_few(case):
    snapshot, params = case
    full = solve(snapshot, "dp", params)
    assume(full.states > 1)
    assert solve(snapshot, "dp", dataclasses.replace(params, state_budget=full.states)) == full
    less = dataclasses.replace(params, state_budget=full.states - 1)
    assert solve(snapshot, "dp", less).planner == "bfd"


@some
@given(strategies.cases(), st.integers(1, 40))
def test_beyond_the_state_budget_bfd_places_and_the_plan_says_so(case, budget):
    snapshot, params = case
    full = solve(snapshot, "dp", params)
    plan = solve(snapshot, "dp", dataclasses.replace(params, state_budget=budget))
    if full.states <= budget:
        assert plan == full
    else:
        assert plan.planner == "bfd"
        assert not plan.exact
        assert f"more than {budget:,} states" in plan.reason
        assert plan.node_of() == solve(snapshot, "bfd", params).node_of()


@many
@given(strategies.cases(max_sessions=9))
def test_the_columns_of_a_case_equal_what_each_session_is_worth_by_itself(case):
    snapshot, params = case
    problem, now_s = planners.case(snapshot, params), snapshot.now_s
    nodes = sorted(node.id for node in snapshot.nodes)
    assert [session.id for session in problem.sessions] == sorted(session.id for session in snapshot.pool)
    for i, session in enumerate(problem.sessions):
        ready = readiness.session_ready(session, now_s, params)
        for b, node in enumerate(nodes):
            assert problem.value(i, b) == valuation.value(session, node, ready, now_s, params)
        assert problem.ageing[i] == valuation.ageing(session, now_s, params)
        assert problem.demand[i] == snapshot.demand_tokens(session, params)
        usable = [b for b, node in enumerate(nodes) if session.eligible is None or node in session.eligible]
        free = snapshot.free_tokens(params)
        fitting = [b for b in usable if problem.demand[i] <= free[nodes[b]]]
        last = valuation.last_node(session)
        fitting.sort(key=lambda b, i=i, last=last: (-problem.credit[i, b], nodes[b] != last, b))
        assert [b for b in problem.prefer[i] if b >= 0] == fitting


def test_readiness_switched_off_is_a_column_of_zeros():
    assert planners.case(pool(5, 6), Params(readiness=False)).ready.tolist() == [0, 0]


def test_a_planners_own_bound_is_what_its_plan_says(monkeypatch):
    nobody = planners.Solution(np.array([-1, -1]), "modest", False, "true", bound=Value(0, 2, 12))
    monkeypatch.setitem(PLANNERS, "modest", lambda problem: nobody)
    assert planners.plan(pool(5, 6), "modest").bound == (0, 2, 12)
    monkeypatch.setitem(PLANNERS, "modest", lambda problem: nobody._replace(bound=None))
    assert planners.plan(pool(5, 6), "modest").bound == (0, 2, 11)


def most_worth(items, room):
    """What fits into `room` of (worth, size) items of which one may be cut: by sorting exact fractions."""
    total = sum(worth for worth, size in items if not size)
    items = sorted((x for x in items if x[1]), key=lambda x: Fraction(*x), reverse=True)
    for worth, size in items:
        if size > room:
            return total + worth * room // size
        total, room = total + worth, room - size
    return total


@many
@given(st.data())
def test_cutting_one_item_is_bounded_exactly_however_large_the_numbers(data):
    most, near = data.draw(st.tuples(st.sampled_from([3, 2**25, 2**41 - 1]), st.booleans()))
    numbers = st.integers(most - min(most, 3), most) if near else st.integers(0, most)
    items = data.draw(st.lists(st.tuples(numbers, numbers), max_size=8))
    room = data.draw(st.integers(0, sum(size for _, size in items) + 1))
    worth, size = np.array([*items, (0, 0)], np.int64).T.copy()
    bound, exact = bounds.fractional(worth, size, room), most_worth(items, room)
    assert bound >= exact
    if most <= 2**26:  # floats tell all ratios apart
        assert bound == exact


def pool(*sizes, capacity=(10_000,), **session):
    nodes = tuple(Node(f"n{i}", c) for i, c in enumerate(capacity))
    return Snapshot(10.0, nodes, tuple(Session(f"s{i}", size, **session) for i, size in enumerate(sizes)))


def test_credit_outranks_readiness_outranks_tokens():
    params = Params(quantum_tokens=1, reserve_tokens=0)
    cached = Session("cached", 10, cached={"n0": CacheNote(2, 10.0)}, phase="waiting")
    big = Session("big", 10_000)
    snapshot = Snapshot(10.0, (Node("n0", 10_000),), (big, cached))
    assert planners.plan(snapshot, "dp", params).value == Value(2, 1, 10)


def test_equal_sessions_spread_over_equal_nodes():
    plan = planners.plan(pool(3000, 3000, 3000, 3000, capacity=(20_000, 20_000)), "dp")
    assert sorted(plan.node_of().values()) == ["n0", "n0", "n1", "n1"]


def test_a_session_larger_than_every_node_is_deferred_by_everyone():
    for name in PLANNERS:
        assert planners.plan(pool(50_000, 2_000), name).deferred == ("s0",)


def test_values_too_large_to_pack_are_still_exact():
    params = Params(quantum_tokens=2**36, reserve_tokens=0)
    cached = {"n1": CacheNote(2**39 - 1, 10.0)}
    snapshot = pool(*[2**39 + i for i in range(6)], capacity=(2**40, 2**40), cached=cached)
    problem = planners.case(snapshot, params)
    assert assign.pack(problem.credit, problem.ready, problem.tokens, problem.prefer)[1].any()
    plan = planners.plan(snapshot, "dp", params)
    assert plan.exact
    assert plan.value == naive.best_value(snapshot, params, sleep, quantized=True)
    assert plan.value.credit == 2**39 - 1


def test_sums_beyond_64_bits_are_refused_by_name():
    sessions = tuple(Session(f"s{i:05}", 2**40) for i in range(3000))
    with pytest.raises(InputError, match=r"3000 sessions .* leave 64 bits; plan fewer"):
        planners.plan(Snapshot(0.0, (Node("n0", 2**40),), sessions), "dp")


def test_credit_whose_sums_leave_64_bits_is_refused_too():
    planners._check_credits(np.broadcast_to(np.int64(2**40), (65_000, 64)))
    with pytest.raises(
        InputError, match=r"65000 sessions on 64 nodes with up to 2,199,.* leave 64 bits; plan"
    ):
        planners._check_credits(np.broadcast_to(np.int64(2**41), (65_000, 64)))


def test_an_unknown_planner_is_answered_with_the_list():
    with pytest.raises(InputError, match="'best'; it must be one of dp, short_first"):
        planners.plan(pool(1), "best")


def test_exhaustive_refuses_what_would_take_for_ever():
    with pytest.raises(InputError, match=r"2\*\*30 placements .* use dp"):
        planners.plan(pool(*[100] * 30), "exhaustive")


def test_the_presets_cover_every_planner_and_none_is_missing():
    for name in ("dp_beats_short_first", "session_177", "quantum_hurts", "two_nodes_trap", "starved_large"):
        snapshot = tao.load(name)
        for planner in PLANNERS:
            if planner != "exhaustive" or len(snapshot.pool) <= 8:
                assert (
                    naive.is_feasible(snapshot, Params(), tao.plan(snapshot, planner).node_of(), False)
                    is None
                )


def test_what_is_no_snapshot_or_no_params_is_told_so():
    with pytest.raises(InputError, match=r"snapshot is 'session_177'; it must be a Snapshot, as tao\.load"):
        planners.plan("session_177")
    with pytest.raises(InputError, match=r"params is \{\}; it must be tao\.Params"):
        planners.plan(pool(5), "dp", {})


def test_sizes_that_share_large_powers_of_two_do_not_collide():
    """With sizes in whole 2**39 the low bits of what is left are all 0; hashes tell such states apart."""
    hashes = {search._hash(b, left << 39) % 4096 for b in range(4) for left in range(256)}
    assert len(hashes) > 700  # of 1,024 numbers drawn from 4,096 about 900 are different
