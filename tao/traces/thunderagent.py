"""ThunderAgent's `step_profiles.csv`: the times of each step of each program, without tokens.

`tool_call_s` runs from the end of the step before to the arrival of this one, the client's share in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from tao.traces.builder import Builder
from tao.traces.files import Source, number

TITLE = "ThunderAgent step profiles"
NEEDED = ("program_id", "step_id", "tool_call_s")


def fits(row: Mapping[str, Any]) -> bool:
    """Whether these are the columns of such a table."""
    return all(name in row for name in NEEDED)


def read(source: Source, into: Builder) -> None:
    """All steps of all programs; tokens are unknown."""
    programs: dict[str, list[tuple[int, int, Any]]] = {}
    for row in source.table():
        step = into.tokens(number(row["step_id"]))
        if step < 0 or not row["program_id"]:
            source.ledger.skip("rows without a program or a step")
            continue
        if into.copied("thunderagent", *row.values()):
            source.ledger.skip("rows that are copies from another place")
            continue
        spent = [into.seconds(number(row.get(name))) for name in ("prefill_s", "decode_s", "pause_s")]
        began = into.moment(number(row.get("completed_at"))) - sum(spent)
        session = into.session(("thunderagent", row["program_id"]))
        turn = into.turn(session, began=began, order=step)
        into.take(turn, llm=spent[0] + spent[1])
        programs.setdefault(row["program_id"], []).append((step, turn, number(row["tool_call_s"])))
    for steps in programs.values():
        steps.sort(key=lambda step: step[0])
        _tools(into, steps)


def _tools(into: Builder, steps: list[tuple[int, int, Any]]) -> None:
    first = into.seconds(steps[0][2])
    if first > 0:
        into.ledger.skip("tool times before the first step of a program that is in the table")
    for (number_before, turn, _), (number_after, _, said) in pairwise(steps):
        seconds = into.seconds(said, turn)
        if number_after > number_before + 1:
            into.ledger.repair("tool times after steps that are not in the table, taken as unknown")
            seconds = math.nan
        into.take(turn, tool=seconds)
        into.call(turn, "tool", seconds=seconds)
