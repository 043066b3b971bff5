"""How good a chance to return within the horizon is: Brier score, log loss, reliability, sessions as units.

A ready bit is no chance. It gets the best one that the past offers: how often calls of which the ladder
said the same (rule, bit, probe) returned in time, of all decisions whose outcome was known by then; once
for all calls, and once for each tool and class, drawn towards the former as "survival" is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from tao import checks
from tao.checks import InputError
from tao.comparisons import RESAMPLES, interval
from tao.durations import SHRINK_CALLS, Floats
from tao.lab.accuracy import STATISTICS
from tao.lab.calls import ToolCalls
from tao.lab.replay import EVERY_S, decisions
from tao.params import Params

SAID = ("rule", "ready", "probe")
KIND = ("tool", "command_class")
OURS = "survival"
SWEPT = ("horizon_s", "stale_s", "fallback_s", "probe_s", "margin_s")


def frequency(frame: pd.DataFrame, by: Sequence[str], start: Floats, weight: float) -> Floats:
    """For each row of `decisions` how often earlier ones with equal `by` returned in time: float64[n].

    Only those whose outcome was known before; `start` counts as `weight` of them.
    """
    found = start.copy()
    at_s, known_s, returns = (frame[c].to_numpy(float) for c in ("at_s", "known_s", "returns"))
    for rows in frame.groupby(list(by), sort=False).indices.values():
        order = rows[np.argsort(known_s[rows], kind="stable")]
        hits = np.concatenate([[0.0], returns[order].cumsum()])
        past = np.searchsorted(known_s[order], at_s[rows], side="left")
        found[rows] = (hits[past] + weight * start[rows]) / (past + weight)
    return found


def chances(
    calls: ToolCalls, params: Params | None = None, every_s: float | Sequence[float] = EVERY_S
) -> pd.DataFrame:
    """The chance to return within the horizon that each predictor gave, at every decision: wide rows.

    Columns `session`, `tool`, `command_class`, `ran_s`, `returns`, then a predictor each: "mean", "median"
    (the frequency of their ready bit), "mean by class", "median by class", "survival" (where a sleep or
    the fallback speaks: the frequency of their bit), and "hindsight", the frequency among all calls
    of equal tool, class, elapsed time and seconds asked for, the future included: a bound for whoever
    knows no more of a call.
    """
    params = params or Params()
    table, said = pd.DataFrame(), dict[str, Floats]()
    for statistic in STATISTICS:
        frame = decisions(calls, replace(params, statistic=statistic), every_s)
        if table.empty:
            table = frame[["session", *KIND, "ran_s", "returns"]].copy()
        bit = frequency(frame, SAID, np.full(len(frame), 0.5), 1.0)
        if statistic == OURS:
            said[OURS] = frame["chance"].fillna(pd.Series(bit)).to_numpy()
        else:
            said[statistic] = bit
            said[f"{statistic} by class"] = frequency(frame, (*SAID, *KIND), bit, SHRINK_CALLS)
    table[list(said)] = np.stack(list(said.values()), axis=1)
    alike = table.groupby([*KIND, frame["asked_s"], "ran_s"], sort=False, dropna=False)["returns"]
    return table.assign(hindsight=alike.transform("mean").astype(float))


def predictors(table: pd.DataFrame) -> list[str]:
    """The predictors of a table of `chances`, in its order."""
    return list(table.columns[5:])


def losses(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The Brier score ("brier") and the log loss ("log_loss", natural) of every decision and predictor."""
    names = predictors(table)
    p, y = table[names].to_numpy(float), table["returns"].to_numpy(float)[:, None]
    with np.errstate(divide="ignore"):
        log = -np.log(np.where(y > 0, p, 1.0 - p))
    found = {"brier": (p - y) ** 2, "log_loss": log}
    return {score: pd.DataFrame(values, columns=names) for score, values in found.items()}


