"""What live sessions do: an agent is a generator that yields requests and tools and is sent their results.

An agent's own code and its tools run on this machine, beside the loop that measures. What a model wrote is
data: nothing here looks into it, or runs it.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tao import checks, commands, readiness
from tao.checks import InputError, shown
from tao.live.stream import Reply
from tao.workloads import Task, Turn, Workload

MAX_OUTPUT_BYTES = 2**20  # ours: of a program's output, the end of it, is kept
MIN_ID, IDS = 1000, 2000  # ours: token ids that any vocabulary of 3,000 tokens has, none of them special
REST_S = 0.2  # ours: the last of a program's output has so long to come
KILL_S = 1.0  # ours: a program that is told to stop has so long


@dataclass(frozen=True)
class Ask:
    """A request to the model: the messages of a chat, or a prompt (text or token ids); yields a `Reply`.

    `options` go to the server as they are: max_tokens, tools, temperature, ... `prompt_tokens` is the size of
    the prompt where the agent knows it; else the server is asked.

    >>> Ask([{"role": "user", "content": "hello"}], options={"max_tokens": 8}).prompt is None
    True
    """

    messages: Sequence[dict[str, Any]] | None = None
    prompt: str | Sequence[int] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        if (self.messages is None) == (self.prompt is None):
            raise InputError("an Ask has either messages or a prompt; give one of them")
        if self.prompt_tokens is not None:
            checks.whole(self.prompt_tokens, "Ask: prompt_tokens", 1)


@dataclass(frozen=True)
class Sleep:
    """A tool that does nothing for so many seconds of the run's time; yields None.

    `asked_s` is what its command says that it will sleep; leave it out for a stand-in of another tool,
    whose duration nobody knows before.
    """

    seconds: float
    tool: str = "sleep"
    tool_class: str = ""
    asked_s: float | None = None
    due_s: float | None = None  # promised by the tool itself: seconds from now

    def __post_init__(self) -> None:
        checks.at_least_zero(self.seconds, "Sleep: seconds")

    async def work(self, rate: float) -> None:
        """Wait; `rate`: seconds of the run per second of the clock."""
        await asyncio.sleep(self.seconds / rate)


@dataclass(frozen=True)
class Function:
    """A tool that is a Python function; yields what it returns, or raises what it raises.

    It runs in a thread of its own, which cannot be killed: a run that is stopped does not wait for it.
    """

    do: Callable[..., Any]
    args: tuple[Any, ...] = ()
    tool_class: str = ""
    due_s: float | None = None
    asked_s: float | None = None

    @property
    def tool(self) -> str:
        """Its name in the history of tools."""
        return str(getattr(self.do, "__name__", "function"))

    async def work(self, rate: float) -> Any:
        """Call it."""
        return await in_thread(partial(self.do, *self.args))


class Finished(NamedTuple):
    """A program's end: its status (None: it was stopped at its timeout) and the end of its output."""

    status: int | None
    output: bytes


@dataclass(frozen=True)
class Program:
    """A tool that is a program, given as a list of arguments and run without a shell; yields `Finished`.

    It has a process group of its own, which is killed at the timeout or when the run stops.
    """

    argv: Sequence[str]
    timeout_s: float
    cwd: str | None = None
    tool: str = "bash"
    due_s: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.argv, str) or not self.argv or not all(isinstance(a, str) for a in self.argv):
            raise InputError(f"Program: argv is {shown(self.argv)}; it must be a list of strings")
        checks.positive(self.timeout_s, "Program: timeout_s")

    @property
    def tool_class(self) -> str:
        """What kind of command it is."""
        return commands.classify(shlex.join(self.argv))

    @property
    def asked_s(self) -> float | None:
        """Seconds that its command sleeps."""
        found = readiness.parsed_sleep(shlex.join(self.argv))
        return None if found is None else float(found)

    async def work(self, rate: float) -> Finished:
        """Run it to its end or its timeout."""
        with closing(_Output()) as output:
            child = await self._start(output.theirs)
            try:
                async with asyncio.timeout(self.timeout_s):
                    status = await child.wait()
                with suppress(TimeoutError):  # what it has left behind may hold its output open for long
                    await asyncio.wait_for(output.ended.wait(), REST_S)
                return Finished(status, bytes(output.kept))
            except TimeoutError:
                return Finished(None, bytes(output.kept))
            finally:
                await _end(child)

    async def _start(self, output: int) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                cwd=self.cwd,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise InputError(
                f"{shown(self.argv[0])} cannot be run ({error}); give an existing program"
            ) from None
        finally:
            os.close(output)  # else it never ends


