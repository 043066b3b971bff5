"""What servers send, taken apart without a network: events, replies and metrics pages."""

from __future__ import annotations

import collections
import json
import math
import os
import re
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from raw_server import BUSY, CACHED, CHAT, DEAD, DONE, ROLE, delta, event, usage

from tao.checks import MAX_TOKENS
from tao.live.faults import Broken, complaint
from tao.live.metrics_page import FAMILIES, MAX_KEPT_BYTES, Load, parse
from tao.live.stream import Answer, Events

SAMPLES = Path(os.environ.get("TAO_SHARED", Path(__file__).parents[2] / "shared")) / "live" / "samples"
SAMPLES /= "v0.32.0"

# Events


def naive_events(data: bytes) -> list[str]:
    """The standard, read aloud: lines end in CRLF, LF or CR; a blank one ends an event."""
    text = data.decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    events, fields = [], []
    for line in text.split("\n")[:-1]:  # what no line end follows is not a line yet
        if line == "" and fields:
            events.append("\n".join(fields))
            fields = []
        elif line == "data" or line.startswith("data:"):
            fields.append(re.sub("^data:? ?", "", line))
    return events


LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r"])
LINES = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=5).map(lambda x: f"data: {x}"),
    st.sampled_from(
        ["", "", "", "data", "data:", "data:  x", ": keep-alive", "event: error", "id: 3", "datax: 1"]
    ),
)
STREAMS = st.lists(st.tuples(LINES, LINE_ENDS), max_size=12).map(
    lambda x: "".join(a + b for a, b in x).encode()
)


@given(st.booleans(), STREAMS, st.text(max_size=3), st.lists(st.integers(0, 200)))
def test_any_cut_of_the_bytes_gives_the_same_events(marked, stream, tail, cuts):
    stream = b"\xef\xbb\xbf" * marked + stream + tail.encode("utf-8", "replace")
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    events = Events()
    found = [e for a, b in pairwise(places) for e in events.feed(stream[a:b])]
    whole = Events()
    assert found == whole.feed(stream) == naive_events(stream)
    assert events.lines == whole.lines


@pytest.mark.parametrize("data", [b"x" * 50, b"data: " + b"x" * 30 + b"\n", b"data: xx\n" * 6])
def test_neither_a_line_nor_an_event_grows_without_end(data):
    events = Events(limit=32)
    with pytest.raises(Broken, match="more than 32 bytes"):
        collections.deque(map(events.feed, (data[k : k + 1] for k in range(len(data)))))


def test_invalid_utf8_is_refused():
    with pytest.raises(Broken, match="UTF-8"):
        Events().feed(b"data: \xff\n\n")


# Replies


def answer(*chunks: bytes, every_s: float = 1.0, on_text=None) -> Answer:
    """The answer after these chunks, one each second from 1 s on."""
    found, events = Answer(on_text), Events()
    for k, data in enumerate(chunks, 1):
        for each in events.feed(data):
            found.take(each, k * every_s)
    return found


def reply(*chunks: bytes):
    """The whole reply, sent at 0 s."""
    return answer(*chunks).reply("n0", "r", 0.0, float(len(chunks)))


def test_the_chunks_of_a_chat():
    pieces = []
    found = answer(*CHAT, on_text=pieces.append).reply("n0", "r", 0.0, 6.0)
    assert (found.text, found.finish_reason, pieces) == (" a b c", "length", [" a", " b", " c"])
    assert (found.ttft_s, found.tpot_s, found.longest_gap_s, found.total_s) == (2.0, 1.0, 1.0, 6.0)
    assert (found.prompt_tokens, found.completion_tokens) == (37, 3)
    assert (found.cached_tokens, found.created_cache_tokens) == (32, 0)
    assert (found.server_ttft_s, found.queue_s) == (None, None)


END = [delta("stop", content="."), usage(), DONE]


