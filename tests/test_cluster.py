"""The cluster stepper: stories of a few sessions, policies of one's own, and what a bad one is told."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from runs import QWEN, append_only

from tao import state
from tao.cluster import Cluster
from tao.invariants import check
from tao.model import InputError, Params
from tao.policies import HOLD, POLICIES, REASONING, TOOL, Decision
from tao.profiles import PS_PER_S
from tao.simulator import simulate
from tao.view import View
from tao.workloads import WORKLOADS, Task, Turn, Workload

CALL = ("bash", "test", 1.0)


class FewestSessions:
    """A policy of one's own, in plain Python: what `sticky` does."""

    period_s = None
    gap_s = 0.0

    def __init__(self, params=None):
        self.params = params

    def route(self, view, i):
        return int(np.argmin(view.residents))

    def on_finish(self, view, i):
        pass

    def tick(self, view):
        return Decision()


class Lazy(FewestSessions):
    """Never places anybody."""

    def route(self, view, i):
        return HOLD


def run(workload, policy, **kw):
    shape = {"nodes": 2, "workers": 4, "capacity_tokens": 5000, "params": Params(reserve_tokens=64)}
    return simulate(workload, policy, **(shape | {"debug": True} | kw))


# Placing


def test_sticky_spreads_equal_sessions_over_equal_nodes():
    history = run(append_only(*[[(500, 5, 0.0)]] * 4), "sticky")
    assert np.bincount(history.column("node")).tolist() == [2, 2]


def test_a_policy_in_plain_python_runs_like_the_compiled_one():
    rows = [(700, 20, 0.3), (90, 5, 4.0), (60, 30, 0.0), (1, 1, 0.0)]
    own, compiled = (run(append_only(*[rows] * 9), policy) for policy in (FewestSessions, "sticky"))
    assert own.turns == compiled.turns
    assert own.settings["policy"] == "FewestSessions"


@pytest.mark.parametrize("order", [(7000, 100, 90), (90, 100, 7000)])
def test_requests_of_one_moment_share_a_batch_whatever_their_order(order):
    history = run(append_only(*[[(n, 2, 0.0)] for n in order]), "sticky", nodes=1, capacity_tokens=20_000)
    assert set(history.column("scheduled_ps")) == {0}
    assert len(set(history.column("first_token_ps"))) == 1


def test_a_rewritten_conversation_finds_no_older_version_of_itself_on_another_node():
    class ThereAndBack(FewestSessions):
        def route(self, view, i):
            return (0, 1, 0)[view.turn[i]]

        def on_finish(self, view, i):
            view.leaving[i] = 1

    turns = (Turn(1000, 0, 9, *CALL), Turn(1000, 100, 10, *CALL), Turn(1100, 1010, 5))
    history = run(Workload("rewritten", (Task("a", turns),), 0), ThereAndBack, workers=1)
    assert history.column("hit_tokens").tolist() == [0, 0, 96]


def test_tao_adds_its_planning_cost_to_the_first_placement_and_nothing_else():
    rows = [(1000, 3, 2.0), (50, 4, 0.5), (200, 2, 0.0)]
    alone = run(append_only(rows), "sticky", workers=1).end_ps
    params = Params(plan_cost_s=0.25, plan_cost_per_state_s=0.0, reserve_tokens=64)
    history = run(append_only(rows), "tao", workers=1, params=params)
    assert history.end_ps == alone + PS_PER_S // 4
    assert history.column("submitted_ps")[0] == PS_PER_S // 4


def test_tao_does_not_leave_a_session_out_that_fits_but_for_rounding():
    history = run(append_only([(9400, 10, 0.0)]), "tao", capacity_tokens=10_000, params=Params(), workers=1)
    assert len(history.finished_ps) == 1


def test_only_the_first_prompt_on_a_node_computes_the_shared_prefix():
    turns = (Turn(700, 0, 5),)
    work = Workload("shared", tuple(Task(f"s{k}", turns) for k in range(4)), 0, shared_prefix_tokens=640)
    history = run(work, "sticky", workers=2)
    assert history.column("hit_tokens").tolist() == [0, 0, 640, 640]


