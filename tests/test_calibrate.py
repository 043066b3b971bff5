"""`tao calibrate` against simulated servers whose law is known, in virtual time, and its fit alone."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("aiohttp", reason="the extra `live` is not installed")
pytest.importorskip("uvicorn", reason="the extra `live` is not installed")

from tao.cli import main
from tao.live import calibration
from tao.live.client import Client
from tao.live.double.app import Server
from tao.live.double.engine import VirtualLoop
from tao.live.double.jobs import Settings
from tao.live.double.serve import Deployment, Plan
from tao.live.faults import BUSY, LiveError, Retryable
from tao.live.fit import Point, Step, fit, nnls, predicted_s, profile_of
from tao.live.metrics_page import parse
from tao.live.stream import Answer, Broken, Events, decoded
from tao.model import InputError
from tao.profiles import PROFILES, Profile, profile

QWEN = PROFILES["qwen3-32b-2xh100"]


class Node:
    """What a calibration needs of a client, over an application without sockets; `delay_s`: the network's."""

    name = "node"

    def __init__(self, app, delay_s=0.0):
        self.app, self.delay_s = app, delay_s

    def complete(self, prompt, on_text=None, **options):
        body = options | {"prompt": prompt, "stream": True, "stream_options": {"include_usage": True}}
        return asyncio.ensure_future(self._complete(body, on_text))

    async def _complete(self, body, on_text):
        clock = asyncio.get_running_loop().time
        sent_s, events, answer = clock(), Events(), Answer(on_text)
        await asyncio.sleep(self.delay_s / 2)

        async def take(data):
            await asyncio.sleep(self.delay_s / 2)
            for event in events.feed(data):
                answer.take(event, clock())

        try:
            await self._ask("POST", "/v1/completions", body, take)
            return answer.reply(self.name, "r", sent_s, clock())
        except Broken as error:
            raise Retryable(self.name, error.status, error.reason, error.status not in BUSY) from None

    async def models(self):
        return (await self.ask("/v1/models"))["data"]

    async def metrics(self):
        return parse(await self._page("/metrics"))

    async def ask(self, path):
        return decoded(await self._page(path))

    async def _page(self, path):
        data = bytearray()

        async def take(part):
            data.extend(part)

        await self._ask("GET", path, None, take)
        return bytes(data)

    async def _ask(self, method, path, body, take):
        status = 0
        message = {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        messages = [message]

        async def receive():
            if messages:
                return messages.pop()
            return await asyncio.Event().wait()

        async def send(message):
            nonlocal status
            status = message.get("status", status)
            await take(message.get("body", b"")) if status == 200 else None

        headers = [(b"content-type", b"application/json")]
        await self.app({"type": "http", "method": method, "path": path, "headers": headers}, receive, send)
        if status != 200:
            raise Broken("no answer", status)


def virtual(work):
    """Run it in a loop whose clock jumps, and leave nothing behind."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def calibrated(law, delay_s=0.0, max_s=300.0, max_requests=2000, meanwhile=None, rounds=1, **options):
    """The calibration of a simulated server with that law; `meanwhile` happens to it."""

    async def run():
        app = Server(law, Settings(**{"kv_tokens": law.capacity_tokens, "model": "m"} | options))
        node, other = Node(app, delay_s), None
        try:
            other = asyncio.ensure_future(meanwhile(app)) if meanwhile else None
            await asyncio.sleep(0.1)
            return await calibration.measure(node, max_s, max_requests)
        finally:
            app.stop()
            if other:
                other.cancel()

    with patch.object(calibration, "ROUNDS", rounds):
        return virtual(run())


def worst(fitted, true, most=16, context=1000, chunk=2000):
    """The largest relative error of a law's steps over a grid of loads."""
    decodes, contexts, chunks = (
        (0, 1, 3, most),
        (50, context),
        ((), ((64, 0),), ((chunk, 0),), ((300, chunk),)),
    )
    grid = [(b, b * c, n) for b, c, n in itertools.product(decodes, contexts, chunks) if b or n]
    return max(abs(fitted.law.step_ps(*load) / true.law.step_ps(*load) - 1) for load in grid)


QUICK = (Phase.explicit, Phase.generate)  # to shrink what takes seconds would take an hour


@st.composite
def laws(draw, mixture=False):
    """Profiles between a laptop and eight GPUs."""
    number = lambda low, high: draw(st.floats(low, high))  # noqa: E731
    t0_ms = number(4, 30)
    return Profile(
        name="true",
        capacity_tokens=30_000,
        t0_ms=t0_ms,
        t1_ms=number(0.5, 2) * t0_ms if mixture else 0.0,
        expert_share=number(0.02, 0.1) if mixture else 0.0,
        t2_us=number(0, 300),
        kv_us_per_1k=number(1, 60),
        prefill_ms=number(0.2, 1.5) * t0_ms,
        prefill_us=number(20, 300),
        attention_us_per_1k=number(0.1, 20),
        host_ms=number(0, 3),
        max_batched_tokens=draw(st.sampled_from([1024, 2048, 8192])),
        block_tokens=draw(st.sampled_from([16, 32])),
    )


# Servers whose law is known


@settings(max_examples=3, phases=QUICK)
@given(laws(), st.booleans(), st.sampled_from([0.0, 0.004]))
def test_the_fitted_law_predicts_steps_of_the_true_one(law, told, delay_s):
    options = {} if told else {"per_request_metrics": False, "prompt_tokens_details": False}
    found = calibrated(law, delay_s, **options)
    assert worst(found.profile, law) < (0.03 if told else 0.06)
    assert max(abs(p["error"]) for p in found.points) < (0.03 if told else 0.1)
    assert any(p["held_out"] for p in found.points)
    assert any(p["cached_tokens"] for p in found.points)
    assert found.profile.capacity_tokens == law.capacity_tokens // law.block_tokens * law.block_tokens - (
        law.block_tokens
    )
    assert found.profile.max_batched_tokens >= law.max_batched_tokens
    assert found.profile.block_tokens == law.block_tokens
    assert ("network included" in found.profile.known_error) != told


