"""The simulator against arithmetic: runs with a closed form, and queues that theory solves."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import strategies
from runs import CLOCKWORK, QWEN, append_only, by_hand

from tao.model import Params
from tao.policies import POLICIES
from tao.profiles import PROFILES, PS_PER_S
from tao.workloads import Task, Turn, Workload

CALL = ("bash", "test")
BOTH_HOSTS = pytest.mark.parametrize("stepper", [False, True], ids=["engine", "stepper"])
SLOW = pytest.mark.skipif(
    strategies.INTERPRETED, reason="100,000 events take minutes where nothing is compiled"
)


def alone_ps(law, rows, budget=8192, block=16):
    """Duration of a session that nobody disturbs, from (new tokens, output tokens, tool seconds) per turn."""
    total, context, held = 0, 0, 0
    for new, output, tool_s in rows:
        prompt = context + new
        done = min(held, prompt - 1) // block * block
        while done < prompt:
            chunk = min(budget, prompt - done)
            total += law.step_ps(0, 0, [(chunk, done)])
            done += chunk
        total += sum(law.step_ps(1, prompt + k) for k in range(output - 1))
        total += round(tool_s * PS_PER_S)
        context, held = prompt + output, prompt + output - 1
    return total


@BOTH_HOSTS
@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("policy", ["sticky", "thunderagent", "vllm_cache_aware", "dynamo_kv"])
def test_one_session_alone_takes_the_sum_of_its_steps_and_tools(policy, name, stepper):
    rows = [(20_000, 30, 2.0), (50, 4, 0.5), (200, 1, 7.25), (9_000, 25, 0.0)]
    history = by_hand(append_only(rows), profile=PROFILES[name]).play(policy, stepper=stepper)
    assert history.end_ps == alone_ps(PROFILES[name].law, rows)
    assert history.steps == 3 + 29 + 1 + 3 + 1 + 2 + 24


@BOTH_HOSTS
@pytest.mark.parametrize("n", [2, 7, 16])
def test_equal_sessions_in_lock_step_all_end_together(n, stepper):
    law, prompt, output = QWEN.law, 200, 40
    history = by_hand(append_only(*[[(prompt, output, 0.0)]] * n)).play("sticky", stepper=stepper)
    expected = law.step_ps(0, 0, [(prompt, 0)] * n)
    expected += sum(law.step_ps(n, n * (prompt + k)) for k in range(output - 1))
    assert set(history.column("finished_ps")) == {expected}


@BOTH_HOSTS
def test_without_tool_times_workers_never_leave_the_node(stepper):
    """Zero tools: each next request joins the very next step, so that all sessions stay in lock-step."""
    rows = [(100, 10, 0.0)] * 4
    history = by_hand(append_only(*[rows] * 3)).play("sticky", stepper=stepper)
    law, total, context, held = QWEN.law, 0, 0, 0
    for new, output, _ in rows:
        prompt = context + new
        hit = min(held, prompt - 1) // 16 * 16
        total += law.step_ps(0, 0, [(prompt - hit, hit)] * 3)
        total += sum(law.step_ps(3, 3 * (prompt + k)) for k in range(output - 1))
        context, held = prompt + output, prompt + output - 1
    assert history.end_ps == total


@pytest.mark.parametrize("policy", ["sticky", "session_hash", "thunderagent", "tao"])
def test_with_room_for_everything_the_hit_rate_is_what_repeats(policy):
    rows = [(700, 25, 0.4), (90, 3, 0.0), (1, 50, 2.0), (333, 5, 0.0)]
    history = by_hand(append_only(*[rows] * 6), nodes=2, capacity_tokens=1_000_000).play(policy)
    contexts = np.cumsum([new + output for new, output, _ in rows])[:-1]
    found = sum((context - 1) // 16 * 16 for context in contexts.tolist())
    assert history.column("hit_tokens").sum() == 6 * found


@BOTH_HOSTS
def test_without_idle_room_nothing_is_ever_found(stepper):
    """Two sessions take turns on a node that holds exactly one of them: each evicts the other."""
    turns = [Turn(1000, 900 if k else 0, 10, *CALL, 0.05) for k in range(6)]
    tasks = [Task(name, (*turns, Turn(1000, 900, 10))) for name in ("a", "b")]
    run = by_hand(Workload("two by turns", tuple(tasks), 0), capacity_tokens=1010)
    history = run.play("sticky", stepper=stepper)
    assert history.column("hit_tokens").sum() == 0
    starts = np.argsort(history.column("scheduled_ps"))
    assert all(a != b for a, b in pairwise(history.column("session")[starts].tolist()))


# Queues


def one_turn_each(n, prompt=16, output=1):
    return Workload("one turn each", tuple(Task(f"s{k:06}", (Turn(prompt, 0, output),)) for k in range(n)), 0)


ONE_SEAT = dataclasses.replace(QWEN, name="one seat", max_seqs=1)


@SLOW
@pytest.mark.parametrize(("load", "tolerance"), [(0.5, 0.05), (0.8, 0.10)])
def test_one_seat_and_poisson_arrivals_are_the_queue_m_d_1(load, tolerance, capsys):
    """Waits obey Lindley's recursion exactly, and Pollaczek and Khinchine's formula in the mean.

    The mean of 40,000 such waits varies by 1.5 % (at load 0.5) and 3 % (0.8) from draw to draw.
    """
    work = one_turn_each(40_000)
    service_ps = QWEN.law.step_ps(0, 0, [(16, 0)])
    run = by_hand(work, profile=ONE_SEAT, arrivals="poisson", rate_per_s=load * PS_PER_S / service_ps)
    history = run.play("sticky")
    come_ps = history.column("arrived_ps")
    waits_ps = history.column("scheduled_ps") - come_ps
    expected, wait = [], 0
    for gap in [0, *np.diff(come_ps).tolist()]:
        wait = max(0, wait + service_ps - gap) if expected else 0
        expected.append(wait)
    assert waits_ps.tolist() == expected
    load = service_ps / np.diff(come_ps).mean()  # as drawn
    mean = load * service_ps / (2 * (1 - load))
    with capsys.disabled():
        print(f"\nM/D/1 at load {load:.3f}: mean wait off by {waits_ps.mean() / mean - 1:+.2%}")
    assert waits_ps.mean() == pytest.approx(mean, rel=tolerance)


# Steps take 10 ms and 1 ms per sequence whatever the context; to prefill a token costs nothing more.
SHARED = dataclasses.replace(CLOCKWORK, name="processor sharing", t2_us=1000.0, block_tokens=1)


def agents(workers, turns, output, tool_s, lengths, seed=1):
    """A closed network: long sessions, tools of exponential length, answers of mean length `output`."""
    rng = np.random.default_rng(seed)
    sessions = []
    for _ in range(workers):
        times = np.round(rng.exponential(tool_s, turns), 9).tolist()
        size = np.full(turns, output) if lengths == "fixed" else rng.geometric(1 / output, turns)
        sessions.append([*((1, o, t) for o, t in zip(size.tolist(), times, strict=True)), (1, 1, 0.0)])
    return append_only(*sessions)


def product_form(workers, output, tool_s, servers=None):
    """(throughput per s, response in s at the node) of tools and one node that shares its steps.

    With n sessions at the node a step takes s(n), and each gains a token: it completes n / (o s(n)) answers a
    second. Tools are a station of `servers` servers (None: any number) with exponential times.
    """
    step_s = np.array([SHARED.law.step_ps(n, 0) / PS_PER_S for n in range(workers + 1)])
    weight = np.zeros(workers + 1)  # logarithms
    for n in range(workers + 1):
        weight[n] = sum(np.log(output * step_s[k] / k) for k in range(1, n + 1))
        in_tool = range(1, workers - n + 1)
        weight[n] += sum(np.log(tool_s / min(j, servers or j)) for j in in_tool)
    chance = np.exp(weight - weight.max())
    chance /= chance.sum()
    at_node = np.arange(workers + 1)
    throughput = sum(chance[n] * n / (output * step_s[n]) for n in range(1, workers + 1))
    return throughput, float(chance @ at_node) / throughput


@SLOW
@pytest.mark.parametrize("servers", [None, 3], ids=["any number of tools", "3 tools"])
@pytest.mark.parametrize("lengths", ["fixed", "geometric"])
@pytest.mark.parametrize(("workers", "tool_s"), [(8, 6.0), (24, 9.0)])
def test_tools_and_a_node_are_a_network_of_product_form(workers, tool_s, lengths, servers, capsys):
    """Whatever the distribution of the lengths of answers: only their mean counts where steps are shared."""
    output, turns = 200, 1200
    if servers:
        tool_s /= 3
    work = agents(workers, turns, output, tool_s, lengths)
    run = by_hand(work, profile=SHARED, capacity_tokens=10**8, tool_servers=servers)
    history = run.play("sticky")
    begin, end = history.end_ps // 10, history.end_ps * 8 // 10
    steady = (history.column("finished_ps") > begin) & (history.column("finished_ps") <= end)
    response_s = (history.column("finished_ps") - history.column("arrived_ps"))[steady].mean() / PS_PER_S
    throughput = steady.sum() / (end - begin) * PS_PER_S
    drawn, drawn_s = history.column("output_tokens").mean(), work.script.tool_ps.mean() / PS_PER_S
    expected, expected_s = product_form(workers, drawn, drawn_s, servers)
    with capsys.disabled():
        errors = f"throughput {throughput / expected - 1:+.2%}, response {response_s / expected_s - 1:+.2%}"
        print(f"\n{workers} workers, {lengths} lengths, {servers} tool servers: {errors}")
    assert throughput == pytest.approx(expected, rel=0.02)
    assert response_s == pytest.approx(expected_s, rel=0.02)
    # The bounds of operational analysis.
    least_s = drawn * SHARED.law.step_ps(1, 0) / PS_PER_S
    fastest = max(n / (drawn * SHARED.law.step_ps(n, 0)) for n in range(1, workers + 1)) * PS_PER_S
    assert throughput <= min(workers / (least_s + drawn_s), fastest) * 1.01


@SLOW
def test_few_tool_servers_are_always_busy_where_the_node_takes_no_time():
    """Answers of a single step that takes no time: two servers with tools of 2 s complete one a second."""
    free = dataclasses.replace(SHARED, name="free", t0_ms=0.000001, t2_us=0.0)
    work = agents(6, 1000, 1, 2.0, "fixed")
    history = by_hand(work, profile=free, capacity_tokens=10**8, tool_servers=2).play("sticky")
    steady = history.column("tool_end_ps") <= history.end_ps * 8 // 10
    throughput = steady.sum() / (history.end_ps * 8 // 10) * PS_PER_S
    assert throughput == pytest.approx(2 / 2.0, rel=0.03)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_makes_no_difference_to_a_session_alone_but_its_own_delays(policy):
    """Nobody is there to be placed first: what is left is planning time, and ticks every 5 s after tools."""
    rows = [(300, 5, 4.0), (20, 6, 1.0), (30, 2, 0.0)]
    params = Params(reserve_tokens=0, plan_cost_s=0.125, plan_cost_per_state_s=0.0)
    history = by_hand(append_only(rows), params=params).play(policy)
    plans = 125 * 10**9 if policy in ("tao", "previous", "oracle") else 0
    assert history.end_ps == alone_ps(QWEN.law, rows) + plans
