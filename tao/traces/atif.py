"""ATIF (agent trajectory interchange format) 1.0-1.7, as Harbor and Terminal-Bench 2 write it.

A step of an agent is a request. The format has no tool times: an `arguments.duration` is what was asked for,
and only an `extra.duration_ms` of a result was measured.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from tao.traces.builder import Builder
from tao.traces.derive import plain
from tao.traces.files import Source, documents
from tao.traces.values import arguments, command, mapping, mappings, name, scaled

TITLE = "ATIF trajectory"


def fits(row: Mapping[str, Any]) -> bool:
    """Whether a document is such a trajectory."""
    version = row.get("schema_version")
    return isinstance(version, str) and version.startswith("ATIF-") and isinstance(row.get("steps"), list)


def read(source: Source, into: Builder) -> None:
    """All steps of agents, those of embedded sub-agents as sessions of their own."""
    for document in documents(source):
        if not fits(document):
            source.ledger.skip("rows that are no trajectory")
            continue
        waiting: deque[tuple[Mapping[str, Any], int]] = deque([(document, -1)])
        place = -1
        while waiting:
            place, (trajectory, parent) = place + 1, waiting.popleft()
            source.ledger.rows += parent >= 0
            session = _trajectory(trajectory, parent, place, source, into)
            waiting += [(child, session) for child in mappings(trajectory.get("subagent_trajectories"))]


def _trajectory(trajectory: Mapping[str, Any], parent: int, place: int, source: Source, into: Builder) -> int:
    own = name(trajectory.get("trajectory_id")) or name(trajectory.get("session_id"))
    key = (
        ("atif", own) if own and parent < 0 else ("atif", own, parent, source.ledger.file, source.ledger.line)
    )
    session = into.session(key, parent)
    since = math.nan
    steps = trajectory.get("steps")
    if not isinstance(steps, list):
        source.ledger.skip("trajectories without a list of steps")
        return session
    for step in steps:
        if not isinstance(step, dict):
            source.ledger.skip("steps that are no JSON object")
            continue
        at, number, copied = into.moment(step.get("timestamp")), name(step.get("step_id")), False
        if own is not None and (number is not None or not math.isnan(at)):
            identity = hash((*key[:2], number, at))
            if math.isnan(at):  # then the place tells it from steps of others in its document
                identity = hash((*key[:2], number, parent, place, *map(plain, _tokens(step))))
            copied = identity in into.seen
            into.seen.add(identity)
        if step.get("is_copied_context") is True or copied:
            source.ledger.skip("steps that are copies of another trajectory's or file's (inherited history)")
        elif step.get("source") != "agent":
            since = at
        elif step.get("llm_call_count") == 0:
            source.ledger.skip("steps without a request to a model")
        else:
            _step(step, session, since, at, into)
            since = math.nan  # when a tool was done, and so when the next request began, nobody says
    return session


def _tokens(step: Mapping[str, Any]) -> list[Any]:
    metrics = mapping(step.get("metrics"))
    return [metrics.get(key) for key in ("prompt_tokens", "completion_tokens", "cached_tokens")]


def _step(step: Mapping[str, Any], session: int, since: float, at: float, into: Builder) -> None:
    tokens = _tokens(step)
    count = step.get("llm_call_count")
    if isinstance(count, int | float) and count > 1:
        into.ledger.repair("steps that sum up several requests: their tokens are taken as unknown")
        tokens = [None] * 3
    turn = into.turn(session, tokens[0], tokens[1], tokens[2], since, at)
    asked = list(mappings(step.get("tool_calls")))
    if not asked:
        return
    results = {
        key: mapping(result.get("extra")).get("duration_ms")
        for result in mappings(mapping(step.get("observation")).get("results"))
        if (key := name(result.get("source_call_id")))
    }
    for call in asked:
        given = arguments(call.get("arguments"))
        seconds = scaled(results.get(name(call.get("tool_call_id")) or ""), 1e-3)
        into.call(
            turn, call.get("function_name"), command(given), seconds=seconds, asked=given.get("duration")
        )
        if len(asked) == 1:  # of several nobody says whether they overlap
            into.take(turn, tool=seconds)
