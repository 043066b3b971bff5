"""The connections of one client, with limits to whatever a server sends over them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
from yarl import URL

from tao.live.faults import CONNECT_S, Broken
from tao.live.given import Secret
from tao.live.stream import reason_of

T = TypeVar("T")

MAX_ERROR_BYTES = 2**16  # ours: an error body; vLLM's have some hundred bytes
MAX_HEADERS, MAX_HEADER_BYTES = 64, 8190  # ours; the bytes are aiohttp's and most servers' limit
KEEP_S = 2.0  # ours: a connection idle longer is not used again; vLLM closes it after 5, perhaps as we send
READ_BYTES = 2**16  # ours: at most twice as much is taken apart at once while all others wait


class Wire:
    """Connections, the key that goes over them, and the tasks that use them."""

    def __init__(self, key: Secret | None, tls: ssl.SSLContext | bool):
        self.key = key  # the value of the header
        self.tasks: set[asyncio.Task[Any]] = set()
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def open(
        self, method: str, url: URL, body: bytes | None, headers: dict[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer, if its status is 200; raises `Broken` and what aiohttp raises."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(  # its limit of 100 would queue unseen
                    limit=0, ssl=self._tls, keepalive_timeout=KEEP_S
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                auto_decompress=False,
                trust_env=False,
                read_bufsize=READ_BYTES,
                max_headers=MAX_HEADERS,
                max_line_size=MAX_HEADER_BYTES,
                max_field_size=MAX_HEADER_BYTES,
            )
        sent = {"Accept-Encoding": "identity", "Content-Type": "application/json", **headers}
        if self.key:
            sent["Authorization"] = self.key
        response = await self._session.request(method, url, data=body, headers=sent, allow_redirects=False)
        status = response.status
        try:
            if 300 <= status < 400:
                raise Broken("it redirects elsewhere, which is not followed; give that address", status)
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise Broken("it compressed its answer, which was not asked for", status)
            if status != 200:
                raise Broken(reason_of(await bounded(response, MAX_ERROR_BYTES)), status)
            tell_when_lost(response)
            yield response
        finally:
            response.close()  # of what is not read to its end; the server then frees the request's memory

    async def track(self, work: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Do the work as a task that `shut` cancels."""
        task = asyncio.current_task()
        assert task
        self.tasks.add(task)
        try:
            return await work(*args)
        finally:
            self.tasks.discard(task)

    async def shut(self) -> None:
        """Cancel what is under way, and close all connections."""
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self._session:
            await self._session.close()


def tell_when_lost(response: aiohttp.ClientResponse) -> None:
    """Wake who reads the answer when its connection is gone; after what is not HTTP aiohttp does not."""
    if response.connection is None:
        return  # all of the answer is here

    def tell(closed: asyncio.Future[None]) -> None:
        if not closed.cancelled():
            closed.exception()  # else it is reported as never looked at
        if not response.content.is_eof() and response.content.exception() is None:
            response.content.set_exception(aiohttp.ClientPayloadError("its connection is closed"))

    protocol = response.connection.protocol
    if protocol is not None and protocol.closed is not None:
        protocol.closed.add_done_callback(tell)


async def bounded(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body, or a little more than `limit` of it."""
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > limit:
            break
    return bytes(data)
