"""A client of one vLLM server, for measuring and scheduling: it never retries, redirects or guesses.

Every server is taken to be hostile: whatever it sends is bounded in time and memory, and an API key appears
in no repr, error, log or address.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import uuid
import weakref
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from yarl import URL

from tao import checks
from tao.checks import InputError, shown
from tao.live import given, loop
from tao.live.faults import (
    BUSY,
    NO_FILES,
    PASSING,
    REFUSED,
    Broken,
    Failed,
    LiveError,
    Retryable,
    one_line,
    words,
)
from tao.live.loop import Call
from tao.live.metrics_page import MAX_PAGE_BYTES, Load, parse
from tao.live.stream import MAX_STREAM_BYTES, Answer, Events, Reply, decoded, vllm_models
from tao.live.wire import Wire, bounded

T = TypeVar("T")

IDLE_S = 60.0  # ours: without a line; must exceed queue and prefill, or the server must send keep-alives
TOTAL_S = 1800.0  # ours: the longest a turn may take
ASK_S = 5.0  # ours: for everything that is not a generation
LINGER_S = 0.2  # ours: wait so long for the end after [DONE], or the connection cannot be used again
GONE_S = 3.0  # ours: silence of a stream that is given up once the server refuses connections
POLL_S = 1.0  # ours: between two looks at a node
MAX_JSON_BYTES = 2**23  # ours: the ids of a million tokens
MAX_MODELS_BYTES = 2**20  # ours: two thousand models
MAX_REASON = 300  # ours: characters of a server's words that an error repeats
FAULTS = (aiohttp.ClientError, TimeoutError, Broken)
OURS = ("stream", "stream_options", "n", "model", "messages", "prompt")  # fields of a request that we set


class Client:
    """One vLLM server; every method that asks it something returns a `Call`. Close the client in the end.

    `url`: http or https, with or without a path before /v1. `key_env`: name of the environment variable that
    holds the API key; `key`: the key itself. `ca`: a file with the certificate of a private authority.
    `model`: default is the first that the server names. Source: ours, after vLLM 0.32.0's surface.

    >>> with Client("http://127.0.0.1:8000/v1") as node:
    ...     node
    Client('http://127.0.0.1:8000')
    """

    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        key: str | None = None,
        key_env: str | None = None,
        ca: str | Path | None = None,
        model: str | None = None,
        idle_s: float = IDLE_S,
        total_s: float = TOTAL_S,
    ):
        # a traceback may show this function's variables, and some give the key where its name belongs
        key, key_env = (None if x is None else given.Secret(x) for x in (key, key_env))
        self.url = given.address(url)
        self.name = name or str(self.url).partition("//")[2]
        self.model = model
        self.load: Load | None = None  # as `watch` saw it last
        self.fault: LiveError | None = None  # why it saw nothing
        checks.positive(idle_s, "idle_s")
        checks.positive(total_s, "total_s")
        self._idle_s, self._total_s = idle_s, total_s
        self._wire = Wire(given.key(key, key_env), given.tls(ca))
        self._loop: loop.Loop | None = None
        self._streams: set[asyncio.Timeout] = set()  # when each gives up
        self._end: weakref.finalize[[loop.Loop, Wire], Client] | None = None  # dropped, or open at exit
        self._closed = False
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Client({str(self.url)!r})"

    def __reduce__(self) -> Any:
        raise TypeError("a client holds connections and perhaps a key; it is not saved, make a new one")

    # Generation

    def chat(self, messages: Sequence[dict[str, Any]], **options: Any) -> Call[Reply]:
        """Ask for the next message of a chat; the options are those of `complete`.

        Raises `Retryable` or `Failed`.
        """
        if isinstance(messages, str) or not isinstance(messages, Sequence):
            raise InputError(f"messages is {shown(messages)}; it must be a list of messages, each a dict")
        return self._generate("/v1/chat/completions", {"messages": list(messages)}, **options)

    def complete(
        self,
        prompt: str | Sequence[int],
        *,
        request_id: str | None = None,
        on_text: Callable[[str], object] | None = None,
        **options: Any,
    ) -> Call[Reply]:
        """Ask to go on with a text or tokens.

        `on_text` gets each piece as it comes, in the loop's thread. All other options go to the server as
        they are: max_tokens, tools, cache_salt, priority, session_id, ... Raises `Retryable` or `Failed`.
        """
        text = prompt if isinstance(prompt, str) else list(prompt)
        return self._generate(
            "/v1/completions", {"prompt": text}, request_id=request_id, on_text=on_text, **options
        )

    def _generate(
        self,
        path: str,
        asked: dict[str, Any],
        *,
        request_id: str | None = None,
        on_text: Callable[[str], object] | None = None,
        **options: Any,
    ) -> Call[Reply]:
        if taken := [option for option in options if option in OURS]:
            raise InputError(f"{taken[0]} is among the options; the client sets it itself, leave it out")
        request_id = uuid.uuid4().hex if request_id is None else request_id
        if not (isinstance(request_id, str) and 0 < len(request_id) <= 200 and given.visible(request_id)):
            raise InputError(
                f"request_id is {shown(request_id)}; it must be 1 to 200 visible ASCII characters"
            )
        body = options | asked | {"stream": True, "stream_options": {"include_usage": True}}
        return self.begin(self._stream, path, given.json_of(body), request_id, on_text)

    async def _stream(
        self, path: str, body: bytes, request_id: str, on_text: Callable[[str], object] | None
    ) -> Reply:
        self.model = self.model or (await self._models())[0]["id"]
        body = b'{"model":' + json.dumps(self.model).encode() + b"," + body[1:]
        assert self._loop
        with self._loop.lag() as lag:
            answer = Answer(on_text)
            sent_s = asyncio.get_running_loop().time()
            try:
                ended_s, echoed = await self._read(path, body, request_id, answer, sent_s)
                reply = answer.reply(self.name, request_id, sent_s, ended_s)
                return replace(reply, loop_lag_s=lag.worst_s, request_id_echoed=echoed)
            except FAULTS as error:
                failed = self._error(error, fresh=answer.first_s is None)
            raise failed  # out here, for the error before it may quote a key that the server repeats

    async def _read(
        self, path: str, body: bytes, request_id: str, answer: Answer, sent_s: float
    ) -> tuple[float, bool]:
        """Fill the answer; returns when it ended, and whether the server repeats our ids."""
        events, size, ended_s, echoed = Events(), 0, sent_s, False
        until_s = sent_s + self._total_s
        deadline = asyncio.timeout_at(min(sent_s + self._idle_s, until_s))
        try:
            async with deadline:
                self._streams.add(deadline)
                headers = {"X-Request-Id": request_id}
                async with self._wire.open("POST", self._at(path), body, headers) as response:
                    if (kind := response.content_type) != "text/event-stream":
                        raise Broken(f"it streams {one_line(kind)!r}, not text/event-stream")
                    echoed = response.headers.get("X-Request-Id") == request_id
                    async for chunk in response.content.iter_any():
                        now_s, lines = asyncio.get_running_loop().time(), events.lines
                        for data in events.feed(chunk):
                            answer.take(data, now_s)
                            ended_s = now_s
                        size += len(chunk)
                        if size > MAX_STREAM_BYTES:
                            raise Broken(f"it sent more than {MAX_STREAM_BYTES:,} bytes")
                        if events.lines > lines:  # a byte now and then is no sign of life, a line is
                            if answer.done:
                                deadline.reschedule(min(now_s + LINGER_S, until_s))
                            elif (deadline.when() or 0.0) < now_s + self._idle_s:  # not a timer per chunk
                                deadline.reschedule(min(now_s + 1.1 * self._idle_s, until_s))
        except (aiohttp.ClientError, TimeoutError):
            if answer.finish_reason is None:
                raise
        finally:
            self._streams.discard(deadline)
        return ended_s, echoed

    # Questions

    def metrics(self) -> Call[Load]:
        """One look at `/metrics`; raises `Retryable` or `Failed`, as do the other questions."""
        return self.begin(self._ask, "/metrics", None, parse, MAX_PAGE_BYTES)

    def models(self, within_s: float = ASK_S) -> Call[list[dict[str, Any]]]:
        """The server's models as it describes them (`id`, `max_model_len`, ...); fails if it is not vLLM."""
        return self.begin(self._models, within_s)

    def ask(self, path: str, body: Any = None) -> Call[Any]:
        """The JSON at any other path, such as /version, /load or, with a body, /tokenize."""
        return self.begin(self._ask, path, None if body is None else given.json_of(body), decoded)

    def watch(self, on_load: Callable[[Client], object] | None = None, first_s: float = 0.0) -> Call[None]:
        """Look at the metrics once a second, for the first time in `first_s`, until canceled or closed.

        `load` or `fault` holds what came of it; `on_load` is told, in the loop's thread.
        """
        return self.begin(self._watch, on_load, first_s)

    async def _watch(self, on_load: Callable[[Client], object] | None, first_s: float) -> None:
        clock = asyncio.get_running_loop().time
        due_s = clock() + first_s
        while True:
            await asyncio.sleep(due_s - clock())
            try:
                try:
                    self.load, self.fault = await self._ask("/metrics", None, parse, MAX_PAGE_BYTES), None
                except LiveError as error:
                    self.load, self.fault = None, error
                    if error.reason == REFUSED:  # vLLM 0.32 may leave streams open and silent after a SIGTERM
                        for deadline in (d for d in self._streams if not d.expired()):
                            deadline.reschedule(min(deadline.when() or math.inf, clock() + GONE_S))
                if on_load:
                    on_load(self)
            except Exception as error:  # of on_load, or one that nobody foresaw: the next look may be better
                said = {"message": f"a look at the load of {self.name} went wrong", "exception": error}
                asyncio.get_running_loop().call_exception_handler(said)
            due_s += POLL_S * max(1, math.ceil((clock() - due_s) / POLL_S))  # what was missed is left out

    async def _models(self, within_s: float = ASK_S) -> list[dict[str, Any]]:
        return await self._ask("/v1/models", None, vllm_models, MAX_MODELS_BYTES, within_s)

    async def _ask(
        self,
        path: str,
        body: bytes | None,
        read: Callable[[bytes], T],
        limit: int = MAX_JSON_BYTES,
        within_s: float = ASK_S,
    ) -> T:
        try:
            async with (
                asyncio.timeout(within_s),
                self._wire.open("GET" if body is None else "POST", self._at(path), body, {}) as response,
            ):
                data = await bounded(response, limit)
                if len(data) > limit:
                    raise Broken(f"it answered with more than {limit:,} bytes")
                return read(data)
        except FAULTS as error:
            failed = self._error(error, fresh=True)
        raise failed

    def _at(self, path: str) -> URL:
        return self.url / path.lstrip("/")

    def _error(self, error: BaseException, fresh: bool) -> LiveError:
        """The error to raise; `fresh`: nothing of an answer had come."""
        status = error.status if isinstance(error, Broken) else None
        reason = error.reason if isinstance(error, Broken) else words(error)
        passing = status in (None, 200, *PASSING) and not isinstance(error, aiohttp.ClientSSLError)
        if self._wire.key:
            reason = reason.replace(self._wire.key.removeprefix(given.BEARER), "***")
        kind = Retryable if fresh and passing else Failed
        suspect = passing and status not in BUSY and reason != NO_FILES
        return kind(self.name, status, reason[:MAX_REASON], suspect)

    def begin(self, work: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> Call[T]:
        """Run a coroutine function in the loop's thread; closing the client cancels it."""
        with self._lock:
            if self._closed:
                raise InputError(f"{self!r} is closed; make a new one")
            if self._loop is None:
                self._loop = loop.acquire()
                self._end = weakref.finalize(self, _end, self._loop, self._wire)
            return self._loop.begin(self._wire.track(work, *args))

    # The end

    def close(self) -> None:
        """Cancel what is under way and close all connections; a second time does nothing."""
        self._closed = True
        if self._end:
            self._end()

    async def aclose(self) -> None:
        """Like `close`, for coroutines."""
        self._closed = True
        if self._loop and self._end and self._end.detach():
            shutting = self._loop.begin(self._wire.shut())
            shutting.then(loop.release)  # even if it is this very task that is canceled
            await asyncio.shield(shutting)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def watch(clients: Sequence[Client], on_load: Callable[[Client], object] | None = None) -> list[Call[None]]:
    """Watch the load of several nodes, each once a second, one after the other."""
    return [c.watch(on_load, POLL_S * k / len(clients)) for k, c in enumerate(clients)]


def _end(running: loop.Loop, wire: Wire) -> None:
    """End a client, from any thread."""
    shutting = running.begin(wire.shut())
    if running.is_here():  # dropped in there, where waiting would be for itself
        shutting.then(loop.release)
    else:
        shutting.result()
        loop.release()
