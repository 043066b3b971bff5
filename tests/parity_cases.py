"""What the parity test asks of both servers: exchanges of every sample's kind, and bad requests."""

from __future__ import annotations

import random

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
EACH, BAD = 40, 200
SAID = [{"role": "system", "content": "You use tools."}, {"role": "user", "content": "List the files."}]
TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {}}}]
WORDS = ["list", "file", "path", "class", "def", "return", "import", "test", "value", "self", "node", "cache"]
RAW = [
    "null",
    "9" * 5000,
    "",
    "[]",
    '"x"',
    "{",
    '{"a":1,}',
    b"\xff",
    "{}",
    "nul",
    '{"a": 1} x',
    '{"messages": [1',
    "[" * 400,
]
VALUES = [None, True, False, -1, 0, 1, 3, 2.5, "x", "", [], {}, [1], ["a"], {"a": 1}, 2**70, -5.5, "7"]
FIELDS = [
    "model", "max_tokens", "n", "stop", "stream", "temperature", "top_p", "top_k", "min_p", "seed",
    "user", "presence_penalty", "repetition_penalty", "min_tokens", "stream_options", "tools",
    "tool_choice", "cache_salt", "logit_bias", "priority", "ignore_eos", "stop_token_ids",
    "max_completion_tokens", "logprobs", "top_logprobs", "prompt_logprobs", "echo", "bad_words",
    "allowed_token_ids", "return_token_ids", "session_id", "vllm_xargs", "request_id",
    "add_generation_prompt", "include_stop_str_in_output", "stream_interval", "messages", "prompt",
    "suffix", "reasoning_effort", "truncate_prompt_tokens", "truncation_side", "documents", "chat_template",
    "kv_transfer_params", "ec_transfer_params", "mm_processor_kwargs", "media_io_kwargs",
    "include_reasoning", "routed_experts_prompt_start", "return_token_offsets", "return_prompt_text",
    "return_mm_kwargs", "mm_payload", "repetition_detection", "thinking_token_budget", "logprob_token_ids",
    "watermarking", "continue_final_message", "add_special_tokens", "prompt_embeds",
]  # fmt: skip
CHANGES = [  # of a chat request, most of them bad
    {"max_tokens": -1}, {"max_tokens": 0}, {"cache_salt": ""}, {"cache_salt": "a/b"}, {"tools": TOOLS},
    {"stream_options": {"include_usage": True}}, {"tools": TOOLS, "tool_choice": "required"}, {"tools": []},
    {"tool_choice": "auto"}, {"tools": TOOLS, "tool_choice": "x"}, {"top_p": 0}, {"n": 0}, {"n": 2},
    {"stop": list("abcde")}, {"n": [], "top_p": "x", "model": 1}, {"top_logprobs": 2}, {"top_k": -5},
    {"min_p": 3}, {"presence_penalty": 9}, {"repetition_penalty": 0}, {"stop": ""}, {"min_tokens": -1},
    {"min_tokens": 5}, {"seed": 2**70}, {"temperature": 5}, {"max_completion_tokens": 9999},
    {"messages": "x"}, {"messages": ["x"]}, {"messages": [{"content": "x"}]}, {"messages": []},
    {"messages": [{"role": "user", "content": None}]}, {"messages": [{"role": "zebra", "content": "x"}]},
    {"stream": "maybe"}, {"logit_bias": {"a": "b"}}, {"logit_bias": {"x": 1}}, {"logit_bias": {"99999": 1}},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}]}, {"user": 5},
    {"model": "nope"}, {"model": None}, {"stream_interval": 0}, {"tools": [{"type": "x"}]},
    {"tools": TOOLS, "tool_choice": {"type": "function"}}, {"session_id": "s"}, {"request_id": "abc"},
    {"continue_final_message": True, "add_generation_prompt": True}, {"logprobs": True, "top_logprobs": 21},
    {"logprobs": True, "top_logprobs": -1}, {"prompt_logprobs": 30}, {"prompt_logprobs": 1, "stream": True},
    {"stop_token_ids": [99999]}, {"allowed_token_ids": []}, {"allowed_token_ids": [-1]},
    {"bad_words": [""]},
    {"response_format": {"type": "bogus"}}, {"response_format": {"type": "json_schema"}},
    {"response_format": {}}, {"response_format": {"type": "structural_tag"}}, {"response_format": "json"},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no"}}}},
    {"structured_outputs": {"choice": ["a"], "regex": "b"}}, {"structured_outputs": {"zap": 1}},
    {"structured_outputs": {"choice": []}, "stream": True}, {"structured_outputs": {"choice": "abc"}},
    {"structured_outputs": {"regex": "("}}, {"structured_outputs": {"json": "x"}},
    {"structured_outputs": {"grammar": "x"}}, {"chat_template": "x"}, {"thinking_token_budget": 5},
    {"thinking_token_budget": 5, "stream": True}, {"thinking_token_budget": -2},
    {"truncate_prompt_tokens": 5}, {"truncate_prompt_tokens": 5, "truncation_side": "right"},
    {"truncate_prompt_tokens": 0, "stream": True}, {"truncate_prompt_tokens": 8193},
    {"return_prompt_text": True}, {"return_prompt_text": True, "stream": True},
    {"continue_final_message": True, "add_generation_prompt": False}, {"continue_final_message": True},
    {"logprob_token_ids": [1]}, {"logprobs": True, "logprob_token_ids": [65, 66]},
    {"logprobs": True, "logprob_token_ids": [99999]}, {"mm_processor_kwargs": {"a": 1}},
    {"media_io_kwargs": {"a": {}}}, {"chat_template_kwargs": {"add_generation_prompt": False}},
    {"chat_template_kwargs": {"chat_template": "x"}}, {"repetition_detection": {"max_pattern_size": 2}},
    {"n": 2, "temperature": 1e-6},
    *[{"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": n}}}
      for n in ("no", "ls", "", 5)],
    {"tools": TOOLS, "tool_choice": {"type": "zap", "function": {"name": "ls"}}},
    *[{"stream": True} | k for k in (
        {"logprobs": True, "top_logprobs": 21}, {"logprobs": True, "top_logprobs": -1}, {"n": 0},
        {"stop_token_ids": [99999]}, {"logit_bias": {"99999": 1}}, {"allowed_token_ids": []},
        {"allowed_token_ids": [-1]}, {"top_p": 0}, {"bad_words": [""]}, {"stop": ""}, {"min_tokens": 5})],
    {"messages": [], "max_tokens": 9000}, {"messages": [None]}, {"messages": [{"role": 5, "content": "x"}]},
    *[{"messages": [{"role": "user", "content": [part]}]} for part in (
        {"type": "image_url", "image_url": {"url": "data:,x"}}, {"type": "image_url", "image_url": "x"},
        {"type": "image_url"}, {"type": "foo"}, {"type": "text"}, {"text": "a"}, "hello", 5,
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, {"type": "input_text"},
        {"type": "video_url", "video_url": {"url": "data:,x"}}, {"type": "text", "text": None})],
    *[{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "a"} | k]} for k in (
        {"tool_calls": []}, {"tool_calls": [{}]}, {"tool_calls": "xy"}, {"tool_calls": 5}, {"reasoning": "h"},
        {"tool_calls": [{"id": "c", "type": "foo", "function": {"name": "ls", "arguments": "{}"}}]},
        {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "ls", "arguments": "{bad"}}]},
        {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "ls", "arguments": None}}]},
        {"content": [{"type": "refusal", "refusal": "no"}]}, {"content": None}, {"role": "developer"})],
    {"top_logprobs": "x"}, {"echo": "no"}, {"vllm_xargs": {"a": {}}}, {"n": 99999999},
]  # fmt: skip
PROMPTS = [
    *("", None, [1, 2, 3], ["a", "b"], [[1], [2, 3]], 5, [-1], [], [99_999_999], ["a"] * 1025, [["a"]], [[]]),
    *([1, "a"], ["a", [1]], "x y z " * 8000, [""], ["a", ""], [[70], []], [70] * 8193, [70] * 9000),
]


