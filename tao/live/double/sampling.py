"""What a request's sampling options make of an answer: where it stops, and log probabilities, made up.

No model runs here. A token said is always the likeliest, and each rank is half as likely as the one before.
"""

from __future__ import annotations

import math
import string
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

from tao.live.double.text import Answer, Tokenizer

HALF = math.log(0.5)


def stopped(made: Answer, stop: Sequence[str], ids: Collection[int], include: bool, at_least: int) -> Answer:
    """The answer up to its first stop token or stop string after `at_least` tokens.

    As in vLLM a stream keeps back text that could still become a stop string, the token that completes one
    counts, and the text ends before it unless `include`.

    >>> made = Answer([1, 2, 3], ["one ", "two", " three"], "length")
    >>> cut = stopped(made, ["wo"], (), include=False, at_least=0)
    >>> cut.tokens, cut.deltas, cut.reason, cut.stop_reason
    ([1, 2], ['one', ' t'], 'stop', 'wo')
    >>> stopped(made, (), [3], include=False, at_least=0).stop_reason
    3
    """
    if not stop and not ids:
        return made
    text, ends = "", list[int]()
    why: int | str | None = None
    for token, delta in zip(made.tokens, made.deltas, strict=True):
        said, before, may = delta if isinstance(delta, str) else "", len(text), len(ends) >= at_least
        if may and token in ids and not (made.reason == "stop" and len(ends) == len(made.tokens) - 1):
            text += said * include
            ends.append(len(text))
            why = token
            break
        text += said
        ends.append(len(text))
        found = [(i + len(s), s) for s in stop if (i := text.find(s, max(before + 1 - len(s), 0))) >= 0]
        if may and said and found:
            end, why = first = min(found, key=lambda x: x[0])
            text = text[: end if include else end - len(first[1])]
            break
    tokens, deltas = made.tokens[: len(ends)], made.deltas[: len(ends)]
    if all(delta is None or isinstance(delta, str) for delta in deltas):
        held = 0 if include else max((len(s) - 1 for s in stop), default=0)
        marks = [0, *(min(max(end - held, 0), len(text)) for end in ends[:-1]), len(text)]
        deltas = [text[a:b] for a, b in pairwise(marks)]
    if why is None:
        return replace(made, deltas=deltas)
    return Answer(tokens, deltas, "stop", why)


@cache
def _others(tokenizer: Tokenizer) -> list[int]:
    """Tokens that stand for what else could have been said."""
    return [tokenizer.encode(letter)[0] for letter in string.ascii_letters]


def _ranks(tokenizer: Tokenizer, token: int, count: int) -> list[int]:
    """The likeliest tokens, as many as wanted and at least the one said."""
    return [token, *(t for t in _others(tokenizer) if t != token)][: max(count, 1)]


class Spelling:
    """How log probabilities name tokens: by their text, or `token_id:N`."""

    def __init__(self, tokenizer: Tokenizer, numbers: bool, only: Sequence[int] = ()) -> None:
        self.tokenizer, self.numbers, self.only = tokenizer, numbers, only

    def _top(self, token: int, count: int) -> list[int]:
        """The tokens beside the one said: those asked for, else the likeliest."""
        others = (t for t in self.only if t != token)
        return [token, *others] if self.only else _ranks(self.tokenizer, token, count)

    def name(self, token: int) -> str:
        """The name of a token."""
        return f"token_id:{token}" if self.numbers else self.tokenizer.decode([token], special=True)

    def chat(self, tokens: Sequence[int], count: int) -> dict[str, Any]:
        """In a chat's form, with the `count` likeliest tokens at each place."""

        def entry(token: int, rank: int) -> dict[str, Any]:
            name = self.name(token)
            return {"token": name, "logprob": rank * HALF, "bytes": list(name.encode("utf-8", "replace"))}

        content = []
        for token in tokens:
            top = [entry(t, k + 1) for k, t in enumerate(self._top(token, count))]
            top = top if self.only else top[:count]
            said = self.tokenizer.decode([token], special=True)
            spelled = {"bytes": list(said.encode("utf-8", "replace"))}
            content.append(entry(token, 1) | spelled | {"top_logprobs": top})
        return {"content": content}

    def text(self, tokens: Sequence[int], count: int, offset: int, first: bool) -> dict[str, Any]:
        """In a completion's form; the `first` token of a prompt has none."""
        names, offsets = [self.name(token) for token in tokens], list[int]()
        for name in names:
            offsets.append(offset)
            offset += len(name)
        tops: list[dict[str, float] | None] = [
            {self.name(t): (k + 1) * HALF for k, t in enumerate(self._top(token, count))} for token in tokens
        ]
        own: list[float | None] = [HALF] * len(names)
        if first:
            tops[0] = own[0] = None
        return {"text_offset": offsets, "token_logprobs": own, "tokens": names, "top_logprobs": tops}

    def prompt(self, tokens: Sequence[int], count: int) -> list[Any]:
        """Of a prompt, by token number."""
        return [None] + [
            {
                str(t): {"logprob": (k + 1) * HALF, "rank": k + 1, "decoded_token": self.name(t)}
                for k, t in enumerate(_ranks(self.tokenizer, token, count))
            }
            for token in tokens[1:]
        ]
