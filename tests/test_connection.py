"""Which nodes one is connected to, why, what is left of it; and that the key is nowhere."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from raw_server import MODELS, RawServer, answers, hangs, whole

import tao
from tao import cli
from tao.checks import InputError
from tao.live import Plan, connection, probe
from tao.live.connection import Connection, connect

ROOT = Path(__file__).parents[1]
KEY = "sk-planted-0123456789"
CLOSED = "http://127.0.0.1:1"
FOREIGN = {"object": "list", "data": [{"id": "llama", "owned_by": "library"}]}
ILL = {  # what the reason says: the handler of /v1/models
    "timeout": hangs,
    "status 401: Unauthorized; give its API key as key_env": answers(whole(401, {"error": "Unauthorized"})),
    "it is not vLLM: its models belong to library": answers(whole(200, FOREIGN)),
}


@pytest.fixture(autouse=True)
def no_nodes(monkeypatch):
    monkeypatch.delenv("TAO_NODES", raising=False)


@pytest.fixture(scope="module")
def double():
    """Two simulated servers that want the key."""
    from tao.live.double.serve import Deployment

    os.environ["TAO_PLANTED"] = KEY
    with Deployment(Plan(nodes=2, kv_tokens=16_384, speedup=20, api_key_env="TAO_PLANTED")) as deployment:
        yield deployment
    del os.environ["TAO_PLANTED"]


def gone(urls):
    """Whether nothing listens there any more, soon."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if all(each.reason == "it refused the connection" for each in probe(urls)):
            return True
        time.sleep(0.05)
    return False


def urls_of(connected):
    return [str(client.url) for client in connected.clients]


# Live


@pytest.mark.parametrize("form", ["list", "commas", "spaces", "environment"])
def test_live_if_some_nodes_answer_and_the_others_are_named(form, monkeypatch):
    with RawServer({}) as a, RawServer({}) as b, RawServer({"/v1/models": answers(whole(503, {}))}) as ill:
        nodes = [a.url, CLOSED, b.url + "/v1", ill.url]
        text = (" \n" if form == "spaces" else ", ").join(nodes)
        if form == "environment":
            monkeypatch.setenv("TAO_NODES", text)
        with connect(nodes if form == "list" else None if form == "environment" else text) as connected:
            assert (connected.mode, connected.speedup) == ("LIVE", 1.0)
            assert urls_of(connected) == [a.url, b.url]
            reasons = {each.url: each.reason for each in connected.missing}
            assert reasons == {
                CLOSED: "it refused the connection",
                ill.url: "status 503: no reason given",
            }
            assert connected.reason == "without " + "; ".join(f"{u}: {r}" for u, r in reasons.items())
            assert connected.banner == f"LIVE: 2 nodes, vLLM of unknown version; {connected.reason}"
            assert connected.clients[0].models().result() == MODELS["data"]
        connected.close()
        with pytest.raises(InputError, match="closed"):
            connected.clients[0].models()


def test_a_node_that_takes_its_time_is_live_and_nothing_else_is_left(monkeypatch):
    started = []
    simulated = connection._simulated
    monkeypatch.setattr(connection, "_simulated", lambda plan: started.append(simulated(plan)) or started[-1])
    monkeypatch.setattr(connection, "PATIENCE_S", 0.05)

    async def slowly(request, send):
        while not started:
            await asyncio.sleep(0.01)
        await answers(whole(200, MODELS))(request, send)

    monkeypatch.setattr(connection, "PROBE_S", 20.0)
    with RawServer({"/v1/models": slowly}) as server, connect(server.url) as connected:
        assert connected.mode == "LIVE"
        assert gone(started[0].urls)


def test_where_one_node_answers_at_once_no_other_is_simulated(monkeypatch):
    monkeypatch.setattr(connection, "_simulated", lambda plan: pytest.fail("a child was started"))
    with RawServer({}) as good, RawServer({"/v1/models": hangs}) as ill, connect([good.url, ill.url]) as c:
        assert (c.mode, len(c.clients)) == ("LIVE", 1)
        assert "timeout" in c.reason


