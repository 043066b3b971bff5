"""Text and tokens of the simulated server: a tokenizer, the chat template, scripted answers and filler."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from tao.checks import InputError, shown

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PIECES = re.compile(rb" ?[A-Za-z]{1,5}|[0-9]{1,3}|\s{1,4}|[^\sA-Za-z0-9]{1,3}")  # ours: about 4 bytes each
FILLER = "[simulated] No model wrote this text; it stands for an answer of this length. "
FILLER_TOKENS = 128  # ours: an answer's length where nothing else says it


class Tokenizer(Hashable, Protocol):
    """What the server needs of a tokenizer; `eos` ends an answer."""

    eos: int
    size: int  # tokens in the vocabulary; 0: any number is one
    longest: int  # bytes of its longest token

    def encode(self, text: str, special: bool = False) -> list[int]:
        """The tokens of a text, special tokens recognized, and with `special` those that begin any text."""

    def decode(self, tokens: Sequence[int], special: bool = False) -> str:
        """The text of tokens, with or without the special ones."""

    def token_str(self, token: int) -> str:
        """One token as `/tokenize` shows it."""

    def prompt(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
        """A conversation as the chat template writes it."""


class PieceTokenizer:
    """A tokenizer without a vocabulary: a piece of up to six bytes is its own number, so nothing is stored.

    >>> t = PieceTokenizer()
    >>> t.decode(t.encode("List the files: é")), len(t.encode("List the files"))
    ('List the files: é', 3)
    >>> t.encode("<|im_start|>user")[0]
    1
    """

    eos, size, longest = 2, 0, max(map(len, SPECIALS))

    def encode(self, text: str, special: bool = False) -> list[int]:
        tokens: list[int] = []
        for part in re.split(r"(<\|(?:endoftext|im_start|im_end)\|>)", text):
            if part in SPECIALS:
                tokens.append(SPECIALS.index(part))
            else:
                # A leading 1 keeps zero bytes and the length.
                pieces = PIECES.findall(part.encode("utf-8", "replace"))
                tokens += [int.from_bytes(b"\1" + piece, "big") for piece in pieces]
        return tokens

    def decode(self, tokens: Sequence[int], special: bool = False) -> str:
        kept = [t for t in tokens if special or t >= len(SPECIALS)]
        return b"".join(map(self._raw, kept)).decode("utf-8", "replace")

    def token_str(self, token: int) -> str:
        return self._raw(token).decode("utf-8", "replace")

    @staticmethod
    def _raw(token: int) -> bytes:
        if token < len(SPECIALS):
            return SPECIALS[token].encode()
        return token.to_bytes((token.bit_length() + 7) // 8, "big")[1:]

    def prompt(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
        tools = options.get("tools")
        lines = [f"<|im_start|>tools\n{json.dumps(tools)}<|im_end|>\n"] if tools else []
        lines += [f"<|im_start|>{m['role']}\n{spoken(m)}<|im_end|>\n" for m in messages]
        lines += ["<|im_start|>assistant\n"] if options.get("add_generation_prompt", True) else []
        return "".join(lines)


class FolderTokenizer:
    """The tokenizer and chat template of a model's folder: tokenizer.json, tokenizer_config.json."""

    def __init__(self, folder: str) -> None:
        try:
            import jinja2.sandbox
            import tokenizers
        except ImportError as e:
            raise InputError(f"--tokenizer needs {e.name}; pip install tokenizers jinja2") from None
        path = Path(folder)
        try:
            self._tokens = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
            self._config = json.loads((path / "tokenizer_config.json").read_text("utf-8"))
            own = path / "chat_template.jinja"
            source = own.read_text("utf-8") if own.is_file() else self._config["chat_template"]
            eos = self._config["eos_token"]
            end: Any = self._tokens.token_to_id(eos["content"] if isinstance(eos, dict) else eos)
            self.eos = int(end)
        except Exception as e:  # the library raises plain Exception
            raise InputError(
                f"{folder}: no tokenizer with a chat template ({type(e).__name__}: {e}); name a folder with "
                "tokenizer.json and tokenizer_config.json"
            ) from None
        vocabulary = self._tokens.get_vocab()
        self.size, self.longest = len(vocabulary), max(map(len, vocabulary))
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda x, **k: json.dumps(x, ensure_ascii=False, **k)
        self._template = environment.from_string(source)
        self._developers = bool(re.search("[\"']developer[\"']", source))

    def encode(self, text: str, special: bool = False) -> list[int]:
        return list(self._tokens.encode_batch([text], add_special_tokens=special)[0].ids)

    def decode(self, tokens: Sequence[int], special: bool = False) -> str:
        return str(self._tokens.decode(list(tokens), skip_special_tokens=not special))

    def token_str(self, token: int) -> str:
        return str(self._tokens.id_to_token(token))

    def prompt(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
        shown = [m | {"content": flat(m.get("content"))} for m in map(_parsed, messages)]
        if not self._developers and any(m["role"] == "developer" for m in shown):
            shown = _as_system(shown)
        return str(self._template.render(messages=shown, **{"add_generation_prompt": True} | options))


def _parsed(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose tool calls have objects as arguments, which templates expect."""
    calls = []
    for call in message.get("tool_calls") or ():
        given = call["function"].get("arguments")
        try:
            found = json.loads(given) if isinstance(given, str) else given
        except ValueError:
            found = None
        calls.append(
            call | {"function": call["function"] | {"arguments": found if isinstance(found, dict) else {}}}
        )
    return message | {"tool_calls": calls} if calls else message


def _as_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For a template without developers: they speak with the system, in one message that comes first."""
    of = [m for m in messages if m["role"] in ("developer", "system")]
    text = "\n\n".join(m["content"] for m in of if m["content"])
    return [{"role": "system", "content": text}, *(m for m in messages if m not in of)]


def flat(content: Any) -> str:
    """A message's content as text: vLLM joins the text parts of a list by line ends."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def spoken(message: dict[str, Any]) -> str:
    """What a message says, its tool calls included, as an answer with the same calls had said it."""
    calls = [Call.of(c.get("function") or {}) for c in message.get("tool_calls") or ()]
    return flat(message.get("content")) + "".join("".join(call.texts()) for call in calls)


@dataclass(frozen=True)
class Call:
    """A tool call; `arguments` is JSON text."""

    name: str
    arguments: str

    @classmethod
    def of(cls, data: dict[str, Any]) -> Call:
        """From a name and arguments, which may be JSON text or an object."""
        arguments = data.get("arguments", {})
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return cls(str(data.get("name", "")), text)

    def texts(self) -> tuple[str, str, str]:
        """What a model would say to make this call: before, within and after the arguments."""
        name = json.dumps(self.name)
        return f'\n<tool_call>\n{{"name": {name}, "arguments": ', self.arguments, "}\n</tool_call>"


@dataclass(frozen=True)
class Reply:
    """A scripted answer: the turn of a conversation that it is for, its text and tool calls."""

    turn: int
    content: str = ""
    calls: tuple[Call, ...] = ()
    match: str = ""  # only for conversations that hold this text


def read_replies(path: str) -> list[Reply]:
    """Scripted answers, one JSON object a line: content, tool_calls [{name, arguments}], turn, match.

    `turn` counts the answers a conversation already has; without it, lines are turns 0, 1, 2, ... Raises
    `InputError` with the line at fault.
    """
    replies = []
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"{path}: {e}; give a file of JSON lines") from None
    for k, line in enumerate(filter(str.strip, lines)):
        try:
            data = json.loads(line)
            calls = tuple(Call.of(c.get("function", c)) for c in data.get("tool_calls") or ())
            turn, match = int(data.get("turn", k)), str(data.get("match", ""))
            replies.append(Reply(turn, str(data.get("content") or ""), calls, match))
        except (ValueError, AttributeError, TypeError):
            raise InputError(
                f"{path}, reply {k + 1}: {shown(line)}; write an object with content and tool_calls"
            ) from None
    return replies


def find_reply(replies: Sequence[Reply], messages: list[dict[str, Any]]) -> Reply | None:
    """The scripted answer to a conversation: of its turn, and the one with the longest matching text."""
    turn = sum(m["role"] == "assistant" for m in messages)
    said = "\n".join(flat(m.get("content")) for m in messages)
    fits = [r for r in replies if r.turn == turn and r.match in said]
    return max(fits, key=lambda r: len(r.match), default=None)


# What a token adds to a stream: content, (call, name, False) to begin a tool call, (call, arguments, True)
# to go on with it, or nothing.
Delta = str | tuple[int, str, bool] | None


@dataclass
class Answer:
    """The tokens of an answer, what each of them adds to the stream, and why it ends."""

    tokens: list[int]
    deltas: list[Delta]
    reason: str
    stop_reason: int | str | None = None  # the stop token or string that ended it


def answer(
    tokenizer: Tokenizer, reply: Reply | None, limit: int, at_least: int, only: Sequence[int] = ()
) -> Answer:
    """A scripted answer, or filler, of at most `limit` and at least `at_least` tokens.

    Filler is made of the tokens in `only`, where there are any, and then has no end of its own.
    """
    tokens: list[int] = []
    deltas: list[Delta] = []
    if reply:
        tokens += tokenizer.encode(reply.content)
        deltas += texts(tokenizer, tokens)
    for k, call in enumerate(reply.calls if reply else ()):
        before, within, after = map(tokenizer.encode, call.texts())
        tokens += before + within + after
        deltas += [None] * (len(before) - 1) + [(k, call.name, False)]
        deltas += [(k, part, True) for part in texts(tokenizer, within)] + [None] * len(after)
    if only and not reply:
        at_least = limit
    missing = max(at_least, 0 if reply else FILLER_TOKENS) - len(tokens)
    if missing > 0:
        filler, said = _filler(tokenizer, tuple(only))
        times = missing // len(filler) + 1
        tokens, deltas = tokens + (filler * times)[:missing], deltas + (said * times)[:missing]
    if len(tokens) >= limit:
        return Answer(tokens[:limit], deltas[:limit], "length")
    called = bool(reply and reply.calls)
    end = None if called else ""
    return Answer([*tokens, tokenizer.eos], [*deltas, end], "tool_calls" if called else "stop")


@lru_cache(maxsize=64)
def _filler(tokenizer: Tokenizer, only: tuple[int, ...]) -> tuple[list[int], list[Delta]]:
    tokens = [*only] or tokenizer.encode(FILLER)
    return tokens, [*texts(tokenizer, tokens)]


def texts(tokenizer: Tokenizer, tokens: Sequence[int]) -> Iterator[str]:
    """What each token adds to the text; "" for a token that ends within a character.

    >>> list(texts(PieceTokenizer(), PieceTokenizer().encode("two words")))
    ['two', ' words']
    """
    start = 0
    for end in range(1, len(tokens) + 1):
        text = tokenizer.decode(tokens[start:end])
        if text.endswith("\ufffd") and end - start < 8:
            yield ""
        else:
            yield text
            start = end
