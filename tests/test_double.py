"""The simulated vLLM: its cache, its engine, its HTTP surface beside recorded exchanges, its faults."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
from pathlib import Path

import pytest

from tao.profiles import PROFILES

httpx = pytest.importorskip("httpx", reason="the extra `live` is not installed")
pytest.importorskip("uvicorn", reason="the extra `live` is not installed")

from tao.live.double.app import Server  # noqa: E402
from tao.live.double.engine import VirtualLoop  # noqa: E402
from tao.live.double.jobs import Settings  # noqa: E402

QWEN = PROFILES["qwen3-32b-2xh100"]
SHARED = Path(os.environ.get("TAO_SHARED", Path(__file__).parents[2] / "shared"))
SAMPLES = SHARED / "live" / "samples" / "v0.32.0"
VOLATILE = ("id", "created", "system_fingerprint", "root")
TEXTS = ("content", "text")


def virtual(coroutine):
    """Run it in a loop whose clock jumps, and leave nothing behind."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(asyncio.wait_for(coroutine, 10**6))
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def server(block=32, key=None, **settings):
    """A server made inside the running loop."""
    profile = dataclasses.replace(QWEN, block_tokens=block)
    return Server(profile, Settings(**{"kv_tokens": 16_384, "model": "tiny"} | settings), api_key=key)


def client(app):
    """A client without sockets."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://node")


def events(text):
    """The data of a stream's events."""
    return [line[6:] for line in text.splitlines() if line.startswith("data: ")]


# Recorded exchanges


def sample(name):
    """The text of a sample, or a skip."""
    path = SAMPLES / name
    if not path.is_file():
        pytest.skip(f"{path} is not here; TAO_SHARED may name the folder above live/")
    return path.read_text("utf-8")


def recorded(name):
    """Method, path, request, status, headers and body of a sample."""
    first, second, third, body = sample(name).split("\n", 3)
    method, where = first[2:].split()
    status, headers = re.fullmatch(r"# status (\d+) headers (.*)", third).groups()
    return method, where, second.removeprefix("# request: "), int(status), json.loads(headers), body


def masked(x, key=""):
    """Data without what differs from run to run, and without what depends on model and tokenizer."""
    if isinstance(x, dict):
        return {k: masked(v, k) for k, v in x.items()}
    if isinstance(x, list):
        return [masked(v, key) for v in x]
    if (
        key in VOLATILE
        or (key in TEXTS and x)
        or (isinstance(x, int | float) and key not in ("code", "index"))
    ):
        return "..."
    return x


WHOLE = [
    *(
        "chat_nonstream",
        "chat_cache_salt",
        "max_completion_tokens_1",
        "err_priority_fcfs",
        "err_unknown_field",
    ),
    *("completions_nonstream", "completions_tokenids", "tokenize_chat", "tokenize_prompt", "detokenize"),
    *("get_v1_models", "get_version", "get_load", "get_health", "get_ping", "get_kv_event_sources"),
    *(
        "err_404",
        "err_405",
        "err_bad_json",
        "err_bad_type",
        "err_context_completions",
        "err_context_maxtokens",
    ),
    *("err_context_prompt", "err_empty_messages", "err_missing_messages", "err_stream_context", "err_temp"),
    *("err_unknown_model", "err_wrong_ctype"),
]
LONG = {  # the samples hold only the beginning of these requests
    "err_context_completions": {"model": "tiny", "prompt": "x y z " * 8000, "max_tokens": 5},
    "err_context_prompt": {
        "model": "tiny",
        "messages": [{"role": "user", "content": "a b c d e f g h " * 4000}],
        "max_tokens": 5,
    },
    "chat_cache_salt": {
        "model": "tiny",
        "messages": [{"role": "user", "content": "a b c d " * 300}],
        "max_tokens": 4,
        "cache_salt": "tenant-1",
    },
}


@pytest.mark.parametrize("name", WHOLE)
def test_answers_equal_those_of_the_real_server(name):
    method, path, request, status, headers, body = recorded(name + ".txt")

    async def ask():
        content = json.dumps(LONG[name]) if name in LONG else request
        kind = {"content-type": "text/plain" if name == "err_wrong_ctype" else "application/json"}
        app = server(128, max_model_len=8192, kv_tokens=131_072)
        return await client(app).request(method, path, content=content.encode(), headers=kind)

    ours = virtual(ask())
    assert ours.status_code == status
    assert {k: v for k, v in ours.headers.items() if k in ("content-type", "allow")} == {
        k: v for k, v in headers.items() if k in ("content-type", "allow")
    }
    if not body.strip():
        assert ours.content == b""
        return
    theirs, mine = json.loads(body), ours.json()
    if name.startswith(("err_", "get_version", "get_load")) and status >= 400:
        assert ours.text == body.strip("\n")
        return
    if name.startswith(("tokenize", "detokenize")):
        assert mine.keys() == theirs.keys()
        return
    for data in (theirs, mine):
        for choice in data.get("choices", []):
            choice["logprobs"] = None  # not simulated
    mine_ids = [len(c.get("token_ids") or []) for c in mine.get("choices", [])]
    assert mine_ids == [len(c.get("token_ids") or []) for c in theirs.get("choices", [])]
    for choice in (*theirs.get("choices", []), *mine.get("choices", [])):
        choice["token_ids"] = bool(choice["token_ids"])
    assert masked(mine) == masked(theirs)
    assert list(mine) == list(theirs)


@pytest.mark.parametrize(
    "name", ["chat_stream_usage", "chat_stream_continuous", "chat_stream_nousage", "completions_stream"]
)
def test_streams_have_the_same_grammar_as_the_real_server(name):
    _, path, request, status, headers, body = recorded(name + ".txt")
    theirs = re.findall(r"^\[[\d.]+\] data: (.*)$", body, re.M)

    async def ask():
        return await client(server(128)).post(path, json=json.loads(request))

    ours = virtual(ask())
    mine = events(ours.text)
    assert (ours.status_code, ours.headers["content-type"]) == (status, headers["content-type"])
    assert (mine[-1], theirs[-1]) == ("[DONE]", "[DONE]")
    parsed = [[masked(json.loads(x)) for x in chunks[:-1]] for chunks in (mine, theirs)]
    assert parsed[0] == parsed[1]
    keys = [[list(json.loads(x)) for x in chunks[:-1]] for chunks in (mine, theirs)]
    assert keys[0] == keys[1]
    assert re.fullmatch(r"(data: .*\n\n)+", ours.text)


def test_metrics_have_the_names_and_labels_of_the_real_server():
    body = sample("get_metrics.txt")
    names = set(re.findall(r"^(vllm:\w+(?:_count|_sum|_total)|vllm:\w+)\{", body, re.M))

    async def ask():
        return await client(server(max_model_len=8192)).get("/metrics")

    page = virtual(ask()).text

    def labels(text):
        found = set()
        for line in text.splitlines():
            if (
                line.startswith("vllm:")
                and "_info{" not in line
                and 'le="' not in line
                and "_created" not in line
            ):
                found.add(line.rpartition(" ")[0])
        return found

    assert names <= set(re.findall(r"^(vllm:\w+)\{", page, re.M))
    assert labels(page) == labels(body)
    assert [x for x in page.splitlines() if "time_to_first_token_seconds_bucket" in x] == [
        x for x in body.splitlines() if "time_to_first_token_seconds_bucket" in x
    ]
