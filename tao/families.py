"""Families of snapshots for measuring planners: seeded ones of any size, and recorded decisions.

What a family varies is where sessions are cached, because that decides how hard it is to plan (ours):
with credit on one node per session the nodes hardly interact, with credit everywhere they all do.
Sizes, readiness and the room on each node of equal (n, nodes, seed) are the same in all of them.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import log
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tao import checks, codec, library, valuation
from tao.checks import InputError, shown
from tao.model import CacheNote, Node, Params, Session, Snapshot, ToolCall

NOW_S = 1_000.0
MEDIAN_TOKENS, SIGMA, LEAST_TOKENS, MOST_TOKENS = 18_000, 0.7, 1_500, 120_000  # ours: contexts, lognormal
READY_SHARE, CACHED_SHARE = 0.35, 0.8  # ours
AGE_S, SECOND_AGE_S = 8.0, 20.0  # ours: mean age of a cache note, and of one on a second node
SHARED_TOKENS = 11_200  # ours: a prompt that all sessions begin with
BLOCK_TOKENS = 16  # vLLM default: only whole blocks are cached
ROOM_TOKENS, COLD_TOKENS = 60_000, 300_000  # ours: a crowded node has a third of it to all of it free
DUE_S = 600.0  # ours: tools of sessions that are not ready are expected back this far away
MAX_SESSIONS, MAX_NODES = 100_000, 1_024


def snapshots(family: str, n: int, nodes: int, seed: int = 0, *, room_tokens: int | None = None) -> Snapshot:
    """The snapshot number `seed` of a family: `n` waiting sessions, `nodes` nodes.

    `room_tokens` (60,000) is the most that a node has free, the least is a third of it; in `cold` every
    node has just that (300,000). Of `recorded`, `n` counts the workers of the run, residents included, and
    `seed` is a position in a fixed set. Raises `InputError` if there is no such snapshot.

    >>> snapshot = snapshots("replicated", n=30, nodes=2, seed=5)
    >>> len(snapshot.pool), max(len(s.cached) for s in snapshot.pool), snapshot == snapshots(
    ...     "replicated", 30, 2, 5)
    (30, 2, True)
    """
    if not isinstance(family, str) or family not in FAMILIES:
        raise InputError(f"family is {shown(family)}; it must be one of {', '.join(FAMILIES)}")
    n = checks.whole(n, "n", 1, MAX_SESSIONS)
    nodes = checks.whole(nodes, "nodes", 1, MAX_NODES)
    seed = checks.whole(seed, "seed", 0)
    if room_tokens is not None:
        room_tokens = checks.whole(room_tokens, "room_tokens", 1)
    return FAMILIES[family](n, nodes, seed, room_tokens)


class _Drawn(NamedTuple):
    """What all families draw alike, for n sessions and m nodes; the notes are of one home node each."""

    tokens: list[int]
    ready: list[bool]
    age_s: list[float]  # since the last turn ended
    waits: list[float]  # which share of that time its request waits, if it is ready
    home: list[tuple[int, CacheNote] | None]
    second: list[tuple[int, CacheNote] | None]  # on another node
    nodes: list[Node]
    node_age_s: list[float]


def _drawn(n: int, m: int, seed: int, room_tokens: int | None) -> _Drawn:
    rng = np.random.default_rng([seed, n, m])
    tokens = np.rint(np.clip(rng.lognormal(log(MEDIAN_TOKENS), SIGMA, n), LEAST_TOKENS, MOST_TOKENS))
    ready, cached = rng.random(n) < READY_SHARE, rng.random(n) < CACHED_SHARE
    ages_s, others_s, waits = _ages_s(rng, AGE_S, n), _ages_s(rng, SECOND_AGE_S, n), rng.random(n)
    home = rng.integers(m, size=n)
    second = (home + (rng.integers(1, m, size=n) if m > 1 else 0)) % m
    most = ROOM_TOKENS if room_tokens is None else room_tokens
    rooms = rng.integers(-(-most // 3), most, size=m, endpoint=True).tolist()
    kept = tokens.astype(np.int64) // BLOCK_TOKENS * BLOCK_TOKENS
    return _Drawn(
        tokens.astype(np.int64).tolist(),
        ready.tolist(),
        ages_s.tolist(),
        waits.tolist(),
        _notes(cached, home, kept, ages_s),
        _notes(cached, second, kept, others_s),
        [Node(_name("n", b, m), room) for b, room in enumerate(rooms)],
        _ages_s(rng, AGE_S, m).tolist(),
    )


def _ages_s(rng: np.random.Generator, mean_s: float, size: int) -> npt.NDArray[np.float64]:
    # Whole microseconds: the last bit of a logarithm differs between machines.
    return np.round(rng.exponential(mean_s, size), 6)


def _notes(*columns: npt.NDArray[np.generic]) -> list[tuple[int, CacheNote] | None]:
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [(b, CacheNote(kept, NOW_S - age_s)) if cached else None for cached, b, kept, age_s in rows]


def _name(letter: str, k: int, count: int) -> str:
    """Ids whose alphabetical order is their number's."""
    return f"{letter}{k:0{len(str(count - 1))}}"


