"""What TAO would have decided about the requests in a log of one's own cluster; it sends them nothing.

A log is a text file with one JSON object a line, a request each: `session`, `node`, `time` (when it was
sent there), `prompt_tokens` and `output_tokens`; where known also `cached_tokens`, `first_token` and
`finished`. Times are seconds since 1970 or ISO 8601, without a zone in UTC.

TAO's books are kept along the log: its pauses and its placements of idle sessions count, but every request
runs where the log says. So each row is an answer to "what now?", and not to "what if all along?": where
TAO differs, the requests that follow would have come at other times and found other caches.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from tao import checks, durations, policies, state, valuation
from tao.checks import MAX_TOKENS, InputError, shown
from tao.model import Params
from tao.profiles import PS_PER_S
from tao.state import HOLD, NEW, REASONING, TOOL, WAITING
from tao.view import View

MAX_NODES = 64  # ours: more in a log without --nodes means that something else stands in that field
MAX_SPAN_S = 2_000_000.0  # ours: 23 days to both sides of the middle; picoseconds then fit 64 bits
NEEDED = ("session", "node", "time", "prompt_tokens", "output_tokens")
Log = str | os.PathLike[str] | Iterable[Any]


class Asked(NamedTuple):
    """One request of a log, times in seconds; `finished_s` is the latest that is known of it."""

    session: str
    node: str
    time_s: float
    finished_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None


@dataclass(frozen=True)
class Observation:
    """A row per request in `rows`, sums in `summary`, and what is not as it should be in `notes`.

    Keys of `rows`: time_s, session, node, tao (the node TAO would take, None: it would wait), credit and
    tao_credit (cache credit there, tokens), cached_tokens (as logged), held_s (how long TAO would have held
    it at least).
    """

    rows: tuple[dict[str, Any], ...]
    summary: dict[str, Any]
    notes: tuple[str, ...]


def observe(
    log: Log,
    nodes: Sequence[str] | None = None,
    *,
    kv_tokens: int | None = None,
    params: Params | None = None,
    **options: Any,
) -> Observation:
    """Compare a log, a file or dicts, with what TAO would have done at each request.

    `nodes`: addresses, or NAME=ADDRESS where the log has another name; of each `/metrics` is read once, with
    the `options` of `Client`. `kv_tokens`: KV tokens of each node, for whatever does not tell them. Raises
    `InputError` if nothing in the log can be used, `Failed` or `Retryable` for a node that does not answer.

    >>> asked = {"session": "a", "node": "n0", "prompt_tokens": 900, "output_tokens": 50}
    >>> seen = observe([asked | {"time": 1.0}, asked | {"time": 9.0, "node": "n1"}], kv_tokens=10_000)
    >>> [(row["node"], row["tao"], row["tao_credit"]) for row in seen.rows]
    [('n0', 'n0', 0), ('n1', 'n0', 516)]
    """
    params = params or Params()
    if kv_tokens is not None:
        checks.whole(kv_tokens, "kv_tokens", 1)
    sizes, block, aliases = _nodes(nodes, kv_tokens, options) if nodes else ({}, 1, {})
    asked, skipped = _read(log, aliases if nodes else None)
    notes = [f"{n} rows left out, the first in line {line}: {why}" for why, (n, line) in skipped.items()]
    if not asked:
        raise InputError(f"the log holds no request that can be used; {'; '.join(notes) or 'it is empty'}")
    if not nodes:
        names = sorted({a.node for a in asked})
        if kv_tokens is None or len(names) > MAX_NODES:
            what = "the KV tokens of its nodes" if kv_tokens is None else f"which of {len(names)} are nodes"
            raise InputError(
                f"the log does not tell {what}; give kv_tokens (--kv-tokens), or nodes (--nodes)"
            )
        sizes = dict.fromkeys(names, kv_tokens)
    if unended := sum(a.finished_s <= a.time_s for a in asked):
        notes.append(f"{unended} rows without an end: their cache credit ages from when they were sent")
    replay = _Replay(asked, sizes, block, params)
    rows = tuple(replay.run())
    return Observation(rows, _summary(rows, replay.pauses), tuple(notes))


def _nodes(
    given: Sequence[str], kv_tokens: int | None, options: dict[str, Any]
) -> tuple[dict[str, int], int, dict[str, str]]:
    """KV tokens by name, tokens of a block, and the name behind each way to write it."""
    from tao.live.client import Client  # what reads only a log needs no network

    sizes, aliases, blocks = dict[str, int](), dict[str, str](), [1]
    with ExitStack() as stack:
        clients = []
        for text in [given] if isinstance(given, str) else given:
            name, named, url = text.partition("=")
            client = stack.enter_context(
                Client(url, name=name, **options) if named else Client(text, **options)
            )
            clients.append((client, client.metrics()))
        for client, call in clients:
            load = call.result()
            free = load.kv_tokens - (load.block_size or 0) if load.kv_tokens else kv_tokens
            if free is None:
                raise InputError(f"{client.name} does not tell its KV tokens; give kv_tokens (--kv-tokens)")
            sizes[client.name] = max(free, 0)
            blocks.append(load.block_size or 1)
            aliases |= dict.fromkeys((client.name, str(client.url), str(client.url) + "/v1"), client.name)
    return dict(sorted(sizes.items())), max(blocks), aliases


def _read(log: Log, aliases: dict[str, str] | None) -> tuple[list[Asked], dict[str, tuple[int, int]]]:
    """The requests in order of time; and why how many rows were left out, and the first one's line."""
    asked, why = list[tuple[int, Asked]](), list[tuple[str, int]]()
    for line, data in enumerate(_lines(log), 1):
        try:
            asked.append((line, _asked(data, aliases)))
        except InputError as error:
            why.append((str(error), line))
    middle_s = median(a.time_s for _, a in asked) if asked else 0.0
    far = [line for line, a in asked if max(abs(t - middle_s) for t in a[2:4]) > MAX_SPAN_S]
    why += [("more than 23 days from the others", line) for line in far]
    left = set(far)
    counts, first = Counter(w for w, _ in why), dict(reversed(why))
    kept = sorted((a for line, a in asked if line not in left), key=lambda a: (a.time_s, a.session))
    return kept, {w: (n, first[w]) for w, n in counts.items()}


