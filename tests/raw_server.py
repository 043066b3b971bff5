"""A server that says whatever a test wants, byte by byte, on 127.0.0.1; and what a real vLLM says."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

ID = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1795995453, "model": "tiny"}
DONE = b"data: [DONE]\n\n"
SSE = "text/event-stream; charset=utf-8"
BUSY = {
    "error": {
        "message": "The engine is currently busy and cannot accept new requests.",
        "type": "Service Unavailable",
        "param": None,
        "code": 503,
    }
}
DEAD = {
    "error": {
        "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
}
MODELS = {
    "object": "list",
    "data": [
        {"id": "tiny", "object": "model", "created": 1795995449, "owned_by": "vllm", "max_model_len": 8192}
    ],
}


class Request(NamedTuple):
    """What came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


Send = Callable[[bytes], Awaitable[None]]
Handler = Callable[[Request, Send], Awaitable[None]]


def event(**fields: Any) -> bytes:
    """A chunk of a chat."""
    return b"data: " + json.dumps(ID | fields, separators=(",", ":")).encode() + b"\n\n"


def delta(finish: str | None = None, **fields: Any) -> bytes:
    """A chunk with one choice."""
    return event(choices=[{"index": 0, "delta": fields, "logprobs": None, "finish_reason": finish}])


def usage(details: Any = None, **more: Any) -> bytes:
    """The chunk after the last choice."""
    counts = {
        "prompt_tokens": 37,
        "total_tokens": 40,
        "completion_tokens": 3,
        "prompt_tokens_details": details,
    }
    return event(choices=[], usage=counts, **more)


ROLE = delta(role="assistant", content="")
CACHED = {"cached_tokens": 32, "created_cache_tokens": 0}
CHAT = [ROLE, delta(content=" a"), delta(content=" b"), delta("length", content=" c"), usage(CACHED), DONE]


def whole(status: int, body: Any, kind: str = "application/json", **headers: str) -> bytes:
    """An answer of known length."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    more = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in headers.items())
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n{more}\r\n"
    return head.encode() + data


def head(kind: str = SSE, **headers: str) -> bytes:
    """The head of a stream."""
    more = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in headers.items())
    return f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n{more}\r\n".encode()


def chunk(data: bytes) -> bytes:
    """A piece of a stream; an empty one ends it."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def says(*parts: bytes, pause_s: float = 0.0, end: bool = True, **headers: str) -> Handler:
    """Streams the parts."""

    async def handler(_request: Request, send: Send) -> None:
        await send(head(**headers))
        for part in parts:
            await asyncio.sleep(pause_s)
            await send(chunk(part))
        if not end:
            raise ConnectionResetError
        await send(chunk(b""))

    return handler


def answers(data: bytes) -> Handler:
    """Sends these bytes."""

    async def handler(_request: Request, send: Send) -> None:
        await send(data)

    return handler


async def hangs(_request: Request, _send: Send) -> None:
    """Never answers."""
    await asyncio.sleep(60)


class RawServer:
    """Runs in a thread of its own; `routes` may be changed at any time."""

    def __init__(self, routes: dict[str, Handler], tls: Any = None):
        self.routes = {"/v1/models": answers(whole(200, MODELS))} | routes
        self.requests: list[Request] = []
        self.gone = threading.Event()  # a client left in the middle
        self.connections = 0
        self.scheme = "https" if tls else "http"
        self._tls = tls
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="raw-server")

    def __enter__(self) -> RawServer:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    @property
    def url(self) -> str:
        """Its address."""
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def refuse(self) -> None:
        """Take no more connections; those there are stay."""
        self._loop.call_soon_threadsafe(self._server.close)

    async def _run(self) -> None:
        self._loop, self._stop, self._busy = asyncio.get_running_loop(), asyncio.Event(), set[Any]()
        self._server = server = await asyncio.start_server(self._connection, "127.0.0.1", 0, ssl=self._tls)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in list(self._busy):
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        self._busy.add(task)

        async def send(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                first = await reader.readexactly(1)
                if not first.isalpha():  # a client that begins with TLS
                    await send(whole(400, {"detail": "Bad Request"}))
                    break
                top = (first + await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, path, _ = top[0].split(" ")
                headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in top[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                request = Request(method, path, headers, body)
                self.requests.append(request)
                handler = self.routes.get(path, answers(whole(404, {"detail": "Not Found"})))
                work = asyncio.ensure_future(handler(request, send))
                left = asyncio.ensure_future(reader.read(1))
                try:
                    await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
                    if not work.done():
                        self.gone.set()
                        break
                    left.cancel()
                    await asyncio.gather(left, return_exceptions=True)
                    work.result()
                finally:
                    work.cancel()
                    left.cancel()
                    await asyncio.gather(work, left, return_exceptions=True)
        writer.close()
        with suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()
        self._busy.discard(task)
