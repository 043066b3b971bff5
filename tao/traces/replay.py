"""From a recording to a workload: what the log leaves open is drawn or left out, and counted in the notes."""

from __future__ import annotations

import zlib
from collections import Counter
from itertools import pairwise

import numpy as np

from tao import checks
from tao.checks import InputError
from tao.traces.recording import Recording
from tao.traces.stand_ins import drawn
from tao.workloads import HUMAN, MAX_TOOL_S, Task, Turn, Workload

_NOTES = {
    "sub": "sub-agent sessions, replayed on their own",
    "drawn": "tool times not in the log, drawn by command class",
    "human": "waits for a person, replayed as recorded; each ends a job, and the session's cache stays",
    "within": "tool calls before a person's wait, replayed as part of that wait",
    "output": "outputs that were zero or missing, set to 1 token",
    "final": "tools after the last request of a session, left out",
    "context": "requests whose prompt is zero or unknown, left out",
    "prefix": "requests of which the reusable prefix is unknown, taken as the whole context before",
}


def workload(recording: Recording, name: str = "mine", seed: int = 0) -> Workload:
    """The recorded sessions as a workload; tool times that the log lacks are drawn from (seed, session).

    Raises `InputError` where there is nothing to replay, or no request tells its tokens.

    >>> from tao.traces.builder import Builder
    >>> b = Builder()
    >>> for context in (100, 150):
    ...     _ = b.turn(b.session("a"), context=context, output=20)
    >>> [turn.prompt_tokens for turn in workload(b.finish()).tasks[0].turns]
    [100, 150]
    """
    checks.whole(seed, "seed", 0)
    told = recording.turns["context_tokens"] > 0
    if not len(told):
        raise InputError(
            f"{name}: holds no turns to replay\n{recording.report}".partition("\n")[0] + _why(recording)
        )
    if not told.any():
        raise InputError(
            f"{name}: tells tool times but no tokens, so that no request can be replayed; "
            "give the agent's own log of the same runs, or logs with token counts"
        )
    counts: Counter[str] = Counter()
    tasks = [
        _task(recording, k, np.flatnonzero(told[start:end]) + start, seed, counts)
        for k, (start, end) in enumerate(pairwise(recording.first.tolist()))
        if told[start:end].any()
    ]
    counts["context"] += int((~told).sum())
    notes = [f"{text}: {counts[key]:,}" for key, text in _NOTES.items() if counts[key]]
    notes += [f"in the log: {sign}" for sign in recording.report.signs]
    return Workload(name, tuple(tasks), seed, tuple(notes))


def _why(recording: Recording) -> str:
    reasons = [*recording.report.unread, *recording.report.skipped]
    return f" ({'; '.join(map(str, reasons[:3]))})" if reasons else ""


def _task(recording: Recording, session: int, rows: np.ndarray, seed: int, counts: Counter[str]) -> Task:
    name = recording.sessions[session]
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    turns: list[Turn] = []
    for row in rows.tolist():
        turn = recording.turns[row]
        prompt, output = int(turn["context_tokens"]), int(turn["output_tokens"])
        prefix = 0
        if turns:
            prefix = int(turn["prefix_tokens"])
            counts["prefix"] += prefix < 0
            prefix = min(turns[-1].context_tokens if prefix < 0 else prefix, prompt, turns[-1].context_tokens)
        call = _call(recording, row, rng, counts) if row != rows[-1] else ()
        turns.append(Turn(prompt, prefix, max(output, 1), *call))
        counts["output"] += output < 1
    start_s = float(recording.turns["start_s"][rows[0]])
    counts["sub"] += bool(recording.parents[session] >= 0)
    counts["final"] += bool(recording.first_call[rows[-1]] < recording.first_call[rows[-1] + 1])
    return Task(name, tuple(turns), min(start_s, MAX_TOOL_S) if start_s >= 0 else 0.0)


def _call(
    recording: Recording, row: int, rng: np.random.Generator, counts: Counter[str]
) -> tuple[str, str, float, float | None]:
    """(tool, class, seconds, seconds asked for) of what came after a turn: of several calls the longest."""
    turn = recording.turns[row]
    calls = recording.calls[recording.first_call[row] : recording.first_call[row + 1]]
    tool_s, human_s = float(turn["tool_s"]), float(turn["human_s"])
    if human_s > 0 or (human_s == 0 and np.isnan(tool_s) and not len(calls)):
        counts["human"] += 1
        counts["within"] += sum(recording.classes[kind] != HUMAN for kind in calls["tool_class"])
        return HUMAN, HUMAN, round(min(human_s + (tool_s if tool_s > 0 else 0.0), MAX_TOOL_S), 6), None
    tool, kind, asked_s = "tool", "", None
    if len(calls):
        longest = calls[np.argmax(np.nan_to_num(calls["seconds"], nan=-1.0))]
        tool, kind = recording.tools[longest["tool"]], recording.classes[longest["tool_class"]]
        asked_s = None if np.isnan(longest["asked_s"]) else float(longest["asked_s"])
    if np.isnan(tool_s):
        counts["drawn"] += 1
        tool_s, asked_s = drawn(kind, asked_s, rng)
    return tool, kind, round(min(tool_s, MAX_TOOL_S), 6), asked_s