@pytest.mark.long
@settings(max_examples=60)
@given(laws(mixture=True), st.sampled_from([0.0, 0.02]))
def test_the_same_of_many_mixtures_of_experts(law, delay_s):
    assert worst(calibrated(law, delay_s).profile, law) < 0.05


def test_a_tiny_cache_a_small_step_and_few_sequences_are_found():
    law = replace(QWEN, capacity_tokens=512 * 32, block_tokens=32, max_batched_tokens=512, max_seqs=4)
    found = calibrated(law)
    assert worst(found.profile, law, most=4, chunk=400) < 0.03
    assert (found.profile.max_seqs, found.profile.max_batched_tokens) == (4, 512)
    assert "how many ran while others waited" in found.profile.known_error


def test_the_profile_is_one_that_runs_take(tmp_path, capsys):
    path = tmp_path / "p.json"
    path.write_text(calibrated(replace(QWEN, capacity_tokens=30_000)).profile.to_json())
    assert profile(path).name == "m"
    assert main(["compare", "--profile", str(path), "--tasks", "4", "--seeds", "1", "--policies", "tao"]) == 0
    assert "known error: decode: off by" in capsys.readouterr().out


# Servers in trouble


async def work(app):
    """What somebody else asks of the server."""
    await Node(app).complete([50] * 100, max_tokens=10_000, ignore_eos=True)


def test_a_server_in_use_is_left_alone():
    with pytest.raises(InputError, match="works on 1 requests of others; calibrate a server that nobody"):
        calibrated(QWEN, meanwhile=work)


def test_work_of_others_meanwhile_ends_it():
    async def later(app):
        await asyncio.sleep(1)
        await work(app)

    with pytest.raises(InputError, match="requests of others; the calibration ended"):
        calibrated(QWEN, meanwhile=later)


def test_short_work_of_others_is_told():
    async def later(app):
        await asyncio.sleep(0.15)
        for _ in range(4):
            await Node(app).complete([50] * 100, max_tokens=1)

    found = calibrated(replace(QWEN, capacity_tokens=20_000), meanwhile=later)
    assert "others sent 400 prompt tokens meanwhile" in found.profile.known_error.lower()


def test_refusals_lose_single_points_and_many_end_it():
    async def full(app, for_s):
        await asyncio.sleep(0.5)
        app.engine.refusing = True
        await asyncio.sleep(for_s)
        app.engine.refusing = False

    law = replace(QWEN, capacity_tokens=20_000)
    found = calibrated(law, meanwhile=lambda app: full(app, 0.5), rounds=2)
    assert worst(found.profile, law) < 0.03
    with pytest.raises(LiveError, match=r"status 503: .*; the calibration ended after \d+ requests"):
        calibrated(law, meanwhile=lambda app: full(app, 100))


