"""A policy on live nodes: the run's time, who is out of order, and plans made in a thread beside.

The policy sees the same `State` and decides by the same kernels as in the simulator. One that plans works
on a copy of the state, and what it proposes is rechecked against the state as it is by then.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tao import state
from tao.checks import InputError
from tao.host import Host
from tao.live.servers import Servers
from tao.live.talk import Talk
from tao.model import Params
from tao.policies import HOLD, REASONING, WAITING, Decision, Policy, View
from tao.profiles import PS_PER_S

LAST = "\U0010ffff"  # ids of rows that nobody has yet come after all others
SLOTS = 2048  # ours: sessions per run; the state has a row for each
TOGETHER_S = 0.0005  # ours: what happens within this time is decided on together
STUCK_S = 30  # ours: so long nothing can happen, then the run ends


@dataclass
class Options:
    """What a run may be told; see `tao.live.run`."""

    workers: int | None = None
    max_seconds: float | None = None
    max_requests: int | None = None
    rate: float = 1.0  # seconds of the run per second of the clock: the speed-up of simulated servers
    salt: str | None = field(default_factory=lambda: uuid.uuid4().hex[:12])
    keep_snapshots: bool = True
    background: bool = True  # plans and agents get threads; not so in a loop whose time is virtual
    shared_prefix_tokens: int = 0
    seed: int = 0
    on_change: Callable[[], object] | None = None


class LiveHost(Host):
    """One policy over the nodes and sessions of a run, in the running event loop."""

    def __init__(self, servers: Servers, policy: Policy, params: Params, options: Options) -> None:
        capacities = [server.capacity_tokens for server in servers.all]
        view = View(
            [f"{LAST}{k}" for k in range(SLOTS)],
            capacities,
            params,
            shared_prefix_tokens=options.shared_prefix_tokens,
            seed=options.seed,
        )
        view.node_ids = [server.node.name for server in servers.all]
        super().__init__(policy, params, view, options.keep_snapshots)
        self.history.session_ids = []
        self.servers, self.options = servers, options
        self.talks: list[Talk] = []
        self.error: Exception | None = None  # what ended the run
        self._stranded: list[int] = []  # routed to nodes that are out of order, all of them
        self._poked = self._stopped = False
        self._beside: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._origin_s = self._loop.time()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tao-planner") if options.background else None

    def stop(self) -> None:
        """End the run."""
        self._stopped = True
        self._over.set()

    def _live(self) -> list[int]:
        return [i for i, talk in enumerate(self.talks) if talk.task and not talk.task.done()]

    def switch(self, policy: Policy, params: Params) -> None:
        """From now on this policy decides; what the old one remembered is gone."""
        s = self.view.state
        self.policy, self.params, self.view.params = policy, params, params
        self.view.state = s._replace(settings=params.settings)
        s.session_memory[:], s.node_memory[:], s.pair_memory[:] = -1, 0, 0
        self._beside.pop().cancel()
        self._beside.append(self._ticker())
        self._changed = True
        self._poke()

    def _arrive(self, i: int, prompt_tokens: int, prefix_tokens: int) -> None:
        b = int(self.view.resident[i])
        if b >= 0 and self.servers.out(b, self._loop.time()):
            state.move(self.view.state, i, HOLD)
        super()._arrive(i, prompt_tokens, prefix_tokens)

    def _place(self, i: int, b: int) -> None:
        now_s = self._loop.time()
        if self.servers.out(b, now_s):
            found = self.servers.substitute(self.view.state, now_s)
            if found is None:
                self._stranded.append(i)  # until one is tried again
                return
            b = found
        super()._place(i, b)

    def _send(self, i: int, b: int) -> None:
        sent = self.talks[i].sent
        assert sent is not None
        if not sent.done():
            sent.set_result(b)

    def _wake_later(self, at_ps: int) -> None:
        self._loop.call_at(self._origin_s + at_ps / PS_PER_S / self.options.rate, self._wake, at_ps)

    def _wake(self, at_ps: int) -> None:
        if self._wake_ps == at_ps:
            self._woken()
            self._poke()

    def _again(self) -> None:
        """A node that was left out may be tried again."""
        self._changed = True
        self._poke()

    def _apply_later(self, cost_s: float) -> None:
        self._apply()  # it has taken its time already

    def _look(self, sessions: Sequence[int]) -> None:
        s = self.view.state
        self.servers.measure_room(s, self._loop.time())
        for i in np.flatnonzero(self.view.phase[: len(self.talks)] == REASONING).tolist():
            s.session[i, state.STREAMED] = self.talks[i].pieces
        if getattr(self.policy, "sees_cache", False):  # as far as the last answers tell
            for i in sessions:
                s.pair[i, :, state.CACHED] = s.pair[i, :, state.NOTED]

    def _ps(self, at_s: float) -> int:
        """A moment of the loop's clock in the run's time."""
        return round((at_s - self._origin_s) * self.options.rate * PS_PER_S)

    def _stamp(self) -> None:
        """It is now now."""
        self.now_ps = max(self.now_ps, self._ps(self._loop.time()))
        self.view.state.clock[state.NOW_PS] = self.history.end_ps = self.now_ps

    def _poke(self) -> None:
        """Something has changed: decide soon."""
        if not self._poked:
            self._poked = True
            self._loop.call_later(TOGETHER_S, self._guarded, self._poked_now)

    def _poked_now(self) -> None:
        self._poked = False
        self._stamp()
        stranded, self._stranded = self._stranded, []
        for i in stranded:
            if self.view.phase[i] == WAITING and self.view.resident[i] < 0:
                self._route(i)
        self._decide()

    def _guarded(self, do: Callable[[], object]) -> None:
        """A policy that goes wrong ends the run."""
        try:
            do()
        except Exception as error:
            self._fail(error)

    def _tick(self) -> None:
        if not (self._thread and getattr(self.policy, "plans", False)):
            super()._tick()
            return
        self._changed, self._ticked_ps = False, self.now_ps
        self._look(self.view.pool.tolist())
        self._planning = Decision(), np.zeros((0, 7), np.int64), 0  # one plan at a time
        work = self._loop.run_in_executor(self._thread, self._plan_beside, self.view.copy())
        work.add_done_callback(lambda done: self._guarded(partial(self._planned, done)))

    def _plan_beside(self, view: View) -> tuple[Decision, Any, Any]:
        """In the planner's thread, on a copy."""
        decision: Decision = self._ask("tick", view)
        return (
            decision,
            self._proposed(decision, view),
            self._kept(view, decision) if self.keep_snapshots else None,
        )

    def _planned(self, done: asyncio.Future[tuple[Decision, Any, Any]]) -> None:
        self._planning = None
        if done.cancelled() or self._stopped:
            return
        self._stamp()
        self.servers.measure_room(self.view.state, self._loop.time())
        self._decided(*done.result())
        self._poke()

    def _ticker(self) -> asyncio.Task[None]:
        """The task that lets a periodic policy decide."""
        return asyncio.ensure_future(self._every(self.policy.period_s))

    async def _every(self, period_s: float | None) -> None:
        due_s = self._loop.time()
        while period_s is not None:
            due_s += period_s / self.options.rate
            await asyncio.sleep(due_s - self._loop.time())
            self._stamp()
            if self._planning is None:
                self._guarded(self._tick)

    async def _watch_for_standstill(self) -> None:
        """End a run in which nothing can happen any more."""
        idle = 0
        while idle < STUCK_S:
            await asyncio.sleep(1.0)
            pool = int(self.view.state.clock[state.POOL])
            waiting = [i for i in self._live() if self.view.phase[i] == WAITING]
            stuck = pool and len(waiting) == len(self._live()) == pool and self._planning is None
            idle = idle + 1 if stuck and self.servers.back_s() < self._loop.time() else 0
        self._fail(InputError(self.view.stuck()))

    def _fail(self, error: Exception) -> None:
        """End the run because of an error."""
        self.error = self.error or error
        self.stop()

    def _tell(self) -> None:
        if self.options.on_change:
            self._guarded(self.options.on_change)  # a listener that goes wrong, too
