"""A run played back at equal moments: what admitted sessions hold of each node, and who waits where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from tao import checks
from tao.assign import OK
from tao.history import AT_PS, DECISION, NODE, PAUSED, PLANNED, SESSION, VERDICT, History, Ints, TurnRow
from tao.profiles import PS_PER_S

Part = Literal["reasoning", "tool", "queue", "cached"]
PARTS: tuple[Part, ...] = get_args(Part)
HOLDING = PARTS[:3]  # by these a session holds a place
POOL: Literal["pool"] = "pool"
MOMENTS = 400  # ours: a few seconds apart in runs of half an hour


class Stay(NamedTuple):
    """A session doing one thing from `begin_ps` until just before `end_ps`; in the pool it is on no node."""

    session: int
    node: int
    part: Part | Literal["pool"]
    begin_ps: int
    end_ps: int
    tokens: int


@dataclass(frozen=True)
class Playback:
    """What a run held at each of its moments.

    `tokens` and `sessions` are int64[moments, nodes, len(PARTS)], `pool` int64[moments] and `times_ps`, the
    moments themselves, as well. `room_tokens` is what a node has for sessions.
    """

    times_ps: Ints
    tokens: Ints
    sessions: Ints
    pool: Ints
    room_tokens: int
    node_ids: list[str]

    def used(self, moment: int, node: int) -> int:
        """The contexts of all sessions with a place there; more than `room_tokens` where they overbook."""
        return int(self.tokens[moment, node, : len(HOLDING)].sum())

    def cached(self, moment: int, node: int) -> int:
        """What is cached there for sessions without a place, as far as places leave room."""
        found = int(self.tokens[moment, node, PARTS.index("cached")])
        return min(found, max(self.room_tokens - self.used(moment, node), 0))

    def free(self, moment: int, node: int) -> int:
        """The rest of the room."""
        return max(self.room_tokens - self.used(moment, node), 0) - self.cached(moment, node)

    def over(self, moment: int, node: int) -> int:
        """By how much the contexts of the sessions with a place exceed the room."""
        return max(self.used(moment, node) - self.room_tokens, 0)


class SoFar(NamedTuple):
    """What had happened by some moment: answers begun, their mean waits, and tokens computed again."""

    answers: int
    pool_wait_s: float
    queue_wait_s: float
    again_tokens: int
    done: int


def playback(history: History, moments: int = MOMENTS) -> Playback:
    """The run at `moments` equal steps of its time, from its beginning to its end; ours.

    A session counts with its context as schedulers count it: its prompt until the answer is complete, then
    prompt and answer, without the prefix that all share. It reasons from its first step at the engine, waits
    in the engine's queue before that, and holds its place while its tool runs, unless it is paused. `cached`
    is what a session outside left on a node and its next turn then found there; what nobody finds again
    counts as free. A pause that comes with a plan counts when the plan is ready. Raises `InputError`.

    >>> import tao
    >>> played = playback(tao.simulate("swe-lite", "sticky", nodes=1, workers=2, tasks=2), 3)
    >>> played.sessions.sum(axis=(1, 2)).tolist(), played.pool.tolist()
    ([2, 2, 0], [0, 0, 0])
    """
    checks.whole(moments, "moments", 2)
    shared = int(history.settings.get("shared_prefix_tokens", 0))
    times = np.array([history.end_ps * k // (moments - 1) for k in range(moments)], np.int64)
    parts = *PARTS, POOL
    rows = np.array([(*stay[:2], parts.index(stay.part), *stay[3:]) for stay in stays(history)], np.int64)
    _, node, part, begin, end, held = rows.reshape(-1, len(Stay._fields)).T
    shape = moments + 1, len(history.node_ids), len(parts)
    tokens, sessions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for edge, sign in ((begin, 1), (end, -1)):
        places = np.searchsorted(times, edge), np.maximum(node, 0), part
        np.add.at(tokens, places, sign * np.maximum(held - shared, 0))
        np.add.at(sessions, places, sign)
    tokens, sessions = (each.cumsum(axis=0)[:-1] for each in (tokens, sessions))
    tokens, sessions, pool = tokens[..., :-1], sessions[..., :-1], sessions[..., -1].sum(axis=1)
    room = int(history.settings["capacity_tokens"]) - shared
    return Playback(times, tokens, sessions, pool, room, history.node_ids)


def stays(history: History) -> Iterator[Stay]:
    """Everything that every session does, turn by turn."""
    moves = _moves(history)
    turns = {(row.session, row.turn): row for row in history.turns}
    for row in turns.values():
        yield from _asking(row)
        after = turns.get((row.session, row.turn + 1))
        mine = moves.get(row.session, [])
        yield from _acting(row, after, [move for move in mine if move[0] >= row.submitted_ps])


def _asking(row: TurnRow) -> Iterator[Stay]:
    i, b, prompt = row.session, row.node, row.prompt_tokens
    yield Stay(i, b, POOL, row.arrived_ps, row.submitted_ps, prompt)
    yield Stay(i, b, "queue", row.submitted_ps, row.scheduled_ps, prompt)
    yield Stay(i, b, "reasoning", row.scheduled_ps, row.finished_ps, prompt)


def _acting(row: TurnRow, after: TurnRow | None, moves: Iterable[tuple[int, int]]) -> Iterator[Stay]:
    """While its tool runs: on its node, or outside after a pause, or placed again meanwhile."""
    i, end, context = row.session, row.tool_end_ps, row.prompt_tokens + row.output_tokens
    edges = [(row.finished_ps, row.node)]
    edges += [(max(at, row.finished_ps), b) for at, b in moves if at < end]
    found = after.hit_tokens if after is not None and after.node == row.node else 0
    for (begin, b), until in zip(edges, [*(at for at, _ in edges[1:]), end], strict=True):
        yield Stay(i, b, POOL if b < 0 else "tool", begin, until, context)
        if b < 0 < found:
            yield Stay(i, row.node, "cached", begin, until, found)
    if after is not None and found > 0:
        yield Stay(i, row.node, "cached", end, after.submitted_ps, found)


def _moves(history: History) -> dict[int, list[tuple[int, int]]]:
    """Each session's placements (when, node) and pauses (when, -1), in order."""
    at_ps, planned = history.decision_rows.array[:, [AT_PS, PLANNED]].T
    found: dict[int, list[tuple[int, int]]] = {}
    rows = history.move_rows.array.tolist()
    # A plan pauses before it is made and places when it is ready; others place first, as recorded.
    rows.sort(key=lambda move: (move[DECISION], (move[VERDICT] == PAUSED) != planned[move[DECISION]]))
    for move in rows:
        if move[VERDICT] in (OK, PAUSED):
            where = int(move[NODE]) if move[VERDICT] == OK else -1
            found.setdefault(move[SESSION], []).append((int(at_ps[move[DECISION]]), where))
    return found