def test_two_tool_servers_run_two_tools_at_a_time_in_order_of_the_calls():
    work = append_only(*[[(100 + k, 2, 3.0), (5, 2, 0.0)] for k in range(5)])
    history = run(work, "sticky", nodes=1, workers=5, tool_servers=2)
    finished = history.column("finished_ps")[0]
    waves = [(t - finished) / PS_PER_S for t in history.column("tool_end_ps")[:5]]
    assert waves == [3.0, 3.0, 6.0, 6.0, 9.0]


def test_sessions_come_when_they_were_recorded_whatever_the_number_of_workers():
    tasks = tuple(Task(f"s{k}", (Turn(100, 0, 2),), at) for k, at in enumerate((0.5, 0.5, 7.0)))
    history = run(Workload("recorded", tasks, 0), "sticky", workers=1, arrivals="trace")
    assert list(history.started_ps.values()) == [PS_PER_S // 2, PS_PER_S // 2, 7 * PS_PER_S]


# Plans that take their time


class Planner(Lazy):
    """Proposes both sessions at once, for node 0; the plan takes a second."""

    def __init__(self, params):
        self.asked = 0

    def tick(self, view):
        self.asked += 1
        if self.asked > 1:
            return Decision([(int(i), 0) for i in view.pool], cost_s=0.0)
        return Decision([(1, 0), (0, 0)], cost_s=1.0)


def test_placements_are_rechecked_when_the_plan_is_there_the_first_ones_first():
    work = append_only([(3000, 5, 0.0)], [(3000, 5, 0.0)])
    history = run(work, Planner, nodes=1)
    first = history.decisions[0]
    assert first.at_ps == PS_PER_S
    assert (first.placed, first.dropped) == ((("s001", "n0"),), (("s000", "n0", "would overflow"),))


def test_a_periodic_planner_never_plans_twice_at_a_time():
    params = Params(plan_cost_s=1.0, reserve_tokens=64)
    periodic = dataclasses.replace(POLICIES["tao"](params), period_s=0.05)
    history = run(append_only([(500, 5, 2.0), (9, 2, 0.0)]), periodic, params=params)
    assert history.column("submitted_ps")[0] >= PS_PER_S
    assert (np.diff([d.at_ps for d in history.decisions]) >= PS_PER_S).all()


# TAO's pause rule


def pauses(params, contexts, phase, marked=(), noted=None):
    """Whom TAO pauses where these sessions are all on the only node, which holds 10,000 tokens."""
    view = View([f"s{i}" for i in range(len(contexts))], [10_000], params)
    view.context_tokens[:], view.phase[:], view.turn[:], view.resident[:] = contexts, phase, 3, 0
    view.noted_tokens[:, 0] = contexts if noted is None else noted
    view.leaving[list(marked)] = 1
    view.recount()
    return POLICIES["tao"](params).tick(view).pauses


def test_tao_marks_no_more_answering_sessions_than_it_has_to():
    params, contexts = Params(reserve_tokens=100), [3000, 2000, 2500, 2600]
    assert pauses(params, contexts, REASONING) == [1]
    assert pauses(params, contexts, REASONING, marked=[1]) == []  # it will make the room


def test_tao_pauses_the_smallest_in_a_tool_before_anybody_who_answers():
    phases = [REASONING, TOOL, TOOL, TOOL]
    assert pauses(Params(reserve_tokens=0), [1000, 4000, 3000, 2500], phases) == [3]


def test_by_value_tao_keeps_the_sessions_whose_cache_is_worth_most():
    """10,500 tokens on 10,000: to pause the one without any cache is enough, though it is the largest."""
    contexts, noted = [2000, 2500, 2600, 3400], [2000, 2500, 2600, 0]
    by_value = Params(reserve_tokens=0, pause_rule="least_value", quantum_tokens=1)
    assert pauses(by_value, contexts, TOOL, noted=noted) == [3]
    assert pauses(Params(reserve_tokens=0), contexts, TOOL, noted=noted) == [0]


# Repeating a run, or looking into it


def test_a_snapshot_in_the_middle_is_rebuilt_by_running_again():
    shape = {"nodes": 2, "workers": 12, "capacity_tokens": 60_000}
    kept = simulate("swe-lite", "tao", tasks=14, keep_snapshots=True, **shape)
    snapshots = [d.snapshot for d in kept.decisions if d.snapshot]
    assert len(snapshots) > 10
    for snapshot in snapshots[:: len(snapshots) // 3]:
        cluster = Cluster(WORKLOADS["swe-lite"](0, 14), POLICIES["tao"](Params()), **shape)
        cluster.run(until_s=snapshot.now_s)
        assert cluster.snapshot() == snapshot


def test_step_by_step_is_the_same_as_run():
    workload = append_only([(400, 20, 1.0), (30, 5, 0.0)], [(300, 10, 0.1), (60, 9, 0.0)])
    stepped = Cluster(workload, FewestSessions(), 1, 2)
    while stepped.step():
        check(stepped)
    assert not stepped.step()
    assert stepped.history.turns == Cluster(workload, FewestSessions(), 1, 2).run().turns


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (state.CONTEXT, "USED|tokens, not"),
        (state.RESIDENT, "RESIDENTS is 2, a recount gives 1"),
        (state.PHASE, "not those that are answering"),
        (state.LIVE_AT, "list of the cluster"),
        (state.LEAVING, "is to leave"),
    ],
)
def test_the_check_of_invariants_notices_a_session_that_was_tampered_with(column, said):
    cluster = Cluster(append_only(*[[(400, 20, 5.0), (9, 2, 0.0)]] * 2), FewestSessions(), 1, 2)
    cluster.run(until_s=3.0)
    check(cluster)
    cluster.view.state.session[0, column] += 1
    if column == state.PHASE:
        cluster.view.state.session[0, column] = REASONING
    with pytest.raises(AssertionError, match=said):
        check(cluster)


