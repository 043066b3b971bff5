"""What the simulated server says to requests, beside what a real one was seen to say to the same."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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


USER = {"role": "user", "content": "x"}


def named(name):
    """A tool choice that names a tool."""
    return {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": name}}}


def part(*parts):
    """A conversation with one message of these parts."""
    return {"messages": [{"role": "user", "content": list(parts)}]}


def call(**fields):
    """A conversation with a tool call."""
    said = {"role": "assistant", "content": "a", "tool_calls": [fields]}
    return {"messages": [USER, said]}


WRONG = [  # fields of release 0.32 with a value of the wrong type, and the parameter at fault
    (CHAT, {"reasoning_effort": "extreme"}, "body.reasoning_effort"),
    (CHAT, {"truncate_prompt_tokens": -2}, "body.truncate_prompt_tokens"),
    (CHAT, {"truncation_side": "up"}, "body.truncation_side"),
    (CHAT, {"documents": [{"a": 1}]}, "body.documents.0.a"),
    (CHAT, {"chat_template": 5}, "body.chat_template"),
    (CHAT, {"include_reasoning": "x"}, "body.include_reasoning"),
    (CHAT, {"return_prompt_text": "x"}, "body.return_prompt_text"),
    (CHAT, {"tools": [{"function": {"name": "a", "strict": "x"}}], "tool_choice": "none"}, "body.tools.0."),
    (CHAT, {"mm_processor_kwargs": 5}, "body.mm_processor_kwargs"),
    *[
        (path, {name: value}, f"body.{name}")
        for path in (CHAT, TEXT)
        for name, value in {
            "kv_transfer_params": "x", "ec_transfer_params": 5, "routed_experts_prompt_start": -1,
            "return_token_offsets": "x", "return_mm_kwargs": "x", "mm_payload": "x", "watermarking": "x",
            "repetition_detection": "x", "response_format": "json",
            "truncate_prompt_tokens": 2**63, "add_special_tokens": "x",
        }.items()
    ],
    (CHAT, {"response_format": {"type": "bogus"}}, "body.response_format.type"),
    (CHAT, {"structured_outputs": {"choice": "abc"}}, "body.structured_outputs.choice"),
    (CHAT, named("ls") | {"tool_choice": {"type": "zap", "function": {"name": "ls"}}}, "body.tool_choice"),
    (CHAT, {"messages": [None]}, "body.messages.0.ChatCompletionDeveloperMessageParam"),
    (CHAT, {"messages": [{"role": 5, "content": "x"}]}, "body.messages.0.ChatCompletionDeveloper"),
    (CHAT, {"messages": [USER, {"role": "user", "content": 5}]}, "body.messages.1.ChatCompletionDeveloper"),
    (CHAT, call(), "body.0.ChatCompletionMessageFunctionToolCallParam.id"),
    (CHAT, call(id="c", type="foo", function={"name": "a", "arguments": ""}), "body.0.ChatCompletionMess"),
    (CHAT, call(id="c", type="function", function={"name": "a", "arguments": None}), "body.0.ChatComple"),
]  # fmt: skip
NONE = "You must use one kind of structured outputs constraint but none are specified: {'json': None, 'regex'"
RULES = [  # rules, with the parameter at fault and how the refusal begins
    (
        CHAT,
        {"logprob_token_ids": [1]},
        "logprob_token_ids",
        "when using `logprob_token_ids`, `logprobs` must",
    ),
    (
        TEXT,
        {"logprob_token_ids": [1]},
        "logprob_token_ids",
        "when using `logprob_token_ids`, `logprobs` must",
    ),
    (CHAT, {"thinking_token_budget": "x"}, "thinking_token_budget", "`thinking_token_budget` must be a n"),
    (CHAT, {"thinking_token_budget": -2}, "thinking_token_budget", "`thinking_token_budget` must be a no"),
    (CHAT, {"mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs", "Per-request mm_processor_kwargs are"),
    (CHAT, {"media_io_kwargs": {"a": {}}}, "media_io_kwargs", "Per-request media_io_kwargs are disabled"),
    (TEXT, {"prompt_embeds": "x"}, "prompt_embeds", "You must set `--enable-prompt-embeds` to input"),
    (CHAT, {"repetition_detection": {"max_pattern_size": 2}}, None, "min_count must be >= 2 to detect"),
    (
        CHAT,
        {"repetition_detection": {"min_pattern_size": 2}},
        None,
        "max_pattern_size, min_pattern_size must",
    ),
    (CHAT, {"chat_template": ""}, None, "Chat template is passed with request, but --trust-request-chat-"),
    (CHAT, {"chat_template_kwargs": {"chat_template": "x"}}, None, "Chat template is passed with request"),
    (
        CHAT,
        {"continue_final_message": True},
        None,
        "continue_final_message and add_generation_prompt are not",
    ),
    (CHAT, {"truncate_prompt_tokens": 8193}, "truncate_prompt_tokens", "truncate_prompt_tokens=8193 cann"),
    (CHAT, named("nope"), "tool_choice", "The tool specified in `tool_choice` does not match any of the"),
    (CHAT, named(""), "tool_choice.function.name", "Invalid `name` in `function`: `` in `tool_choice`!"),
    (CHAT, named(5), "tool_choice.function.name", "Invalid `name` in `function`: `5` in `tool_choice`!"),
    (CHAT, named("ls"), None, 'tool_choice=function "ls" requires --tool-call-parser to be set'),
    (CHAT, {"response_format": {"type": "json_schema"}}, "response_format", "When response_format type is"),
    (
        CHAT,
        {"response_format": {"type": "structural_tag"}},
        "response_format",
        "Invalid response_format struc",
    ),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, None, NONE),
    (CHAT, {"structured_outputs": {}}, None, NONE),
    (
        CHAT,
        {"structured_outputs": {"choice": ["a"], "regex": "b"}},
        None,
        "You can only use one kind of cons",
    ),
    (TEXT, {"structured_outputs": {"choice": ["a"], "regex": "b"}}, "structured_outputs", "You can only"),
    (
        CHAT,
        {"structured_outputs": {"choice": ["a"], "grammar": "b"}},
        None,
        "You can only use one kind of str",
    ),
    (
        CHAT,
        part({"type": "image_url", "image_url": {"url": "data:,x"}}),
        None,
        "tiny is not a multimodal mod",
    ),
    (
        CHAT,
        part({"type": "video_url", "video_url": {"url": "data:,x"}}),
        None,
        "tiny is not a multimodal mod",
    ),
    (
        CHAT,
        part({"type": "text", "text": "a"}, {"type": "zap"}),
        "type",
        "Unsupported chat content part type: 'zap'.",
    ),
    (
        CHAT,
        part({"type": "image_url", "image_url": "x"}),
        None,
        "1 validation error for ChatCompletionConten",
    ),
    (CHAT, part("hello"), None, "4 validation errors for ValidatorIterator\n0.ChatCompletionContentPartT"),
    (CHAT, part({"type": "text", "text": None}), None, "7 validation errors for ValidatorIterator\n0.Cha"),
    (
        CHAT,
        {"messages": [USER, {"role": "assistant", "tool_calls": 5}]},
        None,
        "'int' object is not iterable",
    ),
]
IN_STREAM = [
    (CHAT, {"structured_outputs": {"choice": []}}, None, "Choice '[]' cannot be an empty list"),
    (CHAT, {"structured_outputs": {"regex": "("}}, None, "Grammar error: "),
    (CHAT, {"structured_outputs": {"json": "x"}}, None, "Invalid JSON grammar specification."),
    (CHAT, {"structured_outputs": {"json": {"type": "bogus"}}}, None, "Grammar error: Invalid type: bogus"),
    (
        CHAT,
        {"structured_outputs": {"json_object": False}},
        None,
        "structured_outputs.json_object must be True",
    ),
    (CHAT, {"thinking_token_budget": 5}, None, "thinking_token_budget is set but reasoning_config is not"),
    (CHAT, {"truncate_prompt_tokens": 0}, None, "The decoder prompt cannot be empty"),
    (CHAT, {"logprobs": True, "logprob_token_ids": [99999]}, "logprob_token_ids", "token_id(s) [99999] in"),
]


@pytest.mark.parametrize(("path", "change", "param"), WRONG)
def test_wrong_types_are_refused(tiny, path, change, param):  # noqa: F811
    reply = answered(tiny, path, asked(path, change))
    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["code"]) == (400, "Bad Request", 400)
    assert error["param"].startswith(param)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "change", "param", "begins"), RULES + IN_STREAM)
def test_rules_beyond_the_types_are_kept(tiny, path, change, param, begins, stream):  # noqa: F811
    reply = answered(tiny, path, asked(path, change) | {"stream": stream})
    late = stream and (path, change, param, begins) in IN_STREAM
    assert reply.status_code == (200 if late else 400)
    error = json.loads(events(reply.text)[0])["error"] if late else reply.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("BadRequestError", param, 400)
    assert error["message"].startswith(begins)


FINE = [
    (CHAT, {"response_format": {"type": "json_object"}}),
    (CHAT, {"structured_outputs": {"choice": ["aa", "bb"]}}),
    (CHAT, {"structured_outputs": {"regex": "\\p{L}+(?<name>x)"}}),
    (CHAT, {"structured_outputs": {"json": {"properties": {"type": {"const": {"type": "x"}}}}}}),
    (CHAT, {"structured_outputs": {"json": {"type": ["string", "null"], "enum": [{"type": "x"}]}}}),
    (CHAT, {"repetition_detection": {"max_pattern_size": 2, "min_count": 2}}),
    (CHAT, {"thinking_token_budget": -1}),
    (CHAT, {"mm_processor_kwargs": {}, "media_io_kwargs": {}, "kv_transfer_params": {}}),
    (CHAT, {"messages": [{"role": "zebra", "content": "x"}]}),
    (CHAT, call(id="c", type="function", function={"name": "a", "arguments": "{bad"})),
    (CHAT, {"messages": [USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}]}),
]


@pytest.mark.parametrize(("path", "change"), FINE)
def test_what_the_real_server_accepts_is_accepted(tiny, path, change):  # noqa: F811
    assert answered(tiny, path, asked(path, change)).status_code == 200


DEVELOPER = {"role": "developer", "content": "x"}
LENGTHS = [  # a change, and the tokens of the prompt that a real server counted
    ({"messages": [DEVELOPER, USER]}, 17),
    ({"messages": [USER, DEVELOPER]}, 17),
    ({"truncate_prompt_tokens": 5}, 5),
    ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, 5),
    (
        {"messages": [USER, {"role": "assistant", "content": "abc def"}], "continue_final_message": True}
        | {"add_generation_prompt": False},
        13,
    ),
    ({"messages": [USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}]}, 19),
]


@pytest.mark.parametrize(("change", "tokens"), LENGTHS)
def test_a_prompt_is_as_long_as_the_real_one(tiny, change, tokens):  # noqa: F811
    assert answered(tiny, CHAT, asked(CHAT, change)).json()["usage"]["prompt_tokens"] == tokens


def test_a_prompt_is_cut_on_the_side_that_is_named(tiny):  # noqa: F811
    def ids(**change):
        body = asked(TEXT, {"prompt": [70, 71, 72, 73], "return_token_ids": True} | change)
        return answered(tiny, TEXT, body).json()["choices"][0]["prompt_token_ids"]

    assert ids(truncate_prompt_tokens=2) == ids(truncate_prompt_tokens=2, truncation_side="left") == [72, 73]
    assert ids(truncate_prompt_tokens=2, truncation_side="right") == [70, 71]
    assert ids(truncate_prompt_tokens=-1) == [70, 71, 72, 73]


def test_explicit_fields_go_before_template_arguments(tiny):  # noqa: F811
    plain = answered(tiny, CHAT, asked(CHAT, {})).json()["usage"]
    more = {"chat_template_kwargs": {"add_generation_prompt": False}}
    assert answered(tiny, CHAT, asked(CHAT, more)).json()["usage"] == plain


def test_the_text_of_the_prompt_comes_back_when_it_is_wanted(tiny):  # noqa: F811
    text = "<|im_start|>user\nList the files.<|im_end|>\n<|im_start|>assistant\n"
    body = asked(CHAT, {"return_prompt_text": True})
    assert answered(tiny, CHAT, body).json()["prompt_text"] == text
    first = json.loads(events(answered(tiny, CHAT, body | {"stream": True}).text)[0])
    assert first["prompt_text"] == text


def test_tokens_asked_for_by_number_get_log_probabilities(tiny):  # noqa: F811
    reply = answered(tiny, CHAT, asked(CHAT, {"logprobs": True, "logprob_token_ids": [65, 66]}))
    content = reply.json()["choices"][0]["logprobs"]["content"]
    assert [len(one["top_logprobs"]) for one in content] == [3, 3]


def test_tokenize_counts_all_that_the_prompt_would_have(tiny):  # noqa: F811
    def count(**body):
        reply = answered(tiny, "/tokenize", body)
        return reply.json()["count"] if reply.status_code == 200 else reply.json()["error"]["message"]

    assert count(prompt="x y z " * 8000) == 24_001
    assert count(messages=[{"role": "user", "content": "x y z " * 4000}]) == 12_011
    whole = count(messages=SAID, add_generation_prompt=False)
    assert count(messages=SAID, continue_final_message=True, add_generation_prompt=False) == whole - 2
    assert count(messages=SAID, continue_final_message=True).startswith("continue_final_message and add_")
    assert count(messages=SAID, chat_template="x").startswith("Chat template is passed with request")
    assert count(messages=SAID, tools="x").startswith("2 validation errors")
    image = part({"type": "image_url", "image_url": {"url": "x"}})
    assert count(**image) == "tiny is not a multimodal model"


def test_tokens_of_tools_count():
    async def run(tools):
        reply = await client(server()).post("/tokenize", json={"messages": SAID, "tools": tools})
        return reply.json()["count"]

    assert virtual(run(TOOLS)) > virtual(run(None))


def test_a_rank_that_is_not_there_is_refused(tiny):  # noqa: F811
    for rank, status in {"0": 200, "x": 200, "5": 400, "-1": 400}.items():
        assert answered(tiny, CHAT, asked(CHAT, {}), **{"x-data-parallel-rank": rank}).status_code == status


def test_a_search_tells_its_answer_when_it_is_over(tiny):  # noqa: F811
    body = asked(CHAT, {"use_beam_search": True, "max_tokens": 8})
    assert answered(tiny, CHAT, body).json()["usage"]["prompt_tokens_details"] is None
    assert len(events(answered(tiny, CHAT, body | {"stream": True}).text)) == 3
    refused = answered(tiny, TEXT, asked(TEXT, {"use_beam_search": True, "stream": True}))
    assert refused.json()["error"]["message"] == "Streaming is not currently supported with beam search"


FAULT = '{"error":{"message":"1 validation error:\\n  '
BODIES = [  # a body, its type, and the beginning of what a real server says
    (
        b'{"max_tokens": ' + b"9" * 5000 + b"}",
        "application/json",
        '{"detail":"There was an error parsing the',
    ),
    (
        b"null",
        "application/json",
        "{\"error\":{\"message\":\"1 validation error:\\n  {'type': 'missing', 'loc",
    ),
    (
        b"",
        "application/json",
        "{\"error\":{\"message\":\"1 validation error:\\n  {'type': 'missing', 'loc': ",
    ),
    (
        b"{",
        "application/vnd.x+json",
        FAULT + "{'type': 'json_invalid'",
    ),
    (b"{}", "application/vnd.x+json", '{"error":{"message":"1 validation error:\\n  Unsupported Media Type'),
    (b"{", "text/plain", '{"error":{"message":"1 validation error:\\n  Unsupported Media Type: Only \'app'),
    (b"{}", "application/json ;charset=utf-8", '{"error":{"message":"1 validation error:\\n  Unsupported'),
]


@pytest.mark.parametrize(("body", "kind", "begins"), BODIES)
def test_bodies_that_are_no_json_are_refused(body, kind, begins):
    async def run():
        return await client(server()).post(CHAT, content=body, headers={"content-type": kind})

    reply = virtual(run())
    assert reply.status_code == 400
    assert reply.text.startswith(begins)


def requested(*requests, **options):
    """The answers to (method, path, headers)."""

    async def run():
        http = client(server(**options))
        return [
            await http.request(m, p, headers=h or {}, json={} if m == "POST" else None)
            for m, p, h in requests
        ]

    return virtual(run())


def test_pages_of_other_origins_are_told_no():
    asked = {"origin": "http://x.test", "access-control-request-method": "POST"}
    good, bad, plain = requested(
        ("OPTIONS", CHAT, asked | {"access-control-request-headers": "authorization"}),
        ("OPTIONS", CHAT, asked | {"access-control-request-method": "FOO"}),
        ("GET", "/v1/models", {"origin": "http://x.test"}),
    )
    assert (good.status_code, good.text) == (400, "Disallowed CORS origin")
    assert good.headers["access-control-allow-headers"] == "authorization"
    assert (
        good.headers["access-control-allow-methods"] == "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT, QUERY"
    )
    assert (bad.status_code, bad.text) == (400, "Disallowed CORS origin, method")
    assert (plain.status_code, plain.headers["vary"]) == (200, "Origin")


def test_a_redirect_names_the_whole_address():
    [reply] = requested(("GET", "/v1/models/?a=b", None))
    assert (reply.status_code, reply.headers["location"]) == (307, "http://node/v1/models?a=b")


def test_the_metrics_have_the_type_of_their_writer():
    exact, more = requested(("GET", "/metrics", None), ("GET", "/metrics/", None))
    assert exact.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    assert more.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_endpoints_that_are_not_simulated_are_there_all_the_same():
    paths = ["/v1/responses", "/v1/messages", "/invocations", f"{CHAT}/render", "/sleep", "/collective_rpc"]
    for reply in requested(*[("GET", path, None) for path in paths], dev_mode=True):
        assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    told = requested(
        ("POST", f"{CHAT}/render", None), ("POST", "/v1/responses", None), ("POST", "/invocations", None)
    )
    assert [reply.status_code for reply in told] == [403, 501, 400]
    assert told[0].json()["error"]["type"] == "PermissionDeniedError"
    [asleep] = requested(("GET", "/is_sleeping", None), dev_mode=True)
    assert asleep.json() == {"is_sleeping": False}


def test_both_kinds_of_request_can_be_invoked(tiny):  # noqa: F811
    for path, kind in ((CHAT, "chat.completion"), (TEXT, "text_completion")):
        assert answered(tiny, "/invocations", asked(path, {})).json()["object"] == kind


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("/home/me/models/tiny", "<path>"),
        ("/models/tiny/config.json", "<path>"),
        ("/models/tiny", "/models/tiny"),
        ("Qwen/Qwen3-32B", "Qwen/Qwen3-32B"),
        ("see /tmp/a/b and /a/b/c.txt", "see <path> and <path>"),
    ],
)
def test_what_looks_like_a_path_is_not_repeated(tiny, model, shown):  # noqa: F811
    reply = answered(tiny, CHAT, asked(CHAT, {"model": model}))
    assert reply.status_code == 404
    assert reply.json()["error"]["message"] == f"The model `{shown}` does not exist. Valid aliases: tiny."


WORDS = [
    "role",
    "content",
    "type",
    "text",
    "tool_calls",
    "function",
    "name",
    "arguments",
    "id",
    "image_url",
    "x",
]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([*WORDS, "{}", "[1]", "", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=6,
)
CALL = st.fixed_dictionaries(
    {"id": st.just("c"), "type": st.sampled_from(["function", "custom", "x"])},
    optional={
        "function": st.fixed_dictionaries({"name": ANYTHING, "arguments": ANYTHING}),
        "custom": ANYTHING,
    },
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "developer", "tool", "function", "zebra"])},
    optional={"content": ANYTHING, "tool_calls": st.lists(CALL, max_size=2) | ANYTHING, "name": ANYTHING}
    | {"reasoning_content": ANYTHING, "tool_call_id": ANYTHING, "tools": ANYTHING},
)


@settings(max_examples=150, deadline=None)
@given(st.lists(MESSAGE, min_size=1, max_size=3), st.sampled_from([CHAT, "/tokenize"]))
def test_whatever_a_message_is_made_of_the_answer_is_no_failure(said, path):
    async def run():
        body = json.dumps({"messages": said, "max_tokens": 2})
        return await client(server()).post(path, content=body, headers={"content-type": "application/json"})

    assert virtual(run()).status_code in (200, 400)