@pytest.mark.parametrize(
    ("chunks", "ttft_s"),
    [
        ([ROLE, delta(content="x")], 2),
        ([ROLE, delta(content=""), delta(content="x")], 2),  # half a character is a token too
        ([delta(role="assistant", content="x")], 1),  # Dynamo
        ([ROLE, delta(reasoning="x")], 2),
        ([ROLE, delta(reasoning_content="x")], 2),
        ([delta(role="assistant", content=None), delta(tool_calls=[{"index": 0, "function": {}}])], 2),
        ([b": keep-alive\n\n", event(choices=[]), ROLE, delta(content="x")], 4),
        ([b": keep-alive\n\n", event(choices=[{"index": 0, "text": "", "finish_reason": None}])], 2),
        ([ROLE], 2),  # the end itself
    ],
)
def test_the_first_token_is_the_first_chunk_that_is_more_than_a_role(chunks, ttft_s):
    assert reply(*chunks, *END).ttft_s == ttft_s


def test_tokens_are_what_the_server_counts_not_events():
    found = reply(ROLE, delta(content="four tokens"), delta("stop", content="four more"), usage(), DONE)
    assert (found.completion_tokens, found.tpot_s) == (3, 0.5)
    one = reply(delta("stop", content="x"), event(choices=[], usage={"completion_tokens": 1}), DONE)
    assert (one.completion_tokens, one.tpot_s) == (1, None)


@pytest.mark.parametrize(
    ("details", "cached"),
    [
        (None, None),
        ({}, None),
        ({"cached_tokens": None}, None),
        ({"cached_tokens": 0}, 0),
        (CACHED, 32),
        ([], None),
    ]
    + [({"cached_tokens": x}, None) for x in (-1, "32", 1.5, True, 10**400)],
)
def test_unknown_is_not_zero(details, cached):
    assert reply(*CHAT[:4], usage(details), DONE).cached_tokens == cached
    assert reply(*CHAT[:4], DONE).completion_tokens is None  # no usage at all


def test_the_servers_own_times():
    found = reply(*CHAT[:4], usage(metrics={"time_to_first_token_ms": 31.25, "queue_time_ms": 0.5}), DONE)
    assert (found.server_ttft_s, found.queue_s) == (0.03125, 0.0005)
    assert reply(*CHAT[:4], usage(metrics={"queue_time_ms": math.nan}), DONE).queue_s is None


def test_tool_calls_are_put_together():
    def part(index, **fields):
        return {"index": index} | fields

    found = reply(
        ROLE,
        delta(tool_calls=[part(1, id="b", type="function", function={"name": "ls", "arguments": ""})]),
        delta(tool_calls=[part(0, id="a", function={"name": "cat", "arguments": '{"f'})]),
        delta(tool_calls=[part(0, function={"arguments": '": 1}'}), part(1, function={"arguments": "{}"})]),
        delta("tool_calls"),
        DONE,
    )
    assert [(t["id"], t["function"]) for t in found.tool_calls] == [
        ("a", {"name": "cat", "arguments": '{"f": 1}'}),
        ("b", {"name": "ls", "arguments": "{}"}),
    ]


def test_the_name_of_a_token_may_be_a_larger_number_than_a_count():
    last = event(choices=[], usage={"completion_tokens": 2})
    for ids, kept in (([2**52, 7], (2**52, 7)), ([2**64, 7], None), ("7", None), (7, None), ({"7": 7}, None)):
        chunk = event(choices=[{"text": "a", "finish_reason": "stop", "token_ids": ids}])
        assert reply(chunk, last, DONE).token_ids == kept


def test_half_a_character_cannot_reach_a_file():
    assert reply(b'data: {"choices":[{"delta":{"content":"\\ud83d!"}}]}\n\n', *END).text == "?!."


