"""What a run amounts to: its metrics, who waited, and what the memory of its nodes was used for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tao.assign import OK
from tao.history import FALLBACK, PAUSED, PLANNED, STATES, VERDICT, History, TurnRow
from tao.profiles import PS_PER_S

Floats = npt.NDArray[np.float64]

METRICS = {
    "task_latency_s": "mean seconds from a worker taking a session to its last answer, tools included; "
    "a wait for a person ends one task and is in none",
    "ttft_s": "mean seconds from a request's arrival at the scheduler to its first token, pool wait included",
    "ttft_engine_s": "mean seconds from a request's arrival at the engine to its first token",
    "pool_wait_s": "mean seconds a request waits in the pool before it goes to an engine",
    "wait_warm_s": "mean seconds from a request's arrival to its first step at an engine, where half or more "
    "of what repeats its conversation was then found in the cache",
    "wait_cold_s": "the same for all other requests, the first of each session among them",
    "tool_end_to_first_token_s": "mean seconds from a tool's return to the first token after it",
    "decode_tok_s": "output tokens per second of all nodes in the steady window: from the first session's "
    "end to the last session's start (the whole run if there is no such window)",
    "decode_tok_s_makespan": "output tokens per second of all nodes over the whole run",
    "total_completion_s": "seconds until the last session is done",
    "prefix_hit_rate": "share of prompt tokens found in the engine's cache (recomputation after preemption "
    "does not count as a prompt; null, as for all that needs hits: a live server did not tell them)",
    "prefix_hit_rate_with_recompute": "share of prompt tokens and tokens computed again after preemption "
    "that did not have to be computed; what a preempted request finds of its own is no hit",
    "credit_realized": "share of the cache credit promised at placements that the engine then found in its "
    "cache (null: nothing was promised)",
    "pauses": "sessions sent back to the waiting pool, per run",
    "preemptions": "requests sent back to an engine's queue because its cache was full, per run",
    "migrations": "turns that ran on another node than the turn before, per run",
    "node_imbalance": "mean number of requests at the busiest engine over the mean of all engines, minus 1",
    "planner_calls": "plans made, per run",
    "plans_per_s": "plans per simulated second",
    "plan_states": "mean states of the search per plan (null: no planner was asked)",
    "fallback_share": "share of plans that bfd placed instead of the planner asked for",
    "dropped_share": "share of placements proposed that no longer held when the plan was ready",
    "capacity_over_live": "KV capacity of all nodes over the mean context tokens of all running sessions",
}
"""Every metric of `measure`, with its meaning and unit."""

TERMS = {
    "decode": "contexts of requests that are answering",
    "prefill": "prompts being computed, as far as their tokens are new",
    "recompute": "prompts being computed, as far as their tokens had been computed before and were lost",
    "caching": "idle prefixes that a later turn found, until it began; the prefix that all sessions share",
    "unused": "the rest: free room, and idle prefixes that nobody found again",
}
"""The terms of `costs`."""
_CACHING, _UNUSED = 3, 4


COMPARED = "task_latency_s", "ttft_s", "prefix_hit_rate"
"""What a live run and its simulation are compared in."""


def measure(history: History) -> dict[str, float | None]:
    """All `METRICS` of one run; None where there is nothing to average, or a server did not tell.

    >>> import tao
    >>> values = measure(tao.simulate("swe-lite", "sticky", nodes=1, workers=1, tasks=1))
    >>> values["preemptions"], values["plan_states"]
    (0.0, None)
    """
    turns = _columns(history)
    values = _times(history, turns) | _tokens(history, turns) | _decisions(history)
    return {name: values[name] for name in METRICS}


def _columns(history: History) -> Any:
    """A `TurnRow` whose fields are whole columns: int64[turns] each."""
    columns: Any = np.ascontiguousarray(history.turn_rows.array.T)
    return TurnRow(*columns)


def _times(history: History, turns: Any) -> dict[str, float | None]:
    ttft, wait = turns.first_token_ps - turns.arrived_ps, turns.scheduled_ps - turns.arrived_ps
    warm, known = _warm(turns), bool(_known(turns).all())
    lasted = [history.finished_ps[i] - history.started_ps[i] for i in history.finished_ps]
    people_ps = _people_ps(history, turns)
    at_engines = np.bincount(
        turns.node, turns.finished_ps - turns.submitted_ps, minlength=len(history.node_ids)
    )
    uneven = _ratio(float(at_engines.max()), float(at_engines.mean()))
    return {
        "task_latency_s": _mean_s(np.array([*lasted, *-people_ps])),
        "ttft_s": _mean_s(ttft),
        "ttft_engine_s": _mean_s(turns.first_token_ps - turns.submitted_ps),
        "pool_wait_s": _mean_s(turns.submitted_ps - turns.arrived_ps),
        "wait_warm_s": _mean_s(wait[warm]) if known else None,
        "wait_cold_s": _mean_s(wait[~warm]) if known else None,
        "tool_end_to_first_token_s": _mean_s(ttft[turns.turn > 0]),
        "total_completion_s": history.end_ps / PS_PER_S,
        "node_imbalance": None if uneven is None else uneven - 1.0,
    }


def _people_ps(history: History, turns: Any) -> Any:
    """How long sessions that are done have waited for people, int64[waits] in picoseconds."""
    ends = history.job_ends
    if ends is None or not len(ends):
        return np.zeros(0, np.int64)
    width = int(max(turns.turn.max(initial=0), ends[:, 1].max())) + 1
    asked = np.isin(turns.session * width + turns.turn, ends[:, 0] * width + ends[:, 1])
    asked &= np.isin(turns.session, list(history.finished_ps))
    return (turns.tool_end_ps - turns.finished_ps)[asked]


def _tokens(history: History, turns: Any) -> dict[str, float | None]:
    prompt = float(turns.prompt_tokens.sum())
    hits = None if (turns.hit_tokens < 0).any() else float(turns.hit_tokens.sum())
    preempted = None if (turns.preemptions < 0).any() else float(turns.preemptions.sum())
    with_recompute = None if preempted is None else hits
    promised = np.maximum(turns.promised_tokens, 0)
    answered = turns.prompt_tokens + turns.output_tokens
    live = turns.prompt_tokens * (turns.finished_ps - turns.arrived_ps).astype(float)
    live += answered * (turns.tool_end_ps - turns.finished_ps).astype(float)
    by_session = np.argsort(turns.session, kind="stable")
    session, node = turns.session[by_session], turns.node[by_session]
    capacity = float(history.settings["nodes"] * history.settings["capacity_tokens"])
    return {
        "decode_tok_s": _steady_rate(history, turns),
        "decode_tok_s_makespan": _ratio(float(turns.output_tokens.sum()) * PS_PER_S, history.end_ps),
        "prefix_hit_rate": _ratio(hits, prompt),
        "prefix_hit_rate_with_recompute": _ratio(
            with_recompute, prompt + float(turns.recomputed_tokens.sum())
        ),
        "credit_realized": _ratio(_found(turns, promised), float(promised.sum())),
        "preemptions": preempted,
        "migrations": float(((session[1:] == session[:-1]) & (node[1:] != node[:-1])).sum()),
        "capacity_over_live": _ratio(capacity * history.end_ps, float(live.sum())),
    }


def _decisions(history: History) -> dict[str, float | None]:
    decisions, verdicts = history.decision_rows.array, history.move_rows.array[:, VERDICT]
    plans = decisions[decisions[:, PLANNED] == 1]
    count, proposed = float(len(plans)), float((verdicts != PAUSED).sum())
    return {
        "pauses": float((verdicts == PAUSED).sum()),
        "planner_calls": count,
        "plans_per_s": _ratio(count * PS_PER_S, history.end_ps),
        "plan_states": _ratio(float(plans[:, STATES].sum()), count),
        "fallback_share": _ratio(float((plans[:, FALLBACK] != 0).sum()), count),
        "dropped_share": _ratio(float(((verdicts != PAUSED) & (verdicts != OK)).sum()), proposed),
    }


def _found(turns: Any, promised: Any) -> float | None:
    """What was found of the credit promised; None if a server did not tell."""
    told = (turns.hit_tokens >= 0) | (promised == 0)
    return float(np.minimum(turns.hit_tokens, promised)[promised > 0].sum()) if told.all() else None


def _known(turns: Any) -> npt.NDArray[np.bool_]:
    """Of which requests one can say whether they were warm: the server told, or there was nothing to find."""
    known: npt.NDArray[np.bool_] = (turns.hit_tokens >= 0) | (turns.reusable_tokens == 0)
    return known


def _warm(turns: Any) -> npt.NDArray[np.bool_]:
    """Which requests found half or more of what repeats their conversation."""
    reusable = turns.reusable_tokens
    warm: npt.NDArray[np.bool_] = (reusable > 0) & (2 * turns.hit_tokens >= reusable)
    return warm


def steady_window(history: History) -> tuple[int, int]:
    """From the first session's end to the last one's start (picoseconds); the whole run if that is empty."""
    begin = min(history.finished_ps.values(), default=0)
    end = max(history.started_ps.values(), default=0)
    return (begin, end) if begin < end else (0, history.end_ps)


def _steady_rate(history: History, turns: Any) -> float | None:
    """Output tokens in the steady window: a turn's first at its time, the rest evenly until its end."""
    begin, end = steady_window(history)
    first, last = turns.first_token_ps, turns.finished_ps
    inside = np.minimum(last, end) - np.maximum(first, begin)
    share = np.maximum(inside, 0) / np.maximum(last - first, 1)
    tokens = ((begin <= first) & (first <= end)) + (turns.output_tokens - 1) * share
    return _ratio(float(tokens.sum()) * PS_PER_S, end - begin)


