"""A live run from the outside: begin it in a cell, look at it while it goes on, stop it, keep its record."""

from __future__ import annotations

import copy
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tao import checks
from tao.checks import InputError, shown
from tao.cluster import Cluster
from tao.history import History
from tao.live import loop
from tao.live.agents import Agent, replay
from tao.live.client import Client, watch
from tao.live.live_host import Options
from tao.live.loop import Call
from tao.live.scheduler import Scheduler
from tao.live.servers import Servers, servers_of
from tao.model import Params
from tao.policies import REASONING, TOOL, WAITING, Compiled, Policy
from tao.profiles import PS_PER_S
from tao.simulator import PolicyLike, make_policy, policy_name
from tao.workloads import Task, Turn, Workload

T = TypeVar("T")
STOP_S = 5.0  # ours: everything ends within this time of `stop`
PHASES = {WAITING: "waiting", REASONING: "answering", TOOL: "tool"}


class Run:
    """A run under way. `wait` for its `History`, `await` it, or look at `sessions`, `nodes` and `history`.

    Make it with `tao.live.run`. All of it goes on in the private thread of the clients, also while a cell
    computes; `stop` ends every request and tool of it.
    """

    def __init__(self, clients: Sequence[Client], policy: PolicyLike, params: Params, options: Options):
        self.clients, self.options = tuple(clients), options
        self.settings: dict[str, Any] = {}
        self._policy = policy_name(policy)
        self._made = live_policy(policy, params)
        self._params = params
        self._loop = loop.acquire()
        self._scheduler: Scheduler | None = None
        self._main: Call[None] | None = None
        self._lag = loop.Lag()

    def __repr__(self) -> str:
        state = "over" if self.done else "under way"
        return f"Run({self._policy} on {len(self.clients)} nodes, {state})"

    def begin(
        self,
        agents: Mapping[str, Agent],
        stay: bool,
        subtract_others: bool,
        kv_tokens: int | None,
        kv_events: Sequence[str],
    ) -> None:
        """Start it; once."""
        looks = servers_of(self.clients, kv_tokens, kv_events, subtract_others=subtract_others)
        servers = self._here(looks)
        self._scheduler = self._here(self._make(servers))
        ended = threading.Event()
        self._main = self._loop.begin(
            _play(self._loop, self._scheduler, self.clients, agents, stay, self._lag, ended)
        )
        self._main.then(loop.release)
        self._end = weakref.finalize(self, _stop_dropped, self._loop, self._scheduler, ended)

    def _here(self, work: Coroutine[Any, Any, T]) -> T:
        """A short piece of work, done in the loop's thread."""
        try:
            return self._loop.begin(work).result()
        except BaseException:
            if self._main is None:  # it never began
                loop.release()
            raise

    async def _make(self, servers: Servers) -> Scheduler:
        return Scheduler(servers, self._made, self._params, self.options)

    def _settings(self, scheduler: Scheduler) -> dict[str, Any]:
        capacities = [server.capacity_tokens for server in scheduler.servers.all]
        return self.settings | {
            "policy": self._policy,
            "nodes": len(capacities),
            "workers": self.options.workers,
            "tasks": len(scheduler.talks),
            "capacity_tokens": sum(capacities) // len(capacities),
            "params": self._params.changed(),
            "speedup": self.options.rate,
            "requests": scheduler.requests,
            "retries": scheduler.retries,
            "loop_lag_s": self._lag.worst_s,
        }

    # --- its end ------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self._main is None or self._main.done()

    def wait(self, timeout_s: float | None = None) -> History:
        """Its record once it is over; raises what ended it, or `TimeoutError`, upon which it goes on."""
        assert self._main
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._main.done():
            if until_s is not None and time.monotonic() > until_s:
                raise TimeoutError(f"the run is not over after {timeout_s:g} s")
            time.sleep(0.02)  # not `result`, which would cancel the run with this cell
        self._main.result()
        return self.history

    def __await__(self) -> Generator[Any, None, History]:
        assert self._main
        yield from self._main.__await__()
        return self.history

    def then(self, do: Callable[[], object]) -> None:
        """Call that once it is over, in whichever thread that is."""
        assert self._main
        self._main.then(do)

    def stop(self) -> History:
        """End it, and everything it has begun; returns the record so far."""
        if not self.done:
            self._tell(lambda scheduler: scheduler.stop())
        return self.wait(STOP_S)

    # --- while it goes on ---------------------------------------------------------------------

    def _tell(self, do: Callable[[Scheduler], T]) -> T:
        """Do that in the loop's thread, which alone may touch the scheduler."""
        scheduler = self._scheduler
        assert scheduler

        async def here() -> T:
            return do(scheduler)

        if self.done:  # nobody else touches it any more, and the loop may be gone
            return do(scheduler)
        return self._loop.begin(here()).result()

    def submit(self, agents: Mapping[str, Agent] | Workload) -> None:
        """More sessions."""
        self._refuse_if_done()
        self._tell(lambda scheduler: scheduler.submit(as_agents(agents)))

    def cancel(self, session: str) -> None:
        """End one session, its request and its tool."""
        self._tell(lambda scheduler: scheduler.cancel(_index(scheduler, session)))

    def switch(self, policy: PolicyLike, params: Params | None = None) -> None:
        """Another policy decides from now on."""
        self._refuse_if_done()
        params = params or self._params
        made = live_policy(policy, params)
        self._refuse_if_done()  # compiling takes long
        self._tell(lambda scheduler: scheduler.switch(made, params))
        self._policy, self._made, self._params = policy_name(policy), made, params

    def _refuse_if_done(self) -> None:
        if self.done:
            raise InputError("the run is over; start another one")

    @property
    def history(self) -> History:
        """The record so far, a copy."""

        def copied(scheduler: Scheduler) -> History:
            found = copy.deepcopy(replace(scheduler.history, kept={}))
            return replace(found, kept=dict(scheduler.history.kept), settings=self._settings(scheduler))

        return self._tell(copied)

    def sessions(self) -> list[dict[str, Any]]:
        """A row per session: what it does, where, its context, turns so far, why it failed if it did."""
        return self._tell(lambda scheduler: list(_session_rows(scheduler)))

    def credit(self) -> list[dict[str, Any]]:
        """A row per finished turn: credit on its node when it was sent, and what the server then had cached.

        `resident_tokens`: what the node's KV events said was there; None, as elsewhere, is unknown.
        """
        return self._tell(lambda scheduler: list(_credit_rows(scheduler)))

    def nodes(self) -> list[dict[str, Any]]:
        """A row per node: room, what of it our sessions hold, requests of ours and of others, faults."""
        return self._tell(lambda scheduler: list(_node_rows(scheduler)))

    def first_tokens(self, since: int = 0) -> list[dict[str, Any]]:
        """A row per answer that has begun, in that order, without the first `since` of them.

        `at_s`: when its first token came; `ttft_s`: so long after the request's arrival at the scheduler.
        """
        return self._tell(lambda scheduler: list(_first_token_rows(scheduler, since)))