def words(draw, count):
    """A text of so many words."""
    return " ".join(draw.choices(WORDS, k=count))


def options(draw, letters, chat):
    """Sampling options of a good request; mostly they force the text, which is then compared."""
    body = {"model": "tiny", "max_tokens": draw.randint(1, 8), "temperature": 0}
    letter = draw.choice(list(letters))
    forced = draw.random() < 0.75
    body |= {"allowed_token_ids": [letters[letter]]} if forced else {"ignore_eos": True}
    more = [
        {"stop": letter * 3}, {"stop": [letter * 2, "zz"]}, {"stop": ["no"], "max_tokens": 5},
        {"stop": None},
        {"stop": letter * 3, "include_stop_str_in_output": True}, {"stop": letter * 2, "min_tokens": 3},
        {"stop_token_ids": [letters[letter]], "max_tokens": 6}, {"min_tokens": 1}, {"user": "u"},
        {"stop_token_ids": [letters[letter]], "include_stop_str_in_output": True, "max_tokens": 6},
        {"return_token_ids": True}, {"logprobs": True if chat else 2}, {"cache_salt": draw.choice("ab")},
        {"logprobs": True, "top_logprobs": 3} if chat else {"logprobs": 0},
        {"priority": draw.randint(-9, 9)},
        {"echo": True}, {"session_id": "s"}, {"program_id": "x", "job_id": 1}, {"seed": 5},
        {"bad_words": ["q"]},
        {"n": 2, "temperature": 1.0}, {"vllm_xargs": {"session_id": "x"}}, {"request_id": "r"}, {},
        {"return_tokens_as_token_ids": True, "logprobs": True if chat else 1}, {"max_tokens": None},
    ]  # fmt: skip
    if chat:
        more += [
            {"add_generation_prompt": False},
            {"max_completion_tokens": 2},
            {"echo": True},
            {"tools": None},
        ]
    else:
        more += [{"echo": True, "logprobs": 1}, {"echo": True, "max_tokens": 0}, {"echo": True, "n": 2}]
    for change in draw.sample(more, draw.choice([0, 1, 1, 2])):
        body |= change
    if body["max_tokens"] is None and chat:
        body["max_tokens"] = 3
    if body.get("n") == 2:
        body["temperature"] = 1.0
    return body


