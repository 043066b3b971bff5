"""What a run leaves behind: one row per turn and one record per decision, times in whole picoseconds.

A live run writes the same format, so that every table and chart works on both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tao.model import Plan, Snapshot


class TurnRow(NamedTuple):
    """One turn. Pool wait, queue wait, prefill, decode and tool are the differences of its times.

    `promised_tokens` is the cache credit of the pair when the session was placed for this turn
    (-1: it was on its node already); `hit_tokens` is what the engine then found in its cache.
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
    hit_tokens: int
    output_tokens: int
    recomputed_tokens: int
    preemptions: int
    promised_tokens: int


class DecisionRow(NamedTuple):
    """One tick that had something to say: placements (session, node) applied and dropped, and pauses.

    `at_ps` is when it was carried out and `pool` how many sessions it had to choose from. `snapshot` is
    what it was decided on and `plan` the plan, where the run was asked to keep them.
    """

    at_ps: int
    pool: int
    placed: tuple[tuple[str, str], ...]
    dropped: tuple[tuple[str, str, str], ...]  # session, node, reason
    paused: tuple[str, ...]
    states: int = 0
    reason: str = ""
    snapshot: Snapshot | None = None
    plan: Plan | None = None


@dataclass(slots=True)
class History:
    """The record of one run, with the settings that produced it."""

    settings: dict[str, Any]
    session_ids: list[str]
    node_ids: list[str]
    turns: list[TurnRow] = field(default_factory=list)  # in order of completion
    decisions: list[DecisionRow] = field(default_factory=list)
    started_ps: dict[int, int] = field(default_factory=dict)  # by session: when a worker took it
    finished_ps: dict[int, int] = field(default_factory=dict)
    live_token_ps: int = 0  # integral of the contexts of all sessions on the cluster over time
    steps: int = 0
    end_ps: int = 0
    notes: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        return (
            f"History({self.settings.get('policy')}: {len(self.finished_ps)} sessions, "
            f"{len(self.turns)} turns, {len(self.decisions)} decisions, {self.end_ps / 1e12:.1f} s)"
        )