def _mean_s(times_ps: Any) -> float | None:
    return float(times_ps.mean()) / PS_PER_S if len(times_ps) else None


def _ratio(a: float | None, b: float) -> float | None:
    return a / b if b and a is not None else None


def waits(history: History) -> pd.DataFrame:
    """Who waited: one row per tenth of context size and warm or cold, to see who starves.

    `decile` 1 holds the tenth of all turns with the smallest prompts (up to `most_tokens`; equal prompts are
    in the same one). `cache` is "warm" or "cold" as in `METRICS`, or "unknown" where a live server did not
    tell. Seconds of wait in pool and engine queue (`wait_...`) and until the first token (`ttft_...`), each
    as mean and 95th percentile. Rows without turns are left out.

    >>> import tao
    >>> table = waits(tao.simulate("swe-lite", "tao", nodes=1, workers=4, tasks=4))
    >>> sorted(set(table["cache"])), int(table["decile"].max())
    (['cold', 'warm'], 10)
    """
    turns = _columns(history)
    prompt = turns.prompt_tokens
    edges = np.quantile(prompt, np.arange(1, 11) / 10, method="inverted_cdf") if len(prompt) else prompt
    decile = np.searchsorted(edges, prompt)
    rows = pd.DataFrame(
        {
            "decile": decile + 1,
            "most_tokens": edges[decile],
            "cache": np.where(_known(turns), np.where(_warm(turns), "warm", "cold"), "unknown"),
            "wait": (turns.scheduled_ps - turns.arrived_ps) / PS_PER_S,
            "ttft": (turns.first_token_ps - turns.arrived_ps) / PS_PER_S,
        }
    )
    groups = rows.groupby(["decile", "most_tokens", "cache"])
    table = groups.agg(
        turns=("wait", "size"),
        wait_mean_s=("wait", "mean"),
        wait_p95_s=("wait", _p95),
        ttft_mean_s=("ttft", "mean"),
        ttft_p95_s=("ttft", _p95),
    )
    return table.reset_index()


