"""Metrics of a run, against recomputation by hand and by twins that go row by row."""

from __future__ import annotations

import dataclasses
import statistics
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tao.cluster import Cluster
from tao.history import PAUSED, History, Rows, TurnRow
from tao.metrics import METRICS, TERMS, costs, measure, steady_window, waits
from tao.model import Params
from tao.policies import POLICIES
from tao.profiles import PS_PER_S
from tao.simulator import simulate
from tao.traces import open_workload


def row(session, turn, times_s, tokens=(100, 40, 10), node=0, promised=-1, reusable=0):
    times = [round(t * PS_PER_S) for t in times_s]
    prompt, hit, out = tokens
    return TurnRow(session, turn, node, *times, prompt, reusable, hit, out, 0, 0, promised)


def by_hand():
    history = History({"nodes": 2, "capacity_tokens": 500}, ["a", "b"], ["n0", "n1"])
    for turn in (
        row(1, 0, (0, 0, 0, 2, 2, 2), tokens=(100, 0, 1), node=1),
        row(0, 0, (0, 1, 2, 4, 8, 10), tokens=(100, 0, 5)),
        row(0, 1, (10, 10, 10, 11, 12, 12), tokens=(200, 100, 3), node=1, promised=150, reusable=105),
    ):
        history.turn_rows.append(turn)
    for decision in ((PS_PER_S, 2, 40, 0, 1), (2 * PS_PER_S, 1, 20, 1, 1), (3 * PS_PER_S, 1, 0, 0, 0)):
        history.decision_rows.append(decision)
    for move in ((0, 0, 0, 0), (0, 1, 1, 0), (1, 0, 1, 2), (1, 1, 1, 0), (2, 1, -1, PAUSED)):
        history.move_rows.append(move)
    history.started_ps = {0: 0, 1: 0}
    history.finished_ps = {0: 12 * PS_PER_S, 1: 2 * PS_PER_S}
    history.end_ps = 12 * PS_PER_S
    return history


def test_every_metric_by_hand():
    values = measure(by_hand())
    assert list(values) == list(METRICS)
    assert values == pytest.approx(
        {
            "task_latency_s": 7.0,
            "ttft_s": (4 + 2 + 1) / 3,
            "ttft_engine_s": (3 + 2 + 1) / 3,
            "pool_wait_s": 1 / 3,
            "wait_warm_s": 0.0,
            "wait_cold_s": (2 + 0) / 2,
            "tool_end_to_first_token_s": 1.0,
            "decode_tok_s": 9 / 12,
            "decode_tok_s_makespan": 9 / 12,
            "total_completion_s": 12.0,
            "prefix_hit_rate": 100 / 400,
            "prefix_hit_rate_with_recompute": 100 / 400,
            "credit_realized": 100 / 150,
            "pauses": 1.0,
            "preemptions": 0.0,
            "migrations": 1.0,
            "node_imbalance": 7 / 5.5 - 1,  # 7 request-seconds on n0, 4 on n1
            "planner_calls": 2.0,
            "plans_per_s": 2 / 12,
            "plan_states": 30.0,
            "fallback_share": 0.5,
            "dropped_share": 0.25,
            # a: 100 tokens for 8 s, 105 for 2, 200 for 2; b: 100 for 2
            "capacity_over_live": 1000 / ((800 + 210 + 400 + 200) / 12),
        }
    )


def test_the_steady_window_lies_between_the_first_end_and_the_last_start():
    history = by_hand()
    assert steady_window(history) == (0, history.end_ps)
    history.started_ps[2] = 6 * PS_PER_S
    assert steady_window(history) == (2 * PS_PER_S, 6 * PS_PER_S)
    # Of session 0's five tokens one comes at 4 s and half of the other four by 6 s; session 1's at 2 s.
    assert measure(history)["decode_tok_s"] == (1 + 2 + 1) / 4


