"""What a policy may see, for people: a `State` with names, and the `Snapshot` of a moment."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tao import durations, state
from tao.durations import Book, Kinds
from tao.model import CacheNote, Node, Params, Session, Snapshot, ToolCall
from tao.profiles import PS_PER_S
from tao.state import HOLD as HOLD
from tao.state import NEW, REASONING, TOOL, WAITING, Ints, State

_PHASE_NAMES = {WAITING: "waiting", REASONING: "reasoning", TOOL: "tool"}


class View:
    """Names and arrays of a cluster; every array is int64 and a window into `state`, times in picoseconds.

    Per session (n): `phase`, `context_tokens`, `turn`, `resident` (its node; -1: it is in the waiting pool),
    `leaving` (set it to 1 and the session goes to the pool when its answer is complete), `last_node`,
    `waiting_since_ps`, `streamed_tokens` (of the answer so far). Per node (m): `capacity_tokens`,
    `residents`, `used_tokens` (contexts of residents), `inflight` (requests). Per pair (n x m):
    `noted_tokens` and `noted_at_ps`, the prefix last seen there and when.

    >>> view = View(["a", "b"], [1000, 2000], Params())
    >>> view.node_ids, view.capacity_tokens.tolist(), view.pool.tolist()
    (['n0', 'n1'], [1000, 2000], [])
    """

    def __init__(
        self,
        session_ids: Sequence[str],
        capacity_tokens: Sequence[int],
        params: Params,
        kinds: Kinds | None = None,
        room: Ints | None = None,
        shared_prefix_tokens: int = 0,
        seed: int = 0,
    ) -> None:
        """A cluster on which no session has started; nodes are called n0, n1, ...

        `kinds` of tools, with `room` for so many calls of each.
        """
        n, m = len(session_ids), len(capacity_tokens)
        self.params = params
        self.session_ids = list(session_ids)
        self.node_ids = [f"n{b:0{len(str(m - 1))}}" for b in range(m)]
        self.kinds = kinds or Kinds()
        session = np.zeros((n, state.SESSION_COLUMNS), np.int64)
        for column in (state.RESIDENT, state.LAST_NODE, state.TOOL_DUE_PS, state.POOL_AT, state.LIVE_AT):
            session[:, column] = -1
        node = np.zeros((m, state.NODE_COLUMNS), np.int64)
        node[:, state.CAPACITY] = capacity_tokens
        clock = np.zeros(state.CLOCK_ENTRIES, np.int64)
        clock[state.SHARED], clock[state.RANDOM] = shared_prefix_tokens, seed & 0x7FFFFFFF
        self.state = State(
            session=session,
            node=node,
            pair=np.zeros((n, m, 3), np.int64),
            live=np.zeros(n, np.int64),
            pool=np.zeros(n, np.int64),
            clock=clock,
            asked_s=np.full(n, np.nan),
            by_rank=np.zeros(n, np.int64),
            place=np.zeros((n, 7), np.int64),
            pause=np.zeros(n, np.int64),
            book=self.kinds.book(np.ones(len(self.kinds.names), np.int64) if room is None else room),
            settings=params.settings,
            session_memory=np.full((n, 2), -1, np.int64),
            node_memory=np.zeros((m, 4), np.int64),
            pair_memory=np.zeros((n, m, 4), np.int64),
        )
        self._name()
        self.rename(0, session_ids)

    def rename(self, first: int, session_ids: Sequence[str]) -> None:
        """From session `first` on these are the ids; the order of ids follows."""
        s, last = self.state, first + len(session_ids)
        self.session_ids[first:last] = session_ids
        s.by_rank[:] = sorted(range(len(self.session_ids)), key=lambda i: self.session_ids[i])
        s.session[s.by_rank, state.RANK] = np.arange(len(s.by_rank))
        s.session[first:last, state.KEY] = [zlib.crc32(name.encode()) for name in session_ids]

    def _name(self) -> None:
        session, node = self.state.session, self.state.node
        self.phase = session[:, state.PHASE]
        self.context_tokens = session[:, state.CONTEXT]
        self.turn = session[:, state.TURN]
        self.resident = session[:, state.RESIDENT]
        self.leaving = session[:, state.LEAVING]
        self.last_node = session[:, state.LAST_NODE]
        self.waiting_since_ps = session[:, state.SINCE_PS]
        self.streamed_tokens = session[:, state.STREAMED]
        self.capacity_tokens = node[:, state.CAPACITY]
        self.used_tokens = node[:, state.USED]
        self.residents = node[:, state.RESIDENTS]
        self.inflight = node[:, state.INFLIGHT]
        self.noted_tokens = self.state.pair[:, :, state.NOTED]
        self.noted_at_ps = self.state.pair[:, :, state.NOTED_PS]

    def copy(self) -> View:
        """The same moment in arrays of its own, for a planner beside the host."""
        twin = copy.copy(self)
        twin.state = State(*(_copied(part) for part in self.state))
        twin._name()
        return twin

    @property
    def now_ps(self) -> int:
        """The moment, in picoseconds."""
        return int(self.state.clock[state.NOW_PS])

    @property
    def live(self) -> Ints:
        """Indices of the sessions on the cluster, ascending."""
        return np.sort(self.state.live[: self.state.clock[state.LIVE]])

    @property
    def pool(self) -> Ints:
        """Indices of the waiting pool, ascending."""
        return np.sort(self.state.pool[: self.state.clock[state.POOL]])

    def residents_of(self, b: int) -> Ints:
        """Indices of the sessions on node b, ascending."""
        return np.flatnonzero(self.resident == b)

    def tool(self, i: int) -> ToolCall | None:
        """The running tool of session i, with what history expects of it as of now."""
        s, row = self.state, self.state.session[i]
        if row[state.PHASE] != TOOL:
            return None
        name, command_class = self.kinds.names[row[state.KIND]]
        asked_s, due_ps = float(s.asked_s[i]), int(row[state.TOOL_DUE_PS])
        ran_s = self.now_ps / PS_PER_S - int(row[state.TOOL_PS]) / PS_PER_S
        still = state.still_running(s, i)
        expected_s = durations.expected_s(s.book, row[state.KIND], ran_s, still, s.settings)
        return ToolCall(
            name,
            int(row[state.TOOL_PS]) / PS_PER_S,
            command_class,
            None if np.isnan(asked_s) else f"sleep {asked_s!r}",
            None if due_ps < 0 else due_ps / PS_PER_S,
            None if np.isnan(expected_s) else float(expected_s),
        )

    def freeze(self, paused: frozenset[int] = frozenset()) -> Snapshot:
        """The snapshot of this moment; `paused` sessions count as in the pool already."""
        nodes = [Node(name, int(c)) for name, c in zip(self.node_ids, self.capacity_tokens, strict=True)]
        sessions = [self._session(int(i), int(i) in paused) for i in self.live]
        shared = int(self.state.clock[state.SHARED])
        return Snapshot(self.now_ps / PS_PER_S, tuple(nodes), tuple(sessions), shared)

    def _session(self, i: int, paused: bool) -> Session:
        b = -1 if paused else int(self.resident[i])
        waiting = b < 0 and self.phase[i] == WAITING
        return Session(
            self.session_ids[i],
            int(self.context_tokens[i]),
            _PHASE_NAMES[int(self.phase[i])],  # type: ignore[arg-type]
            int(self.turn[i]),
            None if b < 0 else self.node_ids[b],
            int(self.waiting_since_ps[i]) / PS_PER_S if waiting else None,
            {
                self.node_ids[c]: CacheNote(
                    int(self.noted_tokens[i, c]), int(self.noted_at_ps[i, c]) / PS_PER_S
                )
                for c in np.flatnonzero(self.noted_tokens[i])
            },
            self.tool(i),
        )

    def stuck(self) -> str:
        """What to say when nothing can happen any more."""
        pool, more = self.pool, ", ..." if len(self.node_ids) > 8 else ""
        return (
            f"the run cannot go on at {self.now_ps / PS_PER_S:.1f} s: nothing runs, {len(pool)} sessions "
            f"wait, and the policy places none; session {self.session_ids[int(pool[0])]!r} needs "
            f"{int(self.context_tokens[pool[0]]):,} tokens, the nodes hold "
            f"{', '.join(f'{c:,}' for c in self.capacity_tokens[:8])}{more}"
        )

    def recount(self) -> None:
        """Make lists and sums agree with `phase`, `resident` and `context_tokens` that were set by hand."""
        s = self.state
        on_cluster = np.flatnonzero((self.phase >= WAITING) & (self.phase <= TOOL))
        outside = on_cluster[self.resident[on_cluster] < 0]
        for items, entry, column, found in (
            (s.live, state.LIVE, state.LIVE_AT, on_cluster),
            (s.pool, state.POOL, state.POOL_AT, outside),
        ):
            s.session[:, column] = -1
            s.session[found, column] = np.arange(len(found))
            items[: len(found)], s.clock[entry] = found, len(found)
        for b in range(len(s.node)):
            inside = self.residents_of(b)
            self.residents[b], self.used_tokens[b] = len(inside), self.context_tokens[inside].sum()


def _copied(part: Any) -> Any:
    if isinstance(part, Book):
        return Book(*(_copied(array) for array in part))
    return part.copy() if isinstance(part, np.ndarray) else part


__all__ = ["HOLD", "NEW", "REASONING", "TOOL", "WAITING", "View"]
