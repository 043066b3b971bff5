"""The server's KV events: what enters and leaves its prefix cache, published as vLLM does."""

from __future__ import annotations

import time
from typing import Any

from tao.checks import InputError
from tao.live.double.blocks import BlockRequest, Change
from tao.live.double.jobs import Job

TOPIC = "kv"
BUFFERED = 100_000  # batches kept for a slow subscriber, as in vLLM
SAFE = ("ipc://", "tcp://127.0.0.1:")
MAPS = (0, 29)  # 0.20 writes arrays, 0.32 maps with session ids, which came with 0.29


def checked(endpoint: str, node: int = 0) -> str:
    """The endpoint of one node: its number is added to a port, or put after a path; raises `InputError`.

    >>> checked("tcp://127.0.0.1:5557", 2), checked("ipc:///tmp/kv", 2)
    ('tcp://127.0.0.1:5559', 'ipc:///tmp/kv.2')
    """
    if not endpoint:
        return ""
    head, _, port = endpoint.rpartition(":")
    if not endpoint.startswith(SAFE) or (head.startswith("tcp") and not port.isdecimal()):
        raise InputError(
            f"--kv-events {endpoint}: give ipc://PATH or tcp://127.0.0.1:PORT, for only those are local"
        )
    if head.startswith("tcp"):
        return f"{head}:{int(port) + node if int(port) else '*'}"
    return f"{endpoint}.{node}" if node else endpoint


class Publisher:
    """Sends batches of events to whoever subscribes; raises `InputError` if it cannot."""

    def __init__(self, endpoint: str, version: tuple[int, int, int]) -> None:
        try:
            import msgpack
            import zmq
        except ImportError as e:
            raise InputError(f"--kv-events needs {e.name}; pip install 'tao-scheduler[kv-events]'") from None
        self._pack, self._maps, self._sent = msgpack.packb, version >= MAPS, 0
        self._socket: Any = zmq.Context.instance().socket(zmq.PUB)
        self._socket.set_hwm(BUFFERED)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as e:
            self._socket.close(0)
            raise InputError(f"--kv-events {endpoint}: {e}; name another one") from None
        self.endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def source(self) -> dict[str, Any]:
        """What `/kv_event_sources` says."""
        about = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": self.endpoint}
        about |= {"replay_endpoint": None, "buffer_steps": 10_000, "hwm": BUFFERED}
        return {"0": about | {"max_queue_size": BUFFERED, "topic": TOPIC}}

    def publish(self, changes: list[Change], block: int) -> None:
        """Send what one step changed."""
        maps = [self._event(change, block) for change in changes]
        events = maps if self._maps else [list(event.values()) for event in maps]
        batch = self._pack([time.time(), events, 0])
        self._socket.send_multipart((TOPIC.encode(), self._sent.to_bytes(8, "big"), batch))
        self._sent += 1

    def _event(self, change: Change, block: int) -> dict[str, Any]:
        kind, what, start, stop = change
        if kind == "cleared":
            return {"type": "AllBlocksCleared"}
        if kind == "removed":
            return {"type": "BlockRemoved", "block_hashes": [what], "medium": "GPU", "group_idx": 0}
        assert isinstance(what, BlockRequest)
        tokens, session, salt = ([], None, "")
        if isinstance(what, Job):
            tokens, session, salt = [*what.tokens, *what.answer.tokens], what.session_id, what.salt
        event: dict[str, Any] = {
            "type": "BlockStored",
            "block_hashes": what.hashes[start:stop],
            "parent_block_hash": what.hashes[start - 1] if start else None,
            "token_ids": tokens[start * block : stop * block],
            "block_size": block,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [[salt] if salt and not k else None for k in range(start, stop)],
            "group_idx": 0,
        }
        if self._maps:
            event["kv_cache_spec_kind"] = "full_attention"
            event |= {"session_id": session} if session else {}
        return event

    def close(self) -> None:
        """Publish nothing more."""
        self._socket.close(0)
