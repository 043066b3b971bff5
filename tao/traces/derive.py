"""What follows from the columns of a log: order, new tokens, reusable prefixes, cuts, durations, names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tao.traces.recording import Flag
from tao.traces.report import Ledger

CLOCK_STEP_S = 2.0  # ours: clocks were seen to step back by 1.95 s; more than that is another order
CHUNK = 65_536  # ours: moments at a time, as logs are long
DIGITS = 6  # of seconds: what float64 keeps of a date
PERSON_S = 1.0  # ours: nobody reads and answers within it; agents spend milliseconds before they ask again
DROP = 0.8  # ours: a context below that part of the one before was cut; hidden reasoning goes up to 20 %


def plain(x: Any) -> str | int | float | None:
    """A value that can be a key, or part of one: nothing that holds others, however deep."""
    return x if isinstance(x, str | int | float) else None


def order_of(session: Any, began: Any, order: Any) -> tuple[Any, Any]:
    """Rows by session and then in order: the log's own, that told by `order`, or that of the clock.

    The second array says which rows stood elsewhere in the log.
    """
    rank = np.where(np.isnan(order), 0.0, order)
    rows = np.lexsort((rank, session))
    timed = began[rows].copy()
    later = np.diff(session[rows]) != 0
    # Only where a session has moments throughout and they go back: its rows by the clock, else as they stand.
    back = np.flatnonzero((np.diff(timed) < -CLOCK_STEP_S) & ~later)
    bounds = np.concatenate([[0], np.flatnonzero(later) + 1, [len(rows)]])
    for k in np.unique(np.searchsorted(bounds, back, side="right") - 1):
        start, end = bounds[k], bounds[k + 1]
        part = timed[start:end]
        if np.isnan(order[rows[start:end]]).all() and not np.isnan(part).any():
            rows[start:end] = rows[start:end][np.argsort(part, kind="stable")]
    moved = np.zeros(len(rows), bool)
    moved[rows[1:][(np.diff(rows) < 0) & ~later]] = True
    return rows, moved


def derive(turns: Any, times: Mapping[str, Any], ledger: Ledger) -> None:
    """What follows from tokens and moments: new tokens, reusable prefix, cuts, durations."""
    same = np.concatenate([[False], np.diff(turns["session"]) == 0]) if len(turns) else np.zeros(0, bool)
    context, output = turns["context_tokens"].astype(np.int64), turns["output_tokens"].astype(np.int64)
    before, said = np.roll(context, 1), np.roll(np.maximum(output, 0), 1)
    both = same & (context > 0) & (before > 0)  # a prompt of no tokens is none that was told
    told = turns["prefix_tokens"] >= 0
    cut = both & ((context < DROP * before) | (turns["flags"] & Flag.CTX_DROP > 0))
    turns["flags"][cut] |= Flag.CTX_DROP
    turns["flags"][context == 0] |= Flag.ZERO_CONTEXT
    turns["flags"][output == 0] |= Flag.ZERO_OUTPUT
    new = np.where(same, np.where(both, np.maximum(context - before - said, 0), -1), context)
    turns["new_tokens"] = np.where(cut, 0, new)
    # A rewritten history keeps what the provider still found cached: after a compaction the shared prompt.
    kept = np.minimum(np.maximum(turns["cached_tokens"], 0), np.minimum(context, before))
    grown = np.where(context < before + said, before, before + said)
    prefix = np.where(both, np.where(cut | (context < before), kept, grown), np.where(same, -1, 0))
    most = np.where(same, np.minimum(np.maximum(context, 0), np.maximum(before + said, 0)), 0)
    turns["prefix_tokens"] = np.where(told, np.minimum(turns["prefix_tokens"], most), prefix)
    ledger.repair("contexts that were cut or rewritten (compaction): their cache is lost", int(cut.sum()))
    began, ended, resumed = times["began"], times["ended"], times["resumed"]
    first = np.nanmin(began) if np.isfinite(began).any() else 0.0
    turns["start_s"] = began - first
    turns["llm_s"] = np.where(np.isnan(times["llm"]), _least_0(ended - began), times["llm"])
    following = np.where(np.roll(same, -1), np.roll(began, -1), np.nan)
    gap = np.round(following - np.fmax(resumed, ended), DIGITS)
    brief = np.where((gap > 0) & (gap < PERSON_S), gap, 0.0)
    gap[~(gap >= PERSON_S)] = np.nan
    spent = _least_0(resumed - ended) + brief  # the agent's own time belongs to the tools, where any returned
    turns["tool_s"] = np.where(np.isnan(times["tool"]), spent, times["tool"])
    turns["human_s"] = np.where(np.isnan(times["human"]), gap, times["human"])
    for name in ("start_s", "llm_s", "tool_s", "human_s"):
        turns[name] = np.round(turns[name], DIGITS)


def _least_0(x: Any) -> Any:
    return np.where(x < 0, 0.0, x)


def people(turns: Any, calls: Any, human: int) -> None:
    """A call that asks a person is no tool time."""
    asks = calls["tool_class"] == human
    both = (
        np.bincount(calls["turn"], minlength=len(turns)),
        np.bincount(calls["turn"][asks], minlength=len(turns)),
    )
    only = (both[0] == both[1]) & (both[1] > 0)
    turns["human_s"] = np.where(only, np.fmax(turns["tool_s"], turns["human_s"]), turns["human_s"])
    turns["tool_s"][only] = np.nan


def session_names(parents: Any) -> tuple[str, ...]:
    """`s1`, `s2`, ...; a session that another one started is `s2.1`."""
    names: list[str] = []
    mains, children = 0, dict[int, int]()
    for parent in parents.tolist():
        if 0 <= parent < len(names):
            children[parent] = children.get(parent, 0) + 1
            names.append(f"{names[parent]}.{children[parent]}")
        else:
            mains += 1
            names.append(f"s{mains}")
    return tuple(names)


def resolution_s(*columns: Any) -> float | None:
    """The largest of 1, 0.1, ... 0.000001 s of which all moments are multiples; None without any."""
    digits: int | None = None
    for column in columns:
        for start in range(0, len(column), CHUNK):
            known = column[start : start + CHUNK]
            known = known[np.isfinite(known)]
            if len(known):
                digits = _digits(known - np.floor(known), digits or 0)
    return None if digits is None else float(10.0**-digits)


def _digits(part: Any, least: int) -> int:
    """How many digits after the point these need, at least so many."""
    for digits in range(least, DIGITS):
        scaled = part * 10**digits
        if np.abs(scaled - np.round(scaled)).max() < 10**digits * 5e-7:  # what float64 resolves of a date
            return digits
    return DIGITS
