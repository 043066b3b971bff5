"""A node that serves in real time: requests are submitted and awaited, steps last as its profile says.

Time is that of the event loop, so a loop whose clock is virtual (`VirtualLoop`) makes runs that need no
time and are the same every time. A node that cannot keep up lets its clock slip, and says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from tao.live.double.blocks import BlockNode, Change, block_hashes
from tao.live.double.jobs import Job, Settings
from tao.live.double.metrics import Metrics
from tao.live.double.text import Answer
from tao.profiles import PS_PER_S, Profile

LATE_S = 0.1  # ours: so late a step's end makes the clock slip; less is a busy machine's jitter
BUSY = "The engine is currently busy and cannot accept new requests. "
BACKLOG = "The engine has reached its prefill token backlog limit. "
LATER = "Please try again later or on a different instance."
log = logging.getLogger(__name__)


class OverloadError(Exception):
    """A queue limit rejects a request; the text is the server's, `limit` the option at fault."""

    def __init__(self, limit: str) -> None:
        super().__init__((BUSY if limit == "max_num_queued_reqs" else BACKLOG) + LATER)
        self.limit = limit


class EngineDeadError(Exception):
    """The engine crashed; requests in flight get an error, later ones none."""

    def __init__(self) -> None:
        super().__init__("EngineCore encountered an issue. See stack trace (above) for the root cause.")


