"""What a simulated server is told: its options, and the requests it works on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tao.live.double.blocks import BlockRequest
from tao.live.double.text import Answer


@dataclass(slots=True, eq=False)
class Job(BlockRequest):
    """A request with what its client waits for."""

    answer: Answer = field(default_factory=lambda: Answer([], [], "stop"))
    tokens: list[int] = field(default_factory=list)  # of the prompt
    prompt: str = ""  # its text, where it is given back
    offset: int = 0  # in the text, where the next token that gets a log probability begins
    salt: str = ""
    max_tokens: int = 0
    n: int = 1  # answers to the same prompt
    others: set[int] = field(default_factory=set)  # which of those are not there yet
    reason: str = ""  # why it ended
    session_id: str | None = None
    last_ps: int = 0  # when its newest token came
    news: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class Settings:
    """What a server's options say; most names are vLLM's. `speedup`: simulated seconds per second."""

    kv_tokens: int
    speedup: float = 1.0
    model: str = "simulated"
    version: tuple[int, int, int] = (0, 32, 0)
    max_model_len: int = 0  # 0: what the KV cache holds
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    scheduling_policy: str = "fcfs"
    keep_alive_s: float | None = None
    prompt_tokens_details: bool = True
    per_request_metrics: bool = True
    dev_mode: bool = False  # /reset_prefix_cache, as with VLLM_SERVER_DEV_MODE=1
    kv_events: str = ""  # where KV events are published, an endpoint of ZeroMQ; "": nowhere
    stamps: bool = False
