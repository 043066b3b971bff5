"""JSON in and out for the types of `tao.model`: versioned, field names as in the code, exact.

A snapshot file looks like this. A field may be left out where its type has a default, and `schema`::

    {"schema": 1, "now_s": 12.5, "shared_prefix_tokens": 0,
     "nodes": [{"id": "n0", "capacity_tokens": 310000}],
     "sessions": [{"id": "a", "context_tokens": 18000, "phase": "tool", "turn": 3,
                   "resident_on": null, "waiting_since_s": 9.0,
                   "cached": {"n0": {"tokens": 17500, "seen_at_s": 8.5}},
                   "tool": {"name": "bash", "started_s": 9.0, "command": "sleep 4"},
                   "eligible": null}]}
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from tao.checks import shown
from tao.model import CacheNote, InputError, Node, Plan, Session, Snapshot, ToolCall

SCHEMA = 1

T = TypeVar("T")


def to_json(snapshot: Snapshot, indent: int | None = None) -> str:
    """The snapshot as JSON text; `from_json` gives back an equal one.

    >>> snap = Snapshot(1.5, (Node("n0", 10),), (Session("a", 3),))
    >>> from_json(to_json(snap)) == snap
    True
    """
    return json.dumps(to_dict(snapshot), indent=indent, allow_nan=False)


def from_json(text: str, source: str = "snapshot") -> Snapshot:
    """A snapshot from JSON text; raises `InputError` naming `source` and what is wrong with it."""
    try:
        data = json.loads(text, object_pairs_hook=_no_twins)
        return from_dict(data)
    except json.JSONDecodeError as e:
        raise InputError(
            f"{source}: not valid JSON at line {e.lineno}, column {e.colno} ({e.msg}); is the file complete?"
        ) from None
    except RecursionError:
        raise InputError(f"{source}: nested too deeply to be a snapshot") from None
    except ValueError as e:  # an InputError, or a number of thousands of digits
        raise InputError(f"{source}: {e}") from None


def to_dict(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot as plain dicts and lists, ready for any JSON writer."""
    return {
        "schema": SCHEMA,
        "now_s": snapshot.now_s,
        "shared_prefix_tokens": snapshot.shared_prefix_tokens,
        "nodes": [_plain(n) for n in snapshot.nodes],
        "sessions": [_session_dict(s) for s in snapshot.sessions],
    }


def from_dict(data: Any) -> Snapshot:
    """A snapshot from what `to_dict` returns; raises `InputError` on anything else."""
    data = _object(data, "snapshot")
    schema = data.pop("schema", SCHEMA)
    if type(schema) is not int or schema != SCHEMA:
        raise InputError(f"schema is {shown(schema)}; this version of tao reads schema {SCHEMA}")
    sessions = [_session(s, i) for i, s in enumerate(_array(data, "sessions"))]
    nodes = [_build(Node, n, f"nodes[{i}]") for i, n in enumerate(_array(data, "nodes"))]
    return _build(Snapshot, data | {"sessions": tuple(sessions), "nodes": tuple(nodes)}, "snapshot")


def plan_dict(plan: Plan) -> dict[str, Any]:
    """A plan as plain JSON-ready data: the fields that `tao plan --json` documents."""
    value, bound, gap = (v._asdict() for v in (plan.value, plan.bound, plan.gap))
    return {
        "planner": plan.planner,
        "problem": plan.problem,
        "exact": plan.exact,
        "reason": plan.reason,
        **value,
        "states": plan.states,
        "bound": bound,
        "gap": gap,
        "admitted": [{"session": p.session, "node": p.node} for p in plan.placements],
        "deferred": list(plan.deferred),
    }


def _session_dict(s: Session) -> dict[str, Any]:
    return _plain(s) | {
        "cached": {node: _plain(note) for node, note in s.cached.items()},
        "tool": None if s.tool is None else _plain(s.tool),
        "eligible": None if s.eligible is None else list(s.eligible),
    }


def _session(data: Any, i: int) -> Session:
    where = f"sessions[{i}]"
    data = _object(data, where)
    cached = _object(data.get("cached", {}), f"{where}.cached")
    data["cached"] = {n: _build(CacheNote, note, f"{where}.cached[{shown(n)}]") for n, note in cached.items()}
    if data.get("tool") is not None:
        data["tool"] = _build(ToolCall, data["tool"], f"{where}.tool")
    if data.get("eligible") is not None:
        names = data["eligible"]
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise InputError(f"{where}.eligible is {shown(names)}; it must be a list of node ids or null")
        data["eligible"] = tuple(names)
    return _build(Session, data, where)


def _build(make: Callable[..., T], data: Any, where: str) -> T:
    """Call a dataclass with `data` as its fields, after checking that the names are right."""
    data = _object(data, where)
    known = {f.name: f for f in fields(make)}  # type: ignore[arg-type]
    for name in data:
        if name not in known:
            raise InputError(f"{where}: unknown field {shown(name)}; allowed: {', '.join(known)}")
    for name, f in known.items():
        if name not in data and f.default is MISSING and f.default_factory is MISSING:
            raise InputError(f"{where}: field {name!r} is missing; add it")
    return make(**data)


def _plain(x: Any) -> dict[str, Any]:
    return {f.name: getattr(x, f.name) for f in fields(x)}


def _object(data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise InputError(f"{where} is {shown(data)}; it must be a JSON object")
    return dict(data)


def _array(data: dict[str, Any], name: str) -> list[Any]:
    if name not in data:
        raise InputError(f"snapshot: field {name!r} is missing; add it")
    if not isinstance(data[name], list):
        raise InputError(f"{name} is {shown(data[name])}; it must be a JSON array")
    return list(data[name])


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _ in pairs]
        twin = next(n for n in names if names.count(n) > 1)
        raise InputError(f"the key {shown(twin)} appears twice in one JSON object; keep one")
    return data
