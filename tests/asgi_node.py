"""A node of a live run that is a simulated server in this very loop: no sockets, and time may be virtual."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import contextmanager, suppress

from tao.live.agents import replay
from tao.live.double.app import Server
from tao.live.double.engine import VirtualLoop
from tao.live.double.jobs import Settings
from tao.live.faults import Broken, Failed, Retryable
from tao.live.live_host import Options
from tao.live.metrics_page import parse
from tao.live.scheduler import Scheduler
from tao.live.servers import servers_of
from tao.live.stream import Answer, Events, decoded, reason_of
from tao.profiles import PROFILES
from tao.simulator import make_policy

QWEN = PROFILES["qwen3-32b-2xh100"]
IDLE_S = 60.0


class AsgiNode:
    """Speaks to an ASGI app as `tao.live.Client` speaks to a server; `down`: nobody listens."""

    def __init__(self, name, app):
        self.name, self.app, self.down = name, app, False
        self.calls = set()

    async def chat(self, messages, **options):
        return await self._generate("/v1/chat/completions", {"messages": messages}, **options)

    async def complete(self, prompt, **options):
        return await self._generate("/v1/completions", {"prompt": prompt}, **options)

    async def metrics(self):
        return parse(await self._whole("GET", "/metrics"))

    async def ask(self, path, body=None):
        return decoded(await self._whole("GET" if body is None else "POST", path, body))

    def cut(self):
        """Its process is gone, and with it all connections."""
        self.down = True
        for call in list(self.calls):
            call.cancel()

    async def _whole(self, method, path, body=None):
        found = bytearray()
        with self._errors(lambda: True):
            await self._call(method, path, body, found.extend)
        return bytes(found)

    async def _generate(self, path, asked, on_text=None, **options):
        answer, events, loop = Answer(on_text), Events(), asyncio.get_running_loop()
        sent_s = ended_s = loop.time()

        def take(chunk):
            nonlocal ended_s
            ended_s = loop.time()
            for data in events.feed(chunk):
                answer.take(data, ended_s)

        body = {"model": "tiny", "stream": True, "stream_options": {"include_usage": True}}
        with self._errors(lambda: answer.first_s is None):
            await self._call("POST", path, body | asked | options, take)
            return answer.reply(self.name, "", sent_s, ended_s)

    @contextmanager
    def _errors(self, fresh):
        """What is broken becomes what a client makes of it."""
        broken = None
        try:
            yield
        except Broken as error:
            broken = error
        if broken:
            passing = broken.status in (None, 200, 500, 503)
            kind = Retryable if fresh() and passing else Failed
            raise kind(self.name, broken.status, broken.reason, suspect=passing and broken.status != 503)

    async def _call(self, method, path, body, take):
        if self.down:
            raise Broken("connection refused")
        data = b"" if body is None else json.dumps(body).encode()
        sent, gone, status = False, asyncio.Event(), 0

        async def receive():
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": data, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            nonlocal status
            status = message.get("status", status)
            if message.get("body"):
                if status != 200:
                    raise Broken(reason_of(message["body"]), status)
                take(message["body"])

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": method, "path": path, "headers": headers, "query_string": b""}
        call = asyncio.ensure_future(self.app(scope, receive, send))
        self.calls.add(call)
        try:
            await asyncio.wait([call])
            if call.cancelled():
                raise Broken("it closed the connection before the answer ended")
            call.result()
        finally:
            self.calls.discard(call)
            gone.set()  # the client is gone
            if not call.done():
                call.cancel()
                with suppress(BaseException):
                    await call


def virtual(coroutine):
    """Run it in a loop whose clock jumps, and leave nothing behind."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def scheduler_on(nodes, policy, params, **options):
    """A scheduler over nodes in this loop, without threads."""
    servers = await servers_of(nodes, None)
    servers.rng = random.Random(0)
    return Scheduler(servers, make_policy(policy, params), params, Options(background=False, **options))


def nodes_of(count, kv_tokens, **options):
    """So many simulated servers in this loop."""
    settings = Settings(kv_tokens=kv_tokens, model="tiny", **options)
    return [AsgiNode(f"n{k}", Server(QWEN, settings)) for k in range(count)]


def live(workload, policy, params, nodes=2, kv_tokens=20_016, **options):
    """The history of a workload replayed on simulated servers, in virtual time."""
    options |= {"shared_prefix_tokens": workload.shared_prefix_tokens, "seed": workload.seed}

    async def whole():
        scheduler = await scheduler_on(nodes_of(nodes, kv_tokens), policy, params, **options)
        await scheduler.main(replay(workload))
        return scheduler.history

    return virtual(whole())
