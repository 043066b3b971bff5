"""OpenTelemetry spans of generative AI, as OTLP JSON: a document, or one per line as file exporters write.

Requests are `chat` spans and the like, tool calls `execute_tool` spans. What an agent or a tool within
another agent's run asks a model is a session of its own. Exporters write a span when it ends, so that what
is around it stands later, in another file even: all are kept, in a few bytes each, until the last is read.
"""

from __future__ import annotations

import math
from array import array
from collections import namedtuple
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tao.traces.builder import Asked, Builder
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
OTHER, REQUEST, TOOL, AGENT, COPY, GUESS = range(6)  # kinds; a guess is a request by its tokens alone
OPERATIONS = {
    **dict.fromkeys(("chat", "text_completion", "generate_content", "completion"), REQUEST),
    "execute_tool": TOOL,
    "invoke_agent": AGENT,
}
_OURS = {key: name for name, keys in ATTRIBUTES.items() for key in keys}
_PRESENT = {keys[0] for keys in ATTRIBUTES.values()}
_ERROR = (2, "STATUS_CODE_ERROR")
_SKIPPED = {
    OTHER: "spans that are neither a request nor a tool call",
    COPY: "spans that are copies of another one",
}
CHUNK = 4_096  # ours: spans at a time, as logs are long
MAX_DEPTH = 100  # ours: of spans within spans, also where they form a ring


def fits(row: Mapping[str, Any]) -> bool:
    """Whether a row or document holds spans."""
    return isinstance(row.get("resourceSpans"), list)


def read(source: Source, into: Builder) -> None:
    """All requests and tool calls, in order of their start."""
    spans: _Spans = into.across(_finish).setdefault("spans", _Spans(into))
    spans.files.append((len(spans.kind), source.ledger.file))
    for document in documents(source):
        if not fits(document):
            source.ledger.skip("rows without spans")
        for resource in mappings(document.get("resourceSpans")):
            for scope in mappings(resource.get("scopeSpans", resource.get("instrumentationLibrarySpans"))):
                for row in mappings(scope.get("spans")):
                    spans.take(row)


def _told(attributes: Any) -> dict[str, Any]:
    """The attributes that we know, by our names; a present name prevails over older ones."""
    try:
        known = [(a["key"], a["value"]) for a in attributes or () if a["key"] in _OURS]
    except (KeyError, TypeError):
        pairs = [(a.get("key"), a.get("value")) for a in mappings(attributes)]
        known = [(key, value) for key, value in pairs if isinstance(key, str) and key in _OURS]
    told: dict[str, Any] = {}
    for key, value in known:
        if type(value) is dict:
            found = value.get("intValue")  # a text, in JSON
            if found is None:
                found = value.get("stringValue", value.get("doubleValue"))
            ours = _OURS[key]
            if found is not None and (key in _PRESENT or ours not in told):
                told[ours] = found
    return told


def _count(x: Any) -> Any:
    return int(x) if type(x) is str and len(x) < 20 and x.isdecimal() else x


def _nanoseconds(x: Any, into: Builder) -> int:
    """A moment; 0 stands for none, and what is past 2^63 is a negative number that was wrapped around."""
    x = int(x) if isinstance(x, float) and x.is_integer() else _count(x)
    if type(x) is int and 0 <= x < 2**63:
        return x
    if x is not None:
        into.ledger.repair("time stamps that cannot be read, taken as unknown")
    return 0


_Span = namedtuple("_Span", "number kind error more began ended seconds file")  # times in s, nan for unknown


def _finish(into: Builder, kept: Mapping[str, _Spans]) -> None:
    kept["spans"].finish()


