"""The simulated vLLM: its cache, its engine, its HTTP surface beside recorded exchanges, its faults."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import tiny_tokenizer

from tao.model import InputError
from tao.node import Request, SimNode
from tao.profiles import PROFILES

httpx = pytest.importorskip("httpx", reason="the extra `live` is not installed")
pytest.importorskip("uvicorn", reason="the extra `live` is not installed")

from tao.live.double.app import Server  # noqa: E402
from tao.live.double.blocks import BlockNode, BlockRequest, block_hashes  # noqa: E402
from tao.live.double.engine import VirtualLoop  # noqa: E402
from tao.live.double.jobs import Settings  # noqa: E402
from tao.live.double.sampling import stopped  # noqa: E402
from tao.live.double.serve import Deployment, Plan  # noqa: E402
from tao.live.double.text import Answer, FolderTokenizer, texts  # noqa: E402

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


def server(block=32, key=None, **options):
    """A server made inside the running loop."""
    profile = dataclasses.replace(QWEN, block_tokens=block)
    return Server(profile, Settings(**{"kv_tokens": 16_384, "model": "tiny"} | options), api_key=key)


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
            choice["logprobs"] = {k: len(v) for k, v in (choice.get("logprobs") or {}).items()}
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


# The cache


class NaivePrefixCache:
    """Blocks known by all tokens up to their end, in a list from longest unused to newest."""

    def __init__(self, count, size):
        self.count, self.size, self.known = count, size, []

    def serve(self, tokens, prompt):
        """One request alone, from start to end; how many tokens of its prompt it found."""
        size, hit = self.size, 0
        while hit + size < prompt and tokens[: hit + size] in self.known:
            hit += size
        computed = tokens[:-1]  # the last token is never fed back
        ends = range(size, len(computed) + 1, size)
        mine = [tokens[:end] for end in ends]
        found = [b for b in mine[: hit // size] if b in self.known]
        rest = [b for b in self.known if b not in found]
        while len(rest) + -(-len(computed) // size) > self.count:
            rest.pop(0)
        self.known = [b for b in rest if b not in mine] + mine[::-1]
        return hit


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=5), st.integers(1, 4), st.booleans()),
        min_size=1,
        max_size=12,
    ),
    st.integers(8, 24),
)
def test_cached_tokens_are_block_exact(requests, count):
    node = BlockNode(dataclasses.replace(QWEN, block_tokens=4), 4 * (count + 1))
    naive = {True: NaivePrefixCache(count, 4)}
    now = 0
    for words, made, salted in requests:
        if salted:
            continue  # salts have a test of their own
        prompt = [w for w in words for _ in range(3)]
        tokens = prompt + [9] * made
        r = BlockRequest(0, len(prompt), made, 0, hashes=block_hashes(tokens, 4))
        node.submit(r, now)
        node.step(now)
        while node.ends_ps is not None:
            now = node.ends_ps
            node.step(now)
        assert r.hit_tokens == naive[True].serve(tokens, len(prompt))
        assert node.blocks.unused == count
        assert not node.blocks.users


# The engine

BATCH = st.tuples(
    st.floats(0, 20),
    st.integers(1, 900),
    st.integers(1, 80),
    st.integers(0, 3),
    st.sampled_from([0, 0, 0, 1]),
)


@settings(max_examples=100)
@given(st.lists(BATCH, min_size=1, max_size=14), st.integers(60, 160), st.sampled_from([64, 512, 8192]))
def test_no_request_is_lost_and_the_books_balance(schedule, blocks, budget):
    async def run():
        profile = dataclasses.replace(QWEN, max_batched_tokens=budget)
        engine = Server(profile, Settings(16 * (blocks + 1), scheduling_policy="priority")).engine
        ends = []

        async def one(at, prompt, made, family, leaves):
            await asyncio.sleep(at)
            tokens = [family] * prompt
            reply = Answer([7] * made, ["x"] * made, "length")
            job = engine.submit(tokens, reply, priority=family)
            counts = []
            async for n in engine.outputs(job):
                counts.append(n)
                if leaves and n >= made // 2:
                    break
            ends.append((job.reason, counts == sorted(set(counts)), job.emitted, made, leaves))

        jobs = [x for x in schedule if x[1] + x[2] <= engine.node.capacity_tokens]
        await asyncio.gather(*(one(*x) for x in jobs))
        await asyncio.sleep(10)
        return engine, jobs, ends

    engine, jobs, ends = virtual(run())
    assert len(ends) == len(jobs)
    for reason, rising, emitted, made, leaves in ends:
        assert rising
        assert emitted == made or leaves
        assert reason == "length" or leaves
    assert not engine.jobs
    assert not engine.node.running
    assert engine.node.blocks.unused == blocks
    assert not engine.node.blocks.users
    assert_identities(engine.metrics.page().decode(), left=any(x[4] for x in jobs))


def assert_identities(page, left=False):
    """What holds between the counters of an idle server; requests that left early are in some only."""
    value = {}
    for line in page.splitlines():
        if line.startswith("vllm:"):
            name, _, number = line.rpartition(" ")
            value[re.sub(r'(engine|model_name)="\w+",?|\{\}', "", name).replace("{}", "")] = float(number)
    get = lambda name: value[f"vllm:{name}"]  # noqa: E731
    computed = get('prompt_tokens_by_source_total{source="local_compute"}')
    hit = get('prompt_tokens_by_source_total{source="local_cache_hit"}')
    assert computed + hit == get("prompt_tokens_total")
    assert get("iteration_tokens_total_sum") == computed + get("generation_tokens_total")
    assert get("num_requests_running") == get("num_requests_waiting") == get("kv_cache_usage_perc") == 0
    if not left:
        assert get("prefix_cache_queries_total") == get("prompt_tokens_total")
        assert (
            get('prompt_tokens_cached_by_source_total{source="device"}')
            == get("prefix_cache_hits_total")
            == hit
        )
        assert get("request_prefill_kv_computed_tokens_sum") == computed
        assert get("request_generation_tokens_sum") == get("generation_tokens_total")


def test_the_engine_keeps_the_times_of_the_plain_node():
    """The double replays what the simulator's node does, request by request."""
    loads = [(0.0, 3000, 40), (0.2, 6000, 20), (0.25, 500, 90), (1.0, 9000, 5)]
    plain, log = SimNode(QWEN, 16_000), {}
    requests = [Request(i, p, o, 0) for i, (_, p, o) in enumerate(loads)]
    pending = list(zip([round(at * 10**12) for at, *_ in loads], requests, strict=True))
    while pending or plain.ends_ps is not None:
        if pending and (plain.ends_ps is None or pending[0][0] <= plain.ends_ps):
            now, r = pending.pop(0)
            plain.submit(r, now)
            if plain.ends_ps is None:
                plain.step(now)
        else:
            plain.step(plain.ends_ps)

    async def run():
        engine = Server(QWEN, Settings(16_016)).engine

        async def one(i, at, prompt, made):
            await asyncio.sleep(at)
            job = engine.submit([i] * prompt, Answer([9] * made, [""] * made, "length"))
            async for _ in engine.outputs(job):
                pass
            log[i] = job

        await asyncio.gather(*(one(i, *x) for i, x in enumerate(loads)))

    virtual(run())
    for i, r in enumerate(requests):
        for name in ("first_token_ps", "finished_ps"):
            assert getattr(log[i], name) == pytest.approx(getattr(r, name), abs=10**6)  # a microsecond