def _p95(values: pd.Series[float]) -> float:
    return float(np.quantile(values.to_numpy(float), 0.95))


def costs(history: History) -> pd.DataFrame:
    """What the KV memory of all nodes was used for: token-seconds of each of `TERMS`, and their share.

    Space times time as ThunderAgent's paper counts it; its last three terms, recompute, unused and caching,
    are what a scheduler can lower. The turn table tells when each request was computed and answered, not
    how full a node was, so: a request holds its whole prompt from its first step, and half of its answer
    while it answers; what a preemption costs is taken at the run's mean speed of prefill. Where that adds
    up to more than a node holds (only with preemptions, or prompts of several steps) all of it is scaled
    down, moment by moment. So no term is negative and the five sum to capacity x nodes x seconds. What
    requests hold is then right to half a percent of all memory; where many are preempted it is up to six
    percent too high, as their wait for room counts as held. All is nan where a live server did not tell
    what it had cached.

    >>> import tao
    >>> table = costs(tao.simulate("swe-lite", "tao", nodes=1, workers=2, tasks=2))
    >>> list(table["term"]) == list(TERMS), round(float(table["share"].sum()), 12)
    (True, 1.0)
    """
    turns = _columns(history)
    if (turns.hit_tokens < 0).any():
        return pd.DataFrame({"term": list(TERMS), "token_s": np.nan, "share": np.nan})
    shared = int(turns.hit_tokens[turns.turn == 0].max(initial=0))  # else a first turn finds nothing
    capacity = history.settings["capacity_tokens"]
    used = np.zeros(len(TERMS))
    for b in range(len(history.node_ids)):
        here = TurnRow(*(column[turns.node == b] for column in turns))
        used += _held(_spans(here, shared), capacity - shared)
        used[_CACHING] += shared * history.end_ps
    total = float(capacity * len(history.node_ids) * history.end_ps)
    used[_UNUSED] = total - used.sum()
    token_s = used / PS_PER_S
    return pd.DataFrame({"term": list(TERMS), "token_s": token_s, "share": used / total if total else np.nan})


