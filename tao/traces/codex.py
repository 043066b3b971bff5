"""Codex's rollouts: a JSON line per item of an answer, tool result and event, with running totals of tokens.

An answer is what stands between two inputs; the token count that follows it is its request. A sub-agent's or
forked session's file begins with a copy of its parent's, stamped anew: it is skipped up to the task that the
session itself started.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tao.traces.builder import Builder
from tao.traces.files import Source, objects
from tao.traces.recording import Flag
from tao.traces.report import Ledger
from tao.traces.values import arguments, command, mapping, mappings, name, scaled

TITLE = "Codex rollout"
_TYPES = frozenset(["session_meta", "response_item", "event_msg", "turn_context", "compacted"])
_ITEMS = frozenset(["message", "reasoning", "agent_message"])  # of an answer, but for its calls
_SILENT = (
    "turn_context",
    "task_complete",
    "turn_complete",
    "agent_message",
    "turn_aborted",
    "item_completed",
)
_TOKENS = ("input_tokens", "output_tokens", "cached_input_tokens")
_WALL = re.compile(r"Wall time: (\d{1,15}(?:\.\d{0,15})?) seconds")
_EXIT = re.compile(r"(?:exited with code |Exit code: |\"exit_code\": ?)(-?\d+)")
_RUNNING = "Process running with session ID"
_HEAD = 2_000  # characters of a result in which its times are told
COPYING_S = 1.0  # ours: a copy of a parent's history is written at once, an answer takes longer


def fits(row: Mapping[str, Any]) -> bool:
    """Whether a row is a line of a rollout."""
    kind = row.get("type")
    return isinstance(kind, str) and kind in _TYPES and isinstance(row.get("payload"), dict)


@dataclass
class _Reading:
    """Where a session stands."""

    into: Builder
    key: Any
    session: int = -1
    turn: int = -1  # the answer being read, or read last
    open: bool = False  # nothing has come since its last item
    counted: bool = True  # its tokens are known
    since: float = math.nan  # the moment of the last input
    totals: tuple[Any, ...] | None = None
    compacted: bool = False
    calls: dict[str, tuple[int, int]] = field(default_factory=dict)  # by id: call, turn

    def begin(self, at: float) -> None:
        """A request whose answer came at that moment."""
        flags, self.compacted = Flag.CTX_DROP if self.compacted else 0, False
        self.turn = self.into.turn(self.session, None, None, None, self.since, at, flags=flags)
        self.open, self.counted = True, False

    def item(self, at: float) -> None:
        """A piece of an answer."""
        if not self.open or self.counted:
            self.begin(at)
        self.into.answered(self.turn, None, at)


def read(source: Source, into: Builder) -> None:
    """All requests and tool calls of a rollout, or of several in one file."""
    reading = _Reading(into, ("codex", "file", source.ledger.file))
    first, own = True, 0
    for row in source.records():
        kind, payload = row.get("type"), row.get("payload")
        if not fits(row) or not isinstance(payload, dict):
            source.ledger.skip("lines of an unknown type")
            continue
        if kind == "session_meta":
            key = ("codex", name(payload.get("id")) or source.ledger.file)
            parent = _parent(payload)
            if first:
                again = hash(key) in into.seen
                own = _own_from(source, payload, parent, into) if parent or again else 0
            elif key == reading.key or source.ledger.line < own:
                source.ledger.skip("lines on a session that repeat or are copied")
                continue
            first = False
            into.seen.add(hash(key))
            above = into.session(("codex", parent)) if parent and ("codex", parent) != key else -1
            reading = _Reading(into, key, into.session(key, above))
            continue
        if reading.session < 0:
            reading.session = into.session(reading.key)
        what, at = payload.get("type"), into.moment(row.get("timestamp"))
        copied = source.ledger.line < own
        if what == "token_count":
            _count(reading, payload, at, copied)
        elif copied:
            source.ledger.skip("lines that are copies of another session's or file's (inherited history)")
        elif kind == "response_item":
            _item(reading, payload, what, at)
        else:
            _event(reading, kind, what, at)


def _parent(payload: Mapping[str, Any]) -> str | None:
    """The session that started this one."""
    subagent = mapping(mapping(payload.get("source")).get("subagent"))
    spawned = mapping(subagent.get("thread_spawn")).get("parent_thread_id")
    return name(spawned) or name(payload.get("forked_from_id")) or name(payload.get("parent_thread_id"))


def _own_from(source: Source, payload: Mapping[str, Any], parent: str | None, into: Builder) -> int:
    """The line at which a session's own history begins, 0 if all of it is.

    Before it stand copies: of token counts that other files have for this session or its parent, and all
    up to a child's own task. That is the first one whose id (a UUID of version 7) is as new as the session,
    or the first one after all token counts that were written at once.
    """
    identity, known = name(payload.get("id")), -1
    tasks: list[tuple[int, Any]] = []
    counts, began, quiet = 0, math.nan, 0
    clock = Builder(Ledger())  # whose repairs nobody counts: lines are read again
    for line, row in _signposts(source):
        inner = mapping(row.get("payload"))
        at = clock.moment(row.get("timestamp"))
        began = at if math.isnan(began) else began
        if row.get("type") == "session_meta":
            continue
        if inner.get("type") == "token_count":
            totals = _totals(inner)  # they grow, and so tell one count from another
            if totals is not None:
                read_before = any(hash((key, totals)) in into.seen for key in (identity, parent))
                known = line if read_before else known
            counts = line if at <= began + COPYING_S else counts
        else:
            tasks.append((line, inner.get("turn_id")))
        quiet = line if at <= began + COPYING_S else quiet
    if parent is None:
        return known + 1
    created = into.moment(payload.get("timestamp"))
    newer = [line for line, task in tasks if _uuid_moment(task) >= created - COPYING_S]
    later = [line for line, _ in tasks if line > counts]
    return max(known + 1, (newer or later or [quiet + 1])[0])


def _signposts(source: Source) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The lines on sessions, tasks and tokens, by number."""
    quiet = Source(source.path, Ledger(), source.limits)
    for line in quiet.lines():
        if b'"token_count"' in line or b'"task_started"' in line or b'"session_meta"' in line:
            for row in objects(line, Ledger()):
                kind = mapping(row.get("payload")).get("type")
                if kind in ("token_count", "task_started") or row.get("type") == "session_meta":
                    yield quiet.ledger.line, row