@pytest.mark.parametrize("end", ["crash", "terminate"])
def test_a_server_that_dies_ends_it_in_one_sentence(end):
    async def die(app):
        await asyncio.sleep(1)
        getattr(app.engine, end)()

    with pytest.raises(LiveError, match=r"the calibration ended after .* without a profile$") as caught:
        calibrated(QWEN, meanwhile=die)
    assert "\n" not in str(caught.value)


def test_a_restart_ends_it():
    async def started(app):
        await asyncio.sleep(1)
        app.start()

    with pytest.raises(LiveError, match=r"it was restarted|EngineCore|ended before"):
        calibrated(QWEN, meanwhile=started)


@pytest.mark.parametrize("limit", [{"max_s": 0.3}, {"max_requests": 6}])
def test_too_little_is_said(limit):
    with pytest.raises(InputError, match=r"too little was measured on node: .*; allow more"):
        calibrated(QWEN, **limit)


# The fit alone


@given(st.integers(0, 2**32 - 1))
def test_nnls_is_the_best_of_all_choices_of_unknowns(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((6, 4)), rng.standard_normal(6)
    best = np.linalg.norm(b)
    for used in itertools.chain.from_iterable(itertools.combinations(range(4), k) for k in range(1, 5)):
        x = np.linalg.lstsq(a[:, used], b, rcond=None)[0]
        if x.min() >= 0:
            best = min(best, np.linalg.norm(a[:, used] @ x - b))
    x = nnls(a, b)
    assert x.min() >= 0
    assert np.linalg.norm(a @ x - b) <= best + 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_outliers_do_little(seed):
    """Three points of twenty that took twice as long, as on a busy machine."""
    law = QWEN
    steps = [("prefill", Step(0, 0, n)) for n in (32, 128, 512, 1024, 2048, 4096)]
    steps += [("prefill", Step(0, 0, 256, c)) for c in (1024, 4096)]
    steps += [
        ("mixed", Step(b, 40 * b, n)) for b, n in ((1, 512), (1, 1024), (1, 2048), (1, 4096), (16, 1024))
    ]
    steps += [("decode", Step(b, 40 * b)) for b in (1, 2, 4, 8, 16)]
    steps += [("decode", Step(b, 1000 * b)) for b in (1, 4, 16)]
    points = [Point(*s, seconds=1.0) for s in steps]
    slow = np.random.default_rng(seed).choice(len(points), 3, replace=False)
    points = [
        replace(p, seconds=predicted_s(p, law, 0.002) * (2 if k in slow else 1)) for k, p in enumerate(points)
    ]
    assert worst(profile_of(fit(points, 8192), law), law) < 0.25


# The command


@pytest.fixture(scope="module")
def url():
    """A simulated server in real time."""
    plan = Plan(nodes=1, kv_tokens=3_000)
    with Deployment(plan) as deployment:
        yield deployment.urls[0]


def test_the_command_says_its_load_first_and_writes_a_profile(url, tmp_path, capsys):
    path = tmp_path / "profile.json"
    command = ["calibrate", url, "-o", str(path), "--max-s", "30", "--max-requests", "20"]
    assert main([*command, "--json"]) == 0
    out, err = capsys.readouterr()
    assert "gets at most 20 requests with" in err
    found = json.loads(out)
    assert found["profile"]["name"] == profile(path).name == QWEN.name
    assert found["load"]["requests"] <= 20
    assert set(found["points"][0]) >= {"kind", "measured_ms", "predicted_ms", "error", "held_out"}


def test_ctrl_c_leaves_nothing_running(url, tmp_path):
    path = tmp_path / "profile.json"
    command = [sys.executable, "-m", "tao.cli", "calibrate", url, "-o", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        assert "gets at most" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr.read() == "tao: interrupted\n"
    assert not path.exists()
    with Client(url) as client:
        for _ in range(100):
            if not client.metrics().result().running:
                break
        assert not client.metrics().result().running


def test_mistakes_are_one_line(url, tmp_path, capsys):
    for argv, words in (
        ([url, "-o", str(tmp_path)], "must be a file in a folder that exists"),
        (["http://127.0.0.1:1"], "it refused the connection"),
        ([url, "--max-s", "0"], "max_s is 0.0"),
        ([url, "--key-env", "NO_SUCH_VARIABLE"], "variable that key_env names is not set"),
    ):
        assert main(["calibrate", *argv]) == 2
        err = capsys.readouterr().err
        assert words in err.splitlines()[-1]
        assert "Traceback" not in err
