"""Live runs in which nodes crash, hang, come back cold and refuse, and sessions are canceled at random.

Time is virtual, so a schedule takes a fraction of a second and is the same every time.
"""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="the extra `live` is not installed")

from asgi_node import nodes_of, scheduler_on, virtual

from tao import state
from tao.live.agents import Ask, Sleep
from tao.model import Params
from tao.policies import REASONING

PARAMS = Params(plan_cost_s=0.0, reserve_tokens=128, quantum_tokens=128)
POLICIES = ("tao", "sticky", "thunderagent", "vllm_rr", "dynamo_kv", "previous")
STOP_S = 5.0


def agent(seed):
    """A few turns of a chat that grows, or of a prompt, with tools between them."""

    def script():
        rng = random.Random(seed)
        messages = [{"role": "user", "content": "word " * rng.randint(50, 800)}]
        for _ in range(rng.randint(1, 6)):
            options = {"max_tokens": rng.randint(1, 40), "ignore_eos": True}
            reply = yield Ask(messages, options=options)
            messages = [
                *messages,
                {"role": "assistant", "content": reply.text},
                {"role": "user", "content": "word " * rng.randint(5, 300)},
            ]
            yield Sleep(rng.choice([0.0, 0.3, 4.0]) * rng.random(), asked_s=rng.choice([None, 1.0]))

    return script


async def suffer(kind, node, rng):
    """Something happens to a node; it is well again in the end."""
    engine = node.app.engine
    if kind in ("crash", "sigterm", "restart"):
        if kind != "restart":
            (engine.crash if kind == "crash" else engine.terminate)()
            await asyncio.sleep(rng.uniform(0.0, 3.0))
        node.cut()
        node.app.stop()
        await asyncio.sleep(rng.uniform(0.0, 4.0))
        node.app.start()
        node.down = False
    elif kind == "truncate":
        node.app.truncate += rng.randint(1, 3)
    else:
        name, value, well = {
            "hang": ("hung", True, False),
            "slow": ("slowness", 10.0, 1.0),
            "overload": ("refusing", True, False),
        }[kind]
        setattr(engine, name, value)
        await asyncio.sleep(rng.uniform(0.1, 5.0))
        setattr(engine, name, well)
        engine.wake()


KINDS = ("crash", "sigterm", "restart", "truncate", "hang", "slow", "overload", "cancel", "jump")


async def trouble(scheduler, nodes, rng):
    """One thing after the other, until it is canceled."""
    while True:
        await asyncio.sleep(rng.expovariate(1.0))
        kind = rng.choice(KINDS)
        if kind == "cancel":
            scheduler.cancel(rng.randrange(len(scheduler.talks)))
        elif kind == "jump":  # as after a suspended laptop wakes up
            asyncio.get_running_loop()._now_s += rng.uniform(0.0, 100.0)
        else:
            await suffer(kind, rng.choice(nodes), rng)


async def watched(scheduler, nodes):
    """The accounts, again and again."""
    while True:
        await asyncio.sleep(0.05)
        check(scheduler, nodes)
        if random.random() < 0.05:  # and what a look at each node would bring
            for b, node in enumerate(nodes):
                if not node.down and not node.app.engine.dead:
                    scheduler.saw(b, await node.metrics(), None)


def check(scheduler, nodes):
    """Every session is somewhere, once; what nodes hold is the sum of what sessions hold."""
    view, s, history = scheduler.view, scheduler.view.state, scheduler.history
    for b in range(len(nodes)):
        here = np.flatnonzero(view.resident == b)
        assert view.residents[b] == len(here)
        assert view.used_tokens[b] == view.context_tokens[here].sum()
        assert view.inflight[b] == (view.phase[here] == REASONING).sum()
        assert s.node[b, state.PREFILLING] == s.session[here, state.CHARGE].sum()
    on_cluster = set(view.live.tolist())
    assert set(view.pool.tolist()) == {i for i in on_cluster if view.resident[i] < 0}
    ended = set(history.finished_ps) | set(history.failed)
    assert not set(history.finished_ps) & set(history.failed)
    assert not on_cluster & ended
    waiting_or_new = set(scheduler._fresh) | set(scheduler._live())
    assert ended | waiting_or_new == set(range(len(scheduler.talks)))
    asked = [job.session_id for node in nodes for job in node.app.engine.jobs.values()]
    assert len(asked) == len(set(asked)), "a session is on two nodes"


async def schedule(seed):
    """One run with its troubles; with odd seeds it is stopped in the middle."""
    rng = random.Random(seed)
    nodes = nodes_of(rng.randint(1, 3), 6416, max_num_queued_reqs=rng.choice([None, 3]), keep_alive_s=10.0)
    policy = POLICIES[seed % len(POLICIES)]
    scheduler = await scheduler_on(nodes, policy, PARAMS, workers=rng.choice([None, 4]))
    agents = {f"s{k:02}": agent((seed, k).__hash__()) for k in range(rng.randint(3, 12))}
    run = asyncio.ensure_future(scheduler.main(agents))
    beside = [
        asyncio.ensure_future(work) for work in (trouble(scheduler, nodes, rng), watched(scheduler, nodes))
    ]
    loop = asyncio.get_running_loop()
    if seed % 2:
        await asyncio.sleep(rng.uniform(0.0, 10.0))
        beside[0].cancel()
        began_s = loop.time()
        scheduler.stop()
        await run
        assert loop.time() - began_s < STOP_S
    else:
        await asyncio.wait([run, *beside], return_when=asyncio.FIRST_COMPLETED, timeout=3600.0)
        assert run.done() or beside[1].exception() is None
    for task in beside:
        task.cancel()
    for result in await asyncio.gather(*beside, return_exceptions=True):
        assert isinstance(result, asyncio.CancelledError), result
    await run
    await asyncio.sleep(0.1)  # the servers notice that clients are gone
    check(scheduler, nodes)
    assert not scheduler._live()
    assert (scheduler.view.state.node[:, state.USED] == 0).all()
    assert all(not node.app.engine.jobs for node in nodes)
    assert len(scheduler.history.finished_ps) + len(scheduler.history.failed) == len(agents)
    assert all(scheduler.history.failed.values()), "a reason for each"
    return scheduler


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_the_accounts_are_right(seed):
    virtual(schedule(seed))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1500))
def test_whatever_happens_the_accounts_are_right_long(seed):
    virtual(schedule(seed))


def test_the_schedules_do_bring_trouble():
    runs = [virtual(schedule(seed)) for seed in range(0, 12, 2)]
    reasons = " ".join(reason for run in runs for reason in run.history.failed.values())
    assert sum(run.retries for run in runs) > 0
    assert sum(len(run.history.finished_ps) for run in runs) > 10
    assert "canceled" in reasons
