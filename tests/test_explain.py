"""The recurrence in plain Python is the kernel, cell by cell; and reasons say what is so."""

from __future__ import annotations

import dataclasses
import itertools
import re

import naive
import numpy as np
import pytest
import strategies
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import tao
from tao import assign, explain, planners
from tao.dp import bounds, search
from tao.families import snapshots
from tao.model import CacheNote, InputError, Node, Params, Session, Snapshot, ToolCall, Value

some = settings(max_examples=strategies.EXAMPLES // 2, suppress_health_check=list(HealthCheck))
many = settings(max_examples=strategies.EXAMPLES // 3, suppress_health_check=list(HealthCheck))


def packed(problem, value):
    base, ready_base = int(problem.tokens.sum()) + 1, len(problem.sessions) + 1
    return (value.credit * ready_base + value.ready) * base + value.tokens


@many
@given(strategies.cases(), st.sampled_from((30, 100_000)))
def test_every_cell_equals_what_the_search_finds_from_there_and_is_within_its_bounds(case, cells):
    snapshot, params = case
    problem = planners.case(snapshot, params)
    rounded = planners.quantize(problem)
    assume((rounded.prefer >= 0).any())
    high, low = assign.pack(problem.credit, problem.ready, problem.tokens, rounded.prefer)
    assert not low.any()
    both = bounds.with_second(
        bounds.bound(rounded.demand, rounded.free, rounded.prefer, high, cells),
        *(rounded.demand, rounded.free, high, cells),
    )
    for k, ((i, left), step) in enumerate(explain.recurrence(problem).items()):
        value = packed(problem, step.value)
        assert value <= both.pool[i, sum(left) >> both.coarse]
        tables = [both.table[at + (r >> both.grain)] for at, r in zip(both.at[i], left, strict=True)]
        assert value <= both.share[i:].sum() + sum(tables)
        if i < len(problem.sessions) and k % 5 == 0:
            choice = searched_on(problem, rounded, i, left, cells)
            assert step.choice == (None if choice[0] < 0 else choice[0])
            placed = [(i + a, b) for a, b in enumerate(choice) if b >= 0]
            assert step.value == Value.sum(problem.value(a, b) for a, b in placed)


def searched_on(problem, rounded, i, left, cells):
    """The search's choice for sessions i.. on the room `left`."""
    size, room, prefer, spare = assign.quantize(rounded.demand[i:], np.array(left), rounded.prefer[i:], 1)
    high, low = assign.pack(problem.credit[i:], problem.ready[i:], problem.tokens[i:], prefer)
    spare += rounded.spare
    return search.solve(size, room, prefer, problem.tier[i:], spare, high, low, cells, 10**6)[0].tolist()


@many
@given(strategies.cases())
def test_backtracking_the_recurrence_gives_the_plan_of_dp(case):
    snapshot, params = case
    problem = planners.case(snapshot, params)
    steps = explain.recurrence(problem)
    path = explain.backtrack(problem, steps)
    plan = planners.plan(snapshot, "dp", params)
    placed = {
        problem.sessions[s.cell[0]].id: problem.nodes[s.choice].id for s in path if s.choice is not None
    }
    assert placed == plan.node_of()
    if path:
        assert path[0].value == plan.value


@many
@given(strategies.cases())
def test_a_step_chose_the_best_of_what_it_read(case):
    snapshot, params = case
    problem = planners.case(snapshot, params)
    steps = explain.recurrence(problem)
    for (i, _), step in steps.items():
        if i == len(problem.sessions):
            continue
        offers = [steps[step.reads[0]].value]
        for read in step.reads[1:]:
            node = (
                next(b for b, (x, y) in enumerate(zip(step.cell[1], read[1], strict=True)) if x != y)
                if (read[1] != step.cell[1])
                else int(problem.prefer[i, 0])
            )
            offers.append(Value.sum((problem.value(i, node), steps[read].value)))
        if read_sizes_are_positive(problem):
            assert step.value == max(offers)
        assert problem.sessions[i].id in step.message


def read_sizes_are_positive(problem):
    return bool((planners.quantize(problem).demand > 0).all())


@many
@given(strategies.cases())
def test_every_deferred_session_gets_a_reason_and_it_is_true(case):
    snapshot, params = case
    for name in ("dp", "short_first", "bfd"):
        plan = planners.plan(snapshot, name, params)
        reasons = explain.why_deferred(snapshot, plan, params)
        assert set(reasons) == set(plan.deferred)
        assert set(explain.why_admitted(snapshot, plan, params)) == set(plan.node_of())
        sessions = {s.id: s for s in snapshot.sessions}
        for s, reason in reasons.items():
            fits_now = [
                b.id
                for b in snapshot.nodes
                if naive.is_feasible(snapshot, params, plan.node_of() | {s: b.id}, quantized=False) is None
            ]
            assert ("would still fit" in reason) == bool(fits_now), (name, reason)
            assert ("may use none" in reason) == (sessions[s].eligible == () or not snapshot.nodes), (
                name,
                reason,
            )


def test_regret_is_what_a_plan_gives_up():
    snapshot = tao.load("dp_beats_short_first")
    best, greedy = tao.plan(snapshot), tao.plan(snapshot, "short_first")
    assert explain.regret(greedy, best).credit == 16_791 - 13_624
    assert explain.regret(best, best) == (0, 0, 0)


def test_reasons_name_the_numbers():
    params = Params(reserve_tokens=0, quantum_tokens=1000)
    sessions = (
        Session("huge", 9_000),
        Session("nowhere", 10, eligible=()),
        Session("left", 2_500, cached={"n0": CacheNote(2_000, 0.0)}),
        Session("right", 2_500, cached={"n0": CacheNote(2_000, 0.0)}),
    )
    snapshot = Snapshot(0.0, (Node("n0", 5_000),), sessions)
    reasons = explain.why_deferred(snapshot, planners.plan(snapshot, "dp", params), params)
    assert (
        "needs 9,000 tokens (0 of them to grow into), more than any node it may use has free (at most 5,000)"
        in reasons["huge"]
    )
    assert reasons["nowhere"] == "it may use none of the nodes"
    assert reasons["right"].startswith("it would still fit on n0 (2,500 left for its 2,500 tokens (0 of them")
    assert reasons["right"].endswith("but in quanta of 1,000 it does not")


def test_an_exact_plan_has_no_swap_that_would_gain():
    for name in tao.snapshot_names():
        plan = tao.plan(tao.load(name))
        for reason in explain.why_deferred(tao.load(name), plan).values():
            assert "does not weigh values" not in reason


def test_a_session_that_only_rounding_keeps_out_is_told_so():
    snapshot = tao.load("starved_large")
    assert explain.why_deferred(snapshot, tao.plan(snapshot))["large"] == (
        "in quanta of 1,024 it needs 10 and no node it may use has more than 9"
    )
    snapshot = tao.load("quantum_hurts")
    plan = tao.plan(snapshot)
    assert "but in quanta of 1,024 it does not" in next(iter(explain.why_deferred(snapshot, plan).values()))


def test_readiness_is_put_in_words():
    def words(tool, now_s=2.0):
        return explain.readiness_words(Session("a", 1, "tool", tool=tool), now_s, Params())

    assert words(ToolCall("bash", 0.0, command="sleep 3")) == "ready (by sleep: due in 1.0 s)"
    assert words(ToolCall("bash", 0.0, command="sleep infinity")) == "not ready (by sleep: waits for ever)"
    assert words(ToolCall("bash", 0.0, expected_s=1.5)) == "ready (by history: overdue by 0.5 s)"
    assert words(ToolCall("bash", 0.0, finished_s=1.0)) == "ready (its tool has returned)"
    assert words(ToolCall("bash", 0.0), 80.0) == "not ready (all predictions are void)"
    assert explain.readiness_words(Session("a", 1), 0.0, Params()) == "ready (its request is waiting)"


def test_credit_for_waiting_is_told_apart_from_credit_for_cache():
    s = Session("a", 100, waiting_since_s=2.0, cached={"n0": CacheNote(40, 5.0)})
    snapshot = Snapshot(5.0, (Node("n0", 2000),), (s,))
    params = Params(ageing_tokens_per_s=100.0)
    plan = planners.plan(snapshot, "dp", params)
    assert plan.value.credit == 340
    assert plan.ageing_tokens == 300
    assert (
        "credit 340 (40 tokens cached there 0.0 s ago; 300 of it for waiting)"
        in explain.why_admitted(snapshot, plan, params)["a"]
    )


def test_messages_read_like_the_recurrence():
    params = Params(quantum_tokens=1, reserve_tokens=0)
    snapshot = Snapshot(
        0.0, (Node("n0", 3), Node("n1", 1)), (Session("a", 2), Session("b", 1), Session("c", 9))
    )
    problem = planners.case(snapshot, dataclasses.replace(params))
    messages = [s.message for s in explain.backtrack(problem, explain.recurrence(problem))]
    assert messages == [
        "a (2 quanta): place it on n0 for (0, 2, 3); skipping it (0, 1, 1)",
        "b (1 quantum): place it on n0 for (0, 1, 1); n1 gives (0, 1, 1), skipping it (0, 0, 0)",
        "c (9 quanta): skip it, it fits nowhere",
    ]


# Certificates


def most_profit(problem, b, prices):
    """What one node can earn after prices, by trying every set of sessions."""
    offers = [
        (int(problem.credit[i, b]) - prices.get(s.id, 0), int(problem.demand[i]))
        for i, s in enumerate(problem.sessions)
        if b in problem.prefer[i]
    ]
    sets = itertools.product((False, True), repeat=len(offers))
    taken = [[offer for offer, take in zip(offers, takes, strict=True) if take] for takes in sets]
    return max(sum(p for p, _ in t) for t in taken if sum(size for _, size in t) <= problem.free[b])


@some
@given(strategies.cases(), st.sampled_from((1, 3, 10, 30, 200_000)))
def test_a_certificate_can_be_checked_by_hand_and_claims_nothing_false(case, budget):
    snapshot, params = case[0], dataclasses.replace(case[1], state_budget=budget)
    problem = planners.case(snapshot, params)
    best = planners.plan(snapshot, "exhaustive", params).value
    for name in ("exact", "exhaustive", "dp", "bfd", "fifo"):
        plan = planners.plan(snapshot, name, params)
        proof = explain.certificate(snapshot, plan, params)
        assert proof.credit >= best.credit
        assert set(proof.prices) <= {s.id for s in snapshot.pool}
        assert all(price > 0 for price in proof.prices.values())
        for b, (node, most) in enumerate(proof.nodes.items()):
            assert problem.nodes[b].id == node
            assert most >= most_profit(problem, b, proof.prices)
        if "this one" not in proof.words.replace("and this one keeps as much", ""):
            assert plan.value == best, (name, proof.words)
        if "this one keeps as much" in proof.words:
            assert plan.value.credit == best.credit
        if plan.exact and plan.problem == "true":
            assert "open" not in proof.words
        if "less; readiness and tokens are therefore open" in proof.words:
            assert re.search(r"(together: [\d,]+|could be cut)\.$", proof.words)
        assert f"{plan.value.credit:,}" in proof.words


@pytest.mark.parametrize("family", ["unique", "replicated", "shared", "cold", "stress"])
def test_a_certificate_names_the_numbers(family):
    for seed in range(2 if strategies.INTERPRETED else 10):
        snapshot = snapshots(family, 24, 6, seed, room_tokens=60_000)
        plan = planners.plan(snapshot, "exact")
        proof = explain.certificate(snapshot, plan)
        words = proof.words
        if plan.value.credit:
            assert f"more than {plan.value.credit:,} tokens of credit, and this one keeps as much" in words
            assert f"together: {proof.credit:,}." in words
            assert ("ruled out by a search of" in words) == (proof.credit > plan.value.credit)
            for node, most in sorted(proof.nodes.items(), key=lambda x: -x[1])[:4]:
                assert f"{node} (room for {snapshot.free_tokens(Params())[node]:,})" in words
                assert f"at most {most:,}" in words
            assert "2 more nodes at most" in words
        greedy = planners.plan(snapshot, "fifo")
        if greedy.value.credit < plan.value.credit:
            words = explain.certificate(snapshot, greedy).words
            assert (
                f"this one keeps {greedy.value.credit:,}, at most {proof.credit - greedy.value.credit:,}"
                in words
            )


def test_counting_proves_readiness_and_tokens():
    snapshot = tao.load("dp_beats_short_first")
    lines = explain.certificate(snapshot, tao.plan(snapshot, "exact")).words.splitlines()
    assert "All room as one takes at most 7 ready sessions, and the plan has as many." in lines
    assert lines[-2].startswith(
        "The room beside the sessions that keep credit, 8,452 tokens, takes at most 4,865"
    )
    snapshot = tao.load("starved_large")
    last = explain.certificate(snapshot, tao.plan(snapshot, "exact")).words.splitlines()[-1]
    assert "; divided among nodes it takes 16,000, by a search of" in last


# What if


def less(a, b):
    return tuple(x - y for x, y in zip(a, b, strict=True))


@some
@given(strategies.cases(max_sessions=5), st.sampled_from((0, 1, 5, 1_000, 40_000)))
def test_what_ifs_are_what_planning_a_changed_snapshot_gives(case, more):
    snapshot, params = case
    now = planners.plan(snapshot, "exhaustive", params).value
    room = explain.more_room(snapshot, params, more)
    assert list(room) == sorted(b.id for b in snapshot.nodes)
    for node, answer in room.items():
        nodes = tuple(Node(b.id, b.capacity_tokens + (more if b.id == node else 0)) for b in snapshot.nodes)
        then = planners.plan(dataclasses.replace(snapshot, nodes=nodes), "exhaustive", params).value
        assert answer[:3] == (node, more, "")
        assert (answer.change, answer.exact) == (less(then, now), True)
        assert answer.change >= Value(0, 0, 0)
    leaving = explain.who_should_leave(snapshot, params)
    assert set(leaving) == {s.id for s in snapshot.sessions if s.resident_on}
    for name, answer in leaving.items():
        rest = tuple(s for s in snapshot.sessions if s.id != name)
        then = planners.plan(dataclasses.replace(snapshot, sessions=rest), "exhaustive", params).value
        assert (answer.change, answer.exact) == (less(then, now), True)
        assert answer.leaver in answer.words
    changes = [answer.change for answer in leaving.values()]
    assert changes == sorted(changes, reverse=True)


def test_an_answer_that_is_not_proven_says_so():
    snapshot, mixed = snapshots("replicated", 30, 2, 0), 0
    for budget in range(1, 400, 10):
        params = Params(state_budget=budget)
        now = planners.plan(snapshot, "exact", params).exact
        for node, answer in explain.more_room(snapshot, params, 2_000).items():
            nodes = tuple(Node(b.id, b.capacity_tokens + 2_000 * (b.id == node)) for b in snapshot.nodes)
            then = planners.plan(dataclasses.replace(snapshot, nodes=nodes), "exact", params).exact
            assert answer.exact == (now and then)
            assert answer.words.endswith("but not both plans are proven to be the best.") != answer.exact
            mixed += now != then
    assert mixed
    (answer,) = explain.more_room(Snapshot(0.0, (Node("n0", 9),), ()), more_tokens=5).values()
    assert answer.words == "With 5 more tokens on n0 the value would stay."


@pytest.mark.parametrize("more", [-1, 2.5, "many"])
def test_more_room_is_a_whole_number(more):
    with pytest.raises(InputError, match="more_tokens"):
        explain.more_room(tao.load("session_177"), more_tokens=more)


def test_an_unknown_planner_answers_nothing():
    with pytest.raises(InputError, match="must be one of dp"):
        explain.who_should_leave(tao.load("session_177"), planner="best")
