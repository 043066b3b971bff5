"""Live agent sessions: what they yield is carried out, their requests as the policy decides.

Everything here runs in one event loop. A turn that a node refuses, or loses before its first token, goes
back to the waiting pool; the node is left out for a while, and its cache may be gone.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from tao import durations, state, valuation
from tao.checks import MAX_TOKENS, InputError, listing
from tao.live.agents import Acting, Agent, Ask, Tool, in_thread
from tao.live.faults import Failed, LiveError, Retryable
from tao.live.live_host import SLOTS, LiveHost, Options
from tao.live.metrics_page import Load
from tao.live.servers import Servers
from tao.live.stream import Reply, count
from tao.live.talk import Talk
from tao.model import Params
from tao.policies import DONE, HOLD, NEW, REASONING, WAITING, Policy
from tao.profiles import PS_PER_S

ATTEMPTS = 3  # ours: a turn that three nodes refused fails
TOKENIZED = ("tools", "chat_template", "chat_template_kwargs", "add_generation_prompt", "add_special_tokens")
CLEAN_S = 1.0  # ours: what agents raise on cleaning up within this time is in the record that `stop` returns
MAX_FAILURE = 300  # ours: characters of an agent's error that are kept


class Scheduler(LiveHost):
    """The sessions of one run; `main` runs them all."""

    def __init__(self, servers: Servers, policy: Policy, params: Params, options: Options) -> None:
        super().__init__(servers, policy, params, options)
        self.requests = 0  # sent so far
        self.retries = 0
        self.sent: dict[tuple[int, int], tuple[int, int | None]] = {}  # by session and turn: see `_credit`
        self.first_tokens: list[tuple[int, int, int, int, int]] = []  # session, turn, node, when, after
        self._fresh: list[int] = []  # sessions that no worker has taken yet
        self._cleaning: set[asyncio.Task[Any]] = set()  # agents whose sessions have ended
        self._room = 0  # of the book of tools, calls per kind
        self._own = self.view.kinds.number("agent", None)  # its own code, between an answer and a tool
        self._largest = max(server.capacity_tokens for server in servers.all)
        self._make_room()  # the kernels look into the book for the kind of whoever acts

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
        for task in self._beside:
            task.cancel()
        for i in [*self._fresh, *self._live()]:
            self.cancel(i, "the run was stopped")
        sessions = [talk.task for talk in self.talks if talk.task]
        await asyncio.gather(*sessions, *self._beside, return_exceptions=True)
        if self._cleaning and (await asyncio.wait(self._cleaning, timeout=CLEAN_S))[1]:
            names = listing(sorted(task.get_name() for task in self._cleaning))
            self.history.notes.append(f"sessions that still cleaned up when the run ended: {names}")
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

    def _start_some(self) -> None:
        """Workers that are free take the next sessions."""
        most = self.options.workers or SLOTS
        while self._fresh and len(self._live()) < most:
            i = self._fresh.pop(0)
            self._stamp()
            self.history.started_ps[i] = self.now_ps
            task = self.talks[i].task = asyncio.ensure_future(self._session(i))
            task.add_done_callback(partial(self._ended, i))

    async def _session(self, i: int) -> None:
        talk, view = self.talks[i], self.view
        try:
            await self._play(i, await self._aside(partial(Acting, talk.agent)))
            self._stamp()
            if view.phase[i] == NEW:  # it asked for nothing
                self.history.finished_ps[i] = self.now_ps
            else:
                self._end(i)
        except asyncio.CancelledError:
            self._drop(i, talk.canceled or "canceled")
            if not talk.canceled:
                raise
        except Exception as error:  # of the agent's code, or of a server: this session's end alone
            self._drop(i, f"{'' if isinstance(error, LiveError) else type(error).__name__ + ': '}{error}")

    def _ended(self, i: int, task: asyncio.Task[None]) -> None:
        if i not in self.history.finished_ps and i not in self.history.failed:
            self._drop(i, self.talks[i].canceled or "canceled")  # before it had begun
        self._changed = True  # there is more room now
        self._poke()
        self._start_some()
        self._over.set()
        self._tell()

    async def _play(self, i: int, agent: Acting) -> None:
        """Let the agent go on, and do what it yields, until it returns."""
        go = agent.go_on
        try:
            while (step := await self._step(go)) is not None:
                if isinstance(step, Ask):
                    go = partial(agent.go_on, await self._turn(i, step))
                    continue
                try:
                    go = partial(agent.go_on, await self._tool(i, step))
                except Exception as error:  # of a tool: the agent may know what to do
                    go = partial(agent.go_on, None, error)
        finally:
            cleaning = asyncio.create_task(self._aside(partial(self._close, i, agent)), name=self.talks[i].id)
            self._cleaning.add(cleaning)
            cleaning.add_done_callback(self._cleaning.discard)

    def _close(self, i: int, agent: Acting) -> None:
        try:
            agent.close()
        except BaseException as error:  # its session has its end already, so the record has to tell
            what = f"{type(error).__name__}: {error}"[:MAX_FAILURE]
            self.history.notes.append(f"session {self.talks[i].id!r} could not clean up: {what}")

    async def _aside(self, do: Callable[[], Any]) -> Any:
        """Call what is an agent's own; it may take long, so it gets a thread."""
        return await in_thread(do) if self.options.background else do()

    async def _step(self, go: Callable[[], Any]) -> Ask | Tool | None:
        """What the agent does next."""
        step = await self._aside(go)
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
            if not self.talks[i].canceled:
                self._stamp()
                self._make_room()  # others have finished meanwhile
                self._learn(i)

    def _make_room(self) -> None:
        """The book of tools has room for one more call of every kind."""
        book = self.view.state.book
        if len(self.view.kinds.names) > len(book.calls) or book.calls[0] + 1 >= self._room:
            self._room = max(256, 2 * self._room)
            larger = durations.enlarged(self.view.kinds, book, self._room)
            self.view.state = self.view.state._replace(book=larger)

    async def _turn(self, i: int, ask: Ask) -> Reply:
        talk = self.talks[i]
        self._stamp()
        asked_ps = self.now_ps
        if i in self._row_of:  # not the first one
            self._returned(i)
        prompt_tokens = await self._size(talk, ask)
        needs = prompt_tokens + self.params.reserve_tokens
        if needs > self._largest:
            what = f"a request needs {needs:,} tokens with reserve, the largest node holds {self._largest:,}"
            raise Failed("tao", None, what)
        for attempt in range(1, ATTEMPTS + 1):
            talk.sent = self._loop.create_future()
            self._stamp()
            if self.view.phase[i] == NEW:
                self._start(i)
            self._arrive(i, prompt_tokens, min(talk.prefix_tokens(ask), prompt_tokens))
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
        name, salt = talk.id, self.options.salt
        if salt:  # so that no earlier run of the same sessions is mistaken for this one
            name = f"{salt}-{name}"
        self.sent[i, int(self.view.turn[i])] = self._credit(i, b, name)
        options = {"session_id": name, **ask.options} | ({"cache_salt": salt} if salt else {})
        talk.pieces = 0
        if ask.messages is not None:
            call = server.node.chat(ask.messages, on_text=partial(self._piece, i, b), **options)
        else:
            assert ask.prompt is not None
            call = server.node.complete(ask.prompt, on_text=partial(self._piece, i, b), **options)
        return await call

    def _credit(self, i: int, b: int, name: str) -> tuple[int, int | None]:
        """What session i's cache on node b is worth now, and what the node's KV events say is there."""
        age_s = (self.now_ps - int(self.view.noted_at_ps[i, b])) / PS_PER_S
        noted, half_life_s = int(self.view.noted_tokens[i, b]), self.params.settings.half_life_s
        credit = valuation.decayed(noted, age_s, half_life_s) if noted else 0
        events = self.servers[b].events
        if events is None:
            return credit, None
        events.poll()
        return credit, events.residency.tokens(name)

    def _piece(self, i: int, b: int, _: str) -> None:
        """A piece of an answer came."""
        talk = self.talks[i]
        talk.pieces += 1
        if talk.pieces == 1:
            self._stamp()
            self._first_token(i, b)
            after_ps = self.now_ps - self._arrived_ps[i]
            self.first_tokens.append((i, int(self.view.turn[i]), b, self.now_ps, after_ps))
            self._tell()
            self._poke()

    def _done(self, i: int, b: int, ask: Ask, reply: Reply, estimated: int) -> None:
        """The books of a turn whose answer is whole."""
        talk, server = self.talks[i], self.servers[b]
        server.worked()
        prompt = reply.prompt_tokens or estimated
        output = max(reply.completion_tokens or talk.pieces, 1)
        context = min(prompt + output, MAX_TOKENS)
        reusable = talk.prefix_tokens(ask)
        self._stamp()
        if self.view.state.session[i, state.CHARGE]:  # all of the answer was empty
            self._first_token(i, b)
        self._answered(i, b, context, server.noted_tokens(context))
        sent_ps = self._ps(reply.sent_s)
        queued_ps = round((reply.queue_s or 0.0) * self.options.rate * PS_PER_S)
        first_ps = max(self._ps(reply.sent_s + reply.ttft_s), sent_ps)
        times = (
            sent_ps,
            min(sent_ps + queued_ps, first_ps),
            first_ps,
            self._ps(reply.sent_s + reply.total_s),
        )
        hit = -1 if reply.cached_tokens is None or reply.cached_tokens > prompt else reply.cached_tokens
        self._record_turn(i, b, times, (prompt, min(reusable, prompt), hit, output, -1, -1))
        self._acting(i, self._own, math.nan)
        self._rest(i, last=False)
        talk.remember(ask, reply, context)
        self._tell()
        self._poke()

    async def _size(self, talk: Talk, ask: Ask) -> int:
        """Tokens of a prompt: known, or grown from what was counted before, or counted by a server now."""
        if ask.prompt_tokens is not None:
            return ask.prompt_tokens
        if ask.prompt is not None and not isinstance(ask.prompt, str):
            return len(ask.prompt)
        estimated = talk.estimate(ask)
        if talk.grows(ask) and estimated + self.params.reserve_tokens <= self._largest:
            return estimated
        return await self._counted(ask) or estimated

    async def _counted(self, ask: Ask) -> int | None:
        """Tokens of a prompt as a server counts them, if one of the two that are least busy does."""
        usable = [b for b in range(len(self.servers.all)) if not self.servers.out(b, self._loop.time())]
        body = {name: ask.options[name] for name in TOKENIZED if name in ask.options}
        body |= {"prompt": ask.prompt} if ask.messages is None else {"messages": list(ask.messages)}
        for b in sorted(usable, key=lambda b: self.view.inflight[b])[:2]:
            with suppress(LiveError, AttributeError):
                return count((await self.servers[b].node.ask("/tokenize", body)).get("count"))
        return None

    def _failed(self, i: int, b: int, error: LiveError) -> None:
        """A request came to nothing: the session leaves the node, which may be broken and its cache lost."""
        self._stamp()
        self._release(i)
        if isinstance(error, Retryable) or error.suspect:
            self.servers[b].failed(error, self._loop.time(), self.servers.rng)
            self._forget(b)
            self._loop.call_at(self.servers[b].out_until_s, self._again)
        self._tell()

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

    def saw(self, b: int, load: Load | None, fault: LiveError | None) -> None:
        """What a look at node b brought."""
        self._stamp()
        if load is not None and self.servers.saw(self.view.state, b, load):
            self._forget(b)
            self.history.notes.append(
                f"{self.servers[b].node.name} was started anew at {self.now_ps / PS_PER_S:.1f} s"
            )
        self.servers[b].fault = fault or self.servers[b].fault
        self._tell()