async def _play(
    running: loop.Loop,
    scheduler: Scheduler,
    clients: Sequence[Client],
    agents: Mapping[str, Agent],
    stay: bool,
    lag: loop.Lag,
    ended: threading.Event,
) -> None:
    """The run itself, which must not hold what a user holds of it."""
    index = {client: b for b, client in enumerate(clients)}
    looks = watch(clients, lambda client: scheduler.saw(index[client], client.load, client.fault))
    try:
        with running.lag(lag):
            await scheduler.main(agents, stay)
    finally:
        for look in looks:
            look.cancel()
        scheduler.servers.close()
        ended.set()


def _stop_dropped(running: loop.Loop, scheduler: Scheduler, ended: threading.Event) -> None:
    """Nobody holds the run any more, or Python ends: so does the run."""
    if ended.is_set():
        return

    async def stop() -> None:
        scheduler.stop()

    running.begin(stop())
    if not running.is_here():
        ended.wait(STOP_S)


def _credit_rows(scheduler: Scheduler) -> Iterable[dict[str, Any]]:
    for row in scheduler.history.turns:
        credit, resident = scheduler.sent[row.session, row.turn]
        yield {
            "session": scheduler.talks[row.session].id,
            "turn": row.turn,
            "node": scheduler.view.node_ids[row.node],
            "credit_tokens": credit,
            "cached_tokens": None if row.hit_tokens < 0 else row.hit_tokens,
            "resident_tokens": resident,
        }


