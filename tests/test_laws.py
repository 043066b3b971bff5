"""Laws of conservation and order, which every run obeys under every policy."""

from __future__ import annotations

import dataclasses
import random
from typing import NamedTuple

import numpy as np
import pytest
import runs
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import DATA, QWEN, append_only, by_hand, outcome

from tao.cluster import Cluster
from tao.history import AT_PS, DECISION, TOOL_END_PS, History
from tao.invariants import check
from tao.model import Params
from tao.policies import POLICIES, TOOL, WAITING
from tao.simulator import arrival_times, make_policy
from tao.workloads import Task, Turn, Workload

CALL = ("bash", "test")
PLANNING = ("tao", "previous", "oracle")
STAYING = ("sticky", "session_hash", "thunderagent", "thunderagent_paper", *PLANNING)
FEW = 2 if strategies.INTERPRETED else 10  # examples per policy where every event is looked at
MANY = 3 if strategies.INTERPRETED else 40  # where the engine plays

# A station is where a session is between two times of its turn.
STATIONS = {
    "pool": ("arrived_ps", "submitted_ps"),
    "queue": ("submitted_ps", "scheduled_ps"),
    "prefill": ("scheduled_ps", "first_token_ps"),
    "decode": ("first_token_ps", "finished_ps"),
    "tool": ("finished_ps", "tool_end_ps"),
}


class Watched(NamedTuple):
    """A run in the stepper, and what was seen of it from moment to moment."""

    history: History
    moments: list[tuple[int, dict[str, int]]]  # (time, sessions at each station from then on)
    computed: int  # tokens, by all nodes


def watch(run, policy):
    """Play a run in the stepper, check it after every event, and count; None if it cannot go on."""
    moments, computed = [], 0

    def look(cluster):
        nonlocal computed
        check(cluster)
        moments.append((cluster.now_ps, stations(cluster)))
        for node in cluster.nodes:
            if node.ends_ps is not None:
                assert node.running[0].chunk, "the request admitted first goes on in every step"
            for r in node.running:
                if (id(node), node.steps) not in counted:
                    computed += r.chunk
            counted.add((id(node), node.steps))

    counted = set()
    s, chosen = run.settings, make_policy(policy, run.settings["params"])

    def play():
        work = run.workload.fitting(s["capacity_tokens"], s["params"].reserve_tokens)
        come_ps = arrival_times(work, s["arrivals"], s.get("rate_per_s"))
        shape = (work, chosen, s["nodes"], s["workers"], s["profile"], s["capacity_tokens"])
        return Cluster(*shape, None, False, look, come_ps, s["tool_servers"]).run()

    history = outcome(play)
    return None if isinstance(history, str) else Watched(history, moments, computed)


def stations(cluster):
    """How many sessions are at each station now."""
    phase = cluster.view.phase
    count = dict.fromkeys(STATIONS, 0)
    count["pool"], count["tool"] = int((phase == WAITING).sum()), int((phase == TOOL).sum())
    for node in cluster.nodes:
        for r in (*node.running, *node.waiting):
            count["queue" if r.scheduled_ps < 0 else "decode" if r.emitted else "prefill"] += 1
    return count


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=FEW)
@given(DATA)
def test_books_balance_after_every_event(policy, data):
    run = runs.run(data)
    watched = watch(run, policy)
    if watched is not None:
        tokens_are_conserved(run.workload, watched)
        stations_obey_littles_law(watched)
        turns_leave_no_gap(watched.history)
        preemptions_are_bounded(watched.history)


def tokens_are_conserved(workload, watched):
    """Every token asked for is there; nodes computed prompts less hits, outputs, and what was lost."""
    history, by_id = watched.history, {task.id: task for task in workload.tasks}
    asked = [
        (i, j, turn.prompt_tokens, turn.prefix_tokens, turn.output_tokens)
        for i, name in enumerate(history.session_ids)
        for j, turn in enumerate(by_id[name].turns)
    ]
    got = [(t.session, t.turn, t.prompt_tokens, t.reusable_tokens, t.output_tokens) for t in history.turns]
    assert sorted(got) == asked
    # The last token of an answer is never fed back.
    assert watched.computed == sum(
        t.prompt_tokens - t.hit_tokens + t.output_tokens - 1 + t.recomputed_tokens for t in history.turns
    )


def stations_obey_littles_law(watched):
    """Who is where, as seen at each moment, is what the table of turns tells; so are the sums over time."""
    times = np.array([at_ps for at_ps, _ in watched.moments])
    assert (np.diff(times) >= 0).all()
    last = np.append(np.diff(times) > 0, True)  # a plan that takes no time makes a moment of its own
    times = times[last]
    for station, (begin, end) in STATIONS.items():
        seen = np.array([count[station] for _, count in watched.moments])[last]
        come, gone = (np.sort(watched.history.column(name)) for name in (begin, end))
        told = np.searchsorted(come, times, "right") - np.searchsorted(gone, times, "right")
        assert seen.tolist() == told.tolist(), station
        assert seen[-1] == 0
        area = sum(int(n) * int(dt) for n, dt in zip(seen, np.diff(times), strict=False))
        assert area == sum(gone.tolist()) - sum(come.tolist()), station


