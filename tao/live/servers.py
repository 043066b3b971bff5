"""The nodes of a live run as its scheduler knows them: their room, who is out of order, others' load."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tao import checks, state
from tao.checks import InputError
from tao.live.faults import LiveError
from tao.live.kv_events import KvEvents
from tao.live.metrics_page import Load
from tao.live.stream import Reply
from tao.state import State

OUT_S = 1.0  # ours: a node that fails is left out for so long, twice as long each further time in a row
MOST_OUT_S = 30.0  # ours: but no longer than this
JITTER = 0.5  # ours: and up to this share more or less, so that not all come back at once


class Node(Protocol):
    """What a scheduler asks of a node; `tao.live.Client` is one."""

    name: str

    def chat(self, messages: Sequence[dict[str, Any]], **options: Any) -> Awaitable[Reply]:
        """The next message of a chat."""

    def complete(self, prompt: str | Sequence[int], **options: Any) -> Awaitable[Reply]:
        """How a prompt goes on."""

    def metrics(self) -> Awaitable[Load]:
        """A look at its load."""

    def ask(self, path: str, body: Any = None) -> Awaitable[Any]:
        """The JSON at a path."""


@dataclass
class Server:
    """One node: its capacity, from the server itself, and what has been seen of it."""

    node: Node
    kv_tokens: int
    block: int
    load: Load
    out_until_s: float = 0.0  # on the loop's clock
    failures: int = 0  # in a row
    fault: LiveError | None = None  # the last one, until it works again
    served: int = 0
    events: KvEvents | None = None

    @property
    def capacity_tokens(self) -> int:
        """What sessions may hold there: vLLM keeps one block for itself."""
        return self.kv_tokens - self.block

    def noted_tokens(self, context_tokens: int) -> int:
        """How much of a context the node may keep: its full blocks, nothing without a prefix cache."""
        return 0 if self.load.prefix_caching is False else context_tokens // self.block * self.block

    def failed(self, error: LiveError, now_s: float, rng: random.Random) -> None:
        """Leave it out for a while."""
        self.failures += 1
        self.fault = error
        out_s = min(OUT_S * 2.0 ** (self.failures - 1), MOST_OUT_S)
        self.out_until_s = now_s + out_s * rng.uniform(1 - JITTER, 1 + JITTER)

    def worked(self) -> None:
        """It answered."""
        self.failures, self.fault = 0, None
        self.served += 1


@dataclass
class Servers:
    """All nodes of a run; `subtract_others`: room that others' running requests hold is not ours."""

    all: list[Server]
    subtract_others: bool = False
    rng: random.Random = field(default_factory=random.Random)

    def __getitem__(self, b: int) -> Server:
        return self.all[b]

    def out(self, b: int, now_s: float) -> bool:
        """Whether node b is left out at this moment."""
        return self.all[b].out_until_s > now_s

    def back_s(self) -> float:
        """When the first of those left out may be tried again."""
        return min(server.out_until_s for server in self.all)

    def substitute(self, s: State, now_s: float) -> int | None:
        """The node with the fewest requests of those in order, for a policy that chose another one."""
        usable = [b for b in range(len(self.all)) if not self.out(b, now_s)]
        return min(usable, key=lambda b: int(s.node[b, state.INFLIGHT]), default=None)

    def measure_room(self, s: State, now_s: float) -> None:
        """Write each node's capacity into the state; one that is left out has no room for anybody else."""
        for b, server in enumerate(self.all):
            others = self.others_tokens(s, b) if self.subtract_others else 0
            s.node[b, state.CAPACITY] = max(server.capacity_tokens - others, 0)
            if self.out(b, now_s):
                s.node[b, state.CAPACITY] -= max(int(state.free_tokens(s, b)), 0)

    def others_tokens(self, s: State, b: int) -> int:
        """KV tokens that running requests of others hold on node b, as far as its metrics tell."""
        server = self.all[b]
        if server.load.kv_used is None:
            return 0
        running = (s.session[:, state.RESIDENT] == b) & (s.session[:, state.PHASE] == state.REASONING)
        ours = int(s.session[running, state.CONTEXT].sum())
        return max(round(server.load.kv_used * server.kv_tokens) - ours, 0)

    def close(self) -> None:
        """Listen to no more KV events."""
        for server in self.all:
            if server.events:
                server.events.close()

    def saw(self, s: State, b: int, load: Load) -> bool:
        """A new look at node b; returns whether its process has been started anew."""
        server, row = self.all[b], s.node[b]
        restarted = load.restarted_since(server.load)
        server.load = load
        row[state.RUNNING], row[state.QUEUED] = round(load.running or 0), round(load.waiting or 0)
        row[state.PINNED] = round((load.kv_used or 0.0) * server.kv_tokens)
        return restarted


async def servers_of(
    nodes: Sequence[Node], kv_tokens: int | None, kv_events: Sequence[str] = (), **options: Any
) -> Servers:
    """Ask every node for its capacity; raises `InputError` where it does not say and none is given.

    `kv_events`: for each node the endpoint at which it publishes them, or none at all.
    """
    if not nodes:
        raise InputError("there are no nodes to run on; give at least one")
    checks.unique([node.name for node in nodes], "node")
    if kv_tokens is not None:
        checks.whole(kv_tokens, "kv_tokens", 2)
    if kv_events and len(kv_events) != len(nodes):
        raise InputError(
            f"{len(kv_events)} kv_events for {len(nodes)} nodes; give one endpoint for each node"
        )
    found = []
    for node in nodes:
        try:
            load = await node.metrics()
        except LiveError as error:
            if kv_tokens is None:
                raise InputError(f"{error}; its /metrics must be readable, or give kv_tokens") from None
            load = Load()
        room = kv_tokens or load.kv_tokens
        if room is None:
            raise InputError(
                f"{node.name} does not say how many KV tokens it has; let its /metrics through, or "
                "give kv_tokens"
            )
        block = max(min(load.block_size or 1, room - 1), 1)  # whatever it says, some room is left
        found.append(Server(node, room, block, load))
    for server, endpoint in zip(found, kv_events, strict=False):
        server.events = KvEvents(endpoint)
    return Servers(found, **options)
