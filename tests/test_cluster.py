"""The cluster stepper: closed forms, invariants under every policy, and what a bad policy is told."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tao.cluster import Cluster
from tao.invariants import check
from tao.model import InputError, Params, ToolCall
from tao.policies import HOLD, POLICIES, TOOL, WAITING, Decision, Sticky
from tao.profiles import PROFILES, PS_PER_S
from tao.simulator import simulate
from tao.workloads import WORKLOADS, Task, Turn, Workload

QWEN = PROFILES["qwen3-32b-2xh100"]


def work(*sessions: list[tuple[int, int, float]]) -> Workload:
    """Append-only sessions from (new tokens, output tokens, tool seconds) per turn."""
    tasks = []
    for k, rows in enumerate(sessions):
        context, turns = 0, []
        for j, (new, out, tool_s) in enumerate(rows):
            last = j == len(rows) - 1
            call = {} if last else {"tool": "bash", "tool_class": "test", "tool_s": tool_s}
            turns.append(Turn(context + new, context, out, **call))
            context += new + out
        tasks.append(Task(f"s{k:02}", tuple(turns)))
    return Workload("by hand", tuple(tasks), 0)


@st.composite
def workloads(draw):
    turn = st.tuples(st.integers(1, 600), st.integers(1, 40), st.sampled_from([0.0, 0.2, 3.0, 45.0]))
    return work(*draw(st.lists(st.lists(turn, min_size=1, max_size=6), min_size=1, max_size=8)))


def run(workload, policy, **kw):
    settings_ = {
        "nodes": 2,
        "workers": 4,
        "capacity_tokens": 5000,
        "debug": True,
        "params": Params(reserve_tokens=64),
    }
    return simulate(workload, policy, **(settings_ | kw))


@pytest.mark.parametrize("policy", ["sticky", "thunderagent"])
def test_one_session_alone_equals_the_closed_form(policy):
    law = QWEN.law
    history = run(work([(1000, 3, 2.0), (50, 4, 0.5), (200, 2, 0.0)]), policy, workers=1)
    expected, held, context = 0, 0, 0
    for new, out, tool_s in [(1000, 3, 2.0), (50, 4, 0.5), (200, 2, 0.0)]:
        prompt = context + new
        hit = min(held, prompt - 1) // 16 * 16
        expected += law.step_ps(0, 0, [(prompt - hit, hit)])
        expected += sum(law.step_ps(1, prompt + k) for k in range(out - 1))
        expected += round(tool_s * PS_PER_S)
        context, held = prompt + out, prompt + out - 1
    assert history.end_ps == expected


def test_tao_adds_its_planning_cost_to_the_first_placement_and_nothing_else():
    rows = [(1000, 3, 2.0), (50, 4, 0.5), (200, 2, 0.0)]
    alone = run(work(rows), "sticky", workers=1).end_ps
    params = Params(plan_cost_s=0.25, plan_cost_per_state_s=0.0, reserve_tokens=64)
    history = run(work(rows), "tao", workers=1, params=params)
    assert history.end_ps == alone + PS_PER_S // 4
    assert history.turns[0].submitted_ps == PS_PER_S // 4


@settings(max_examples=150, deadline=None)
@given(
    workloads(),
    st.sampled_from(sorted(POLICIES)),
    st.integers(1, 3),
    st.integers(1, 8),
    st.integers(4200, 9000),
)
def test_every_policy_finishes_with_all_books_balanced(workload, policy, nodes, workers, capacity):
    history = run(workload, policy, nodes=nodes, workers=workers, capacity_tokens=capacity)
    kept = {t.session for t in history.turns}
    by_id = {task.id: task for task in workload.tasks}
    assert len(kept) == len(history.session_ids)
    for i, name in enumerate(history.session_ids):
        rows = [t for t in history.turns if t.session == i]
        turns = by_id[name].turns
        assert [t.prompt_tokens for t in rows] == [t.prompt_tokens for t in turns]
        assert sum(t.output_tokens for t in rows) == sum(t.output_tokens for t in turns)
        assert rows[0].arrived_ps == history.started_ps[i]
        assert rows[-1].tool_end_ps == history.finished_ps[i]
        for a, b in pairwise(rows):
            assert a.tool_end_ps == b.arrived_ps  # a turn's times leave no gap
        assert all(0 <= t.hit_tokens < t.prompt_tokens for t in rows)


@settings(max_examples=60, deadline=None)
@given(workloads(), st.sampled_from(sorted(POLICIES)))
def test_the_live_contexts_obey_littles_law(workload, policy):
    """The integral over time of what is on the cluster is the sum of each session's stay."""
    history = run(workload, policy)
    area = 0
    for i in range(len(history.session_ids)):
        rows = [t for t in history.turns if t.session == i]
        for a, b in zip(rows, [*rows[1:], None], strict=True):
            area += a.prompt_tokens * (a.finished_ps - a.arrived_ps)
            if b is not None:
                area += (a.prompt_tokens + a.output_tokens) * (b.arrived_ps - a.finished_ps)
    assert history.live_token_ps == area


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_same_arguments_give_the_same_history(policy):
    first, again = (run("swe-lite", policy, tasks=6, workers=6, capacity_tokens=60_000) for _ in range(2))
    assert first.turns == again.turns
    assert first.decisions == again.decisions