@pytest.mark.parametrize(
    "name", ["RESIDENTS", "USED", "INFLIGHT", "PREFILLING", "RUNNING", "QUEUED", "PINNED"]
)
def test_the_check_of_invariants_recounts_every_sum_of_a_node(name):
    cluster = Cluster(append_only(*[[(400, 20, 5.0), (9, 2, 0.0)]] * 2), FewestSessions(), 1, 2)
    cluster.view.state.node[0, getattr(state, name)] += 1
    with pytest.raises(AssertionError, match=f"node 0: {name} is"):
        check(cluster)


# What a bad policy, or a bad run, is told


def test_a_policy_that_places_nobody_is_told_so():
    said = r"cannot go on .* 1 sessions wait.*'s000' needs 500 tokens.*hold 5,000"
    with pytest.raises(InputError, match=said):
        run(append_only([(500, 5, 0.0)]), Lazy, nodes=1)


def test_a_periodic_policy_that_places_nobody_is_told_so_too():
    class Periodic(Lazy):
        period_s = 60.0

    with pytest.raises(InputError, match="cannot go on"):
        run(append_only([(500, 5, 0.0)]), Periodic)


@pytest.mark.parametrize(
    ("placements", "name"),
    [([(1, 0)], "'s001'"), ([(0, 0), (0, 1)], "'s000'"), ([(7, 0)], "7"), ([(-1, 0)], "-1")],
)
def test_a_policy_may_place_sessions_of_the_pool_only_and_each_once(placements, name):
    class Eager(Lazy):
        def tick(self, view):
            return Decision(list(placements))

    with pytest.raises(InputError, match=f"placed session {name}, which is not in the waiting pool"):
        run(append_only([(500, 5, 0.0)], [(500, 5, 0.0)]), Eager, workers=1)


def test_a_tick_that_returns_nothing_is_told_what_to_return():
    class Forgetful(FewestSessions):
        def tick(self, view):
            return None

    with pytest.raises(InputError, match="tick returned None; it must return a Decision"):
        run(append_only([(500, 5, 0.0)]), Forgetful)