def so_far(history: History, now_ps: int) -> SoFar:
    """What had happened by `now_ps`: answers begun at an engine, waits, and tokens computed a second time.

    Computed again is what repeats the conversation and was not found, and what preemptions cost.

    >>> import tao
    >>> run = tao.simulate("swe-lite", "sticky", nodes=1, workers=2, tasks=2)
    >>> so_far(run, run.end_ps).done, so_far(run, -1).answers
    (2, 0)
    """
    begun = history.column("scheduled_ps") <= now_ps
    columns: Any = history.turn_rows.array[begun].T
    turns: Any = TurnRow(*columns)
    lost = np.maximum(turns.reusable_tokens - turns.hit_tokens, 0)
    finished = turns.finished_ps <= now_ps  # when a preempted one was computed again is not recorded
    again = lost.sum() + np.maximum(turns.recomputed_tokens, 0)[finished].sum()
    return SoFar(
        int(begun.sum()),
        _mean_s(turns.submitted_ps - turns.arrived_ps),
        _mean_s(turns.scheduled_ps - turns.submitted_ps),
        int(again),
        sum(at <= now_ps for at in history.finished_ps.values()),
    )


def happened(history: History, after_ps: int, until_ps: int) -> dict[str, list[str]]:
    """Who was placed by a decision, paused, and done after one moment and until another, in order.

    >>> import tao
    >>> run = tao.simulate("swe-lite", "tao", nodes=1, workers=1, tasks=1)
    >>> happened(run, -1, run.end_ps)
    {'placed': ['swe-lite-0000'], 'paused': [], 'done': ['swe-lite-0000']}
    """
    moves = sorted((at, session, where) for session, each in _moves(history).items() for at, where in each)
    within = [(session, where) for at, session, where in moves if after_ps < at <= until_ps]
    ends = sorted((at, session) for session, at in history.finished_ps.items() if after_ps < at <= until_ps)
    names = history.session_ids
    return {
        "placed": [names[session] for session, where in within if where >= 0],
        "paused": [names[session] for session, where in within if where < 0],
        "done": [names[session] for _, session in ends],
    }


def _mean_s(times_ps: Any) -> float:
    return float(times_ps.mean()) / PS_PER_S if len(times_ps) else 0.0