def test_a_run_in_which_nothing_has_happened_has_no_means_but_counts():
    values = measure(History({"nodes": 1, "capacity_tokens": 10}, ["a"], ["n0"]))
    counts = {"total_completion_s", "pauses", "preemptions", "migrations", "planner_calls"}
    assert {name for name, x in values.items() if x is not None} == counts


# --- twins --------------------------------------------------------------------------------------


@st.composite
def histories(draw):
    """Records that no cluster would leave, but consistent: times ascend, hits are part of prompts."""
    nodes = draw(st.integers(1, 3))
    raw = draw(st.binary(min_size=8, max_size=8))
    rng = np.random.default_rng(list(raw))
    n = draw(st.integers(1, 4))
    history = History(
        {"nodes": nodes, "capacity_tokens": 3_000}, list("abcd")[:n], ["n0", "n1", "n2"][:nodes]
    )
    rows = []
    for i in range(n):
        now = history.started_ps[i] = int(rng.integers(0, 5)) * PS_PER_S
        for k in range(draw(st.integers(1, 4))):
            times = now + np.cumsum([0, *rng.choice([0, 1, 2, 7], 5)]) * PS_PER_S
            prompt, out = int(rng.integers(1, 1_000)), int(rng.integers(1, 50))
            reusable = int(rng.integers(0, prompt + 1)) if k else 0
            hit, again = int(rng.integers(0, prompt)), int(rng.choice([0, 0, 200]))
            promised = int(rng.choice([-1, 0, 300]))
            if out == 1:
                times[4:] -= times[4] - times[3]
            node = int(rng.integers(0, nodes))
            rows.append(TurnRow(i, k, node, *times, prompt, reusable, hit, out, again, again > 0, promised))
            now = int(times[5])
        rows[-1] = rows[-1]._replace(tool_end_ps=rows[-1].finished_ps)
        history.finished_ps[i] = int(rows[-1].finished_ps)
    history.end_ps = max(max(history.finished_ps.values()), 1)
    for turn in sorted(rows, key=lambda t: (t.finished_ps, t.turn)):
        history.turn_rows.append(map(int, turn))
    for k in range(draw(st.integers(0, 3))):
        history.decision_rows.append((k, 4, *rng.integers(0, 3, 2), rng.integers(0, 2)))
        for verdict in rng.integers(-1, 3, rng.integers(0, 4)):
            history.move_rows.append((k, 0, -1 if verdict == PAUSED else 0, verdict))
    return history


def mean(values, unit=1.0):
    return statistics.fmean(values) / unit if values else None


def share(part, whole):
    return part / whole if whole else None


