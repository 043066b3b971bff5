"""A readable stepper of the whole cluster: closed-loop workers, nodes, tools, and one policy.

Each worker runs one session at a time: request, tool, request, ... until it ends, then takes the
next session of the workload. `Cluster.step` advances to the next moment at which something
happens; everything that happens at one moment is handled in a fixed order, so that a run is a
function of its arguments and can be repeated up to any point. This is plain Python on purpose: it is
the oracle of the compiled engine and the place where a policy written in a notebook runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tao import valuation
from tao.checks import shown
from tao.history import DecisionRow, History, TurnRow
from tao.model import CacheNote, InputError, Params, Snapshot, ToolCall
from tao.node import Request, SimNode
from tao.policies import DONE, HOLD, REASONING, TOOL, WAITING, Decision, Policy, View
from tao.profiles import DEFAULT_PROFILE, PROFILES, PS_PER_S, Profile
from tao.readiness import History as ToolHistory
from tao.worker import Dropped, revalidate
from tao.workloads import Turn, Workload

TOOL_END, APPLY, PERIOD, WAKE, STEP = range(5)  # kinds of events, in the order a moment handles them
LAST_PS = 2**62  # int64 picoseconds end after 53 days
STUCK_PS = 3 * 3600 * PS_PER_S  # ours: this long without any request or tool running means stuck


class Cluster:
    """The state of a run: `step()` until it returns False, or `run(until_s)`; `snapshot()` at any time.

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
    ) -> None:
        self.workload, self.policy, self.workers = workload, policy, workers
        self.params = params or Params()
        self.keep_snapshots, self.after_event = keep_snapshots, after_event
        self.nodes = [SimNode(profile, capacity_tokens) for _ in range(nodes)]
        self.view = View.empty([t.id for t in workload.tasks], [n.capacity_tokens for n in self.nodes])
        self.tool_history = ToolHistory()
        self.history = History({}, self.view.session_ids, self.view.node_ids, notes=list(workload.notes))
        self.now_ps = 0
        self._heap: list[tuple[int, int, int]] = []
        self._next_task = 0
        self._requests: dict[int, Request] = {}  # at the engines
        self._arrived_ps: dict[int, int] = {}
        self._promised: dict[int, int] = {}
        self._planning: tuple[Decision, int] | None = None
        self._changed = False
        self._ticked_ps = -1
        self._wake_ps: int | None = None
        self._busy_ps = 0
        self._live_tokens = 0
        for _ in range(min(workers, len(workload.tasks))):
            self._start_task()
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

        First all events of the moment, then the policy, then every node that is free to go on: requests
        that come at the same moment are in the same batch, whatever their order.
        """
        if self.done:
            return False
        if not self._heap:
            raise InputError(self._stuck())
        now_ps = self._heap[0][0]
        self.history.live_token_ps += self._live_tokens * (now_ps - self.now_ps)
        self.now_ps = self.view.now_ps = self.history.end_ps = now_ps
        handlers = (self._tool_end, self._apply, self._period, self._wake, self._node_step)
        while self._heap and self._heap[0][0] == now_ps:
            _, kind, index = heapq.heappop(self._heap)
            handlers[kind](index)
            if not self._heap or self._heap[0][0] > now_ps:
                self._decide()
        self._start_nodes()
        return not self.done

    @property
    def done(self) -> bool:
        """True once every session of the workload has finished."""
        return len(self.history.finished_ps) == len(self.workload.tasks)

    def snapshot(self) -> Snapshot:
        """The cluster as a planner would see it now."""
        self._estimate_tools()
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
        self._arrive(i)

    def _turn(self, i: int) -> Turn:
        return self.workload.tasks[i].turns[int(self.view.turn[i])]

    def _arrive(self, i: int) -> None:
        """Session i has its next request: straight to its node, to where the policy says, or to the pool."""
        view, turn = self.view, self._turn(i)
        self._grow(i, turn.prompt_tokens)
        view.phase[i] = WAITING
        view.waiting_since_ps[i] = self._arrived_ps[i] = self.now_ps
        # Where the conversation was rewritten, older cache is no prefix of it any more.
        view.noted_tokens[i] = np.minimum(view.noted_tokens[i], turn.prefix_tokens)
        self._changed = True
        if view.resident[i] >= 0:
            self._submit(i)
            return
        self._count_streamed()
        b = self.policy.route(view, i)
        if b != HOLD:
            self._place(i, self._checked_node(i, b))

    def _place(self, i: int, b: int) -> None:
        """Session i becomes resident on node b; a waiting request goes there at once."""
        view = self.view
        note = CacheNote(int(view.noted_tokens[i, b]), int(view.noted_at_ps[i, b]) / PS_PER_S)
        self._promised[i] = valuation.credit(note, self.now_ps / PS_PER_S, self.params)
        view.resident[i] = b
        if view.phase[i] == WAITING:
            self._submit(i)

    def _submit(self, i: int) -> None:
        view, turn, b = self.view, self._turn(i), int(self.view.resident[i])
        # What an earlier turn left on this node and no later turn has rewritten.
        reusable = int(view.noted_tokens[i, b])
        request = Request(i, turn.prompt_tokens, turn.output_tokens, reusable)
        self._requests[i] = request
        view.phase[i] = REASONING
        self.nodes[b].submit(request, self.now_ps)

    def _node_step(self, b: int) -> None:
        for event in self.nodes[b].finish(self.now_ps):
            if event.kind == "finished":
                self._finish(event.request, b)

    def _start_nodes(self) -> None:
        for b, node in enumerate(self.nodes):
            if node.ends_ps is None:
                node.start(self.now_ps)
                if node.ends_ps is not None:
                    self._push(node.ends_ps, STEP, b)
        self.history.steps = sum(node.steps for node in self.nodes)
        if self.after_event is not None:
            self.after_event(self)

    def _finish(self, request: Request, b: int) -> None:
        view, i = self.view, request.session
        turn, last = self._turn(i), view.turn[i] + 1 == len(self.workload.tasks[i].turns)
        self._grow(i, turn.context_tokens)
        del self._requests[i]
        view.streamed_tokens[i] = 0
        view.noted_tokens[i, b], view.noted_at_ps[i, b] = request.computed, self.now_ps
        view.last_node[i] = b
        tool_end_ps = self.now_ps if last else self.now_ps + round(turn.tool_s * PS_PER_S)
        self._record(request, b, tool_end_ps)
        self._changed = True
        view.phase[i] = TOOL
        if not last:
            view.tools[i] = _tool_call(turn, self.now_ps)
            self._push(tool_end_ps, TOOL_END, i)
        self.policy.on_finish(view, i)
        if view.leaving[i] or last:
            view.leaving[i], view.resident[i] = 0, -1
        if last:
            self._grow(i, 0)
            view.phase[i] = DONE
            self.history.finished_ps[i] = self.now_ps
            if self._next_task < len(self.workload.tasks):
                self._start_task()

    def _tool_end(self, i: int) -> None:
        call = self.view.tools.pop(i)
        turn = self._turn(i)
        self.tool_history.add(call.name, call.command_class, turn.tool_s)
        self.view.turn[i] += 1
        self._arrive(i)

    def _grow(self, i: int, tokens: int) -> None:
        self._live_tokens += tokens - int(self.view.context_tokens[i])
        self.view.context_tokens[i] = tokens

    # --- decisions ----------------------------------------------------------------------------

    def _decide(self) -> None:
        """After the events of a moment: let an event-driven policy decide, or wake it when it may."""
        if self.policy.period_s is not None or not self._changed or self._planning is not None:
            return
        due_ps = self._ticked_ps + max(round(self.policy.gap_s * PS_PER_S), 1)
        if self._ticked_ps < 0 or due_ps <= self.now_ps:
            self._tick()
        else:
            self._wake_at(due_ps)

    def _wake_at(self, at_ps: int) -> None:
        if self._wake_ps is None or at_ps < self._wake_ps:
            self._wake_ps = at_ps
            self._push(at_ps, WAKE)

    def _wake(self, _: int) -> None:
        if self._wake_ps == self.now_ps:
            self._wake_ps, self._changed = None, True

    def _period(self, _: int) -> None:
        if self._planning is None:
            self._tick()
        self._push(self.now_ps + round((self.policy.period_s or 0.0) * PS_PER_S), PERIOD)
        self._watch_for_standstill()

    def _tick(self) -> None:
        self._changed, self._ticked_ps = False, self.now_ps
        self._estimate_tools()
        self._count_streamed()
        decision = self.policy.tick(self.view)
        if not isinstance(decision, Decision):
            raise InputError(f"the policy's tick returned {shown(decision)}; it must return a Decision")
        pool = len(self.view.pool) if decision.snapshot is None else len(decision.snapshot.pool)
        if decision.wake_ps is not None and self.policy.period_s is None:
            self._wake_at(max(decision.wake_ps, self.now_ps + 1))
        if decision.proposal is None:
            self._place_all(decision.placements)
            decision.pauses = self._pause(decision.pauses)
            self._record_decision(decision, pool, decision.placements, [])
        else:  # the plan takes its time; what it relies on may change meanwhile
            decision.pauses = self._pause(decision.pauses)
            self._planning = decision, pool
            self._push(self.now_ps + round(decision.cost_s * PS_PER_S), APPLY)

    def _apply(self, _: int) -> None:
        assert self._planning is not None
        (decision, pool), self._planning = self._planning, None
        assert decision.proposal is not None
        verdict = revalidate(decision.proposal, self.view.freeze(), self.params)
        index = {self.view.session_ids[i]: int(i) for i in self.view.live}
        placements = [(index[p.session], self.view.node_ids.index(p.node)) for p in verdict.applied]
        self._place_all(placements)
        self._record_decision(decision, pool, placements, verdict.dropped)

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
                view.resident[i] = -1
                self._changed = True
        return new

    def _count_streamed(self) -> None:
        for i, request in self._requests.items():
            self.view.streamed_tokens[i] = request.emitted

    def _estimate_tools(self) -> None:
        """What history expects of each running tool, as of now."""
        for i, call in self.view.tools.items():
            expected_s = self.tool_history.estimate(call.name, call.command_class, self.params.statistic)
            if expected_s != call.expected_s:
                self.view.tools[i] = replace(call, expected_s=expected_s)

    # --- records and errors -------------------------------------------------------------------

    def _record(self, r: Request, b: int, tool_end_ps: int) -> None:
        i = r.session
        row = TurnRow(
            session=i,
            turn=int(self.view.turn[i]),
            node=b,
            arrived_ps=self._arrived_ps[i],
            submitted_ps=r.submitted_ps,
            scheduled_ps=r.scheduled_ps,
            first_token_ps=r.first_token_ps,
            finished_ps=r.finished_ps,
            tool_end_ps=tool_end_ps,
            prompt_tokens=r.prompt_tokens,
            hit_tokens=r.hit_tokens,
            output_tokens=r.output_tokens,
            recomputed_tokens=r.recomputed_tokens,
            preemptions=r.preemptions,
            promised_tokens=self._promised.pop(i, -1),
        )
        self.history.turns.append(row)

    def _record_decision(
        self, decision: Decision, pool: int, placed: Sequence[tuple[int, int]], dropped: Sequence[Dropped]
    ) -> None:
        proposal = decision.proposal
        if not (placed or decision.pauses or proposal):
            return
        ids, nodes = self.view.session_ids, self.view.node_ids
        plan = proposal.plan if proposal else None
        self.history.decisions.append(
            DecisionRow(
                at_ps=self.now_ps,
                pool=pool,
                placed=tuple((ids[i], nodes[b]) for i, b in placed),
                dropped=tuple((d.placement.session, d.placement.node, d.reason) for d in dropped),
                paused=tuple(ids[i] for i in decision.pauses),
                states=plan.states if plan else 0,
                reason=plan.reason if plan else "",
                snapshot=decision.snapshot if self.keep_snapshots else None,
                plan=plan if self.keep_snapshots else None,
            )
        )

    def _checked_node(self, i: int, b: int) -> int:
        if not isinstance(b, int | np.integer) or not 0 <= b < len(self.nodes):
            raise InputError(
                f"the policy sent session {self.view.session_ids[i]!r} to node {shown(b)}; "
                f"there are nodes 0 to {len(self.nodes) - 1}, and HOLD ({HOLD})"
            )
        return int(b)

    def _watch_for_standstill(self) -> None:
        if any(kind in (TOOL_END, APPLY, STEP) for _, kind, _ in self._heap):
            self._busy_ps = self.now_ps
        elif self.now_ps - self._busy_ps > STUCK_PS:
            raise InputError(self._stuck())

    def _stuck(self) -> str:
        pool = self.view.pool
        name, tokens = self.view.session_ids[int(pool[0])], int(self.view.context_tokens[pool[0]])
        return (
            f"the run cannot go on at {self.now_ps / PS_PER_S:.1f} s: nothing runs, {len(pool)} sessions "
            f"wait, and the policy places none; session {name!r} needs {tokens:,} tokens, the nodes hold "
            f"{', '.join(f'{n.capacity_tokens:,}' for n in self.nodes)}"
        )


def _tool_call(turn: Turn, now_ps: int) -> ToolCall:
    command = None if turn.sleep_s is None else f"sleep {turn.sleep_s!r}"
    return ToolCall(turn.tool, now_ps / PS_PER_S, turn.tool_class or None, command)