def _uuid_moment(x: Any) -> float:
    """The moment in a UUID of version 7, nan in any other text."""
    try:
        plain = x.replace("-", "")
        found = int(plain[:12], 16) / 1000 if len(plain) == 32 and plain[12] == "7" else math.nan
        return found if found < 1e10 else math.nan
    except (AttributeError, TypeError, ValueError):
        return math.nan


def _totals(payload: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The running totals in a token count, without what is no number."""
    total = mapping(mapping(payload.get("info")).get("total_token_usage"))
    found = tuple(x if isinstance(x := total.get(key), int | float) else None for key in _TOKENS)
    return found if found[0] is not None else None


def _count(reading: _Reading, payload: Mapping[str, Any], at: float, copied: bool) -> None:
    """A token count: of the answer before it, or of a request that left nothing else in the log."""
    into, totals, before = reading.into, _totals(payload), reading.totals
    last = mapping(mapping(payload.get("info")).get("last_token_usage"))
    if totals is None and not last:
        into.ledger.skip("token counts without tokens (rate limits only)")
        return
    repeated = totals is not None and totals == before
    reading.totals = totals or before
    if totals is not None:
        into.seen.add(hash((reading.key[-1], totals)))
    if copied or repeated:
        into.ledger.skip(
            "lines that are copies of another session's or file's (inherited history)"
            if copied
            else "token counts that repeat the one before"
        )
        return
    used = [last.get(key) for key in _TOKENS]
    if not last and totals is not None:
        into.ledger.repair("tokens of a request, taken from the growth of the totals")
        used = _growth(into, totals, before)
    if reading.turn < 0 or reading.counted:
        reading.begin(at)
        reading.open = False
    into.take(reading.turn, context=used[0], output=used[1], cached=used[2])
    reading.counted = True


def _growth(into: Builder, totals: tuple[Any, ...], before: tuple[Any, ...] | None) -> list[Any]:
    """What was added to the totals; all of it where they have fallen, since the count began anew."""
    now = [into.tokens(x) for x in totals]
    then = [x if isinstance(x, int) and x > 0 else 0 for x in before or (0, 0, 0)]
    if now[0] < then[0]:
        into.ledger.repair("totals that fell: counted anew from there")
        then = [0, 0, 0]
    return [n - t if n >= t else None for n, t in zip(now, then, strict=True)]


def _item(reading: _Reading, payload: Mapping[str, Any], what: Any, at: float) -> None:
    into, kind = reading.into, what if isinstance(what, str) else ""
    mine = kind in _ITEMS and payload.get("role") in (None, "assistant")
    if mine or kind == "web_search_call" or (kind.endswith("_call") and "call_id" not in payload):
        reading.item(at)
        if kind not in _ITEMS:
            into.ledger.skip("searches and the like that the provider ran within its answer")
    elif kind.endswith("_call"):
        reading.item(at)
        _call(reading, payload, at)
    elif kind.endswith("_output"):
        reading.open = False
        reading.since = reading.since if math.isnan(at) else at
        call = reading.calls.pop(str(name(payload.get("call_id"))), None)
        if call is None:
            into.ledger.skip("tool results without a call")
            return
        text, error, seconds = _result(payload.get("output"))
        into.result(call[0], at, error, seconds)
        if _RUNNING in text:
            into.flag(call[1], Flag.BACKGROUND)
    elif kind == "message":
        _input(reading, at)
    else:
        into.ledger.skip("items of an unknown type")


def _call(reading: _Reading, payload: Mapping[str, Any], at: float) -> None:
    tool = payload.get("name") or str(payload.get("type")).removesuffix("_call")
    given = arguments(payload.get("arguments")) or mapping(payload.get("action"))
    asked = None
    if tool == "write_stdin" and not given.get("chars"):  # to wait and look, not to type
        asked = scaled(given.get("yield_time_ms"), 1e-3)
    key = name(payload.get("call_id"))
    if key is not None and key in reading.calls:
        reading.into.ledger.skip("tool calls told twice")
        return
    call = reading.into.call(reading.turn, tool, command(given), began=at, asked=asked)
    if key is not None:
        reading.calls[key] = call, reading.turn


def _result(output: Any) -> tuple[str, bool, Any]:
    """The beginning of a tool's result, whether it failed, and the seconds that it tells itself."""
    inner = mapping(output)
    if inner:
        output = inner.get("content", inner.get("output"))
    # An older shell's result is a JSON object, whose text, however long, stands before its times.
    told = arguments(output) if isinstance(output, str) and '"metadata"' in output else inner
    times = mapping(told.get("metadata"))
    output = told.get("output") if times else output
    parts = [part.get("text") for part in mappings(output)] if isinstance(output, list) else [output]
    text = "\n".join(part[:_HEAD] for part in parts if isinstance(part, str))
    wall, code = _WALL.search(text), _EXIT.search(text)
    failed = times["exit_code"] not in (0, None) if "exit_code" in times else code and code[1].strip("-0")
    seconds = times.get("duration_seconds", float(wall[1]) if wall else None)
    return text, inner.get("success") is False or bool(failed), seconds


def _input(reading: _Reading, at: float) -> None:
    reading.open = False
    if not math.isnan(at):
        reading.since = at


def _event(reading: _Reading, kind: Any, what: Any, at: float) -> None:
    if kind == "compacted" or what == "context_compacted":
        reading.compacted = True
    elif what == "user_message":
        _input(reading, at)
    elif kind not in _SILENT and what not in _SILENT and what != "task_started":
        reading.into.ledger.skip("events of an unknown type")