def slowly(history):
    """`measure`, one turn and one decision at a time."""
    turns, decisions = history.turns, history.decisions
    by_session = {i: [t for t in turns if t.session == i] for i in history.finished_ps}
    warm = [t for t in turns if t.reusable_tokens and t.hit_tokens >= t.reusable_tokens / 2]
    cold = [t for t in turns if t not in warm]
    engines = [0] * len(history.node_ids)
    for t in turns:
        engines[t.node] += t.finished_ps - t.submitted_ps
    busiest = share(max(engines), mean(engines))
    begin, end = min(history.finished_ps.values()), max(history.started_ps.values())
    if begin >= end:
        begin, end = 0, history.end_ps
    tokens = 0.0
    for t in turns:
        spread = t.finished_ps - t.first_token_ps
        inside = max(0, min(t.finished_ps, end) - max(t.first_token_ps, begin))
        tokens += begin <= t.first_token_ps <= end
        tokens += (t.output_tokens - 1) * inside / spread if spread else 0
    live = 0
    for session in by_session.values():
        for t in session:
            live += t.prompt_tokens * (t.finished_ps - t.arrived_ps)
            live += (t.prompt_tokens + t.output_tokens) * (t.tool_end_ps - t.finished_ps)
    hits, prompts = sum(t.hit_tokens for t in turns), sum(t.prompt_tokens for t in turns)
    promised = [t for t in turns if t.promised_tokens > 0]
    plans = [d for d in decisions if d.planned]
    placed, dropped = (sum(len(getattr(d, part)) for d in decisions) for part in ("placed", "dropped"))
    return {
        "task_latency_s": mean(
            [history.finished_ps[i] - history.started_ps[i] for i in by_session], PS_PER_S
        ),
        "ttft_s": mean([t.first_token_ps - t.arrived_ps for t in turns], PS_PER_S),
        "ttft_engine_s": mean([t.first_token_ps - t.submitted_ps for t in turns], PS_PER_S),
        "pool_wait_s": mean([t.submitted_ps - t.arrived_ps for t in turns], PS_PER_S),
        "wait_warm_s": mean([t.scheduled_ps - t.arrived_ps for t in warm], PS_PER_S),
        "wait_cold_s": mean([t.scheduled_ps - t.arrived_ps for t in cold], PS_PER_S),
        "tool_end_to_first_token_s": mean(
            [t.first_token_ps - t.arrived_ps for t in turns if t.turn], PS_PER_S
        ),
        "decode_tok_s": tokens / (end - begin) * PS_PER_S,
        "decode_tok_s_makespan": sum(t.output_tokens for t in turns) / history.end_ps * PS_PER_S,
        "total_completion_s": history.end_ps / PS_PER_S,
        "prefix_hit_rate": hits / prompts,
        "prefix_hit_rate_with_recompute": hits / (prompts + sum(t.recomputed_tokens for t in turns)),
        "credit_realized": share(
            sum(min(t.hit_tokens, t.promised_tokens) for t in promised),
            sum(t.promised_tokens for t in promised),
        ),
        "pauses": sum(len(d.paused) for d in decisions),
        "preemptions": sum(t.preemptions for t in turns),
        "migrations": sum(a.node != b.node for s in by_session.values() for a, b in pairwise(s)),
        "node_imbalance": None if busiest is None else busiest - 1,
        "planner_calls": len(plans),
        "plans_per_s": len(plans) / history.end_ps * PS_PER_S,
        "plan_states": mean([d.states for d in plans]),
        "fallback_share": share(sum(d.reason != "" for d in plans), len(plans)),
        "dropped_share": share(dropped, placed + dropped),
        "capacity_over_live": share(
            history.settings["nodes"] * history.settings["capacity_tokens"] * history.end_ps, live
        ),
    }


def assert_same(values, twin):
    assert list(values) == list(METRICS)
    for name, value in values.items():
        assert value == (None if twin[name] is None else pytest.approx(twin[name], rel=1e-9, abs=1e-12)), name


@settings(max_examples=150)
@given(histories())
def test_measuring_in_columns_equals_measuring_row_by_row(history):
    assert_same(measure(history), slowly(history))


@pytest.mark.parametrize("policy", ["tao", "sticky", "thunderagent"])
def test_measuring_a_crowded_run_equals_measuring_it_row_by_row(policy):
    history = simulate("swe-lite", policy, 2, 12, tasks=16, capacity_tokens=45_000)
    assert_same(measure(history), slowly(history))
    assert measure(history)["preemptions" if policy == "sticky" else "pauses"] > 0


def test_measuring_eleven_thousand_turns_takes_a_few_milliseconds():
    history = History({"nodes": 2, "capacity_tokens": 10**5}, [str(i) for i in range(300)], ["n0", "n1"])
    small = simulate("swe-lite", "sticky", 2, 16, tasks=16, capacity_tokens=10**5)
    for k in range(11_000):
        history.turn_rows.append(small.turn_rows.array[k % len(small.turn_rows)])
    history.started_ps, history.finished_ps, history.end_ps = (
        small.started_ps,
        small.finished_ps,
        small.end_ps,
    )
    measure(history)
    took = []
    for _ in range(7):
        begin = time.process_time()
        measure(history)
        took.append(time.process_time() - begin)
    assert min(took) < 0.01  # about 1.5 ms on a machine of 2024