@pytest.mark.parametrize(
    "chunks",
    [
        [DONE],
        [ROLE, DONE],
        [ROLE, delta(content="x"), DONE],
        [ROLE, delta(content="x")],
        [ROLE, delta(content="x"), delta("abort", content=""), DONE],
        [ROLE, delta(content="x"), delta("error"), DONE],
        [delta("abort", content=""), DONE],
        [delta("surprise", content=""), DONE],
        [ROLE, b"data: " + json.dumps(DEAD).encode() + b"\n\n", DONE],
        [*CHAT[:4], b"data: " + json.dumps(DEAD).encode() + b"\n\n", DONE],
        *[
            [b"data: " + x + b"\n\n"]
            for x in (b"{", b"[]", b"7", b"null", b"{}", b"[" * 5000, b'{"choices":3}')
        ],
        *[
            [b'data: {"choices":[%s]}\n\n' % x]
            for x in (b"1", b"[]", b'{"delta":1}', b'{"finish_reason":[]}')
        ],
        *[[delta(tool_calls=x)] for x in ([1], [{"index": -1, "function": {}}], [{"index": 0}])],
        [b"data: " + b"1" * 5000 + b"\n\n"],
    ],
)
def test_done_is_not_success_and_nonsense_is_not_an_answer(chunks):
    with pytest.raises(Broken):
        reply(*chunks)


KEYS = [
    "choices",
    "delta",
    "content",
    "tool_calls",
    "index",
    "function",
    "finish_reason",
    "usage",
    "error",
    "message",
    "metrics",
    "role",
    "token_ids",
]
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["stop", "abort"])
)
JSON = st.recursive(
    LEAVES, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(KEYS), x), max_leaves=12
)


@given(JSON, JSON, JSON)
def test_whatever_json_a_server_sends_it_is_an_answer_or_broken(event, choice, change):
    found = Answer()
    with suppress(Broken):
        for sent in (event, {"choices": [choice]}, {"choices": [{"delta": change, "finish_reason": "stop"}]}):
            with suppress(Broken):
                found.take(json.dumps(sent), 1.0)
        found.reply("n0", "r", 0.0, 1.0)


NUMBERS = [
    *[0, 1, 37, 2**40 - 1, 2**40, 2**40 + 1, 2**53, 2**63, 2**64, 10**300, 1.5, 1e17, 1e300, 1e308],
    *[math.inf, math.nan, 5e-324, True, None, "37", [], {}],
]
HOSTILE = st.sampled_from([*NUMBERS, *(-x for x in NUMBERS[:17])]) | st.integers() | st.floats()
TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens", "created_cache_tokens")
TIMES = ("time_to_first_token_ms", "queue_time_ms")


@given(st.fixed_dictionaries({}, optional=dict.fromkeys((*TOKENS, *TIMES), HOSTILE)))
def test_whatever_numbers_a_server_sends_a_reply_holds_sensible_ones_or_none(sent):
    details = {name: sent[name] for name in TOKENS[2:] if name in sent}
    used = {name: sent[name] for name in TOKENS[:2] if name in sent} | {"prompt_tokens_details": details}
    last = event(choices=[], usage=used, metrics={name: sent.get(name) for name in TIMES})
    found = reply(ROLE, delta("stop", content="a"), last, DONE)
    for name in TOKENS:
        whole = isinstance(sent.get(name), int) and not isinstance(sent[name], bool)
        sensible = whole and 0 <= sent[name] <= MAX_TOKENS
        assert getattr(found, name) == (sent[name] if sensible else None)
    for x in (found.server_ttft_s, found.queue_s, found.tpot_s):
        assert x is None or 0 <= x <= 1e9


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (BUSY, (503, BUSY["error"]["message"])),
        ({"error": "Unauthorized"}, (None, "Unauthorized")),
        ({"detail": "Not Found"}, (None, "Not Found")),
        ({"message": "Validation: x", "type": "Bad Request", "code": 400}, (400, "Validation: x")),  # Dynamo
        ({"error": {"message": "a\x1b[2J\nb", "code": "x"}}, (None, "a [2J b")),
        ({"choices": [], "message": "x"}, None),
        ({"error": None, "choices": []}, None),
        ([], None),
    ],
)
def test_every_shape_of_error_is_understood(body, expected):
    assert complaint(body) == expected


