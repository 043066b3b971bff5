"""The double beside a real vLLM on the CPU: the same requests, and what differs in the answers.

`TAO_REAL_VLLM` names a virtual environment with vLLM 0.32 for the CPU. Not compared, because not simulated:
the text, log probabilities, `echo` in chat, the order in which two choices of one stream alternate, and which
of the many message types of vLLM's schema a malformed message fails to be (status and type are).
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import socket
import subprocess
import time

import pytest
from test_double import QWEN, Server, Settings, client, events, httpx, virtual
from tiny_model import tiny_model

from tao.live.double.text import FolderTokenizer

pytestmark = pytest.mark.real_vllm
FLAGS = """
    --served-model-name tiny --host 127.0.0.1 --load-format dummy --enforce-eager --max-model-len 8192
    --block-size 32 --num-gpu-blocks-override 1024 --enable-prefix-caching --enable-prompt-tokens-details
    --enable-per-request-metrics --enable-request-id-headers --enable-server-load-tracking
    --kv-cache-metrics"""
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SAID = [{"role": "system", "content": "You use tools."}, {"role": "user", "content": "List the files."}]
TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {}}}]
CHANGES = [  # of a chat request
    *({}, {"max_tokens": -1}, {"max_tokens": 0}, {"cache_salt": ""}, {"cache_salt": "a/b"}, {"tools": TOOLS}),
    *(
        {"stream_options": {"include_usage": True}},
        {"tools": TOOLS, "tool_choice": "required"},
        {"tools": []},
    ),
    *({"tool_choice": "auto"}, {"tools": TOOLS, "tool_choice": "x"}, {"top_p": 0}, {"n": 0}, {"n": 99999999}),
    *(
        {"n": 2},
        {"stop": list("abcde")},
        {"n": [], "top_p": "x", "model": 1},
        {"top_logprobs": 2},
        {"top_k": -5},
    ),
    *({"min_p": 3}, {"presence_penalty": 9}, {"repetition_penalty": 0}, {"stop": ""}, {"min_tokens": -1}),
    *(
        {"min_tokens": 5},
        {"seed": 2**70},
        {"temperature": 5},
        {"max_completion_tokens": 9999},
        {"messages": "x"},
    ),
    *(
        {"messages": ["x"]},
        {"messages": [{"content": "x"}]},
        {"messages": [{"role": "user", "content": None}]},
    ),
    *({"messages": [{"role": "zebra", "content": "x"}]}, {"stream": "maybe"}, {"logit_bias": {"a": "b"}}),
    *({"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}]}, {"user": 5}),
    *(
        {"return_token_ids": True},
        {"model": "nope"},
        {"model": None},
        {"stream_interval": 0},
        {"priority": -5},
    ),
    *({"tools": [{"type": "x"}]}, {"tools": TOOLS, "tool_choice": {"type": "function"}}, {"session_id": "s"}),
    *(
        {"continue_final_message": True, "add_generation_prompt": True},
        {"request_id": "abc"},
        {"messages": []},
    ),
]
PROMPTS = [{"prompt": p} for p in ("", None, [1, 2, 3], ["a", "b"], [[1], [2, 3]], 5, [-1], [], [99_999_999])]
STREAMS = [
    {},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"return_token_ids": True},
    {"n": 2, "temperature": 1.0, "seed": 1, "stream_options": {"include_usage": True}},
    {"stream_interval": 3, "max_tokens": 8},
]
RAW = ["", "[]", '"x"', "{", '{"a":1,}', b"\xff", "{}"]
VALUES = [None, True, False, -1, 0, 1, 3, 2.5, "x", "", [], {}, [1], ["a"], {"a": 1}, 2**70, -5.5, "7"]
FIELDS = [
    *("model", "max_tokens", "n", "stop", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "user"),
    *("presence_penalty", "repetition_penalty", "min_tokens", "stream_options", "tools", "tool_choice"),
    *("cache_salt", "logit_bias", "priority", "ignore_eos", "stop_token_ids", "max_completion_tokens"),
]


def cases():
    """(method, path, body) of fixed requests and of 200 drawn ones."""
    chat = {"model": "tiny", "messages": SAID, "max_tokens": 2, "ignore_eos": True, "temperature": 0}
    text = {k: v for k, v in chat.items() if k != "messages"} | {"prompt": "hello there"}
    found = [("POST", CHAT, chat | c) for c in CHANGES] + [("POST", TEXT, text | c) for c in PROMPTS]
    for change in STREAMS:
        both = {"stream": True, "max_tokens": 4} | change
        found += [("POST", CHAT, chat | both), ("POST", TEXT, text | both)]
    said = [SAID[0], {"role": "user", "content": "alpha beta gamma " * 120}]
    for turn in ("next " * 40, "next " * 80, "next " * 80):
        found.append(("POST", CHAT, chat | {"messages": list(said)}))
        said += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": turn}]
    found += [("POST", CHAT, chat | {"messages": said, "cache_salt": "s"})] * 2
    found += [("POST", CHAT, raw) for raw in RAW]
    for path, bodies in {
        "/tokenize": ({}, {"prompt": 1}, {"prompt": "a b", "return_token_strs": True}, {"messages": SAID}),
        "/detokenize": ({}, {"tokens": ["x"]}, {"tokens": [1, 5, 6]}, {"tokens": [-1]}),
    }.items():
        found += [("POST", path, body) for body in bodies]
    paths = (
        "/v1/nothing",
        CHAT,
        "/tokenize",
        "/version",
        "/load",
        "/health",
        "/ping",
        "/health/",
        "/v1/models",
    )
    found += [("GET", path, None) for path in paths] + [("POST", "/health", {}), ("PUT", CHAT, {})]
    draw = random.Random(0)
    for _ in range(200):
        path, body = draw.choice([(CHAT, dict(chat)), (TEXT, dict(text))])
        body |= {f: draw.choice(VALUES) for f in draw.sample(FIELDS, draw.choice([1, 1, 1, 2, 3]))}
        found.append(("POST", path, body))
    return found


def comparable(x, key=""):
    """An answer without what differs from run to run."""
    if isinstance(x, dict):
        return {k: comparable(v, k) for k, v in x.items()}
    if isinstance(x, list):
        return len(x) if key == "token_ids" else [comparable(v, key) for v in x]
    masked = ("id", "created", "system_fingerprint", "root", "content", "text", "tokens_per_second")
    return "..." if x is not None and (key in masked or key.endswith("_ms")) else x


def told(reply):
    """Status, the headers that matter, and the comparable body."""
    kind = reply.headers.get("content-type", "")
    if "event-stream" in kind:
        chunks = [json.loads(e) if e != "[DONE]" else {} for e in events(reply.text)]
        # How the choices of one stream alternate depends on time.
        chunks.sort(key=lambda c: c["choices"][0]["index"] if c.get("choices") else 99)
        body = [comparable(c) for c in chunks]
    else:
        body = (
            comparable(reply.json()) if "json" in kind else reply.text if "metrics" in reply.url.path else ""
        )
    error = body.get("error") if isinstance(body, dict) else None
    if error and str(error["param"]).startswith("body.messages.0"):
        body = error["type"]
    return reply.status_code, kind, reply.headers.get("allow"), body


def ask(http, method, path, body):
    """The arguments of a request, the same for both."""
    content = None if body is None else body if isinstance(body, str | bytes) else json.dumps(body)
    kind = {"content-type": "text/plain" if body == RAW[-1] else "application/json"}
    return http.request(method, path, content=content, headers=kind)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_model(folder)
    return folder


@pytest.fixture(scope="module")
def real(model):
    """A client of a real server, which ends with the tests."""
    home = os.environ.get("TAO_REAL_VLLM")
    if not home:
        pytest.skip("TAO_REAL_VLLM names no environment with vLLM for the CPU")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [f"{home}/bin/vllm", "serve", str(model), "--port", str(port), *FLAGS.split()]
    log = (model / "log").open("w")
    with log, subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | QUIET) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as http:
                deadline = time.monotonic() + 180
                while True:
                    assert process.poll() is None, (model / "log").read_text()[-3000:]
                    assert time.monotonic() < deadline
                    try:
                        if http.get("/health").status_code == 200:
                            break
                    except httpx.TransportError:
                        time.sleep(0.5)
                yield http
        finally:
            process.terminate()
            process.wait(30)


def test_the_double_answers_as_the_real_server(real, model):
    async def run():
        profile = dataclasses.replace(QWEN, block_tokens=32)
        settings = Settings(32 * 1024, model="tiny", max_model_len=8192)
        http = client(Server(profile, settings, FolderTokenizer(str(model))))
        return [told(await ask(http, *case)) for case in cases()], (await http.get("/metrics")).text

    ours, page = virtual(run())
    theirs = [told(ask(real, *case)) for case in cases()]
    different = [(case, a, b) for case, a, b in zip(cases(), ours, theirs, strict=True) if a != b]
    print(f"{len(ours)} exchanges, {len(different)} differ")
    assert different == []
    names = [
        {
            line.rpartition(" ")[0]
            for line in text.splitlines()
            if line.startswith("vllm:") and "_info{" not in line
        }
        for text in (page, real.get("/metrics").text)
    ]
    assert names[0] == names[1]