def turns_leave_no_gap(history):
    """The stations' times of a session add up to its stay, exactly."""
    for i in range(len(history.session_ids)):
        rows = [t for t in history.turns if t.session == i]
        at_ps = history.started_ps[i]
        for t in rows:
            assert t.arrived_ps == at_ps
            for begin, end in STATIONS.values():
                assert getattr(t, begin) == at_ps
                at_ps += getattr(t, end) - getattr(t, begin)
        assert at_ps == history.finished_ps[i] == rows[-1].finished_ps


def preemptions_are_bounded(history):
    """Each time, somebody on the node who was there before has got a token."""
    tokens = history.column("prompt_tokens") + history.column("output_tokens")
    for t, own in zip(history.turns, tokens.tolist(), strict=True):
        on_node = tokens[history.column("node") == t.node].sum()
        assert t.preemptions <= on_node - own


# Order


@settings(max_examples=MANY)
@given(DATA, st.floats(1.0, 3.0), st.sampled_from(["kv_us_per_1k", "prefill_us", "attention_us_per_1k"]))
def test_a_slower_engine_never_answers_earlier_where_the_order_is_fixed(data, factor, constant):
    """One node and no tool times: what happens is a matter of steps, not of how long they take."""
    run = runs.run(data)
    tasks = [
        dataclasses.replace(task, turns=[dataclasses.replace(t, tool_s=0.0) for t in task.turns])
        for task in run.workload.tasks
    ]
    work = dataclasses.replace(run.workload, tasks=tuple(tasks))
    run = run._replace(workload=work, settings=run.settings | {"nodes": 1, "arrivals": "closed"})
    run.settings.pop("rate_per_s", None)
    profile = run.settings["profile"]
    slower = dataclasses.replace(profile, **{constant: getattr(profile, constant) * factor})
    fast, slow = (outcome(lambda p=p: run.play("sticky", profile=p)) for p in (profile, slower))
    if isinstance(fast, str):
        return
    for name in ("session", "turn", "hit_tokens", "preemptions"):
        assert fast.column(name).tolist() == slow.column(name).tolist()
    assert fast.steps == slow.steps
    for name in ("finished_ps", "first_token_ps"):
        latencies = [h.column(name) - h.column("arrived_ps") for h in (fast, slow)]
        assert (latencies[0] <= latencies[1]).all()


@settings(max_examples=MANY)
@given(DATA)
def test_more_cache_never_lowers_the_hits_of_a_session_alone(data):
    run = runs.run(data)
    work = dataclasses.replace(run.workload, tasks=run.workload.tasks[:1])
    run = run._replace(workload=work, settings=run.settings | {"arrivals": "closed", "nodes": 1})
    run.settings.pop("rate_per_s", None)
    least = work.tasks[0].peak_tokens + run.settings["params"].reserve_tokens
    hits = [run.play("sticky", capacity_tokens=least + more).column("hit_tokens") for more in (0, 50, 5000)]
    assert (hits[0] <= hits[1]).all()
    assert (hits[1] <= hits[2]).all()


