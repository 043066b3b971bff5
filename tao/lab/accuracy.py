"""How far predictions were off, rule by rule, and what that changes in simulated latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pandas as pd

from tao.comparisons import Comparison, compare
from tao.durations import FAR_S
from tao.jobs import Arm
from tao.lab.calls import ToolCalls
from tao.lab.replay import EVERY_S, decisions
from tao.params import Params, Statistic

STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
WITHIN_S = 0.5  # TAO paper
CAP_S = 30.0  # ours: as far off as makes a prediction void (TAO paper)
PAPER = {"mae_s": 0.410, "within": 0.829}
"""TAO paper, *reported*: mean error and share within 0.5 s of final predictions, hints of tools included."""


def errors(frame: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """How far predictions of length were off, of rows of `decisions`: at the start of a call and *final*.

    Final is the last one before the return. Rows (when, *by, calls, mae_s, capped_mae_s, within, never): the
    mean absolute error in seconds where a return was predicted; the same of all calls, where more than 30 s,
    and no return, count as 30; the share within 0.5 s; and the share predicted not to return. `by` names
    columns, such as "rule".
    """
    per_call = frame.groupby("call", sort=False)
    both = pd.concat([per_call.head(1).assign(when="start"), per_call.tail(1).assign(when="final")])
    off_s = (both["due_s"] - both["lasted_s"]).abs()
    known = off_s.where(np.isfinite(off_s))
    both = both.assign(
        off_s=known, capped_s=off_s.clip(upper=CAP_S), hit=off_s <= WITHIN_S, never=known.isna()
    )
    table = both.groupby(["when", *by], sort=False).agg(
        calls=("call", "size"),
        mae_s=("off_s", "mean"),
        capped_mae_s=("capped_s", "mean"),
        within=("hit", "mean"),
        never=("never", "mean"),
    )
    return table.reset_index()


def ladder(
    calls: ToolCalls, params: Params | None = None, by: Sequence[str] = (), every_s: float = EVERY_S
) -> pd.DataFrame:
    """The `errors` of each statistic of history: rows (statistic, when, *by, ...)."""
    params = params or Params()
    tables = [
        errors(decisions(calls, replace(params, statistic=s), every_s), by).assign(statistic=s)
        for s in STATISTICS
    ]
    table = pd.concat(tables, ignore_index=True)
    return table[["statistic", *table.columns.drop("statistic")]]


def ablation(calls: ToolCalls, params: Params | None = None) -> pd.DataFrame:
    """The `errors` of the ladder with one of its rules taken out at a time: rows (without, when, ...).

    Without "class" and without "tool" history knows only the tool, or only that something was called.
    """
    params = params or Params()
    variants: dict[str, tuple[ToolCalls, Params, bool]] = {
        "nothing": (calls, params, True),
        **{what: (calls.without(what), params, True) for what in ("sleep", "class", "tool")},
        "history": (calls, params, False),
        "history and sleep": (calls.without("sleep"), params, False),
        "fallback": (calls, replace(params, fallback_s=FAR_S), True),
        "staleness": (calls, replace(params, stale_s=FAR_S), True),
        "probe": (calls, replace(params, probe_s=0.0), True),
    }
    tables = []
    for what, (known, changed, history) in variants.items():
        frame = decisions(known, changed, history=history)
        right = {"ready_right": float((frame["ready"] == frame["returns"]).mean())}
        tables.append(errors(frame).assign(without=what, **right))
    table = pd.concat(tables, ignore_index=True)
    return table[["without", *table.columns.drop("without")]]


def latency(workload: Any = "swe-lite", **options: Any) -> Comparison:
    """What the statistic of history changes in a run: TAO with each, and the oracle that knows returns.

    `options` are those of `tao.compare`. Simulated; ask the result for `paired("task_latency_s")`.
    """
    arms: list[str | Arm] = [Arm(s, "tao", Params(statistic=s)) for s in STATISTICS]
    return compare(workload, [*arms, "oracle"], **options)