class Engine:
    """One node in the time of the running event loop; `run` is its only task.

    `slowness`, above 1, makes steps longer; `hung` stops them until it is cleared and `wake` called.
    `publish` gets what each step changed in the cache.
    """

    def __init__(
        self,
        profile: Profile,
        settings: Settings,
        metrics: Metrics,
        publish: Callable[[list[Change], int], None] | None = None,
    ) -> None:
        self.settings, self.metrics, self._publish = settings, metrics, publish
        self.node = BlockNode(profile, settings.kv_tokens)
        self.node.blocks.log = [] if publish else None
        self.max_model_len = min(settings.max_model_len or 2**31, self.node.capacity_tokens)
        self.slowness, self.hung, self.refusing, self.dead = 1.0, False, False, False
        self.behind_s = 0.0  # real seconds by which the clock has slipped
        self.jobs: dict[int, Job] = {}
        self._next, self._wake = 0, asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._origin_s = self._loop.time()
        self._warned_s = 1.0

    @property
    def now_ps(self) -> int:
        """Simulated time; while a step is due but not ended yet, its end."""
        now = round((self._loop.time() - self._origin_s) * self.settings.speedup * PS_PER_S)
        return now if self.node.ends_ps is None else min(now, self.node.ends_ps)

    def admit(self, n: int = 1) -> None:
        """Raise `OverloadError` or `EngineDeadError` where so many more requests would be refused."""
        s = self.settings
        if self.dead:
            raise EngineDeadError
        limit = 0 if self.refusing else s.max_num_queued_reqs
        if limit is not None and len(self.jobs) + n > limit:
            self._refuse("max_num_queued_reqs")
        if s.max_num_queued_tokens is not None:
            prefilling = sum(j.prompt_tokens for j in self.jobs.values() if j.first_token_ps < 0)
            if prefilling >= s.max_num_queued_tokens:
                self._refuse("max_num_queued_tokens")

    def _refuse(self, limit: str) -> None:
        self.metrics.add("admission_rejections", 1, limit)
        raise OverloadError(limit)

    def submit(self, tokens: list[int], answer: Answer, priority: int = 0, **about: Any) -> Job:
        """Queue a request, with more fields of its `Job`.

        Raises `OverloadError`, `EngineDeadError`, or `InputError` if it can never fit.
        """
        self.admit()
        if "hashes" not in about:
            about["hashes"] = block_hashes([*tokens, *answer.tokens], self.node.blocks.size)
        job = Job(self._next, len(tokens), len(answer.tokens), 0, answer=answer, tokens=tokens, **about)
        self._next += 1
        job.priority = priority if self.settings.scheduling_policy == "priority" else 0
        self.node.submit(job, self.now_ps)
        self.jobs[job.session] = job
        job.others.add(job.session)
        self._wake.set()
        return job

    def abort(self, job: Job, reason: str = "abort") -> None:
        """End a request now; what it computed stays as idle cache."""
        if self.jobs.get(job.session) is job:
            del self.jobs[job.session]
            self.node.cancel(job.session)
            job.reason = reason
            job.news.set()
            self._gauges()

    async def outputs(self, job: Job, keep_alive_s: float | None = None) -> AsyncIterator[int]:
        """The number of tokens so far, whenever it has grown, until the end; aborts if not exhausted.

        Until there is one, 0 after every so many seconds; the last one comes again if the end is an abort.
        """
        told = 0
        try:
            while True:
                if job.reason == "error":
                    raise EngineDeadError
                if job.emitted > told or job.reason == "abort":
                    told = job.emitted
                    yield told
                if job.reason and told == job.emitted:
                    return
                while keep_alive_s and not told and not await _within(keep_alive_s, job.news):
                    yield 0
                await job.news.wait()
                job.news.clear()
        finally:
            self.abort(job, "gone")

    def reset_prefix_cache(self) -> bool:
        """Empty the cache; False, and nothing changes, while a request uses some of it.

        As in vLLM, the next step publishes the event.
        """
        return self.node.blocks.reset()

    def _tell_changes(self) -> None:
        if self._publish and self.node.blocks.log:
            self._publish(self.node.blocks.log, self.node.blocks.size)
            self.node.blocks.log.clear()

    def crash(self) -> None:
        """The engine is gone, with its cache: every request fails."""
        self.dead = True
        for job in list(self.jobs.values()):
            self.abort(job, "error")

    def terminate(self) -> None:
        """As on SIGTERM: every request ends with what it has; later ones fail."""
        self.dead = True
        for job in list(self.jobs.values()):
            self.abort(job)

    def wake(self) -> None:
        """Look again at `hung` and at what waits."""
        self._wake.set()

    async def run(self) -> None:
        """Serve until cancelled; a failure is logged and crashes the engine, so that nobody waits in vain."""
        try:
            await self._serve()
        except Exception:
            log.exception("the engine failed")
            self.node.running.clear()  # what failed may be broken, and must not keep the others from an end
            self.node.waiting.clear()
            self.crash()

    async def _serve(self) -> None:
        while True:
            while self.hung or not (self.node.running or self.node.waiting):
                self._wake.clear()
                await self._wake.wait()
            if self.node.ends_ps is None:
                await asyncio.sleep(0)  # what comes at the same moment is in the same batch
                self._turn(self.now_ps, self.node.start)
                continue
            due_s = self._origin_s + self.node.ends_ps / PS_PER_S / self.settings.speedup
            wait_s = due_s - self._loop.time()
            # Also without a wait the other tasks must get their turn.
            await asyncio.sleep(max(wait_s, 0.0))
            late_s = self._loop.time() - due_s
            if late_s > LATE_S:
                self._slip(late_s)
            if not self.hung:
                self._turn(self.node.ends_ps, self.node.step)

    def _slip(self, late_s: float) -> None:
        self._origin_s += late_s
        self.behind_s += late_s
        if self.behind_s > self._warned_s:
            log.warning(
                "this machine cannot keep up with a speed-up of %g: the simulated clock is %.1f s behind; "
                "lower --speedup",
                *(self.settings.speedup, self.behind_s),
            )
            self._warned_s = 2 * self.behind_s

    def _turn(self, now_ps: int, change: Callable[[int], Any]) -> None:
        """Let the node end a step and start the next, and tell the clients and the metrics."""
        if self.settings.scheduling_policy == "priority":
            self.node.waiting = deque(sorted(self.node.waiting, key=lambda r: getattr(r, "priority", 0)))
        before = [(r, r.emitted, r.scheduled_ps) for r in [*self.node.running, *self.node.waiting]]
        events = change(now_ps)
        if self.node.ends_ps is not None:
            self.node.ends_ps = now_ps + round((self.node.ends_ps - now_ps) * self.slowness)
        new_tokens = 0
        for r, emitted, scheduled_ps in before:
            assert isinstance(r, Job)
            if scheduled_ps < 0 <= r.scheduled_ps:
                self.metrics.admitted(r)
            if r.emitted > emitted:
                new_tokens += self.metrics.token(r, now_ps)
                r.last_ps = now_ps
                r.news.set()
        if new_tokens:
            self.metrics.observe("iteration_tokens_total", new_tokens)
        for event in events:
            if event.kind == "finished":
                job = self.jobs.pop(event.request.session)
                job.reason = job.answer.reason
                self.metrics.finished(job)
            elif event.kind == "preempted":
                self.metrics.add("num_preemptions")
        self._gauges()
        self._tell_changes()

    def _gauges(self) -> None:
        node, blocks = self.node, self.node.blocks
        self.metrics.load(len(node.running), len(node.waiting), 1 - blocks.unused / blocks.count)


async def _within(seconds: float, news: asyncio.Event) -> bool:
    try:
        await asyncio.wait_for(news.wait(), seconds)
    except TimeoutError:
        return False
    return True


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop without waiting: when nothing is ready, its clock jumps to what is due next.

    >>> loop = VirtualLoop()
    >>> loop.run_until_complete(asyncio.sleep(3600)), loop.time(), loop.close()
    (None, 3600.0, None)
    """

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        selector = self._selector  # type: ignore[attr-defined]
        real = selector.select

        def select(timeout: float | None = None) -> Any:
            ready = real(0 if timeout is not None else 5)
            if not ready and timeout is None:
                raise RuntimeError("all tasks wait for one another")
            self._now_s += 0 if ready else timeout or 0
            return ready

        selector.select = select

    def time(self) -> float:
        """Seconds since the loop began."""
        return self._now_s
