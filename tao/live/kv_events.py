"""What a server's prefix cache really holds, from the KV events that it publishes (extra `kv-events`).

vLLM tells which blocks of tokens it stores and drops, and since 0.29 for which session. `Residency` follows
the events of one node; `KvEvents` receives them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from tao.checks import InputError

MAX_BATCH = 2**24  # ours: bytes of one message; a step's events are some kilobytes
MAX_POLL = 10_000  # ours: messages taken at once, so that a flood does not hold the caller up
MAX_KNOWN = 2**20  # ours: blocks, and sessions, that are remembered; 16 million tokens and more
STORED = "block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys group_idx"
FIELDS = {  # the order of fields in the arrays that vLLM wrote before its maps
    "BlockStored": STORED.split(),
    "BlockRemoved": ["block_hashes", "medium", "group_idx"],
    "AllBlocksCleared": [],
}
Hash = int | bytes


@dataclass(frozen=True)
class KvEvent:
    """One event: "stored" and "removed" name blocks, "cleared" means all. `session`: "" if it is not told."""

    kind: str
    hashes: tuple[Hash, ...] = ()
    parent: Hash | None = None
    block_tokens: int = 0
    session: str = ""


def decode(data: bytes) -> list[KvEvent]:
    """The events of one message, maps or arrays, of the GPU's cache; raises `InputError` if it is none.

    Events of other kinds and of other tiers and groups of layers are left out.
    """
    import msgpack

    try:
        _, events, *_ = msgpack.unpackb(data, strict_map_key=False)
        return list(_events(events))
    except (ValueError, TypeError, LookupError, AttributeError, msgpack.UnpackException) as e:
        raise InputError(f"no KV events: {type(e).__name__}: {e}; is this vLLM's endpoint?") from None


def _events(events: Any) -> Iterator[KvEvent]:
    for event in events:
        if isinstance(event, list):
            event = {"type": event[0]} | dict(zip(FIELDS.get(event[0], ()), event[1:], strict=False))
        kind = event["type"]
        if kind not in FIELDS or event.get("medium") not in (None, "GPU") or event.get("group_idx"):
            continue
        if kind == "AllBlocksCleared":
            yield KvEvent("cleared")
            continue
        hashes, parent = tuple(event["block_hashes"]), event.get("parent_block_hash")
        if not all(isinstance(h, Hash) for h in (*hashes, 0 if parent is None else parent)):
            raise TypeError("a block is known by a number or bytes")
        if kind == "BlockRemoved":
            yield KvEvent("removed", hashes)
        else:
            size, session = int(event["block_size"]), event.get("session_id")
            yield KvEvent("stored", hashes, parent, size, session if isinstance(session, str) else "")


class Residency:
    """How many tokens of each session one node's prefix cache holds.

    A session's context is the last chain of blocks stored for it, with what others stored before those;
    what counts is its unbroken start.

    >>> known = Residency()
    >>> known.apply([KvEvent("stored", (1, 2), None, 16, "a"), KvEvent("stored", (3,), 2, 16, "b")])
    >>> known.tokens("a"), known.tokens("b"), known.tokens("c")
    (32, 48, 0)
    >>> known.apply([KvEvent("removed", (2,))])
    >>> known.tokens("a"), known.tokens("b")
    (16, 16)
    """

    def __init__(self) -> None:
        self.blocks: dict[Hash, tuple[Hash | None, int]] = {}  # parent and tokens of what is there
        self.chains: dict[str, list[Hash]] = {}

    def tokens(self, session: str) -> int:
        """Tokens at the start of a session's context that are in the cache; 0 for an unknown session."""
        held = takewhile(self.blocks.__contains__, self.chains.get(session, ()))
        return sum(self.blocks[h][1] for h in held)

    def apply(self, events: Sequence[KvEvent]) -> None:
        """Follow what happened."""
        for event in events:
            if event.kind == "cleared":
                self.blocks.clear()
            elif event.kind == "removed":
                for h in event.hashes:
                    self.blocks.pop(h, None)
            else:
                self._store(event)

    def _store(self, event: KvEvent) -> None:
        parent = event.parent
        for h in event.hashes:
            self.blocks[h] = parent, event.block_tokens
            parent = h
        if event.session:
            known = self.chains.pop(event.session, [])
            before = (
                known[: known.index(event.parent) + 1] if event.parent in known else self._to(event.parent)
            )
            self.chains[event.session] = [*before, *event.hashes]
        tables: tuple[dict[Any, Any], ...] = (self.blocks, self.chains)
        for table in tables:
            while len(table) > MAX_KNOWN:
                table.pop(next(iter(table)))

    def _to(self, last: Hash | None) -> list[Hash]:
        """The blocks from a context's first one, if it is there, to this one."""
        chain: list[Hash] = []
        while last is not None and last in self.blocks and len(chain) < MAX_KNOWN:
            chain.append(last)
            last = self.blocks[last][0]
        return chain[::-1]


class KvEvents:
    """The events of one node as they come: call `poll` now and then; `close` it, or use it in a `with` block.

    `endpoint` is that of the server's `--kv-events-config`. vLLM binds `ipc://` and `tcp://*` endpoints, but
    connects to any other `tcp://` one: there `bind` here. Raises `InputError` if it cannot.
    """

    def __init__(self, endpoint: str, bind: bool = False) -> None:
        try:
            import msgpack  # noqa: F401 - said now rather than when the first message comes
            import zmq
        except ImportError as e:
            raise InputError(f"KV events need {e.name}; pip install 'tao-scheduler[kv-events]'") from None
        self.residency = Residency()
        self.missed = self.damaged = 0  # messages; after a missed one the residency is only an estimate
        self._next = 0
        self._socket: Any = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_BATCH)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        try:
            (self._socket.bind if bind else self._socket.connect)(endpoint)
        except zmq.ZMQError as e:
            self._socket.close(0)
            raise InputError(f"KV events at {endpoint}: {e}; give ipc://PATH or tcp://HOST:PORT") from None

    def poll(self) -> int:
        """Apply what has come; how many messages that was.

        A server whose numbers begin anew is another process, with an empty cache.
        """
        import zmq

        count = 0
        while count < MAX_POLL:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            count += 1
            self._take(frames)
        return count

    def _take(self, frames: list[bytes]) -> None:
        number = int.from_bytes(frames[-2], "big") if len(frames) > 1 else 0
        if number < self._next:
            self.residency = Residency()
        else:
            self.missed += number - self._next
        self._next = number + 1
        try:
            self.residency.apply(decode(frames[-1]))
        except InputError:
            self.damaged += 1

    def close(self) -> None:
        """Receive nothing more."""
        self._socket.close(0)

    def __enter__(self) -> KvEvents:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
