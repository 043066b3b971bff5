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

from tao import state
from tao.history import History
from tao.host import Host
from tao.model import InputError, Params, Snapshot
from tao.node import Event, Request, SimNode
from tao.policies import Compiled, Policy, View
from tao.profiles import DEFAULT_PROFILE, PROFILES, PS_PER_S, Profile
from tao.state import Ints
from tao.workloads import Turn, Workload

STEP, TOOL_END, ARRIVAL, APPLY, PERIOD, WAKE = range(6)  # kinds of events, in the order a moment handles them
LAST_PS = 2**62  # int64 picoseconds end after 53 days
MAX_WAKES = 100_000  # ours: so many wakes asked for between two events of any other kind mean stuck
STUCK_PS = 3 * 3600 * PS_PER_S  # ours: this long without any request or tool running means stuck


class Cluster(Host):
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
        params = policy.params if isinstance(policy, Compiled) else params or Params()
        shared = workload.shared_prefix_tokens
        self.nodes = [SimNode(profile, capacity_tokens, None, shared) for _ in range(nodes)]
        view = View(
            workload.ids,
            [n.capacity_tokens for n in self.nodes],
            params,
            workload.kinds,
            workload.calls_of_kind,
            shared,
            workload.seed,
        )
        super().__init__(policy, params, view, keep_snapshots)
        self.workload, self.workers = workload, workers
        self.after_event, self.arrivals_ps = after_event, arrivals_ps
        self.history.notes += workload.notes
        self._lag_ps = int(getattr(policy, "lag_ps", 0))
        self._idle_servers = len(workload.tasks) if tool_servers is None else tool_servers
        self._tool_queue: deque[int] = deque()
        self._heap: list[tuple[int, int, int]] = []
        self._next_task = 0
        self._requests: dict[int, Request] = {}  # at the engines
        self._busy_ps = self._wakes = 0
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
        handlers = (self._never, self._tool_end, self._arrival, self._ready, self._period, self._wake)
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
        self._start(i)
        self._request(i)

    def _never(self, b: int) -> None:
        raise AssertionError(f"a step of node {b} ends at the moment it began")

    def _arrival(self, _: int) -> None:
        self._start_task()
        if self._next_task < len(self.workload.tasks):
            assert self.arrivals_ps is not None
            self._push(int(self.arrivals_ps[self._next_task]), ARRIVAL)

    def _turn(self, i: int) -> Turn:
        return self.workload.tasks[i].turns[int(self.view.turn[i])]

    def _request(self, i: int) -> None:
        turn = self._turn(i)
        self._arrive(i, turn.prompt_tokens, turn.prefix_tokens)

    def _send(self, i: int, b: int) -> None:
        view, turn = self.view, self._turn(i)
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
        self._observed(b, partial(self.nodes[b].submit, request))

    def _observed(self, b: int, change: Callable[[int], list[Event] | None]) -> list[Event]:
        """Let node b change at this moment, and keep what may be seen of it from outside."""
        row, node = self.view.state.node, self.nodes[b]
        state.scrape(row, b, self.now_ps, self._lag_ps)
        events = change(self.now_ps)
        row[b, state.RUNNING], row[b, state.QUEUED] = len(node.running), len(node.waiting)
        row[b, state.PINNED] = node.pinned_tokens
        return events or []

    def _start_nodes(self) -> None:
        for b, node in enumerate(self.nodes):
            if node.ends_ps is None:
                self._observed(b, node.start)
                if node.ends_ps is not None:
                    self._push(node.ends_ps, STEP, b)
        self.history.steps = sum(node.steps for node in self.nodes)
        if self.after_event is not None:
            self.after_event(self)

    def _finish(self, r: Request, b: int) -> None:
        i = r.session
        turn, last = self._turn(i), self.view.turn[i] + 1 == len(self.workload.tasks[i].turns)
        del self._requests[i]
        self._answered(i, b, turn.context_tokens, r.computed)
        self._record_turn(
            *(i, b, (r.submitted_ps, r.scheduled_ps, r.first_token_ps, r.finished_ps)),
            (
                r.prompt_tokens,
                turn.prefix_tokens,
                r.hit_tokens,
                r.output_tokens,
                r.recomputed_tokens,
                r.preemptions,
            ),
        )
        if not last:
            script = self.workload.script
            at = script.first[i] + self.view.turn[i]
            self._acting(i, script.kind[at], script.asked_s[at])
            self._call_tool(i)
        self._rest(i, last)
        if last and self.arrivals_ps is None and self._next_task < len(self.workload.tasks):
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
        self._idle_servers += 1
        if self._tool_queue:
            self._call_tool(self._tool_queue.popleft())
        self._learn(i)
        self._returned(i)
        self._request(i)

    # --- decisions ----------------------------------------------------------------------------

    def _wake_later(self, at_ps: int) -> None:
        self._push(at_ps, WAKE)

    def _wake(self, _: int) -> None:
        if self._wake_ps == self.now_ps:
            self._woken()
            self._wakes += 1
            if self._wakes > MAX_WAKES:
                raise InputError(self.view.stuck())
            self._watch_for_standstill()

    def _period(self, _: int) -> None:
        if self._planning is None:
            self._tick()
        self._push(self.now_ps + round((self.policy.period_s or 0.0) * PS_PER_S), PERIOD)
        self._watch_for_standstill()

    def _apply_later(self, cost_s: float) -> None:
        self._push(self.now_ps + round(cost_s * PS_PER_S), APPLY)

    def _ready(self, _: int) -> None:
        self._apply()

    def _look(self, sessions: Sequence[int]) -> None:
        s = self.view.state
        for i, request in self._requests.items():
            s.session[i, state.STREAMED] = request.emitted
        if getattr(self.policy, "sees_cache", False):
            for i in sessions:
                s.pair[i, :, state.CACHED] = [node.cache.held(i) for node in self.nodes]

    def _watch_for_standstill(self) -> None:
        if any(kind in (STEP, TOOL_END, ARRIVAL, APPLY) for _, kind, _ in self._heap):
            self._busy_ps = self.now_ps
        elif self.now_ps - self._busy_ps > STUCK_PS:
            raise InputError(self.view.stuck())
