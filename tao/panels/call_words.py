"""What is expected of one tool call, moment by moment, as rows, tables and sentences; pure, no widgets."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd

from tao.model import Params, ToolCall
from tao.panels.table import Table
from tao.readiness import Prediction, evidence, predict, ready_spans, timeline

Row = tuple[str, str, float, float, str, str]
EVIDENCE = ("deadline", "sleep", "history", "fallback")
COLUMNS = ["lane", "part", "begin_s", "end_s", "when", "words"]


def rows(tool: ToolCall, params: Params, step: int) -> pd.DataFrame:
    """What `charts.call_life` draws of a call that is back, at one of its moments (from 1)."""
    life = timeline(tool, params)
    now_s, back_s = life[step - 1][0], life[-1][0]
    found = [row for lane in EVIDENCE for row in _evidence(lane, tool, params, back_s)]
    for k, (at, p) in enumerate(life[:-1]):
        end, when = life[k + 1][0], ("past", "now", "later")[(k >= step - 1) + (k > step - 1)]
        span = f"from {at:.1f} to {end:.1f} s{', now' if when == 'now' else ''}"
        if p.rule in EVIDENCE:
            found.append((p.rule, "in force", at, end, when, f"{p.rule} in force {span}"))
        if p.ready:
            part = "ready as a probe" if p.probe else "ready"
            found.append(("ready", part, at, end, when, f"{part} {span}"))
    found.append(("", "now", now_s, now_s, "now", f"now, {now_s:.1f} s"))
    if step < len(life):
        found.append(("", "back", back_s, back_s, "later", f"back at {back_s:.1f} s"))
    return pd.DataFrame(found, columns=COLUMNS)


def _evidence(lane: str, tool: ToolCall, params: Params, back_s: float) -> list[Row]:
    """The diamond of a kind of evidence, and as far as the life goes how long it is valid."""
    due_s = due(tool, params)[lane]
    if due_s is None:
        return [(lane, "none", 0.0, 0.0, "past", f"{lane}: none")]
    from_s = due_s if params.stale_from == "due" else tool.started_s
    until_s = min(from_s + params.stale_s, back_s)
    found: list[Row] = [(lane, "valid", tool.started_s, until_s, "past", "")] if until_s > 0 else []
    return [*found, (lane, "due", due_s, due_s, "past", f"{lane}: return expected at {due_s:.1f} s")]


def due(tool: ToolCall, params: Params) -> dict[str, float | None]:
    """When each kind of evidence, taken alone, expects the return (seconds; None: it says nothing)."""
    alone = {
        "deadline": replace(tool, command=None, expected_s=None),
        "sleep": replace(tool, deadline_s=None, expected_s=None),
        "history": replace(tool, deadline_s=None, command=None),
        "fallback": replace(tool, deadline_s=None, command=None, expected_s=None),
    }
    known = evidence(tool)
    says = (known.deadline_s, known.asked_s, known.expected_s, params.fallback_s)
    return {
        name: None
        if math.isnan(seconds)
        else predict(replace(alone[name], finished_s=None), tool.started_s, params).return_s
        for name, seconds in zip(EVIDENCE, says, strict=True)
    }


def life(tool: ToolCall, params: Params, step: int) -> Table:
    """Every moment at which something changes; the one looked at is marked."""
    table = [
        (
            f"{at:.1f}",
            p.rule,
            f"{p.return_s:.1f}" if p.rule != "void" else "never",
            _bit(p),
            meaning(p, at, params),
        )
        for at, p in timeline(tool, params)
    ]
    columns = ("from, s", "in force", "back at, s", "ready", "what that means")
    return Table("The call, moment by moment", columns, table, step - 1)


def _bit(p: Prediction) -> str:
    return "probe" if p.probe else "yes" if p.ready else "no"


def meaning(p: Prediction, at_s: float, params: Params) -> str:
    """A prediction in words."""
    if p.rule == "completed":
        return "seen to be back: ready"
    if p.rule == "void":
        return "nothing is left to go by: not ready until it is seen to be back"
    if p.probe:
        return f"overdue: one more chance of {params.probe_s:g} s"
    if p.ready:
        return f"expected within {params.horizon_s:g} s: ready"
    if at_s < p.return_s:
        return f"expected in {p.return_s - at_s:.1f} s: not yet"
    return "overdue, its chance is over: not ready"


def headline(tool: ToolCall, params: Params, step: int) -> str:
    """The moment looked at in one line."""
    at, p = timeline(tool, params)[step - 1]
    what = {"void": "every prediction is void", "completed": "the return is seen"}
    return f"At {at:.1f} s: {what.get(p.rule, f'{p.rule} in force')}; {meaning(p, at, params)}."


def outcome(tool: ToolCall, params: Params) -> str:
    """What the predictions were good for, once the call is back."""
    back_s = timeline(tool, params)[-1][0]
    spans = ready_spans(tool, params)
    seconds = sum(end - at for at, end, _ in spans)
    told = f"It took {back_s:.1f} s. Before it was back it counted as ready for {seconds:.1f} s"
    if not spans or spans[-1][1] < back_s:
        vain = ", all of it in vain" if spans else ""
        return f"{told}{vain}; its return came as a surprise."
    begin = spans[-1][0]
    for at, end, _ in reversed(spans):
        begin = at if end >= begin else begin
    vain_s = seconds - (back_s - begin)
    vain = f"{vain_s:.1f} s" if vain_s > 0.05 else "none"
    return f"{told}, {vain} of it in vain; its return was foreseen {back_s - begin:.1f} s ahead."