def messages(draw, letters):
    """A conversation."""
    said = [{"role": "system", "content": words(draw, draw.choice([3, 40]))}] * draw.randint(0, 1)
    for _ in range(draw.choice([0, 0, 1])):
        said += [
            {"role": "user", "content": words(draw, 9)},
            {"role": "assistant", "content": words(draw, 5)},
        ]
    text = words(draw, draw.choice([2, 30, 90]))
    content = [{"type": "text", "text": t} for t in (text, "b")] if draw.random() < 0.15 else text
    return [*said, {"role": draw.choice(["user", "user", "user", "assistant"]), "content": content}]


def prompt(draw, letters):
    """The prompt of a completion."""
    numbers = [draw.choices(list(letters.values()), k=draw.choice([3, 60])) for _ in range(2)]
    kinds = [
        words(draw, 3),
        words(draw, 80),
        words(draw, 40),
        numbers[0],
        [words(draw, 4), words(draw, 9)],
        numbers,
    ]
    return draw.choice(kinds)


STREAMS = [
    {}, {"stream_options": {"include_usage": True}}, {"stream_options": {}},
    {"stream_interval": 3, "max_tokens": 8},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"stream_options": {"include_usage": True}}, {"stream_options": {"continuous_usage_stats": True}},
]  # fmt: skip


def growing(draw):
    """Sessions that grow by turns, more than a small pool holds; some turns come with a salt."""
    said = {s: [{"role": "user", "content": f"{s} {words(draw, 500 + 150 * s)}"}] for s in range(7)}
    for _ in range(EACH):
        s = draw.randrange(7)
        body = {
            "model": "tiny",
            "messages": list(said[s]),
            "max_tokens": draw.choice([1, 20, 40]),
            "temperature": 0,
        }
        yield "POST", CHAT, body | {"ignore_eos": True} | draw.choice([{}] * 6 + [{"cache_salt": "s"}]), {}
        said[s] += [
            {"role": "assistant", "content": words(draw, 5)},
            {"role": "user", "content": words(draw, 60)},
        ]


def errors(draw, letters):
    """The kinds of error in the samples, with other values."""
    base = {"model": "tiny", "messages": SAID, "max_tokens": 2}
    text, k = words(draw, 9000), draw.randint(1, 99)
    kind = draw.randrange(14)
    body = [
        base | {"messages": [{"role": "user", "content": text}]}, base | {"max_tokens": 8193 + k},
        base | {"stream": True, "max_tokens": 8193 + k}, base | {"temperature": -k},
        base | {"model": words(draw, 1)},
        {"model": "tiny"}, base | {"messages": []}, base | {"max_tokens": words(draw, 1)},
        base | {words(draw, 1): k},
        base | {"priority": k}, base | {"max_completion_tokens": 8200 + k}, base | {"top_p": 1 + k},
        {"model": "tiny", "prompt": text, "max_tokens": k}, '{"model": "tiny", ' + words(draw, 2),
    ][kind]  # fmt: skip
    return "POST", TEXT if kind == 12 else CHAT, body, {}


