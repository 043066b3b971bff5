"""What a recording is like, as tidy tables: sizes, growth, tool times by class, reuse, and what clusters.

Turns are those of the main sessions, sub-agents' apart; tool calls are those of all. Unknown values are left
out and counted. The shape of the tables and the limits of what counts as long are ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tao import mixtures
from tao.traces.recording import Flag, Recording

Values = npt.NDArray[Any]

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
QUANTILES = tuple(f"p{level * 100:.0f}" for level in LEVELS)
SHORT_S = (0.1, 1.0, 5.0, 60.0)  # ours: where shares of the calls are told
LONG_S = 5.0  # ours: a call that leaves a scheduler time to use the memory
FIFTHS = 5  # ours: parts of a session, for what changes along it
CURVE = 200  # ours: points of a curve
LEAST_LOG_S = 1e-3  # ours: most clocks tell milliseconds
ALIKE = 0.02  # ours: shares and correlations that differ by less are alike


class Quantity(NamedTuple):
    """A kind of number in a recording: those known, and how many are not."""

    name: str
    values: Values
    unknown: int


class Rows(NamedTuple):
    """The turns of the main sessions, with marks on each session's first and last."""

    turns: Values
    first: Values
    last: Values


def main_turns(recording: Recording) -> Rows:
    """The turns of sessions that no other session started."""
    turns = recording.turns[(recording.parents < 0)[recording.turns["session"]]]
    edge = np.concatenate([[True], np.diff(turns["session"]) != 0, [True]])
    return Rows(turns, edge[:-1][: len(turns)], edge[1:][: len(turns)])


def quantities(recording: Recording) -> dict[str, Quantity]:
    """Sizes of sessions and turns, by name."""
    turns, first, last = main_turns(recording)
    context, output = turns["context_tokens"], turns["output_tokens"]
    number = np.cumsum(first) - 1
    sessions = int(first.sum())
    later = ~first
    before = np.roll(context, 1)
    sums = {
        name: np.where(np.bincount(number, x < 0, sessions) > 0, np.nan, np.bincount(number, x, sessions))
        for name, x in (("prompt", context), ("output", output))
    }
    growth = np.where((context < 0) | (before < 0), np.nan, context - before)
    subs = np.bincount(recording.turns["session"], minlength=len(recording))[recording.parents >= 0]
    busy = [np.bincount(number, np.nan_to_num(turns[name]), sessions) for name in ("tool_s", "llm_s")]
    share = np.divide(busy[0], busy[0] + busy[1], out=np.full(sessions, np.nan), where=busy[1] > 0)
    found = (
        _known("turns of a session", np.bincount(number, minlength=sessions)),
        _known("first prompt, tokens", context[first]),
        _known("context growth of a turn, tokens", growth[later]),
        _known("new tokens of a turn", turns["new_tokens"][later]),
        _known("output of a turn, tokens", output),
        _known("prompts of a session, tokens", sums["prompt"]),
        _known("output of a session, tokens", sums["output"]),
        _known("last prompt of a session, tokens", context[last]),
        _known("request, s", turns["llm_s"]),
        _known("tools after a turn, s", turns["tool_s"][~last]),
        _known("tool share of a session's busy time", share),
        Quantity("wait for a person, s", turns["human_s"][turns["human_s"] > 0], 0),
        _known("turns of a sub-agent's session", subs),
    )
    return {q.name: q for q in found}


def _known(name: str, values: Values) -> Quantity:
    """Unknown is nan among measures, -1 among counts."""
    known = values[~np.isnan(values)] if values.dtype.kind == "f" else values[values >= 0]
    return Quantity(name, known, len(values) - len(known))


