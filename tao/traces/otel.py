"""OpenTelemetry spans of generative AI, as OTLP JSON: a document, or one per line as file exporters write.

Requests are `chat` spans and the like, tool calls `execute_tool` spans. What an agent or a tool within
another agent's run asks a model is a session of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tao.traces.builder import Builder
from tao.traces.files import Source, documents
from tao.traces.recording import Flag
from tao.traces.values import arguments, command, mapping, mappings, name

TITLE = "OpenTelemetry GenAI spans"
CONVENTION = "OpenTelemetry GenAI semantic conventions 0.1.0 (before: in semantic conventions 1.41)"
ATTRIBUTES: dict[str, tuple[str, ...]] = {  # the present name first, older ones after it
    "operation": ("gen_ai.operation.name", "llm.request.type"),
    "session": ("gen_ai.conversation.id", "session.id", "gen_ai.thread.id"),
    "input": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.usage.prompt_tokens"),
    "output": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens"),
    "cached": (
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_read_input_tokens",
        "gen_ai.usage.input_tokens.cached",
    ),
    "created": ("gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_creation_input_tokens"),
    "tool": ("gen_ai.tool.name",),
    "arguments": ("gen_ai.tool.call.arguments",),
}
REQUESTS = frozenset(["chat", "text_completion", "generate_content", "completion"])
TOOL, AGENT = "execute_tool", "invoke_agent"
_OURS = {key: name for name, keys in ATTRIBUTES.items() for key in keys}
_RANK = {key: rank for keys in ATTRIBUTES.values() for rank, key in enumerate(keys)}
_ERROR = (2, "STATUS_CODE_ERROR")
MAX_DEPTH = 100  # ours: of spans within spans, also where they form a ring


_Key = tuple[str | None, str]  # of a span: its trace's and its own id


class _Span(NamedTuple):
    """What is kept of a span; moments in nanoseconds, None where they are not told."""

    trace: str | None
    parent: str | None
    kind: str  # "request", TOOL, AGENT, or "" for any other
    began: int | None
    ended: int | None
    told: Mapping[str, Any]
    error: bool


def fits(row: Mapping[str, Any]) -> bool:
    """Whether a row or document holds spans."""
    return isinstance(row.get("resourceSpans"), list)


def read(source: Source, into: Builder) -> None:
    """All requests and tool calls, in order of their start."""
    spans: dict[_Key, _Span] = {}
    for document in documents(source):
        if not fits(document):
            source.ledger.skip("rows without spans")
        for row in _rows(document):
            span = _span(row, into)
            key = (span.trace, name(row.get("spanId")) or f"unnamed {len(spans)}")
            if hash(key) in into.seen:
                source.ledger.skip("spans that are copies of another one")
                continue
            into.seen.add(hash(key))
            spans[key] = span
    others = sum(not span.kind for span in spans.values())
    source.ledger.skip("spans that are neither a request nor a tool call", others)
    _Tree(spans, into).read()


def _rows(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for resource in mappings(document.get("resourceSpans")):
        scopes = resource.get("scopeSpans", resource.get("instrumentationLibrarySpans"))
        for scope in mappings(scopes):
            yield from mappings(scope.get("spans"))


def _span(row: Mapping[str, Any], into: Builder) -> _Span:
    told: dict[str, Any] = {}
    ranks: dict[str, int] = {}
    for attribute in mappings(row.get("attributes")):
        key = attribute.get("key")
        ours = _OURS.get(key) if isinstance(key, str) else None
        if ours is not None and _RANK[str(key)] <= ranks.get(ours, 99):
            told[ours], ranks[ours] = _value(attribute.get("value")), _RANK[str(key)]
    operation = told.get("operation")
    kind = operation if operation in (TOOL, AGENT) else ""
    kind = "request" if isinstance(operation, str) and operation in REQUESTS else kind
    times = [_nanoseconds(row.get(key), into) for key in ("startTimeUnixNano", "endTimeUnixNano")]
    error = mapping(row.get("status")).get("code") in _ERROR
    parent = name(row.get("parentSpanId"))
    return _Span(name(row.get("traceId")), parent, kind, times[0], times[1], told if kind else {}, error)


def _value(x: Any) -> Any:
    """The value of an attribute; whole numbers are texts in JSON."""
    value = mapping(x)
    whole = value.get("intValue")
    if isinstance(whole, str):
        try:
            return int(whole)
        except ValueError:
            return whole
    others = (whole, value.get("stringValue"), value.get("doubleValue"))
    return next((found for found in others if found is not None), None)


def _nanoseconds(x: Any, into: Builder) -> int | None:
    """A moment; 0 stands for none, and what is past 2^63 is a negative number that was wrapped around."""
    if isinstance(x, float) and x.is_integer():
        x = int(x)
    if isinstance(x, str):
        try:
            x = int(x)
        except ValueError:
            x = -1
    if isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 2**63:
        return x or None
    if x is not None:
        into.ledger.repair("time stamps that cannot be read, taken as unknown")
    return None


class _Tree:
    """The spans of a file as a tree: whose run each belongs to."""

    def __init__(self, spans: Mapping[_Key, _Span], into: Builder) -> None:
        self.spans, self.into = spans, into
        self.turns: dict[int, int] = {}  # the last request of each session
        self.rows: dict[_Key, int] = {}  # the row of each request
        self.counted: set[_Key] = set()  # requests whose tokens are known

    def read(self) -> None:
        """Requests and tool calls, a parent before what is in it."""
        order = sorted(self.spans, key=lambda key: self.spans[key].began or math.inf)
        for key in order:
            span = self.spans[key]
            above = self.above(span)
            around = next((k for k in above if self.spans[k].kind), None)
            if span.kind in ("request", TOOL) and around is not None and self.spans[around].kind == span.kind:
                self.into.ledger.skip("spans inside a span of the same request or tool call")
                if span.kind == "request":
                    self.usage(around, span)
            elif span.kind == "request":
                self.request(key, span, above)
            elif span.kind == TOOL:
                self.tool(span, above)

    def above(self, span: _Span) -> list[_Key]:
        """The spans around a span, the nearest first."""
        found: list[_Key] = []
        while span.parent is not None and len(found) < MAX_DEPTH:
            key = (span.trace, span.parent)
            if key not in self.spans:
                break
            found.append(key)
            span = self.spans[key]
        return found

    def session(self, span: _Span, above: list[_Key]) -> int:
        """The session that a span belongs to: that of the agent or tool it runs in, else the conversation."""
        inside = [key for key in above if self.spans[key].kind in (TOOL, AGENT)]
        if inside and self.spans[inside[-1]].kind == AGENT:
            inside.pop()  # the outermost agent is the conversation
        chain = [span, *(self.spans[key] for key in above)]
        said = next((found for s in reversed(chain) if (found := name(s.told.get("session")))), None)
        number = self.into.session(("otel", said or span.trace))
        for key in reversed(inside):
            number = self.into.session(("otel", *key), number)
        return number

    def request(self, key: _Key, span: _Span, above: list[_Key]) -> None:
        began, ended, seconds = _times(span)
        session = self.session(span, above)
        flags = Flag.ERROR if span.error else 0
        order = -1.0 if math.isnan(began) else began
        self.rows[key] = self.into.turn(session, None, None, None, began, ended, order=order, flags=flags)
        self.into.take(self.rows[key], llm=seconds)
        self.turns[session] = self.rows[key]
        self.usage(key, span)

    def usage(self, key: _Key, span: _Span) -> None:
        """The tokens of a request, where they are not known yet."""
        if key not in self.rows or key in self.counted:
            return
        tokens = {
            name: self.into.tokens(span.told.get(name)) for name in ("input", "output", "cached", "created")
        }
        if tokens["input"] < 0 and tokens["output"] < 0:
            return
        self.counted.add(key)
        beside = max(0, tokens["cached"]) + max(0, tokens["created"])
        if 0 <= tokens["input"] < beside:
            self.into.ledger.repair("prompts told without their cached tokens: added")
            tokens["input"] += beside
        self.into.take(
            self.rows[key], context=tokens["input"], output=tokens["output"], cached=tokens["cached"]
        )

    def tool(self, span: _Span, above: list[_Key]) -> None:
        turn = self.turns.get(self.session(span, above))
        if turn is None:
            self.into.ledger.skip("tool calls before any request of their session")
            return
        began, ended, seconds = _times(span)
        text = command(arguments(span.told.get("arguments")))
        call = self.into.call(turn, span.told.get("tool"), text, began=began, seconds=seconds)
        if not math.isnan(ended):
            self.into.result(call, ended, span.error)


def _times(span: _Span) -> tuple[float, float, float]:
    """When a span began and ended, and its length, which may be negative (s)."""
    began = math.nan if span.began is None else span.began * 1e-9
    ended = math.nan if span.ended is None else span.ended * 1e-9
    if span.began is None or span.ended is None:
        return began, ended, math.nan
    return began, max(began, ended), (span.ended - span.began) * 1e-9