# What does not matter


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "session_hash"])
@settings(max_examples=MANY // 2)
@given(DATA)
def test_only_the_order_of_session_ids_counts_if_anything(policy, data):
    run = runs.run(data)
    ids = run.workload.ids
    if policy in PLANNING:
        new = {name: f"another-{sorted(ids).index(name):04}" for name in ids}
    else:
        new = dict(zip(ids, random.Random(0).sample(ids, len(ids)), strict=True))
    tasks = tuple(dataclasses.replace(t, id=new[t.id]) for t in run.workload.tasks)
    renamed = run._replace(workload=dataclasses.replace(run.workload, tasks=tasks))
    before, after = (outcome(lambda r=r: r.play(policy)) for r in (run, renamed))
    if isinstance(before, str):
        return
    assert after.session_ids == [new[name] for name in before.session_ids]
    after.session_ids = before.session_ids
    runs.assert_equal(before, after)


@settings(max_examples=MANY)
@given(DATA)
def test_without_capacity_limits_whoever_stays_finds_the_whole_conversation(data):
    run = runs.run(data)
    run.settings["capacity_tokens"] = 10_000_000
    block, shared = run.settings["profile"].block_tokens, run.workload.shared_prefix_tokens
    for policy in STAYING:
        history = run.play(policy)
        rows = {(t.session, t.turn): t for t in history.turns}
        for (i, j), t in rows.items():
            if j:
                before = rows[i, j - 1]
                kept = min(t.reusable_tokens, before.prompt_tokens + before.output_tokens - 1)
                assert t.hit_tokens == min(max(kept, shared), t.prompt_tokens - 1) // block * block
            assert t.promised_tokens <= 0  # it was placed once, before anything was cached


# What policies may know


def with_another_future(workload, history, at_ps, rng, tools):
    """The same workload up to a moment: answers that end after it get longer, tools (`tools`) take longer."""
    rows, peak = {(t.session, t.turn): t for t in history.turns}, max(t.peak_tokens for t in workload.tasks)
    tasks = []
    for i, task in enumerate(workload.tasks):
        turns = []
        for j, turn in enumerate(task.turns):
            if rows[i, j].finished_ps > at_ps:
                more = rng.randint(0, min(90, peak - turn.context_tokens))
                turn = dataclasses.replace(turn, output_tokens=turn.output_tokens + more)
            if turn.tool and rows[i, j].tool_end_ps > at_ps and tools:
                turn = dataclasses.replace(turn, tool_s=turn.tool_s + rng.choice((0.0, 0.5, 20.0)))
            turns.append(turn)
        tasks.append(dataclasses.replace(task, turns=tuple(turns)))
    return dataclasses.replace(workload, tasks=tuple(tasks))


def pasts(data, policy, tools=True):
    """What happened up to the middle of a run, and of one that differs only afterwards."""
    run, rng = runs.run(data), random.Random(data)
    first = outcome(lambda: run.play(policy))
    if isinstance(first, str) or len(first.session_ids) < len(run.workload.tasks):
        return None
    at_ps = int(np.median(first.column("finished_ps")))
    second = run._replace(workload=with_another_future(run.workload, first, at_ps, rng, tools)).play(policy)
    return past(first, at_ps), past(second, at_ps)


def past(history, at_ps):
    """Decisions, and turns as far as they had come, up to a moment."""
    turns = history.turn_rows.array
    turns = turns[history.column("finished_ps") <= at_ps].copy()
    turns[:, TOOL_END_PS] = np.minimum(turns[:, TOOL_END_PS], at_ps)
    decisions = history.decision_rows.array
    decisions = decisions[decisions[:, AT_PS] <= at_ps]
    moves = history.move_rows.array
    return turns.tolist(), decisions.tolist(), moves[moves[:, DECISION] < len(decisions)].tolist()


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=MANY)
@given(DATA)
def test_no_policy_knows_how_long_answers_get_or_tools_take(policy, data):
    """The oracle knows the tools that run, and nothing else."""
    both = pasts(data, policy, tools=policy != "oracle")
    assert both is None or both[0] == both[1]


@pytest.mark.parametrize(("policy", "favored"), [("oracle", ["s1", "s0"]), ("tao", ["s0", "s0"])])
def test_the_oracle_does_know_how_long_tools_take(policy, favored):
    """At 5.7 s there is room for one of two that are in their tools, and nothing else tells them apart."""
    large = (Turn(100, 0, 2, *CALL, 3.0), Turn(700, 102, 100, *CALL, 1.0), Turn(500, 0, 300))
    params = Params(reserve_tokens=0, half_life_s=0.1, quantum_tokens=1)
    let_in = []
    for tool_s in (6.5, 46.5):
        others = [(Turn(200, 0, 2, *CALL, s), Turn(210, 202, 2)) for s in (40.0, tool_s)]
        tasks = [Task(f"s{k}", turns) for k, turns in enumerate([*others, large])]
        run = by_hand(Workload("one returns", tuple(tasks), 0), params=params, capacity_tokens=890)
        first, paused, again = run.play(policy).decisions[:3]
        assert (len(first.placed), len(paused.paused)) == (3, 2)
        let_in += [name for name, _ in again.placed]
    assert let_in == favored


# Bounds


@pytest.mark.parametrize("policy", POLICIES)
def test_no_run_beats_what_the_engine_could_do_at_best(policy):
    """Throughput is at most min(W / (D + Z), 1 / s_max), here in tokens; no session beats itself alone."""
    for run in runs.numbered(2 if strategies.INTERPRETED else 25):
        history = outcome(lambda run=run: run.play(policy))
        if isinstance(history, str) or not history.end_ps:
            continue
        law, tokens = run.settings["profile"].law, sum(history.column("output_tokens").tolist())
        at_once = max(1, min(len(history.session_ids), run.settings["profile"].max_seqs))
        best = max(k / (law.host + law.base + law.experts[k]) for k in range(1, at_once + 1))
        assert tokens / history.end_ps <= run.settings["nodes"] * best * (1 + 1e-9)
        alone = law.host + law.base + law.experts[1]
        for i in range(len(history.session_ids)):
            rows = [t for t in history.turns if t.session == i]
            least = sum(t.output_tokens * alone + t.tool_end_ps - t.finished_ps for t in rows)
            assert history.finished_ps[i] - history.started_ps[i] >= least


def test_an_answer_in_the_queue_waits_for_those_before_it_and_for_nobody_else():
    """Work conservation, seen from outside: two seats, and each is taken as soon as it is free."""
    profile = dataclasses.replace(QWEN, max_seqs=2)
    run = by_hand(append_only(*[[(50, 20 + 7 * k, 0.0)] for k in range(6)]), profile=profile)
    history = run.play("sticky")
    begun, ended = (np.sort(history.column(name)) for name in ("scheduled_ps", "finished_ps"))
    assert begun[:2].tolist() == [0, 0]
    assert begun[2:].tolist() == ended[:4].tolist()
