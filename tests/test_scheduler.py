"""The live scheduler: stories of a few agents, their tools, and nodes that fail."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
import threading
import time
from dataclasses import replace

import pytest

pytest.importorskip("uvicorn", reason="the extra `live` is not installed")

from asgi_node import AsgiNode, nodes_of, scheduler_on, virtual

from tao import state
from tao.live.agents import Ask, Finished, Function, Program, Sleep, in_thread
from tao.live.faults import BUSY, PASSING, Failed, Retryable
from tao.live.metrics_page import Load
from tao.live.runs import live_policy
from tao.live.servers import servers_of
from tao.live.stream import count
from tao.model import InputError, Params
from tao.policies import HOLD, POLICIES, TOOL, WAITING, Decision
from tao.profiles import PS_PER_S

PARAMS = Params(plan_cost_s=0.0, reserve_tokens=64, quantum_tokens=64)
HELLO = {"role": "user", "content": "hello"}
FEW = {"max_tokens": 4, "ignore_eos": True}


def once(tokens=100, answer=4, then=()):
    """An agent with one prompt of so many tokens, and what it does after it."""

    def script():
        yield Ask(prompt=list(range(1000, 1000 + tokens)), options={"max_tokens": answer, "ignore_eos": True})
        yield from then

    return script


def run(agents, policy="tao", nodes=2, kv_tokens=4112, before=None, params=PARAMS, **options):
    """The scheduler after its run; `before(scheduler, nodes)` is a coroutine that goes on beside it."""

    async def whole():
        servers = nodes if isinstance(nodes, list) else nodes_of(nodes, kv_tokens)
        scheduler = await scheduler_on(servers, policy, params, **options)
        beside = asyncio.ensure_future(before(scheduler, servers)) if before else None
        await scheduler.main(agents)
        if beside:
            await beside
        return scheduler

    return virtual(whole())


class Lazy:
    """A policy that places nobody."""

    period_s, gap_s = None, 0.0

    def route(self, view, i):
        return HOLD

    def on_finish(self, view, i):
        pass

    def tick(self, view):
        return Decision()


# Agents


def test_an_agent_is_sent_replies_and_what_its_tools_return():
    seen = []

    def script():
        reply = yield Ask([HELLO], options=FEW)
        seen.append(reply.completion_tokens)
        seen.append((yield Sleep(2.0)))
        seen.append((yield Function(lambda x: x + 1, (41,))))
        seen.append((yield Program([sys.executable, "-c", "print('done')"], 10.0)))

    async def real():
        scheduler = await scheduler_on(nodes_of(1, 4112), "sticky", PARAMS)
        await scheduler.main({"a": script})
        return scheduler.history

    history = asyncio.run(asyncio.wait_for(real(), 60))
    assert seen == [4, None, 42, Finished(0, b"done\n")]
    assert len(history.finished_ps) == 1


def test_what_a_tool_raises_reaches_the_agent_and_what_the_agent_raises_ends_it_alone():
    caught = []

    def careful():
        yield Ask([HELLO], options=FEW)
        try:
            yield Program(["/no/such/program"], 1.0)
        except InputError as error:
            caught.append(str(error))

    def careless():
        yield Ask([HELLO], options=FEW)
        raise KeyError("oh")

    def wrong():
        yield "a string"

    scheduler = run({"a": careful, "b": careless, "c": wrong, "d": lambda: 3})
    assert "cannot be run" in caught[0]
    assert list(scheduler.history.finished_ps) == [0]
    assert "KeyError" in scheduler.history.failed[1]
    assert "it may yield" in scheduler.history.failed[2]
    assert "no generator" in scheduler.history.failed[3]


@pytest.mark.parametrize("stop", ["timeout", "cancel"])
def test_a_program_and_its_children_end_at_the_timeout_or_with_the_run(stop, tmp_path):
    note = tmp_path / "pids"
    code = "import os, subprocess, sys, time; child = subprocess.Popen(['sleep', '60']); "
    code += "open(sys.argv[1], 'w').write(f'{os.getpid()} {child.pid}'); time.sleep(60)"
    found = []

    async def whole():
        work = Program([sys.executable, "-c", code, str(note)], 2.0 if stop == "timeout" else 50.0)
        work = asyncio.ensure_future(work.work(1.0))
        if stop == "cancel":
            while not (note.exists() and len(note.read_text().split()) == 2):
                await asyncio.sleep(0.02)
            work.cancel()
        found.extend(await asyncio.gather(work, return_exceptions=True))

    asyncio.run(asyncio.wait_for(whole(), 60))
    assert (
        found[0] == Finished(None, b"") if stop == "timeout" else isinstance(found[0], asyncio.CancelledError)
    )
    for pid in note.read_text().split() if note.exists() else ():
        assert gone(int(pid))


def gone(pid):
    """Whether a process has ended; a zombie has."""
    for _ in range(400):
        try:
            with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("left", ["sleep 30 & echo $!", "(sleep 30 & echo $!)", "setsid sleep 30 & echo $!"])
@pytest.mark.parametrize("status", [0, 3])
def test_a_program_is_over_when_it_has_ended_whatever_it_leaves_behind(left, status):
    """What is left in its process group is ended, too; a daemon with one of its own is not ours to end."""
    if "setsid" in left and not shutil.which("setsid"):
        pytest.skip("there is no setsid")

    async def whole():
        descriptors, began_s = len(os.listdir("/dev/fd")), time.monotonic()  # noqa: PTH208
        found = await Program(["sh", "-c", f"{left}; printf '%070000d' 7; exit {status}"], 20.0).work(1.0)
        assert time.monotonic() - began_s < 5.0
        assert len(os.listdir("/dev/fd")) == descriptors  # noqa: PTH208
        return found

    found = asyncio.run(asyncio.wait_for(whole(), 60))
    pid, _, rest = found.output.partition(b"\n")
    try:
        assert (found.status, rest) == (status, b"7".rjust(70_000, b"0"))
        assert "setsid" in left or gone(int(pid))
    finally:
        if "setsid" in left:
            os.kill(int(pid), signal.SIGKILL)


def test_only_the_end_of_a_long_output_is_kept():
    code = "import sys; sys.stdout.write('x' * 3_000_000 + 'end')"
    found = asyncio.run(Program([sys.executable, "-c", code], 30.0).work(1.0))
    assert (len(found.output), found.output[-3:]) == (2**20, b"end")


def test_a_function_that_never_ends_holds_nothing_up():
    async def whole():
        work = asyncio.ensure_future(in_thread(threading.Event().wait))
        await asyncio.sleep(0.05)
        work.cancel()
        await asyncio.wait([work])

    asyncio.run(asyncio.wait_for(whole(), 5))


def blocks(seconds):
    """A call that lasts, such as the end of a container, and says when it has ended."""
    ended = threading.Event()
    return lambda: (time.sleep(seconds), ended.set()), ended


@pytest.mark.parametrize("where", ["beginning", "code", "end"])
@pytest.mark.parametrize("stop", ["stop", "cancel"])
def test_what_an_agent_does_by_itself_holds_nothing_up(where, stop):
    block, ended = blocks(2.0)

    def script():
        try:
            yield Ask([HELLO], options=FEW)
            if where == "code":
                block()
            yield Sleep(100.0)
        finally:
            block() if where == "end" else ended.set()

    def agent():
        if where == "beginning":
            block()
        return script()

    made = live_policy("sticky", PARAMS)  # which compiles it

    async def whole():
        scheduler = await scheduler_on(nodes_of(1, 4112), made, PARAMS)
        scheduler.options.background = True
        going = asyncio.ensure_future(scheduler.main({"a": agent, "b": once(then=[Sleep(0.1)] * 3)}))
        worst_s = 0.0
        while not going.done():
            began_s = time.monotonic()
            await asyncio.sleep(0.01)
            worst_s = max(worst_s, time.monotonic() - began_s)
            if 1 in scheduler.history.finished_ps and not scheduler._stopped:
                scheduler.stop() if stop == "stop" else scheduler.cancel(0, "the run was stopped")
        await going
        return worst_s, scheduler.history

    worst_s, history = asyncio.run(asyncio.wait_for(whole(), 60))
    assert worst_s < 1.0
    assert (history.failed, list(history.finished_ps)) == ({0: "the run was stopped"}, [1])
    assert ended.wait(10)
    if where != "beginning":  # where it was canceled before it had begun there is nothing to clean up
        assert history.notes == ["sessions that still cleaned up when the run ended: a"]


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("why", ["stop", "cancel", "node", "wrong"])
@pytest.mark.parametrize("wrong", ["raises", "yields"])
def test_what_an_agent_raises_on_cleaning_up_is_in_the_record(background, why, wrong):
    def script():
        try:
            yield "a string" if why == "wrong" else Ask([HELLO], options=FEW)
            if why == "node":
                yield Ask(prompt=list(range(9000)))
            yield Sleep(100.0)
        finally:
            if wrong == "raises":
                raise OSError("no such container")
            yield Sleep(1.0)

    async def whole():
        scheduler = await scheduler_on(nodes_of(1, 4112), "sticky", PARAMS)
        scheduler.options.background = background
        going = asyncio.ensure_future(scheduler.main({"a": script}))
        await asyncio.sleep(0.5)
        if why in ("stop", "cancel"):
            scheduler.stop() if why == "stop" else scheduler.cancel(0)
        await going
        return scheduler.history

    history = asyncio.run(asyncio.wait_for(whole(), 60))
    what = "OSError: no such container" if wrong == "raises" else "RuntimeError: generator ignored"
    assert [what in note and "'a'" in note for note in history.notes] == [True]
    why = {"stop": "was stopped", "cancel": "canceled", "node": "the largest node", "wrong": "it may yield"}[
        why
    ]
    assert why in history.failed[0]


def test_text_of_a_model_is_data(tmp_path):
    trap = tmp_path / "trap"

    def script():
        reply = yield Ask([{"role": "user", "content": f"$(touch {trap}); `touch {trap}`"}], options=FEW)
        yield Program(
            [sys.executable, "-c", "import sys; print(sys.argv[1])", f"{reply.text}; touch {trap}"], 9.0
        )

    async def real():
        scheduler = await scheduler_on(nodes_of(1, 4112), "sticky", PARAMS)
        await scheduler.main({"a": script})

    asyncio.run(asyncio.wait_for(real(), 60))
    assert not trap.exists()


# Room, credit, readiness


def test_free_tokens_are_the_servers_less_a_block_contexts_and_reserve():
    seen = {}

    async def look(scheduler, nodes):
        await asyncio.sleep(1.0)
        s = scheduler.view.state
        seen["free"] = int(state.free_tokens(s, 0))
        seen["noted"] = scheduler.view.noted_tokens[:2, 0].tolist()

    run({"a": once(100, 4, [Sleep(5.0)]), "b": once(50, 3, [Sleep(5.0)])}, nodes=1, before=look)
    assert seen["free"] == 4112 - 16 - 104 - 53 - 2 * PARAMS.reserve_tokens
    assert seen["noted"] == [96, 48]  # full blocks of prompt and answer


def test_the_load_of_others_is_shown_and_subtracted_only_if_asked():
    async def whole(subtract):
        nodes = nodes_of(1, 4112)
        other = asyncio.ensure_future(nodes[0].complete(list(range(1000)), max_tokens=300, ignore_eos=True))
        await asyncio.sleep(0.5)
        servers = await servers_of(nodes, None, subtract_others=subtract)
        scheduler = await scheduler_on(nodes, "tao", PARAMS)
        scheduler.servers.subtract_others = subtract
        scheduler.servers.measure_room(scheduler.view.state, 0.0)
        others = servers.others_tokens(scheduler.view.state, 0)
        other.cancel()
        return others, int(scheduler.view.capacity_tokens[0])

    (others, alone), (_, less) = virtual(whole(False)), virtual(whole(True))
    assert 1000 <= others < 1100
    assert alone == 4096
    assert alone - 1100 < less <= alone - 1000


def test_readiness_comes_from_what_tools_did():
    seen = []

    async def look(scheduler, nodes):
        await asyncio.sleep(2.0)  # in the tool of the second turn
        tool = scheduler.view.tool(0)
        seen.append((tool.name, tool.command_class, round(tool.expected_s, 2)))

    def script():
        for k in range(3):
            yield Ask([HELLO], options=FEW)
            yield Sleep(0.5 if k == 0 else 3.0, "bash", "test")

    run({"a": script}, nodes=1, before=look)
    assert seen == [("bash", "test", 0.5)]


def test_who_does_not_fit_waits_and_comes_when_there_is_room():
    history = run({"a": once(3000, 4, [Sleep(3.0)]), "b": once(3000, 4)}, nodes=1).history
    second = history.turns[1]
    assert second.arrived_ps < PS_PER_S
    assert second.submitted_ps > 3 * PS_PER_S
    assert history.failed == {}


def test_a_request_larger_than_every_node_fails_with_the_sizes():
    history = run({"a": once(9000), "b": once(100)}).history
    assert "9,064" in history.failed[0]
    assert "4,096" in history.failed[0]
    assert list(history.finished_ps) == [1]


def test_a_paused_session_comes_back():
    class Pauses(Lazy):
        def on_finish(self, view, i):
            if view.turn[i] == 0:
                view.leaving[i] = 1

        def tick(self, view):
            return Decision([(int(i), 0) for i in view.pool if view.phase[i] == WAITING])

    def script():
        for _ in range(2):
            yield Ask([HELLO], options=FEW)
            yield Sleep(1.0)

    async def look(scheduler, nodes):
        await asyncio.sleep(0.5)
        assert scheduler.view.phase[0] == TOOL
        assert scheduler.view.resident[0] == HOLD

    scheduler = run({"a": script}, policy=Pauses(), before=look)
    assert [turn.promised_tokens >= 0 for turn in scheduler.history.turns] == [True, True]
    assert scheduler.history.failed == {}


# What goes wrong


def test_a_turn_that_a_node_refuses_goes_elsewhere_and_that_node_is_left_out():
    nodes = None

    async def whole():
        nonlocal nodes
        nodes = nodes_of(2, 4112)
        scheduler = await scheduler_on(nodes, "sticky", PARAMS)
        nodes[0].down = True
        await scheduler.main({"a": once(), "b": once(), "c": once()})
        return scheduler

    scheduler = virtual(whole())
    assert scheduler.history.failed == {}
    assert set(scheduler.history.column("node")) == {1}
    assert scheduler.retries >= 1
    assert "refused" in str(scheduler.servers[0].fault)


def test_after_three_attempts_the_user_is_told_why():
    async def whole():
        nodes = nodes_of(2, 4112)
        scheduler = await scheduler_on(nodes, "tao", PARAMS)
        for node in nodes:
            node.down = True
        await scheduler.main({"a": once()})
        return scheduler

    scheduler = virtual(whole())
    assert scheduler.requests == 3
    assert "connection refused" in scheduler.history.failed[0]


@pytest.mark.parametrize("policy", ["tao", "vllm_cache_aware"])
def test_credit_is_lost_with_the_process_that_held_it(policy):
    def script():
        yield Ask(prompt=list(range(1000, 1500)), options=FEW)
        yield Sleep(4.0)

    async def look(scheduler, nodes):
        await asyncio.sleep(1.0)
        assert scheduler.view.noted_tokens[0].sum() == 496
        where = int(scheduler.view.last_node[0])
        nodes[where].app.start()
        load = await nodes[where].metrics()
        earlier = scheduler.servers[where].load
        scheduler.saw(where, load if load.restarted_since(earlier) else Load(started_s=1.0), None)
        assert scheduler.view.noted_tokens.sum() == 0

    scheduler = run({"a": script}, policy=policy, before=look)
    assert "started anew" in scheduler.history.notes[0]


REFUSALS = [Retryable("n", status, "no", status not in BUSY) for status in (None, *PASSING)]
REFUSALS += [Failed("n", 500, "broke off", suspect=True), Failed("n", 400, "too long")]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: f"{type(error).__name__}-{error.status}")
def test_a_node_that_refuses_is_left_out_and_nobody_has_credit_there(error):
    """However it says so; only a request that is itself at fault tells nothing about the node."""
    counts = not (isinstance(error, Failed) and error.status == 400)

    def script():
        yield Ask(prompt=list(range(1000, 1500)), options=FEW)
        yield Sleep(2.0)
        yield Ask(prompt=list(range(1000, 1500)), options=FEW)

    async def look(scheduler, nodes):
        await asyncio.sleep(1.0)
        noted, b = scheduler.view.noted_tokens, int(scheduler.view.last_node[0])
        assert (noted[:2, b] == 496).all()
        answer = nodes[b].complete

        async def refuse(*args, **options):
            nodes[b].complete = answer
            raise error

        nodes[b].complete = refuse
        while nodes[b].complete is not answer:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        out_s = scheduler.servers[b].out_until_s - asyncio.get_running_loop().time()
        assert (noted[:2, b] == (0 if counts else 496)).all()
        assert 0.4 < out_s < 1.5 if counts else out_s < 0

    class Packs(Lazy):
        """All on the first node."""

        def route(self, view, i):
            return 0

    history = run({"a": script, "b": once(500, 4, [Sleep(9.0)])}, policy=Packs(), before=look).history
    again = [turn.node for turn in history.turns if (turn.session, turn.turn) == (0, 1)]
    assert again == ([1] if isinstance(error, Retryable) else [])
    assert (0 in history.failed) == isinstance(error, Failed)


def test_an_answer_that_breaks_off_is_not_sent_again():
    async def look(scheduler, nodes):
        for node in nodes:
            node.app.truncate = 1

    scheduler = run({"a": once(100, 40)}, before=look)
    assert scheduler.retries == 0
    assert "ended before" in scheduler.history.failed[0]


def test_a_policy_that_goes_wrong_ends_the_run_with_its_name():
    class Broken(Lazy):
        def tick(self, view):
            raise ZeroDivisionError

    with pytest.raises(InputError, match=r"the policy's tick raised ZeroDivisionError"):
        run({"a": once()}, policy=Broken())


def test_a_policy_that_places_nobody_is_noticed():
    with pytest.raises(InputError, match=r"nothing runs, 1 sessions wait"):
        run({"a": once()}, policy=Lazy())


class Liar(AsgiNode):
    """A node whose usage and metrics say what a test wants."""

    lies, page = {}, {}

    async def _generate(self, *args, **options):
        reply = await super()._generate(*args, **options)
        return replace(reply, **{name: count(x) for name, x in self.lies.items()})

    async def metrics(self):
        return replace(await super().metrics(), **self.page)


LIES = [0, 1, 2**39, 2**40 - 1, 2**40, 2**40 + 1, 2**53, 2**63, 10**300, -1, None]


@pytest.mark.parametrize("policy", ["tao", "sticky", "thunderagent", "vllm_cache_aware", "dynamo_kv"])
@pytest.mark.parametrize("seed", range(6))
def test_a_node_that_lies_ends_no_run(policy, seed):
    """Its own sessions may be misplaced for it; all are accounted for, and others are as they were."""
    rng = random.Random(seed)
    used = ("prompt_tokens", "completion_tokens", "cached_tokens")
    shown = ("running", "waiting", "kv_used", "hit_tokens", "started_s")

    def script():
        messages = [HELLO]
        for _ in range(3):
            reply = yield Ask(messages, options=FEW)
            messages = [*messages, {"role": "assistant", "content": reply.text}, HELLO]
            yield Sleep(0.5)

    async def whole():
        honest, lying = nodes_of(2, 4112)
        liar = Liar("n1", lying.app)
        scheduler = await scheduler_on([honest, liar], policy, PARAMS)
        going = asyncio.ensure_future(scheduler.main(dict.fromkeys("abcdef", script)))
        while not going.done():
            liar.lies = {name: rng.choice(LIES) for name in used}
            liar.page = {name: float(rng.choice(LIES) or 0.5) for name in shown}
            for b, node in enumerate([honest, liar]):
                scheduler.saw(b, await node.metrics(), None)
            await asyncio.sleep(0.2)
        await going
        return scheduler

    scheduler = virtual(whole())
    history = scheduler.history
    assert len(history.finished_ps) + len(history.failed) == 6
    assert (scheduler.view.state.node[:, state.USED] == 0).all()
    assert len(history.finished_ps) >= 2
    assert all("the largest node holds" in why for why in history.failed.values())


@pytest.mark.parametrize("room", [1, 2, 16, 4096])
@pytest.mark.parametrize("block", [None, 1, 16, 2**40])
def test_whatever_blocks_a_node_says_it_has_a_run_begins(room, block):
    class Odd:
        name = "n7"

        async def metrics(self):
            return Load(kv_tokens=room, block_size=block)

    server = asyncio.run(servers_of([Odd()], None))[0]
    assert 0 <= server.capacity_tokens < room
    assert 0 <= server.noted_tokens(100) <= 100


@pytest.mark.parametrize("when", ["in a turn", "in a look"])
def test_a_listener_that_goes_wrong_ends_the_run_with_its_error(when):
    async def look(scheduler, nodes):
        await asyncio.sleep(0.5)
        scheduler.options.on_change = lambda: {}["oh"]
        if when == "in a look":
            scheduler.saw(0, await nodes[0].metrics(), None)

    with pytest.raises(KeyError, match="oh"):
        run({"a": once(then=[Sleep(1.0), Ask([HELLO], options=FEW)])}, before=look)


# Ends


@pytest.mark.parametrize(
    ("limit", "note"), [({"max_seconds": 2.0}, "max_seconds = 2"), ({"max_requests": 2}, "max_requests = 2")]
)
def test_a_run_stops_by_itself(limit, note):
    def script():
        while True:
            yield Ask([HELLO], options=FEW)
            yield Sleep(1.0)

    scheduler = run({"a": script, "b": script}, **limit)
    assert note in scheduler.history.notes[0]
    assert scheduler.history.failed == dict.fromkeys((0, 1), "the run was stopped")
    assert (scheduler.view.state.node[:, state.USED] == 0).all()


def test_workers_take_the_next_session_when_one_is_done():
    history = run({name: once(50, 4) for name in "abcde"}, workers=2).history
    starts = sorted(history.started_ps.values())
    assert starts[1] < starts[2]
    assert len(history.finished_ps) == 5


def test_another_policy_may_go_on():
    def script():
        for _ in range(8):
            yield Ask([HELLO], options=FEW)
            yield Sleep(2.0)

    async def look(scheduler, nodes):
        for name in ("thunderagent", "vllm_rr", "tao"):
            await asyncio.sleep(3.0)
            scheduler.switch(POLICIES[name](PARAMS), PARAMS)

    history = run(dict.fromkeys("abc", script), before=look).history
    assert (len(history.finished_ps), history.failed) == (3, {})


def test_a_session_that_is_canceled_in_the_pool_leaves_it():
    async def look(scheduler, nodes):
        await asyncio.sleep(0.5)
        assert scheduler.view.phase[1] == WAITING
        scheduler.cancel(1)

    scheduler = run({"a": once(3000, 4, [Sleep(3.0)]), "b": once(3000, 4)}, nodes=1, before=look)
    assert scheduler.history.failed == {1: "canceled"}
    assert len(scheduler.view.pool) == 0


def test_what_a_server_must_tell_is_asked_before_the_run():
    class Silent:
        name = "silent"

        async def metrics(self):
            return Load()

    class Away:
        name = "away"

        async def metrics(self):
            raise Retryable("away", None, "connection refused")

    for node, reason in ((Silent(), "does not say how many KV tokens"), (Away(), "connection refused")):
        with pytest.raises(InputError, match=reason):
            asyncio.run(servers_of([node], None))
        assert asyncio.run(servers_of([node], 1000)).all[0].kv_tokens == 1000
    with pytest.raises(InputError, match="no nodes"):
        asyncio.run(servers_of([], None))


def test_a_plan_made_beside_is_rechecked():
    """In real time: whoever left the pool while the planner's thread was at work is not placed."""
    hold = threading.Event()

    async def whole():
        nodes = nodes_of(1, 4112)
        scheduler = await scheduler_on(nodes, "tao", PARAMS)
        scheduler.options.background = False
        from concurrent.futures import ThreadPoolExecutor

        scheduler._thread = ThreadPoolExecutor(1)
        plan = scheduler._plan_beside
        scheduler._plan_beside = lambda view: (hold.wait(5), plan(view))[1]
        going = asyncio.ensure_future(scheduler.main({"a": once(), "b": once()}))
        while scheduler._planning is None:
            await asyncio.sleep(0.001)
        scheduler.cancel(0)
        await asyncio.sleep(0.05)
        hold.set()
        await going
        return scheduler.history

    history = asyncio.run(asyncio.wait_for(whole(), 60))
    assert history.failed == {0: "canceled"}
    assert list(history.finished_ps) == [1]
    assert history.decisions[0].dropped == (("a", "n0", "session changed"),)


def test_nothing_is_compiled_during_a_run():
    from tao import _jit

    made = live_policy("tao", PARAMS)
    before = _jit.cache_misses()
    run({"a": once(), "b": once()}, policy=made)
    assert _jit.cache_misses() == before
