"""The compiled engine equals the readable stepper, exactly: whatever happens, however it is interrupted."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import runs
import strategies
from hypothesis import event, given, settings
from runs import CLOCKWORK, DATA, append_only, assert_equal, by_hand, happened, outcome

import tao
from tao import runner
from tao.history import AT_PS, REASONS
from tao.model import InputError, Params
from tao.policies import POLICIES, Compiled
from tao.profiles import PS_PER_S
from tao.simulator import arrival_times, make_policy, simulate
from tao.workloads import Task, Turn, Workload

PLANNING = ("tao", "previous", "oracle")
EXAMPLES = 3 if strategies.INTERPRETED else 50  # of whole runs per policy


def naively(run, policy):
    """The compiled engine, taking every step of a node as an event of its own."""
    s, chosen = run.settings, make_policy(policy, run.settings["params"])
    work = run.workload.fitting(s["capacity_tokens"], s["params"].reserve_tokens)
    come_ps = arrival_times(work, s["arrivals"], s.get("rate_per_s"))
    shape = (work, chosen, s["nodes"], s["workers"], s["profile"], s["capacity_tokens"])
    return runner.Run(*shape, come_ps, s["tool_servers"], skipping=False).finish()


def compare_hosts(run, policy):
    """Stepper, engine and naive engine; what happened."""
    stepped = outcome(lambda: run.play(policy, stepper=True))
    compiled = outcome(lambda: run.play(policy))
    assert_equal(compiled, stepped)
    assert_equal(outcome(lambda: naively(run, policy)), stepped)
    return happened(compiled, run.settings["profile"])


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=EXAMPLES)
@given(DATA)
def test_the_engine_equals_the_stepper_turn_by_turn_and_step_by_step(policy, data):
    for what in sorted(compare_hosts(runs.run(data), policy)):
        event(what)


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=2000)
@given(DATA)
def test_the_engine_equals_the_stepper_in_thousands_of_runs(policy, data):
    compare_hosts(runs.run(data), policy)


@pytest.mark.skipif(strategies.INTERPRETED, reason="it takes minutes where nothing is compiled")
def test_such_runs_hold_everything_that_can_happen():
    """What the comparison above is worth: the first 300 runs, by number."""
    seen = {"tao": set(), "thunderagent": set(), "sticky": set(), "vllm_rr": set()}
    for run in runs.numbered(300):
        for policy, found in seen.items():
            history = outcome(lambda run=run, policy=policy: run.play(policy))
            found |= happened(history, run.settings["profile"])
    always = {"queue", "preemption", "eviction", "rewriting", "nothing fits"}
    waiting = {"pool", "pause", "several placed at once", "move to another node"}
    plans = {"session changed", "would overflow", "more states than the budget", "dp leaves a node empty"}
    assert seen["sticky"] == always
    assert seen["vllm_rr"] == always | {"move to another node"}
    assert seen["thunderagent"] == always | waiting
    assert seen["tao"] == always | waiting | plans


# Where hosts once differed


def test_a_request_that_comes_back_with_one_token_to_compute_is_a_decode_in_both_hosts():
    """It is preempted in the step in which the other one ends, so that it loses none of its 112 tokens."""
    run = by_hand(append_only([(103, 12, 0.0)], [(102, 30, 0.0)]), capacity_tokens=226)
    history = run.play("sticky", stepper=True)
    assert history.column("preemptions").tolist() == [0, 1]
    assert history.column("recomputed_tokens").tolist() == [0, 0]
    assert_equal(run.play("sticky"), history)


@pytest.mark.parametrize(("policy", "output"), [("thunderagent_paper", 1), ("thunderagent", 20)])
def test_a_session_that_comes_as_others_end_finds_their_whole_answers_counted(policy, output):
    """Two end in one moment; who comes in place of the first sees the second with its answer, and waits."""
    work = append_only(*[[(10, output, 0.0)]] * 3)
    run = by_hand(work, workers=2, capacity_tokens=2 * 110 + output - 1)
    assert_equal(run.play(policy), run.play(policy, stepper=True))


def test_a_pause_without_a_plan_is_followed_by_a_tick_when_one_is_due_again():
    """Not as soon as some step of some node happens to end, for many end at once in the engine.

    The second session's answer overfills the node at 4.9 s, so that the third, in a tool, has to go. There
    is room for it again when the first ends, 1.3 s later. In between nothing happens but decoding.
    """
    work = append_only([(400, 380, 0.0)], [(300, 300, 60.0), (9, 2, 0.0)], [(400, 2, 90.0), (9, 2, 0.0)])
    params = Params(reserve_tokens=0, replan_gap_s=1.0, plan_cost_s=0.0, quantum_tokens=1)
    compare_hosts(by_hand(work, params=params, capacity_tokens=1_310), "tao")


# What a run is made of does not matter


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_in_pieces_equals_a_run_in_one_go(policy, monkeypatch):
    for run in runs.numbered(2 if strategies.INTERPRETED else 8):
        whole, shares = outcome(lambda run=run: run.play(policy)), []
        with monkeypatch.context() as patched:
            patched.setattr(runner, "EVENTS_AT_ONCE", 3)
            pieces = outcome(lambda run=run, shares=shares: run.play(policy, progress=shares.append))
        assert_equal(pieces, whole)
        assert shares == sorted(shares)


GUARD = -7


def with_small_tables(play, monkeypatch, moves):
    """Play with tables of so few rows at first; whatever is written beyond their end is noticed."""
    prepare, beyond = runner.prepare, []

    def small(*shape):
        view, e = prepare(*shape)
        tables = np.full((4096, 5), GUARD), np.full((4096, 4), GUARD)
        beyond.extend((tables[0][4:], tables[1][moves:]))
        return view, e._replace(decisions=tables[0][:4], moves=tables[1][:moves])

    with monkeypatch.context() as patched:
        patched.setattr(runner, "prepare", small)
        history = outcome(play)
    assert all((rows == GUARD).all() for rows in beyond), "rows beyond the end of a table"
    return history


@pytest.mark.parametrize("policy", POLICIES)
def test_tables_grow_without_losing_a_row(policy, monkeypatch):
    for run in runs.numbered(2 if strategies.INTERPRETED else 12):
        whole = outcome(lambda run=run: run.play(policy))
        assert_equal(with_small_tables(lambda run=run: run.play(policy), monkeypatch, moves=80), whole)


def test_a_crowd_that_comes_at_one_moment_does_not_outgrow_the_tables(monkeypatch):
    """Nobody is there before, so that a table may look large enough for all who are."""
    tasks = tuple(Task(f"s{k:02}", (Turn(100, 0, 3),), 1.0) for k in range(30))
    params = Params(reserve_tokens=0, plan_cost_s=0.0, plan_cost_per_state_s=0.0)
    run = by_hand(Workload("crowd", tasks, 0), arrivals="trace", params=params)
    history = with_small_tables(lambda: run.play("tao"), monkeypatch, moves=20)
    assert_equal(history, run.play("tao"))
    assert len(history.move_rows) == 30


@pytest.mark.skipif(strategies.INTERPRETED, reason="it takes minutes where nothing is compiled")
def test_a_long_run_outgrows_the_tables_it_began_with():
    """Four sessions that rewrite 100,000 tokens at each turn: two prompts keep the node busy, others wait."""
    turn = Turn(100_000, 0, 1, "bash", "", 0.0)
    tasks = [Task(f"s{k}", (*[turn] * 500, Turn(100_000, 0, 1))) for k in range(4)]
    run = by_hand(Workload("rewriting", tuple(tasks), 0), capacity_tokens=1_000_000)
    history = run.play("dynamo_kv")
    assert len(history.decision_rows) > 1024
    assert len(history.move_rows) > 1024 + 8 * 4
    assert_equal(run.play("dynamo_kv", stepper=True), history)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_run_gives_the_same_bytes(policy):
    for run in runs.numbered(2 if strategies.INTERPRETED else 12):
        first, again = (outcome(lambda run=run: run.play(policy)) for _ in range(2))
        assert digest(first) == digest(again)


def digest(history):
    """A fingerprint of everything that a run left behind."""
    if isinstance(history, str):
        return history
    parts = [t.array.tobytes() for t in (history.turn_rows, history.decision_rows, history.move_rows)]
    rest = repr((history.started_ps, history.finished_ps, history.steps, history.events, history.end_ps))
    return hashlib.sha256(b"".join(parts) + rest.encode()).hexdigest()


def tiny_digests():
    """One small run under every policy, made for the interpreter: it is 100 times slower."""
    rows = [(300, 4, 0.3), (40, 3, 0.0)]
    params = Params(reserve_tokens=16, quantum_tokens=64)
    work = append_only(rows, rows, [(280, 3, 5.0), (9, 2, 0.0)])
    run = by_hand(work, nodes=2, params=params, capacity_tokens=500)
    return {policy: digest(run.play(policy)) for policy in POLICIES}


@pytest.mark.skipif(strategies.INTERPRETED, reason="it is what this test would compare with")
def test_interpreted_kernels_give_the_same_bytes():
    code = "import test_engine; print(test_engine.tiny_digests())"
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(tao.__file__).parents[1])])
    env = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == repr(tiny_digests())


def test_skipping_takes_far_fewer_events():
    run = by_hand(append_only([(1000, 400, 1.0), (50, 400, 0.0)]))
    skipping, naive = run.play("sticky"), naively(run, "sticky")
    assert skipping.steps == naive.steps == 800
    assert naive.events > 800
    assert skipping.events < 10


# Simultaneous events, and rare ones


@pytest.mark.parametrize("policy", POLICIES)
def test_hosts_agree_where_everything_happens_on_a_10_ms_clock(policy):
    """Steps, tools, scrapes at 50 and 100 ms and ticks at 5 s all meet in the same moments."""
    rng = random.Random(7)
    for _ in range(1 if strategies.INTERPRETED else 4):
        sessions = [
            [(rng.choice((1, 30, 400)), rng.choice((1, 4, 9, 40)), rng.choice((0.0, 0.05, 0.1, 4.9)))] * 3
            for _ in range(9)
        ]
        shape = {"nodes": 3, "workers": 6, "capacity_tokens": 1500}
        run = by_hand(append_only(*sessions), profile=CLOCKWORK, **shape)
        assert "nothing fits" not in compare_hosts(run, policy)


@pytest.mark.parametrize("policy", ["tao", "thunderagent"])
def test_hosts_agree_where_many_sessions_come_at_one_moment(policy):
    turns = (Turn(100, 0, 3, "bash", "", 1.0), Turn(120, 103, 2))
    tasks = tuple(Task(f"s{k:02}", turns, 1.0 if k < 30 else 9.0) for k in range(60))
    shape = {"nodes": 2, "capacity_tokens": 2_000, "arrivals": "trace"}
    compare_hosts(by_hand(Workload("waves", tasks, 0), **shape), policy)


@pytest.mark.parametrize("cost_s", [9_007.199254740993, 123_456.789])
def test_hosts_agree_on_plans_that_take_very_long(cost_s):
    """More picoseconds than a float holds exactly."""
    work = append_only([(300, 5, 0.3), (40, 3, 0.0)], [(300, 5, 0.3), (40, 3, 0.0)])
    params = Params(plan_cost_s=cost_s, plan_cost_per_state_s=0.1, reserve_tokens=0, quantum_tokens=1)
    compare_hosts(by_hand(work, params=params, capacity_tokens=1_000), "tao")


@pytest.mark.parametrize("period_s", [None, 60.0])
def test_hosts_say_the_same_where_a_run_cannot_go_on(period_s):
    nobody = Compiled(Params(), period_s=period_s)  # leaves everybody in the pool
    run = by_hand(append_only([(950, 5, 0.0)]))
    said = outcome(lambda: run.play(nobody))
    assert "cannot go on" in said
    assert said == outcome(lambda: run.play(nobody, stepper=True))


def test_a_run_in_which_somebody_is_let_in_every_half_hour_does_go_on():
    """No session fits with its buffer, so that each is let in only when it has waited long enough."""
    run = by_hand(append_only(*[[(950, 5, 0.0)]] * 8), workers=1, capacity_tokens=1_000)
    for stepper in (False, True):
        assert run.play("thunderagent", stepper=stepper).end_ps > 8 * 1800 * PS_PER_S


def test_an_engine_whose_steps_take_no_time_is_refused():
    """The order of what happens in a step of no length is not defined, and hosts differ in it."""
    free = {"t0_ms": 0.0, "t1_ms": 0.0, "host_ms": 0.0}
    with pytest.raises(InputError, match="take"):
        dataclasses.replace(CLOCKWORK, **free)


def test_hosts_say_the_same_where_time_ends():
    run = by_hand(append_only([(10, 1, 900_000.0)] * 7))
    said = outcome(lambda: run.play("sticky"))
    assert "beyond 4,611,686 simulated seconds" in said
    assert said == outcome(lambda: run.play("sticky", stepper=True))


# Plans


@pytest.mark.parametrize("policy", PLANNING)
def test_a_plan_on_the_kept_snapshot_places_whom_the_policy_proposed(policy):
    proposals = 0
    for run in runs.numbered(3 if strategies.INTERPRETED else 25):
        if run.settings["params"].planner != "dp":
            continue
        history = outcome(lambda run=run: run.play(policy, keep_snapshots=True))
        if isinstance(history, str):
            continue
        assert_equal(outcome(lambda run=run: run.play(policy)), history)
        params = make_policy(policy, run.settings["params"]).params
        for decision in history.decisions:
            if not decision.planned:  # it only pauses
                continue
            planner = "bfd" if decision.reason == REASONS[2] else params.planner
            plan = tao.plan(decision.snapshot, planner, params)
            proposed = [(i, b) for i, b, _ in decision.dropped] + list(decision.placed)
            assert plan.node_of() == dict(proposed)
            assert plan.node_of() == decision.plan.node_of()
            assert plan.states == decision.states or decision.reason
            proposals += len(proposed)
    assert proposals > 5


def test_every_tick_of_a_planner_is_kept_and_in_order():
    history = simulate("swe-lite", "tao", 2, 8, tasks=10, capacity_tokens=60_000, keep_snapshots=True)
    at_ps = history.decision_rows.array[:, AT_PS]
    assert (np.diff(at_ps) >= 0).all()
    assert all(d.planned and d.snapshot is not None for d in history.decisions)
