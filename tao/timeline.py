"""A run told moment by moment: who reasons, who waits, who is with a tool; and runs small enough for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from math import log
from typing import Literal, NamedTuple

from tao import simulator
from tao.history import History
from tao.profiles import PS_PER_S
from tao.workload_params import RECIPES, Clipped
from tao.workloads import Workload, generate

Doing = Literal["waiting", "reasoning", "tool"]
PHASES: tuple[Doing, ...] = "waiting", "reasoning", "tool"
LEAST_WAIT_PS = PS_PER_S // 10  # ours: a request that joins the engine's next step has not waited
CAPACITY_TOKENS = 8_192  # ours: a node so small that few sessions fill it
SHORT = replace(  # ours: 4 to 6 turns, and no session outgrows such a node
    RECIPES["swe-lite"],
    turns=Clipped(mu=log(5.0), sigma=0.25, lo=4, hi=6),
    first_prompt=Clipped(mu=7.29, sigma=0.33, lo=900, hi=2_500),
    new_cap=600,
    output_cap=500,
)


class Span(NamedTuple):
    """One phase of one session, from `begin_ps` to `end_ps`."""

    session: str
    turn: int
    phase: Doing
    begin_ps: int
    end_ps: int
    prompt_tokens: int


class Moment(NamedTuple):
    """A moment at which phases begin or sessions end."""

    at_ps: int
    begin: tuple[Span, ...]
    done: tuple[str, ...]


def short_sessions(sessions: int, extra_delay_s: tuple[float, float] = (0.0, 0.0), seed: int = 0) -> Workload:
    """So many sessions `s1`, `s2`, ... of few turns, like those of `swe-lite` but shorter.

    Every tool call takes (least, most) `extra_delay_s` seconds longer, uniformly drawn.

    >>> work = short_sessions(2, seed=1)
    >>> work.ids, [len(task.turns) for task in work.tasks]
    (['s1', 's2'], [6, 6])
    """
    drawn = generate("short", SHORT, seed, sessions, extra_delay_s=extra_delay_s)
    tasks = (replace(task, id=f"s{k}") for k, task in enumerate(drawn.tasks, start=1))
    return replace(drawn, tasks=tuple(tasks))


def small_run(workload: Workload) -> History:
    """Run all sessions of `workload` at once on one node of `CAPACITY_TOKENS`."""
    count = len(workload.tasks)
    return simulator.simulate(workload, "sticky", nodes=1, workers=count, capacity_tokens=CAPACITY_TOKENS)


def spans(history: History) -> list[Span]:
    """Every session's phases in order of their beginning; they follow each other without a gap.

    A request that is taken up within a tenth of a second has not waited: that time is part of its reasoning.

    >>> [span.phase for span in spans(small_run(short_sessions(1)))][:3]
    ['reasoning', 'tool', 'reasoning']
    """
    found = []
    for row in history.turns:
        waited = row.scheduled_ps - row.arrived_ps >= LEAST_WAIT_PS
        begin = row.scheduled_ps if waited else row.arrived_ps
        edges = row.arrived_ps, begin, row.finished_ps, row.tool_end_ps
        name = history.session_ids[row.session]
        found += [
            Span(name, row.turn, phase, edges[k], edges[k + 1], row.prompt_tokens)
            for k, phase in enumerate(PHASES)
            if edges[k] < edges[k + 1]
        ]
    place = {name: k for k, name in enumerate(history.session_ids)}
    return sorted(found, key=lambda span: (span.begin_ps, place[span.session]))


def moments(told: Sequence[Span]) -> list[Moment]:
    """The moments at which something changes, in order; what changes at one time is one moment."""
    ends: dict[str, int] = {}
    for span in told:
        ends[span.session] = max(span.end_ps, ends.get(span.session, 0))
    begin = {at: tuple(group) for at, group in groupby(told, key=lambda span: span.begin_ps)}
    times = sorted({*begin, *ends.values()})
    return [Moment(at, begin.get(at, ()), tuple(s for s in ends if ends[s] == at)) for at in times]


def until(told: Sequence[Span], now_ps: int) -> list[Span]:
    """What had happened by `now_ps`: phases that had begun by then, cut there."""
    return [span._replace(end_ps=min(span.end_ps, now_ps)) for span in told if span.begin_ps <= now_ps]


def reasoning_at(told: Sequence[Span], at_s: float) -> int:
    """How many sessions the model works for at a moment."""
    at_ps = round(at_s * PS_PER_S)
    return sum(span.phase == "reasoning" and span.begin_ps <= at_ps < span.end_ps for span in told)


def seconds(told: Sequence[Span], session: str = "") -> dict[Doing, float]:
    """Seconds spent in each phase, of one session or (without a name) of all.

    >>> seconds([Span("a", 0, "reasoning", 0, 3 * 10**12, 9), Span("a", 1, "reasoning", 0, 10**12, 9)])
    {'waiting': 0.0, 'reasoning': 4.0, 'tool': 0.0}
    """
    spent = dict.fromkeys(PHASES, 0)
    for span in told:
        if not session or span.session == session:
            spent[span.phase] += span.end_ps - span.begin_ps
    return {phase: spent[phase] / PS_PER_S for phase in PHASES}
