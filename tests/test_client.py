"""The client against a server that says and does whatever a test wants."""

from __future__ import annotations

import asyncio
import copy
import gc
import gzip
import logging
import os
import pickle
import shutil
import ssl
import subprocess
import sys
import threading
import time
import traceback
import tracemalloc
from concurrent.futures import CancelledError
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_server import (
    BUSY,
    CHAT,
    DEAD,
    DONE,
    MODELS,
    ROLE,
    SSE,
    RawServer,
    answers,
    chunk,
    delta,
    event,
    hangs,
    head,
    says,
    usage,
    whole,
)  # fmt: skip

from tao.checks import InputError
from tao.live import Client, Failed, LiveError, Retryable, stream, wire

CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "Hi"}]
KEY = "sk-planted-7f3a9"


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    before = threading.enumerate()
    yield
    until = time.monotonic() + 10
    while threading.enumerate() != before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.enumerate() == before


def as_event(body) -> bytes:
    """A body as an event of a stream."""
    return whole(200, body).partition(b"\r\n\r\n")[2].join([b"data: ", b"\n\n"])


def failure(handler, **options) -> LiveError:
    """How a chat fails if the server does this; it must have been asked once only."""
    with RawServer({CHATS: handler}) as server, Client(server.url, **options) as node:
        with pytest.raises(LiveError) as caught:
            node.chat(HI).result(20)
        assert [r.path for r in server.requests].count(CHATS) <= 1
        assert caught.value.node == node.name
        return caught.value


# What goes well