def test_preemption_stalls_a_stream_and_is_counted():
    async def run():
        engine = Server(QWEN, Settings(2016)).engine
        gaps = []

        async def one(i):
            job = engine.submit([i] * 900, Answer([9] * 300, ["."] * 300, "length"))
            last = worst = 0.0
            async for _ in engine.outputs(job):
                now = asyncio.get_running_loop().time()
                worst, last = max(worst, now - last if last else 0.0), now
            gaps.append(worst)

        await asyncio.gather(one(0), one(1))
        return engine.metrics.page().decode(), gaps

    page, gaps = virtual(run())
    assert 'vllm:num_preemptions_total{engine="0",model_name="simulated"} 1.0' in page
    assert max(gaps) > 10 * min(gaps)


def test_a_full_pool_preempts_as_often_as_the_real_server():
    text = sample("preemption_trace.txt")
    counted = float(re.search(r"'vllm:num_preemptions_total': ([\d.]+)", text)[1])
    prompt, made = map(int, re.search(r"prompt (\d+) out (\d+)", text).groups())

    async def run():
        engine = server(kv_tokens=3072).engine

        async def one(i):
            job = engine.submit([i] * prompt, Answer([9] * made, ["."] * made, "length"))
            async for _ in engine.outputs(job):
                pass
            return job.preemptions

        return await asyncio.gather(*(one(i) for i in range(8)))

    preempted = virtual(run())
    assert sum(preempted) == counted
    assert preempted[:3] == [0, 0, 0]


