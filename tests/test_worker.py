"""Between plan and apply the world moves on: what still holds is applied, the rest dropped with a reason."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import CancelledError, Future
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tao import planners
from tao.dp import search
from tao.model import CacheNote, InputError, Node, Params, Session, Snapshot, ToolCall
from tao.worker import Proposal, Worker, propose, revalidate, signature

PARAMS = Params(quantum_tokens=1, reserve_tokens=1)


@pytest.fixture
def snapshot():
    """Two nodes with room for both waiting sessions, and a resident."""
    return Snapshot(
        10.0,
        (Node("n0", 1000), Node("n1", 500)),
        (
            Session("a", 600, turn=3, cached={"n0": CacheNote(500, 9.0)}),
            Session("b", 400, "tool", tool=ToolCall("bash", 8.0), cached={"n1": CacheNote(300, 9.0)}),
            Session("c", 50, resident_on="n0"),
        ),
    )


@pytest.fixture
def proposal(snapshot):
    proposal = propose(snapshot, "dp", PARAMS, number=7)
    assert proposal.plan.node_of() == {"a": "n0", "b": "n1"}
    return proposal


def session(snapshot, name, **changes):
    """The snapshot with one session changed."""
    return replace(
        snapshot, sessions=tuple(replace(s, **changes) if s.id == name else s for s in snapshot.sessions)
    )


def node(snapshot, name, **changes):
    """The snapshot with one node changed."""
    nodes = (replace(n, **changes) if n.id == name else n for n in snapshot.nodes)
    return replace(snapshot, nodes=tuple(nodes))


def outcome(verdict):
    """Per session the node it goes to, or why it does not."""
    applied = {p.session: p.node for p in verdict.applied}
    return applied | {d.placement.session: d.reason for d in verdict.dropped}


# One reason each


def test_in_an_unchanged_world_everything_is_applied(snapshot, proposal):
    verdict = revalidate(proposal, snapshot, PARAMS)
    assert set(verdict.applied) == set(proposal.plan.placements)
    assert verdict.dropped == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"turn": 4},
        {"context_tokens": 601},
        {"context_tokens": 599},
        {"resident_on": "n0"},
        {"resident_on": "n1"},
        {"eligible": ("n1",)},
        {"eligible": ()},
    ],
    ids=str,
)
def test_a_changed_session_is_dropped(snapshot, proposal, changes):
    live = session(snapshot, "a", **changes)
    assert outcome(revalidate(proposal, live, PARAMS))["a"] == "session changed"


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": "waiting"},
        {"tool": ToolCall("bash", 8.0, finished_s=9.5)},
        {"tool": None, "phase": "waiting"},
        {"cached": {}},
        {"waiting_since_s": 9.0},
        {"eligible": ("n1",)},
        {"eligible": ("n0", "n1")},
    ],
    ids=str,
)
def test_what_leaves_size_turn_and_place_alone_voids_nothing(snapshot, proposal, changes):
    live = session(snapshot, "b", **changes)
    assert outcome(revalidate(proposal, live, PARAMS)) == {"a": "n0", "b": "n1"}


def test_ageing_voids_nothing(snapshot, proposal):
    live = replace(snapshot, now_s=100_000.0)
    assert outcome(revalidate(proposal, live, PARAMS)) == {"a": "n0", "b": "n1"}
    assert signature(live) == signature(snapshot)


def test_a_session_that_is_gone_is_dropped(snapshot, proposal):
    live = replace(snapshot, sessions=snapshot.sessions[1:])
    assert outcome(revalidate(proposal, live, PARAMS)) == {"a": "session gone", "b": "n1"}


def test_a_session_that_was_not_there_at_the_freeze_is_not_let_in_under_an_old_name(snapshot, proposal):
    live = session(snapshot, "a", turn=0)
    assert outcome(revalidate(proposal, live, PARAMS))["a"] == "session changed"


def test_placements_on_a_node_that_is_gone_are_dropped(snapshot, proposal):
    live = session(snapshot, "b", cached={})
    live = replace(live, nodes=live.nodes[:1])
    assert outcome(revalidate(proposal, live, PARAMS)) == {"a": "n0", "b": "node gone"}


def test_a_node_that_shrank_takes_what_still_fits(snapshot, proposal):
    for capacity, fate in ((652, "n0"), (651, "would overflow")):
        live = node(snapshot, "n0", capacity_tokens=capacity)
        assert outcome(revalidate(proposal, live, PARAMS)) == {"a": fate, "b": "n1"}


def test_a_node_that_filled_up_takes_what_still_fits(snapshot, proposal):
    for context, fate in ((398, "n0"), (399, "would overflow")):
        live = session(snapshot, "c", context_tokens=context)
        assert outcome(revalidate(proposal, live, PARAMS)) == {"a": fate, "b": "n1"}


def test_an_overfull_node_takes_nothing_not_even_a_session_of_size_zero():
    params = replace(PARAMS, reserve_tokens=0)
    before = Snapshot(0.0, (Node("n0", 10),), (Session("a", 0),))
    after = replace(before, sessions=(*before.sessions, Session("b", 11, resident_on="n0")))
    proposal = propose(before, "dp", params)
    assert outcome(revalidate(proposal, before, params)) == {"a": "n0"}
    assert outcome(revalidate(proposal, after, params)) == {"a": "would overflow"}


def test_where_room_got_scarce_the_most_valuable_placement_comes_first():
    sessions = (Session("a", 300), Session("b", 200, cached={"n0": CacheNote(150, 0.0)}), Session("c", 400))
    before = Snapshot(0.0, (Node("n0", 1000),), sessions)
    live = node(before, "n0", capacity_tokens=610)
    verdict = revalidate(propose(before, "dp", PARAMS), live, PARAMS)
    assert [p.session for p in verdict.applied] == ["b", "c"]
    assert outcome(verdict)["a"] == "would overflow"


def test_an_older_proposal_than_the_one_applied_is_superseded(snapshot, proposal):
    assert outcome(revalidate(proposal, snapshot, PARAMS, newest=8)) == {"a": "superseded", "b": "superseded"}
    for newest in (None, 6, 7):
        assert outcome(revalidate(proposal, snapshot, PARAMS, newest=newest)) == {"a": "n0", "b": "n1"}


def test_a_shared_prefix_is_charged_in_the_live_state_too():
    params = replace(PARAMS, share_prefix=True, reserve_tokens=0)
    before = Snapshot(0.0, (Node("n0", 100),), (Session("a", 90), Session("b", 40)), shared_prefix_tokens=30)
    proposal = propose(before, "dp", params)
    assert outcome(revalidate(proposal, before, params)) == {"a": "n0", "b": "n0"}
    assert (
        outcome(revalidate(proposal, node(before, "n0", capacity_tokens=99), params))["b"] == "would overflow"
    )


def test_the_signature_is_what_a_plan_relies_on(snapshot):
    assert signature(snapshot).sessions == {"a": (3, 600, None), "b": (0, 400, None), "c": (0, 50, "n0")}
    assert signature(snapshot).nodes == {"n0": 1000, "n1": 500}
    assert signature(session(snapshot, "b", phase="waiting")) == signature(snapshot)
    assert signature(session(snapshot, "b", turn=1)) != signature(snapshot)
    assert signature(node(snapshot, "n1", capacity_tokens=501)) != signature(snapshot)


# Any world, any order of events

NODES = ("n0", "n1", "n2")
sizes = st.integers(0, 12)


class World(RuleBasedStateMachine):
    """Sessions come, grow, move and go, nodes shrink and vanish, while proposals wait to be applied."""

    def __init__(self):
        super().__init__()
        self.now_s = 0.0
        self.names = (f"s{i}" for i in itertools.count())
        self.nodes: dict[str, Node] = {}
        self.sessions: dict[str, Session] = {}
        self.proposals: list[tuple[Proposal, Snapshot]] = []
        self.number = 0
        self.newest: int | None = None
        self.params = PARAMS

    def live(self):
        return Snapshot(self.now_s, tuple(self.nodes.values()), tuple(self.sessions.values()), 2)

    def change(self, name, **changes):
        self.sessions[name] = replace(self.sessions[name], **changes)

    def pick(self, data, only=lambda s: True):
        names = [s.id for s in self.sessions.values() if only(s)]
        return data.draw(st.sampled_from(names)) if names else None

    @initialize(
        capacities=st.lists(st.integers(0, 30), min_size=1, max_size=3),
        waiting=st.lists(sizes, min_size=1, max_size=6),
        reserve=st.integers(0, 2),
        share=st.booleans(),
    )
    def begin(self, capacities, waiting, reserve, share):
        self.params = replace(PARAMS, reserve_tokens=reserve, share_prefix=share)
        self.nodes = {name: Node(name, c) for name, c in zip(NODES, capacities, strict=False)}
        for size in waiting:
            self.come(size)

    @precondition(lambda self: len(self.sessions) < 8)
    @rule(size=sizes)
    def come(self, size):
        name = next(self.names)
        self.sessions[name] = Session(name, size, waiting_since_s=self.now_s)

    @rule(data=st.data(), grown=st.integers(-2, 4))
    def finish_a_turn(self, data, grown):
        if name := self.pick(data):
            s = self.sessions[name]
            self.change(name, turn=s.turn + 1, context_tokens=max(s.context_tokens + grown, 0))

    @rule(data=st.data(), grown=st.integers(-2, 4))
    def grow(self, data, grown):
        if name := self.pick(data):
            self.change(name, context_tokens=max(self.sessions[name].context_tokens + grown, 0))

    @rule(data=st.data())
    def leave(self, data):
        if name := self.pick(data):
            del self.sessions[name]

    @rule(data=st.data())
    def come_back_under_the_same_name(self, data):
        if name := self.pick(data):
            self.sessions[name] = Session(name, data.draw(sizes))

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def become_resident_elsewhere(self, data):
        if name := self.pick(data, lambda s: s.resident_on is None):
            self.change(name, resident_on=data.draw(st.sampled_from(sorted(self.nodes))))

    @rule(data=st.data())
    def pause(self, data):
        if name := self.pick(data, lambda s: s.resident_on is not None):
            self.change(name, resident_on=None)

    @rule(data=st.data())
    def call_a_tool(self, data):
        if name := self.pick(data):
            self.change(name, phase="tool", tool=ToolCall("bash", self.now_s))

    @rule(data=st.data())
    def return_from_a_tool(self, data):
        if name := self.pick(data, lambda s: s.phase == "tool"):
            self.change(name, phase="waiting", tool=replace(self.sessions[name].tool, finished_s=self.now_s))

    @rule(data=st.data())
    def restrict(self, data):
        if name := self.pick(data):
            nodes = st.lists(st.sampled_from(sorted(self.nodes)), unique=True) if self.nodes else st.just([])
            usable = data.draw(st.none() | nodes)
            self.change(name, eligible=None if usable is None else tuple(usable))

    @rule(data=st.data())
    def remember(self, data):
        if self.nodes and (name := self.pick(data)):
            noted = data.draw(st.dictionaries(st.sampled_from(sorted(self.nodes)), st.integers(0, 12)))
            self.change(name, cached={n: CacheNote(tokens, self.now_s) for n, tokens in noted.items()})

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def lose_a_node(self, data):
        gone = data.draw(st.sampled_from(sorted(self.nodes)))
        del self.nodes[gone]
        for s in list(self.sessions.values()):
            self.change(
                s.id,
                resident_on=None if s.resident_on == gone else s.resident_on,
                cached={n: note for n, note in s.cached.items() if n != gone},
                eligible=None if s.eligible is None else tuple(n for n in s.eligible if n != gone),
            )

    @precondition(lambda self: self.nodes)
    @rule(data=st.data(), capacity=st.integers(0, 30))
    def resize_a_node(self, data, capacity):
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        self.nodes[name] = Node(name, capacity)

    @rule(data=st.data())
    def gain_a_node(self, data):
        name = data.draw(st.sampled_from(NODES))
        self.nodes.setdefault(name, Node(name, 20))

    @rule(seconds=st.sampled_from((0.5, 5.0, 100.0)))
    def wait(self, seconds):
        self.now_s += seconds

    @rule(planner=st.sampled_from(("dp", "bfd", "short_first")))
    def freeze_and_plan(self, planner):
        self.number += 1
        frozen = self.live()
        self.proposals.append((propose(frozen, planner, self.params, self.number), frozen))

    @precondition(lambda self: self.proposals)
    @rule(data=st.data())
    def apply(self, data):
        proposal, frozen = self.proposals.pop(data.draw(st.integers(0, len(self.proposals) - 1)))
        live = self.live()
        verdict = revalidate(proposal, live, self.params, self.newest)
        check_verdict(verdict, proposal, frozen, live, self.params, self.newest)
        if self.newest is None or proposal.number >= self.newest:
            self.newest = proposal.number
        room = live.free_tokens(self.params)
        for p in verdict.applied:
            self.change(p.session, resident_on=p.node, phase="reasoning")
            room[p.node] -= live.demand_tokens(self.sessions[p.session], self.params)
        assert self.live().free_tokens(self.params) == room
        assert all(room[p.node] >= 0 for p in verdict.applied)

    @invariant()
    def the_world_is_valid(self):
        self.live()


def check_verdict(verdict, proposal, frozen, live, params, newest):
    """Every placement has exactly one fate, and it is the right one."""
    fates = [*verdict.applied, *(d.placement for d in verdict.dropped)]
    assert sorted(fates) == sorted(proposal.plan.placements)
    reasons = {d.placement.session: d.reason for d in verdict.dropped}
    if newest is not None and proposal.number < newest:
        assert set(reasons.values()) <= {"superseded"}
        assert not verdict.applied
        return
    then = {s.id: s for s in frozen.sessions}
    now = {s.id: s for s in live.sessions}
    room = live.free_tokens(params)
    for p in verdict.applied:
        room[p.node] -= live.demand_tokens(now[p.session], params)
    valid = []
    for p in proposal.plan.placements:
        if p.session not in now:
            assert reasons[p.session] == "session gone"
        elif p.node not in room:
            assert reasons[p.session] == "node gone"
        elif has_changed(then[p.session], now[p.session], p.node):
            assert reasons[p.session] == "session changed"
        elif p.session in reasons:
            assert reasons[p.session] == "would overflow"
            assert live.demand_tokens(now[p.session], params) > room[p.node], "it would fit"
            valid.append(p)
        else:
            assert p in verdict.applied
            valid.append(p)
    for name, free in live.free_tokens(params).items():  # where all that still holds fits, all is applied
        here = [p for p in valid if p.node == name]
        if 0 <= sum(live.demand_tokens(now[p.session], params) for p in here) <= free:
            assert set(here) <= set(verdict.applied)


def has_changed(then, now, node_id):
    """Whether a plan made for the session as it was may not be carried out any more."""
    same = (then.turn, then.context_tokens, then.resident_on) == (
        now.turn,
        now.context_tokens,
        now.resident_on,
    )
    return not same or (now.eligible is not None and node_id not in now.eligible)


TestWorld = World.TestCase
TestWorld.settings = settings(
    max_examples=300, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)


# The thread


@pytest.fixture
def gate(monkeypatch):
    """A planner "slow" that starts when somebody plans and goes on when the gate is opened."""
    gate, started = threading.Event(), threading.Event()

    def slow(problem):
        started.set()
        assert gate.wait(30.0)
        return planners.PLANNERS["bfd"](problem)

    monkeypatch.setitem(planners.PLANNERS, "slow", slow)
    gate.started = started
    yield gate
    gate.set()


def test_the_worker_plans_what_plan_would_plan(snapshot):
    with Worker("dp", PARAMS) as worker:
        proposal = worker.submit(snapshot).result(30.0)
    assert proposal == Proposal(planners.plan(snapshot, "dp", PARAMS), signature(snapshot), 1)


def test_submitting_does_not_wait_for_the_plan(snapshot, gate):
    with Worker("slow") as worker:
        future = worker.submit(snapshot)
        assert not future.done()
        gate.set()
        assert future.result(30.0).plan.planner == "bfd"


def test_of_snapshots_that_wait_only_the_newest_is_planned(snapshot, gate):
    with Worker("slow", PARAMS) as worker:
        first = worker.submit(snapshot)
        assert gate.started.wait(30.0)  # otherwise the first could still be superseded
        waiting = [worker.submit(snapshot) for _ in range(3)]
        assert [f.cancelled() for f in (first, *waiting)] == [False, True, True, False]
        gate.set()
        assert (first.result(30.0).number, waiting[-1].result(30.0).number) == (1, 4)
        with pytest.raises(CancelledError):
            waiting[0].result(30.0)
    verdict = revalidate(first.result(), snapshot, PARAMS, newest=waiting[-1].result().number)
    assert {d.reason for d in verdict.dropped} == {"superseded"}


def test_closing_finishes_the_plan_in_progress_and_cancels_the_one_that_waits(snapshot, gate):
    worker = Worker("slow")
    running = worker.submit(snapshot)
    assert gate.started.wait(30.0)
    waiting = worker.submit(snapshot)
    threading.Timer(0.05, gate.set).start()
    worker.close()
    assert running.result(0.0).number == 1
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="shutdown"):
        worker.submit(snapshot)
    worker.close()  # a second time does no harm


def test_closing_leaves_no_thread_behind(snapshot):
    before = threading.active_count()
    with Worker() as worker:
        worker.submit(snapshot).result(30.0)
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_an_error_travels_to_whoever_asks_and_the_worker_goes_on(snapshot):
    with Worker("best", PARAMS) as worker:
        with pytest.raises(InputError, match="'best'; it must be one of"):
            worker.submit(snapshot).result(30.0)
        worker.planner = "bfd"
        assert worker.submit(snapshot).result(30.0).number == 2


# The lock of the interpreter


def endless():
    """A snapshot with ever so many ways to nearly fill the nodes: dp tries until its budget is spent."""
    rng = np.random.default_rng(0)
    nodes = (Node("n0", 5 * 10**7), Node("n1", 5 * 10**7))
    sizes = rng.integers(1, 10**7, 40).tolist()
    return Snapshot(0.0, nodes, tuple(Session(f"s{i:02}", size) for i, size in enumerate(sizes)))


def count_until(future):
    """A pure-Python loop: how far it counts until the future is done."""
    n = 0
    while not future.done():
        n += 1
    return n


def alarm(seconds):
    """A future that is done after so many seconds, in which nothing else happens."""
    future: Future[None] = Future()
    threading.Timer(seconds, future.set_result, [None]).start()
    return future


@pytest.mark.skipif(
    not hasattr(search.solve, "py_func"),
    reason="NUMBA_DISABLE_JIT=1: interpreted kernels hold the GIL",
)
def test_python_goes_on_while_a_kernel_runs():
    with Worker("dp", Params(quantum_tokens=1, state_budget=1)) as worker:
        worker.submit(endless()).result(60.0)  # compiled now
        shares, budget = [], 500_000
        while len(shares) < 3 and max(shares, default=0.0) < 0.5:  # where others work too, once is enough
            worker.params = Params(quantum_tokens=1, state_budget=budget)
            began_s = time.perf_counter()
            future = worker.submit(endless())
            counted = count_until(future)
            took_s = time.perf_counter() - began_s
            assert future.result().plan.states == budget + 1
            if took_s < 0.2 and budget < 8_000_000:  # too short to tell
                budget *= 2
            else:
                shares.append(counted / count_until(alarm(took_s)))
    print(f"\nwhile dp ran for {took_s:.2f} s, a loop counted {max(shares):.0%} of what it counts alone")
    assert max(shares) > 0.25