@pytest.mark.parametrize("node", [7, -2, 0.5, None])
def test_a_policy_that_names_an_unknown_node_is_told_which_there_are(node):
    class Wrong(FewestSessions):
        def route(self, view, i):
            return node

    with pytest.raises(InputError, match=f"'s000' to node {node}; there are nodes 0 to 1"):
        run(append_only([(500, 5, 0.0)]), Wrong)


def test_a_policy_that_raises_is_told_where_and_when():
    class Broken(FewestSessions):
        def on_finish(self, view, i):
            return view.tools[i]

    said = r"on_finish for session 's000' raised AttributeError at 0\.\d+ s: .*no attribute 'tools'"
    with pytest.raises(InputError, match=said):
        run(append_only([(500, 5, 0.0)]), Broken)


def test_a_policy_that_asks_to_be_woken_for_ever_is_stuck():
    class Restless(Lazy):
        def tick(self, view):
            return Decision(wake_ps=view.now_ps + 1)

    with pytest.raises(InputError, match="cannot go on"):
        run(append_only([(500, 5, 0.0)]), Restless, debug=False)


def test_a_session_that_was_not_left_out_although_it_never_fits_is_named():
    with pytest.raises(InputError, match="'s000' was sent to node 'n0', where its 1,100 tokens can never"):
        Cluster(append_only([(900, 200, 0.0)]), FewestSessions(), 1, 1, capacity_tokens=1000)


def test_an_object_that_is_no_policy_is_told_what_it_lacks():
    with pytest.raises(InputError, match="policy object lacks route, on_finish, tick, period_s, gap_s"):
        run(append_only([(500, 5, 0.0)]), object())


def test_a_run_beyond_the_end_of_time_is_refused():
    with pytest.raises(InputError, match="beyond 4,611,686 simulated seconds"):
        run(append_only([(10, 1, 900_000.0)] * 7), "sticky")


def test_sessions_larger_than_a_node_are_left_out_and_counted_or_an_error():
    work = append_only([(9000, 5, 0.0)], [(500, 5, 0.0)])
    history = run(work, "sticky")
    assert history.session_ids == ["s001"]
    assert any("left out" in note for note in history.notes)
    with pytest.raises(InputError, match="s000"):
        run(work, "sticky", strict=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("nodes", 0), ("workers", 0), ("capacity_tokens", -5), ("nodes", 1.5), ("tool_servers", 0)],
)
def test_unusable_numbers_are_refused(name, value):
    with pytest.raises(InputError, match=f"{name} is {value}; it must be a whole number from 1"):
        run(append_only([(500, 5, 0.0)]), "sticky", **{name: value})


def test_an_unknown_policy_or_profile_is_answered_with_the_list():
    with pytest.raises(InputError, match="'fifo'; it must be one of tao, previous, oracle"):
        run(append_only([(5, 5, 0.0)]), "fifo")
    with pytest.raises(InputError, match="'h100'; it must be one of qwen3"):
        run(append_only([(5, 5, 0.0)]), "sticky", profile="h100")


def test_a_slower_engine_never_finishes_a_session_earlier():
    slow = dataclasses.replace(QWEN, kv_us_per_1k=90.0, prefill_us=80.0)
    work = append_only([(900, 9, 1.0), (90, 9, 0.0)])
    ends = [run(work, "sticky", profile=p).end_ps for p in (QWEN, slow)]
    assert ends[0] < ends[1]


def test_a_session_that_can_never_fit_is_named_with_node_and_numbers():
    with pytest.raises(InputError, match=r"'s0.*' was sent to node 'n0', where its 905 .* holds 800"):
        Cluster(append_only([(900, 5, 0.0)]), POLICIES["sticky"](Params()), 1, 1, capacity_tokens=800)


@pytest.mark.parametrize(("name", "value"), [("period_s", 1e-13), ("period_s", "5"), ("gap_s", -1.0)])
def test_a_policy_that_would_decide_without_end_is_refused(name, value):
    policy = Lazy(Params())
    setattr(policy, name, value)
    with pytest.raises(InputError, match=rf"{name} is .*; it must be at least"):
        simulate(append_only([(500, 5, 0.0)]), policy)
