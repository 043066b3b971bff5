"""Requests and answers on the wire: ASGI messages in, JSON and events out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from tao.live.double.errors import BodyError, Refusal
from tao.live.double.stream import dumps

Asgi = Callable[..., Awaitable[Any]]
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY")
VARY = b", ".join(
    [b"Origin", *(b"Access-Control-Request-" + x for x in (b"Method", b"Headers", b"Private-Network"))]
)
MAX_BODY = 16 * 2**20  # bytes of a request; ours, some 4 million tokens


class Response:
    """Sends the parts of one answer."""

    def __init__(self, send: Asgi, request_id: str) -> None:
        self._send, self._id, self.begun = send, request_id, False

    async def begin(self, status: int, *headers: tuple[bytes, bytes]) -> None:
        """Status and headers."""
        self.begun = True
        known = [*headers, (b"x-request-id", self._id.encode("latin-1", "replace"))]
        if status != 401 and b"vary" not in dict(headers):
            known.append((b"vary", b"Origin"))
        await self._send({"type": "http.response.start", "status": status, "headers": known})

    async def part(self, body: bytes, more: bool = True) -> None:
        """A part of the body."""
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def json(self, data: Any, status: int = 200, *headers: tuple[bytes, bytes]) -> None:
        """A whole answer: JSON, or bytes that are text."""
        text = isinstance(data, bytes)
        body = data if text else dumps(data).encode("utf-8", "replace")
        kind = b"text/plain; charset=utf-8" if text else b"application/json"
        about = [(b"content-length", str(len(body)).encode())]
        about += [(b"content-type", kind)] * (bool(body) and b"content-type" not in dict(headers))
        await self.begin(status, *headers, *about)
        await self.part(body, more=False)

    async def preflight(self, method: str, wanted: str | None) -> None:
        """What a browser hears that asks for a page of another origin: vLLM allows none by default."""
        told = (b"access-control-allow-headers", (wanted or "").encode("latin-1", "replace"))
        about = [(b"vary", VARY), (b"access-control-allow-methods", ", ".join(METHODS).encode())]
        about += [(b"access-control-max-age", b"600"), *[told] * (wanted is not None)]
        await self.json(b"Disallowed CORS origin" + b", method" * (method not in METHODS), 400, *about)


def event(data: Any) -> bytes:
    """A server-sent event; errors have spaces, unlike chunks."""
    return f"data: {json.dumps(data)}\n\n".encode()


async def read(headers: dict[str, str], receive: Asgi) -> Any:
    """The JSON of a request's body; raises `BodyError` or `Refusal`."""
    raw = bytearray()
    more = True
    told = headers.get("content-length", "")
    while more:
        message = await receive()
        raw += message.get("body", b"")
        more = message.get("more_body", False)
        if len(raw) > MAX_BODY or (told.isdecimal() and int(told) > MAX_BODY):
            raise Refusal(f"The request is larger than {MAX_BODY} bytes.", status=413)
    kind, _, form = headers.get("content-type", "").lower().split(";")[0].partition("/")
    wrong = (kind, form) != ("application", "json")
    data = None if wrong and not (kind == "application" and form.endswith("+json")) else _parsed(bytes(raw))
    if wrong:  # what only resembles JSON is read all the same
        why = "Unsupported Media Type: Only 'application/json' is allowed"
        raise Refusal(f"1 validation error:\n  {why}", kind="Bad Request")
    if data is None:
        raise BodyError("missing", "Field required")
    return data


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else None
    except json.JSONDecodeError as e:
        what = {"input": {}, "ctx": {"error": e.msg}}
        raise BodyError("json_invalid", "JSON decode error", (e.pos,), **what) from None
    except (ValueError, RecursionError):
        raise Refusal("There was an error parsing the body", kind="detail") from None


async def unless_gone(receive: Asgi, work: Any) -> None:
    """Do the work until it is done or the client has gone."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    both = {asyncio.ensure_future(work), asyncio.ensure_future(gone())}
    try:
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
    for task in done:
        task.result()