def test_the_parts_of_a_turn_add_up_exactly():
    history = simulate("swe-lite", "tao", 2, 8, tasks=8, capacity_tokens=45_000)
    for t in history.turns:
        pool, queue = t.submitted_ps - t.arrived_ps, t.scheduled_ps - t.submitted_ps
        prefill, decode, tool = (
            t.first_token_ps - t.scheduled_ps,
            t.finished_ps - t.first_token_ps,
            t.tool_end_ps - t.finished_ps,
        )
        assert min(pool, queue, prefill, decode, tool) >= 0
        assert pool + queue + prefill + decode + tool == t.tool_end_ps - t.arrived_ps


# --- who waits ----------------------------------------------------------------------------------


@settings(max_examples=50)
@given(histories())
def test_the_table_of_waits_accounts_for_every_turn(history):
    table, turns = waits(history), history.turns
    assert table["turns"].sum() == len(turns)
    assert table["decile"].is_monotonic_increasing
    assert table["decile"].between(1, 10).all()
    waited = (table["wait_mean_s"] * table["turns"]).sum()
    assert waited == pytest.approx(sum(t.scheduled_ps - t.arrived_ps for t in turns) / PS_PER_S)
    # No decile holds more than a tenth and a turn of those that are smaller than its largest.
    for decile, group in table.groupby("decile"):
        most = group["most_tokens"].iloc[0]
        assert (
            sum(t.prompt_tokens < most for t in turns)
            < decile * len(turns) / 10
            <= sum(t.prompt_tokens <= most for t in turns)
        )


def test_waits_by_hand():
    history = History({"nodes": 1, "capacity_tokens": 500}, ["a"], ["n0"])
    for k in range(20):
        warm = k % 2
        times = (0, 0, 2 * k, 2 * k + 1, 99, 99)
        history.turn_rows.append(row(0, k, times, (10 * k + 10, warm * k, 5), reusable=2 * k * warm))
    table = waits(history)
    assert table["turns"].tolist() == [1] * 20  # each decile holds a cold and a warm turn
    last = table.iloc[-1]
    assert (last["decile"], last["most_tokens"], last["cache"]) == (10, 200, "warm")
    assert (last["wait_mean_s"], last["ttft_mean_s"], last["wait_p95_s"]) == (38.0, 39.0, 38.0)


def test_a_run_without_turns_has_an_empty_table_of_waits():
    assert waits(History({"nodes": 1, "capacity_tokens": 500}, ["a"], ["n0"])).empty


# --- what memory is used for --------------------------------------------------------------------


def slow_costs(history):
    """`costs`, one node and one stretch of time after the other: token-picoseconds by term."""
    turns, capacity = history.turns, history.settings["capacity_tokens"]
    shared = max([t.hit_tokens for t in turns if t.turn == 0])
    used = dict.fromkeys(TERMS, 0.0)
    for b in range(len(history.node_ids)):
        here = [t for t in turns if t.node == b]
        computed = sum(max(t.prompt_tokens - t.hit_tokens, 1) for t in here)
        pace = sum(t.first_token_ps - t.scheduled_ps for t in here) / computed if here else 0
        spans = []
        for t in here:
            own = max(t.prompt_tokens - shared, 0)
            missing = max(t.prompt_tokens - t.hit_tokens, 1)
            lost = min(max(t.reusable_tokens - t.hit_tokens, 0), missing) / missing
            turned = max(t.finished_ps - t.recomputed_tokens * pace, t.first_token_ps)
            spans.append((t.scheduled_ps, t.first_token_ps, "prefill", own * (1 - lost)))
            spans.append((t.scheduled_ps, t.first_token_ps, "recompute", own * lost))
            spans.append((t.first_token_ps, turned, "decode", own + t.output_tokens / 2))
            spans.append((turned, t.finished_ps, "recompute", own + t.output_tokens / 2))
            earlier = [x for x in here if x.session == t.session and x.turn < t.turn]
            if earlier:
                since = max(earlier, key=lambda x: x.turn).finished_ps
                spans.append((since, t.scheduled_ps, "caching", max(t.hit_tokens - shared, 0)))
        for begin, end in pairwise(sorted({edge for s in spans for edge in s[:2]})):
            now = [(term, tokens) for since, until, term, tokens in spans if since <= begin and end <= until]
            whole = sum(tokens for _, tokens in now)
            for term, tokens in now:
                used[term] += tokens * min(1.0, (capacity - shared) / max(whole, 1.0)) * (end - begin)
        used["caching"] += shared * history.end_ps
    used["unused"] = capacity * len(history.node_ids) * history.end_ps - sum(used.values())
    return used