def test_a_chat_and_what_it_sends():
    with (
        RawServer({CHATS: says(*CHAT, pause_s=0.02, X_Request_Id="s7-t3")}) as server,
        Client(server.url) as node,
    ):
        reply = node.chat(HI, request_id="s7-t3", max_tokens=3, cache_salt="run-1").result()
        sent = server.requests[-1]
        assert node.chat(HI).result().text == reply.text == " a b c"
        assert server.connections == 1  # kept open, and used again
    assert sent.json() == {
        "model": "tiny", "messages": HI, "max_tokens": 3, "cache_salt": "run-1",
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert (sent.headers["x-request-id"], sent.headers["accept-encoding"]) == ("s7-t3", "identity")
    assert "authorization" not in sent.headers
    assert 0.04 <= reply.ttft_s <= reply.total_s
    assert 0.01 < reply.tpot_s < 5
    assert (reply.cached_tokens, reply.request_id_echoed) == (32, True)
    assert 0 <= reply.loop_lag_s < 5


def test_a_connection_that_a_server_may_be_about_to_close_is_not_used(monkeypatch):
    monkeypatch.setattr(wire, "KEEP_S", 0.2)
    with RawServer({CHATS: says(*CHAT)}) as server, Client(server.url) as node:
        for pause_s in (0.0, 0.0, 0.5):
            time.sleep(pause_s)
            node.chat(HI).result()
        assert server.connections == 2


def test_a_completion_from_a_text_or_tokens():
    chunks = [
        event(choices=[{"index": 0, "text": x, "finish_reason": f}]) for x, f in [("a", None), ("b", "stop")]
    ]
    with (
        RawServer({COMPLETIONS: says(*chunks, usage(), DONE)}) as server,
        Client(server.url, model="m") as node,
    ):
        assert node.complete("import os\n").result().text == "ab"
        assert node.complete([1, 2, 3]).result().cached_tokens is None
        assert [r.json()["prompt"] for r in server.requests] == ["import os\n", [1, 2, 3]]


def test_an_answer_that_is_whole_stands_even_if_the_end_is_missing_or_late():
    late = [*CHAT[:5], b": nothing more, but the connection stays\n\n"]

    async def stays(request, send):
        await says(*late, DONE, end=True)(request, send)

    async def lingers(request, send):
        await send(head() + b"".join(map(chunk, CHAT)))
        await hangs(request, send)

    for handler in (says(*CHAT[:5]), says(*CHAT[:5], end=False), stays, lingers):
        with RawServer({CHATS: handler}) as server, Client(server.url) as node:
            began = time.monotonic()
            assert node.chat(HI).result().completion_tokens == 3
            assert time.monotonic() - began < 10


def test_comments_show_that_the_server_is_alive_and_are_no_tokens():
    alive = says(*[b": keep-alive\n\n"] * 8, *CHAT, pause_s=0.08)
    with RawServer({CHATS: alive}) as server, Client(server.url, idle_s=0.4) as node:
        reply = node.chat(HI).result()
    assert reply.ttft_s > 0.64
    assert reply.completion_tokens == 3


def test_text_is_told_as_it_comes_and_a_faulty_listener_is_heard():
    def stop(text):
        raise ZeroDivisionError(text)

    with RawServer({CHATS: says(*CHAT)}) as server, Client(server.url) as node:
        pieces = []
        node.chat(HI, on_text=pieces.append).result()
        assert pieces == [" a", " b", " c"]
        with pytest.raises(ZeroDivisionError):
            node.chat(HI, on_text=stop).result()


def test_it_works_in_any_loop_in_its_own_and_in_plain_code():
    async def elsewhere():
        async with Client(server.url) as node:
            replies = await asyncio.gather(*(node.chat(HI) for _ in range(3)))
            return replies, await node.begin(inside, node)

    async def inside(node):
        assert threading.current_thread().name == "tao-live"
        with pytest.raises(RuntimeError, match="await"):
            node.chat(HI).result()
        return await node.chat(HI)

    with RawServer({CHATS: says(*CHAT)}) as server:
        replies, last = asyncio.run(elsewhere())
        assert {reply.text for reply in [*replies, last]} == {" a b c"}
        with Client(server.url) as one, Client(server.url, name="two") as other:
            calls = [node.chat(HI) for node in (one, other) for _ in range(20)]
            assert {call.result().node for call in calls} == {one.name, "two"}
            assert sum(thread.name == "tao-live" for thread in threading.enumerate()) == 1

            async def closes(node):
                await node.aclose()

            with pytest.raises(CancelledError):  # it is itself under way
                one.begin(closes, one).result()
            assert other.begin(inside, other).result().text == " a b c"


def test_a_busy_cell_does_not_disturb_the_times_much_and_the_lag_is_told():
    usual = sys.getswitchinterval()
    with RawServer({CHATS: says(*CHAT, pause_s=0.05)}) as server, Client(server.url) as node:
        switched = []
        node.chat(HI, on_text=lambda _: switched.append(sys.getswitchinterval())).result()
        assert switched == [pytest.approx(0.0001)] * 3
        assert sys.getswitchinterval() == usual
        call = node.chat(HI)
        until = time.monotonic() + 20.0
        while time.monotonic() < until and not call.done():
            sum(range(1000))
        assert call.done()

        async def block():
            time.sleep(0.2)

        call = node.chat(HI)
        node.begin(block)
        assert call.result().loop_lag_s > 0.1


# What fails


@pytest.mark.parametrize(
    ("status", "body", "kind", "reason"),
    [
        (
            400,
            {"error": {"message": "maximum context length is 8192", "code": 400}},
            Failed,
            "maximum context",
        ),
        (400, {"message": "Validation: x", "type": "Bad Request", "code": 400}, Failed, "Validation: x"),
        (401, {"error": "Unauthorized"}, Failed, "Unauthorized"),
        (404, {"detail": "Not Found"}, Failed, "Not Found"),
        (302, {}, Failed, "redirects"),
        (429, {}, Retryable, "no reason"),
        (500, DEAD, Retryable, "EngineCore"),
        (502, b"<html>", Retryable, "no reason"),
        (503, BUSY, Retryable, "currently busy"),
        (204, b"", Failed, "no reason"),
        (500, b"[" * 10_000, Retryable, "no reason"),
    ],
)
def test_a_status_other_than_200(status, body, kind, reason):
    error = failure(answers(whole(status, body, Location="http://127.0.0.1:1/")))
    assert (type(error), error.status) == (kind, status)
    assert reason in error.reason
    assert error.suspect == (status in (500, 502))
    assert str(status) in str(error)


@pytest.mark.parametrize(
    ("chunks", "kind", "status", "suspect"),
    [
        ([as_event(BUSY), DONE], Retryable, 503, False),  # a 200 that is a rejection
        ([ROLE, as_event(BUSY), DONE], Retryable, 503, False),
        ([as_event(DEAD), DONE], Retryable, 500, True),
        ([as_event({"error": {"message": "bad", "code": 400}})], Failed, 400, False),
        ([*CHAT[:2], as_event(DEAD), DONE], Failed, 500, True),
        ([*CHAT[:2], as_event(BUSY), DONE], Failed, 503, False),
        ([DONE], Retryable, None, True),
        ([*CHAT[:3], DONE], Failed, None, True),
        ([*CHAT[:3]], Failed, None, True),
        ([*CHAT[:3], delta("abort", content=""), DONE], Failed, None, True),
        ([ROLE, delta("abort", content=""), DONE], Retryable, None, True),
        ([b"data: \xff\n\n"], Retryable, None, True),
        ([*CHAT[:3], b"data: {]\n\n"], Failed, None, True),
    ],
)
def test_a_stream_that_is_no_answer(chunks, kind, status, suspect):
    error = failure(says(*chunks))
    assert (type(error), error.status, error.suspect) == (kind, status, suspect)


@pytest.mark.parametrize(
    ("handler", "kind", "reason"),
    [
        (says(end=False), Retryable, "closed the connection"),
        (says(*CHAT[:3], end=False), Failed, "closed the connection"),
        (answers(b""), Retryable, "no sign of life"),
        (answers(b"hello\r\n\r\n"), Retryable, "proper HTTP"),
        (answers(head() + b"zz\r\n"), Retryable, "proper HTTP|closed the connection"),
        (answers(whole(200, b"<html>", "text/html")), Retryable, "'text/html'"),
        (hangs, Retryable, "no sign of life"),
        (says(b": x\n\n" * 2, *CHAT[:2], *[b"x"] * 30, pause_s=0.1), Failed, "no sign of life"),
    ],
)
def test_a_connection_that_breaks_or_hangs(handler, kind, reason):
    error = failure(handler, idle_s=0.5)
    assert isinstance(error, kind)
    assert error.suspect
    assert any(part in error.reason for part in reason.split("|")), error.reason


def test_nobody_is_there():
    with RawServer({}) as server:
        url = server.url
    with Client(url) as node, pytest.raises(Retryable, match="refused"):
        node.metrics().result()
    with Client("http://nowhere.invalid:1") as node, pytest.raises(Retryable, match=r"not known|reached"):
        node.metrics().result()


def test_too_few_files_are_explained_and_not_the_nodes_fault():
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with RawServer({}) as server, Client(server.url) as node, Client(server.url, name="other") as other:
        node.models().result()
        os.close(free := os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            with pytest.raises(Retryable, match="ulimit -n") as caught:
                other.models().result()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert not caught.value.suspect
        assert other.models().result()


def test_a_turn_takes_no_longer_than_it_may():
    chatty = says(*[b": keep-alive\n\n"] * 100, pause_s=0.05)
    began = time.monotonic()
    assert isinstance(failure(chatty, total_s=0.5), Retryable)
    assert time.monotonic() - began < 15


# Giving up


async def tells(_request, send):
    """A chat that goes on and on."""
    await send(head() + chunk(ROLE))
    while True:
        await send(chunk(delta(content="x")))
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("handler", [tells, hangs])
def test_giving_up_closes_the_connection(handler):
    async def in_a_task(node):
        task = asyncio.create_task(wait(node))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def wait(node):
        return await node.chat(HI)

    def cancel(node):
        call = node.chat(HI)
        time.sleep(0.1)
        call.cancel()
        with pytest.raises(CancelledError):
            call.result()
        assert call.done()

    def late(node):
        with pytest.raises(TimeoutError):
            node.chat(HI).result(0.1)

    def close(node):
        call = node.chat(HI)
        time.sleep(0.1)
        node.close()
        with pytest.raises(CancelledError):
            call.result()

    for way in (cancel, late, close, lambda node: asyncio.run(in_a_task(node))):
        with RawServer({CHATS: handler}) as server, Client(server.url, model="m") as node:
            way(node)
            assert server.gone.wait(1)
            if way is not close:
                assert not node._wire.tasks


def test_canceled_before_it_began_and_closed_twice():
    with RawServer({CHATS: hangs}) as server:
        node = Client(server.url)
        for _ in range(20):
            node.chat(HI).cancel()
        node.close()
        node.close()
        with pytest.raises(InputError, match="is closed"):
            node.chat(HI)
        asyncio.run(node.aclose())
    Client("http://127.0.0.1:1").close()


def test_a_client_that_nobody_holds_is_closed():
    with RawServer({CHATS: says(*CHAT)}) as server:
        node = Client(server.url)
        node.chat(HI).result()
        assert "tao-live" in {thread.name for thread in threading.enumerate()}
        del node
        gc.collect()
        assert "tao-live" not in {thread.name for thread in threading.enumerate()}


def test_nothing_is_said_when_a_program_ends_without_closing():
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
from raw_server import *
from tao.live import Client
with RawServer({{"{CHATS}": says(*CHAT)}}) as server:
    node = Client(server.url)
    node.watch()
    call = node.chat([])
    node.chat([]).result()
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# Hostile servers


def endless(first: bytes, again: bytes, pause_s: float = 0.0):
    """Sends a piece without end, until the client has had enough."""

    async def handler(_request, send):
        await send(first)
        await asyncio.sleep(pause_s)
        while True:
            await send(again)
            await asyncio.sleep(0)

    return handler


async def drips(_request, send):
    """A letter of its head now and then."""
    for letter in b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000:
        await send(bytes([letter]))
        await asyncio.sleep(0.05)


def packed(coding: str, status: int = 200, kind: str = "text/event-stream"):
    """Says that it compressed its answer; what it would unpack to is 16 MB."""
    return answers(whole(status, BOMB, kind, Content_Encoding=coding))


MEGABYTE = b"x" * 2**20
BOMB = gzip.compress(b"\0" * 2**24)
OK = b"HTTP/1.1 200 OK\r\n"
METRICS, NAMES = "/metrics", "/v1/models"
SILENT = "no sign of life"
MANY_TOOLS = [{"index": k, "function": {"name": "f"}} for k in range(2_000)]


def streams(piece: bytes, kind: str = SSE):
    """A stream of the same piece without end."""
    return endless(head(kind), chunk(piece))


BEGUN = head() + chunk(ROLE)
LENGTH = whole(200, b"", SSE)
RUNNING = b"vllm:num_requests_running 1\n"
TEXT, JSON = "text/plain", "application/json"

ATTACKS = {  # what it does: where, how, and the words of the error; None: the answer is taken for what it is
    "a line without end": (CHATS, streams(MEGABYTE), "a line of more than"),
    "an event": (CHATS, streams((b"data: " + b"x" * 200 + b"\n") * 300), "an event of more than"),
    "comments": (CHATS, streams(b": x\n" * 10_000), "more than 65,536 lines"),
    "chunks": (CHATS, streams(b'data: {"choices":[]}\n\n' * 5_000), "more than 65,536 lines"),
    "long comments": (CHATS, streams(b": " + MEGABYTE[:9000] + b"\n"), "more than 67,108,864 bytes"),
    "text": (CHATS, streams(delta(content="x" * 500_000)), "more than 4,194,304 characters"),
    "tool calls": (CHATS, says(delta(tool_calls=MANY_TOOLS)), "more than 1,000 tool calls"),
    "headers": (CHATS, endless(OK, b"a: b\r\n" * 1000), "proper HTTP"),
    "a header": (CHATS, endless(OK + b"a: ", MEGABYTE), "proper HTTP"),
    "a reason": (CHATS, endless(b"HTTP/1.1 200 ", MEGABYTE), "proper HTTP"),
    "no head at all": (CHATS, endless(b"", MEGABYTE), "proper HTTP"),
    "heads before the head": (CHATS, endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100), SILENT),
    "trailers": (CHATS, endless(BEGUN + b"0\r\n", b"a: b\r\n" * 1000), "proper HTTP|closed"),
    "a trailer": (CHATS, endless(BEGUN + b"0\r\na: ", MEGABYTE), "proper HTTP|closed"),
    "a trailer, later": (CHATS, endless(BEGUN + b"0\r\na: ", MEGABYTE, pause_s=0.2), "closed"),
    "a chunk's extension": (CHATS, endless(head() + b"5;", MEGABYTE), SILENT),
    "a chunk's size": (CHATS, endless(head(), b"0" * 1000), SILENT),
    "a chunk of 2^63": (CHATS, endless(head() + b"8000000000000000\r\n", MEGABYTE), "a line of more than"),
    "a chunk of 2^64": (CHATS, endless(head() + b"10000000000000000\r\n", MEGABYTE), "proper HTTP"),
    "a long answer": (
        CHATS,
        endless(LENGTH.replace(b": 0", b": %d" % 2**60), MEGABYTE),
        "a line of more than",
    ),
    "a length below 0": (CHATS, answers(LENGTH.replace(b": 0", b": -1")), "proper HTTP"),
    "a head that drips": (CHATS, drips, SILENT),
    "a line that drips": (CHATS, says(*[b"x"] * 1000, pause_s=0.05), SILENT),
    "an error": (CHATS, endless(b"HTTP/1.1 503 X\r\n\r\n", MEGABYTE), "no reason given"),
    "elsewhere": (CHATS, answers(whole(307, b"", Location=CHATS)), "redirects"),
    "invalid UTF-8": (CHATS, says(ROLE, b"data: \xff\xfe\n\n"), "not UTF-8"),
    "deep JSON": (CHATS, says(*[delta(content="")] * 3, b"data: " + b"[" * 10**6 + b"\n\n"), "not JSON"),
    "a long number": (CHATS, says(b'data: {"choices":[], "x": ' + b"9" * 10**6 + b"}\n\n"), "not JSON"),
    **{f"a bomb, {c}": (CHATS, packed(c), "compressed") for c in ("gzip", "br", "zstd", "deflate", "x")},
    "a bomb in an error": (CHATS, packed("gzip", 500), "compressed"),
    "a bomb on the way": (CHATS, answers(head(Transfer_Encoding="gzip") + chunk(BOMB)), SILENT),
    "a page": (METRICS, streams(b"vllm:x 1\n" * 10_000, TEXT), "more than 2,097,152 bytes"),
    "a page's line": (METRICS, streams(MEGABYTE, TEXT), "more than 2,097,152 bytes"),
    "a long page": (METRICS, answers(whole(200, RUNNING * 10**4, TEXT)), "longer than any"),
    "a page of others": (METRICS, answers(whole(200, b"x\n" * 2**20, TEXT)), None),
    "a packed page": (METRICS, packed("gzip", kind=TEXT), "compressed"),
    "models": (NAMES, streams(MEGABYTE, JSON), "more than 1,048,576 bytes"),
    "models, dripping": (NAMES, drips, SILENT),
    "no models": (NAMES, answers(whole(200, b"\xff")), "not JSON"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_server_neither_hangs_nor_exhausts_the_client(attack, monkeypatch):
    path, handler, reason = ATTACKS[attack]
    patient_s = 1.0 if reason == SILENT else 10.0
    monkeypatch.setattr(stream, "MAX_STREAM_LINES", 2**16)  # counting memory makes everything slow
    with RawServer({path: handler}) as server, Client(server.url, model="m", idle_s=patient_s) as node:
        asked = {CHATS: lambda: node.chat(HI), METRICS: node.metrics, NAMES: lambda: node.models(patient_s)}
        tracemalloc.start()
        try:
            if reason is None:
                assert asked[path]().result(60).running is None
            else:
                with pytest.raises(LiveError, match=reason) as caught:
                    asked[path]().result(60)
                assert len(str(caught.value)) < 500
            assert tracemalloc.get_traced_memory()[1] < 6e7
        finally:
            tracemalloc.stop()
        assert len(server.requests) == 1


PIECES = [
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 ",
    b"200",
    b"\r\n",
    b"\r\n\r\n",
    b"content-type: text/event-stream\r\n",
    b":",
]
PIECES += [
    b"content-length: 7\r\n",
    b"transfer-encoding: chunked\r\n",
    chunk(b""),
    b"content-encoding: br\r\n",
    b"-1",
]
PIECES += [
    b"content-type: ;;=\r\n",
    b"location: http://[\r\n",
    b"set-cookie: \xff=\r\n",
    b"HTTP/1.1 301 x\r\n",
    *map(chunk, CHAT),
]


def test_whatever_bytes_come_the_error_is_one_of_ours():
    @settings(max_examples=60)
    @given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=4), max_size=12), st.booleans())
    def attempt(pieces, good_start):
        async def handler(_request, send):
            await send(head() * good_start + b"".join(pieces))
            raise ConnectionResetError

        server.routes |= dict.fromkeys([CHATS, "/v1/models", "/metrics"], handler)
        for ask in (lambda: node.chat(HI), node.models, node.metrics):
            with suppress(LiveError):
                ask().result(20)

    with RawServer({}) as server, Client(server.url, model="m") as node:
        attempt()


