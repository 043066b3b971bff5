"""What live runs cost on this machine: how late chunks are, how many may be open, how soon servers start.

Simulated servers stamp each chunk as they hand it to the socket, on the monotonic clock that processes share.
The yardstick is bare sockets, which send as many stamps at the same moments and nothing else.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tao import checks
from tao.bench.timing import seconds
from tao.checks import InputError
from tao.live import loop
from tao.live.client import Client
from tao.live.double.app import STAMP, stamped
from tao.live.double.serve import Deployment, Plan
from tao.live.faults import Retryable
from tao.live.loop import Call, Loop
from tao.profiles import Profile

NODES, STEP_S = 4, 0.03
REPEATS, WINDOW_S = 3, 3.0  # ours: of each figure, and how long its chunks are counted
OPEN, SEATS = 1_000, 64  # requests open at once, and of these running on each node
SPARE_FILES = 100  # ours: open files of a process that are no streams
PROMPT_S = 2e-6  # ours: between two requests, per token of context: the servers must not fall behind
STAMP_BYTES, BARE_BYTES = 20, 256  # of a stamp, and of a piece on a bare socket: a chunk has some 250
IMPORTS = "import numpy, prometheus_client, pydantic, uvicorn"
Progress = Callable[[float], None]
Row = dict[str, Any]


class Load(NamedTuple):
    """Streams over all nodes; `busy`: the main thread computes meanwhile, as a notebook's cell does."""

    what: str
    streams: int = 256
    context_tokens: int = 2_000
    in_phase: bool = False
    busy: bool = False


LOADS = (
    Load("256 streams"),
    Load("256 streams, nodes in phase", in_phase=True),
    Load("256 streams, 20k contexts", context_tokens=20_000),
    Load("32 streams, busy cell", streams=32, busy=True),
)
NOTE = (
    f"lag: milliseconds from server's socket to parsed chunk, medians of {REPEATS} runs; worst: of one run;\n"
    "bare: the same over bare sockets; step: as the client sees it, 30 ms where the servers keep up;\n"
    "cores: CPU seconds per second of the client's thread, of the servers, of everything else"
)


def live(progress: Progress = lambda share: None, minutes: float = 0.0) -> list[Row]:
    """Chunk lag, open streams and start-up; with `minutes`, memory over so long a load instead.

    4 simulated nodes in a process of their own, steps of 30 ms. Raises `InputError` if this process may not
    open so many connections.
    """
    if minutes:
        checks.positive(minutes, "minutes")
        return [memory(minutes, progress)]
    allow_files(OPEN)
    rows = []
    for k, load in enumerate(LOADS):
        rows.append(chunk_lag(load))
        progress((k + 1) / (len(LOADS) + 1))
    return [*rows, many_open(OPEN), start_up()]


def cells(row: Row) -> dict[str, str]:
    """A row as it is printed.

    >>> cells({"what": "x", "lag_p95_ms": 1.234, "open": 1000})
    {'what': 'x', 'lag_p95_ms': '1.23', 'open': '1,000'}
    """
    return {
        name: x if isinstance(x, str) else f"{x:{',' if x == int(x) else '.2f'}}" for name, x in row.items()
    }