@settings(max_examples=150)
@given(histories())
def test_costs_are_those_of_the_twin_never_negative_and_sum_to_all_memory(history):
    table = costs(history)
    total = 3_000 * history.settings["nodes"] * history.end_ps / PS_PER_S
    assert table["term"].tolist() == list(TERMS)
    assert table["token_s"].sum() == pytest.approx(total, rel=1e-12)
    assert table["share"].sum() == pytest.approx(1.0, rel=1e-12)
    assert (table["token_s"] >= -1e-9 * total).all()
    twin = slow_costs(history)
    assert table["token_s"].tolist() == pytest.approx(
        [twin[term] / PS_PER_S for term in TERMS], rel=1e-9, abs=1e-9 * total
    )


def test_costs_by_hand():
    history = History({"nodes": 1, "capacity_tokens": 1_000}, ["a"], ["n0"])
    history.turn_rows.append(row(0, 0, (0, 0, 0, 2, 10, 20), tokens=(100, 0, 20)))
    # Of the 120 tokens of the conversation 80 are found; 40 are computed again, and 40 are new.
    history.turn_rows.append(row(0, 1, (20, 20, 20, 21, 31, 31), tokens=(160, 80, 10), reusable=120))
    history.started_ps, history.finished_ps = {0: 0}, {0: 31 * PS_PER_S}
    history.end_ps = 31 * PS_PER_S
    used = costs(history).set_index("term")["token_s"]
    assert used.to_dict() == pytest.approx(
        {
            "decode": 8 * 110 + 10 * 165,
            "prefill": 2 * 100 + 1 * 80,
            "recompute": 1 * 80,
            "caching": 10 * 80,
            "unused": 31_000 - 880 - 1650 - 280 - 80 - 800,
        }
    )


def held_in_truth(policy, capacity):
    """A run, and the shares of its memory that running requests and idle prefixes really held."""
    work = open_workload("swe-lite", 0, 16).fitting(capacity, 512)
    seen, since = {"running": 0, "idle": 0}, [0, 0, 0]

    def look(cluster):
        before, running, idle = since
        seen["running"] += (cluster.now_ps - before) * running
        seen["idle"] += (cluster.now_ps - before) * idle
        chunks = sum(r.chunk for node in cluster.nodes for r in node.running)
        pinned = sum(node.pinned_tokens for node in cluster.nodes)
        since[:] = cluster.now_ps, pinned + chunks, sum(node.cache.tokens for node in cluster.nodes)

    cluster = Cluster(work, POLICIES[policy](Params()), 2, 12, capacity_tokens=capacity, after_event=look)
    history = cluster.run()
    history.settings = {"nodes": 2, "capacity_tokens": capacity}
    total = 2 * capacity * history.end_ps
    return history, seen["running"] / total, seen["idle"] / total


