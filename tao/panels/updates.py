"""From a run's own thread to the widgets: the one way, and never more often than anybody can look."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from IPython.core.getipython import get_ipython

PERIOD_S = 0.2  # ours: five times a second; each drawing costs the kernel some milliseconds


class Updates:
    """Calls `draw` in the kernel's main thread soon after each `poke`, which any thread may call.

    Many pokes make one call, at most five a second. While a cell computes they wait for its end; in a cell
    that awaits they do not. Without a kernel nothing is called: whoever looks there asks for it.
    """

    def __init__(self, draw: Callable[[], object]) -> None:
        self._draw, self._lock = draw, threading.Lock()
        self._loop: Any = getattr(getattr(get_ipython(), "kernel", None), "io_loop", None)
        self._due, self._open, self._last_s = False, True, 0.0

    def poke(self) -> None:
        """Something has changed."""
        with self._lock:
            if self._due or not self._open or self._loop is None:
                return
            self._due = True
        self._loop.add_callback(self._plan)

    def close(self) -> None:
        """Call nothing any more."""
        self._open = False

    def _plan(self) -> None:
        self._loop.call_at(max(self._loop.time(), self._last_s + PERIOD_S), self._now)

    def _now(self) -> None:
        with self._lock:
            self._due = False
        self._last_s = self._loop.time()
        if self._open:
            self._draw()
