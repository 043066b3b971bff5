"""SWE-agent's trajectories (`.traj`): a JSON document of steps with their texts; tokens in totals only.

Tokens of a turn are estimated from the length of its texts, then scaled to the totals where there are any.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tao.commands import TOOL_CLASSES
from tao.traces.builder import Builder
from tao.traces.claude_code import CHARS_PER_TOKEN
from tao.traces.files import Source
from tao.traces.mini_swe import characters
from tao.traces.recording import Flag
from tao.traces.values import mappings

TITLE = "SWE-agent"
FIRST_PROMPT = 1647  # ours: the median first prompt of 500 runs of mini-swe-agent on SWE-bench Verified
ESTIMATED = Flag.CONTEXT_ESTIMATED | Flag.OUTPUT_ESTIMATED


def fits(row: Mapping[str, Any]) -> bool:
    """Whether a document is such a trajectory, or holds attempts that are."""
    return _is_run(row) or any(map(_is_run, mappings(row.get("attempts"))))


def _is_run(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("trajectory"), list) and ("info" in row or "history" in row)


def read(source: Source, into: Builder) -> None:
    """All steps of a trajectory, as one session: an answer, then its action.

    Of several attempts each is a session; the document then repeats the best one, with totals of them all.
    """
    found = source.document()
    for k, run in enumerate([a for a in mappings(found.get("attempts")) if _is_run(a)] or [found]):
        _run(run, into.session(("swe-agent", source.ledger.file, k)), source, into)


def _run(found: Mapping[str, Any], session: int, source: Source, into: Builder) -> None:
    steps = list[Mapping[str, Any]]()
    for step in found["trajectory"]:
        source.ledger.rows += 1
        if isinstance(step, dict) and ("response" in step or "action" in step):
            steps.append(step)
        else:
            source.ledger.skip("entries that are no step")
    if not steps:
        return
    prompts, outputs = _tokens(found, steps, into)
    into.ledger.repair("tokens estimated from the length of the texts", len(steps))
    for step, prompt, output in zip(steps, prompts, outputs, strict=True):
        turn = into.turn(session, prompt, output, flags=ESTIMATED)
        action = step.get("action")
        if isinstance(action, str) and action.strip():
            seconds = into.seconds(step.get("execution_time"), turn)
            into.take(turn, tool=seconds)
            _call(into, turn, action, seconds)


def _call(into: Builder, turn: int, action: str, seconds: float) -> None:
    """An action is a command of the shell, or one of the agent's own tools and its words."""
    tool, *words = action.split(None, 2)[:2]
    if f"{tool} {words[0] if words else ''}" in TOOL_CLASSES or tool in TOOL_CLASSES:
        into.call(turn, tool, words[0] if words else None, seconds=seconds)
    else:
        into.call(turn, "bash", action, seconds=seconds)


def _tokens(
    found: Mapping[str, Any], steps: list[Mapping[str, Any]], into: Builder
) -> tuple[list[int], list[int]]:
    """(prompts, outputs) of all steps, scaled to the totals."""
    info = found.get("info")
    stats = info.get("model_stats") if isinstance(info, dict) else None
    stats = stats if isinstance(stats, dict) else {}
    sent, received = into.tokens(stats.get("tokens_sent")), into.tokens(stats.get("tokens_received"))
    outputs = [_estimate(step.get("response"), step.get("tool_calls")) for step in steps]
    said = math.fsum(outputs)
    if received > 0 and said:
        outputs = [output * received / said for output in outputs]
    grown = [0.0]
    for step, output in zip(steps, outputs, strict=True):
        grown.append(grown[-1] + output + _estimate(step.get("observation")))
    grown.pop()
    first, asked = _first_prompt(found, steps), [_estimate(step.get("query")) for step in steps]
    if told := all(asked):  # what was sent each time, whether the history was cut or not
        first, grown = 0.0, asked
    if sent > 0 and not (first or told):  # what the texts do not explain was in every prompt
        first = max(0.0, (sent - sum(grown)) / len(steps))
    elif not (first or told):
        into.ledger.repair(f"first prompts that the log does not hold, taken as {FIRST_PROMPT:,} tokens")
        first = FIRST_PROMPT
    scale = sent / max(1.0, sum(grown) + first * len(steps)) if sent > 0 else 1.0
    prompts = [round((first + more) * scale) for more in grown]
    return prompts, [round(output) for output in outputs]


def _first_prompt(found: Mapping[str, Any], steps: list[Mapping[str, Any]]) -> float:
    """Of the messages before the first answer, from the first step's query or from the history."""
    query, history = steps[0].get("query"), found.get("history")
    messages = query if isinstance(query, list) and query else history if isinstance(history, list) else []
    tokens = 0.0
    for message in messages:
        if isinstance(message, dict):
            if messages is history and message.get("role") == "assistant" and not message.get("is_demo"):
                break
            tokens += _estimate(message.get("content"))
    return tokens


def _estimate(*texts: Any) -> float:
    return characters(*texts) / CHARS_PER_TOKEN
