"""WEKA's and AgentX's sessions of a proxy before Claude Code: a JSON document each, with hashes of KV blocks.

A request's `think_time` runs from the end of the request before it of which an end is known. The prompts say
where they differ: what two requests have in common is told by their leading blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from tao.traces.builder import Builder
from tao.traces.derive import CLOCK_STEP_S, plain
from tao.traces.files import Source, numbers
from tao.traces.recording import Flag

TITLE = "WEKA / AgentX sessions"
DEPTH = 16  # ours: of sub-agents that start sub-agents; none was seen to start one


class _Request(NamedTuple):
    """A request as it was taken over."""

    turn: int
    at: float
    prompt: int
    blocks: list[int]  # of its prompt; none where they do not fit its length
    stop: Any
    ended: float  # when its answer did
    call: int = -1  # of a sub-agent that was started after it


class _Place(NamedTuple):
    """What the requests of one agent have in common."""

    key: tuple[Any, ...]
    session: int
    block: int
    since: float = 0.0  # when its parent started it
    depth: int = 0


def fits(row: Mapping[str, Any]) -> bool:
    """Whether a document is such a session."""
    return isinstance(row.get("requests"), list) and ("block_size" in row or "tool_tokens" in row)


def read(source: Source, into: Builder) -> None:
    """All requests of a session, and of the sub-agents in it as sessions of their own."""
    found, block = source.document(), source.document().get("block_size")
    name = found.get("id")
    key = ("weka", name if isinstance(name, str) else source.ledger.file)
    place = _Place(key, into.session(key), max(0, into.tokens(block)))
    _agent(source, into, found["requests"], place)


def _agent(source: Source, into: Builder, entries: list[Any], place: _Place) -> None:
    before: _Request | None = None
    for at, late, entry in _entries(source, into, entries, place):
        if entry.get("type") == "subagent":
            inside, name = entry.get("requests"), plain(entry.get("agent_id"))
            key = (*place.key, at if name is None else name)
            if place.depth == DEPTH:
                source.ledger.skip(f"sub-agents more than {DEPTH} deep")
                continue
            if before is not None:
                before = before._replace(call=_started(into, before, entry))
            child = _Place(key, into.session(key, place.session), place.block, at, place.depth + 1)
            _agent(source, into, inside if isinstance(inside, list) else [], child)
            continue
        request = _request(into, entry, before, place, at, late)
        if before is not None:
            _wait(into, before, entry, request.at)
        before = request
    if before is not None and before.stop == "tool_use" and before.call < 0:
        into.call(before.turn, "tool")


def _entries(
    source: Source, into: Builder, entries: list[Any], place: _Place
) -> list[tuple[float, bool, Mapping[str, Any]]]:
    """(when, whether it stood elsewhere, entry) in order of time.

    A streamed request that was sent again without streaming is one.
    """
    known: list[tuple[float, bool, Mapping[str, Any]]] = []
    order, latest = list[float](), -math.inf
    for entry in entries:
        source.ledger.rows += 1
        if not isinstance(entry, dict) or not ("in" in entry or entry.get("type") == "subagent"):
            source.ledger.skip("entries that are no request")
            continue
        if "in" in entry and _copied(into, entry, place):
            source.ledger.skip("requests that are copies from another place")
            continue
        last = known[-1][2] if known else {}
        if _again(last, entry):
            source.ledger.skip("requests sent again without streaming, taken as one with the first")
            at, later = _number(last.get("t")), _number(entry.get("t"))
            spent = later - at + _number(entry.get("api_time"))
            first = {name: last.get(name) for name in ("t", "think_time", "input_types")}
            spent_s = None if math.isnan(spent) else spent
            known[-1] = (*known[-1][:2], {**entry, **first, "api_time": spent_s})
            continue
        at = _at(into, entry, place)
        known.append((at, at < latest - CLOCK_STEP_S, entry))
        latest = latest if math.isnan(at) else max(latest, at)
        order.append(latest if math.isnan(at) else at)
    return [known[k] for k in sorted(range(len(known)), key=order.__getitem__)]


def _copied(into: Builder, entry: Mapping[str, Any], place: _Place) -> bool:
    """Whether the request was read before, in a copy of the file or of the line."""
    if not isinstance(place.key[1], str):
        return False
    named = (entry.get(name) for name in ("t", "type", "in", "out", "model"))
    return into.copied(hash(place.key), *named)


def _again(last: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    if last.get("type") != "s" or entry.get("type") != "n" or entry.get("input_types"):
        return False
    first, again = numbers(last.get("hash_ids")), numbers(entry.get("hash_ids"))
    return plain(last.get("in")) == plain(entry.get("in")) and first == again != []


def _number(x: Any) -> float:
    return float(x) if isinstance(x, int | float) and -1e30 < x < 1e30 else math.nan


def _at(into: Builder, entry: Mapping[str, Any], place: _Place) -> float:
    """When it began; the clock of a sub-agent may begin with it."""
    at = into.moment(entry.get("t"))
    return at + place.since if at < place.since else at


def _request(
    into: Builder, entry: Mapping[str, Any], before: _Request | None, place: _Place, at: float, late: bool
) -> _Request:
    api = into.seconds(entry.get("api_time"))
    prompt, blocks = into.tokens(entry.get("in")), numbers(entry.get("hash_ids"))
    if prompt < 0 or place.block <= 0 or abs(len(blocks) - prompt // place.block) > 1:
        into.ledger.repair("hash blocks that do not fit the prompt's length, left aside", len(blocks) > 0)
        blocks = []
    prefix = None  # the prompt goes on where the one before ended, as far as blocks can tell
    if before is not None and before.blocks and blocks:
        pairs = zip(before.blocks, blocks, strict=False)
        same = next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(before.blocks), len(blocks)))
        if same < before.prompt // place.block:
            prefix = same * place.block
    flags = Flag.OUT_OF_ORDER if late else 0
    turn = into.turn(place.session, prompt, entry.get("out"), began=at, prefix=prefix, flags=flags)
    into.take(turn, llm=api)
    return _Request(turn, at, prompt, blocks, entry.get("stop"), at + api)


def _wait(into: Builder, before: _Request, entry: Mapping[str, Any], at: float) -> None:
    """What passed between two requests: tools, where the second brings their results, else a person."""
    given, think = entry.get("input_types"), entry.get("think_time")
    think = at - before.ended if think is None else think
    results = isinstance(given, list) and "tool_result" in given
    if results and before.stop in ("tool_use", "", None):
        waited = math.nan if math.isnan(before.ended) else into.seconds(think, before.turn)
        into.take(before.turn, tool=waited)
        call = into.call(before.turn, "tool", seconds=waited) if before.call < 0 else before.call
        into.result(call, at)
        return
    if before.stop == "tool_use" and before.call < 0:
        into.call(before.turn, "tool")  # no result came
    gap = at - before.at
    if math.isnan(before.ended) and gap >= 0:
        into.ledger.repair("waits for a person that begin with an answer whose end is not known")
        think = gap
    into.take(before.turn, human=think)


def _started(into: Builder, before: _Request, entry: Mapping[str, Any]) -> int:
    """A sub-agent was started: a call of that length, where it was waited for."""
    lasted = entry.get("duration_ms")
    seconds = lasted if lasted is None or math.isnan(_number(lasted)) else _number(lasted) / 1000
    if entry.get("status") == "async_launched":
        into.flag(before.turn, Flag.BACKGROUND)
    return into.call(before.turn, "Task", seconds=seconds, kind="subagent")
