"""What a vLLM server streams, taken apart: bytes to events, events to a reply. No network in here.

Sources: vLLM 0.32.0 as observed, and its public issues. A 200 may still be a rejection, `[DONE]` is not
success, events are not tokens, and what a server does not tell is unknown, which is not 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tao.checks import MAX_TOKENS
from tao.live.faults import Broken, complaint, one_line

MAX_EVENT_BYTES = 2**20  # ours: vLLM's chunks are under 1 kB
MAX_STREAM_LINES = 2**19  # ours: half as many chunks
MAX_STREAM_BYTES = 2**26  # ours: some hundred thousand chunks
MAX_TEXT = 2**22  # ours: characters of an answer, a million tokens
MAX_TOOLS = 1000  # ours: calls in an answer
FINISHED = ("stop", "length", "tool_calls", "function_call", "content_filter", "repetition")


def decoded(data: bytes | str) -> Any:
    """The JSON in a server's answer.

    >>> decoded(b'{"version": "0.32.0"}')
    {'version': '0.32.0'}
    """
    try:
        return json.loads(data if isinstance(data, str) else data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise Broken("it sent what is not JSON") from None


def count(x: Any, most: int = MAX_TOKENS) -> int | None:
    """A number of tokens, or None for whatever else a server sends.

    >>> count(37), count(None), count(-1), count("37"), count(2**41)
    (37, None, None, None, None)
    """
    return x if isinstance(x, int) and not isinstance(x, bool) and 0 <= x <= most else None


def vllm_models(body: bytes) -> list[dict[str, Any]]:
    """The answer to /v1/models, if it is vLLM's."""
    answer = decoded(body)
    models = answer.get("data") if isinstance(answer, dict) else None
    if not (isinstance(models, list) and models and all(isinstance(m, dict) for m in models)):
        raise Broken("it is not vLLM: its /v1/models lists no models")
    owners = {one_line(m.get("owned_by")) if isinstance(m.get("id"), str) else "nobody" for m in models}
    if owners != {"vllm"}:
        raise Broken(f"it is not vLLM: its models belong to {', '.join(sorted(owners))}")
    return models


def reason_of(body: bytes) -> str:
    """What an error's body says."""
    with suppress(Broken):
        if found := complaint(decoded(body)):
            return found[1] or "no reason given"
    return "no reason given"


class Events:
    """Bytes of a `text/event-stream`, however they are cut, to the data of its events.

    `lines` counts whole lines, comments included: a server that is alive, though it has no token yet.

    >>> events = Events()
    >>> events.feed(b": keep-alive\\n\\ndata: {}\\n"), events.feed(b"\\ndata: [DONE]\\r\\n\\r\\n")
    ([], ['{}', '[DONE]'])
    """

    def __init__(self, limit: int = MAX_EVENT_BYTES):
        self.lines = 0
        self._limit = limit
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._size = 0  # bytes of self._data
        self._skip_lf = False  # the chunk ended in \r, which may be half of \r\n

    def feed(self, chunk: bytes) -> list[str]:
        """The data of the events that these bytes complete."""
        if self._skip_lf and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._skip_lf = False
        found: list[str] = []
        if b"\n" in chunk or b"\r" in chunk:
            self._skip_lf = chunk.endswith(b"\r")
            lines = (bytes(self._rest) + chunk).splitlines()
            self._rest = bytearray() if chunk.endswith((b"\n", b"\r")) else bytearray(lines.pop())
            for line in lines:
                self._line(line, found)
        else:
            self._rest += chunk
        if len(self._rest) > self._limit:
            raise Broken(f"it sent a line of more than {self._limit:,} bytes")
        return found

    def _line(self, line: bytes, found: list[str]) -> None:
        if self.lines == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")
        self.lines += 1
        if self.lines > MAX_STREAM_LINES:
            raise Broken(f"it sent more than {MAX_STREAM_LINES:,} lines")
        field, _, value = line.partition(b":")
        if field == b"data":  # other fields, and comments, which have an empty one, are of no use here
            self._data.append(value.removeprefix(b" "))
            self._size += len(line)
            if self._size > self._limit:
                raise Broken(f"it sent an event of more than {self._limit:,} bytes")
        elif not line and self._data:
            try:
                found.append(b"\n".join(self._data).decode("utf-8"))
            except UnicodeDecodeError:
                raise Broken("it sent what is not UTF-8") from None
            self._data, self._size = [], 0


@dataclass(frozen=True)
class Reply:
    """A whole answer, with its times and what the server counted; None is unknown.

    Times in seconds: `ttft_s` from sending to the first token, `tpot_s` per token after it, `longest_gap_s`
    between two chunks, `total_s` to the end. `server_ttft_s`, `queue_s`: the server's own clock.
    `sent_s`: when, on the loop's monotonic clock. `loop_lag_s`: how far our time stamps may be off.
    """

    node: str
    request_id: str
    text: str
    reasoning: str
    tool_calls: tuple[dict[str, Any], ...]
    finish_reason: str
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    created_cache_tokens: int | None
    sent_s: float
    ttft_s: float
    tpot_s: float | None
    longest_gap_s: float
    total_s: float
    server_ttft_s: float | None
    queue_s: float | None
    token_ids: tuple[int, ...] | None = None  # of the answer, where return_token_ids was asked for
    loop_lag_s: float = 0.0
    request_id_echoed: bool = False