# Metrics


def line(name: str, value: object, **labels: object) -> str:
    """A line of a page."""
    inside = ",".join(f'{k}="{v}"' for k, v in labels.items())
    return f"{name}{{{inside}}} {value}\n"


def config(engine: int = 0, **labels: object) -> str:
    """The line that tells the KV cache."""
    return line("vllm:cache_config_info", 1.0, engine=engine, **({"block_size": 16} | labels))


def test_the_page_of_a_new_release():
    page = (
        "# TYPE vllm:num_requests_running gauge\n"
        + line("vllm:num_requests_running", 2.0, engine=0, model_name="m")
        + line("vllm:num_requests_waiting", 4.0, engine=0, model_name="m")
        + line("vllm:num_requests_waiting_by_reason", 4.0, engine=0, model_name="m", reason="capacity")
        + line("vllm:kv_cache_usage_perc", "3.6652860755781986e-05", engine=0, model_name="m")
        + line("vllm:prefix_cache_hits_total", 96.0, engine=0, model_name="m")
        + line("vllm:admission_rejections_total", 3.0, model_name="m", reason="max_num_queued_reqs")
        + line("vllm:admission_rejections_total", 1.0, model_name="m", reason="max_num_queued_tokens")
        + "process_start_time_seconds 1.79599544903e+09\n"
        + config(kv_cache_size_tokens=16384, num_gpu_blocks=513, enable_prefix_caching=True)
    )
    assert parse(page.encode()) == Load(
        running=2.0, waiting=4.0, kv_used=3.6652860755781986e-05, hit_tokens=96.0, rejections=4.0,
        started_s=1795995449.03, engines=1, kv_tokens=16384, block_size=16, prefix_caching=True,
    )  # fmt: skip


def test_the_page_of_an_old_release():
    old = line("vllm:gpu_cache_usage_perc", 0.5) + line("vllm:gpu_prefix_cache_hits_total", 7.0)
    load = parse((old + config(num_gpu_blocks=100)).encode())
    assert (load.kv_used, load.hit_tokens, load.kv_tokens, load.started_s) == (0.5, 7.0, 1600, None)


def test_several_engines_and_several_api_servers():
    running = line("vllm:num_requests_running", 2, engine=0) + line("vllm:num_requests_running", 3, engine=1)
    repeated = config(0, pid=1, num_gpu_blocks=100) + config(0, pid=2, num_gpu_blocks=100)
    load = parse((running + repeated + config(1, num_gpu_blocks=50)).encode())
    assert (load.running, load.engines, load.kv_tokens) == (5.0, 2, 2400)


@pytest.mark.parametrize(
    "labels", [{}, {"num_gpu_blocks": None}, {"num_gpu_blocks": "9" * 20}, {"block_size": None}]
)
def test_an_unknown_capacity_is_not_made_up(labels):
    assert parse(config(**labels).encode()).kv_tokens is None
    assert parse((config(**labels) + config(1, num_gpu_blocks=50)).encode()).kv_tokens is None
    assert parse(b"") == Load()


def test_a_restart_voids_what_was_counted():
    before, after = Load(hit_tokens=10.0, started_s=1.0), Load(hit_tokens=30.0, started_s=1.0)
    again = Load(hit_tokens=30.0, started_s=2.0)
    assert (after.hits_since(before), after.restarted_since(before)) == (20, False)
    assert (again.hits_since(before), again.restarted_since(before)) == (None, True)
    assert not Load().restarted_since(before)


LABELS = ("num_gpu_blocks", "block_size", "kv_cache_size_tokens")


