"""Claude Code's transcripts: one JSON line per piece of an answer, per tool result, per message of a person.

Lines of one message id are one request, until a person or a tool result comes between; and even after that,
where the request id and the prompt are the same, as when tools start before the answer has ended. Sub-agents
(`isSidechain`) are sessions of their own, told apart by their chain of `parentUuid`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tao.traces.builder import Builder, Seen
from tao.traces.files import Source
from tao.traces.recording import Flag

TITLE = "Claude Code"
SUBAGENTS = frozenset(["Task", "Agent"])
_USAGE = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
# Before 2.1 only the first snapshot of the usage is written, with an output of a few tokens: estimated then.
CHARS_PER_TOKEN = 3.3  # ours, of English and code in tool calls, as LMCache's traces give too


def fits(row: Mapping[str, Any]) -> bool:
    """Whether a row is a line of such a transcript."""
    if "sessionId" not in row and "uuid" not in row and "leafUuid" not in row:
        return False
    kind = row.get("type")
    return isinstance(kind, str) and ("message" in row or kind in _SILENT)


_TYPES = (
    "summary, queue-operation, last-prompt, file-history-snapshot, system, progress, attachment, mode, "
    "custom-title, agent-name, permission-mode, pr-link, tag, ai-title, agent-setting"
)
_SILENT = frozenset(_TYPES.split(", "))  # of lines that are no message


@dataclass(slots=True)
class _Chain:
    """Where one conversation stands: its session, the answer being read, since when input has waited."""

    session: int
    turn: int = -1
    key: Any = None  # the message id
    request: Any = None
    prompt: int = -1
    cached: int = -1
    since: float = math.nan  # the moment of the last input
    open: bool = False  # nothing has come since the last line of the answer
    chars: int = 0  # of the answer
    said: int = -1  # output tokens that it reports
    ended: bool = False  # it reports why it stopped, and so its final usage
    compacted: bool = False


@dataclass
class _Reading:
    """All of a file: its conversations, by session and, for sub-agents, by the ids that lead to them."""

    into: Builder
    name: str  # of the session, where a line does not tell
    chains: dict[Any, _Chain] = field(default_factory=dict)
    of_line: dict[str, tuple[str, ...]] = field(default_factory=dict)  # uuid -> key of its sub-agent's chain
    calls: dict[str, int] = field(default_factory=dict)  # tool_use id -> call
    lines: Seen = field(default_factory=Seen)  # of this file, by their own ids
    told: array[int] = field(default_factory=lambda: array("q"))  # what tells their copies elsewhere


def read(source: Source, into: Builder) -> None:
    """All requests and tool calls of a transcript."""
    reading = _Reading(into, f"file {source.ledger.file}")
    for row in source.records():
        kind, message = row.get("type"), row.get("message")
        if kind not in ("user", "assistant") or not isinstance(message, dict):
            known = isinstance(kind, str) and (kind in _SILENT or kind in ("user", "assistant"))
            source.ledger.skip("lines without a message" if known else "lines of an unknown type")
            if kind == "system" and row.get("subtype") == "compact_boundary":
                _chain(reading, row).compacted = True
            else:
                _remember(reading, row)
            continue
        if _copied(row, message, reading):
            source.ledger.skip("lines that were read before (inherited history)")
            if chain := reading.chains.get(_remember(reading, row)):
                chain.since = math.nan  # what came before it was copied too
            continue
        chain = _chain(reading, row)
        at = into.moment(row.get("timestamp"))
        if kind == "user":
            _input(reading, chain, row, message, at)
        else:
            _answer(reading, chain, row, message, at)
    for chain in reading.chains.values():
        _close(into, chain)
    for key in reading.told:
        into.seen.add(key)


def _copied(row: Mapping[str, Any], message: Mapping[str, Any], reading: _Reading) -> bool:
    """Whether this line was read before: in this file by its own id, in another one by what it tells."""
    uuid, at, answer = row.get("uuid"), row.get("timestamp"), message.get("id")
    marks = row.get("requestId") if answer else None
    marks = marks or _marks(message, answer)
    try:
        own = hash((uuid, answer, marks, at))
        key = hash((answer, marks, at)) if marks and at is not None else own
    except TypeError:  # a damaged line
        return False
    named = isinstance(uuid, str)
    if ((named or key != own) and key in reading.into.seen) or (named and own in reading.lines):
        return True
    if named:
        reading.lines.add(own)
    reading.told.append(key)
    return False


def _marks(message: Mapping[str, Any], answer: Any) -> tuple[Any, ...]:
    """What tells a line apart where no request id does: the ids of results, or all that an answer tells."""
    content, usage = message.get("content"), message.get("usage")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    if not answer:
        return tuple(filter(None, (part.get("tool_use_id") for part in parts)))
    output = usage.get("output_tokens") if isinstance(usage, dict) else None
    return "answer", output, *(part.get("id") or part.get("text") for part in parts)


def _remember(reading: _Reading, row: Mapping[str, Any]) -> tuple[str, ...]:
    """The key of the conversation a line belongs to; a sub-agent's lines are told by the one before."""
    name = str(row.get("sessionId") or row.get("session_id") or reading.name)
    if row.get("isSidechain") is not True:
        return "main", name
    uuid, above, agent = row.get("uuid"), row.get("parentUuid"), row.get("agentId")
    key = reading.of_line.get(above) if isinstance(above, str) else None
    key = ("agent", name, str(agent)) if agent else key or ("sub", name, str(uuid))
    if isinstance(uuid, str):
        reading.of_line[uuid] = key
    return key