def allow_files(streams: int) -> None:
    """Let this process have so many connections; raises `InputError` if the system does not allow it."""
    if os.name != "posix":
        return
    import resource

    needed, (soft, hard) = streams + SPARE_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise InputError(
            f"{streams:,} streams need {needed:,} open files and this process may have {hard:,}; as an "
            f"administrator say `ulimit -n {needed}` in a shell and start again from there"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


# Chunk lag


class Lags:
    """Collects how old stamps are, in milliseconds, while it is on."""

    def __init__(self) -> None:
        self.on, self.ms, self.begun = False, array("d"), set[int]()

    def take(self, stream: int, text: str | bytes) -> None:
        """The stamp at the end of a text of that stream."""
        now_s = time.monotonic()
        self.begun.add(stream)
        if self.on:
            self.ms.append(1000 * (now_s - float(text[-STAMP_BYTES:])))

    def window(self, running: Loop, pid: int, busy: bool) -> Row:
        """What comes in `WINDOW_S`: its lag and rate, and the CPU time it costs here and in process `pid`."""
        before, until_s = _spent(running, pid), time.monotonic() + WINDOW_S
        self.on = True
        while busy and time.monotonic() < until_s:
            sum(k * k for k in range(500))
        time.sleep(max(until_s - time.monotonic(), 0))
        self.on = False
        wall_s, client_s, server_s, all_s = (b - a for a, b in zip(before, _spent(running, pid), strict=True))
        cuts = statistics.quantiles(self.ms, n=100)
        row = {"lag_p50_ms": cuts[49], "lag_p95_ms": cuts[94], "lag_max_ms": max(self.ms)}
        row["step_ms"] = 1000 * wall_s * len(self.begun) / len(self.ms)
        row |= {"client_cores": client_s / wall_s, "server_cores": server_s / wall_s}
        row["other_cores"] = (all_s - client_s - server_s) / wall_s - busy
        return {name: x for name, x in row.items() if not math.isnan(x)}


def _spent(running: Loop, pid: int) -> tuple[float, float, float, float]:
    """Seconds so far: by the clock, and CPU time of the client's thread, of a process, of all."""
    client_s = running.begin(_thread_s()).result()
    return time.monotonic(), client_s, cpu_s(f"/proc/{pid}/stat"), cpu_s("/proc/stat")


async def _thread_s() -> float:
    return time.thread_time()


def chunk_lag(load: Load) -> Row:
    """Medians over `REPEATS` runs, each beside one over bare sockets."""
    with _loop() as running:
        runs, bare = list[Row](), list[Row]()
        for _ in range(REPEATS):
            runs.append(_served(load, running))
            bare.append(_bare(load, running))
    row: Row = {"what": load.what} | {name: statistics.median(r[name] for r in runs) for name in runs[0]}
    row["worst_p95_ms"] = max(run["lag_p95_ms"] for run in runs)
    for name in ("lag_p95_ms", "client_cores"):
        row[f"bare_{name}"] = statistics.median(r[name] for r in bare)
    return row


def _served(load: Load, running: Loop) -> Row:
    lags = Lags()
    with serving() as (servers, clients):
        calls = _fill(load, clients, lags)
        _until(lambda: len(lags.begun) == load.streams, calls)
        return lags.window(running, servers.pid, load.busy)


@contextmanager
def _loop() -> Iterator[Loop]:
    """The loop of all clients, kept between them, and as quick beside a busy cell as with a request in it."""
    running = loop.acquire()

    async def keep() -> None:
        with running.lag():
            await asyncio.Event().wait()

    kept = running.begin(keep())
    try:
        yield running
    finally:
        kept.cancel()
        loop.release()


@contextmanager
def serving(
    seats: int = 1024, answer_tokens: int = 2_000, kv_tokens: int = 2_000_000
) -> Iterator[tuple[Deployment, list[Client]]]:
    """Simulated nodes whose steps last `STEP_S` whatever is in them, and whose answers are stamps."""
    none: dict[str, Any] = dict.fromkeys(("t1_ms", "expert_share", "t2_us", "kv_us_per_1k", "host_ms"), 0.0)
    none |= dict.fromkeys(("prefill_ms", "prefill_us", "attention_us_per_1k"), 0.0)
    profile = Profile("bench", kv_tokens, 1000 * STEP_S, max_seqs=seats, **none)
    answer = {"content": STAMP.decode() * answer_tokens, "turn": 0}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        paths = [Path(folder, name) for name in ("profile.json", "replies.jsonl")]
        for path, text in zip(paths, (profile.to_json(), json.dumps(answer)), strict=True):
            path.write_text(text, "utf-8")
        plan = Plan(nodes=NODES, profile=str(paths[0]), replies=str(paths[1]), stamps=True)
        servers = stack.enter_context(Deployment(plan))
        yield servers, [stack.enter_context(Client(url, model="bench")) for url in servers.urls]


def _fill(load: Load, clients: Sequence[Client], lags: Lags) -> list[Call[Any]]:
    """Begin all streams; one more per node, a short one, comes first and sets when the node's steps end."""
    calls = []
    for client in clients:
        calls.append(_ask(client, 0, 1))
        time.sleep(0 if load.in_phase else STEP_S / len(clients))
    for k in range(load.streams):
        take = partial(lags.take, k)
        calls.append(_ask(clients[k % len(clients)], k + 1, load.context_tokens, on_text=take))
        time.sleep(PROMPT_S * load.context_tokens)
    return calls


def _ask(client: Client, number: int, tokens: int, **options: Any) -> Call[Any]:
    """A stream with a context that no other one shares."""
    return client.chat([{"role": "user", "content": f"{number}" + " word" * tokens}], **options)


def _until(true: Callable[[], bool], calls: Sequence[Call[Any]] = (), within_s: float = 60.0) -> None:
    """Wait for that; a call that ends meanwhile says why it will not come."""
    begun_s = time.monotonic()
    while not true():
        for call in calls:
            if call.done():
                call.result()
        if time.monotonic() > begun_s + within_s:
            raise InputError(
                f"the streams did not begin within {within_s:g} s; end other programs, try again"
            )
        time.sleep(0.01)


# Bare sockets


class _Reader(asyncio.Protocol):
    def __init__(self, lags: Lags) -> None:
        self.lags = lags

    def data_received(self, data: bytes) -> None:
        for at in range(0, len(data), BARE_BYTES):
            self.lags.take(id(self), data[at : at + STAMP_BYTES])


def _bare(load: Load, running: Loop) -> Row:
    lags, command = (
        Lags(),
        [sys.executable, "-m", "tao.live.bench", json.dumps([load.streams, load.in_phase])],
    )
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin
        assert child.stdout
        port = int(child.stdout.readline())

        async def connect() -> None:
            for _ in range(load.streams):
                await asyncio.get_running_loop().create_connection(lambda: _Reader(lags), "127.0.0.1", port)

        running.begin(connect()).result()
        _until(lambda: len(lags.begun) == load.streams)
        row = lags.window(running, child.pid, load.busy)
        child.stdin.close()  # it then closes the connections
    return row


async def bare_server(streams: int, in_phase: bool) -> None:
    """Tell the port, and send a stamp over every connection in every step, until standard input closes."""
    here, until, full = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    there = list[Any]()

    class Sender(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            there.append(transport)
            if len(there) == streams:
                full.set()

    async def beat(group: list[Any], due_s: float) -> None:
        while True:
            await asyncio.sleep(due_s - here.time())
            for transport in group:
                transport.write(stamped(STAMP) + b"." * (BARE_BYTES - STAMP_BYTES))
            due_s += STEP_S

    here.add_reader(0, until.set)
    server = await here.create_server(Sender, "127.0.0.1", 0, backlog=streams)
    print(server.sockets[0].getsockname()[1], flush=True)
    await full.wait()
    later_s = 0.0 if in_phase else STEP_S / NODES
    beats = [beat(there[k::NODES], here.time() + k * later_s) for k in range(min(NODES, streams))]
    tasks = [asyncio.ensure_future(each) for each in beats]
    await until.wait()
    for task in tasks:
        task.cancel()


# Open streams, start-up, memory


def many_open(count: int) -> Row:
    """So many requests open at once, some running and the others queued; all of them must end well."""
    with serving(SEATS, answer_tokens=60) as (_, clients):
        begun_s, seen = time.monotonic(), [0, 0]
        calls = [_ask(clients[k % NODES], k, 500) for k in range(count)]

        def all_there() -> bool:
            loads = [client.metrics().result() for client in clients]
            seen[:] = [int(sum(getattr(load, state) for load in loads)) for state in ("running", "waiting")]
            return sum(seen) >= count

        _until(all_there, calls)
        open_s = time.monotonic() - begun_s
        ended = len([call.result() for call in calls])
    row: Row = {"what": f"{count:,} streams open", "running": seen[0], "queued": seen[1], "ended": ended}
    return row | {"until_open_s": open_s, "until_ended_s": time.monotonic() - begun_s}


def start_up() -> Row:
    """From a new process to the first /health that is well; beside it, only the imports of other packages."""
    found, bare = list[float](), list[float]()
    for _ in range(REPEATS + 2):
        begun_s = time.monotonic()
        with Deployment(Plan(nodes=NODES)) as servers:
            host = http.client.HTTPConnection(servers.urls[0].partition("//")[2])
            host.request("GET", "/health")
            assert host.getresponse().status == 200
            found.append(time.monotonic() - begun_s)
            host.close()
        bare.append(seconds(lambda: subprocess.run([sys.executable, "-c", IMPORTS], check=True))[0])
    row: Row = {"what": "first /health of a new process", "start_s": statistics.median(found)}
    return row | {"worst_start_s": max(found), "bare_start_s": statistics.median(bare)}


def memory(minutes: float, progress: Progress = lambda share: None, streams: int = 64) -> Row:
    """Memory of client and servers, turn after turn; slopes are those of the last half, MB a minute."""
    samples, turns, failed = list[tuple[float, float, float]](), [0], [0]
    with serving(answer_tokens=40, kv_tokens=100_000) as (servers, clients):  # full after a minute

        async def work(client: Client) -> None:
            while True:
                turns[0] += 1
                try:
                    await _ask(client, turns[0], 2_000, max_tokens=40)
                except Retryable:
                    failed[0] += 1

        calls = [clients[k % NODES].begin(work, clients[k % NODES]) for k in range(streams)]
        begun_s = time.monotonic()
        while (past := (time.monotonic() - begun_s) / 60) < minutes:
            samples.append((past, resident_mb(os.getpid()), resident_mb(servers.pid)))
            progress(past / minutes)
            time.sleep(min(5.0, 6 * minutes))
            for call in calls:
                if call.done():
                    call.result()
    at, ours, theirs = zip(*samples[len(samples) // 2 :], strict=True)
    row: Row = {"what": f"{streams} streams, {minutes:g} minutes", "turns": turns[0], "failed": failed[0]}
    for name, values in (("client", ours), ("server", theirs)):
        row[f"{name}_mb"] = values[-1]
        row[f"{name}_mb_per_min"] = statistics.linear_regression(at, values).slope
    return row


def cpu_s(path: str) -> float:
    """CPU seconds so far of a process, /proc/PID/stat, or of all, /proc/stat; nan where there is none."""
    try:
        first = Path(path).read_text("utf-8").partition("\n")[0]
    except OSError:
        return math.nan
    words = first.rpartition(")")[2].split()
    return sum(map(int, words[1:4] if words[0] == "cpu" else words[11:13])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Memory of a process in megabytes; raises `InputError` where the system does not tell."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text("utf-8").split()[1])
    except OSError:
        raise InputError("the memory of a process is read from /proc; do this on Linux") from None
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    asyncio.run(bare_server(*json.loads(sys.argv[1])))
