"""`tao calibrate` against simulated servers whose law is known, in virtual time, and its fit alone."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("aiohttp", reason="the extra `live` is not installed")
pytest.importorskip("uvicorn", reason="the extra `live` is not installed")

from tao.live.calibration import measure  # noqa: E402
from tao.live.double.app import Server  # noqa: E402
from tao.live.double.engine import VirtualLoop  # noqa: E402
from tao.live.double.jobs import Settings  # noqa: E402
from tao.live.metrics_page import parse  # noqa: E402
from tao.live.stream import Answer, Broken, Events, decoded  # noqa: E402
from tao.profiles import PROFILES, Profile  # noqa: E402

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

        await self._ask("POST", "/v1/completions", body, take)
        return answer.reply(self.name, "r", sent_s, clock())

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
            await asyncio.Event().wait()

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
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def calibrated(profile, delay_s=0.0, max_s=300.0, max_requests=2000, tell=None, **options):
    """The calibration of a simulated server with that law."""

    async def run():
        kv = options.pop("kv_tokens", profile.capacity_tokens)
        app = Server(profile, Settings(**{"kv_tokens": kv, "model": "m"} | options))
        node = Node(app, delay_s)
        try:
            return await measure(node, max_s, max_requests, tell)
        finally:
            app.stop()

    return virtual(run())