def scores(table: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """Mean losses of each predictor over all decisions: rows (*by, predictor, decisions, brier, log_loss)."""
    found = losses(table)
    tables = []
    for name in predictors(table):
        part = table[list(by)].assign(predictor=name, **{score: found[score][name] for score in found})
        keys = [*by, "predictor"]
        groups = part.groupby(keys, sort=False)
        tables.append(groups.size().rename("decisions").to_frame().join(groups.mean()).reset_index())
    return pd.concat(tables, ignore_index=True)


def paired(table: pd.DataFrame, ours: str = OURS, against: Sequence[str] = ()) -> pd.DataFrame:
    """By how much `ours` is better than the others (below 0: better), sessions as units, 95 % intervals.

    Rows (against, score, difference, boot_lo, boot_hi, per_session, lo, hi, better, sessions): the
    difference of the means over all decisions with the percentile bootstrap over sessions; the mean over
    sessions of each one's difference with Student's t; and in how many sessions ours is better.
    """
    names = predictors(table)
    if unknown := [name for name in (ours, *against) if name not in names]:
        raise InputError(f"there is no predictor {unknown[0]!r}; name one of {', '.join(names)}")
    session = pd.factorize(table["session"])[0]
    count = np.bincount(session)
    draws = np.random.default_rng(0).integers(0, len(count), (RESAMPLES, len(count)))
    rows = []
    for score, values in losses(table).items():
        for name in against or [n for n in names if n not in (ours, "hindsight")]:
            sums = np.bincount(session, (values[ours] - values[name]).to_numpy(float))
            lo, hi = np.quantile(sums[draws].sum(1) / count[draws].sum(1), (0.025, 0.975))
            t = interval(sums / count)
            rows.append(
                {
                    "against": name,
                    "score": score,
                    "difference": sums.sum() / count.sum(),
                    "boot_lo": lo,
                    "boot_hi": hi,
                    "per_session": t["mean"],
                    "lo": t["lo"],
                    "hi": t["hi"],
                    "better": int((sums < 0).sum()),
                    "sessions": len(count),
                }
            )
    return pd.DataFrame(rows)


def reliability(table: pd.DataFrame, bins: int = 10) -> pd.DataFrame:
    """Said and seen: rows (predictor, said, seen, decisions), one per tenth of the scale that occurs.

    `said` is the mean chance of its decisions, `seen` the share of them that returned in time.
    """
    checks.whole(bins, "bins", 1)
    tables = []
    for name in predictors(table):
        p = table[name].to_numpy(float)
        groups = table.groupby(np.minimum((p * bins).astype(int), bins - 1))
        part = groups.agg(said=(name, "mean"), seen=("returns", "mean"), decisions=("returns", "size"))
        tables.append(part.reset_index(drop=True).assign(predictor=name))
    return pd.concat(tables, ignore_index=True)[["predictor", "said", "seen", "decisions"]]


def sweep(
    calls: ToolCalls,
    grid: Mapping[str, Iterable[float]],
    params: Params | None = None,
    every_s: float | Sequence[float] = EVERY_S,
) -> pd.DataFrame:
    """The `scores` for other values of a parameter, one at a time, with what ready bits are worth.

    Rows (parameter, value, predictor, decisions, base, brier, log_loss, precision, recall): `base` is the
    share that returned in time; precision and recall of the ready bit itself are nan where there is none.
    """
    params = params or Params()
    if unknown := [name for name in grid if name not in SWEPT]:
        raise InputError(f"{unknown[0]!r} cannot be swept; name one of {', '.join(SWEPT)}")
    tables = []
    for name, values in grid.items():
        for value in values:
            changed = replace(params, **{name: value})  # type: ignore[arg-type]
            table = chances(calls, changed, every_s)
            part = scores(table).assign(parameter=name, value=value, base=table["returns"].mean())
            bits = {s: _bits(decisions(calls, replace(changed, statistic=s), every_s)) for s in STATISTICS}
            for k, what in enumerate(("precision", "recall")):
                part[what] = [bits[p][k] if p in bits else np.nan for p in part["predictor"]]
            tables.append(part)
    columns = ["parameter", "value", "predictor", "decisions", "base", "brier", "log_loss"]
    return pd.concat(tables, ignore_index=True)[[*columns, "precision", "recall"]]


def _bits(frame: pd.DataFrame) -> tuple[float, float]:
    """Precision and recall of the ready bit."""
    hits = float((frame["ready"] & frame["returns"]).sum())
    said, true = float(frame["ready"].sum()), float(frame["returns"].sum())
    return hits / said if said else np.nan, hits / true if true else np.nan