class _Output:
    """A pipe of our own: with one of asyncio's a program's end waits for all who hold it (Python 3.11)."""

    def __init__(self) -> None:
        self.kept, self.ended = bytearray(), asyncio.Event()
        self._ours, self.theirs = os.pipe()
        asyncio.get_running_loop().add_reader(self._ours, self._read)

    def _read(self) -> None:
        if data := os.read(self._ours, 2**16):
            self.kept += data
            del self.kept[:-MAX_OUTPUT_BYTES]
        else:
            self.ended.set()
            asyncio.get_running_loop().remove_reader(self._ours)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._ours)
        os.close(self._ours)


async def _end(child: asyncio.subprocess.Process) -> None:
    """End what is left of its process group: kindly, and within a second or if this is canceled by force."""
    try:
        _signal(child.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(child.wait(), KILL_S)
    finally:
        _signal(child.pid, signal.SIGKILL)
    await child.wait()


def _signal(group: int, sent: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, sent)


Tool = Sleep | Function | Program
Script = Generator[Ask | Tool, Any, Any]
Agent = Callable[[], Script]


class Acting:
    """An agent at work: its code is in one thread at a time, also once nobody waits for it any more."""

    def __init__(self, agent: Agent):
        script = agent()
        if not isinstance(script, Generator):
            raise InputError(
                f"the agent is {type(script).__name__}, no generator; let it yield Ask and tools"
            )
        self._script, self._lock = script, threading.Lock()

    def go_on(self, result: Any = None, error: BaseException | None = None) -> Any:
        """What it yields after this result, or after this error; None: it has returned."""
        with self._lock:
            try:
                return self._script.send(result) if error is None else self._script.throw(error)
            except StopIteration:
                return None

    def close(self) -> None:
        """Let it clean up, once it does nothing else; raises what it raises then."""
        with self._lock:
            self._script.close()


async def in_thread(do: Callable[[], Any]) -> Any:
    """Its result, from a thread of its own that holds nothing up, not even the end of the program."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if found.done():
            return
        if error is None:
            found.set_result(result)
        elif isinstance(error, StopIteration):  # a future cannot hold it
            found.set_exception(RuntimeError("it raised StopIteration"))
        else:
            found.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = do()
        except BaseException as raised:  # whatever it is, the agent hears of it
            error = raised
        with suppress(RuntimeError):  # the loop may be gone by now
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="tao-tool", daemon=True).start()
    return await found


def replay(workload: Workload) -> dict[str, Agent]:
    """The sessions of a workload as agents: prompts of random token ids, exactly as long, and sleeping tools.

    The server must take token ids at /v1/completions, and `ignore_eos`. Where it does not return the ids of
    its answers (`return_token_ids`), the next prompt cannot repeat them.

    >>> from tao.workloads import WORKLOADS
    >>> list(replay(WORKLOADS["swe-lite"](tasks=2)))
    ['swe-lite-0000', 'swe-lite-0001']
    """
    rng = np.random.default_rng([workload.seed, len(workload.tasks)])
    shared = _ids(rng, workload.shared_prefix_tokens)
    return {
        task.id: partial(_play, task, shared, [workload.seed, k]) for k, task in enumerate(workload.tasks)
    }


def _ids(rng: np.random.Generator, count: int) -> list[int]:
    ids: list[int] = rng.integers(MIN_ID, MIN_ID + IDS, max(count, 0)).tolist()
    return ids


def _play(task: Task, shared: list[int], seed: list[int]) -> Script:
    rng, context = np.random.default_rng(seed), shared
    for turn in task.turns:
        prefix = max(turn.prefix_tokens, len(shared))
        prompt = context[:prefix] + _ids(rng, turn.prompt_tokens - min(prefix, len(context)))
        options = {"max_tokens": turn.output_tokens, "ignore_eos": True, "return_token_ids": True}
        reply: Reply = yield Ask(prompt=prompt, options=options, prompt_tokens=len(prompt))
        context = prompt + list(reply.token_ids or _ids(rng, turn.output_tokens))
        if turn.tool:
            yield _pretend(turn)


def _pretend(turn: Turn) -> Sleep:
    return Sleep(turn.tool_s, turn.tool, turn.tool_class, turn.sleep_s)
