"""mini-swe-agent's trajectories, 1.x and 2.x: a JSON document of messages, the provider's answers in `extra`.

Only runs since November 2025 stamp their messages. Before that there is just the provider's whole second at
which an answer was begun, and how long the command after it took is unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from tao.traces.builder import Builder
from tao.traces.claude_code import CHARS_PER_TOKEN
from tao.traces.files import Source
from tao.traces.recording import Flag

TITLE = "mini-swe-agent"
_TEXTS = ("content", "text", "tool_calls", "function", "arguments", "output")
_OPENING = re.compile(r"```(?:bash|mswea_bash_command)[ \t\r]*\n")


def fits(row: Mapping[str, Any]) -> bool:
    """Whether a document is such a trajectory."""
    ours = "trajectory_format" in row or "mini_version" in _dict(row.get("info"))
    return isinstance(row.get("messages"), list) and ours


def commands(text: Any) -> list[str]:
    """The shell commands that an answer gives in its text: it is to give exactly one."""
    found, at = list[str](), 0
    while isinstance(text, str) and (opening := _OPENING.search(text, at)):
        end = text.find("\n```", opening.end() - 1)
        if end < 0:  # no regular expression over both ends: it would look for this one from every opening
            break
        found.append(text[opening.end() : end].strip())
        at = end + 4
    return found


def read(source: Source, into: Builder) -> None:
    """All answers and commands of a trajectory, as one session."""
    session = into.session(("mini-swe", source.ledger.file))
    chars, since, calls, found = 0, math.nan, list[int](), 0
    for message in source.document()["messages"]:
        source.ledger.rows += 1
        if not isinstance(message, dict):
            source.ledger.skip("entries that are no message")
            continue
        extra = _dict(message.get("extra"))
        response = extra.get("response")
        at = into.moment(extra.get("timestamp", message.get("timestamp")))
        answer = message.get("role") == "assistant" or message.get("object") == "response"
        if answer or isinstance(response, dict):
            response = _dict(response) or message
            if _copied(into, response):
                source.ledger.skip("answers that are copies from another place")
                calls = []
            else:
                calls = _calls(into, _answer(into, session, message, response, chars, since, at), message, at)
            since, found = math.nan, found + 1
        else:
            failed = _failed(message, extra)
            for call in calls if not math.isnan(at) else ():
                into.result(call, at, error=failed)
            since = at
        chars += characters(message)
    _check(source, found)


def _dict(x: Any) -> Mapping[str, Any]:
    return x if isinstance(x, dict) else {}


def _check(source: Source, found: int) -> None:
    """Whether the totals tell of requests that are not in the log."""
    told = _dict(_dict(source.document().get("info")).get("model_stats")).get("api_calls")
    if type(told) is int and 0 < told - found < 1_000_000:
        source.ledger.repair("requests that the totals count and the log does not hold", told - found)


def _copied(into: Builder, response: Mapping[str, Any]) -> bool:
    """Whether the answer was read before: its id, its time and its usage are known."""
    if not isinstance(response.get("id"), str):
        return False
    usage = _dict(response.get("usage"))
    named = (response.get(name) for name in ("id", "created", "created_at"))
    return into.copied("mini-swe", *named, usage.get("total_tokens"))


def _answer(
    into: Builder, session: int, message: Mapping[str, Any], response: Mapping[str, Any], chars: int,
    since: float, at: float,
) -> int:  # fmt: skip
    """The turn of an answer; tokens that no usage tells are estimated from the texts."""
    usage = _dict(response.get("usage"))
    prompt = into.tokens(usage.get("prompt_tokens", usage.get("input_tokens")))
    output = into.tokens(usage.get("completion_tokens", usage.get("output_tokens")))
    details = _dict(usage.get("prompt_tokens_details", usage.get("input_tokens_details")))
    flags = 0
    if prompt < 0 and chars:
        prompt, flags = round(chars / CHARS_PER_TOKEN), Flag.CONTEXT_ESTIMATED
        into.ledger.repair("prompts without usage, estimated from the length of the texts")
    if output < 0:
        output, flags = round(characters(message) / CHARS_PER_TOKEN), flags | Flag.OUTPUT_ESTIMATED
        into.ledger.repair("outputs without usage, estimated from the length of the texts")
    if math.isnan(at):
        since = into.moment(response.get("created", response.get("created_at")))
    return into.turn(session, prompt, output, details.get("cached_tokens"), since, at, flags=flags)


def _calls(into: Builder, turn: int, message: Mapping[str, Any], at: float) -> list[int]:
    """The commands of an answer. They run one after the other: of several only the sum is known."""
    told = _dict(message.get("extra")).get("actions")
    if isinstance(told, list):
        given = [a.get("command") if isinstance(a, dict) else a for a in told]
    else:
        given = list[Any](commands(message.get("content")))
        given = given if len(given) == 1 else []  # else the agent asks again and runs nothing
    began = at if len(given) == 1 else math.nan
    return [into.call(turn, "bash", command, began=began) for command in given]


def _failed(message: Mapping[str, Any], extra: Mapping[str, Any]) -> bool:
    said = message.get("content")
    if "returncode" in extra:
        return extra["returncode"] not in (0, None)
    return isinstance(said, str) and said.startswith("<returncode>") and said[12:14] != "0<"


def characters(*parts: Any) -> int:
    """Characters of the texts in messages, or in what stands for a message.

    >>> characters("ab", [{"type": "text", "text": "cde"}], {"content": None})
    5
    """
    count, left = 0, list(parts)
    while left:
        part = left.pop()
        if isinstance(part, str):
            count += len(part)
        elif isinstance(part, dict):
            left += [part[name] for name in _TEXTS if name in part]
        elif isinstance(part, list):
            left += part
    return count