class _Spans:
    """The spans of all files as columns, and in the end as a tree: whose run each belongs to."""

    def __init__(self, into: Builder) -> None:
        self.into = into
        self.files: list[tuple[int, int]] = []  # the first span of each file
        self.key, self.above, self.trace = (array("q") for _ in range(3))  # hashes; above: 0 for none
        self.began, self.ended = array("q"), array("q")  # nanoseconds, 0 for unknown
        self.kind, self.error = array("b"), array("b")
        self.talk = array("i")  # the number of its conversation, -1 where it names none
        self.more = array("i")  # of a request the place of its tokens, of a tool call the number of its kind
        self.tokens = array("i")  # of requests: prompt, output, cached
        self.talks: dict[str, int] = {}
        self.only: dict[int, int] = {}  # by trace: the one conversation that is named in it, -1 for several
        self.calls: dict[Asked, int] = {}
        self.turns: dict[int, int] = {}  # the last request of each session
        self.open: dict[int, int] = {}  # requests without tokens, and their rows
        self.inside: dict[int, int] = {}  # the session of what runs in a tool, or in an agent in another

    def take(self, row: Mapping[str, Any]) -> None:
        """A span as it stands in the log."""
        into, told = self.into, _told(row.get("attributes"))
        trace, own, above = name(row.get("traceId")), name(row.get("spanId")), name(row.get("parentSpanId"))
        operation, talk, more = told.get("operation"), None, -1
        kind = OPERATIONS.get(operation, OTHER) if type(operation) is str else OTHER
        if operation is None and ("input" in told or "output" in told):
            kind = GUESS
        if kind != OTHER:
            talk = name(told.get("session"))
        if kind == TOOL:
            call = into.asked(told.get("tool"), command(arguments(told.get("arguments"))))
            more = self.calls.setdefault(call, len(self.calls))
        elif kind in (REQUEST, GUESS):
            more = self._usage(told)
        self.key.append(hash((trace, own or f"unnamed {len(self.key)}")))
        self.above.append(0 if above is None else hash((trace, above)))
        self.trace.append(hash(trace))
        self.began.append(_nanoseconds(row.get("startTimeUnixNano"), into) if kind else 0)
        self.ended.append(_nanoseconds(row.get("endTimeUnixNano"), into) if kind else 0)
        self.kind.append(kind)
        self.error.append(mapping(row.get("status")).get("code") in _ERROR)
        self.talk.append(-1 if talk is None else self.talks.setdefault(talk, len(self.talks)))
        self.more.append(more)

    def _usage(self, told: Mapping[str, Any]) -> int:
        """The place of its tokens, -1 where it tells none."""
        into = self.into
        prompt, output = into.tokens(_count(told.get("input"))), into.tokens(_count(told.get("output")))
        cached = created = -1
        if "cached" in told or "created" in told:
            cached = into.tokens(_count(told.get("cached")))
            created = into.tokens(_count(told.get("created")))
        if prompt < 0 and output < 0:
            return -1
        beside = max(0, cached) + max(0, created)
        if 0 <= prompt < beside:
            into.ledger.repair("prompts told without their cached tokens: added")
            prompt = into.tokens(prompt + beside)
        self.tokens.extend((prompt, output, cached))
        return len(self.tokens) - 3

    def finish(self) -> None:
        """Requests and tool calls in order of their start."""
        self.parents, self.asked, self.said = self._parents(), list(self.calls), list(self.talks)
        for trace, talk in zip(self.trace, self.talk, strict=True):
            if talk >= 0:
                self.only[trace] = talk if self.only.get(trace, talk) == talk else -1
        self._settle()
        inner: list[tuple[int, int]] = []
        for span in self._in_order():
            self.into.ledger.file = span.file
            if span.kind in _SKIPPED:
                self.into.ledger.skip(_SKIPPED[span.kind])
                continue
            above = self._above(span.number) if self.parents[span.number] >= 0 else []
            around = next((k for k in above if self.kind[k] != OTHER), -1) if above else -1
            if span.kind != AGENT and around >= 0 and self.kind[around] == span.kind:
                self.into.ledger.skip("spans inside a span of the same request or tool call")
                if span.kind == REQUEST and span.more >= 0 > self.more[around]:
                    inner.append((around, span.more))
            elif span.kind == REQUEST:
                self._request(span, self._session(span.number, above))
            elif span.kind == TOOL:
                self._tool(span, self._session(span.number, above))
        for around, at in inner:
            if around in self.open:
                context, output, cached = self.tokens[at : at + 3]
                self.into.take(self.open.pop(around), context=context, output=output, cached=cached)

    def _in_order(self) -> Iterator[_Span]:
        """All spans by their start; what starts at no known moment comes last."""
        began, ended = np.asarray(self.began), np.asarray(self.ended)
        order = np.argsort(np.where(began == 0, np.iinfo(np.int64).max, began), kind="stable")
        starts, files = np.array(self.files).T
        for start in range(0, len(order), CHUNK):
            k = order[start : start + CHUNK]
            since, until = began[k], ended[k]
            columns = (
                k, *(np.asarray(column)[k] for column in (self.kind, self.error, self.more)),
                np.where(since > 0, since * 1e-9, np.nan),
                np.where(until > 0, np.maximum(since, until) * 1e-9, np.nan),
                np.where((since > 0) & (until > 0), (until - since) * 1e-9, np.nan),
                files[np.searchsorted(starts, k, side="right") - 1],
            )  # fmt: skip
            yield from map(_Span._make, zip(*(column.tolist() for column in columns), strict=True))

    def _parents(self) -> array[int]:
        """The span around each one, -1 for none; marks those that are there twice."""
        keys, above = np.asarray(self.key), np.asarray(self.above)
        order = np.argsort(keys, kind="stable")
        np.asarray(self.kind)[order[1:][keys[order[1:]] == keys[order[:-1]]]] = COPY
        found = order[np.minimum(np.searchsorted(keys, above, sorter=order), max(0, len(keys) - 1))]
        found[(keys[found] != above) | (above == 0) | (found == np.arange(len(found)))] = -1
        self.key = self.above = array("q")  # no more needed, and large
        return array("i", found.astype(np.int32).tobytes())

    def _above(self, k: int) -> list[int]:
        """The spans around a span, the nearest first."""
        found: list[int] = []
        while (k := self.parents[k]) >= 0 and len(found) < MAX_DEPTH:
            found.append(k)
        return found

    def _settle(self) -> None:
        """A span with tokens and no operation is a request, unless a request is in it: then it sums up."""
        if GUESS in self.kind:
            requests = (k for k, kind in enumerate(self.kind) if kind in (REQUEST, GUESS))
            sums = {around for k in requests for around in self._above(k) if self.kind[around] == GUESS}
            for k, kind in enumerate(self.kind):
                if kind == GUESS:
                    self.kind[k] = OTHER if k in sums else REQUEST

    def _request(self, span: _Span, session: int) -> None:
        at, flags = span.more, Flag.ERROR if span.error else 0
        context, output, cached = self.tokens[at : at + 3] if at >= 0 else (None, None, None)
        order = -1.0 if math.isnan(span.began) else span.began
        moments = span.began, span.ended
        row = self.into.turn(session, context, output, cached, *moments, order=order, flags=flags)
        self.into.take(row, llm=span.seconds)
        self.turns[session] = row
        if at < 0:
            self.open[span.number] = row

    def _tool(self, span: _Span, session: int) -> None:
        turn = self.turns.get(session)
        if turn is None:
            self.into.ledger.skip("tool calls before any request of their session")
            return
        tool, kind, sleep_s, background = self.asked[span.more]
        call = self.into.call(turn, tool, kind=kind, asked=sleep_s, began=span.began, seconds=span.seconds)
        self.into.flag(turn, Flag.BACKGROUND if background else 0)
        if not math.isnan(span.ended):
            self.into.result(call, span.ended, bool(span.error))

    def _session(self, k: int, above: list[int]) -> int:
        """The session that a span belongs to: that of the agent or tool it runs in, else the conversation."""
        inside = [a for a in above if self.kind[a] in (TOOL, AGENT)] if above else []
        if inside and self.kind[inside[-1]] == AGENT:
            inside.pop()  # the outermost agent is the conversation
        if inside and inside[0] in self.inside:
            return self.inside[inside[0]]
        talk = self.talk[k]
        for a in above:
            talk = self.talk[a] if self.talk[a] >= 0 else talk
        talk = self.only.get(self.trace[k], -1) if talk < 0 else talk
        number = self.into.session(("otel", self.said[talk] if talk >= 0 else self.trace[k]))
        for a in reversed(inside):
            number = self.inside[a] = self.into.session(("otel", "in", a), number)
        return number
