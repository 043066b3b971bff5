"""Live runs from outside, over sockets: begin, look, change, stop; what is left behind; what is refused."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("aiohttp", reason="the extra `live` is not installed")
pytest.importorskip("uvicorn", reason="the extra `live` is not installed")

from runs import append_only

import tao
from tao.live import Ask, Client, Program, Sleep, run
from tao.live.double.serve import Deployment, Plan
from tao.model import InputError, Params

PARAMS = Params(reserve_tokens=64, quantum_tokens=64)


@pytest.fixture(scope="module")
def urls():
    with Deployment(Plan(nodes=2, kv_tokens=8192, speedup=10.0)) as deployment:
        yield deployment.urls


@pytest.fixture
def nodes(urls):
    clients = [Client(url) for url in urls]
    yield clients
    for client in clients:
        client.close()


def talker(turns=2, seconds=0.2, tokens=5):
    def script():
        messages = [{"role": "user", "content": "hello " * 40}]
        for _ in range(turns):
            reply = yield Ask(messages, options={"max_tokens": tokens, "ignore_eos": True})
            messages = [*messages, {"role": "assistant", "content": reply.text}, messages[0]]
            yield Sleep(seconds)

    return script


def threads():
    return {t.name for t in threading.enumerate() if t.name.startswith("tao") and t.is_alive()}


def test_a_run_from_a_plain_cell_and_from_a_coroutine(nodes):
    going = run(nodes, {"a": talker(), "b": talker()}, params=PARAMS, workers=1)
    assert not going.done
    history = going.wait()
    assert going.done
    assert len(history.turns) == 4
    assert history.column("hit_tokens").tolist()[1] > 0
    assert history.settings["mode"] == "LIVE"
    assert 0 <= history.settings["loop_lag_s"] < 5
    assert tao.measure(history)["prefix_hit_rate"] > 0
    assert len(history.kept) == sum(d.planned for d in history.decisions) > 0

    async def awaited():
        return await run(nodes, {"a": talker()}, "sticky", params=PARAMS)

    assert len(asyncio.run(awaited()).finished_ps) == 1


def test_a_workload_is_replayed_token_by_token(nodes):
    work = append_only([(700, 9, 0.1), (40, 5, 0.0)], [(900, 3, 0.0)])
    history = run(nodes, work, params=PARAMS).wait()
    assert sorted(history.column("prompt_tokens")) == sorted(work.script.prompt)
    assert history.column("output_tokens").sum() == work.script.output.sum()
    row = next(r for r in history.turns if r.turn == 1)
    assert row.hit_tokens == 709 // 16 * 16 - 16 * (709 % 16 == 0)


def test_it_can_be_looked_at_and_changed_while_it_goes_on(nodes):
    going = run(nodes, {"a": talker(50, 0.5), "b": talker(50, 0.5)}, params=PARAMS, stay=True)
    while len(going.history.turns) < 3:
        time.sleep(0.05)
    rows = going.sessions()
    assert [row["session"] for row in rows] == ["a", "b"]
    assert {row["phase"] for row in rows} <= {"waiting", "answering", "tool"}
    assert sum(row["sessions"] for row in going.nodes()) == 2
    assert all(row["kv_tokens"] == 8192 for row in going.nodes())
    going.submit({"c": talker(1)})
    going.switch("thunderagent")
    going.cancel("a")
    while going.sessions()[2]["phase"] != "done":
        time.sleep(0.05)
    assert going.sessions()[0]["failure"] == "canceled"
    assert "thunderagent" in repr(going)
    began = time.monotonic()
    history = going.stop()
    assert time.monotonic() - began < 5
    assert history.failed == {0: "canceled", 1: "the run was stopped"}
    with pytest.raises(InputError, match="over"):
        going.submit({"d": talker()})


def test_a_busy_cell_does_not_stop_it(nodes):
    going = run(nodes, {"a": talker(5, 0.05)}, params=PARAMS)
    until = time.monotonic() + 60
    while not going.done and time.monotonic() < until:
        sum(range(20_000))
    assert len(going.wait().turns) == 5


def test_nothing_is_left_of_a_run_that_is_stopped_or_that_nobody_holds(nodes):
    before = threads()
    stopped = run(nodes, {"a": talker(50, 5.0)}, params=PARAMS)
    stopped.stop()
    dropped = run(nodes, {"a": talker(50, 5.0)}, params=PARAMS)
    main = dropped._main
    del dropped, stopped
    gc.collect()
    assert main.done()
    for node in nodes:
        until = time.monotonic() + 10
        while node.metrics().result().running and time.monotonic() < until:
            time.sleep(0.05)
        assert node.metrics().result().running == 0
    until = time.monotonic() + 10
    while threads() - before - {"tao-live"} and time.monotonic() < until:
        time.sleep(0.05)
    assert threads() - before - {"tao-live"} == set()


def test_a_program_that_ends_takes_its_run_and_tools_along(urls, tmp_path):
    note = tmp_path / "pid"
    code = f"""
import sys, time
from tao.live import Ask, Client, Program, run
def script():
    yield Ask([{{"role": "user", "content": "hello"}}], options={{"max_tokens": 2}})
    yield Program(["sh", "-c", "echo $$ > {note}; sleep 100"], 200.0)
going = run([Client({urls[0]!r})], {{"a": script}}, "sticky")
while not __import__("pathlib").Path({str(note)!r}).exists():
    time.sleep(0.05)
time.sleep(0.2)
"""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    pid = int(note.read_text())
    assert not os.path.exists(f"/proc/{pid}") or "Z" in open(f"/proc/{pid}/stat").read()  # noqa: PTH110, PTH123, SIM115


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"policy": "oracle"}, "which nobody knows in a live run"),
        ({"policy": "no such"}, "it must be one of"),
        ({"agents": {}}, "dict of session ids"),
        ({"agents": {"a": 3}}, "dict of session ids"),
        ({"agents": {"": talker()}}, "session id"),
        ({"workers": 0}, "workers"),
        ({"max_seconds": -1}, "max_seconds"),
        ({"max_requests": 0}, "max_requests"),
        ({"speed": 3}, "no option of a run"),
        ({"nodes": []}, "no nodes"),
        ({"kv_tokens": 1}, "kv_tokens"),
    ],
)
def test_what_is_refused(nodes, given, reason):
    before = threads()
    whole = {"nodes": nodes, "agents": {"a": talker()}} | given
    with pytest.raises(InputError, match=reason):
        run(whole.pop("nodes"), whole.pop("agents"), whole.pop("policy", "tao"), **whole)
    assert threads() <= before | {"tao-live"}


def test_a_program_is_an_argument_list():
    for argv in ("ls -l", [], [3]):
        with pytest.raises(InputError, match="list of strings"):
            Program(argv, 1.0)
    assert Program(["sleep", "3"], 9.0).asked_s == 3.0
    assert Program(["pytest", "-q"], 9.0).tool_class == "test"


def test_a_node_that_goes_away_in_real_time_is_left_out():
    fault = '{"kind": "crash", "node": 0, "at_s": 1.0}'
    with Deployment(Plan(nodes=2, kv_tokens=8192, speedup=10.0, faults=(fault,))) as deployment:
        clients = [Client(url) for url in deployment.urls]
        going = run(clients, {f"s{k}": talker(5, 0.8) for k in range(6)}, params=PARAMS)
        history = going.wait(120)
        for client in clients:
            client.close()
    assert len(history.finished_ps) + len(history.failed) == 6
    assert len(history.finished_ps) >= 4
    late = [turn.node for turn in history.turns if turn.submitted_ps > 2 * 10**12]
    assert set(late) == {1}
