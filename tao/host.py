"""A policy at work on a cluster: what is the same wherever it decides, in the stepper and on live servers.

A host knows the time and where requests go; this part keeps the `State` right, asks the policy, carries out
what it decides and records it. So a decision means the same on simulated and on real nodes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from tao import state, valuation
from tao.assign import OK
from tao.checks import shown
from tao.durations import learn
from tao.history import PAUSED, TOOL_END_PS, History
from tao.model import InputError, Params, Plan, Snapshot
from tao.planners import plan
from tao.policies import HOLD, REASONING, TOOL, WAITING, Compiled, Decision, Policy, View
from tao.policies.joint import EMPTY_NODE
from tao.profiles import PS_PER_S
from tao.state import Ints


class Host(ABC):
    """Sessions, nodes and one policy; a subclass moves `now_ps` on, tells what happens, calls `_decide`."""

    def __init__(self, policy: Policy, params: Params, view: View, keep_snapshots: bool) -> None:
        self.policy, self.params, self.view, self.keep_snapshots = policy, params, view, keep_snapshots
        self.history = History({}, view.session_ids, view.node_ids)
        self.now_ps = 0
        self._arrived_ps: dict[int, int] = {}
        self._promised: dict[int, int] = {}
        self._row_of: dict[int, int] = {}  # the turn whose tool runs
        self._planning: tuple[Decision, Ints, int] | None = None
        self._plan_kept: tuple[Snapshot, Plan] | None = None
        self._changed = False
        self._ticked_ps = -1
        self._wake_ps: int | None = None

    # --- what a host does by itself -----------------------------------------------------------

    @abstractmethod
    def _send(self, i: int, b: int) -> None:
        """Hand the waiting request of session i to node b."""

    @abstractmethod
    def _wake_later(self, at_ps: int) -> None:
        """Call `_woken` at that moment."""

    @abstractmethod
    def _apply_later(self, cost_s: float) -> None:
        """Call `_apply` when the plan has taken so long."""

    @abstractmethod
    def _look(self, sessions: Sequence[int]) -> None:
        """Before the policy decides: note in the state what it may see of answers and of these sessions."""

    # --- sessions -----------------------------------------------------------------------------

    def _start(self, i: int) -> None:
        """Session i comes onto the cluster."""
        self.history.started_ps.setdefault(i, self.now_ps)
        state.start(self.view.state, i)

    def _arrive(self, i: int, prompt_tokens: int, prefix_tokens: int) -> None:
        """Session i has its next request: straight to its node, to where the policy says, or to the pool."""
        view, row = self.view, self.view.state.session[i]
        state.resize(view.state, i, prompt_tokens)
        row[state.PHASE], row[state.PREFIX] = WAITING, prefix_tokens
        row[state.SINCE_PS] = self._arrived_ps[i] = self.now_ps
        # Where the conversation was rewritten, older cache is no prefix of it any more.
        view.noted_tokens[i] = np.minimum(view.noted_tokens[i], prefix_tokens)
        self._changed = True
        if view.resident[i] >= 0:
            self._submit(i)
        else:
            self._route(i)

    def _route(self, i: int) -> None:
        """Ask the policy where the request of session i goes at once, if anywhere."""
        self._look([i])
        b = self._ask("route", self.view, i)
        if b != HOLD:
            self._place(i, self._checked_node(i, b))

    def _place(self, i: int, b: int) -> None:
        """Session i becomes resident on node b; a waiting request goes there at once."""
        view = self.view
        age_s = self.now_ps / PS_PER_S - int(view.noted_at_ps[i, b]) / PS_PER_S
        noted, half_life_s = int(view.noted_tokens[i, b]), self.params.settings.half_life_s
        self._promised[i] = valuation.decayed(noted, age_s, half_life_s) if noted else 0
        state.move(view.state, i, b)
        if view.phase[i] == WAITING:
            self._submit(i)

    def _submit(self, i: int) -> None:
        view, b = self.view, int(self.view.resident[i])
        view.phase[i] = REASONING
        view.inflight[b] += 1
        view.state.node[b, state.PREFILLING] += view.state.session[i, state.CHARGE]
        self._send(i, b)

    def _first_token(self, i: int, b: int) -> None:
        charge = self.view.state.session[i, state.CHARGE]
        self.view.state.node[b, state.PREFILLING] -= charge
        self.view.state.session[i, state.CHARGE] = 0
        self._changed = self._changed or bool(charge)

    def _answered(self, i: int, b: int, context_tokens: int, noted_tokens: int) -> None:
        """The answer of session i is complete: so much it holds, and so much of it node b may keep."""
        view = self.view
        state.resize(view.state, i, context_tokens)
        view.state.session[i, state.STREAMED] = 0
        view.noted_tokens[i, b], view.noted_at_ps[i, b] = noted_tokens, self.now_ps
        view.last_node[i] = b
        view.inflight[b] -= 1
        view.phase[i] = TOOL
        self._changed = True

    def _acting(self, i: int, kind: int, asked_s: float, due_ps: int = -1) -> None:
        """Session i has called a tool: its kind, what a `sleep` asked for, when it is known to return."""
        row = self.view.state.session[i]
        row[state.TOOL_PS], row[state.TOOL_DUE_PS], row[state.KIND] = self.now_ps, due_ps, kind
        self.view.state.asked_s[i] = asked_s

    def _rest(self, i: int, last: bool) -> None:
        """After an answer: the policy hears of it, and whoever has to leaves its node."""
        view = self.view
        self._ask("on_finish", view, i)
        if view.leaving[i]:
            view.leaving[i] = 0
            state.move(view.state, i, HOLD)
        if last:
            self._end(i)

    def _end(self, i: int) -> None:
        """Session i has had its last answer."""
        state.end(self.view.state, i)
        self.history.finished_ps[i] = self.now_ps

    def _learn(self, i: int) -> None:
        """The tool of session i is done."""
        s = self.view.state
        lasted_s = (self.now_ps - int(s.session[i, state.TOOL_PS])) / PS_PER_S
        learn(s.book, s.session[i, state.KIND], lasted_s, s.settings.statistic)

    def _returned(self, i: int) -> None:
        """Session i goes on: its next request comes."""
        self.history.turn_rows.set(self._row_of.pop(i), TOOL_END_PS, self.now_ps)
        self.view.turn[i] += 1

    # --- decisions ----------------------------------------------------------------------------

    def _decide(self) -> None:
        """After the events of a moment: let an event-driven policy decide, or wake it when it may."""
        if self.policy.period_s is not None or not self._changed or self._planning is not None:
            return
        due_ps = self._ticked_ps + max(round(self.policy.gap_s * PS_PER_S), 1)
        if self._ticked_ps >= 0 and self.now_ps < due_ps:
            self._wake_at(due_ps)
            return
        self._tick()
        if self._changed and self._planning is None:  # somebody was paused
            self._wake_at(self.now_ps + max(round(self.policy.gap_s * PS_PER_S), 1))

    def _wake_at(self, at_ps: int) -> None:
        if self._wake_ps is None or at_ps < self._wake_ps:
            self._wake_ps = at_ps
            self._wake_later(at_ps)

    def _woken(self) -> None:
        """The moment of a wake has come, of one that still counts."""
        self._wake_ps, self._changed = None, True

    def _tick(self) -> None:
        self._changed, self._ticked_ps = False, self.now_ps
        self._look(self.view.pool.tolist())
        decision = self._ask("tick", self.view)
        if not isinstance(decision, Decision):
            raise InputError(f"the policy's tick returned {shown(decision)}; it must return a Decision")
        kept = self._kept(self.view, decision) if self.keep_snapshots else None
        self._decided(decision, self._proposed(decision, self.view), kept)

    def _decided(self, decision: Decision, proposed: Ints, kept: tuple[Snapshot, Plan] | None) -> None:
        """Carry out a decision at once, or when its plan has taken its time."""
        pool = len(self.view.pool)
        if decision.wake_ps is not None and self.policy.period_s is None:
            self._wake_at(max(decision.wake_ps, self.now_ps + 1))
        if decision.cost_s is None:
            self._place_all(decision.placements)
            paused = self._pause(decision.pauses)
            moves = [(i, b, OK) for i, b in decision.placements]
            self._record_decision(decision, pool, [*moves, *((i, -1, PAUSED) for i in paused)], kept)
        else:  # the plan takes its time; what it relies on may change meanwhile
            decision.pauses = self._pause(decision.pauses)
            self._planning = decision, proposed, len(self.view.pool)
            self._plan_kept = kept
            self._apply_later(decision.cost_s)

    def _proposed(self, decision: Decision, view: View) -> Ints:
        """The placements as rows of `State.place`, valued; those of one's own policy by their order."""
        if isinstance(self.policy, Compiled):
            return view.state.place[: len(decision.placements)].copy()
        rows = [
            (i, self._checked_node(i, b), -k, 0, 0, view.turn[i], view.context_tokens[i])
            for k, (i, b) in enumerate(decision.placements)
            if decision.cost_s is not None
        ]
        return np.array(rows, np.int64).reshape(-1, 7)

    def _apply(self) -> None:
        """The plan is there: carry out what still holds."""
        assert self._planning is not None
        (decision, proposed, pool), self._planning = self._planning, None
        verdicts = state.recheck(self.view.state, proposed).tolist()
        moves = [(int(r[0]), int(r[1]), verdict) for r, verdict in zip(proposed, verdicts, strict=True)]
        for i, b, verdict in moves:
            if verdict == OK:
                self._place(i, b)
        pauses = [(i, -1, PAUSED) for i in decision.pauses]
        self._record_decision(decision, pool, [*moves, *pauses], self._plan_kept)

    def _place_all(self, placements: Sequence[tuple[int, int]]) -> None:
        pool = set(self.view.pool.tolist())
        for i, b in placements:
            if i not in pool:
                name = repr(self.view.session_ids[i]) if 0 <= i < len(self.view.session_ids) else i
                raise InputError(
                    f"the policy placed session {name}, which is not in the waiting pool; "
                    f"place sessions of the pool only, each once"
                )
            pool.remove(i)
            self._place(i, self._checked_node(i, b))

    def _pause(self, pauses: Sequence[int]) -> list[int]:
        """Pause now, or mark a session that is answering; returns those that were not marked already."""
        view, new = self.view, []
        for i in pauses:
            if view.resident[i] < 0 or view.leaving[i]:
                continue
            new.append(i)
            if view.phase[i] == REASONING:
                view.leaving[i] = 1
            else:
                state.move(view.state, i, HOLD)
                self._changed = True
        return new

    # --- records and errors -------------------------------------------------------------------

    def _record_turn(
        self, i: int, b: int, times_ps: tuple[int, int, int, int], counts: Sequence[int]
    ) -> None:
        """Times: submitted, scheduled, first token, finished; counts: prompt_tokens to preemptions."""
        self._row_of[i] = len(self.history.turn_rows)
        about = (i, int(self.view.turn[i]), b, self._arrived_ps[i])
        self.history.turn_rows.append([*about, *times_ps, self.now_ps, *counts, self._promised.pop(i, -1)])

    def _record_decision(
        self,
        decision: Decision,
        pool: int,
        moves: Sequence[tuple[int, int, int]],
        kept: tuple[Snapshot, Plan] | None,
    ) -> None:
        planned = decision.cost_s is not None
        if not (moves or planned):
            return
        k = len(self.history.decision_rows)
        row = (self.now_ps, pool, decision.states, decision.fallback, int(planned))
        self.history.decision_rows.append(row)
        for i, b, verdict in moves:
            self.history.move_rows.append((k, i, b, verdict))
        if kept is not None:
            self.history.kept[k] = kept

    def _kept(self, view: View, decision: Decision) -> tuple[Snapshot, Plan] | None:
        """What a planner decides on, and the same plan as `tao.plan` makes it."""
        if decision.cost_s is None:
            return None
        gone = frozenset(i for i in decision.pauses if view.phase[i] != REASONING)
        snapshot = view.freeze(gone)
        # Where the budget was too small, `plan` finds that out by itself.
        planner = "bfd" if decision.fallback == EMPTY_NODE else self.params.planner
        return snapshot, plan(snapshot, planner, self.params)

    def _ask(self, what: str, view: View, *session: int) -> Any:
        """Call a function of the policy; what goes wrong inside is reported with where and when."""
        try:
            return getattr(self.policy, what)(view, *session)
        except InputError:
            raise
        except Exception as error:
            about = "".join(f" for session {view.session_ids[i]!r}" for i in session)
            at_s = self.now_ps / PS_PER_S
            raise InputError(
                f"the policy's {what}{about} raised {type(error).__name__} at {at_s:.3f} s: {error}; see "
                "the traceback above and mend it"
            ) from error

    def _checked_node(self, i: int, b: int) -> int:
        if not isinstance(b, int | np.integer) or not 0 <= b < len(self.view.node_ids):
            raise InputError(
                f"the policy sent session {self.view.session_ids[i]!r} to node {shown(b)}; "
                f"there are nodes 0 to {len(self.view.node_ids) - 1}, and HOLD ({HOLD})"
            )
        return int(b)
