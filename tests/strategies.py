"""Small random snapshots and parameters for hypothesis, with every awkward case likely.

All times lie on a grid of 1/8 s, so that sums and differences of them are exact in floats and the
twins may compare with `<=` what the package compares after adding in another order. A whole row comes
from a few draws, because drawing each field by itself is slow.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, TypeVar

from hypothesis import strategies as st

from tao.model import CacheNote, Node, Params, Phase, Session, Snapshot, ToolCall

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[Any]], Any]  # what `composite` passes in, and `data.draw`

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
EXAMPLES = 100 if INTERPRETED else 1000  # per property

COMMANDS = {  # the commands that tools run, and how long each sleeps; `COMMANDS.get` is a sleep parser
    "ls -la": None,
    "sleep 2": 2.0,
    "sleep 0.5": 0.5,
    "sleep 1m": 60.0,
    "sleep infinity": math.inf,
}
SESSION_IDS = ("s10", "s2", "s1", "a", "Z", "s9")
NODE_IDS = ("n10", "n2", "a", "n1")
NOWS_S = (1000.0, 0.0, 1_790_000_000.0)

# Distances in seconds from now, back for what has happened, either way for deadlines.
STARTED_S = (0.0, 0.5, 1.0, 2.0, 4.0, 5.0, 6.0, 6.5, 30.0, 31.0, 34.875, 35.0, 59.0, 90.0, 1000.0)
DEADLINE_S = (None, None, None, 0.0, 0.5, 1.0, 1.125, 5.0, 100.0, -0.5, -1.0, -1.125, -29.875, -30.0, -60.0)
EXPECTED_S = (None, None, 0.0, 0.5, 3.0, 5.0, 7.0, 31.0, 100.0)
FINISHED_S = (None, None, None, None, None, 0.0, 0.5)
TOOL_COMMANDS = (None, None, None, *COMMANDS)
TURNS = (0, 1, 7)
PHASES = ("waiting", "tool", "tool", "tool", "reasoning")
WAITS_S = (None, 0.0, 1.0, 2.5, 2.5, 100.0)
AGES_S = (0.0, 0.125, 5.0, 10.0, 20.0, 37.5, 300.0, 1_000_000.0)
NOTES = (None,) * 24 + tuple(
    (kind, age_s) for kind in ("all", "half", "few", "none", "more") for age_s in AGES_S
)


class Scale(NamedTuple):
    """Token sizes to choose from: tiny ones tie and fit exactly, realistic ones look like a cluster."""

    contexts: tuple[int, ...]
    capacities: tuple[int, ...]
    prefixes: tuple[int, ...]


TINY = Scale(
    contexts=tuple(range(13)),
    capacities=(*range(25), 0, 5, 12),
    prefixes=(1, 2, 5, 13),
)
REALISTIC = Scale(  # every 61st size, as likely as the round ones that tie
    contexts=(*range(1_000, 120_001, 61), *(1_000, 4_096, 30_000, 60_000, 120_000) * 100),
    capacities=(*range(0, 300_001, 61), *(0, 999, 30_512, 60_000, 131_072, 300_000) * 300),
    prefixes=(1, 900, 3_000, 50_000),
)


# One draw, several choices


def pick(draw: Draw, *choices: Sequence[Any]) -> list[Any]:
    """One item from each sequence, all about equally likely; examples shrink towards the first ones."""
    raw = draw(_raw(2 * len(choices)))
    digits = [int.from_bytes(raw[i : i + 2], "big") for i in range(0, len(raw), 2)]
    return [items[digit % len(items)] for items, digit in zip(choices, digits, strict=True)]


@cache
def _raw(n: int) -> st.SearchStrategy[bytes]:
    """Exactly n bytes, which hypothesis draws evenly, unlike integers above 256."""
    return st.binary(min_size=n, max_size=n)


def shuffle(draw: Draw, items: Sequence[T]) -> list[T]:
    """The items in any order."""
    left = list(items)
    return [left.pop(i) for i in pick(draw, *(range(n) for n in range(len(left), 0, -1)))]


# Parameters


PARAMETERS = {
    "quantum_tokens": (1, 2, 7, 64, 1024),
    "reserve_tokens": (0, 1, 512),
    "ageing_tokens_per_s": (0.0, 0.0, 0.5, 100.0),
    "share_prefix": (False, False, True),
    "stale_from": ("due", "made"),
    "half_life_s": (10.0, 10.0, 1.0, 40.0),
    "horizon_s": (1.0, 1.0, 0.0, 5.0),
    "probe_s": (1.0, 1.0, 0.0, 3.0),
    "margin_s": (0.0, 0.0, 0.5),
    "fallback_s": (5.0, 5.0, 0.5),
    "stale_s": (30.0, 30.0, 2.0),
}


@st.composite
def params(draw: Draw) -> Params:
    """Parameters that matter to valuation, readiness and sizes, the rest left at their defaults."""
    chosen = pick(draw, *PARAMETERS.values())
    return Params(**dict(zip(PARAMETERS, chosen, strict=True)))


# Snapshots


@st.composite
def snapshots(draw: Draw, max_sessions: int = 6, max_nodes: int = 3) -> Snapshot:
    """A snapshot of any scale, with a shared prefix about half of the time."""
    scale, prefixed = pick(draw, (TINY, REALISTIC), (False, True))
    return _snapshot(draw, scale, prefixed, max_sessions, max_nodes)


@st.composite
def cases(draw: Draw, max_sessions: int = 6, max_nodes: int = 3) -> tuple[Snapshot, Params]:
    """A snapshot and parameters that suit each other: fine quanta for tiny sizes, a prefix if it counts."""
    chosen = draw(params())
    small = chosen.quantum_tokens <= 7 and chosen.reserve_tokens <= 1
    return _snapshot(draw, TINY if small else REALISTIC, chosen.share_prefix, max_sessions, max_nodes), chosen


def _snapshot(draw: Draw, scale: Scale, prefixed: bool, max_sessions: int, max_nodes: int) -> Snapshot:
    """Nodes and sessions in any order, now and then all sessions alike but for their ids."""
    n_sessions, n_nodes = pick(draw, _mostly_many(max_sessions), _mostly_many(max_nodes))
    prefixes = scale.prefixes if prefixed else (0,)
    prefix, now_s, alike = pick(draw, prefixes, NOWS_S, (False, False, False, True))
    names = shuffle(draw, _ids(NODE_IDS, n_nodes))
    capacities = pick(draw, *[scale.capacities] * n_nodes)
    sessions: list[Session] = []
    for name in shuffle(draw, _ids(SESSION_IDS, n_sessions)):
        copied = alike and sessions
        sessions.append(
            replace(sessions[0], id=name) if copied else _session(draw, name, scale, names, now_s)
        )
    return Snapshot(now_s, tuple(map(Node, names, capacities)), tuple(sessions), prefix)


def _mostly_many(most: int) -> list[int]:
    """Counts up to `most`, each likelier the greater it is."""
    return [n for n in range(most + 1) for _ in range(3 * n + 1)]


def _ids(stock: Sequence[str], n: int) -> list[str]:
    """The first n ids of the stock, made longer as needed."""
    return [*stock[:n], *(f"{stock[0]}{i}" for i in range(n - len(stock)))]


def _session(draw: Draw, name: str, scale: Scale, nodes: Sequence[str], now_s: float) -> Session:
    """A session in any phase, resident or waiting, with cache notes and evidence of every kind."""
    residences = [None] * (4 + 4 * len(nodes)) + [*nodes]
    context, resident_on, eligible, wait_s = pick(
        draw, scale.contexts, residences, _eligibilities(nodes), WAITS_S
    )
    notes = zip(nodes, pick(draw, *[NOTES] * len(nodes)), strict=True)
    turn, phase, tool = _activity(draw, now_s)
    return Session(
        id=name,
        context_tokens=context,
        phase=phase,
        turn=turn,
        resident_on=resident_on,
        waiting_since_s=None if wait_s is None else now_s - wait_s,
        cached={node: _note(note, context, now_s) for node, note in notes if note},
        tool=tool,
        eligible=eligible,
    )


def _eligibilities(nodes: Sequence[str]) -> list[tuple[str, ...] | None]:
    """Any node mostly, otherwise none at all, every one by name, a single one or all but one."""
    ones = [(node,) for node in nodes]
    all_but_one = [tuple(other for other in nodes if other != node) for node in nodes]
    limited = [(), tuple(nodes), *ones, *all_but_one]
    return [None] * 2 * len(limited) + limited


def _note(note: tuple[str, float], context: int, now_s: float) -> CacheNote:
    """A cache note of some age for all, half, few or none of the context, or for more than there is."""
    kind, age_s = note
    tokens = {"all": context, "half": context // 2, "few": 3, "none": 0, "more": context + 3}[kind]
    return CacheNote(tokens, now_s - age_s)


def _activity(draw: Draw, now_s: float) -> tuple[int, Phase, ToolCall | None]:
    """A turn, a phase, and a tool with any mixture of evidence or, where the phase allows it, without one."""
    turn, phase, bare, started_s, deadline_s, command, expected_s, finished_s = pick(
        draw, TURNS, PHASES, (True, False), STARTED_S, DEADLINE_S, TOOL_COMMANDS, EXPECTED_S, FINISHED_S
    )
    if bare and phase != "tool":
        return turn, phase, None
    tool = ToolCall(
        name="bash",
        started_s=now_s - started_s,
        command_class=None if command is None else command.split()[0],
        command=command,
        deadline_s=None if deadline_s is None else now_s + deadline_s,
        expected_s=expected_s,
        finished_s=None if finished_s is None else now_s - min(finished_s, started_s),
    )
    return turn, phase, tool


# The same snapshot told differently


def permuted(draw: Draw, snapshot: Snapshot) -> Snapshot:
    """The same snapshot with its rows, and the entries inside them, in another order."""
    nodes = shuffle(draw, snapshot.nodes)
    sessions = [_turned(session) for session in shuffle(draw, snapshot.sessions)]
    return replace(snapshot, nodes=tuple(nodes), sessions=tuple(sessions))


def _turned(session: Session) -> Session:
    """The same session with its cache notes and eligible nodes listed backwards."""
    eligible = None if session.eligible is None else session.eligible[::-1]
    return replace(session, cached=dict(reversed(list(session.cached.items()))), eligible=eligible)


class Renamed(NamedTuple):
    """A renamed snapshot, and the new id of every old one."""

    snapshot: Snapshot
    sessions: dict[str, str]
    nodes: dict[str, str]


def renamed(snapshot: Snapshot, order_preserving: bool) -> Renamed:
    """The same snapshot under new ids that sort as the old ones did, or the other way round."""
    sessions = _new_ids("t", [session.id for session in snapshot.sessions], order_preserving)
    nodes = _new_ids("m", [node.id for node in snapshot.nodes], order_preserving)
    return Renamed(
        replace(
            snapshot,
            nodes=tuple(replace(node, id=nodes[node.id]) for node in snapshot.nodes),
            sessions=tuple(_renamed_session(s, sessions[s.id], nodes) for s in snapshot.sessions),
        ),
        sessions,
        nodes,
    )


def _new_ids(letter: str, ids: Sequence[str], order_preserving: bool) -> dict[str, str]:
    """A new id for each, numbered upwards or downwards in their order."""
    ordered = sorted(ids, reverse=not order_preserving)
    return {old: f"{letter}{rank:03d}" for rank, old in enumerate(ordered)}


def _renamed_session(session: Session, name: str, nodes: dict[str, str]) -> Session:
    """The session under its new id, with the new ids of all nodes that it mentions."""
    return replace(
        session,
        id=name,
        resident_on=None if session.resident_on is None else nodes[session.resident_on],
        cached={nodes[node]: note for node, note in session.cached.items()},
        eligible=None if session.eligible is None else tuple(nodes[node] for node in session.eligible),
    )
