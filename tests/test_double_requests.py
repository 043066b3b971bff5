"""What the simulated server says to requests, beside what a real one was seen to say to the same."""

from __future__ import annotations

import asyncio
import json

import pytest
from test_double import client, events, server, tiny, virtual  # noqa: F401 - `tiny` is a fixture

from tao.live.double.engine import Engine

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SAID = [{"role": "user", "content": "List the files."}]
TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {}}}]


def app(tokenizer, **more):
    """A server with a model's tokenizer."""
    made = server(max_model_len=8192, kv_tokens=32_768, **more)
    made.tokenizer = tokenizer
    return made


def asked(path, change):
    """A body for a path, with a change."""
    base = {"model": "tiny", "max_tokens": 2, "ignore_eos": True, "temperature": 0}
    return base | ({"messages": SAID} if path == CHAT else {"prompt": "hello there"}) | change


def answered(tokenizer, path, body, **headers):
    """The answer to one request."""

    async def run():
        return await client(app(tokenizer)).post(path, json=body, headers=headers)

    return virtual(run())


LATE = [  # what the engine itself refuses: a stream has begun by then
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "logprobs", "Requested sample logprobs of 21, which"),
    (CHAT, {"logprobs": True, "top_logprobs": -1}, "logprobs", "Requested sample logprobs of 4096, which"),
    (CHAT, {"stop_token_ids": [99999]}, "stop_token_ids", "token_id(s) [99999] in stop_token_ids contain"),
    (CHAT, {"logit_bias": {"99999": 1}}, "logit_bias", "token_id(s) [99999] in logit_bias contain out-of"),
    (CHAT, {"allowed_token_ids": []}, "allowed_token_ids", "allowed_token_ids is not None and empty!"),
    (CHAT, {"allowed_token_ids": [-1]}, "allowed_token_ids", "allowed_token_ids contains out-of-vocab"),
    (TEXT, {"logprobs": 21}, "logprobs", "Requested sample logprobs of 21, which is greater than max"),
    (TEXT, {"prompt": [99999]}, None, "Token id 99999 is out of vocabulary"),
    *[
        (TEXT, {"prompt": p}, None, "The decoder prompt cannot be empty")
        for p in ([""], ["a", ""], [[]], [[70], []])
    ],
]
EAGER = [  # what is refused before
    (CHAT, {"n": 0}, None, "n must be at least 1"),
    (CHAT, {"n": 2}, None, "n must be 1 when using greedy sampling, got 2."),
    (CHAT, {"presence_penalty": 9}, None, "presence_penalty must be in [-2, 2], got 9.0."),
    (CHAT, {"top_p": 0}, "top_p", "top_p must be in (0, 1], got 0.0."),
    (CHAT, {"stop": ""}, None, "stop cannot contain an empty string."),
    (CHAT, {"bad_words": [""]}, None, "bad_words cannot contain an empty string."),
    (CHAT, {"min_tokens": 5}, None, "min_tokens must be less than or equal to max_tokens=2, got 5."),
    (CHAT, {"messages": [], "max_tokens": 9000}, "max_tokens", "max_tokens=9000 cannot be greater than"),
    (CHAT, {"messages": [{"role": "user", "content": "a b " * 9000}], "max_tokens": 9000}, "max_tokens", "m"),
    (TEXT, {"prompt": [], "max_tokens": 9000}, None, "You must pass at least one prompt"),
    (
        TEXT,
        {"prompt": "x y z " * 8000},
        "input_tokens",
        "This model's maximum context length is 8192",
    ),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "change", "param", "begins"), LATE + EAGER)
def test_refusals_come_when_the_real_server_s_do(tiny, path, change, param, begins, stream):  # noqa: F811
    reply = answered(tiny, path, asked(path, change) | ({"stream": True} if stream else {}))
    late = (path, change, param, begins) in LATE
    if stream and late:
        assert (reply.status_code, reply.headers["content-type"].split(";")[0]) == (200, "text/event-stream")
        told, done = events(reply.text)
        assert done == "[DONE]"
        error = json.loads(told)["error"]
    else:
        assert reply.status_code == 400
        error = reply.json()["error"]
    assert error["message"].startswith(begins)
    assert (error["type"], error["param"], error["code"]) == ("BadRequestError", param, 400)


def test_no_prompt_is_the_end_of_the_engine(tiny):  # noqa: F811
    async def run():
        http = client(app(tiny))
        for prompt in ([""], ["a", ""], "a"):
            reply = await http.post(TEXT, json=asked(TEXT, {"prompt": prompt}))
        return reply.status_code

    assert virtual(run()) == 200


def test_an_engine_that_fails_says_so_and_leaves_nobody_waiting(monkeypatch, caplog):
    def broken(self, now_ps, change):
        raise IndexError("a mistake")

    async def run():
        made = server()
        http = client(made)
        monkeypatch.setattr(Engine, "_turn", broken)
        calls = [http.post(CHAT, json=asked(CHAT, {"stream": s})) for s in (False, True)]
        first, second = await asyncio.gather(*calls)
        later = await http.post(CHAT, json=asked(CHAT, {}))
        return first.status_code, second.text, later.status_code, (await http.get("/health")).status_code

    whole, stream, later, health = virtual(run())
    assert (whole, later, health) == (500, 500, 503)
    assert "EngineCore encountered an issue" in stream
    assert stream.endswith("data: [DONE]\n\n")
    assert "a mistake" in caplog.text


def test_a_little_randomness_suffices_for_several_answers(tiny):  # noqa: F811
    reply = answered(tiny, CHAT, asked(CHAT, {"n": 2, "temperature": 1e-6}))
    assert [choice["index"] for choice in reply.json()["choices"]] == [0, 1]
