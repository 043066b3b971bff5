"""Replays tool calls through a predictor that has seen nothing but the past."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from tao import checks
from tao._jit import njit
from tao.checks import InputError
from tao.durations import FAR_S, SURVIVAL, Floats, Kinds, chance, expected_s, is_under, learn
from tao.lab.calls import ToolCalls
from tao.params import Params
from tao.readiness import RULES, Evidence, forecast

EVERY_S = 0.5  # ours: how often a scheduler is taken to look again
MOST = 5_000_000  # ours: decisions of one replay, half a gigabyte
_HISTORY = RULES.index("history")


def decisions(
    calls: ToolCalls,
    params: Params | None = None,
    every_s: float | Sequence[float] = EVERY_S,
    history: bool = True,
) -> pd.DataFrame:
    """What is predicted of every call when it begins, and every `every_s` while it runs: a row each.

    `every_s` may also list the seconds after a call's start, ascending from 0. Whatever `history` knows at
    a moment comes from calls that ended before it, or (statistic "survival") run at it. Columns: `call`,
    `session`, `tool`, `command_class`, `ran_s`, `asked_s`, `lasted_s`, `returns` (within the horizon),
    `due_s` (the length predicted; inf: never), `rule`, `ready`, `probe`, `chance` to return within the
    horizon (nan where the rule in force tells none), `at_s`, and `known_s`, when it is known whether it
    returned. Seconds.

    >>> rows = [("a", "bash", "", at_s, lasted_s, None) for at_s, lasted_s in ((0.0, 0.2), (1.0, 0.7))]
    >>> decisions(ToolCalls.of_rows("two", rows))[["ran_s", "returns", "due_s", "rule"]].values.tolist()
    [[0.0, True, 5.0, 'fallback'], [0.0, True, 0.2, 'history'], [0.5, True, 0.2, 'history']]
    """
    params = params or Params()
    call, ran_s = _instants(calls.lasted_s, every_s)
    kinds, n = Kinds(), len(calls)
    names = [(calls.tools[t], calls.classes[c]) for t, c in zip(calls.tool, calls.command_class, strict=True)]
    kind = np.array([kinds.number(tool, command_class or None) for tool, command_class in names], np.int64)
    room = np.zeros(len(kinds.names), np.int64)
    for k in kind:
        for under in {int(k), *kinds.above[k]} - {-1}:
            room[under] += 1
    at_s, end_s = calls.began_s[call] + ran_s, calls.began_s + calls.lasted_s
    # At one moment whoever asks comes first: it knows only what ended before.
    what = np.concatenate([np.arange(len(call)), -1 - np.arange(n)])
    order = what[np.lexsort((what < 0, np.concatenate([at_s, end_s])))]
    found = np.empty((len(call), 4))
    _replay(
        *(kinds.book(room), kind, calls.began_s, calls.lasted_s, calls.asked_s),
        *(order, call, ran_s, params.settings, history, found),
    )
    lasted_s, rung = calls.lasted_s[call], found[:, 1].astype(np.int64)
    ready = found[:, 2] > 0
    return pd.DataFrame(
        {
            "call": call,
            "session": np.array(calls.sessions, object)[calls.session[call]],
            "tool": np.array(calls.tools, object)[calls.tool[call]],
            "command_class": np.array(calls.classes, object)[calls.command_class[call]],
            "ran_s": ran_s,
            "asked_s": calls.asked_s[call],
            "lasted_s": lasted_s,
            "returns": lasted_s - ran_s <= params.horizon_s,
            "due_s": np.where(found[:, 0] < FAR_S, found[:, 0], np.inf),
            "rule": np.array(RULES, object)[rung],
            "ready": ready,
            "probe": ready & (ran_s > found[:, 0]),
            "chance": found[:, 3],
            "at_s": at_s,
            "known_s": np.minimum(end_s[call], at_s + params.horizon_s),
        }
    )


def _instants(lasted_s: Floats, every_s: float | Sequence[float]) -> tuple[Any, Floats]:
    """The call and the elapsed seconds of each decision: at its start, then while it runs."""
    if isinstance(every_s, int | float):
        checks.positive(every_s, "every_s")
        count = np.maximum(np.ceil(lasted_s / every_s), 1)
    else:
        grid = np.array(every_s, float)
        if not len(grid) or grid[0] != 0 or (np.diff(grid) <= 0).any():
            raise InputError("every_s lists seconds after a call's start; they must ascend from 0")
        count = np.maximum(np.searchsorted(grid, lasted_s), 1)
    if count.sum() > MOST:
        raise InputError(f"{count.sum():,.0f} decisions, at most {MOST:,} fit; make every_s longer")
    counts = count.astype(np.int64)
    call = np.repeat(np.arange(len(lasted_s)), counts)
    step = np.arange(len(call)) - np.repeat(counts.cumsum() - counts, counts)
    return call, np.asarray(step * every_s if isinstance(every_s, int | float) else grid[step], float)


@njit
def _replay(book, kind, began_s, lasted_s, asked_s, order, call, ran_s, settings, history, found):
    """Play asks (0 and up: rows of `call`) and ends (-1 - call) in order; fills `found` per ask.

    Columns of found: due_s, rung, ready, chance.
    """
    n, running = len(kind), 0
    runs, where = np.empty(n, np.int64), np.empty(n, np.int64)
    for event in order:
        if event < 0:
            c = -1 - event
            running -= 1
            runs[where[c]] = runs[running]
            where[runs[running]] = where[c]
            learn(book, kind[c], lasted_s[c], settings.statistic)
            continue
        c, k = call[event], kind[call[event]]
        own, above, top = 0, 0, 0
        if settings.statistic == SURVIVAL:
            for r in range(running):
                other = runs[r]
                if other != c and began_s[other] <= began_s[c] - settings.horizon_s:
                    own += is_under(book, kind[other], k)
                    above += is_under(book, kind[other], book.above[k, 0])
                    top += is_under(book, kind[other], book.above[k, 1])
        still, expected = (own, above, top), math.nan
        if history:
            expected = expected_s(book, k, ran_s[event], still, settings)
        known = Evidence(0.0, math.nan, asked_s[c], expected)
        due_s, rung, ready = forecast(known, ran_s[event], settings)
        found[event, 0], found[event, 1], found[event, 2] = due_s, rung, ready
        found[event, 3] = math.nan
        if settings.statistic == SURVIVAL and rung == _HISTORY:
            found[event, 3] = chance(book, k, ran_s[event], settings.horizon_s, still, settings.fallback_s)
        if ran_s[event] == 0.0:
            runs[running], where[c] = c, running
            running += 1
