"""A simulated deployment: several servers on ports of this machine, in a process of their own.

`serve` is what that process runs; `Deployment` starts it and ends it. It ends by itself when its
standard input closes, which happens when its parent ends, however that is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from tao.checks import InputError, shown
from tao.profiles import PROFILES, Profile

if TYPE_CHECKING:  # the child alone pays for these
    import uvicorn

    from tao.live.double.app import Server

HEADER_BYTES = 64 * 1024  # longest request line and headers together
DYING_S = 3.0  # a real server answers so long after its engine is gone, /health with 503
LEAVING_S = 1.0  # and so long after SIGTERM
VERSIONS = {"0.10": (0, 10, 2), "0.20": (0, 20, 2), "0.32": (0, 32, 0)}
LOOPBACK = ("127.0.0.1", "::1", "localhost")
FAULTS = ("crash", "sigterm", "hang", "slow", "restart", "truncate", "overload")


@dataclass(frozen=True)
class Fault:
    """At `at_s` seconds after the start something happens to a node, for `for_s` seconds where it lasts.

    `factor`: how much slower "slow" is, and how many streams "truncate" cuts; "crash", "sigterm" and
    "restart" come back cold after `for_s`, or never if that is 0.

    >>> Fault.of('{"kind": "slow", "node": 1, "at_s": 5, "for_s": 10, "factor": 10}').factor
    10
    """

    kind: str
    node: int = 0
    at_s: float = 0.0
    for_s: float = 0.0
    factor: float = 1.0

    @classmethod
    def of(cls, text: str) -> Fault:
        """From a JSON object; raises `InputError`."""
        try:
            fault = cls(**json.loads(text))
        except (ValueError, TypeError):
            names = ", ".join(f.name for f in fields(cls))
            raise InputError(f"fault {shown(text)}: write a JSON object with {names}") from None
        if fault.kind not in FAULTS:
            raise InputError(f"fault {shown(text)}: kind must be one of {', '.join(FAULTS)}")
        return fault


@dataclass(frozen=True)
class Plan:
    """What to serve: see the options of `tao serve`. `port` 0 takes free ones."""

    nodes: int = 4
    profile: str = "qwen3-32b-2xh100"
    kv_tokens: int = 0  # 0: the profile's
    speedup: float = 1.0
    replies: str = ""
    tokenizer: str = ""
    api_key_env: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    version: str = "0.32"
    max_num_queued_reqs: int = 0  # 0: any number
    keep_alive_s: float = 10.0
    faults: tuple[str, ...] = ()

    def servers(self) -> Callable[[], list[Server]]:
        """What makes the servers, inside the loop that serves them; raises `InputError` before."""
        from tao.live.double.app import Server
        from tao.live.double.jobs import Settings
        from tao.live.double.text import FolderTokenizer, PieceTokenizer, read_replies

        profile = PROFILES.get(self.profile) or Profile.from_json(self.profile)
        if self.version not in VERSIONS:
            raise InputError(f"version {shown(self.version)}; it must be one of {', '.join(VERSIONS)}")
        least = 2 * profile.block_tokens
        kv_tokens = self.kv_tokens or profile.capacity_tokens
        if self.nodes < 1 or self.speedup <= 0 or kv_tokens < least:
            raise InputError(f"nodes, speedup and kv_tokens (at least {least}) must be above 0; raise them")
        key = os.environ.get(self.api_key_env) if self.api_key_env else None
        if self.api_key_env and not key:
            raise InputError(f"--api-key-env: ${self.api_key_env} is not set or empty; export it")
        if self.host not in LOOPBACK and not key:
            raise InputError(f"--host {self.host} is open to the network; give a key with --api-key-env")
        replies = tuple(read_replies(self.replies)) if self.replies else ()
        tokenizer = FolderTokenizer(self.tokenizer) if self.tokenizer else PieceTokenizer()
        settings = Settings(
            kv_tokens=kv_tokens,
            speedup=self.speedup,
            model=profile.name,
            version=VERSIONS[self.version],
            max_num_queued_reqs=self.max_num_queued_reqs or None,
            keep_alive_s=self.keep_alive_s or None,
        )
        for text in self.faults:
            if not 0 <= Fault.of(text).node < self.nodes:
                raise InputError(f"fault {shown(text)}: node must be from 0 to {self.nodes - 1}")
        return lambda: [Server(profile, settings, tokenizer, replies, key) for _ in range(self.nodes)]


class Node:
    """One server on one port, which can go away and come back."""

    def __init__(self, app: Server, host: str, port: int) -> None:
        self.app, self.host, self.port = app, host, port
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._listen()

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"http://{'127.0.0.1' if self.host in ('0.0.0.0', '::') else self.host}:{self.port}"

    def _listen(self) -> None:
        import uvicorn

        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self.host, self.port))
        except OSError as e:
            listener.close()
            raise InputError(f"{self.host}:{self.port}: {e.strerror}; choose another --port") from None
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            self.app,
            http="h11",  # the one parser whose headers have a limit
            h11_max_incomplete_event_size=HEADER_BYTES,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._server.capture_signals = contextlib.nullcontext  # type: ignore[assignment]  # ours to handle
        self._task = asyncio.ensure_future(self._server.serve([listener]))

    async def stop(self) -> None:
        """Stop listening and drop every connection."""
        if self._server and self._task:
            self.app.stop()
            self._server.should_exit = self._server.force_exit = True
            # Connections in the middle of an answer are cut, as when a process ends.
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
            await asyncio.wait([self._task])
            self._server = self._task = None

    async def suffer(self, fault: Fault) -> None:
        """Let a fault happen; returns when it is over."""
        await asyncio.sleep(fault.at_s)
        engine = self.app.engine
        if fault.kind in ("crash", "sigterm", "restart"):
            if fault.kind != "restart":
                (engine.crash if fault.kind == "crash" else engine.terminate)()
                await asyncio.sleep(DYING_S if fault.kind == "crash" else LEAVING_S)
            await self.stop()
            if fault.for_s:
                await asyncio.sleep(fault.for_s)
                self.app.start()
                self._listen()
        elif fault.kind == "truncate":
            self.app.truncate += int(fault.factor)
        else:
            name = {"hang": "hung", "slow": "slowness", "overload": "refusing"}[fault.kind]
            before = getattr(engine, name)
            setattr(engine, name, fault.factor if fault.kind == "slow" else True)
            if fault.for_s:
                await asyncio.sleep(fault.for_s)
                setattr(engine, name, before)
                engine.wake()


async def serve(plan: Plan, tell: Callable[[list[str]], None], until: asyncio.Event) -> None:
    """Serve until the event is set; `tell` gets the URLs once all nodes listen."""
    make = plan.servers()
    ports = [plan.port + b if plan.port else 0 for b in range(plan.nodes)]
    nodes = [Node(app, plan.host, port) for app, port in zip(make(), ports, strict=True)]
    faults = [Fault.of(text) for text in plan.faults]
    tasks = [asyncio.ensure_future(nodes[f.node].suffer(f)) for f in faults]
    try:
        while not all(n._server and n._server.started for n in nodes):
            await asyncio.sleep(0.005)
        tell([n.url for n in nodes])
        await until.wait()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *(n.stop() for n in nodes), return_exceptions=True)


class Deployment:
    """A simulated deployment in a child process: `plan`, `urls`, `stop`, or use it in a `with` block.

    The API key, if any, goes to the child by its environment. Raises `InputError` if it cannot start: the
    child checks the plan, so that this process needs none of what serving does.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        command = [sys.executable, "-m", "tao.live.double.serve", json.dumps(vars(plan))]
        # A session of its own: Ctrl-C and a notebook's interrupt reach the parent alone.
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._child.stdout
        line = self._child.stdout.readline()
        if not line.startswith("["):
            self.stop()
            raise InputError(line.strip() or "the simulated servers did not start; see the lines above")
        self.urls: list[str] = json.loads(line)

    def wait(self) -> None:
        """Until it ends by itself."""
        self._child.wait()

    def stop(self) -> None:
        """End it and everything in it."""
        assert self._child.stdin
        assert self._child.stdout
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        try:
            self._child.wait(5)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def main(argv: Sequence[str]) -> int:
    """The child process: URLs on one line of standard output, until standard input closes."""
    logging.basicConfig(format="tao serve: %(message)s")
    if os.name == "posix":  # a connection is an open file, and many systems allow 1,024
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))

    async def run() -> None:
        until = asyncio.Event()
        # The parent writes nothing: what can be read is the end of the file.
        asyncio.get_running_loop().add_reader(0, until.set)
        data = json.loads(argv[0])
        plan = replace(Plan(), **data | {"faults": tuple(data["faults"])})
        await serve(plan, lambda urls: print(json.dumps(urls), flush=True), until)

    try:
        asyncio.run(run())
    except InputError as e:
        print(str(e), flush=True)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