def _spans(turns: Any, shared: int) -> list[tuple[Any, Any, Any]]:
    """For each term but the last: (begin_ps, end_ps, tokens) of everything that one node held for it."""
    prompt, first, end = np.maximum(turns.prompt_tokens - shared, 0), turns.first_token_ps, turns.finished_ps
    computed = np.maximum(turns.prompt_tokens - turns.hit_tokens, 1)
    lost = np.clip(turns.reusable_tokens - turns.hit_tokens, 0, computed) / computed
    prefill_ps = first - turns.scheduled_ps
    pace = prefill_ps.sum(dtype=float) / max(computed.sum(), 1)
    again = np.maximum(
        end - np.maximum(turns.recomputed_tokens, 0) * pace, first
    )  # the answer counts until here
    context = prompt + turns.output_tokens / 2
    order = np.lexsort((turns.turn, turns.session))
    before, after = order[:-1], order[1:]
    found = turns.session[before] == turns.session[after]
    before, after = before[found], after[found]
    idle = np.maximum(turns.hit_tokens[after] - shared, 0)
    return [
        (first, again, context),
        (turns.scheduled_ps, first, prompt * (1 - lost)),
        (
            np.concatenate([turns.scheduled_ps, again]),
            np.concatenate([first, end]),
            np.concatenate([prompt * lost, context]),
        ),
        (end[before], turns.scheduled_ps[after], idle),
    ]


def _held(spans: list[tuple[Any, Any, Any]], capacity: float) -> Floats:
    """Token-picoseconds per term, never more than the capacity at any moment: float64[terms]."""
    at = np.concatenate([edge for begin, end, _ in spans for edge in (begin, end)])
    change = np.zeros((len(at), len(TERMS)))
    row = 0
    for term, (begin, _, tokens) in enumerate(spans):
        for sign in (1, -1):
            change[row : row + len(begin), term] = sign * tokens
            row += len(begin)
    order = np.argsort(at, kind="stable")
    held = np.maximum(change[order].cumsum(axis=0), 0.0)[:-1]
    scale = np.minimum(1.0, capacity / np.maximum(held.sum(axis=1), 1.0))
    used: Floats = (np.diff(at[order]) * scale) @ held if len(at) else np.zeros(len(TERMS))
    return used
