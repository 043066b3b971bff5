"""The types refuse what makes no sense, say so plainly, and never change afterwards."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import re
from pathlib import Path

import naive
import numpy as np
import pytest
import strategies
from hypothesis import HealthCheck, given, settings

from tao import codec, planners
from tao.model import (
    CacheNote,
    Gap,
    InputError,
    Node,
    Params,
    Placement,
    Plan,
    Session,
    Snapshot,
    ToolCall,
    Value,
)

many = settings(max_examples=1000, suppress_health_check=list(HealthCheck))

NAN, INF = float("nan"), float("inf")
HUGE = 10**5000  # Python refuses to print integers of more than 4,300 digits

WHOLE = {
    "node 'n0': capacity_tokens": lambda x: Node("n0", x),
    "cache note: tokens": lambda x: CacheNote(x, 0.0),
    "session 'a': context_tokens": lambda x: Session("a", x),
    "session 'a': turn": lambda x: Session("a", 1, turn=x),
    "snapshot: shared_prefix_tokens": lambda x: Snapshot(0.0, (), (), x),
    "Params.quantum_tokens": lambda x: Params(quantum_tokens=x),
    "Params.reserve_tokens": lambda x: Params(reserve_tokens=x),
}
SECONDS = {
    "snapshot: now_s": lambda x: Snapshot(x, (), ()),
    "session 'a': waiting_since_s": lambda x: Session("a", 1, waiting_since_s=x),
    "cache note: seen_at_s": lambda x: CacheNote(1, x),
    "tool 'bash': started_s": lambda x: ToolCall("bash", x),
    "tool 'bash': deadline_s": lambda x: ToolCall("bash", 0.0, deadline_s=x),
    "tool 'bash': finished_s": lambda x: ToolCall("bash", 0.0, finished_s=x),
}
AT_LEAST_ZERO = {"tool 'bash': expected_s": lambda x: ToolCall("bash", 0.0, expected_s=x)} | {
    f"Params.{name}": lambda x, name=name: Params(**{name: x})
    for name in (
        *("horizon_s", "fallback_s", "probe_s", "margin_s"),
        *("ageing_tokens_per_s", "plan_cost_s", "plan_cost_per_state_s", "replan_gap_s"),
    )
}
ABOVE_ZERO = {
    "Params.half_life_s": lambda x: Params(half_life_s=x),
    "Params.stale_s": lambda x: Params(stale_s=x),
}
NAMES = {
    "node id": lambda x: Node(x, 1),
    "session id": lambda x: Session(x, 1),
    "tool name": lambda x: ToolCall(x, 0.0),
}
TEXTS = {
    "session 'a': resident_on": lambda x: Session("a", 1, resident_on=x),
    "tool 'bash': command": lambda x: ToolCall("bash", 0.0, command=x),
    "tool 'bash': command_class": lambda x: ToolCall("bash", 0.0, command_class=x),
}
CHOICES = {
    "session 'a': phase": (lambda x: Session("a", 1, phase=x), "'reasoning', 'tool', 'waiting'"),
    "Params.stale_from": (lambda x: Params(stale_from=x), "'due', 'made'"),
    "Params.statistic": (lambda x: Params(statistic=x), "'mean', 'median', 'survival'"),
}


def refusal(build, *args, **kwargs):
    """The message with which these arguments are refused; it is one line of readable length."""
    with pytest.raises(InputError) as caught:
        build(*args, **kwargs)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 400
    return message


# What is refused, and how


@pytest.mark.parametrize("what", WHOLE)
def test_tokens_and_counts_are_whole_numbers_in_range(what):
    least = 1 if what == "Params.quantum_tokens" else 0
    for given_ in (-1, 1.0, 1.5, NAN, INF, -INF, True, False, "5", None, [5], 2**41, 2**40 + 1, least - 1):
        allowed = f"it must be a whole number from {least} to 2**40"
        assert refusal(WHOLE[what], given_) == f"{what} is {given_!r}; {allowed}"
    for allowed in (least, 2**40):
        WHOLE[what](allowed)


@pytest.mark.parametrize("what", SECONDS)
def test_moments_are_finite_numbers(what):
    for given_ in (NAN, INF, -INF, True, "5", [5.0], 1e15, -1e15, 10**30, 1j):
        assert (
            refusal(SECONDS[what], given_) == f"{what} is {given_!r}; it must be a finite number of seconds"
        )
    for allowed in (0, 0.5, 1_790_000_000):
        SECONDS[what](allowed)


@pytest.mark.parametrize("what", AT_LEAST_ZERO)
def test_durations_are_finite_and_not_negative(what):
    for given_ in (NAN, INF, -0.001, -INF, True, "5", 1e15):
        assert (
            refusal(AT_LEAST_ZERO[what], given_)
            == f"{what} is {given_!r}; it must be a finite number, 0 or more"
        )
    AT_LEAST_ZERO[what](0)


@pytest.mark.parametrize("what", ABOVE_ZERO)
def test_divisors_and_limits_are_above_zero(what):
    for given_ in (0, 0.0, -1.0, NAN, INF, False, None):
        assert (
            refusal(ABOVE_ZERO[what], given_) == f"{what} is {given_!r}; it must be a finite number above 0"
        )
    ABOVE_ZERO[what](1e-9)


@pytest.mark.parametrize("what", NAMES)
def test_names_are_strings_and_not_empty(what):
    for given_ in ("", None, 5, b"n0", ["n0"]):
        assert refusal(NAMES[what], given_) == f"{what} is {given_!r}; it must be a string that is not empty"


@pytest.mark.parametrize("what", TEXTS)
def test_texts_are_strings_or_null(what):
    for given_ in (5, b"ls", ["ls"], True):
        assert refusal(TEXTS[what], given_) == f"{what} is {given_!r}; it must be a string or null"
    TEXTS[what](None)


@pytest.mark.parametrize("what", CHOICES)
def test_modes_are_answered_with_the_list(what):
    build, allowed = CHOICES[what]
    for given_ in ("", "Tool", None, 5, ["tool"]):
        assert refusal(build, given_) == f"{what} is {given_!r}; it must be one of {allowed}"


def test_a_number_too_long_to_print_is_refused_all_the_same():
    for what, build in (WHOLE | SECONDS | AT_LEAST_ZERO | ABOVE_ZERO | NAMES | TEXTS).items():
        assert refusal(build, HUGE).startswith(f"{what} is ")
    for what, (build, _) in CHOICES.items():
        assert refusal(build, HUGE).startswith(f"{what} is ")


@pytest.mark.parametrize("given_", [list(range(10_000)), "x" * 10_000, 10**4000], ids=["list", "text", "int"])
def test_a_message_quotes_only_the_start_of_something_long(given_):
    assert refusal(Node, "n0", given_).startswith("node 'n0': capacity_tokens is ")


@pytest.mark.parametrize("given_", [2, "no", None])
def test_a_switch_is_true_or_false(given_):
    assert "share_prefix" in refusal(Params, share_prefix=given_)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Session("a", 1, cached=5),
        lambda: Session("a", 1, cached={"n0": 5}),
        lambda: Session("a", 1, cached=["n0"]),
        lambda: Session("a", 1, eligible=5),
        lambda: Session("a", 1, eligible=(0,)),
        lambda: Session("a", 1, eligible="n0"),
        lambda: Session("a", 1, tool="bash"),
        lambda: Snapshot(0.0, ("n0",), ()),
        lambda: Snapshot(0.0, (), ("a",)),
        lambda: Snapshot(0.0, None, ()),
    ],
)
def test_parts_of_the_wrong_type_are_refused(build):
    refusal(build)


def test_a_session_in_a_tool_says_which():
    assert refusal(Session, "a", 1, phase="tool") == (
        "session 'a': phase is 'tool' but tool is null; describe the running tool"
    )


def test_a_tool_does_not_finish_before_it_starts():
    assert refusal(ToolCall, "bash", 5.0, finished_s=4.5) == (
        "tool 'bash': finished_s 4.5 lies before started_s 5.0; check the clock they came from"
    )
    assert ToolCall("bash", 5.0, finished_s=5.0).finished_s == 5.0


@pytest.mark.parametrize("kind", ["node", "session"])
def test_ids_are_unique(kind):
    nodes = (Node("x", 1), Node("y", 2), Node("x", 3)) if kind == "node" else ()
    sessions = (Session("x", 1), Session("y", 2), Session("x", 3)) if kind == "session" else ()
    message = refusal(Snapshot, 0.0, nodes, sessions)
    assert message == f"{kind} id 'x' appears twice; ids must be unique, rename one"


def test_a_node_and_a_session_may_share_an_id():
    assert Snapshot(0.0, (Node("x", 1),), (Session("x", 1),)).pool[0].id == "x"


@pytest.mark.parametrize(
    ("verb", "session"),
    [
        ("is resident on", Session("a", 1, resident_on="gone")),
        (
            "holds a cache note on",
            Session("a", 1, cached={"n0": CacheNote(1, 0.0), "gone": CacheNote(1, 0.0)}),
        ),
        ("is eligible for", Session("a", 1, eligible=("n0", "gone"))),
    ],
)
def test_a_snapshot_names_the_node_that_it_lacks(verb, session):
    message = refusal(Snapshot, 0.0, (Node("n1", 1), Node("n0", 1)), (session,))
    assert message == (
        f"session 'a' {verb} node 'gone', which is not in this snapshot (nodes: n0, n1); "
        "add the node or drop the mention"
    )
    assert "(nodes: none)" in refusal(Snapshot, 0.0, (), (Session("a", 1, resident_on="gone"),))
    crowd = tuple(Node(f"n{i:02}", 1) for i in range(20))
    assert "(nodes: n00, n01, n02, n03, n04, n05, n06, n07, ...)" in refusal(Snapshot, 0.0, crowd, (session,))


@pytest.mark.parametrize(
    ("what", "session"),
    [
        ("waiting_since_s", Session("a", 1, waiting_since_s=10.5)),
        ("cached['n0'].seen_at_s", Session("a", 1, cached={"n0": CacheNote(1, 10.5)})),
        ("tool.started_s", Session("a", 1, tool=ToolCall("bash", 10.5))),
        ("tool.finished_s", Session("a", 1, tool=ToolCall("bash", 9.0, finished_s=10.5))),
    ],
)
def test_nothing_has_happened_after_now(what, session):
    message = refusal(Snapshot, 10.0, (Node("n0", 1),), (session,))
    assert message == (
        f"session 'a': {what} is 10.5, after the snapshot's now_s 10.0; use one clock for both"
    )
    assert Snapshot(10.5, (Node("n0", 1),), (session,)).sessions == (session,)


def test_a_deadline_may_lie_in_the_future():
    tool = ToolCall("bash", 9.0, deadline_s=100.0)
    assert Snapshot(10.0, (), (Session("a", 1, tool=tool),)).sessions[0].tool == tool


# Frozen, printable, comparable


TOOL = ToolCall("bash", 1.0, "sleep", "sleep 4\nls", deadline_s=6.0, expected_s=2.5, finished_s=3.0)
SESSION = Session("a", 300, "tool", 2, None, 0.5, {"n0": CacheNote(200, 1.0)}, TOOL, ("n0",))
SNAPSHOT = Snapshot(5.0, (Node("n0", 1000),), (SESSION,), 20)
PLAN = Plan(
    (Placement("a", "n0", Value(1, 1, 300)),), (), Value(1, 1, 300), "dp", True, "true", Value(1, 1, 300)
)
ALL = [
    Params(),
    TOOL,
    CacheNote(1, 2.0),
    Node("n0", 1),
    SESSION,
    SNAPSHOT,
    PLAN,
    Value(1, 2, 3),
    Gap(0, 1, None),
]


@pytest.mark.parametrize("thing", ALL, ids=lambda x: type(x).__name__)
def test_nothing_can_be_changed(thing):
    name = thing._fields[0] if isinstance(thing, tuple) else dataclasses.fields(thing)[0].name
    with pytest.raises(AttributeError):
        setattr(thing, name, getattr(thing, name))
    with pytest.raises((AttributeError, TypeError)):
        thing.unknown = 5


@pytest.mark.parametrize("thing", ALL, ids=lambda x: type(x).__name__)
def test_everything_prints_in_one_line_that_rebuilds_it(thing):
    assert "\n" not in repr(thing)
    assert eval(repr(thing)) == thing


@pytest.mark.parametrize("thing", ALL, ids=lambda x: type(x).__name__)
def test_everything_can_be_sent_to_another_process_and_used_as_a_key(thing):
    copy = pickle.loads(pickle.dumps(thing))
    assert copy == thing
    assert {thing: 1}[copy] == 1


def test_a_session_keeps_its_own_copy_of_what_it_was_given():
    cached, eligible = {"n0": CacheNote(1, 0.0)}, ["n0"]
    session = Session("a", 1, cached=cached, eligible=eligible)
    cached.clear()
    eligible.clear()
    assert session.cached == {"n0": CacheNote(1, 0.0)}
    assert session.eligible == ("n0",)


def test_a_snapshot_keeps_its_own_copy_of_what_it_was_given():
    nodes, sessions = [Node("n0", 1)], [Session("a", 1)]
    snapshot = Snapshot(0.0, nodes, sessions)
    assert Snapshot(0.0, iter(nodes), iter(sessions)) == snapshot
    nodes.clear()
    sessions.clear()
    assert (snapshot.nodes, snapshot.sessions) == ((Node("n0", 1),), (Session("a", 1),))


# Parameters


def test_the_constants_of_the_paper_are_the_defaults():
    params = Params()
    assert (params.half_life_s, params.horizon_s, params.fallback_s, params.stale_s) == (10, 1, 5, 30)
    assert (params.probe_s, params.margin_s, params.quantum_tokens, params.state_budget) == (
        1,
        0,
        1024,
        200_000,
    )
    assert (params.reserve_tokens, params.ageing_tokens_per_s, params.share_prefix) == (512, 0, False)
    assert (params.stale_from, params.statistic) == ("due", "mean")


def test_every_constant_has_its_source_beside_it():
    source = Path(inspect.getfile(Params)).read_text("utf-8")
    body = source.partition("class Params")[2].partition("def __post_init__")[0]
    lines = {m[1]: m[0] for m in re.finditer(r"^    (\w+): .* = .*$", body, re.MULTILINE)}
    assert set(lines) == {f.name for f in dataclasses.fields(Params)}
    assert [name for name, line in lines.items() if not re.search(r"# (TAO paper|ours)", line)] == []


# Value and gap


def test_credit_outranks_readiness_outranks_tokens():
    assert Value(5, 0, 0) > Value(4, 9, 9)
    assert Value(5, 1, 0) > Value(5, 0, 9)
    assert Value(5, 1, 2) > Value(5, 1, 1)
    assert max([Value(1, 0, 0), Value(0, 10**30, 0), Value(0, 0, 10**30)]) == Value(1, 0, 0)


def test_values_add_up_component_by_component():
    assert Value.sum([]) == Value(0, 0, 0)
    assert Value.sum([Value(1, 1, 10), Value(2, 0, 20), Value(0, 1, 2**62)]) == Value(3, 2, 2**62 + 30)
    assert isinstance(Value.sum(v for v in [Value(1, 1, 1)]), Value)


@pytest.mark.parametrize(
    ("bound", "gap"),
    [
        (Value(10, 2, 300), Gap(0, 0, 0)),
        (Value(10, 2, 350), Gap(0, 0, 50)),
        (Value(10, 3, 100), Gap(0, 1, None)),
        (Value(10, 3, 900), Gap(0, 1, None)),
        (Value(12, 2, 300), Gap(2, None, None)),
        (Value(12, 0, 0), Gap(2, None, None)),
    ],
)
def test_the_gap_ends_at_the_first_part_that_is_not_proven(bound, gap):
    assert dataclasses.replace(PLAN, value=Value(10, 2, 300), bound=bound).gap == gap


def test_a_plan_knows_the_node_of_each_admitted_session():
    plan = dataclasses.replace(
        PLAN, placements=(Placement("a", "n0", Value(1, 1, 1)), Placement("b", "n1", Value(0, 0, 2)))
    )
    assert plan.node_of() == {"a": "n0", "b": "n1"}


# Pool and sizes


def test_the_pool_is_whoever_no_node_holds_whatever_its_phase():
    sessions = (
        Session("new", 1),
        Session("in a tool", 1, "tool", tool=ToolCall("bash", 0.0)),
        Session("on n0", 1, resident_on="n0"),
        Session("on n0, in a tool", 1, "tool", resident_on="n0", tool=ToolCall("bash", 0.0)),
    )
    snapshot = Snapshot(0.0, (Node("n0", 10),), sessions)
    assert [s.id for s in snapshot.pool] == ["new", "in a tool"]


def test_residents_hold_their_context_and_the_reserve():
    sessions = (Session("a", 300, resident_on="n0"), Session("b", 200, resident_on="n0"), Session("c", 900))
    snapshot = Snapshot(0.0, (Node("n0", 1000), Node("n1", 400)), sessions)
    params = Params(reserve_tokens=50)
    assert snapshot.demand_tokens(sessions[2], params) == 950
    assert snapshot.used_tokens(params) == {"n0": 600, "n1": 0}
    assert snapshot.free_tokens(params) == {"n0": 400, "n1": 400}


def test_idle_cache_of_sessions_in_the_pool_counts_as_free():
    session = Session("a", 300, cached={"n0": CacheNote(300, 0.0)})
    snapshot = Snapshot(0.0, (Node("n0", 1000),), (session,))
    assert snapshot.free_tokens(Params()) == {"n0": 1000}
    assert snapshot.demand_tokens(session, Params()) == 812  # in full, though part of it is cached


def test_an_overfull_node_has_less_than_nothing_free():
    snapshot = Snapshot(0.0, (Node("n0", 100),), (Session("a", 300, resident_on="n0"),))
    assert snapshot.free_tokens(Params(reserve_tokens=0)) == {"n0": -200}


def test_a_shared_prefix_is_charged_once_per_node_if_the_switch_is_on():
    sessions = (Session("a", 300, resident_on="n0"), Session("b", 80), Session("c", 250))
    snapshot = Snapshot(0.0, (Node("n0", 1000), Node("n1", 1000)), sessions, shared_prefix_tokens=100)
    off, on = Params(reserve_tokens=0), Params(reserve_tokens=0, share_prefix=True)
    assert [snapshot.demand_tokens(s, off) for s in sessions] == [300, 80, 250]
    assert [snapshot.demand_tokens(s, on) for s in sessions] == [200, 0, 150]
    assert snapshot.used_tokens(off) == {"n0": 300, "n1": 0}
    assert snapshot.used_tokens(on) == {"n0": 300, "n1": 100}


@many
@given(strategies.cases())
def test_sizes_equal_their_naive_twins(case):
    snapshot, params = case
    free, used = snapshot.free_tokens(params), snapshot.used_tokens(params)
    assert list(free) == list(used) == [node.id for node in snapshot.nodes]
    for node in snapshot.nodes:
        assert (
            free[node.id]
            == naive.true_room(snapshot, params, node.id)
            == node.capacity_tokens - used[node.id]
        )
    for session in snapshot.sessions:
        assert snapshot.demand_tokens(session, params) == naive.true_demand(snapshot, params, session)
    assert sorted(s.id for s in snapshot.pool) == [s.id for s in naive.waiting_pool(snapshot)]


@many
@given(strategies.cases())
def test_the_gap_of_real_plans_is_bound_minus_value_as_far_as_proven(case):
    snapshot, params = case
    for name in ("bfd", "fifo"):
        plan = planners.plan(snapshot, name, params)
        assert plan.bound >= plan.value
        for known, bound, value in zip(plan.gap, plan.bound, plan.value, strict=True):
            if known is None:
                break
            assert known == bound - value
            if known:
                assert plan.gap[-1] is None or plan.gap[:2] == (0, 0)


# Tables


def test_a_snapshot_becomes_one_row_per_session():
    frame = SNAPSHOT.to_frame()
    assert list(frame.columns) == [
        *("id", "context_tokens", "phase", "turn", "resident_on", "waiting_since_s", "eligible"),
        *("cached_tokens", "tool"),
    ]
    row = frame.iloc[0]
    assert (row["id"], row["context_tokens"], row["cached_tokens"], row["tool"]) == (
        "a",
        300,
        {"n0": 200},
        "bash",
    )
    assert len(Snapshot(0.0, (), ()).to_frame()) == 0
    assert list(Snapshot(0.0, (), ()).to_frame().columns) == list(frame.columns)


def test_integers_of_any_type_become_plain_ones():
    snapshot = Snapshot(0.0, (Node("n0", np.int64(9)),), (Session("a", np.int32(5), turn=np.uint8(2)),))
    assert type(snapshot.nodes[0].capacity_tokens) is int
    assert type(snapshot.sessions[0].context_tokens) is int
    assert codec.from_json(codec.to_json(snapshot)) == snapshot
    assert "np.float64(5.0)" in refusal(Session, "a", np.float64(5.0))


def test_changed_parameters_are_told():
    assert Params().changed() == {}
    assert Params(quantum_tokens=7, share_prefix=True).changed() == {
        "quantum_tokens": 7,
        "share_prefix": True,
    }