# What the user gives


@pytest.mark.parametrize(
    ("address", "url", "path"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", "/metrics"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000", "/metrics"),
        ("https://gpu.example.org/nodes/0/v1", "https://gpu.example.org/nodes/0", "/nodes/0/metrics"),
        ("http://[::1]:8000/a%2Fb/", "http://[::1]:8000/a%2Fb", "/a%2Fb/metrics"),
    ],
)
def test_addresses(address, url, path):
    node = Client(address)
    assert (str(node.url), (node.url / "metrics").raw_path) == (url, path)
    assert repr(node) == f"Client({url!r})"


def test_a_prefix_in_the_path_is_kept():
    routes = {"/n/0/v1/models": answers(whole(200, MODELS)), "/n/0/v1/chat/completions": says(*CHAT)}
    with RawServer(routes) as server, Client(server.url + "/n/0/") as node:
        assert node.chat(HI).result().text == " a b c"


@pytest.mark.parametrize(
    "url",
    [f"http://{x}" for x in (f"me:{KEY}@h:1", f"{KEY}@h:1", f"h:1/?key={KEY}", f"h:1/#{KEY}", f"a:{KEY}@[")]
    + ["ftp://h:1", "h:1", "", "http://", "http://h:99999", "http:///v1", 7],
)
def test_addresses_that_are_refused_are_not_quoted_if_they_hold_a_secret(url):
    with pytest.raises(InputError) as caught:
        Client(url)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"n": 2}, "n is among"),
        ({"stream": False}, "stream is among"),
        ({"temperature": float("nan")}, "JSON"),
        ({"tools": [object()]}, "JSON"),
        ({"request_id": "a b"}, "request_id is"),
        ({"request_id": "a\r\nX: 1"}, "request_id is"),
        ({"request_id": ""}, "request_id is"),
    ],
)
def test_options_that_are_refused(options, reason):
    with pytest.raises(InputError, match=reason):
        Client("http://127.0.0.1:1").chat(HI, **options)