class Answer:
    """Puts a reply together, event by event."""

    def __init__(self, on_text: Callable[[str], object] | None = None):
        self.first_s: float | None = None  # when the first token came
        self.finish_reason: str | None = None
        self.done = False  # [DONE] has come
        self._on_text = on_text
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._tools: dict[int, dict[str, Any]] = {}
        self._ids: list[int] = []
        self._usage: dict[str, Any] = {}
        self._metrics: dict[str, Any] = {}
        self._last_s = self._gap_s = 0.0
        self._size = 0  # characters kept

    def take(self, data: str, now_s: float) -> None:
        """Take in one event; raises `Broken` for an error in the stream or what is no event."""
        if self.done:
            return
        if data == "[DONE]":
            self.done = True
            return
        event = decoded(data)
        if (error := complaint(event)) is not None:
            raise Broken(error[1] or "an error without a message", error[0])
        choices = event.get("choices") if isinstance(event, dict) else None
        if not isinstance(choices, list):
            raise Broken("it sent an event that is not a chunk of an answer")
        for part in ("usage", "metrics"):
            if isinstance(event.get(part), dict):
                setattr(self, f"_{part}", event[part])
        if choices:
            self._choice(choices[0], now_s)

    def _choice(self, choice: Any, now_s: float) -> None:
        delta = choice.get("delta", choice) if isinstance(choice, dict) else None  # completions have no delta
        if not isinstance(delta, dict):
            raise Broken("it sent an event that is not a chunk of an answer")
        why = choice.get("finish_reason")
        if why is not None and why not in FINISHED:
            raise Broken(f"it ended the answer with finish_reason {one_line(why)!r}")
        self.finish_reason = why or self.finish_reason
        text = _text(delta, "text") or _text(delta, "content")
        reasoning = _text(delta, "reasoning") or _text(delta, "reasoning_content")
        tools = delta.get("tool_calls") or []
        if "role" in delta and not (text or reasoning or tools or why):
            return  # it leaves together with the first token, and is none itself
        ids = choice.get("token_ids")  # names, which simulated servers take from a larger range than counts
        self._ids += [x for x in ids if count(x, 2**53) is not None] if isinstance(ids, list) else []
        if self.first_s is None:
            self.first_s = now_s
        else:
            self._gap_s = max(self._gap_s, now_s - self._last_s)
        self._last_s = now_s
        self._keep(text, self._text)
        self._keep(reasoning, self._reasoning)
        for tool in tools if isinstance(tools, list) else []:
            self._tool(tool)
        if text and self._on_text:
            self._on_text(text)

    def _keep(self, text: str, parts: list[str]) -> None:
        self._size += len(text)
        if self._size > MAX_TEXT:
            raise Broken(f"it sent an answer of more than {MAX_TEXT:,} characters")
        if text:
            parts.append(text)

    def _tool(self, tool: Any) -> None:
        called = tool.get("function") if isinstance(tool, dict) else None
        index = count(tool.get("index", 0)) if isinstance(tool, dict) else None
        if not isinstance(called, dict) or index is None:
            raise Broken("it sent a tool call that is none")
        blank = {"id": "", "type": "function", "function": {"name": "", "arguments": []}}
        whole = self._tools.setdefault(index, blank)
        if len(self._tools) > MAX_TOOLS:
            raise Broken(f"it sent more than {MAX_TOOLS:,} tool calls")
        whole["id"] = _text(tool, "id") or whole["id"]
        whole["function"]["name"] = _text(called, "name") or whole["function"]["name"]
        self._keep(_text(called, "arguments"), whole["function"]["arguments"])

    def reply(self, node: str, request_id: str, sent_s: float, ended_s: float) -> Reply:
        """The reply; raises `Broken` if the stream ended before the answer did."""
        if self.finish_reason is None or self.first_s is None:
            raise Broken("the stream ended before the answer did")
        details = self._usage.get("prompt_tokens_details")
        details = details if isinstance(details, dict) else {}
        tokens = count(self._usage.get("completion_tokens"))
        for tool in self._tools.values():
            tool["function"]["arguments"] = "".join(tool["function"]["arguments"])
        return Reply(
            node=node,
            request_id=request_id,
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(self._tools[k] for k in sorted(self._tools)),
            finish_reason=self.finish_reason,
            prompt_tokens=count(self._usage.get("prompt_tokens")),
            completion_tokens=tokens,
            cached_tokens=count(details.get("cached_tokens")),
            created_cache_tokens=count(details.get("created_cache_tokens")),
            sent_s=sent_s,
            ttft_s=self.first_s - sent_s,
            tpot_s=(self._last_s - self.first_s) / (tokens - 1) if tokens and tokens > 1 else None,
            longest_gap_s=self._gap_s,
            total_s=ended_s - sent_s,
            server_ttft_s=_seconds(self._metrics.get("time_to_first_token_ms")),
            queue_s=_seconds(self._metrics.get("queue_time_ms")),
            token_ids=tuple(self._ids) if len(self._ids) == tokens else None,
        )


def _text(part: dict[str, Any], key: str) -> str:
    """A text that any file can hold: JSON may carry half a character (a surrogate)."""
    value = part.get(key)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _seconds(ms: Any) -> float | None:
    return ms / 1000 if isinstance(ms, int | float) and 0 <= ms < 1e12 else None