def _snapshot(drawn: _Drawn, cached: Sequence[dict[str, CacheNote]]) -> Snapshot:
    sessions = []
    for i, notes in enumerate(cached):
        since_s, name = NOW_S - drawn.age_s[i], _name("s", i, len(cached))
        if drawn.ready[i]:
            waiting_s = NOW_S - drawn.age_s[i] * drawn.waits[i]
            session = Session(name, drawn.tokens[i], waiting_since_s=waiting_s, cached=notes)
        else:
            tool = ToolCall("bash", since_s, deadline_s=NOW_S + DUE_S)
            session = Session(name, drawn.tokens[i], "tool", cached=notes, tool=tool)
        sessions.append(session)
    return Snapshot(NOW_S, tuple(drawn.nodes), tuple(sessions))


def unique(n: int, nodes: int, seed: int, room_tokens: int | None) -> Snapshot:
    """Four in five sessions are cached, whole, on one node each."""
    drawn = _drawn(n, nodes, seed, room_tokens)
    return _snapshot(drawn, [{drawn.nodes[x[0]].id: x[1]} if x else {} for x in drawn.home])


def replicated(n: int, nodes: int, seed: int, room_tokens: int | None) -> Snapshot:
    """Those sessions are cached on a second node too, seen there longer ago."""
    if nodes < 2:
        raise InputError(f"nodes is {nodes}; family 'replicated' needs 2 or more, on one node take 'unique'")
    drawn = _drawn(n, nodes, seed, room_tokens)
    both = zip(drawn.home, drawn.second, strict=True)
    return _snapshot(drawn, [{drawn.nodes[x[0]].id: x[1] for x in pair if x} for pair in both])


def shared(n: int, nodes: int, seed: int, room_tokens: int | None) -> Snapshot:
    """As unique, and the common beginning of all prompts is worth something on every node.

    A session has one note per node, of age 0 and of as many tokens as both are worth together.
    """
    drawn = _drawn(n, nodes, seed, room_tokens)
    half_life_s = Params().half_life_s
    common = [valuation.decayed(SHARED_TOKENS, age_s, half_life_s) for age_s in drawn.node_age_s]
    cached = []
    for tokens, x in zip(drawn.tokens, drawn.home, strict=True):
        worth = [min(most, tokens) for most in common]
        if x:
            worth[x[0]] += valuation.credit(x[1], NOW_S, Params())
        cached.append({b.id: CacheNote(k, NOW_S) for b, k in zip(drawn.nodes, worth, strict=True)})
    return _snapshot(drawn, cached)


def cold(n: int, nodes: int, seed: int, room_tokens: int | None) -> Snapshot:
    """Nothing is cached, and every node is empty: only readiness and tokens count."""
    room = COLD_TOKENS if room_tokens is None else room_tokens
    drawn = _drawn(n, nodes, seed, room)
    empty = [Node(b.id, room) for b in drawn.nodes]
    return _snapshot(drawn._replace(nodes=empty), [{}] * n)


def stress(n: int, nodes: int, seed: int, room_tokens: int | None) -> Snapshot:
    """The same as replicated, under a name of its own for sizes far beyond a cluster's."""
    return replicated(n, nodes, seed, room_tokens)


def recorded(n: int, nodes: int, seed: int, room_tokens: int | None) -> Snapshot:
    """A decision of policy tao in our simulator, swe-lite at capacity / live contexts 0.85 to 1.05."""
    sets = recorded_sets()
    if room_tokens is not None:
        raise InputError(f"room_tokens is {room_tokens}; recorded snapshots have the room they have, drop it")
    if seed >= sets.get((n, nodes), 0):
        known = ", ".join(f"{w} workers on {m} nodes: seeds 0 to {k - 1}" for (w, m), k in sets.items())
        raise InputError(f"no recorded snapshot {seed} of {n} workers on {nodes} nodes; there are {known}")
    return codec.from_json(_lines(n, nodes)[seed].decode(), f"recorded_{n}x{nodes}, line {seed + 1}")


@lru_cache
def recorded_sets() -> dict[tuple[int, int], int]:
    """How many recorded snapshots there are, by (workers, nodes)."""
    names = [path.name.partition(".")[0] for path in _folder().glob("recorded_*.jsonl.gz")]
    keys = sorted((int(w), int(m)) for w, m in (name.removeprefix("recorded_").split("x") for name in names))
    return {key: len(_lines(*key)) for key in keys}


def _folder() -> Path:
    return library.folder("data") / "snapshots"


@lru_cache
def _lines(workers: int, nodes: int) -> list[bytes]:
    return gzip.decompress((_folder() / f"recorded_{workers}x{nodes}.jsonl.gz").read_bytes()).splitlines()


# name -> (n, nodes, seed, room_tokens) -> Snapshot
FAMILIES: dict[str, Callable[[int, int, int, int | None], Snapshot]] = {
    "unique": unique,
    "replicated": replicated,
    "shared": shared,
    "cold": cold,
    "stress": stress,
    "recorded": recorded,
}
