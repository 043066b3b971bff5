"""A readable stepper of the whole cluster: sessions, nodes, tools, and one policy.

A session alternates between a request and a tool until it ends. Sessions come one by one as workers get
free, or by themselves. `Cluster.step` advances to the next moment at which something happens;
everything that happens at one moment is handled in a fixed order, so that a run is a function of its
arguments and can be repeated up to any point. This is plain Python on purpose: it is the oracle of the
compiled engine and the place where a policy written in a notebook runs.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tao import state, valuation
from tao.assign import OK
from tao.checks import shown
from tao.history import PAUSED, TOOL_END_PS, History
from tao.model import InputError, Params, Plan, Snapshot
from tao.node import Event, Request, SimNode
from tao.planners import plan
from tao.policies import HOLD, REASONING, TOOL, WAITING, Compiled, Decision, Policy, View
from tao.policies.joint import EMPTY_NODE
from tao.profiles import DEFAULT_PROFILE, PROFILES, PS_PER_S, Profile
from tao.readiness import learn
from tao.state import Ints
from tao.workloads import Turn, Workload

STEP, TOOL_END, ARRIVAL, APPLY, PERIOD, WAKE = range(6)  # kinds of events, in the order a moment handles them
LAST_PS = 2**62  # int64 picoseconds end after 53 days
MAX_WAKES = 100_000  # ours: so many wakes asked for between two events of any other kind mean stuck
STUCK_PS = 3 * 3600 * PS_PER_S  # ours: this long without any request or tool running means stuck


class Cluster:
    """The state of a run: `step()` until it returns False, or `run(until_s)`; `snapshot()` at any time.

    `arrivals_ps`, ascending, one per session: when they come, whatever the number of workers (None: as
    workers get free). `tool_servers`: how many tools run at a time (None: any number).

    >>> from tao.policies import POLICIES
    >>> from tao.workloads import Task, Workload
    >>> turns = (Turn(100, 0, 3, "bash", "read", 0.5), Turn(120, 103, 2))
    >>> work = Workload("one", (Task("a", turns),), 0)
    >>> cluster = Cluster(work, POLICIES["sticky"](Params()), nodes=1, workers=1)
    >>> cluster.run().turns[1].hit_tokens
    96
    """

    def __init__(
        self,
        workload: Workload,
        policy: Policy,
        nodes: int,
        workers: int,
        profile: Profile = PROFILES[DEFAULT_PROFILE],
        capacity_tokens: int | None = None,
        params: Params | None = None,
        keep_snapshots: bool = False,
        after_event: Callable[[Cluster], None] | None = None,
        arrivals_ps: Ints | None = None,
        tool_servers: int | None = None,
    ) -> None:
        self.workload, self.policy, self.workers = workload, policy, workers
        self.params = policy.params if isinstance(policy, Compiled) else params or Params()
        self.keep_snapshots, self.after_event = keep_snapshots, after_event
        shared = workload.shared_prefix_tokens
        self.nodes = [SimNode(profile, capacity_tokens, None, shared) for _ in range(nodes)]
        self.view = View(
            workload.ids,
            [n.capacity_tokens for n in self.nodes],
            self.params,
            workload.kinds,
            workload.calls_of_kind,
            shared,
            workload.seed,
        )
        self.history = History({}, self.view.session_ids, self.view.node_ids, notes=list(workload.notes))
        self.now_ps = 0
        self.arrivals_ps = arrivals_ps
        self._lag_ps = int(getattr(policy, "lag_ps", 0))
        self._idle_servers = len(workload.tasks) if tool_servers is None else tool_servers
        self._tool_queue: deque[int] = deque()
        self._heap: list[tuple[int, int, int]] = []
        self._next_task = 0
        self._requests: dict[int, Request] = {}  # at the engines
        self._arrived_ps: dict[int, int] = {}
        self._promised: dict[int, int] = {}
        self._row_of: dict[int, int] = {}  # the turn whose tool runs
        self._planning: tuple[Decision, Ints, int] | None = None
        self._changed = False
        self._ticked_ps = -1
        self._wake_ps: int | None = None
        self._busy_ps = self._wakes = 0
        self._kept: tuple[Snapshot, Plan] | None = None
        if arrivals_ps is None:
            for _ in range(min(workers, len(workload.tasks))):
                self._start_task()
        else:
            self._push(int(arrivals_ps[0]), ARRIVAL)
        if policy.period_s is not None:
            self._push(round(policy.period_s * PS_PER_S), PERIOD)
        self._decide()
        self._start_nodes()

    def run(self, until_s: float | None = None) -> History:
        """Step to the end, or until the next event lies after `until_s` seconds."""
        until_ps = None if until_s is None else round(until_s * PS_PER_S)
        while not self.done:
            if until_ps is not None and self._heap and self._heap[0][0] > until_ps:
                break
            self.step()
        return self.history

    def step(self) -> bool:
        """Handle the next moment; False once every session is done. Raises `InputError` if stuck.

        First all steps that end at the moment are applied, then its other events, then the policy decides,
        then every node that is free goes on: requests that come at the same moment are in the same batch.
        """
        if self.done:
            return False
        if not self._heap:
            raise InputError(self.view.stuck())
        now_ps = self._heap[0][0]
        self.now_ps = self.view.state.clock[state.NOW_PS] = self.history.end_ps = now_ps
        finished = []
        while self._heap and self._heap[0][:2] == (now_ps, STEP):
            b = heapq.heappop(self._heap)[2]
            self._wakes, self._busy_ps = 0, now_ps
            for event in self._observed(b, self.nodes[b].finish):
                if event.kind == "first token":
                    self._first_token(event.request.session, b)
                else:
                    finished.append((event.request, b))
        for request, b in finished:
            self._finish(request, b)
        handlers = (self._never, self._tool_end, self._arrival, self._apply, self._period, self._wake)
        while True:
            while self._heap and self._heap[0][0] == now_ps:
                _, kind, index = heapq.heappop(self._heap)
                if kind < PERIOD:
                    self._wakes, self._busy_ps = 0, now_ps
                handlers[kind](index)
            self._decide()
            if not self._heap or self._heap[0][0] > now_ps:
                break
        self._start_nodes()
        return not self.done

    @property
    def done(self) -> bool:
        """True once every session of the workload has finished."""
        return len(self.history.finished_ps) == len(self.workload.tasks)

    def snapshot(self) -> Snapshot:
        """The cluster as a planner would see it now."""
        return self.view.freeze()

    # --- what happens -------------------------------------------------------------------------

    def _push(self, at_ps: int, kind: int, index: int = 0) -> None:
        if at_ps >= LAST_PS:
            raise InputError(
                f"the run would go on beyond {LAST_PS / PS_PER_S:,.0f} simulated seconds; "
                "shorten its tools or plan costs, or run fewer sessions at a time"
            )
        heapq.heappush(self._heap, (at_ps, kind, index))

    def _start_task(self) -> None:
        i, self._next_task = self._next_task, self._next_task + 1
        self.history.started_ps[i] = self.now_ps
        state.start(self.view.state, i)
        self._arrive(i)

    def _never(self, b: int) -> None:
        raise AssertionError(f"a step of node {b} ends at the moment it began")

    def _arrival(self, _: int) -> None:
        self._start_task()
        if self._next_task < len(self.workload.tasks):
            assert self.arrivals_ps is not None
            self._push(int(self.arrivals_ps[self._next_task]), ARRIVAL)

    def _turn(self, i: int) -> Turn:
        return self.workload.tasks[i].turns[int(self.view.turn[i])]

    def _arrive(self, i: int) -> None:
        """Session i has its next request: straight to its node, to where the policy says, or to the pool."""
        view, turn, row = self.view, self._turn(i), self.view.state.session[i]
        state.resize(view.state, i, turn.prompt_tokens)
        row[state.PHASE], row[state.PREFIX] = WAITING, turn.prefix_tokens
        row[state.SINCE_PS] = self._arrived_ps[i] = self.now_ps
        # Where the conversation was rewritten, older cache is no prefix of it any more.
        view.noted_tokens[i] = np.minimum(view.noted_tokens[i], turn.prefix_tokens)
        self._changed = True
        if view.resident[i] >= 0:
            self._submit(i)
            return
        self._show(i)
        b = self._ask("route", view, i)
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
        view, turn, b = self.view, self._turn(i), int(self.view.resident[i])
        if turn.context_tokens > int(view.capacity_tokens[b]):
            raise InputError(
                f"session {view.session_ids[i]!r} was sent to node {view.node_ids[b]!r}, where its "
                f"{turn.context_tokens:,} tokens can never fit: it holds {int(view.capacity_tokens[b]):,}; "
                "raise the capacity or leave the session out"
            )
        # What an earlier turn left on this node and no later turn has rewritten.
        reusable = int(view.noted_tokens[i, b])
        request = Request(i, turn.prompt_tokens, turn.output_tokens, reusable)
        self._requests[i] = request
        view.phase[i] = REASONING
        view.inflight[b] += 1
        view.state.node[b, state.PREFILLING] += view.state.session[i, state.CHARGE]
        self._observed(b, partial(self.nodes[b].submit, request))

    def _observed(self, b: int, change: Callable[[int], list[Event] | None]) -> list[Event]:
        """Let node b change at this moment, and keep what may be seen of it from outside."""
        row, node = self.view.state.node, self.nodes[b]
        state.scrape(row, b, self.now_ps, self._lag_ps)
        events = change(self.now_ps)
        row[b, state.RUNNING], row[b, state.QUEUED] = len(node.running), len(node.waiting)
        row[b, state.PINNED] = node.pinned_tokens
        return events or []

    def _first_token(self, i: int, b: int) -> None:
        charge = self.view.state.session[i, state.CHARGE]
        self.view.state.node[b, state.PREFILLING] -= charge
        self.view.state.session[i, state.CHARGE] = 0
        self._changed = self._changed or bool(charge)

    def _start_nodes(self) -> None:
        for b, node in enumerate(self.nodes):
            if node.ends_ps is None:
                self._observed(b, node.start)
                if node.ends_ps is not None:
                    self._push(node.ends_ps, STEP, b)
        self.history.steps = sum(node.steps for node in self.nodes)
        if self.after_event is not None:
            self.after_event(self)

    def _finish(self, request: Request, b: int) -> None:
        view, i = self.view, request.session
        turn, last = self._turn(i), view.turn[i] + 1 == len(self.workload.tasks[i].turns)
        row = view.state.session[i]
        state.resize(view.state, i, turn.context_tokens)
        del self._requests[i]
        row[state.STREAMED] = 0
        view.noted_tokens[i, b], view.noted_at_ps[i, b] = request.computed, self.now_ps
        view.last_node[i] = b
        view.inflight[b] -= 1
        self._record(request, turn, b)
        self._changed = True
        view.phase[i] = TOOL
        if not last:
            script = self.workload.script
            at = script.first[i] + view.turn[i]
            row[state.TOOL_PS], row[state.TOOL_DUE_PS] = self.now_ps, -1
            row[state.KIND], view.state.asked_s[i] = script.kind[at], script.asked_s[at]
            self._call_tool(i)
        self._ask("on_finish", view, i)
        if view.leaving[i] or last:
            view.leaving[i] = 0
            state.move(view.state, i, HOLD)
        if last:
            state.end(view.state, i)
            self.history.finished_ps[i] = self.now_ps
            if self.arrivals_ps is None and self._next_task < len(self.workload.tasks):
                self._start_task()

    def _call_tool(self, i: int) -> None:
        """Run the tool of session i, or queue it where all servers are busy."""
        if not self._idle_servers:
            self._tool_queue.append(i)
            return
        self._idle_servers -= 1
        end_ps = self.now_ps + round(self._turn(i).tool_s * PS_PER_S)
        if getattr(self.policy, "sees_tools", False):
            self.view.state.session[i, state.TOOL_DUE_PS] = end_ps
        self._push(end_ps, TOOL_END, i)

    def _tool_end(self, i: int) -> None:
        s = self.view.state
        self._idle_servers += 1
        if self._tool_queue:
            self._call_tool(self._tool_queue.popleft())
        self.history.turn_rows.set(self._row_of.pop(i), TOOL_END_PS, self.now_ps)
        lasted_s = (self.now_ps - int(s.session[i, state.TOOL_PS])) / PS_PER_S
        learn(s.book, s.session[i, state.KIND], lasted_s, self.params.statistic == "median")
        self.view.turn[i] += 1
        self._arrive(i)

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
            self._push(at_ps, WAKE)

    def _wake(self, _: int) -> None:
        if self._wake_ps == self.now_ps:
            self._wake_ps, self._changed = None, True
            self._wakes += 1
            if self._wakes > MAX_WAKES:
                raise InputError(self.view.stuck())
            self._watch_for_standstill()

    def _period(self, _: int) -> None:
        if self._planning is None:
            self._tick()
        self._push(self.now_ps + round((self.policy.period_s or 0.0) * PS_PER_S), PERIOD)
        self._watch_for_standstill()

    def _tick(self) -> None:
        self._changed, self._ticked_ps = False, self.now_ps
        self._show(*self.view.pool.tolist())
        decision = self._ask("tick", self.view)
        if not isinstance(decision, Decision):
            raise InputError(f"the policy's tick returned {shown(decision)}; it must return a Decision")
        pool = len(self.view.pool)
        if self.keep_snapshots and decision.cost_s is not None:
            self._keep(decision)
        if decision.wake_ps is not None and self.policy.period_s is None:
            self._wake_at(max(decision.wake_ps, self.now_ps + 1))
        if decision.cost_s is None:
            self._place_all(decision.placements)
            paused = self._pause(decision.pauses)
            moves = [(i, b, OK) for i, b in decision.placements]
            self._record_decision(decision, pool, [*moves, *((i, -1, PAUSED) for i in paused)])
        else:  # the plan takes its time; what it relies on may change meanwhile
            proposed = self._proposed(decision)
            decision.pauses = self._pause(decision.pauses)
            self._planning = decision, proposed, len(self.view.pool)
            self._push(self.now_ps + round(decision.cost_s * PS_PER_S), APPLY)

    def _proposed(self, decision: Decision) -> Ints:
        """The placements as rows of `State.place`, valued; those of one's own policy by their order."""
        if isinstance(self.policy, Compiled):
            return self.view.state.place[: len(decision.placements)].copy()
        rows = [
            (i, self._checked_node(i, b), -k, 0, 0, self.view.turn[i], self.view.context_tokens[i])
            for k, (i, b) in enumerate(decision.placements)
        ]
        return np.array(rows, np.int64).reshape(-1, 7)

    def _apply(self, _: int) -> None:
        assert self._planning is not None
        (decision, proposed, pool), self._planning = self._planning, None
        verdicts = state.recheck(self.view.state, proposed).tolist()
        moves = [(int(r[0]), int(r[1]), verdict) for r, verdict in zip(proposed, verdicts, strict=True)]
        for i, b, verdict in moves:
            if verdict == OK:
                self._place(i, b)
        self._record_decision(decision, pool, [*moves, *((i, -1, PAUSED) for i in decision.pauses)])

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

    def _show(self, *sessions: int) -> None:
        """Before a policy decides: what answers have brought so far, and what caches hold of `sessions`."""
        s = self.view.state
        for i, request in self._requests.items():
            s.session[i, state.STREAMED] = request.emitted
        if getattr(self.policy, "sees_cache", False):
            for i in sessions:
                s.pair[i, :, state.CACHED] = [node.cache.held(i) for node in self.nodes]

    # --- records and errors -------------------------------------------------------------------

    def _record(self, r: Request, turn: Turn, b: int) -> None:
        i = r.session
        self._row_of[i] = len(self.history.turn_rows)
        self.history.turn_rows.append(
            [
                *(i, int(self.view.turn[i]), b, self._arrived_ps[i], r.submitted_ps, r.scheduled_ps),
                *(r.first_token_ps, r.finished_ps, self.now_ps, r.prompt_tokens, turn.prefix_tokens),
                *(r.hit_tokens, r.output_tokens, r.recomputed_tokens, r.preemptions),
                self._promised.pop(i, -1),
            ]
        )

    def _record_decision(self, decision: Decision, pool: int, moves: Sequence[tuple[int, int, int]]) -> None:
        planned = decision.cost_s is not None
        if not (moves or planned):
            return
        k = len(self.history.decision_rows)
        row = (self.now_ps, pool, decision.states, decision.fallback, int(planned))
        self.history.decision_rows.append(row)
        for i, b, verdict in moves:
            self.history.move_rows.append((k, i, b, verdict))
        if self._kept is not None:
            self.history.kept[k], self._kept = self._kept, None

    def _keep(self, decision: Decision) -> None:
        """Freeze what a planner decides on, and the same plan as `tao.plan` makes it."""
        gone = frozenset(i for i in decision.pauses if self.view.phase[i] != REASONING)
        snapshot = self.view.freeze(gone)
        # Where the budget was too small, `plan` finds that out by itself.
        planner = "bfd" if decision.fallback == EMPTY_NODE else self.params.planner
        self._kept = snapshot, plan(snapshot, planner, self.params)

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
        if not isinstance(b, int | np.integer) or not 0 <= b < len(self.nodes):
            raise InputError(
                f"the policy sent session {self.view.session_ids[i]!r} to node {shown(b)}; "
                f"there are nodes 0 to {len(self.nodes) - 1}, and HOLD ({HOLD})"
            )
        return int(b)

    def _watch_for_standstill(self) -> None:
        if any(kind in (STEP, TOOL_END, ARRIVAL, APPLY) for _, kind, _ in self._heap):
            self._busy_ps = self.now_ps
        elif self.now_ps - self._busy_ps > STUCK_PS:
            raise InputError(self.view.stuck())
