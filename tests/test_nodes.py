"""Which addresses are servers, what they can do, how they are watched."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from itertools import pairwise

import pytest
from raw_server import BUSY, CHAT, MODELS, RawServer, answers, chunk, delta, hangs, head, says, usage, whole

from tao.checks import InputError
from tao.live import Client, Failed, Retryable, client, doctor, nodes, probe, watch
from tao.live.faults import Broken
from tao.live.metrics_page import Load

CHATS = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    before = threading.enumerate()
    yield
    until = time.monotonic() + 2
    while threading.enumerate() != before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.enumerate() == before


def page(running: float = 0.0, started: float = 1.5e9, **labels: object) -> bytes:
    """A metrics page."""
    shown = {"engine": 0, "block_size": 32, "num_gpu_blocks": 512, "enable_prefix_caching": True} | labels
    inside = ",".join(f'{k}="{v}"' for k, v in shown.items())
    text = f'vllm:num_requests_running{{engine="0"}} {running}\nprocess_start_time_seconds {started}\n'
    return whole(200, f"{text}vllm:cache_config_info{{{inside}}} 1.0\n".encode(), "text/plain")


# Probing


def test_probing_tells_why_an_address_is_no_server():
    other = {"object": "list", "data": [{"id": "llama", "owned_by": "library"}]}
    bodies = {
        "Unauthorized": answers(whole(401, {"error": "Unauthorized"})),
        "timeout": hangs,
        "its models belong to library": answers(whole(200, other)),
        "its models belong to nobody": answers(whole(200, {"data": [{"owned_by": "vllm"}]})),
        "lists no models": answers(whole(200, [])),
        "not JSON": answers(whole(200, b"<html>")),
        "Not Found": answers(whole(404, {"detail": "Not Found"})),
    }
    servers = [RawServer({"/v1/models": handler}) for handler in bodies.values()]
    good = RawServer({})
    for server in (*servers, good):
        server.__enter__()
    try:
        began = time.monotonic()
        found = probe([*(server.url for server in servers), good.url, "http://127.0.0.1:1"], timeout_s=0.5)
        assert time.monotonic() - began < 1.5
        for reason, each in zip([*bodies, None, "refused"], found, strict=True):
            if reason is None:
                assert (each.models, each.reason, each.url) == (("tiny",), "", good.url)
            else:
                assert each.client is None
                assert reason in each.reason
        live = found[-2].client
        assert live.models().result() == MODELS["data"]
        live.close()
    finally:
        for server in (*servers, good):
            server.__exit__()


def test_probing_explains_what_binder_does_not_let_out(monkeypatch):
    monkeypatch.setenv("BINDER_LAUNCH_HOST", "https://mybinder.org/")
    assert "only ports 80 and 443 leave here" in probe(["http://127.0.0.1:1"])[0].reason
    with RawServer({"/v1/models": answers(whole(503, BUSY))}) as server:
        assert "Binder" not in probe([server.url])[0].reason


def test_probing_refuses_bad_input():
    for urls, options in (["x"], {}), (["http://h:1"] * 2, {}), (["http://h:1"], {"timeout_s": 0}):
        with pytest.raises(InputError):
            probe(urls, **options)


# Watching


def test_nodes_are_watched_in_turn_and_a_fault_passes():
    seen = []
    with RawServer({"/metrics": answers(page(2.0))}) as one, RawServer({"/metrics": answers(page())}) as two:
        with pytest.MonkeyPatch.context() as patch, Client(one.url) as a, Client(two.url) as b:
            patch.setattr(client, "POLL_S", 0.2)
            calls = watch([a, b], lambda node: seen.append((node, node.load, time.monotonic())))
            time.sleep(0.5)
            two.routes["/metrics"] = answers(whole(500, {}))
            time.sleep(0.3)
            assert a.load.running == 2.0
            assert (b.load, type(b.fault)) == (None, Retryable)
            two.routes["/metrics"] = answers(page(started=2e9))
            time.sleep(0.3)
            assert b.fault is None
            assert b.load.restarted_since(next(load for node, load, _ in seen if node is b))
            calls[0].cancel()
            count = len([node for node, *_ in seen if node is a])
            time.sleep(0.3)
            assert len([node for node, *_ in seen if node is a]) <= count + 1
        times = [at for node, _, at in seen if node is b]
        assert min(y - x for x, y in pairwise(times)) > 0.1
        first = {node: at for node, _, at in reversed(seen)}
        assert 0.05 < first[b] - first[a] < 0.2


def test_a_node_that_hangs_is_looked_at_less_often(monkeypatch):
    seen = []
    monkeypatch.setattr(client, "POLL_S", 0.1)
    with RawServer({"/metrics": hangs}) as server, Client(server.url) as node:
        monkeypatch.setattr(Client._ask, "__defaults__", (client.MAX_JSON_BYTES, 0.25))
        node.watch(lambda node: seen.append(type(node.fault)))
        time.sleep(1.0)
        assert 2 <= len(seen) <= 4
        assert set(seen) == {Retryable}


def test_no_error_ends_a_watch_or_is_lost(monkeypatch, caplog):
    told, looks = [], []
    monkeypatch.setattr(client, "POLL_S", 0.1)

    def listener(node):
        told.append((node.load, node.fault))
        raise KeyError("oh")

    def parse(page):
        looks.append(page)
        if len(looks) == 2:
            raise ZeroDivisionError
        raise Broken("no")

    with RawServer({"/metrics": answers(page(2.0))}) as server, Client(server.url) as node:
        monkeypatch.setattr(client, "parse", parse)
        call = node.watch(listener)
        until = time.monotonic() + 10
        while len(looks) < 4 and time.monotonic() < until:
            time.sleep(0.05)
        assert not call.done()
        assert {(load, fault.reason) for load, fault in told} == {(None, "no")}
    raised = [record.exc_info[0] for record in caplog.records]
    assert raised[:3] == [KeyError, ZeroDivisionError, KeyError]
    assert all(node.name in record.message for record in caplog.records)


async def falls_silent(_request, send):
    """Begins an answer."""
    await send(head() + chunk(delta(content="x")))
    await hangs(_request, send)


def test_a_stream_of_a_server_that_is_gone_is_given_up_if_it_is_silent(monkeypatch):
    monkeypatch.setattr(client, "GONE_S", 0.3)
    monkeypatch.setattr(client, "POLL_S", 0.1)
    talks = says(*[delta(content="x")] * 20, *CHAT, pause_s=0.1)
    routes = {"/metrics": answers(whole(200, b"", "text/plain", Connection="close"))}
    with RawServer(routes) as server, Client(server.url, model="m") as node:
        node.watch()
        server.routes[CHATS] = talks
        lively = node.chat([])
        time.sleep(0.3)
        server.routes[CHATS] = falls_silent
        silent = node.chat([])
        time.sleep(0.1)
        server.routes[CHATS] = hangs
        queued = node.chat([])
        time.sleep(0.2)
        server.refuse()
        began = time.monotonic()
        with pytest.raises(Failed, match="no sign of life"):
            silent.result()
        with pytest.raises(Retryable, match="no sign of life"):
            queued.result()
        assert time.monotonic() - began < client.IDLE_S / 2  # which would be the end of them otherwise
        assert lively.result().completion_tokens == 3  # it drains


# Doctor


class Vllm:
    """Routes of a server with one engine, which notices or not that clients are gone."""

    def __init__(self, notices=True, template="{role}:{content};", echo=True, details=True, **labels):
        self.running, self.notices, self.template, self.labels = 0, notices, template, labels
        self.echo, self.details = echo, details
        now = {"object": "list", "data": [MODELS["data"][0] | {"created": int(time.time())}]}
        self.routes = {
            "/v1/models": answers(whole(200, now)),
            "/version": answers(whole(200, {"version": "0.32.0"})),
            "/kv_event_sources": answers(whole(200, {"0": {}})),
            "/metrics": self.metrics,
            "/tokenize": self.tokenize,
            CHATS: self.chat,
        }

    async def metrics(self, _request, send):
        await send(page(self.running, **self.labels))

    async def tokenize(self, request, send):
        asked = request.json()
        text = "".join(self.template.format(**message) for message in asked["messages"])
        if self.template.endswith("!"):  # drops the thoughts of all but the last
            *before, last = asked["messages"]
            text = "".join(m["content"].rpartition("</think>")[2] for m in before) + last["content"]
        await send(whole(200, {"tokens": list(text.encode())}))

    async def chat(self, request, send):
        if request.json()["max_tokens"] == 1:
            own = {"metrics": {"time_to_first_token_ms": 1.0}} if self.details else {}
            name = {"X_Request_Id": request.headers["x-request-id"]} if self.echo else {}
            told = usage({"cached_tokens": 0} if self.details else None, **own)
            await says(*CHAT[:4], told, CHAT[5], **name)(request, send)
            return
        self.running += 1
        try:
            await send(head())
            for _ in range(1000):
                await send(chunk(delta(content="x")))
                await asyncio.sleep(0.01)
        finally:
            self.running -= self.notices


def examined(vllm: Vllm) -> dict[str, str]:
    """The doctor's row."""
    with RawServer(vllm.routes) as server, Client(server.url, name="n0") as node:
        return doctor([node])[0]