def test_connections_from_many_threads_and_from_a_coroutine():
    before = threading.active_count()
    with RawServer({}) as server:

        def once(_):
            with connect(server.url, fallback=False) as connected:
                return connected.clients[0].models().result()[0]["id"]

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(once, range(24))) == {"tiny"}

        async def cell():
            with connect(server.url, fallback=False) as connected:
                return (await connected.clients[0].models())[0]["id"]

        assert asyncio.run(cell()) == "tiny"
    assert threading.active_count() == before


# Simulated


@pytest.mark.parametrize("reason", [*ILL, "it refused the connection"])
def test_the_reason_is_one_sentence_and_without_fallback_an_error(reason, monkeypatch):
    monkeypatch.setattr(connection, "PROBE_S", 0.3)
    with RawServer({"/v1/models": ILL.get(reason, hangs)}) as server:
        url = server.url if reason in ILL else CLOSED
        with pytest.raises(InputError) as caught:
            connect(url, fallback=False)
        assert str(caught.value).startswith(f"no node answers: {url}: {reason}")
        assert "\n" not in str(caught.value)


def test_the_reason_where_no_node_is_named_and_on_binder(monkeypatch):
    for nothing in (None, "", [], " , "):
        with pytest.raises(InputError, match=r"no node is named \(\$TAO_NODES is not set\)"):
            connect(nothing, fallback=False)
    monkeypatch.setenv("BINDER_LAUNCH_HOST", "https://mybinder.org/")
    with pytest.raises(InputError, match="on Binder, only ports 80 and 443 leave here; start a server"):
        connect(CLOSED, fallback=False)


def test_simulated_if_none_answers_and_it_ends_when_closed_or_dropped():
    with RawServer({"/v1/models": hangs}) as server:
        connected = connect(server.url)
    assert (connected.mode, connected.speedup, len(connected.clients)) == ("SIMULATED", 4.0, 2)
    assert connected.reason.startswith(f"no node answers: {server.url}: timeout")
    assert [each.url for each in connected.missing] == [server.url]
    assert connected.banner.startswith(
        "SIMULATED: 2 nodes, vLLM 0.32.0, 4 times as fast as real ones; no node"
    )
    assert repr(connected) == f"<{connected.banner}>"
    second = connect(plan=Plan(nodes=1, speedup=2, version="0.20"))
    assert (second.speedup, len(second.clients), second.mode) == (2.0, 1, "SIMULATED")
    assert "1 node, vLLM 0.20.2, 2 times" in second.banner
    left, dropped = urls_of(connected), urls_of(second)
    connected.close()
    connected.close()
    assert gone(left)
    del second
    gc.collect()
    assert gone(dropped)


def test_nothing_outlives_a_process_that_does_not_close():
    code = "import tao; c = tao.connect(plan=None); print(*(str(x.url) for x in c.clients)); raise SystemExit"
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert gone(done.stdout.split())


def test_the_simulated_servers_may_want_a_key_too(monkeypatch):
    monkeypatch.setenv("TAO_PLANTED", KEY)
    with connect(plan=Plan(nodes=1, api_key_env="TAO_PLANTED", version="0.10")) as connected:
        (row,) = connected.doctor()
    assert (row["version"], row["lost prefix"]) == ("0.10.2", "0 tokens")
    assert "update vLLM to 0.29" in row["change"]
    assert "per-request" not in row["change"]


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ("nonsense", {}),
        ([CLOSED, CLOSED], {}),
        ([5], {}),
        (CLOSED, {"key_env": "TAO_NO_SUCH"}),
        (CLOSED, {"key": KEY, "key_env": "HOME"}),
        (CLOSED, {"ca": "absent.pem"}),
        (f"http://{KEY}@h:1", {}),
        (None, {"plan": Plan(nodes=0)}),
    ],
)
def test_wrong_input_is_refused_and_not_simulated_away(given, options):
    with pytest.raises(InputError) as caught:
        connect(given, **options)
    assert "\n" not in str(caught.value)
    assert KEY not in str(caught.value)