def described(values: Values) -> dict[str, float]:
    """Mean, quantiles (`QUANTILES`, linear) and maximum; nan where there are no values.

    >>> described(np.array([1.0, 3.0]))["p50"]
    2.0
    """
    if not len(values):
        return dict.fromkeys(("mean", *QUANTILES, "max"), np.nan)
    levels = np.quantile(values, LEVELS).tolist()
    return {
        "mean": float(values.mean()),
        **dict(zip(QUANTILES, levels, strict=True)),
        "max": float(values.max()),
    }


def sizes(recording: Recording) -> pd.DataFrame:
    """A row for each quantity: `n` known and `unknown` values, mean, quantiles and maximum."""
    rows = [
        {"quantity": q.name, "n": len(q.values), "unknown": q.unknown, **described(q.values)}
        for q in quantities(recording).values()
    ]
    return pd.DataFrame(rows)


def turn_counts(recording: Recording) -> pd.DataFrame:
    """How many main sessions have how many turns: `turns`, `sessions`."""
    turns, sessions = np.unique(quantities(recording)["turns of a session"].values, return_counts=True)
    return pd.DataFrame({"turns": turns, "sessions": sessions})


def growth(recording: Recording) -> pd.DataFrame:
    """Quantiles of the prompt (tokens) at each `turn` (from 1), over the `sessions` that get there."""
    turns, first, _ = main_turns(recording)
    number = np.arange(len(turns)) - np.maximum.accumulate(np.where(first, np.arange(len(turns)), 0))
    known = turns["context_tokens"] >= 0
    order = np.argsort(number[known], kind="stable")
    context, number = turns["context_tokens"][known][order], number[known][order]
    rows = [
        {"turn": int(group[0]) + 1, "sessions": len(values), **described(values)}
        for group, values in zip(*(np.split(x, _ends(number)) for x in (number, context)), strict=True)
        if len(values)
    ]
    return pd.DataFrame(rows, columns=["turn", "sessions", "mean", *QUANTILES, "max"])


def _ends(ordered: Values) -> Values:
    return np.flatnonzero(np.diff(ordered)) + 1


def by_class(recording: Recording) -> Iterator[tuple[str, Values]]:
    """(class, seconds of its calls, nan: unknown): all calls first, then the classes, most frequent first."""
    calls = recording.calls
    yield "all", calls["seconds"]
    counts = np.bincount(calls["tool_class"], minlength=len(recording.classes))
    for k in np.argsort(-counts, kind="stable").tolist():
        if counts[k]:
            yield recording.classes[k], calls["seconds"][calls["tool_class"] == k]


def tools(recording: Recording) -> pd.DataFrame:
    """A row for each class of tool call: number, shares of calls and of time, quantiles of seconds."""
    rows = []
    for name, seconds in by_class(recording):
        known = seconds[~np.isnan(seconds)]
        row: dict[str, Any] = {"tool_class": name, "calls": len(seconds)}
        row["unknown_share"] = 1 - len(known) / len(seconds) if len(seconds) else np.nan
        row |= {"seconds": float(known.sum())} | described(known)
        for limit in SHORT_S:
            row[f"below_{limit:g}_s"] = float((known < limit).mean()) if len(known) else np.nan
        rows.append(row)
    table = pd.DataFrame(rows)
    for column, of in (("share_of_calls", "calls"), ("share_of_time", "seconds")):
        whole = float(table[of].iloc[0])
        table[column] = table[of] / whole if whole else np.nan
    return table


def durations(recording: Recording) -> pd.DataFrame:
    """The curve of each class: the `share` of its calls that end within `seconds`."""
    parts = []
    for name, seconds in by_class(recording):
        known = np.sort(seconds[~np.isnan(seconds)])
        if len(known):
            at = np.unique(np.linspace(0, len(known) - 1, min(CURVE, len(known))).round().astype(int))
            curve = {"tool_class": name, "seconds": known[at], "share": (at + 1) / len(known)}
            parts.append(pd.DataFrame(curve))
    none = pd.DataFrame(columns=["tool_class", "seconds", "share"])
    return pd.concat(parts, ignore_index=True) if parts else none