def test_other_input_that_is_refused(monkeypatch, tmp_path):
    monkeypatch.delenv("NO_KEY_HERE", raising=False)
    (tmp_path / "ca.pem").write_text("nonsense")
    for options in (
        {"key": "a\nb"}, {"key": ""}, {"key": KEY, "key_env": "HOME"}, {"key_env": "NO_KEY_HERE"},
        {"ca": tmp_path / "absent.pem"}, {"ca": tmp_path / "ca.pem"}, {"idle_s": 0}, {"total_s": "x"},
    ):  # fmt: skip
        with pytest.raises(InputError):
            Client("http://127.0.0.1:1", **options)
    with pytest.raises(InputError):
        Client("http://127.0.0.1:1").chat("Hi")


def test_proxies_of_the_environment_are_not_used_nor_are_cookies_kept(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with RawServer({CHATS: says(*CHAT, Set_Cookie="a=b")}) as server, Client(server.url) as node:
        for _ in range(2):
            node.chat(HI).result()
        assert "cookie" not in server.requests[-1].headers


# Secrets


def told_by(error: BaseException) -> list[str]:
    """All that an error can tell: itself, those before it, and every variable on the way, but the test's."""
    told, todo = [], [error]
    while todo:
        error = todo.pop()
        told += [repr(error), str(error), repr(vars(error))]
        trace = traceback.TracebackException.from_exception(error, capture_locals=True)
        told += [f"{frame} {frame.locals}" for frame in trace.stack if frame.filename != __file__]
        todo += [each for each in (error.__context__, error.__cause__) if each]
    return told


def test_the_key_is_sent_and_shown_nowhere(monkeypatch, caplog, capfd):
    """Not in a repr, an error, a traceback with all variables, a log, an address or a copy."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("TAO_TEST_KEY", KEY)
    leak = {"error": {"message": f"no such key: Bearer {KEY} " + "x" * 290 + KEY, "code": 401}}
    shown = []
    handlers = [answers(whole(401, leak)), answers(whole(500, leak)), answers(whole(200, b"x", KEY))]
    handlers += [says(as_event(leak)), says(*CHAT[:3], as_event(leak)), says(delta(KEY))]
    handlers += [says(*CHAT[:2], end=False), hangs, answers(b"x" + KEY.encode())]
    for options in ({"key": KEY}, {"key_env": "TAO_TEST_KEY"}):
        with RawServer({}) as server, Client(server.url, idle_s=0.3, **options) as node:
            for handler in handlers:
                server.routes[CHATS] = handler
                with pytest.raises(LiveError) as caught:
                    node.chat(HI).result()
                shown += told_by(caught.value)
            assert {r.headers["authorization"] for r in server.requests} == {f"Bearer {KEY}"}
            shown += [repr(node), str(node), repr(vars(node)), str(node.url), repr(node.chat(HI))]
            shown += [repr(task) for task in asyncio.all_tasks(node._loop._loop)]
            for copier in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match="make a new one"):
                    copier(node)
    for options in (
        {"key": KEY + "\n"},
        {"key": KEY, "key_env": "x"},
        {"key": KEY, "ca": "absent"},
        {"key_env": KEY},
    ):
        with pytest.raises(InputError) as caught:
            Client("http://127.0.0.1:1", **options)
        shown += told_by(caught.value)
    shown += [record.getMessage() for record in caplog.records] + list(capfd.readouterr())
    assert len(shown) > 100
    assert [text for text in shown if KEY in text] == []


# https


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A private authority's certificate for 127.0.0.1 with its key."""
    if not shutil.which("openssl"):
        pytest.skip("there is no openssl command to make a certificate with")
    folder = tmp_path_factory.mktemp("ca")
    options = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=tao -addext subjectAltName=IP:127.0.0.1"
    command = ["openssl", *options.split(), "-keyout", "key.pem", "-out", "cert.pem"]
    made = subprocess.run(command, capture_output=True, check=False, cwd=folder)
    assert made.returncode == 0, made.stderr
    return folder


def test_https_with_a_private_authority(certificate):
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    with RawServer({CHATS: says(*CHAT)}, tls) as server:
        with Client(server.url, ca=certificate / "cert.pem") as node:
            assert node.chat(HI).result().text == " a b c"
        with Client(server.url, key=KEY) as node, pytest.raises(Failed, match="not trusted"):
            node.chat(HI).result()
        assert all("authorization" not in request.headers for request in server.requests)
    with RawServer({}) as server, Client(f"https://127.0.0.1:{server.port}") as node:
        call = node.metrics()
        with pytest.raises(Failed, match="does not speak https"):
            call.result()


def test_errors_survive_a_trip_to_another_process():
    for error in (Retryable("n0", 503, "busy"), Failed("n0", None, "gone", True)):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), vars(again)) == (type(error), vars(error))
    assert str(Retryable("n0", None, "gone")) == "n0: gone"
