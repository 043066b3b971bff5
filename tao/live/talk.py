"""A live conversation as far as the servers have counted it: its size, and what of it comes again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from tao.live.agents import Agent, Ask
from tao.live.stream import Reply

CHARS_PER_TOKEN = 4.0  # ours: a guess that stands until servers have counted
GUESS_TOKENS = 256  # ours: which weighs so much, or the template's few tokens around a short message mislead


@dataclass
class Talk:
    """One session: its agent, and its conversation up to the last answer."""

    id: str
    agent: Agent
    task: asyncio.Task[None] | None = None
    sent: asyncio.Future[int] | None = None  # the node its request goes to
    messages: Sequence[dict[str, Any]] | None = None  # of its last chat with its tools and its answer
    prompt: Sequence[int] | str | None = None  # likewise of its last completion
    context_tokens: int = 0
    chars: int = 0  # of that context
    counted: tuple[int, int] | None = None  # characters and tokens of the last prompt, if its server told
    grown_chars: int = 0  # from counted prompts to counted prompts that repeat them
    grown_tokens: int = 0
    pieces: int = 0  # of the answer so far
    canceled: str = ""  # why

    def prefix_tokens(self, ask: Ask) -> int:
        """How much of a request repeats the last context, as far as can be told without a tokenizer."""
        if ask.messages is not None and self.messages is not None:
            same = sum(1 for _ in _same(self.messages, _told(ask)))
            if same == len(self.messages):
                return self.context_tokens
            before = sum(map(_length, self.messages[:same]))
            return round(self.context_tokens * before / max(self.chars, 1))
        if ask.prompt and self.prompt:  # both texts, or both token ids, else nothing is the same
            same = sum(1 for _ in _same(self.prompt, ask.prompt))
            return round(self.context_tokens * same / len(self.prompt))
        return 0

    def grows(self, ask: Ask) -> bool:
        """Whether a request repeats all of the last context."""
        return 0 < self.context_tokens == self.prefix_tokens(ask)

    def estimate(self, ask: Ask) -> int:
        """Tokens of a request that no server has counted."""
        chars, tokens = CHARS_PER_TOKEN * GUESS_TOKENS + self.grown_chars, GUESS_TOKENS + self.grown_tokens
        return max(1, self.context_tokens + round((_chars(ask) - self.chars) * tokens / chars))

    def remember(self, ask: Ask, reply: Reply, context_tokens: int) -> None:
        """The conversation now ends with this answer."""
        chars, tokens = _chars(ask), reply.prompt_tokens
        if tokens and self.counted and self.grows(ask) and tokens > self.counted[1]:
            self.grown_chars += chars - self.counted[0]  # a whole prompt has a template in it, unseen
            self.grown_tokens += tokens - self.counted[1]
        self.counted = (chars, tokens) if tokens else None
        answer = _plain({"role": "assistant", "content": reply.text, "tool_calls": reply.tool_calls})
        self.context_tokens, self.chars = context_tokens, chars + _length(answer)
        if ask.messages is not None:
            self.messages = [*_told(ask), answer]
        elif isinstance(ask.prompt, str):
            self.prompt = ask.prompt + reply.text
        else:
            self.prompt = [*(ask.prompt or ()), *(reply.token_ids or ())]


def _chars(ask: Ask) -> int:
    return len(ask.prompt) if isinstance(ask.prompt, str) else sum(map(_length, _told(ask)))


def _told(ask: Ask) -> list[dict[str, Any]]:
    """Its messages, after its tools, with which most templates begin."""
    return [_plain({"tools": ask.options.get("tools")}), *map(_plain, ask.messages or ())]


def _length(message: dict[str, Any]) -> int:
    return sum(len(str(message.get(part, ""))) for part in ("tools", "content", "tool_calls"))


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates see it: what is empty is not there, and a list is like a tuple."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in message.items() if v}


def _same(a: Sequence[Any], b: Sequence[Any]) -> Iterator[Any]:
    """The part in which two sequences begin alike."""
    return takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