def run(
    nodes: Any,
    agents: Mapping[str, Agent] | Workload,
    policy: PolicyLike = "tao",
    *,
    params: Params | None = None,
    stay: bool = False,
    subtract_others: bool = False,
    kv_tokens: int | None = None,
    kv_events: Sequence[str] = (),
    **options: Any,
) -> Run:
    """Begin to run agents on live nodes under a policy.

    `nodes`: a connection (`tao.connect`) or clients. `agents`: by session id, functions without arguments
    that return generators (`tao.live.Ask`, ...); or a `Workload`, replayed with token ids. Options: `workers`
    at a time, `max_seconds` and `max_requests` after which it stops by itself, `salt` (None: the servers'
    caches are shared with earlier runs), `keep_snapshots`, `on_change` (called in the private thread).
    `kv_events`: for each node the endpoint of its `--kv-events-config`, so that `credit` knows what is
    there. `subtract_others`: what requests of others hold on a node is not ours to fill. `stay`: go on when
    all sessions are done, until `stop`.

    Raises `InputError`, for instance for a policy that needs to know what cannot be known.
    """
    clients = list(getattr(nodes, "clients", nodes))
    for name in ("max_seconds", "max_requests", "workers"):
        if options.get(name) is not None:
            (checks.positive if name == "max_seconds" else checks.whole)(options[name], name, *_least(name))
    if isinstance(agents, Workload):
        options.setdefault("shared_prefix_tokens", agents.shared_prefix_tokens)
        options.setdefault("seed", agents.seed)
    known = set(Options.__dataclass_fields__) - {"rate", "background"}
    if unknown := set(options) - known:
        raise InputError(f"{shown(min(unknown))} is no option of a run; it may be {', '.join(sorted(known))}")
    options["rate"] = float(getattr(nodes, "speedup", 1.0))
    found = Run(clients, policy, params or Params(), Options(**options))
    found.settings["mode"] = getattr(nodes, "mode", "LIVE")
    found.begin(as_agents(agents), stay, subtract_others, kv_tokens, kv_events)
    return found


def _least(name: str) -> tuple[int, ...]:
    return () if name == "max_seconds" else (1,)


def as_agents(agents: Mapping[str, Agent] | Workload) -> Mapping[str, Agent]:
    """Agents by session id; raises `InputError`."""
    if isinstance(agents, Workload):
        return replay(agents)
    if not isinstance(agents, Mapping) or not agents or not all(callable(a) for a in agents.values()):
        raise InputError(
            f"agents is {shown(agents)}; it must be a dict of session ids and functions, or a Workload"
        )
    checks.unique(list(agents), "session")
    for name in agents:
        checks.name(name, "session id")
    return agents


def live_policy(policy: PolicyLike, params: Params) -> Policy:
    """A policy ready for live nodes, its kernels compiled; raises `InputError` for one that sees too much."""
    made = make_policy(policy, params)
    if getattr(made, "sees_tools", False):
        raise InputError(
            f"policy {policy_name(policy)!r} needs to know when each tool will return, which nobody knows "
            "in a live run; choose another one, such as 'tao'"
        )
    if isinstance(made, Compiled):
        turns = (Turn(64, 0, 1, "bash", "test", 1.0), Turn(80, 65, 1))
        tiny = Workload("warm-up", tuple(Task(name, turns) for name in "ab"), 0)
        Cluster(tiny, made, nodes=2, workers=2, capacity_tokens=4096, keep_snapshots=True).run()
    return made


def _index(scheduler: Scheduler, session: str) -> int:
    ids = [talk.id for talk in scheduler.talks]
    if session not in ids:
        raise InputError(f"there is no session {shown(session)}; see sessions()")
    return ids.index(session)


def _session_rows(scheduler: Scheduler) -> Iterable[dict[str, Any]]:
    view, history = scheduler.view, scheduler.history
    for i, talk in enumerate(scheduler.talks):
        phase = PHASES.get(int(view.phase[i]), "new")
        phase = "failed" if i in history.failed else "done" if i in history.finished_ps else phase
        b = int(view.resident[i])
        tool = view.tool(i)
        yield {
            "session": talk.id,
            "phase": phase,
            "node": "" if b < 0 else view.node_ids[b],
            "context_tokens": int(view.context_tokens[i]),
            "turn": int(view.turn[i]),
            "tool": tool.name if tool else "",
            "failure": history.failed.get(i, ""),
        }


def _first_token_rows(scheduler: Scheduler, since: int) -> Iterable[dict[str, Any]]:
    for i, turn, b, at_ps, after_ps in scheduler.first_tokens[since:]:
        yield {
            "session": scheduler.talks[i].id,
            "turn": turn,
            "node": scheduler.view.node_ids[b],
            "at_s": at_ps / PS_PER_S,
            "ttft_s": after_ps / PS_PER_S,
        }


def _node_rows(scheduler: Scheduler) -> Iterable[dict[str, Any]]:
    view, now_s = scheduler.view, scheduler._loop.time()
    for b, server in enumerate(scheduler.servers.all):
        running = server.load.running
        ours = int(view.inflight[b])
        yield {
            "node": server.node.name,
            "kv_tokens": server.kv_tokens,
            "sessions": int(view.residents[b]),
            "held_tokens": int(view.used_tokens[b]),
            "requests": ours,
            "others": None if running is None else max(round(running + (server.load.waiting or 0)) - ours, 0),
            "others_tokens": scheduler.servers.others_tokens(view.state, b),
            "served": server.served,
            "out": scheduler.servers.out(b, now_s),
            "fault": str(server.fault or ""),
        }