def _chain(reading: _Reading, row: Mapping[str, Any]) -> _Chain:
    """The conversation a line belongs to."""
    key = _remember(reading, row)
    found = reading.chains.get(key)
    if found is None:
        parent = -1
        if key[0] != "main":
            main = reading.chains.get(("main", key[1]))
            parent = main.session if main else reading.into.session(("claude", "main", key[1]))
        found = reading.chains[key] = _Chain(reading.into.session(("claude", *key), parent))
    return found


def _input(
    reading: _Reading, chain: _Chain, row: Mapping[str, Any], message: Mapping[str, Any], at: float
) -> None:
    into, content = reading.into, message.get("content")
    waits, chain.open = not chain.open, False
    chain.compacted = chain.compacted or row.get("isCompactSummary") is True
    # What the client adds of its own accord, such as a skill's text, is no later input than a result.
    if not math.isnan(at) and not (row.get("isMeta") is True and waits and not math.isnan(chain.since)):
        chain.since = at
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") == "tool_result":
            call = reading.calls.pop(str(part.get("tool_use_id")), None)
            if call is None:
                into.ledger.skip("tool results without a call")
            else:
                into.result(call, at, error=part.get("is_error") is True)


def _answer(
    reading: _Reading, chain: _Chain, row: Mapping[str, Any], message: Mapping[str, Any], at: float
) -> None:
    into, usage = reading.into, message.get("usage")
    if message.get("model") == "<synthetic>":
        into.ledger.skip("synthetic answers, which no model gave")
        return
    usage = usage if isinstance(usage, dict) else {}
    prompt, cached = _prompt(usage, into)
    if not _goes_on(chain, message.get("id"), row.get("requestId"), prompt):
        _close(into, chain)
        flags, chain.compacted = Flag.CTX_DROP if chain.compacted else 0, False
        chain.turn = into.turn(chain.session, prompt, None, cached, chain.since, at, flags=flags)
        chain.key, chain.request = message.get("id"), row.get("requestId")
        chain.prompt, chain.cached, chain.chars, chain.said, chain.ended = prompt, cached, 0, -1, False
    elif prompt > chain.prompt or cached > chain.cached:  # an answer's first line may tell less than the last
        chain.prompt, chain.cached = max(prompt, chain.prompt), max(cached, chain.cached)
        into.take(chain.turn, context=chain.prompt, cached=chain.cached)
    chain.open, chain.ended = True, chain.ended or message.get("stop_reason") is not None
    into.answered(chain.turn, None, at)
    chain.said = max(chain.said, into.tokens(usage.get("output_tokens")))
    content = message.get("content")
    chain.chars += len(content) if isinstance(content, str) else 0
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict):
            _part(reading, chain, part, at)


def _goes_on(chain: _Chain, key: Any, request: Any, prompt: int) -> bool:
    """Whether a line is a piece of the answer being read: after other input only where all its ids say so."""
    if chain.turn < 0 or key is None or chain.key != key:
        return False
    if not chain.open:
        told = prompt > 0 and chain.prompt > 0
        return request is not None and chain.request == request and (prompt == chain.prompt or not told)
    if chain.request is None:
        chain.request = request
    return request is None or chain.request == request


def _prompt(usage: Mapping[str, Any], into: Builder) -> tuple[int, int]:
    """Tokens of the whole prompt, and those of it that were cached; -1 where none is told."""
    prompt = tokens = -1
    for name in _USAGE:
        tokens = into.tokens(usage.get(name))
        if tokens >= 0:
            prompt = max(prompt, 0) + tokens
    return prompt, tokens


def _part(reading: _Reading, chain: _Chain, part: Mapping[str, Any], at: float) -> None:
    kind = part.get("type")
    if kind != "tool_use":
        text = part.get(kind) if isinstance(kind, str) else None  # "text" or "thinking"
        chain.chars += len(text) if isinstance(text, str) else 0
        return
    given = part.get("input")
    given = given if isinstance(given, dict) else {}
    chain.chars += sum(len(x) for x in given.values() if isinstance(x, str))
    call = reading.into.call(chain.turn, part.get("name"), given.get("command"), began=at)
    if given.get("run_in_background") is True:
        reading.into.flag(chain.turn, Flag.BACKGROUND)
    reading.calls[str(part.get("id"))] = call


def _close(into: Builder, chain: _Chain) -> None:
    """An answer is complete: its tokens, estimated (ours) where its last line cannot have been written."""
    if chain.turn < 0:
        return
    estimate = round(chain.chars / CHARS_PER_TOKEN)
    if chain.said < 0 or (not chain.ended and estimate > 2 * chain.said > 0):
        into.ledger.repair("outputs known by a first snapshot only, estimated from the length of the text")
        into.flag(chain.turn, Flag.OUTPUT_ESTIMATED)
        into.answered(chain.turn, estimate, math.nan)
    else:
        into.answered(chain.turn, chain.said, math.nan)
