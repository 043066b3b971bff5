"""A live conversation as far as the servers have counted it: its size, and what of it comes again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    messages: Sequence[dict[str, Any]] | None = None  # of its last chat, the answer included
    prompt: Sequence[int] | str | None = None  # likewise of its last completion
    tools: Any = None  # that came with them
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
            if (ask.options.get("tools") or None) != self.tools:
                return 0  # most templates begin with them
            same = sum(1 for _ in _same(map(_plain, self.messages), map(_plain, ask.messages)))
            if same == len(self.messages):
                return self.context_tokens
            before = _tools_length(ask) + sum(map(_length, self.messages[:same])) if same else 0
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
        chars_per_token = (CHARS_PER_TOKEN * GUESS_TOKENS + self.grown_chars) / (
            GUESS_TOKENS + self.grown_tokens
        )
        return max(1, self.context_tokens + round((_chars(ask) - self.chars) / chars_per_token))

    def remember(self, ask: Ask, reply: Reply, context_tokens: int) -> None:
        """The conversation now ends with this answer."""
        self._learn(_chars(ask), reply.prompt_tokens, self.grows(ask))
        self.context_tokens, self.tools = context_tokens, ask.options.get("tools") or None
        answer = {"role": "assistant", "content": reply.text, "tool_calls": list(reply.tool_calls)}
        self.chars = _chars(ask) + _length(answer)
        if ask.messages is not None:
            self.messages = [*ask.messages, answer]
        elif isinstance(ask.prompt, str):
            self.prompt = ask.prompt + reply.text
        else:
            self.prompt = [*(ask.prompt or ()), *(reply.token_ids or ())]

    def _learn(self, chars: int, tokens: int | None, grown: bool) -> None:
        """Growth alone tells how long tokens are: a whole prompt has a template in it, which nobody sees."""
        if tokens and self.counted and grown:
            more, more_tokens = chars - self.counted[0], tokens - self.counted[1]
            if more > 0 and more_tokens > 0:
                self.grown_chars += more
                self.grown_tokens += more_tokens
        self.counted = (chars, tokens) if tokens else None


def _chars(ask: Ask) -> int:
    if ask.messages is None:
        return len(ask.prompt) if isinstance(ask.prompt, str) else 0
    return _tools_length(ask) + sum(map(_length, ask.messages))


def _tools_length(ask: Ask) -> int:
    return len(str(ask.options.get("tools") or ""))


def _length(message: Mapping[str, Any]) -> int:
    return len(str(message.get("content") or "")) + len(str(message.get("tool_calls") or ""))


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates see it: no content is the same as an empty one, and so are no tool calls."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in message.items() if v}


def _same(a: Iterable[Any], b: Iterable[Any]) -> Iterator[Any]:
    """The part in which two sequences begin alike."""
    return takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
