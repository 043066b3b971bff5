"""What a run leaves behind: one row per turn and one record per decision, times in whole picoseconds.

A live run writes the same format, so that every table and chart works on both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tao.assign import OK
from tao.model import Plan, Snapshot

Ints = npt.NDArray[np.int64]


class TurnRow(NamedTuple):
    """One turn. Pool wait, queue wait, prefill, decode and tool are the differences of its times.

    `reusable_tokens` is how much of the prompt repeats the conversation so far. `promised_tokens` is the
    cache credit of the pair when the session was placed for this turn (-1: it was on its node already);
    `hit_tokens` is what the engine then found in its cache. In a live run -1 is
    unknown: hits where a server does not tell, recomputed tokens and preemptions always.
    """

    session: int
    turn: int
    node: int
    arrived_ps: int
    submitted_ps: int
    scheduled_ps: int
    first_token_ps: int
    finished_ps: int
    tool_end_ps: int
    prompt_tokens: int
    reusable_tokens: int
    hit_tokens: int
    output_tokens: int
    recomputed_tokens: int
    preemptions: int
    promised_tokens: int


TOOL_END_PS = TurnRow._fields.index("tool_end_ps")

# Columns of History.decision_rows, one row per tick that had something to say.
AT_PS, POOL_SIZE, STATES, FALLBACK, PLANNED = range(5)
# Columns of History.move_rows, one row per placement or pause.
DECISION, SESSION, NODE, VERDICT = range(4)
PAUSED = -1  # in the column VERDICT; otherwise a verdict of `assign`

REASONS = {0: "", 1: "more states than the budget, so bfd placed", 2: "dp would have left a node empty"}
_DROPPED = {1: "session changed", 2: "would overflow"}


class DecisionRow(NamedTuple):
    """One tick that had something to say: placements (session, node) applied and dropped, and pauses.

    `at_ps` is when it was carried out and `pool` how many sessions it had to choose from. `planned` is
    True if a planner was asked. `snapshot` is what it was decided on and `plan` the plan, where kept.
    """

    at_ps: int
    pool: int
    placed: tuple[tuple[str, str], ...]
    dropped: tuple[tuple[str, str, str], ...]  # session, node, reason
    paused: tuple[str, ...]
    planned: bool = False
    states: int = 0
    reason: str = ""
    snapshot: Snapshot | None = None
    plan: Plan | None = None


class Rows:
    """An int64 table that grows by rows: int64[rows, width] as `array`."""

    def __init__(self, width: int, array: Ints | None = None) -> None:
        self._width = width
        self._array = array
        self._rows: list[list[int]] = []

    def append(self, row: Iterable[int]) -> None:
        """Add one row."""
        self._rows.append(list(row))
        self._array = None

    def set(self, row: int, column: int, value: int) -> None:
        """Change one entry."""
        self._rows[row][column] = value
        self._array = None

    def __len__(self) -> int:
        return len(self._rows) if self._array is None else len(self._array)

    @property
    def array(self) -> Ints:
        """All rows so far."""
        if self._array is None:
            self._array = np.array(self._rows, np.int64).reshape(-1, self._width)
        return self._array


@dataclass(slots=True)
class History:
    """The record of one run, with the settings that produced it."""

    settings: dict[str, Any]
    session_ids: list[str]
    node_ids: list[str]
    turn_rows: Rows = field(default_factory=lambda: Rows(len(TurnRow._fields)))  # in order of completion
    decision_rows: Rows = field(default_factory=lambda: Rows(5))
    move_rows: Rows = field(default_factory=lambda: Rows(4))
    kept: dict[int, tuple[Snapshot, Plan | None]] = field(default_factory=dict)  # by decision
    started_ps: dict[int, int] = field(default_factory=dict)  # by session: when it came onto the cluster
    finished_ps: dict[int, int] = field(default_factory=dict)
    steps: int = 0
    events: int = 0
    end_ps: int = 0
    notes: list[str] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)  # by session: why it ended early, in a live run
    job_ends: Ints | None = None  # int64[jobs, 2]: (session, turn) after which a person was waited for

    @property
    def turns(self) -> list[TurnRow]:
        """Every turn, in order of completion."""
        return [TurnRow(*row) for row in self.turn_rows.array.tolist()]

    def column(self, name: str) -> Ints:
        """One field of `TurnRow` for every turn: int64[turns]."""
        return self.turn_rows.array[:, TurnRow._fields.index(name)]

    @property
    def decisions(self) -> list[DecisionRow]:
        """Every decision that placed, dropped or paused somebody, or asked a planner."""
        moves: list[list[list[int]]] = [[] for _ in range(len(self.decision_rows))]
        for move in self.move_rows.array.tolist():
            moves[move[DECISION]].append(move)
        return [self._decision(k, row, moves[k]) for k, row in enumerate(self.decision_rows.array.tolist())]

    def _decision(self, k: int, row: Sequence[int], moves: Iterable[Sequence[int]]) -> DecisionRow:
        placed, dropped, paused = [], [], []
        for _, i, b, verdict in moves:
            name = self.session_ids[i]
            if verdict == PAUSED:
                paused.append(name)
            elif verdict == OK:
                placed.append((name, self.node_ids[b]))
            else:
                dropped.append((name, self.node_ids[b], _DROPPED[verdict]))
        snapshot, plan = self.kept.get(k, (None, None))
        return DecisionRow(
            row[AT_PS],
            row[POOL_SIZE],
            tuple(placed),
            tuple(dropped),
            tuple(paused),
            bool(row[PLANNED]),
            row[STATES],
            REASONS[row[FALLBACK]],
            snapshot,
            plan,
        )

    def __repr__(self) -> str:
        return (
            f"History({self.settings.get('policy')}: {len(self.finished_ps)} sessions, "
            f"{len(self.turn_rows)} turns, {len(self.decision_rows)} decisions, {self.end_ps / 1e12:.1f} s)"
        )