def fits(recording: Recording) -> pd.DataFrame:
    """The mixture of lognormals of each quantity and class, a row for each component.

    `n` values; where many end at a limit, `limit` tells it and `share_at_limit` how many: the mixture says
    how long they would be without. A component of zeros has the median 0.
    """
    known = quantities(recording)
    one = ("turns of a session", "first prompt, tokens")
    both = ("new tokens of a turn", "output of a turn, tokens")
    work = [(name, known[name].values, 1) for name in one] + [(name, known[name].values, 2) for name in both]
    work += [(f"tools, s: {name}", seconds[~np.isnan(seconds)], 2) for name, seconds in by_class(recording)]
    rows = []
    for name, values, components in work:
        limit = mixtures.limit_of(values)
        cut = float((values >= limit[0]).mean()) if limit else 0.0
        common = {"quantity": name, "n": len(values), "limit": limit[1] if limit else np.nan}
        found = mixtures.fit(values, limit[0] if limit else None, components) if len(values) else None
        for k, (weight, mu, sigma) in enumerate(found.mixture if found else ()):
            median = 0.0 if mu == mixtures.NOTHING else float(np.exp(mu))
            part = {"component": k + 1, "weight": weight, "mu": mu, "sigma": sigma, "median": median}
            rows.append({**common, "share_at_limit": cut, **part})
    columns = ["quantity", "n", "limit", "share_at_limit", "component", "weight", "mu", "sigma", "median"]
    return pd.DataFrame(rows, columns=columns)


def reuse(recording: Recording) -> dict[str, float]:
    """Shares of all prompt tokens: what a perfect cache finds, and what the provider said it found."""
    turns, first, _ = main_turns(recording)
    context = turns["context_tokens"].astype(float)
    before, said = np.roll(context, 1), np.roll(np.maximum(turns["output_tokens"], 0).astype(float), 1)
    pair = ~first & (context > 0) & (before > 0)
    kept, cached = turns["prefix_tokens"], turns["cached_tokens"]
    told = (cached >= 0) & (context > 0)
    parts = {
        "the prompt before": (np.minimum(before, context)[pair], context[context > 0]),
        "the prompt and output before": (np.minimum(before + said, context)[pair], context[context > 0]),
        "the unchanged beginning": (kept[kept >= 0], context[(kept >= 0) & (context > 0)]),
        "cached, as the provider reported": (cached[told], context[told]),
    }
    return {name: _ratio(float(part.sum()), float(of.sum())) for name, (part, of) in parts.items()}


def clustering(recording: Recording) -> dict[str, float]:
    """Whether long tool waits follow each other within a session, and long outputs."""
    turns, _, last = main_turns(recording)
    known = turns[~np.isnan(turns["tool_s"]) & ~last]
    seconds, pair = known["tool_s"], np.diff(known["session"]) == 0
    following = seconds[1:][pair & (seconds[:-1] > LONG_S)]
    told = turns[turns["output_tokens"] > 0]
    return {
        f"tools over {LONG_S:g} s": _ratio(float((seconds > LONG_S).sum()), len(seconds)),
        f"tools over {LONG_S:g} s after such": _ratio(float((following > LONG_S).sum()), len(following)),
        "correlation of log tool seconds with the turn before": _lag(
            np.log(np.maximum(seconds, LEAST_LOG_S)), pair
        ),
        "correlation of log output with the turn before": _lag(
            np.log(told["output_tokens"]), np.diff(told["session"]) == 0
        ),
    }


def _lag(values: Values, pair: Values) -> float:
    """The correlation of neighbors, where they are of one session."""
    before, after = values[:-1][pair], values[1:][pair]
    if len(before) < 2 or not before.std() or not after.std():
        return np.nan
    return float(np.corrcoef(before, after)[0, 1])


