"""A live conversation as far as the servers have counted it: its size, and what of it comes again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from tao.live.agents import Agent, Ask
from tao.live.stream import Reply

CHARS_PER_TOKEN = 4.0  # ours: until a server has counted
NEWEST = 0.2  # ours: weight of the newest count


@dataclass
class Talk:
    """One session: its agent, and its conversation up to the last answer."""

    id: str
    agent: Agent
    task: asyncio.Task[None] | None = None
    sent: asyncio.Future[int] | None = None  # the node its request goes to
    messages: Sequence[dict[str, Any]] | None = None  # of its last chat, the answer included
    prompt: Sequence[int] | str | None = None  # likewise of its last completion
    context_tokens: int = 0
    chars: int = 0  # of that context
    chars_per_token: float = 0.0  # 0: no server has counted yet
    pieces: int = 0  # of the answer so far
    canceled: str = ""  # why

    def prefix_tokens(self, ask: Ask) -> int:
        """How much of a request repeats the last context, as far as can be told without a tokenizer."""
        if ask.messages is not None and self.messages is not None:
            same = sum(1 for _ in _same(self.messages, ask.messages))
            if same == len(self.messages):
                return self.context_tokens
            before = sum(_length(message) for message in self.messages[:same])
            return round(self.context_tokens * before / max(self.chars, 1))
        if ask.prompt and self.prompt:  # both texts, or both token ids, else nothing is the same
            same = sum(1 for _ in _same(self.prompt, ask.prompt))
            return round(self.context_tokens * same / len(self.prompt))
        return 0

    def estimate(self, ask: Ask) -> int:
        """Tokens of a request that no server has counted."""
        more = (_chars(ask) - self.chars) / (self.chars_per_token or CHARS_PER_TOKEN)
        return max(1, self.context_tokens + round(more))

    def remember(self, ask: Ask, reply: Reply, context_tokens: int) -> None:
        """The conversation now ends with this answer."""
        self.context_tokens = context_tokens
        self.chars = _chars(ask) + len(reply.text)
        if ask.messages is not None:
            self.messages = [*ask.messages, {"role": "assistant", "content": reply.text}]
        elif isinstance(ask.prompt, str):
            self.prompt = ask.prompt + reply.text
        else:
            self.prompt = [*(ask.prompt or ()), *(reply.token_ids or ())]
        if self.chars:
            newest, known = max(self.chars / context_tokens, 0.1), self.chars_per_token
            self.chars_per_token = known + NEWEST * (newest - known) if known else newest


def _chars(ask: Ask) -> int:
    if ask.messages is None:
        return len(ask.prompt) if isinstance(ask.prompt, str) else 0
    return sum(map(_length, ask.messages))


def _length(message: dict[str, Any]) -> int:
    return len(str(message.get("content") or "")) + len(str(message.get("tool_calls") or ""))


def _same(a: Sequence[Any], b: Sequence[Any]) -> Iterator[Any]:
    """The part in which two sequences begin alike."""
    return takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