def test_a_salt_keeps_caches_apart_and_an_answer_is_reused():
    async def run():
        http = client(server())
        said = [{"role": "user", "content": "count " * 200}]
        cached = []
        for salt in (None, None, "a", "a"):
            body = {"messages": said, "max_tokens": 64} | ({"cache_salt": salt} if salt else {})
            reply = (await http.post("/v1/chat/completions", json=body)).json()
            cached.append(reply["usage"]["prompt_tokens_details"]["cached_tokens"])
        prompt = reply["usage"]["prompt_tokens"]
        said += [reply["choices"][0]["message"], {"role": "user", "content": "go on"}]
        follow = (await http.post("/v1/chat/completions", json={"messages": said})).json()
        return prompt, cached, follow["usage"]["prompt_tokens_details"]["cached_tokens"]

    prompt, cached, follow = virtual(run())
    assert cached == [0, (prompt - 1) // 32 * 32, 0, (prompt - 1) // 32 * 32]
    assert follow == (prompt + 64 - 1) // 32 * 32


# The tokenizer of a model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The tokenizer of the samples' model."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_tokenizer(folder)
    return FolderTokenizer(str(folder))


@pytest.mark.parametrize(
    "name",
    [
        "tokenize_chat",
        "tokenize_prompt",
        "detokenize",
        "chat_nonstream",
        "chat_cache_salt",
        "completions_nonstream",
    ],
)
def test_with_the_tokenizer_of_the_model_even_the_numbers_are_equal(tiny, name):
    expected = json.loads(recorded("tokenize_chat.txt")[-1])["tokens"]
    said = json.loads(recorded("tokenize_chat.txt")[2])["messages"]
    if tiny.encode(tiny.prompt(said, {})) != expected:
        pytest.skip("the library of this Python has other text than that of the samples")
    method, path, request, _, _, body = recorded(name + ".txt")
    data = LONG[name] if name in LONG else json.loads(request)
    if name in LONG:
        data = data | {"messages": [said[0], *data["messages"]]}

    async def run():
        profile = dataclasses.replace(QWEN, block_tokens=128)
        app = Server(profile, Settings(131_072, model="tiny", max_model_len=8192), tiny)
        return (await client(app).request(method, path, json=data)).json()

    mine, theirs = virtual(run()), json.loads(body)
    assert mine["usage"] == theirs["usage"] if "usage" in theirs else mine == theirs


def test_a_model_s_tokenizer_streams_the_text_of_its_tokens(tiny):
    tokens = tiny.encode("naïve façade: 你好, world")
    assert "".join(texts(tiny, tokens)) == tiny.decode(tokens) == "naïve façade: 你好, world"


# Queues, overload and faults, in process


def ask(stream=True, words=50, made=30, **more):
    """The body of a chat request."""
    body = {"messages": [{"role": "user", "content": "word " * words}], "max_tokens": made, "stream": stream}
    return body | {"ignore_eos": True} | more


def test_a_full_queue_refuses_late_requests_with_503_and_a_burst_within_the_stream():
    async def run():
        http = client(server(max_num_queued_reqs=2))
        post = lambda s: http.post("/v1/chat/completions", json=ask(s, made=50))  # noqa: E731
        burst = [asyncio.ensure_future(post(True)) for _ in range(4)]
        await asyncio.sleep(0.2)
        late = await post(True), await post(False)
        metrics = (await http.get("/metrics")).text
        return await asyncio.gather(*burst), late, metrics

    burst, late, metrics = virtual(run())
    assert [r.status_code for r in burst] == [200] * 4
    ends = [events(r.text)[0] for r in burst]
    refused = [json.loads(e)["error"]["code"] for e in ends if "error" in e]
    assert refused == [503, 503]
    assert events(burst[ends.index(next(e for e in ends if "error" in e))].text)[-1] == "[DONE]"
    recorded_line = sample("err_queue_limit_503.txt").splitlines()[1]
    assert [(r.status_code, r.text) for r in late] == [(503, recorded_line)] * 2
    assert 'reason="max_num_queued_reqs"} 4.0' in metrics


def test_keep_alives_priority_and_load():
    async def run():
        app = Server(
            dataclasses.replace(QWEN, max_seqs=1),
            Settings(16_384, scheduling_policy="priority", keep_alive_s=0.5),
        )
        http, order = client(app), []

        async def one(name, priority, delay, made):
            await asyncio.sleep(delay)
            r = await http.post("/v1/chat/completions", json=ask(made=made, priority=priority))
            order.append(name)
            return r

        work = [one("first", 5, 0, 200), one("low", 5, 0.1, 5), one("urgent", -10, 0.2, 5)]
        tasks = [asyncio.ensure_future(w) for w in work]
        await asyncio.sleep(0.3)
        load = (await http.get("/load")).json()
        return await asyncio.gather(*tasks), order, load

    replies, order, load = virtual(run())
    assert order == ["first", "urgent", "low"]
    assert load == {"server_load": 3}
    assert ": keep-alive" in replies[1].text
    assert ": keep-alive" not in replies[0].text


def test_a_crash_is_an_error_in_the_stream_and_a_termination_an_abort():
    async def run(end):
        app = server()
        task = asyncio.ensure_future(client(app).post("/v1/chat/completions", json=ask(made=500)))
        await asyncio.sleep(1)
        getattr(app.engine, end)()
        health = await client(app).get("/health")
        models = await client(app).get("/v1/models")
        later = await client(app).post("/v1/chat/completions", json=ask(False))
        return (await task).text, health.status_code, models.status_code, later.status_code

    text, *statuses = virtual(run("crash"))
    assert statuses == [503, 200, 500]
    line = re.search(r"data: (\{.*EngineCore.*)", sample("engine_core_sigkill.txt"))[1]
    assert events(text)[-2:] == [line, "[DONE]"]
    text, *statuses = virtual(run("terminate"))
    assert statuses == [503, 200, 500]
    line = re.search(r"data: (\{.*abort.*)", sample("server_sigterm.txt"))[1]
    assert masked(json.loads(events(text)[-2])) == masked(json.loads(line))


def test_slow_hung_and_cut_streams():
    async def run():
        app = server()
        http, loop = client(app), asyncio.get_running_loop()

        async def timed():
            start = loop.time()
            reply = await http.post("/v1/chat/completions", json=ask(made=40, cache_salt=str(start)))
            return loop.time() - start, reply.text

        usual, _ = await timed()
        app.engine.slowness = 10
        slow, _ = await timed()
        app.engine.slowness, app.engine.hung = 1, True
        task = asyncio.ensure_future(timed())
        await asyncio.sleep(100)
        app.engine.hung = False
        app.engine.wake()
        hung, _ = await task
        app.truncate = 1
        _, cut = await timed()
        _, whole = await timed()
        return usual, slow, hung, cut, whole

    usual, slow, hung, cut, whole = virtual(run())
    assert slow == pytest.approx(10 * usual, rel=0.05)
    assert hung > 100
    assert "[DONE]" not in cut
    assert 'finish_reason":"' not in cut
    assert "[DONE]" in whole


FAULT = st.tuples(
    st.floats(0, 10),
    st.sampled_from(["crash", "hang", "slow", "cut", "refuse", "restart"]),
    st.floats(0.1, 5),
)


SCHEDULE = (
    st.lists(st.tuples(st.floats(0, 10), st.integers(1, 400), st.booleans()), min_size=1, max_size=12),
    st.lists(FAULT, max_size=4),
)


@settings(max_examples=30)
@given(*SCHEDULE)
def test_under_any_faults_every_request_ends_and_says_how(requests, faults):
    check_faults(requests, faults)


@pytest.mark.long
@settings(max_examples=500)
@given(*SCHEDULE)
def test_under_many_faults_every_request_ends_and_says_how(requests, faults):
    check_faults(requests, faults)


def check_faults(requests, faults):
    """Every request is answered, or fails in a way that the client sees, and nothing is left behind."""

    async def run():
        app = server(kv_tokens=4096)
        http, ends = client(app), []

        async def suffer(at, kind, lasts):
            await asyncio.sleep(at)
            if kind == "crash":
                app.engine.crash()
            elif kind == "cut":
                app.truncate += 1
            elif kind != "restart":
                name, value, usual = {
                    "hang": ("hung", True, False),
                    "slow": ("slowness", 10, 1),
                    "refuse": ("refusing", True, False),
                }[kind]
                setattr(app.engine, name, value)
                await asyncio.sleep(lasts)
                setattr(app.engine, name, usual)
                app.engine.wake()
            else:
                app.start()

        async def one(at, made, stream):
            await asyncio.sleep(at)
            reply = await http.post("/v1/chat/completions", json=ask(stream, words=80, made=made))
            ends.append((reply, made, stream))

        work = [suffer(*f) for f in faults] + [one(*r) for r in requests]
        await asyncio.gather(*work)
        return app, ends

    app, ends = virtual(run())
    assert len(ends) == len(requests)
    kinds = {kind for _, kind, _ in faults}
    for reply, made, stream in ends:
        if stream and reply.status_code == 200:
            found = [json.loads(e) for e in events(reply.text) if e != "[DONE]"]
            whole = "[DONE]" in reply.text
            reasons = [c["choices"][0]["finish_reason"] for c in found if "choices" in c]
            failed = any("error" in c for c in found)
            assert failed == (whole and (not reasons or reasons[-1] != "length"))
            assert whole or "cut" in kinds
        else:
            failed = reply.status_code != 200
            assert reply.status_code in (200, 500, 503)
            assert failed or reply.json()["usage"]["completion_tokens"] == made
        assert not failed or kinds & {"crash", "restart", "refuse"}
    blocks = app.engine.node.blocks
    assert app.load == len(app.engine.jobs) == len(blocks.users) == 0
    assert blocks.unused == blocks.count


@pytest.mark.parametrize(
    ("version", "has", "lacks"),
    [
        (
            (0, 10, 2),
            ["gpu_cache_usage_perc", "time_per_output_token_seconds"],
            ["prompt_tokens_cached_total"],
        ),
        (
            (0, 20, 2),
            ["num_requests_waiting_by_reason", "prompt_tokens_by_source"],
            ["gpu_cache", "admission"],
        ),
        (
            (0, 32, 0),
            ["admission_rejections_total", "kv_cache_size_tokens"],
            ["gpu_cache", "time_per_output_token_seconds_sum{engine"],
        ),
    ],
)
def test_releases_differ_as_the_real_ones_do(version, has, lacks):
    async def run():
        http = client(server(version=version))
        reply = (await http.post("/v1/chat/completions", json=ask(False))).json()
        sources = (await http.get("/kv_event_sources")).status_code
        return (await http.get("/metrics")).text.replace("request_time_per", ""), reply, sources

    page, reply, sources = virtual(run())
    assert all(name in page for name in has)
    assert not any(name in page for name in lacks)
    assert ("created_cache_tokens" in reply["usage"]["prompt_tokens_details"]) == (version >= (0, 26))
    assert (reply["metrics"] is None) == (version < (0, 26))
    assert (sources == 200) == (version >= (0, 32))


def test_the_key_guards_what_the_real_server_guards():
    async def run():
        http = client(server(key="secret"))
        found = {p: (await http.get(p)).status_code for p in ("/v1/models", "/health", "/metrics", "/load")}
        bare = await http.get("/v1/models")
        good = await http.get("/v1/models", headers={"authorization": "Bearer secret"})
        return found, bare.text, good.status_code

    found, bare, good = virtual(run())
    assert found == {"/v1/models": 401, "/health": 200, "/metrics": 200, "/load": 200}
    assert (bare, good) == ('{"error":"Unauthorized"}', 200)


TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
REFUSED = [  # a change of a chat request; status, type, parameter and the beginning of what vLLM 0.32 says
    (
        {"max_tokens": -1},
        "BadRequestError",
        "max_tokens",
        "max_tokens must be at least 1, got -1. (parameter",
    ),
    (
        {"cache_salt": ""},
        "BadRequestError",
        "cache_salt",
        "Parameter 'cache_salt' must be a non-empty string",
    ),
    (
        {"stream_options": {"include_usage": True}},
        "BadRequestError",
        "stream_options",
        "Stream options can only",
    ),
    ({"tools": TOOLS}, "BadRequestError", None, '"auto" tool choice requires --enable-auto-tool-choice and'),
    ({"tools": TOOLS, "tool_choice": "required"}, "BadRequestError", None, 'tool_choice="required" requires'),
    ({"tools": []}, "BadRequestError", "tools", "`tools` must not be an empty array."),
    (
        {"tool_choice": "auto"},
        "BadRequestError",
        "tool_choice",
        "When using `tool_choice`, `tools` must be set.",
    ),
    ({"top_p": 0}, "BadRequestError", "top_p", "top_p must be in (0, 1], got 0.0."),
    ({"n": 0}, "BadRequestError", None, "n must be at least 1, got 0."),
    ({"stop": ["a"] * 5}, "Bad Request", "body.stop", "2 validation errors:\n  {'type': 'string_type'"),
    ({"n": [], "top_p": "x", "model": 1}, "Bad Request", "body.model", "3 validation errors:\n  {'type'"),
    (
        {"max_completion_tokens": 9999},
        "BadRequestError",
        "max_completion_tokens",
        "max_completion_tokens=9999 cannot",
    ),
]


@pytest.mark.parametrize(("change", "kind", "param", "begins"), REFUSED)
def test_bad_requests_are_refused_in_the_same_words(change, kind, param, begins):
    async def run():
        body = ask(False) | change
        return await client(server(max_model_len=8192)).post("/v1/chat/completions", json=body)

    reply = virtual(run())
    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["param"], error["code"]) == (400, kind, param, 400)
    assert error["message"].startswith(begins)