def plain(draw, letters):
    """The small endpoints, and paths and methods that are not there."""
    paths = [
        "/v1/models",
        "/version",
        "/load",
        "/health",
        "/ping",
        "/health/",
        "/tokenize",
        "/v1/nothing",
        TEXT,
    ]
    kind = draw.randrange(8)
    if kind < 3:
        return "GET", draw.choice([*paths[:5], "/kv_event_sources"]), None, {}
    if kind < 5:
        return draw.choice(["GET", "POST", "PUT", "DELETE"]), draw.choice(paths[2:]), None, {}
    headers = draw.choice(
        [{"authorization": "Bearer no"}, {"authorization": "sesame"}, {"x-request-id": "mine"}]
    )
    return "GET", draw.choice(["/v1/models", "/version"]), None, headers


def tokenize(draw, letters):
    """`/tokenize` and `/detokenize`."""
    ids, strings = (
        [draw.randint(0, 4090) for _ in range(5)],
        {"return_token_strs": draw.choice([True, False, None])},
    )
    return draw.choice([
        ("POST", "/tokenize", {"model": "tiny", "messages": messages(draw, letters)} | strings, {}),
        ("POST", "/tokenize", {"messages": SAID, "add_generation_prompt": False} | strings, {}),
        ("POST", "/tokenize", {"prompt": words(draw, 9) + draw.choice([" é", "<|im_end|>"])} | strings, {}),
        ("POST", "/detokenize", {"model": "tiny", "tokens": ids}, {}),
        ("POST", *draw.choice([("/tokenize", {}), ("/detokenize", {"tokens": ["x"]}),
        ("/tokenize", {"prompt": 1}),
                               ("/detokenize", {"tokens": [-1]}), ("/detokenize", {"tokens": [2**40]}),
                               ("/tokenize", {"model": "no", "prompt": "a"}),
                               ("/tokenize", {"messages": []})]), {}),
    ])  # fmt: skip


def good(path, stream):
    """A drawer of good requests."""

    def one(draw, letters):
        chat = path == CHAT
        body = options(draw, letters, chat)
        body |= {"messages": messages(draw, letters)} if chat else {"prompt": prompt(draw, letters)}
        body |= {"stream": True} | draw.choice(STREAMS) if stream else {}
        headers = [
            {},
            {},
            {"x-request-id": "mine"},
            {"x-session-id": "h"},
            {"x-vllm-priority": draw.choice("3x")},
        ]
        return "POST", path, body, draw.choice(headers)

    return one


def cases(letters):
    """(kind, method, path, body, headers) of all exchanges, the same every time; `letters`: their tokens."""
    draw, found = random.Random(7), []
    base = {"model": "tiny", "max_tokens": 2, "ignore_eos": True, "temperature": 0}
    chat, text = base | {"messages": SAID}, base | {"prompt": "hello there"}
    for kind, one in {
        "chat": good(CHAT, False), "chat stream": good(CHAT, True), "completion": good(TEXT, False),
        "completion stream": good(TEXT, True), "tokenize": tokenize, "error": errors, "plain": plain,
    }.items():  # fmt: skip
        found += [(kind, *one(draw, letters)) for _ in range(EACH)]
    found += [("cache", *case) for case in growing(draw)]
    bad = [(CHAT, chat | change) for change in CHANGES] + [(TEXT, text | {"prompt": p}) for p in PROMPTS]
    bad += [(CHAT, raw) for raw in RAW]
    for _ in range(BAD):
        path, body = draw.choice([(CHAT, dict(chat)), (TEXT, dict(text))])
        body |= {f: draw.choice(VALUES) for f in draw.sample(FIELDS, draw.choice([1, 1, 1, 2, 3]))}
        if body["max_tokens"] is None:  # as many tokens as fit take minutes here
            body |= {"max_completion_tokens": 2, "max_tokens": 2}
        if body.get("stream_interval") == 2**70:  # vLLM says 500 and counts the request as waiting for ever
            body["stream_interval"] = 2**62
        bad.append((path, body))
    return found + [("bad", "POST", path, body, {}) for path, body in bad]