def test_without_capacity_limits_all_policies_find_the_whole_prefix():
    rates = []
    for policy in POLICIES:
        history = run("swe-lite", policy, tasks=5, workers=5, capacity_tokens=10_000_000)
        rates.append([(t.session, t.turn, t.hit_tokens) for t in sorted(history.turns)])
    assert rates[0] == rates[1] == rates[2]


def test_a_snapshot_in_the_middle_is_rebuilt_by_running_again():
    shape = {"nodes": 2, "workers": 12, "capacity_tokens": 60_000}
    kept = simulate("swe-lite", "tao", tasks=14, keep_snapshots=True, **shape)
    snapshots = [d.snapshot for d in kept.decisions if d.snapshot]
    assert len(snapshots) > 10
    for snapshot in snapshots[:: len(snapshots) // 5]:
        cluster = Cluster(WORKLOADS["swe-lite"](0, 14), POLICIES["tao"](Params()), **shape)
        cluster.run(until_s=snapshot.now_s)
        assert cluster.snapshot() == snapshot


def test_step_by_step_is_the_same_as_run():
    workload = work([(400, 20, 1.0), (30, 5, 0.0)], [(300, 10, 0.1), (60, 9, 0.0)])
    stepped = Cluster(workload, Sticky(Params()), 1, 2)
    while stepped.step():
        check(stepped)
    assert stepped.history.turns == Cluster(workload, Sticky(Params()), 1, 2).run().turns


def test_sticky_spreads_equal_sessions_over_equal_nodes():
    history = run(work(*[[(500, 5, 0.0)]] * 4), "sticky", nodes=2)
    assert sorted(np.bincount([t.node for t in history.turns]).tolist()) == [2, 2]


def test_equal_sessions_in_lock_step_equal_the_closed_form():
    law = QWEN.law
    history = run(work(*[[(200, 4, 0.0)]] * 3), "sticky", nodes=1)
    expected = law.step_ps(0, 0, [(200, 0)] * 3) + sum(law.step_ps(3, 3 * (200 + k)) for k in range(3))
    assert [t.finished_ps for t in history.turns] == [expected] * 3


@pytest.mark.parametrize("order", [(7000, 100, 90), (90, 100, 7000)])
def test_requests_of_one_moment_share_a_batch_whatever_their_order(order):
    history = run(work(*[[(n, 2, 0.0)] for n in order]), "sticky", nodes=1, capacity_tokens=20_000)
    assert {t.scheduled_ps for t in history.turns} == {0}
    assert len({t.first_token_ps for t in history.turns}) == 1


@settings(max_examples=150, deadline=None)
@given(workloads(), st.sampled_from(sorted(POLICIES)), st.integers(4000, 6000))
def test_tokens_are_conserved(workload, policy, capacity):
    """What the engines computed is prompts and outputs, less hits, plus what preemption made them repeat."""
    computed = {}

    def count(cluster):
        for node in cluster.nodes:
            for r in node.running:
                computed[node, r, node.ends_ps] = r.chunk

    kw = {"nodes": 2, "workers": 6, "capacity_tokens": capacity, "params": Params(reserve_tokens=64)}
    cluster = Cluster(workload.fitting(capacity, 64), POLICIES[policy](kw["params"]), after_event=count, **kw)
    history = cluster.run()
    expected = sum(
        t.prompt_tokens - t.hit_tokens + t.output_tokens - 1 + t.recomputed_tokens for t in history.turns
    )
    assert sum(computed.values()) == expected


def test_a_rewritten_conversation_finds_no_older_version_of_itself_on_another_node():
    class ThereAndBack(Sticky):
        def route(self, view, i):
            return (0, 1, 0)[view.turn[i]]

        def on_finish(self, view, i):
            view.leaving[i] = 1

    call = {"tool": "bash", "tool_class": "test", "tool_s": 1.0}
    turns = (Turn(1000, 0, 9, **call), Turn(1000, 100, 10, **call), Turn(1100, 1010, 5))
    history = run(Workload("rewritten", (Task("a", turns),), 0), ThereAndBack(Params()), workers=1)
    assert [t.hit_tokens for t in history.turns] == [0, 0, 96]


def test_thunderagent_counts_an_answer_once():
    seen = []

    class Watch(POLICIES["thunderagent"]):
        def tick(self, view):
            seen.append((int(view.context_tokens[0]), int(view.streamed_tokens[0]), int(view.phase[0])))
            return super().tick(view)

    run(work([(1000, 500, 20.0), (10, 5, 0.0)]), Watch(Params()), workers=1)
    acting = [(context, streamed) for context, streamed, phase in seen if phase == TOOL]
    assert acting
    assert set(acting) == {(1500, 0)}
    answering = [streamed for _, streamed, phase in seen if phase == 2]
    assert all(0 < streamed < 500 for streamed in answering)


def test_tao_does_not_leave_a_session_out_that_fits_but_for_rounding():
    history = run(work([(9400, 10, 0.0)]), "tao", capacity_tokens=10_000, params=Params(), workers=1)
    assert len(history.finished_ps) == 1


def test_a_slower_engine_never_finishes_a_session_earlier():
    slow = dataclasses.replace(QWEN, kv_us_per_1k=90.0, prefill_us=80.0)
    ends = [run(work([(900, 9, 1.0), (90, 9, 0.0)]), "sticky", profile=p).end_ps for p in (QWEN, slow)]
    assert ends[0] < ends[1]


def test_policies_do_not_see_tool_times_or_answer_lengths():
    seen = []

    class Nosy(Sticky):
        def route(self, view, i):
            seen.append((sorted(view.__slots__), view.tools))
            return super().route(view, i)

        def tick(self, view):
            for i, call in view.tools.items():
                assert call.finished_s is None
                assert view.phase[i] == TOOL
            return Decision()

    run(work([(500, 5, 7.0), (20, 5, 0.0)]), Nosy(Params()))
    assert seen
    assert not {"tool_s", "output_tokens", "turns"} & set(seen[0][0])


def test_sessions_larger_than_a_node_are_left_out_and_counted_or_an_error():
    history = run(work([(9000, 5, 0.0)], [(500, 5, 0.0)]), "sticky")
    assert history.session_ids == ["s01"]
    assert any("left out" in note for note in history.notes)
    with pytest.raises(InputError, match="s00"):
        run(work([(9000, 5, 0.0)], [(500, 5, 0.0)]), "sticky", strict=True)


class Lazy(Sticky):
    """Never places anybody."""

    def route(self, view, i):
        return HOLD


def test_a_policy_that_places_nobody_is_told_so():
    with pytest.raises(
        InputError, match=r"cannot go on .* 1 sessions wait.*'s00' needs 500 tokens.*hold 5,000"
    ):
        run(work([(500, 5, 0.0)]), Lazy(Params()), nodes=1)


def test_running_on_is_told_so_as_well():
    cluster = Cluster(work([(500, 5, 0.0)]), Lazy(Params()), 1, 1)
    with pytest.raises(InputError, match="cannot go on"):
        cluster.run()


def test_a_policy_may_place_sessions_of_the_pool_only_and_each_once():
    class Eager(Lazy):
        placements = ()

        def tick(self, view):
            return Decision(list(self.placements))

    for placements, name in (
        ([(1, 0)], "'s01'"),
        ([(0, 0), (0, 1)], "'s00'"),
        ([(7, 0)], "7"),
        ([(-1, 0)], "-1"),
    ):
        policy = Eager(Params())
        policy.placements = placements
        with pytest.raises(InputError, match=f"placed session {name}, which is not in the waiting pool"):
            run(work([(500, 5, 0.0)], [(500, 5, 0.0)]), policy, workers=1)


def test_a_periodic_planner_never_plans_twice_at_a_time():
    class Periodic(POLICIES["tao"]):
        period_s = 0.05

    params = Params(plan_cost_s=1.0, reserve_tokens=64)
    history = run(work([(500, 5, 2.0), (9, 2, 0.0)]), Periodic(params), params=params)
    assert history.turns[0].submitted_ps >= PS_PER_S


def test_a_run_beyond_the_end_of_time_is_refused():
    long = [(10, 1, 900_000.0)] * 7
    with pytest.raises(InputError, match="beyond 4,611,686 simulated seconds"):
        run(work(long), "sticky")


def test_a_periodic_policy_that_places_nobody_is_told_so_too():
    class Periodic(Lazy):
        period_s = 60.0

    with pytest.raises(InputError, match="cannot go on"):
        run(work([(500, 5, 0.0)]), Periodic(Params()))


def test_a_tick_that_returns_nothing_is_told_what_to_return():
    class Forgetful(Sticky):
        def tick(self, view):
            return None

    with pytest.raises(InputError, match="tick returned None; it must return a Decision"):
        run(work([(500, 5, 0.0)]), Forgetful(Params()))


def test_a_policy_that_names_an_unknown_node_is_told_which_there_are():
    class Wrong(Sticky):
        def route(self, view, i):
            return 7

    with pytest.raises(InputError, match="'s00' to node 7; there are nodes 0 to 1"):
        run(work([(500, 5, 0.0)]), Wrong(Params()))


@pytest.mark.parametrize(
    ("name", "value"), [("nodes", 0), ("workers", 0), ("capacity_tokens", -5), ("nodes", 1.5)]
)
def test_unusable_numbers_are_refused(name, value):
    with pytest.raises(InputError, match=f"{name} is {value}; it must be a whole number from 1"):
        run(work([(500, 5, 0.0)]), "sticky", **{name: value})


def test_an_unknown_policy_or_profile_is_answered_with_the_list():
    with pytest.raises(InputError, match="'fifo'; it must be one of tao, thunderagent, sticky"):
        run(work([(5, 5, 0.0)]), "fifo")
    with pytest.raises(InputError, match="'h100'; it must be one of qwen3"):
        run(work([(5, 5, 0.0)]), "sticky", profile="h100")


# --- ThunderAgent, mode code -------------------------------------------------------------------


def pool_view(contexts, capacity, resident=None, phase=WAITING, turn=3):
    n = len(contexts)
    cluster = Cluster(work(*[[(1, 1, 0.0)]] * n), Lazy(Params()), len(capacity), n)
    view = cluster.view
    view.capacity_tokens[:] = capacity
    view.context_tokens[:] = contexts
    view.phase[:] = phase
    view.turn[:] = turn
    view.resident[:] = -1 if resident is None else resident
    return view


def test_thunderagent_starves_the_large_one():
    view = pool_view([4000, 4000, 4000, 4000, 9000], [10_000, 10_000])
    placed = dict(POLICIES["thunderagent"](Params()).tick(view).placements)
    assert sorted(placed) == [0, 1, 2, 3]
    assert sorted(placed.values()) == [0, 0, 1, 1]


def test_thunderagent_marks_everybody_when_answering_sessions_overflow_a_little():
    view = pool_view([1800, 1900, 2000, 2100, 2100], [10_000], resident=0, phase=2)
    assert POLICIES["thunderagent"](Params()).tick(view).pauses == [0, 1, 2, 3, 4]


def test_thunderagent_pauses_the_smallest_in_a_tool_first():
    view = pool_view([6000, 2000, 1000, 2500], [10_000], resident=0, phase=TOOL)
    assert POLICIES["thunderagent"](Params()).tick(view).pauses == [2, 1]


def test_thunderagent_resumes_answering_before_new_before_acting():
    view = pool_view([3000, 3000, 3000], [3200], turn=0)
    view.turn[:] = [5, 0, 5]
    view.phase[:] = [TOOL, WAITING, WAITING]
    policy = POLICIES["thunderagent"](Params())
    assert policy.tick(view).placements == [(2, 0)]
    view.phase[2] = 4
    assert policy.tick(view).placements == [(1, 0)]


# --- TAO's pause rule ---------------------------------------------------------------------------


def test_tao_marks_no_more_answering_sessions_than_it_has_to():
    view = pool_view([3000, 2000, 2500, 2600], [10_000], resident=0, phase=2)
    policy = POLICIES["tao"](Params(reserve_tokens=100))
    assert policy.tick(view).pauses == [1]
    view.leaving[1] = 1  # it will make the room; nobody else has to go
    assert policy.tick(view).pauses == []


def test_tao_pauses_the_smallest_in_a_tool_before_anybody_who_answers():
    view = pool_view([1000, 4000, 3000, 2500], [10_000], resident=0, phase=TOOL)
    view.phase[0] = 2
    view.tools = {i: ToolCall("bash", 0.0) for i in (1, 2, 3)}
    assert POLICIES["tao"](Params(reserve_tokens=0)).tick(view).pauses == [3]