def _lines(log: Log) -> Iterator[Any]:
    if not isinstance(log, str | os.PathLike):
        yield from log
        return
    try:
        with Path(log).open(encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    yield json.loads(line) if line.strip() else None
                except (ValueError, RecursionError):
                    yield None
    except OSError as error:
        raise InputError(f"{log}: {error.strerror or 'it cannot be read'}") from None


def _asked(data: Any, aliases: dict[str, str] | None) -> Asked:
    """One row, or an `InputError` whose words are the same for all rows of its kind."""
    if not isinstance(data, dict):
        raise InputError("not a JSON object")
    if missing := [name for name in NEEDED if data.get(name) is None]:
        raise InputError(f"{missing[0]} is missing")
    names = {name: str(data[name]) if isinstance(data[name], int) else data[name] for name in NEEDED[:2]}
    for name, x in names.items():
        if not (isinstance(x, str) and x and len(x) <= 200 and x.isprintable()):
            raise InputError(f"{name} is not a name")
    if aliases is not None and names["node"].rstrip("/") not in aliases:
        raise InputError(
            f"node {shown(names['node'])} is none of {checks.listing(sorted(set(aliases.values())))}"
        )
    times = [_seconds(data.get(name), name) for name in ("time", "first_token", "finished")]
    known = [t for t in times if t is not None]
    if known != sorted(known):
        raise InputError("finished, first_token or time come in another order")
    for name in ("prompt_tokens", "output_tokens", "cached_tokens"):
        x = data.get(name, 0)
        if x is not None and not (type(x) is int and 0 <= x <= MAX_TOKENS):
            raise InputError(f"{name} is not a number of tokens")
    node = names["node"] if aliases is None else aliases[names["node"].rstrip("/")]
    sizes = data["prompt_tokens"], data["output_tokens"], data.get("cached_tokens")
    return Asked(names["session"], node, known[0], known[-1], *sizes)


def _seconds(x: Any, name: str) -> float | None:
    if isinstance(x, str):
        try:
            at = datetime.fromisoformat(x)
            x = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise InputError(f"{name} is not a time in ISO 8601") from None
    if x is None:
        return None
    if isinstance(x, bool) or not isinstance(x, int | float) or not 0 <= x < 1e11:  # above it, milliseconds
        raise InputError(f"{name} is not a time in seconds")
    return float(x)


class _Replay:
    """TAO's books along a log."""

    def __init__(self, asked: Sequence[Asked], sizes: dict[str, int], block: int, params: Params) -> None:
        self.asked, self.nodes, self.block = asked, list(sizes), block
        names = sorted({a.session for a in asked})
        self.index = {name: i for i, name in enumerate(names)}
        room = np.array([len(asked)], np.int64)
        self.view = View(names, list(sizes.values()), params, room=room)
        self.policy = policies.tao(self.view.params)
        self.began_s = asked[0].time_s
        self.left = Counter(a.session for a in asked)  # requests of each that have not ended
        self.held: dict[int, tuple[float, dict[str, Any]]] = {}
        self.pauses = 0

    def run(self) -> Iterator[dict[str, Any]]:
        """A row per request; `held_s` of earlier ones grows meanwhile."""
        events = [(a.time_s, 1, k) for k, a in enumerate(self.asked)]
        events += [(a.finished_s, 2 if a.finished_s <= a.time_s else 0, k) for k, a in enumerate(self.asked)]
        for at_s, kind, k in sorted(events):
            self.view.state.clock[state.NOW_PS] = self._ps(at_s)
            a = self.asked[k]
            if kind == 1:
                yield self._arrive(self.index[a.session], a)
            else:
                self._finish(self.index[a.session], a)
            self._release(at_s)

    def _ps(self, at_s: float) -> int:
        return round((at_s - self.began_s) * PS_PER_S)

    def _tick(self) -> dict[int, int]:
        """TAO's pauses and placements now, entered into the books."""
        view, decision = self.view, self.policy.tick(self.view)
        for i in decision.pauses:
            if view.leaving[i] or view.resident[i] < 0:
                continue
            self.pauses += 1
            if view.phase[i] == REASONING:
                view.leaving[i] = 1
            else:
                state.move(view.state, i, HOLD)
        for i, b in decision.placements:
            state.move(view.state, i, b)
        return dict(decision.placements)

    def _arrive(self, i: int, a: Asked) -> dict[str, Any]:
        view, row, now_ps = self.view, self.view.state.session[i], self._ps(a.time_s)
        if row[state.PHASE] == NEW:
            state.start(view.state, i)
        elif row[state.PHASE] == TOOL:
            lasted_s = (now_ps - int(row[state.TOOL_PS])) / PS_PER_S
            durations.learn(view.state.book, 0, lasted_s, view.state.settings.statistic)
        state.resize(view.state, i, a.prompt_tokens)
        row[state.PHASE], row[state.SINCE_PS] = WAITING, now_ps
        view.noted_tokens[i] = np.minimum(view.noted_tokens[i], a.prompt_tokens)
        if view.resident[i] == HOLD:
            self._tick()
        b, there = int(view.resident[i]), self.nodes.index(a.node)
        credit = [self._credit(i, c, now_ps) for c in (there, b)]
        found = {"time_s": a.time_s, "session": a.session, "node": a.node}
        found |= {"tao": None if b == HOLD else self.nodes[b], "credit": credit[0], "tao_credit": credit[1]}
        found |= {"cached_tokens": a.cached_tokens, "held_s": 0.0}
        if b == HOLD:
            self.held[i] = (a.time_s, found)
        state.move(view.state, i, there)  # from here on it is as the log says
        row[state.PHASE], view.last_node[i] = REASONING, there
        view.turn[i] += 1
        self._tick()
        return found

    def _credit(self, i: int, b: int, now_ps: int) -> int:
        noted = int(self.view.noted_tokens[i, b]) if b != HOLD else 0
        age_s = (now_ps - int(self.view.noted_at_ps[i, b])) / PS_PER_S
        return valuation.decayed(noted, age_s, self.view.params.settings.half_life_s) if noted else 0

    def _finish(self, i: int, a: Asked) -> None:
        view, row, now_ps = self.view, self.view.state.session[i], self._ps(a.finished_s)
        there, tokens = self.nodes.index(a.node), a.prompt_tokens + a.output_tokens
        state.resize(view.state, i, tokens)
        view.noted_tokens[i, there] = tokens // self.block * self.block
        view.noted_at_ps[i, there] = now_ps
        row[state.PHASE], row[state.TOOL_PS], row[state.TOOL_DUE_PS] = TOOL, now_ps, -1
        self.left[a.session] -= 1
        if view.leaving[i] or not self.left[a.session]:
            view.leaving[i] = 0
            state.move(view.state, i, HOLD)
        if not self.left[a.session]:
            self._release(a.finished_s, i)
            state.end(view.state, i)
        self._tick()

    def _release(self, at_s: float, ended: int = HOLD) -> None:
        """Sessions that TAO would hold, until there is room for them or they have ended all the same."""
        s = self.view.state
        for i, (since_s, found) in list(self.held.items()):
            room = max(
                state.free_tokens(s, b)
                + (state.demand_tokens(s, i) if s.session[i, state.RESIDENT] == b else 0)
                for b in range(len(s.node))
            )
            found["held_s"] = at_s - since_s
            if i == ended or room >= state.demand_tokens(s, i):
                del self.held[i]


def _summary(rows: Sequence[dict[str, Any]], pauses: int) -> dict[str, Any]:
    """Sums over all requests, tokens and seconds."""
    held = [r for r in rows if r["tao"] is None]
    known = [r for r in rows if r["cached_tokens"] is not None]
    return {
        "requests": len(rows),
        "sessions": len({r["session"] for r in rows}),
        "same_node": sum(r["tao"] == r["node"] for r in rows),
        "other_node": sum(r["tao"] not in (None, r["node"]) for r in rows),
        "held": len(held),
        "held_s": sum(r["held_s"] for r in held),
        "longest_held_s": max((r["held_s"] for r in held), default=0.0),
        "pauses": pauses,
        "credit_tokens": sum(r["credit"] for r in rows),
        "credit_left_tokens": sum(max(0, r["tao_credit"] - r["credit"]) for r in rows),
        "cached_known": len(known),
        "cached_tokens": sum(r["cached_tokens"] for r in known),
        "credit_where_known": sum(r["credit"] for r in known),
    }
