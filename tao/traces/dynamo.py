"""Dynamo's agent traces (`dynamo.agent.trace.v1`): events of requests and tools, a JSON line each."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tao.traces.builder import Builder
from tao.traces.derive import DROP
from tao.traces.files import Source
from tao.traces.recording import Flag
from tao.traces.values import mapping, mappings, name, scaled

TITLE = "Dynamo agent trace"
_SCHEMA = "dynamo.agent.trace"
_TOOL_EVENTS = ("tool_start", "tool_end", "tool_error")
_FAILED = ("failed", "error", "timeout", "cancelled")


def fits(row: Mapping[str, Any]) -> bool:
    """Whether a row is an event of such a trace."""
    event = mapping(row.get("event")) or row
    schema = event.get("schema")
    return isinstance(schema, str) and schema.startswith(_SCHEMA)


@dataclass(slots=True)
class _Tool:
    """A tool call, from whichever of its events are there."""

    called: Any = None
    began: float = math.nan
    ended: float = math.nan
    seconds: Any = None
    error: bool = False


@dataclass
class _Agent:
    """A trajectory: its requests, the blocks of its last prompt, its tool calls by id."""

    session: int
    file: int = 0  # the last one in which it is
    requests: list[tuple[float, int]] = field(default_factory=list)  # when sent (else ended), row
    blocks: list[Any] = field(default_factory=list)
    prompt: int = -1
    tools: dict[Hashable, _Tool] = field(default_factory=dict)
    asked_by: dict[Hashable, int] = field(default_factory=dict)  # tool call -> the row that asks for it


def _agent(agents: dict[Any, _Agent], context: Mapping[str, Any], into: Builder) -> _Agent | None:
    """The trajectory of an event; older traces call it a program, of a workflow."""
    group = name(context.get("session_id")) or name(context.get("workflow_id"))
    own = name(context.get("trajectory_id")) or name(context.get("program_id"))
    agent = agents.get((group, own))
    if agent is None and (group or own):
        above = name(context.get("parent_trajectory_id")) or name(context.get("parent_program_id"))
        parent = into.session(("dynamo", group, above)) if above and above != own else -1
        agent = agents[group, own] = _Agent(into.session(("dynamo", group, own), parent))
    return agent


def read(source: Source, into: Builder) -> None:
    """All requests of all trajectories; their tool calls in the end."""
    agents = into.across(_finish)
    for row in source.records():
        event = mapping(row.get("event")) or row
        kind = event.get("event_type")
        if kind != "request_end" and kind not in _TOOL_EVENTS:
            source.ledger.skip("events other than of requests and tools")
            continue
        agent = _agent(agents, mapping(event.get("agent_context")), into)
        if agent is None:
            source.ledger.skip("events without a session")
            continue
        at, agent.file = into.moment(event.get("event_time_unix_ms"), 1e-3), source.ledger.file
        what = mapping(event.get("request" if kind == "request_end" else "tool"))
        identity = (agent.session, kind, name(what.get("request_id") or what.get("tool_call_id")), at)
        if identity[2] is not None and hash(identity) in into.seen:
            source.ledger.skip("events that are copies of another one")
            continue
        into.seen.add(hash(identity))
        if kind == "request_end":
            _request(agent, what, at, into)
        else:
            _tool(agent, what, at, str(kind), into)


def _request(agent: _Agent, request: Mapping[str, Any], at: float, into: Builder) -> None:
    began = into.moment(request.get("request_received_ms"), 1e-3)
    total = into.seconds(scaled(request.get("total_time_ms"), 1e-3))
    began = at - total if math.isnan(began) else began
    ended = at if math.isnan(total) else began + total
    replay = mapping(request.get("replay"))
    prompt = replay.get("input_length", request.get("input_tokens"))
    order = ended if math.isnan(began) else began
    late = bool(agent.requests) and not order >= agent.requests[-1][0]
    prefix, cut = (None, False) if late else _prefix(agent, replay, into)
    turn = into.turn(
        agent.session, prompt, request.get("output_tokens"), request.get("cached_tokens"), began, ended,
        prefix=prefix, order=order, flags=Flag.CTX_DROP if cut else 0,
    )  # fmt: skip
    agent.requests.append((order, turn))
    for asked in mappings(mapping(request.get("finish_reason_metadata")).get("tool_calls")):
        key = name(asked.get("id"))
        if key is not None:
            agent.asked_by[key] = turn
            agent.tools.setdefault(key, _Tool()).called = name(asked.get("name"))


def _prefix(agent: _Agent, replay: Mapping[str, Any], into: Builder) -> tuple[int | None, bool]:
    """The tokens in blocks that both prompts begin with, where the old one was not just added to."""
    size, length = into.tokens(replay.get("trace_block_size")), into.tokens(replay.get("input_length"))
    blocks, before, prompt = replay.get("input_sequence_hashes"), agent.blocks, agent.prompt
    agent.blocks, agent.prompt = [], length
    if not isinstance(blocks, list) or size <= 0 or length <= 0:
        return None, False
    if not length <= len(blocks) * size < length + size:
        into.ledger.repair("lists of block hashes that do not cover their prompt, not used")
        return None, False
    agent.blocks = blocks
    if not before:
        return None, False
    pairs = zip(before, blocks, strict=False)
    common = next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(before), len(blocks)))
    if common >= len(before) - 1:
        return None, False
    return common * size, common * size < DROP * min(prompt, length)


def _tool(agent: _Agent, tool: Mapping[str, Any], at: float, kind: str, into: Builder) -> None:
    key: Hashable = name(tool.get("tool_call_id"))
    if key is None and kind == "tool_start":
        into.ledger.skip("starts of tool calls without an id")
        return
    found = agent.tools.setdefault(len(agent.tools) if key is None else key, _Tool())
    found.called = found.called or name(tool.get("tool_name")) or name(tool.get("tool_class"))
    began = into.moment(tool.get("started_at_unix_ms"), 1e-3)
    if kind == "tool_start":
        found.began = at if math.isnan(began) else began
        return
    ended = into.moment(tool.get("ended_at_unix_ms"), 1e-3)
    found.ended = at if math.isnan(ended) else ended
    found.seconds = scaled(tool.get("duration_ms"), 1e-3)
    if math.isnan(began) and math.isnan(found.began) and found.seconds is not None:
        into.ledger.repair("tool calls whose start is lost: reckoned from their end")
        began = found.ended - into.seconds(found.seconds)
    found.began = found.began if math.isnan(began) else began
    found.error = kind == "tool_error" or tool.get("status") in _FAILED


def _finish(into: Builder, agents: Mapping[Any, _Agent]) -> None:
    for agent in agents.values():
        into.ledger.file = agent.file
        _assign(agent, into)


def _assign(agent: _Agent, into: Builder) -> None:
    """Each tool call to the request that asked for it, else to the last one before it."""
    requests = sorted(agent.requests)
    for key, tool in agent.tools.items():
        turn = agent.asked_by.get(key)
        if turn is None:
            at = tool.ended if math.isnan(tool.began) else tool.began
            place = bisect_right(requests, (at, math.inf)) - 1
            if place < 0:
                into.ledger.skip("tool calls before any request")
                continue
            turn = requests[place][1]
        call = into.call(turn, tool.called, began=tool.began, seconds=tool.seconds)
        if not math.isnan(tool.ended):
            into.result(call, tool.ended, tool.error)
