"""A node of a live run that is a simulated server in this very loop: no sockets, and time may be virtual."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

from tao.live.client import Client
from tao.live.faults import Broken
from tao.live.metrics_page import parse
from tao.live.stream import Answer, Events, decoded


class AsgiNode:
    """Speaks to an ASGI app as `tao.live.Client` speaks to a server."""

    def __init__(self, name, app, model="tiny"):
        self.name, self.app, self.model = name, app, model

    async def chat(self, messages, **options):
        return await self._generate("/v1/chat/completions", {"messages": messages}, **options)

    async def complete(self, prompt, **options):
        return await self._generate("/v1/completions", {"prompt": prompt}, **options)

    async def metrics(self):
        return parse(await self._whole("GET", "/metrics"))

    async def ask(self, path, body=None):
        return decoded(await self._whole("GET" if body is None else "POST", path, body))

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

        body = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}}
        with self._errors(lambda: answer.first_s is None):
            await self._call("POST", path, body | asked | options, take)
            return answer.reply(self.name, "", sent_s, ended_s)

    def _errors(self, fresh):
        """Broken answers become what a client makes of them."""
        node, maker = self, Client("http://127.0.0.1:1", name=self.name)

        class Errors:
            def __enter__(self):
                pass

            def __exit__(self, kind, error, trace):
                if kind is Broken:
                    raise maker._error(error, fresh=fresh()) from None

        return (node, Errors())[1]

    async def _call(self, method, path, body, take):
        data = b"" if body is None else json.dumps(body).encode()
        sent, ended = False, asyncio.Event()
        status = None

        async def receive():
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": data, "more_body": False}
            await ended.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message.get("body"):
                if status != 200:
                    words = json.loads(message["body"]).get("error")
                    raise Broken(str(words), status)
                take(message["body"])

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": method, "path": path, "headers": headers, "query_string": b""}
        call = asyncio.ensure_future(self.app(scope, receive, send))
        try:
            await asyncio.shield(call)
        finally:
            ended.set()  # the client is gone
            with suppress(BaseException):
                await call
