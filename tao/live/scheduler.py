"""Live agent sessions under a policy: the decisions of the simulator, on real servers in real time.

Everything here runs in one event loop. The policy sees the same `State` and decides by the same kernels as in
the simulator; one that plans does so in a thread beside, on a copy, and what it proposes is rechecked
against the state as it is by then.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tao import readiness, state
from tao.checks import InputError
from tao.host import Host
from tao.live.agents import Agent, Ask, Script, Tool, in_thread
from tao.live.faults import Failed, LiveError, Retryable
from tao.live.servers import Servers
from tao.live.stream import Reply
from tao.model import Params
from tao.policies import DONE, HOLD, NEW, REASONING, WAITING, Decision, Policy, View
from tao.profiles import PS_PER_S

LAST = "\U0010ffff"  # ids of rows that nobody has yet come after all others
SLOTS = 2048  # ours: sessions per run; the state has a row for each
ATTEMPTS = 3  # ours: a turn that three nodes refused fails
TOGETHER_S = 0.0005  # ours: what happens within this time is decided on together
CHARS_PER_TOKEN = 4.0  # ours: until a server has counted
MAX_FAILURE = 300  # ours: characters of an agent's error that are kept


@dataclass
class Talk:
    """One session: its agent, and its conversation as far as the servers have counted it."""

    id: str
    agent: Agent
    task: asyncio.Task[None] | None = None
    sent: asyncio.Future[int] | None = None  # the node its request goes to
    messages: Sequence[dict[str, Any]] | None = None  # of its last chat, the answer included
    prompt: Sequence[int] | str | None = None  # likewise of its last completion
    context_tokens: int = 0
    chars: int = 0  # of that context
    pieces: int = 0  # of the answer so far
    canceled: str = ""


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


class Scheduler(Host):
    """The sessions of one run; `main` runs them all."""

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
        self.requests = 0  # sent so far
        self.retries = 0
        self.error: Exception | None = None  # what ended the run
        self._fresh: list[int] = []  # sessions that no worker has taken yet
        self._stranded: list[int] = []  # routed to nodes that are out of order, all of them
        self._room = 0  # of the book of tools, calls per kind
        self._chars_per_token = CHARS_PER_TOKEN
        self._poked = self._stopped = False
        self._own = view.kinds.number("agent", None)  # its own code, between an answer and the next tool
        self._over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._origin_s = self._loop.time()
        self._beside: list[asyncio.Task[None]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tao-planner") if options.background else None

    # --- the run ------------------------------------------------------------------------------

    def submit(self, agents: Mapping[str, Agent]) -> None:
        """Add sessions; raises `InputError` if an id is taken or there are too many."""
        if taken := [name for name in agents if any(name == talk.id for talk in self.talks)]:
            raise InputError(f"session {taken[0]!r} is there already; choose another id")
        if len(self.talks) + len(agents) > SLOTS:
            raise InputError(f"a run has at most {SLOTS:,} sessions; start another one")
        first = len(self.talks)
        self.talks += [Talk(name, agent) for name, agent in agents.items()]
        self.history.session_ids += agents
        self.view.rename(first, list(agents))
        self._fresh += range(first, len(self.talks))
        self._start_some()

    async def main(self, agents: Mapping[str, Agent], stay: bool = False) -> None:
        """Run these agents to their end; with `stay` until it is stopped. Raises what ended it early."""
        most_s, self._origin_s = self.options.max_seconds, self._loop.time()
        self._beside = [asyncio.ensure_future(self._watch_for_standstill()), self._ticker()]
        try:
            self.submit(agents)
            async with asyncio.timeout(None if most_s is None else most_s / self.options.rate):
                while not self._stopped and (stay or self._fresh or self._live()):
                    self._over.clear()
                    await self._over.wait()
        except TimeoutError:
            self.history.notes.append(f"stopped after max_seconds = {most_s:g}")
        finally:
            await self._shut()
        if self.error:
            raise self.error

    async def _shut(self) -> None:
        """Stop everything; the accounts are closed by the sessions themselves."""
        self._fresh.clear()
        for task in self._beside:
            task.cancel()
        for i in self._live():
            self.cancel(i, "the run was stopped")
        sessions = [talk.task for talk in self.talks if talk.task]
        await asyncio.gather(*sessions, *self._beside, return_exceptions=True)
        self._stamp()
        if self._thread:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def cancel(self, i: int, why: str = "canceled") -> None:
        """End session i now, its request and its tool too."""
        talk = self.talks[i]
        talk.canceled = talk.canceled or why
        if i in self._fresh:
            self._fresh.remove(i)
            self.history.failed[i] = talk.canceled
            self._over.set()
        elif talk.task:
            talk.task.cancel()

    def stop(self) -> None:
        """End the run; `main` returns when all of it has ended."""
        self._stopped = True
        self._over.set()

    def _fail(self, error: Exception) -> None:
        """End the run because of an error."""
        self.error = self.error or error
        self.stop()

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

    def _live(self) -> list[int]:
        return [i for i, talk in enumerate(self.talks) if talk.task and not talk.task.done()]

    def _start_some(self) -> None:
        """Workers that are free take the next sessions."""
        most = self.options.workers or SLOTS
        while self._fresh and len(self._live()) < most:
            i = self._fresh.pop(0)
            self._stamp()
            self.history.started_ps[i] = self.now_ps
            self.talks[i].task = asyncio.ensure_future(self._session(i))

    # --- one session --------------------------------------------------------------------------

    async def _session(self, i: int) -> None:
        talk, s = self.talks[i], self.view.state
        script = talk.agent()
        try:
            await self._play(i, script)
            self._stamp()
            self._end(i)
        except asyncio.CancelledError:
            self._drop(i, talk.canceled or "canceled")
            if not talk.canceled:
                raise
        except Exception as error:  # of the agent's code, or of a server: this session's end alone
            self._drop(i, f"{'' if isinstance(error, LiveError) else type(error).__name__ + ': '}{error}")
        finally:
            if s.session[i, state.PHASE] not in (NEW, DONE):
                self._drop(i, "it ended without a reason")
            self._loop.call_soon(self._ended)
            self._poke()

    def _ended(self) -> None:
        self._start_some()
        self._over.set()
        self._tell()

    async def _play(self, i: int, script: Script) -> None:
        """Let the agent go on, and do what it yields, until it returns."""
        go: Callable[[], Any] = partial(next, script, None)
        try:
            while (step := await self._step(go)) is not None:
                if isinstance(step, Ask):
                    go = partial(_send, script, await self._turn(i, step))
                    continue
                try:
                    go = partial(_send, script, await self._tool(i, step))
                except Exception as error:  # of a tool: the agent may know what to do
                    go = partial(_throw, script, error)
        finally:
            script.close()

    async def _step(self, go: Callable[[], Any]) -> Ask | Tool | None:
        """What the agent does next; its own code may take long, so it gets a thread."""
        step = await in_thread(go) if self.options.background else go()
        if step is None or hasattr(step, "work") or isinstance(step, Ask):
            return step  # type: ignore[no-any-return]
        raise InputError(
            f"the agent yielded {type(step).__name__}; it may yield Ask, Sleep, Function or Program"
        )

    async def _tool(self, i: int, tool: Tool) -> Any:
        self._stamp()
        kind = self.view.kinds.number(tool.tool, tool.tool_class or None)
        self._make_room()
        due_ps = -1 if tool.due_s is None else self.now_ps + round(tool.due_s * PS_PER_S)
        self._acting(i, kind, math.nan if tool.asked_s is None else float(tool.asked_s), due_ps)
        self._changed = True
        self._poke()
        try:
            return await tool.work(self.options.rate)
        finally:
            self._stamp()
            self._learn(i)

    def _make_room(self) -> None:
        """The book of tools has room for one more call of every kind."""
        book = self.view.state.book
        if len(self.view.kinds.names) > len(book.calls) or book.calls[0] + 1 >= self._room:
            self._room = max(256, 2 * self._room)
            larger = readiness.enlarged(self.view.kinds, book, self._room)
            self.view.state = self.view.state._replace(book=larger)

    # --- one turn -----------------------------------------------------------------------------

    async def _turn(self, i: int, ask: Ask) -> Reply:
        talk = self.talks[i]
        self._stamp()
        asked_ps = self.now_ps
        if i in self._row_of:  # not the first one
            self._returned(i)
        prompt_tokens = await self._size(talk, ask)
        needs = prompt_tokens + self.params.reserve_tokens
        largest = max(server.capacity_tokens for server in self.servers.all)
        if needs > largest:
            what = f"a request needs {needs:,} tokens with reserve, the largest node holds {largest:,}"
            raise Failed("tao", None, what)
        for attempt in range(1, ATTEMPTS + 1):
            talk.sent = self._loop.create_future()
            self._stamp()
            if self.view.phase[i] == NEW:
                self._start(i)
            self._arrive(i, prompt_tokens, self._prefix(talk, ask))
            self._arrived_ps[i] = asked_ps
            self._poke()
            b = await talk.sent
            try:
                reply = await self._request(i, b, ask)
                break
            except Retryable as error:
                self._failed(i, b, error)
                if attempt == ATTEMPTS:
                    raise
                self.retries += 1
            except LiveError as error:
                self._failed(i, b, error)
                raise
        self._done(i, b, ask, reply, prompt_tokens)
        return reply

    async def _request(self, i: int, b: int, ask: Ask) -> Reply:
        """Send it, once."""
        talk, server = self.talks[i], self.servers[b]
        self.requests += 1
        most = self.options.max_requests
        if most is not None and self.requests > most:
            self.requests = most
            self.history.notes.append(f"stopped after max_requests = {most:,}")
            self.stop()
            await self._loop.create_future()  # which ends with the run
        options = {"session_id": talk.id, **ask.options}
        if self.options.salt:
            options["cache_salt"] = self.options.salt
        talk.pieces = 0
        if ask.messages is not None:
            call = server.node.chat(ask.messages, on_text=partial(self._piece, i, b), **options)
        else:
            assert ask.prompt is not None
            call = server.node.complete(ask.prompt, on_text=partial(self._piece, i, b), **options)
        return await call

    def _piece(self, i: int, b: int, _: str) -> None:
        """A piece of an answer came."""
        talk = self.talks[i]
        talk.pieces += 1
        if talk.pieces == 1:
            self._stamp()
            self._first_token(i, b)
            self._tell()
            self._poke()

    def _done(self, i: int, b: int, ask: Ask, reply: Reply, estimated: int) -> None:
        """The books of a turn whose answer is whole."""
        talk, server = self.talks[i], self.servers[b]
        server.worked()
        prompt = reply.prompt_tokens or estimated
        output = max(reply.completion_tokens or talk.pieces, 1)
        reusable = self._prefix(talk, ask)
        self._stamp()
        if self.view.state.session[i, state.CHARGE]:  # all of the answer was empty
            self._first_token(i, b)
        self._answered(i, b, prompt + output, server.noted_tokens(prompt + output))
        sent_ps = self._ps(reply.sent_s)
        queued_ps = round((reply.queue_s or 0.0) * self.options.rate * PS_PER_S)
        first_ps = max(self._ps(reply.sent_s + reply.ttft_s), sent_ps)
        times = (
            sent_ps,
            min(sent_ps + queued_ps, first_ps),
            first_ps,
            self._ps(reply.sent_s + reply.total_s),
        )
        hit = -1 if reply.cached_tokens is None else reply.cached_tokens
        self._record_turn(i, b, times, (prompt, min(reusable, prompt), hit, output, 0, 0))
        self._acting(i, self._own, math.nan)
        self._rest(i, last=False)
        self._remember(talk, ask, reply, prompt + output)
        self._tell()
        self._poke()

    def _remember(self, talk: Talk, ask: Ask, reply: Reply, context_tokens: int) -> None:
        talk.context_tokens = context_tokens
        if ask.messages is not None:
            talk.messages = [*ask.messages, {"role": "assistant", "content": reply.text}]
            talk.chars = _chars(ask) + len(reply.text)
        elif isinstance(ask.prompt, str):
            talk.prompt, talk.chars = ask.prompt + reply.text, _chars(ask) + len(reply.text)
        else:
            talk.prompt = [*(ask.prompt or ()), *(reply.token_ids or ())]
        if talk.chars:
            self._chars_per_token += 0.2 * (max(talk.chars / context_tokens, 0.1) - self._chars_per_token)

    def _prefix(self, talk: Talk, ask: Ask) -> int:
        """How much of a request repeats its session's last context, as far as can be told from here."""
        if ask.messages is not None and talk.messages is not None:
            same = sum(1 for _ in _same(talk.messages, ask.messages))
            if same == len(talk.messages):
                return talk.context_tokens
            before = sum(len(str(m.get("content") or "")) for m in talk.messages[:same])
            return round(talk.context_tokens * before / max(talk.chars, 1))
        if ask.prompt and talk.prompt:  # both texts, or both token ids, else nothing is the same
            same = sum(1 for _ in _same(talk.prompt, ask.prompt))
            return round(talk.context_tokens * same / len(talk.prompt))
        return 0

    async def _size(self, talk: Talk, ask: Ask) -> int:
        """Tokens of a prompt: known, counted by a server, or else estimated from the conversation so far."""
        if ask.prompt_tokens is not None:
            return ask.prompt_tokens
        if ask.prompt is not None and not isinstance(ask.prompt, str):
            return len(ask.prompt)
        body = {"prompt": ask.prompt} if ask.messages is None else {"messages": list(ask.messages)}
        now_s = self._loop.time()
        for b in sorted(range(len(self.servers.all)), key=lambda b: self.view.inflight[b]):
            if self.servers.out(b, now_s):
                continue
            try:
                count = (await self.servers[b].node.ask("/tokenize", body)).get("count")
                if isinstance(count, int) and count > 0:
                    return count
            except (LiveError, AttributeError):
                pass
            break
        return max(1, talk.context_tokens + round((_chars(ask) - talk.chars) / self._chars_per_token))

    # --- what goes wrong ----------------------------------------------------------------------

    def _failed(self, i: int, b: int, error: LiveError) -> None:
        """A request came to nothing: the session leaves the node, which may be out of order."""
        self._stamp()
        self._release(i)
        if isinstance(error, Retryable) or error.suspect:
            self.servers[b].failed(error, self._loop.time(), self.servers.rng)
            if error.suspect:
                self._forget(b)
            self._loop.call_at(self.servers[b].out_until_s, self._again)
        self._tell()

    def _again(self) -> None:
        """A node that was left out may be tried again."""
        self._changed = True
        self._poke()

    def _forget(self, b: int) -> None:
        """Node b has lost its cache, or may have: nobody has credit there."""
        self.view.noted_tokens[:, b] = 0

    def _release(self, i: int) -> None:
        """Take a request back from its node."""
        view, b = self.view, int(self.view.resident[i])
        if view.phase[i] == REASONING:
            view.inflight[b] -= 1
            view.state.node[b, state.PREFILLING] -= view.state.session[i, state.CHARGE]
            view.state.session[i, state.CHARGE] = view.state.session[i, state.STREAMED] = 0
            view.phase[i] = WAITING
        view.leaving[i] = 0
        state.move(view.state, i, HOLD)

    def _drop(self, i: int, why: str) -> None:
        """Session i ends early."""
        self._stamp()
        if self.view.phase[i] not in (NEW, DONE):
            self._release(i)
            state.end(self.view.state, i)
        self._row_of.pop(i, None)
        self._promised.pop(i, None)
        self.history.failed[i] = why[:MAX_FAILURE]

    def saw(self, b: int, load: Any, fault: LiveError | None) -> None:
        """What a look at node b brought."""
        self._stamp()
        if load is not None and self.servers.saw(self.view.state, b, load):
            self._forget(b)
            self.history.notes.append(
                f"{self.servers[b].node.name} was started anew at {self.now_ps / PS_PER_S:.1f} s"
            )
        self.servers[b].fault = fault or self.servers[b].fault
        self._tell()

    # --- what a host does ---------------------------------------------------------------------

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

    # --- deciding -----------------------------------------------------------------------------

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

    def _guarded(self, do: Callable[[], None]) -> None:
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
        while idle < 30:  # ours: half a minute
            await asyncio.sleep(1.0)
            pool = int(self.view.state.clock[state.POOL])
            waiting = [i for i in self._live() if self.view.phase[i] == WAITING]
            stuck = pool and len(waiting) == len(self._live()) == pool and self._planning is None
            idle = idle + 1 if stuck and self.servers.back_s() < self._loop.time() else 0
        self._fail(InputError(self.view.stuck()))

    def _tell(self) -> None:
        if self.options.on_change:
            self.options.on_change()


def _send(script: Script, result: Any) -> Any:
    try:
        return script.send(result)
    except StopIteration:
        return None


def _throw(script: Script, error: BaseException) -> Any:
    try:
        return script.throw(error)
    except StopIteration:
        return None


def _chars(ask: Ask) -> int:
    """Characters of a request."""
    if ask.messages is None:
        return len(ask.prompt) if isinstance(ask.prompt, str) else 0
    return sum(len(str(m.get("content") or "")) + len(str(m.get("tool_calls") or "")) for m in ask.messages)


def _same(a: Sequence[Any], b: Sequence[Any]) -> Any:
    """The part in which two sequences begin alike."""
    for x, y in zip(a, b, strict=False):
        if x != y:
            return
        yield x