@pytest.mark.parametrize(
    ("policy", "capacity", "error"),
    [("tao", 60_000, 0.005), ("tao", 200_000, 0.005), ("sticky", 45_000, 0.06)],
)
def test_costs_are_close_to_what_nodes_really_held(policy, capacity, error):
    history, running, idle = held_in_truth(policy, capacity)
    preempted = history.column("preemptions").sum()
    assert (preempted > 50) == (error > 0.01)
    used = costs(history).set_index("term")["share"]
    assert used[["decode", "prefill", "recompute"]].sum() == pytest.approx(running, abs=error)
    assert (
        used["caching"] <= idle + 140 / capacity + error
    )  # the shared prefix is set aside, not in the cache


# Live runs: unknown is not 0

NEED_HITS = {"wait_warm_s", "wait_cold_s", "prefix_hit_rate", "prefix_hit_rate_with_recompute"}


def untold(history, which):
    """The same run if the server had not told the hits of these turns."""
    array = history.turn_rows.array.copy()
    array[which, TurnRow._fields.index("hit_tokens")] = -1
    return dataclasses.replace(history, turn_rows=Rows(len(TurnRow._fields), array))


@pytest.fixture(scope="module")
def some_run():
    return simulate("swe-lite", "tao", nodes=1, workers=4, tasks=4, capacity_tokens=30_000)


@given(data=st.data())
@settings(max_examples=30)
def test_what_a_server_did_not_tell_makes_a_metric_unknown_and_no_other(some_run, data):
    count = len(some_run.turn_rows)
    which = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=5)))
    turns = some_run.turns
    unknown = set(NEED_HITS)
    if all(turns[k].reusable_tokens == 0 for k in which):  # nothing to find: cold, whatever it says
        unknown -= {"wait_warm_s", "wait_cold_s"}
    if any(turns[k].promised_tokens > 0 for k in which):
        unknown.add("credit_realized")
    told, found = measure(some_run), measure(untold(some_run, which))
    assert all(told[name] is not None for name in NEED_HITS | {"credit_realized"})
    assert found == told | dict.fromkeys(unknown)


def test_who_waited_warm_or_cold_is_unknown_where_the_server_did_not_tell(some_run):
    which = [k for k, turn in enumerate(some_run.turns) if turn.reusable_tokens][:7]
    before, after = waits(some_run), waits(untold(some_run, which))
    assert set(before["cache"]) == {"cold", "warm"}
    assert after[after["cache"] == "unknown"]["turns"].sum() == len(which)
    assert after["turns"].sum() == before["turns"].sum()
    assert costs(untold(some_run, which[:1]))[["token_s", "share"]].isna().all(axis=None)


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_run_in_which_nothing_came_of_anything_has_no_averages(nodes):
    names = [f"n{b}" for b in range(nodes)]
    history = History({"nodes": nodes, "capacity_tokens": 500}, ["a", "b"], names)
    history.started_ps, history.failed = {0: 5}, {0: "the run was stopped", 1: "refused"}
    for end_ps in (0, PS_PER_S):
        history.end_ps = end_ps
        values = measure(history)
        counts = {"pauses", "preemptions", "migrations", "planner_calls", "total_completion_s"}
        empty = {name for name in METRICS if values[name] is None}
        assert set(METRICS) - empty - counts <= {"decode_tok_s", "decode_tok_s_makespan", "plans_per_s"}
        assert all(values[name] in (0.0, 1.0) for name in set(METRICS) - empty)
        assert len(waits(history)) == 0
        assert costs(history)["token_s"].sum() == 500 * nodes * end_ps / PS_PER_S


def test_failed_sessions_count_with_the_turns_they_had():
    history = by_hand()
    del history.finished_ps[0]
    history.failed[0] = "canceled"
    values, whole = measure(history), measure(by_hand())
    assert values["task_latency_s"] == 2.0
    assert {k: v for k, v in values.items() if "task_latency" not in k and "decode" not in k} == {
        k: v for k, v in whole.items() if "task_latency" not in k and "decode" not in k
    }