# Doctor


def test_the_doctor_of_the_command_line(double, capsys):
    ask = ["doctor", *double.urls, CLOSED, "--key-env", "TAO_PLANTED"]
    assert cli.main(ask) == 0
    told = capsys.readouterr().out
    assert told.startswith(
        "LIVE: 2 nodes, vLLM 0.32.0; without http://127.0.0.1:1: it refused the connection\n"
    )
    assert "  KV tokens    16,384\n" in told
    assert told.endswith("http://127.0.0.1:1\n  change  it refused the connection\n")
    assert cli.main([*ask, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["node"] for row in rows] == [*(u.removeprefix("http://") for u in double.urls), CLOSED]
    page = (ROOT / "tao" / "live" / "README.md").read_text("utf-8")
    described = {
        name for cells in re.findall(r"^\| ([\w, ]+) \|", page, re.MULTILINE) for name in cells.split(", ")
    }
    assert set(rows[0]) <= described | {"node"}


@pytest.mark.parametrize(
    "words", ["", "nonsense", "http://127.0.0.1:1", "http://127.0.0.1:1 --key-env TAO_NO_SUCH", "h:1 --ca x"]
)
def test_a_mistake_on_the_command_line_is_one_line(words, capsys):
    assert cli.main(["doctor", *words.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tao: error: ")
    assert captured.err.count("\n") == 1


# The key


def traced(error):
    """What a traceback with the values of all variables shows, but for those of the tests themselves."""
    lines = traceback.TracebackException.from_exception(error, capture_locals=True)
    return "".join(
        line
        for part in lines.stack
        if part.filename != __file__
        for line in (part.line or "", str(part.locals))
    ) + str(error)


def test_the_key_shows_nowhere(double, monkeypatch, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    leak = {"error": {"message": f"no such key: {KEY}", "code": 401}}
    shown = []
    with connect(double.urls, key_env="TAO_PLANTED") as connected:
        reply = connected.clients[0].chat([{"role": "user", "content": "x"}], max_tokens=2).result()
        shown += [repr(connected), str(vars(connected)), connected.banner, connected.doctor(), reply]
        shown += [dataclasses.asdict(reply), connected.clients, vars(connected.clients[0]), connected.missing]
    with RawServer({"/v1/models": answers(whole(401, leak))}) as server:
        for options in (
            {"key": KEY},
            {"key_env": "TAO_PLANTED"},
            {"key": KEY, "ca": "absent"},
            {"key": KEY + "\n"},
            {"key": KEY, "key_env": KEY},
            {"key_env": KEY},
        ):
            with pytest.raises(InputError) as caught:
                connect(server.url, fallback=False, **options)
            shown += [traced(caught.value)]
        assert f"Bearer {KEY}" in [r.headers.get("authorization") for r in server.requests]
        assert cli.main(["doctor", server.url, "--key-env", "TAO_PLANTED"]) == 2
        assert cli.main(["doctor", server.url, "--key-env", KEY]) == 2
    assert cli.main(["doctor", double.urls[0], "--key-env", "TAO_PLANTED", "--json"]) == 0
    shown += [caplog.text, *capfd.readouterr()]
    assert [text for text in map(str, shown) if KEY in text] == []
    assert [text for text in map(repr, shown) if KEY in text] == []


def test_the_key_panel_gives_the_key_and_keeps_nothing(caplog):
    widgets = pytest.importorskip("ipywidgets")
    from ipywidgets.embed import embed_data

    from tao.panels import KeyPanel

    widgets.Widget.close_all()  # what other tests have left would be embedded too
    caplog.set_level(logging.DEBUG)
    got, sent = [], []
    with RawServer({}) as server:

        def use(key):
            got.append(str(key) == KEY)
            return connect(server.url, key=key, fallback=False)

        panel = KeyPanel(use)
        panel.field.comm.publish_msg = lambda *_, **message: sent.append(message)
        assert panel.button.disabled
        for _ in range(2):  # as the front end sends it
            panel.field._handle_msg(
                {
                    "content": {"data": {"method": "update", "state": {"value": KEY}, "buffer_paths": []}},
                    "buffers": [],
                }
            )
            saved = [panel.field.value, embed_data([panel.root]), widgets.Widget.get_manager_state(), sent]
            saved += [panel.__dict__, panel.text(), panel._repr_mimebundle_()]
            panel.button.click()
            assert panel.button.disabled
        assert {r.headers["authorization"] for r in server.requests} == {f"Bearer {KEY}"}
    assert got == [True, True]
    told = [message["data"] for message in sent]
    assert [data["method"] for data in told if "value" in data["state"]] == ["update"] * 2  # no echo
    assert {data["state"].get("value") for data in told} == {""}  # the front end empties its field
    assert isinstance(panel.result, Connection)
    panel.result.close()
    saved += [embed_data([panel.root]), widgets.Widget.get_manager_state(), vars(panel), panel.result]
    assert [x for x in map(str, [*saved, caplog.text, sent]) if KEY in x] == []
    panel.close()


def test_a_key_that_is_refused_shows_the_reason_in_the_panel_and_not_the_key(caplog):
    pytest.importorskip("ipywidgets")
    from tao.panels import KeyPanel

    leak = {"error": {"message": f"no such key: {KEY}", "code": 401}}
    with RawServer({"/v1/models": answers(whole(401, leak))}) as server:
        panel = KeyPanel(lambda key: connect(server.url, key=key, fallback=False))
        panel.field.value = KEY
        panel.button.click()  # ipywidgets logs what a handler raises
    assert "status 401" in panel.error.value
    (record,) = caplog.records
    assert KEY not in panel.error.value + caplog.text + traced(record.exc_info[1])
    assert panel.result is None
    panel.field.value = KEY
    panel.close()
    assert KEY not in str(vars(panel))


# What the pages say


@pytest.mark.parametrize("name", ["README.md", "tao/live/README.md"])
def test_the_examples_of_the_pages_run(name, double, monkeypatch, capsys):
    monkeypatch.setenv("TAO_NODES", ",".join(double.urls))
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text("utf-8"), re.DOTALL)
    names = {}
    for block in blocks:
        if "connect(" in block or "nodes" in names:
            exec(compile(block, name, "exec"), names)
    told = capsys.readouterr().out
    assert told.startswith("LIVE: 2 nodes, vLLM 0.32.0; every node that is named answers\n")
    assert KEY not in told


@pytest.mark.real_vllm
def test_the_commands_of_the_pages_have_only_options_of_the_real_server():
    home = os.environ.get("TAO_REAL_VLLM")
    if not home:
        pytest.skip("TAO_REAL_VLLM names no environment with vLLM for the CPU")
    told = subprocess.run(
        [f"{home}/bin/vllm", "serve", "--help=all"], capture_output=True, text=True, timeout=300, check=True
    )
    options = set(re.findall(r"--[a-z][a-z0-9-]+", told.stdout))
    pages = [(ROOT / name).read_text("utf-8") for name in ("README.md", "tao/live/README.md")]
    commands = [c for p in pages for c in re.findall(r"vllm serve .*?(?<!\\)\n", p, re.DOTALL)]
    commands += re.findall(r"`(--[^`]+)`", pages[1])
    used = {o for c in commands for o in re.findall(r"--[a-z][a-z0-9-]+", c)} - {
        "--key-env",
        "--help",
        "--json",
    }
    assert len(used) > 15
    assert used - options == set()


def test_it_is_offered_at_the_top_without_the_network_being_imported():
    assert tao.connect is connect
    code = "import sys, tao; assert 'connect' in dir(tao)\nprint({'aiohttp', 'pandas'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