@given(
    st.dictionaries(
        st.sampled_from([names[0] for names in FAMILIES.values()]), st.lists(HOSTILE, max_size=3)
    ),
    st.lists(st.dictionaries(st.sampled_from(LABELS), HOSTILE), max_size=3),
)
def test_whatever_numbers_a_page_holds_a_load_holds_sensible_ones_or_none(values, engines):
    lines = [line(name, x, engine=k) for name, xs in values.items() for k, x in enumerate(xs)]
    page = "".join(lines) + "".join(config(k, **labels) for k, labels in enumerate(engines))
    with suppress(Broken):
        load = parse(page.encode())
        for name in FAMILIES:
            x = getattr(load, name)
            assert x is None or 0 <= x <= (1 if name == "kv_used" else 2**53)
        for x in (load.kv_tokens, load.block_size):
            assert x is None or 0 < x <= MAX_TOKENS


@pytest.mark.parametrize("x", ["1e300", "1e308", "-1", "NaN", "+Inf", "9007199254740994"])
def test_an_engine_that_lies_makes_the_sum_unknown(x):
    for field, names in FAMILIES.items():
        page = line(names[0], 0.5, engine=0) + line(names[0], x, engine=1)
        assert getattr(parse(page.encode()), field) is None
        assert getattr(parse(line(names[0], 0.5).encode()), field) == 0.5


@pytest.mark.parametrize(
    "page",
    [
        b'vllm:num_requests_running{engine="0" 1',
        b"vllm:num_requests_running x",
        b'vllm:num_requests_running{engine="\xff"} 1',
        b"vllm:num_requests_running{" + b"x" * 2**15 + b"\n",
        b"vllm:num_requests_running 1\n" * (MAX_KEPT_BYTES // 28 + 1),
    ],
)
def test_pages_that_vllm_does_not_write_are_refused(page):
    with pytest.raises(Broken, match="its metrics page"):
        parse(page)


@given(st.binary() | st.text().map(lambda x: b"vllm:cache_config_info{" + x.encode("utf-8", "replace")))
def test_any_bytes_are_a_page_or_broken(page):
    with suppress(Broken):
        parse(page)


# A real server's exchanges


def sample(name: str) -> str:
    """A recorded exchange, without its comments."""
    path = SAMPLES / f"{name}.txt"
    if not path.is_file():
        pytest.skip(f"{path} is not here; TAO_SHARED may name the folder above live/")
    return "".join(x for x in path.read_text("utf-8").splitlines(keepends=True) if x[0] != "#")


@pytest.mark.parametrize(
    ("name", "tokens", "cached", "ttft_s"),
    [
        ("chat_stream_usage", 6, 0, 0.0746),
        ("chat_stream_continuous", 4, 0, None),
        ("chat_stream_nousage", None, None, None),
        ("completions_stream", 4, 0, 0.0649),
    ],
)
def test_a_real_stream(name, tokens, cached, ttft_s):
    found, events = Answer(), Events()
    for at, data in re.findall(r"^\[([\d.]+)\] (data: .*\n\n?)", sample(name), re.MULTILINE):
        for each in events.feed(data.rstrip("\n").encode() + b"\n\n"):
            found.take(each, float(at))
    whole = found.reply("n0", "r", 0.0, 1.0)
    assert (whole.completion_tokens, whole.cached_tokens) == (tokens, cached)
    assert found.done
    assert whole.finish_reason == "length"
    assert whole.text
    assert ttft_s is None or whole.ttft_s == ttft_s


def test_a_real_metrics_page():
    page = sample("get_metrics")
    load = parse(page.encode())
    assert (load.kv_tokens, load.block_size, load.engines, load.prefix_caching) == (131072, 128, 1, True)
    values = {s.name: s.value for f in text_string_to_metric_families(page) for s in f.samples}
    assert load.running == values["vllm:num_requests_running"]
    assert load.preemptions == values["vllm:num_preemptions_total"]
    busy = parse(sample("get_metrics_after_load").encode())
    assert (busy.query_tokens, busy.hit_tokens) == (109206.0, 52608.0)