@settings(max_examples=100)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "messages",
                "model",
                "max_tokens",
                "n",
                "stop",
                "stream",
                "temperature",
                "tools",
                "tool_choice",
                "seed",
            ]
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
            ),
            max_leaves=5,
        ),
    )
)
def test_whatever_is_sent_the_answer_is_a_well_formed_one(body):
    async def run():
        http = client(server(max_model_len=512))
        return await http.post(
            "/v1/chat/completions", content=json.dumps(body), headers={"content-type": "application/json"}
        )

    reply = virtual(run())
    if reply.status_code == 200:
        return
    error = reply.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == reply.status_code
    assert reply.status_code in (400, 404)


# Sampling options


@settings(max_examples=200)
@given(
    st.lists(st.text("ab", max_size=2), min_size=1, max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.sets(st.integers(0, 3)),
    st.booleans(),
    st.integers(0, 5),
)
def test_answers_stop_where_they_are_told(said, stop, ids, include, at_least):
    """Token by token, with all of the text looked through anew."""
    tokens = [len(part) for part in said]
    ours = stopped(Answer(tokens, [*said], "length"), stop, ids, include, at_least)
    text, why, count = "", None, 0
    for count, (token, part) in enumerate(zip(tokens, said, strict=True), 1):
        if count > at_least and token in ids:
            text, why = text + part * include, token
            break
        before, text = len(text), text + part
        ends = [
            (i + len(s), k, s)
            for k, s in enumerate(stop)
            for i in range(len(text) - len(s) + 1)
            if text[i:].startswith(s) and i + len(s) > before
        ]
        if count > at_least and ends:
            end, _, why = min(ends)
            text = text[: end - len(why) * (not include)]
            break
    assert (ours.tokens, "".join(ours.deltas), ours.stop_reason) == (tokens[:count], text, why)
    assert ours.reason == ("length" if why is None else "stop")
    if stop and not include:  # what could still become a stop string is kept back
        shown = [len("".join(ours.deltas[:k])) for k in range(1, len(ours.deltas))]
        kept = max(map(len, stop)) - 1
        assert all(n <= max(len("".join(said[: k + 1])) - kept, 0) for k, n in enumerate(shown))


def test_log_probabilities_and_echo_have_the_form_that_clients_read():
    async def run():
        http, said = client(server()), [{"role": "assistant", "content": "So far "}]
        chat = {"messages": said, "max_tokens": 3, "logprobs": True, "top_logprobs": 2, "echo": True}
        text = {"prompt": "So far ", "max_tokens": 3, "logprobs": 2, "echo": True}
        found = []
        for path, body in (("/v1/chat/completions", chat), ("/v1/completions", text)):
            whole = (await http.post(path, json=body)).json()["choices"][0]
            stream = [
                json.loads(x) for x in events((await http.post(path, json=body | {"stream": True})).text)[:-1]
            ]
            found.append((whole, [c["choices"][0] for c in stream]))
        return found

    (chat, chat_stream), (text, text_stream) = virtual(run())
    assert chat["message"]["content"].startswith("So far [")
    assert "".join(c["delta"]["content"] for c in chat_stream) == chat["message"]["content"]
    logs = chat["logprobs"]["content"]
    assert [x for c in chat_stream if c["logprobs"] for x in c["logprobs"]["content"]] == logs
    for x in logs:
        assert x["top_logprobs"][0] == {k: x[k] for k in ("token", "logprob", "bytes")}
        assert len(x["top_logprobs"]) == 2
        assert bytes(x["bytes"]).decode() == x["token"]
    assert "".join(c["text"] for c in text_stream) == text["text"]
    logs = text["logprobs"]
    assert "".join(logs["tokens"]) == text["text"]
    assert logs["token_logprobs"][0] is logs["top_logprobs"][0] is None
    assert {len(x) for x in logs["top_logprobs"][1:]} == {2}
    for offset, token in zip(logs["text_offset"], logs["tokens"], strict=True):
        assert text["text"][offset:].startswith(token)
    for key in logs:
        assert [x for c in text_stream for x in c["logprobs"][key]] == logs[key]


@pytest.mark.parametrize(("version", "first"), [((0, 20, 2), "low"), ((0, 32, 0), "urgent")])
def test_a_header_gives_priority_since_it_is_known(version, first):
    async def run():
        profile = dataclasses.replace(QWEN, max_seqs=1)
        http = client(Server(profile, Settings(16_384, version=version, scheduling_policy="priority")))
        order = []

        async def one(name, priority, delay):
            await asyncio.sleep(delay)
            await http.post("/v1/chat/completions", json=ask(), headers={"x-vllm-priority": priority})
            order.append(name)

        await asyncio.gather(one("running", "0", 0), one("low", "x", 0.1), one("urgent", " -3", 0.2))
        return order

    assert virtual(run())[1] == first


def test_a_backlog_of_prompts_is_refused_in_the_same_words():
    async def run():
        http = client(server(max_num_queued_tokens=100))
        tasks = [asyncio.ensure_future(http.post("/v1/chat/completions", json=ask(False))) for _ in range(4)]
        return [r for r in await asyncio.gather(*tasks) if r.status_code != 200]

    refused = virtual(run())
    words = sample("chunked_prefill_stream_interval_kvreport.txt")
    assert len(refused) == 2
    for reply in refused:
        assert reply.status_code == 503
        assert reply.text[:150] in words


def test_two_choices_are_interleaved_and_an_interval_joins_tokens():
    async def run():
        http = client(server())
        options = {"stream_options": {"include_usage": True}}
        two = await http.post("/v1/chat/completions", json=ask(made=3, n=2, temperature=1.0, **options))
        joined = await http.post("/v1/chat/completions", json=ask(made=10, stream_interval=4))
        return [[json.loads(x) for x in events(r.text)[:-1]] for r in (two, joined)]

    two, joined = virtual(run())
    assert [c["choices"][0]["index"] for c in two[:-1]] == [0, 1] * 4
    assert two[-1]["usage"]["completion_tokens"] == 6
    assert "metrics" not in two[-1]
    words = [len(c["choices"][0]["delta"]["content"]) for c in joined[1:]]
    assert len(words) == 4  # 1 + 4 + 4 + 1 tokens


def test_an_empty_body_is_a_missing_field():
    async def run():
        kind = {"content-type": "application/json"}
        return await client(server()).post("/v1/completions", content=b"", headers=kind)

    assert virtual(run()).json()["error"]["param"] == "body"


def test_bodies_are_bounded():
    async def run():
        return await client(server()).post("/v1/completions", content=b"x" * (2**24 + 1))

    assert virtual(run()).status_code == 413


def nested(depth):
    """An object in an object in an object, so many times."""
    return '{"a":' * depth + "1" + "}" * depth


SAY = '{"messages": [{"role": "user", "content": "x"%s}], "max_tokens": 2%s}'
ATTACKS = {  # a body and the status of its answer
    "nothing but brackets": ("[" * 5_000_000, 400),
    "nested beyond the parser": (SAY % (f', "b": {nested(5000)}', ""), 400),
    "nested as deep as it parses": (SAY % (f', "b": {nested(400)}', f', "tools": [{nested(400)}]'), 400),
    "nested template options": (SAY % ("", f', "chat_template_kwargs": {{"tools": {nested(400)}}}'), 200),
    "options of the template's own": (SAY % ("", ', "chat_template_kwargs": {"messages": 1}'), 200),
    "a giant number": (SAY % ("", f', "seed": {"9" * 5000}'), 400),
    "more answers than there may be": (SAY % ("", f', "n": {2**63}'), 400),
    "thousands of answers": (SAY % ("", ', "n": 2000, "temperature": 1'), 200),
    "more tokens than there are": (SAY % ("", f', "max_completion_tokens": {2**63}'), 400),
    "a giant text": (
        SAY % (', "c": 1', f', "messages": [{{"role": "user", "content": "{"x " * 5_000_000}"}}]'),
        400,
    ),
    "stop strings longer than any answer": (SAY % ("", f', "stop": ["{"x" * 3_000_000}"]'), 200),
    "a bias for every token": (
        SAY % ("", f', "logit_bias": {json.dumps({str(i): 1 for i in range(200_000)})}'),
        200,
    ),
    "no number": (SAY % ("", ', "temperature": NaN'), 400),
    "half a character": (SAY % (', "b": "\\ud800"', ""), 200),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_is_meant_to_exhaust_the_server_gets_an_ordinary_answer(name):
    content, status = ATTACKS[name]

    async def run():
        kind = {"content-type": "application/json"}
        http = client(server(max_model_len=8192))
        return await http.post("/v1/chat/completions", content=content, headers=kind)

    reply = virtual(run())
    assert reply.status_code == status
    assert reply.json().keys() & {"choices", "error", "detail"}


# Over sockets, in a process of its own


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    replies = tmp_path_factory.mktemp("replies") / "replies.jsonl"
    lines = [
        {"content": "I look.", "tool_calls": [{"name": "bash", "arguments": {"command": "ls"}}]},
        {"content": "Done."},
    ]
    replies.write_text("\n".join(map(json.dumps, lines)))
    with Deployment(Plan(nodes=2, speedup=50, replies=str(replies), kv_tokens=16_384)) as running:
        yield running


def test_the_openai_client_streams_calls_tools_and_sees_errors(deployment):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=deployment.urls[0] + "/v1", api_key="none", max_retries=0) as api:
        model = api.models.list().data[0].id
        said = [{"role": "user", "content": "Which files are there?"}]
        stream = api.chat.completions.create(
            model=model, messages=said, tools=TOOLS, stream=True, stream_options={"include_usage": True}
        )
        text, name, arguments, chunks = "", "", "", list(stream)
        for chunk in chunks[:-1]:
            delta = chunk.choices[0].delta
            text += delta.content or ""
            for call in delta.tool_calls or ():
                name += call.function.name or ""
                arguments += call.function.arguments or ""
        assert (text, name, json.loads(arguments)) == ("I look.", "bash", {"command": "ls"})
        assert chunks[-2].choices[0].finish_reason == "tool_calls"
        assert chunks[-1].usage.completion_tokens > 10
        whole = api.chat.completions.create(model=model, messages=said, tools=TOOLS)
        message = whole.choices[0].message
        assert message.tool_calls[0].function.name == "bash"
        assert whole.usage.prompt_tokens_details.cached_tokens > 0
        said += [
            message.model_dump(),
            {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "a b"},
        ]
        last = api.chat.completions.create(model=model, messages=said, tools=TOOLS)
        assert (last.choices[0].message.content, last.choices[0].finish_reason) == ("Done.", "stop")
        assert last.usage.prompt_tokens_details.cached_tokens >= whole.usage.total_tokens // 16 * 16 - 16
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            api.chat.completions.create(model="nope", messages=said)
        with pytest.raises(openai.BadRequestError, match="greater than max_model_len"):
            api.chat.completions.create(model=model, messages=said, max_tokens=10**6)


def test_a_client_that_leaves_frees_its_blocks_at_once(deployment):
    with httpx.Client(base_url=deployment.urls[1]) as http:
        body = ask(made=8000, words=300)
        with http.stream("POST", "/v1/chat/completions", json=body) as reply:
            lines = reply.iter_lines()
            while "content" not in next(lines):
                pass
        deadline = time.monotonic() + 5
        while (
            'num_requests_running{engine="0",model_name="qwen3-32b-2xh100"} 0.0'
            not in http.get("/metrics").text
        ):
            assert time.monotonic() < deadline
        page = http.get("/metrics").text
        assert 'kv_cache_usage_perc{engine="0",model_name="qwen3-32b-2xh100"} 0.0' in page
        assert 'finished_reason="abort",model_name="qwen3-32b-2xh100"} 0.0' in page
        assert http.get("/load").json() == {"server_load": 0}


BEGIN = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
ENDLESS = {  # how a request begins, and what it then goes on with for a GiB
    "line": (b"GET /", b"x" * 2**16),
    "header": (BEGIN + b"x-long: ", b"x" * 2**16),
    "headers": (BEGIN, b"x-1: 2\r\n" * 2**13),
    "body": (BEGIN + b"content-length: 1073741824\r\n\r\n", bytes(2**16)),
    "chunks": (BEGIN + b"transfer-encoding: chunked\r\n\r\n", b"10000\r\n" + bytes(2**16) + b"\r\n"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_nothing_that_is_sent_is_without_bounds(deployment, name):
    first, more = ENDLESS[name]
    host, port = deployment.urls[0].removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as wire:
        sent = wire.send(first)
        with contextlib.suppress(ConnectionError):  # the server has hung up
            while sent < 2**30:
                wire.sendall(more)
                sent += len(more)
    assert sent < 2**26
    assert httpx.get(f"{deployment.urls[0]}/health").status_code == 200


def test_faults_come_on_schedule_and_a_restarted_node_is_cold():
    fault = json.dumps({"kind": "restart", "node": 1, "at_s": 1.0, "for_s": 1.0})
    with (
        Deployment(Plan(nodes=2, speedup=50, kv_tokens=16_384, faults=(fault,))) as running,
        httpx.Client() as http,
    ):
        start = lambda: re.search(r"\nprocess_start_time_seconds (\S+)", http.get(f"{url}/metrics").text)[1]  # noqa: E731
        url, down = running.urls[1], 0
        first = start()
        warm = [http.post(f"{url}/v1/chat/completions", json=ask(False)).json() for _ in range(2)]
        deadline = time.monotonic() + 5
        while down == 0 or http.get(f"{running.urls[0]}/health").status_code == 200:
            assert time.monotonic() < deadline
            try:
                if start() != first:
                    break
            except httpx.TransportError:
                down += 1
        cold = http.post(f"{url}/v1/chat/completions", json=ask(False)).json()
    cached = [r["usage"]["prompt_tokens_details"]["cached_tokens"] for r in (*warm, cold)]
    assert cached[0] == cached[2] == 0 < cached[1]
    assert down


def answers(url):
    """Whether anything listens there."""
    try:
        return bool(httpx.get(f"{url}/health"))
    except httpx.TransportError:
        return False


def test_serve_prints_urls_and_its_child_ends_with_it():
    command = [sys.executable, "-m", "tao.cli", "serve", "--nodes", "1", "--speedup", "50"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    for end in (signal.SIGINT, signal.SIGKILL):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
            first, url = parent.stdout.readline(), parent.stdout.readline().strip()
            assert "SIMULATED" in first
            assert httpx.get(f"{url}/health").status_code == 200
            parent.send_signal(end)
            if end == signal.SIGINT:
                assert parent.wait(10) == 0
        deadline = time.monotonic() + 5
        while answers(url):
            assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"host": "0.0.0.0"}, "open to the network; give a key"),
        ({"api_key_env": "TAO_NO_SUCH_KEY"}, "is not set or empty"),
        ({"nodes": 0}, "must be above 0"),
        ({"version": "0.9"}, "one of 0.10, 0.20, 0.32"),
        ({"scheduling_policy": "lifo"}, "one of fcfs, priority"),
        ({"replies": "/no/such/file"}, "give a file of JSON lines"),
        ({"tokenizer": "/no/such/folder"}, "tokenizer"),
        ({"faults": ('{"kind": "fire"}',)}, "kind must be one of crash"),
        ({"faults": ('{"kind": "slow", "node": 9}',)}, "node must be from 0 to 3"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(change, message):
    with pytest.raises(InputError, match=message):
        Deployment(Plan(**change))


@pytest.mark.parametrize(("method", "path"), [("PUT", "/ping"), ("DELETE", "/ping"), ("PUT", "/tokenize")])
def test_a_wrong_method_is_told_the_first_one_that_is_right(method, path):
    async def asked():
        async with client(server()) as http:
            return await http.request(method, path)

    reply = virtual(asked())
    assert (reply.status_code, reply.json()) == (405, {"detail": "Method Not Allowed"})
    assert reply.headers["allow"] == ("GET" if path == "/ping" else "POST")