def oddities(recording: Recording) -> dict[str, float]:
    """Shares of turns and sessions of which simple models know nothing."""
    turns, first, last = main_turns(recording)
    per_turn = np.diff(recording.first_call)[(recording.parents < 0)[recording.turns["session"]]]
    shrinks = ~first & (turns["context_tokens"] < np.roll(turns["context_tokens"], 1))
    shrinks &= turns["context_tokens"] >= 0
    inner, later = int((~last).sum()), int((~first).sum())
    return {
        "turns with several tools": _ratio(float((per_turn[~last] > 1).sum()), inner),
        "turns that a person follows": _ratio(float((turns["human_s"][~last] > 0).sum()), inner),
        "turns where the prompt shrinks": _ratio(float(shrinks.sum()), later),
        "turns where the history was cut": _ratio(float((turns["flags"] & Flag.CTX_DROP > 0).sum()), later),
        "sessions of sub-agents": _ratio(float((recording.parents >= 0).sum()), len(recording)),
    }


def structure(recording: Recording) -> pd.DataFrame:
    """Shares and correlations, a row each: `about`, `quantity`, `value`."""
    groups = {
        "share of prompt tokens": reuse(recording),
        "busy and idle": clustering(recording),
        "share": oddities(recording),
    }
    rows = [(about, name, value) for about, found in groups.items() for name, value in found.items()]
    return pd.DataFrame(rows, columns=["about", "quantity", "value"])


def drift(recording: Recording) -> pd.DataFrame:
    """The share of each class among the calls in each `fifth` (1 to 5) of the main sessions' turns."""
    calls, turn_session = recording.calls, recording.turns["session"]
    calls = calls[(recording.parents < 0)[turn_session[calls["turn"]]]]
    session = turn_session[calls["turn"]]
    length = np.diff(recording.first)[session]
    fifth = (calls["turn"] - recording.first[session]) * FIFTHS // np.maximum(length, 1)
    counts = np.zeros((FIFTHS, len(recording.classes)))
    np.add.at(counts, (fifth, calls["tool_class"]), 1)
    total = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    rows = [
        (f + 1, name, float(shares[f, k]))
        for k, name in enumerate(recording.classes)
        if counts[:, k].any()
        for f in range(FIFTHS)
    ]
    return pd.DataFrame(rows, columns=["fifth", "tool_class", "share"])


def tables(recording: Recording) -> dict[str, pd.DataFrame]:
    """All tables, by name.

    >>> from tao.traces.builder import Builder
    >>> b = Builder()
    >>> call = b.call(b.turn(b.session("a"), 100, 20), "Bash", "pytest", seconds=2.0)
    >>> tables(b.finish())["tools"][["tool_class", "calls", "p50"]].values.tolist()
    [['all', 1, 2.0], ['test', 1, 2.0]]
    """
    return {
        "sizes": sizes(recording),
        "turns": turn_counts(recording),
        "growth": growth(recording),
        "tools": tools(recording),
        "durations": durations(recording),
        "fits": fits(recording),
        "structure": structure(recording),
        "drift": drift(recording),
    }


def summary(recording: Recording) -> str:
    """The tables that fit on a screen, as text."""
    main = int((recording.parents < 0).sum())
    head = f"{main:,} sessions, {len(recording) - main:,} of sub-agents, {len(recording.turns):,} turns"
    parts = [f"{head}, {len(recording.calls):,} tool calls"]
    some = ["p5", "p50", "p95", "max"]
    chosen = (
        ("sizes", sizes(recording), ["quantity", "n", "unknown", "mean", *some]),
        (
            "tools, s",
            tools(recording),
            ["tool_class", "share_of_calls", "share_of_time", "unknown_share", *some],
        ),
        ("structure", structure(recording), ["quantity", "value"]),
    )
    for title, table, columns in chosen:
        shown = table[columns].to_string(index=False, float_format=_short, na_rep="-")
        parts.append(f"{title}\n{shown}")
    return "\n\n".join(parts)


def _short(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}"


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else np.nan
