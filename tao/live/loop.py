"""One event loop in a thread of its own, shared by all clients of a process; it ends with the last of them.

A busy notebook cell delays the kernel's own loop by as long as the cell takes; this one it hardly delays.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

BEAT_S = 0.02  # ours: how often the loop looks whether it is late
SWITCH_S = 0.0005  # ours: Python's 5 ms, for every chunk while a cell computes, held 32 streams up by 60 ms
JOIN_S = 0.5  # ours: a name server that does not answer may hold the thread longer


@dataclass(eq=False)
class Lag:
    """How late the loop was at worst while this was watched; every time stamp may be off by that much."""

    worst_s: float = 0.0


class Call(Generic[T]):
    """An answer on its way: `await` it in any event loop, or ask for its `result()` in a plain cell."""

    def __init__(self, future: Future[T], loop: Loop):
        self._future, self._loop = future, loop

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.wrap_future(self._future).__await__()

    def result(self, timeout_s: float | None = None) -> T:
        """The answer, once it is there; the request is canceled if this is interrupted or takes too long."""
        if self._loop.is_here():
            raise RuntimeError("result() would wait for itself in this thread; await the call instead")
        try:
            return self._future.result(timeout_s)
        finally:
            self._future.cancel()  # does nothing to what is done

    def cancel(self) -> None:
        """Give up: the connection closes, and the server frees the request's memory."""
        self._future.cancel()

    def then(self, do: Callable[[], object]) -> None:
        """Do that when it is over, in whichever thread that is."""
        self._future.add_done_callback(lambda _: do())

    def done(self) -> bool:
        """Whether the answer, an error or a cancellation is there."""
        return self._future.done()


class Loop:
    """The thread and its loop; get it from `acquire`."""

    def __init__(self) -> None:
        self._lags: set[Lag] = set()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="tao-live", daemon=True)
        self._thread.start()
        ready.wait()

    def _run(self, ready: threading.Event) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self._beat(ready))

    async def _beat(self, ready: threading.Event) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        ready.set()
        while True:
            due = self._loop.time() + BEAT_S
            await asyncio.sleep(BEAT_S)
            late = self._loop.time() - due
            for lag in self._lags:
                lag.worst_s = max(lag.worst_s, late)

    @contextmanager
    def lag(self, watched: Lag | None = None) -> Iterator[Lag]:
        """Watch how late the loop is, up to the last beat, while it matters; for use in the loop itself."""
        watched = watched or Lag()
        if not self._lags:
            self._usual_s = sys.getswitchinterval()
            sys.setswitchinterval(min(self._usual_s, SWITCH_S))
        self._lags.add(watched)
        try:
            yield watched
        finally:
            self._lags.discard(watched)
            if not self._lags:
                sys.setswitchinterval(self._usual_s)

    def begin(self, work: Coroutine[Any, Any, T]) -> Call[T]:
        """Start the work in the loop, from any thread."""
        return Call(asyncio.run_coroutine_threadsafe(work, self._loop), self)

    def is_here(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.current_thread() is self._thread

    def end(self) -> None:
        """Cancel what still runs, and end the thread."""
        assert self._task
        self._loop.call_soon_threadsafe(self._task.cancel)
        if not self.is_here():
            self._thread.join(JOIN_S)


_lock = threading.RLock()  # a client that nobody holds any more may be ended anywhere, in here too
_users: list[Loop] = []  # one entry per acquire; all the same loop


def acquire() -> Loop:
    """The loop, which starts for the first who asks; everyone who asks must `release` it."""
    with _lock:
        _users.append(_users[0] if _users else Loop())
        return _users[0]


def release() -> None:
    """Give the loop back; the last one ends it."""
    with _lock:
        loop = _users.pop()
        last = not _users
    if last:
        loop.end()