def test_a_healthy_node():
    row = examined(Vllm())
    assert float(row.pop("freed after").removesuffix(" s")) < 1
    assert row == {
        "node": "n0", "version": "0.32.0", "model": "tiny", "KV tokens": "16,384", "block": "32",
        "seen": "prefix caching, cached tokens, own times, request ids, KV events, session ids",
        "lost prefix": "0 tokens",
        "clock lag": row["clock lag"], "change": "nothing",
    }  # fmt: skip
    assert row["clock lag"] in ("+0 s", "-0 s", "+1 s", "-1 s")


def test_a_node_with_everything_to_change(monkeypatch):
    monkeypatch.setattr(nodes, "FREED_S", 0.3)
    vllm = Vllm(False, "!", False, False, num_gpu_blocks=None, enable_prefix_caching=False)
    vllm.routes["/v1/models"] = answers(whole(200, MODELS))
    row = examined(vllm)
    for word in (
        "prefix-caching",
        "token",
        "request-metrics",
        "/metrics",
        "thoughts",
        "update vLLM",
        "clock",
    ):
        assert word in row["change"]
    assert (row["freed after"], row["seen"], row["KV tokens"]) == (
        "inf s",
        "KV events, session ids",
        "unknown",
    )


def test_a_node_that_is_used_by_others_or_has_little():
    vllm = Vllm()
    vllm.running = 3
    del vllm.routes["/tokenize"], vllm.routes["/version"], vllm.routes["/kv_event_sources"]
    row = examined(vllm)
    assert (row["freed after"], row["lost prefix"], row["version"]) == ("unknown", "unknown", "unknown")
    vllm.routes[CHATS] = answers(whole(503, BUSY))
    assert "it does not work: n0: status 503" in examined(vllm)["change"]
    vllm.routes["/version"] = answers(whole(200, {"version": "\x1b[31m0.20.2\n" + "x" * 10**6}))
    vllm.routes[CHATS] = vllm.chat
    assert len(examined(vllm)["version"]) == nodes.MAX_NAME
    assert "hides 4 engines" in "".join(
        nodes.advice(nodes.Capabilities(None, "m", None, Load(engines=4), 0.0, True, True, True, True))
    )
    assert json.dumps(row)


@pytest.mark.parametrize(
    ("version", "older", "advised"),
    [
        ("0.10.2", True, "update vLLM to 0.29"),
        ("0.26.0rc1+cpu", False, "update vLLM to 0.29"),
        ("0.32.0", False, "add --enable-per-request-metrics"),
        ("1.0", False, "add --enable-per-request-metrics"),
        (None, False, "add --enable-per-request-metrics"),
    ],
)
def test_no_release_is_advised_an_option_that_it_does_not_have(version, older, advised):
    able = nodes.Capabilities(version, "m", None, Load(kv_tokens=1), 0.0, True, False, True, True)
    told = "; ".join(nodes.advice(able))
    assert able.older_than(26) is older
    assert advised in told
    assert ("add --enable-per-request-metrics" in told) is not older
    assert ("update" in told) is able.older_than(29)


def test_the_checkup_is_a_table_per_node():
    rows = nodes.Checkup(
        [{"node": "a", "KV tokens": "32", "change": "nothing"}, {"node": "b", "change": "x"}]
    )
    assert repr(rows) == "a\n  KV tokens  32\n  change     nothing\n\nb\n  change  x"
    assert json.loads(json.dumps(rows)) == rows
