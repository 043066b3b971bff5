"""How requests fail, in words that hold no secret and nothing a terminal would obey."""

from __future__ import annotations

import errno
from typing import Any

import aiohttp

CONNECT_S = 5.0  # ours: to a machine that is there, milliseconds
PASSING = (408, 429, 500, 502, 503, 504)  # statuses under which another node may well answer
REFUSED = "it refused the connection"
NO_FILES = "this process may open no more files, and a connection is one; raise the limit with ulimit -n"
BUSY = (408, 429, 503)  # of these, the ones that say nothing bad about the node


class LiveError(Exception):
    """A request that failed: `node`, `status` (None without an answer), `reason`, all in words of one line.

    `suspect`: the node itself seems broken or gone, and with it what it had cached.
    """

    def __init__(self, node: str, status: int | None, reason: str, suspect: bool = False):
        super().__init__(node, status, reason, suspect)
        self.node, self.status, self.reason, self.suspect = node, status, reason, suspect

    def __str__(self) -> str:
        return f"{self.node}: {'' if self.status is None else f'status {self.status}: '}{self.reason}"


class Retryable(LiveError):  # noqa: N818 (what to do says more than Error)
    """Nothing of the answer had come: the same turn may be sent to another node. The client never does."""


class Failed(LiveError):  # noqa: N818
    """The answer had begun, or the request itself is at fault: sending it again is no cure."""


class Broken(Exception):  # noqa: N818
    """An answer that cannot be used: why, and the status, if the server named one."""

    def __init__(self, reason: str, status: int | None = None):
        super().__init__(reason)
        self.reason, self.status = reason, status


def one_line(words: object) -> str:
    """A server's words, fit for an error message: printable, and in one line."""
    text = words if isinstance(words, str) else repr(words)
    return "".join(c if c.isprintable() else " " for c in text).strip()


def complaint(answer: Any) -> tuple[int | None, str] | None:
    """Code and message of an error object in any of the shapes servers send, or None.

    >>> complaint({"error": {"message": "busy", "type": "Service Unavailable", "param": None, "code": 503}})
    (503, 'busy')
    >>> complaint({"error": "Unauthorized"}), complaint({"detail": "Not Found"}), complaint({"choices": []})
    ((None, 'Unauthorized'), (None, 'Not Found'), None)
    """
    if not isinstance(answer, dict):
        return None
    error = answer.get("error")
    if error is None and "choices" not in answer and {"message", "detail"} & answer.keys():
        error = answer  # Dynamo's have no wrapper; vLLM's router says {"detail": ...}
    if error is None:
        return None
    if not isinstance(error, dict):
        return None, one_line(error)
    code = error.get("code")
    return code if isinstance(code, int) else None, one_line(error.get("message", error.get("detail", "")))


def words(error: BaseException) -> str:
    """A failed connection in our own words; the library's may quote what a server sent."""
    if isinstance(error, aiohttp.ClientSSLError):
        return "its certificate is not trusted, or it does not speak https; name a private authority with ca"
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return f"no connection within {CONNECT_S:g} s"
    if isinstance(error, TimeoutError):
        return "timeout: no sign of life for too long"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its host name is not known"
    if isinstance(error, aiohttp.ClientConnectorError):
        if error.os_error.errno in (errno.EMFILE, errno.ENFILE):
            return NO_FILES
        refused = isinstance(error.os_error, ConnectionRefusedError)
        return REFUSED if refused else "it cannot be reached"
    if isinstance(error, aiohttp.ClientResponseError | aiohttp.InvalidURL):
        return "it does not answer in proper HTTP"
    return "it closed the connection before the answer ended"
