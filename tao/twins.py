"""A synthetic twin of a recording: parameters that tell nothing but numbers, to publish instead of logs.

`fit` finds the parameters, `tao.recipes` has them as JSON, `twin` draws sessions from them, and
`goodness` tells how near the twin comes and what it does not reproduce.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tao import mixtures, statistics
from tao.checks import InputError
from tao.recipes import CLASSES, checked
from tao.statistics import QUANTILES, Quantity, main_turns, quantities
from tao.traces.recording import CALL, TURN, Recording
from tao.workload_params import STAND_IN_SLEEP_S, STAND_IN_TIMEOUT_S, STAND_IN_TOOLS, Clipped, Mixture, Recipe
from tao.workloads import MAX_TASKS, Workload, generate

Values = npt.NDArray[Any]

FEWEST_SESSIONS, FEWEST_TURNS = 10, 100  # ours: fewer give no shape
FEWEST_CALLS = 10  # ours: of a class, for a shape of its own
MOST_UNKNOWN = 0.5  # ours: of the turns; with more, those that tell may be special
COMPONENTS = 3  # ours: at most; with two, short times with a long tail are off by up to 0.15 (ks)
SLEEPS = 20  # ours: how many different sleeps a recipe tells
DIGITS = 6
CLOSE, TWIN_SESSIONS = 0.1, 300  # ours: a distance that still looks alike; fewer sessions are a noisy twin


def fit(recording: Recording) -> Recipe:
    """The parameters of sessions like those recorded; sub-agents, people's waits and unknown times left out.

    A class of tools of which fewer than 10 times are known gets a stand-in (`tao.workload_params`). Raises
    `InputError` where sessions or turns are too few, or their tokens unknown.

    >>> from tao.workloads import WORKLOADS
    >>> found = fit(recorded(WORKLOADS["swe-lite"](tasks=100)))
    >>> round(found.turns.mu, 1), round(found.classes["test"], 1), found.timeout_s
    (3.6, 0.1, 60.0)
    """
    turns, first, _ = main_turns(recording)
    _check_enough(turns, first)
    known = quantities(recording)
    prompts = known["first prompt, tokens"].values
    shared = _shared(turns["cached_tokens"][first], int(prompts.min()))
    new, output = known["new tokens of a turn"].values, known["output of a turn, tokens"].values
    kinds, seconds, asked = _tool_turns(recording)
    shares = {str(k): round(float((kinds == k).mean()), DIGITS) for k in sorted(set(kinds))}
    shares = shares or {"other": 1.0}  # nobody told what ran
    sleeps = asked[(kinds == "sleep") & ~np.isnan(asked)]
    if not len(sleeps):
        sleeps = np.array(STAND_IN_SLEEP_S)
    levels = (np.arange(min(SLEEPS, len(sleeps))) + 0.5) / min(SLEEPS, len(sleeps))
    tools, timeout_s = _tools(kinds, seconds, [name for name in shares if name != "sleep"])
    return Recipe(
        sessions=min(int(first.sum()), MAX_TASKS),
        turns=_clipped(known["turns of a session"].values),
        shared_prompt_tokens=shared,
        first_prompt=_clipped(prompts - shared),
        new_tokens=_mixture(new, mixtures.limit_of(new)),
        new_cap=max(int(new.max()), 1),
        output_tokens=_mixture(output, mixtures.limit_of(output)),
        output_cap=max(int(output.max()), 1),
        output_scale=1.0,
        classes=shares,
        tools=tools,
        sleep_choices_s=tuple(np.quantile(sleeps, levels, method="inverted_cdf").tolist()),
        timeout_s=timeout_s,
    )


def twin(recipe: Recipe, seed: int = 0, tasks: int | None = None) -> Workload:
    """Sessions drawn from fitted parameters, as many as were recorded unless `tasks` says how many.

    >>> from tao.workload_params import RECIPES
    >>> len(twin(RECIPES["swe-lite"], tasks=3).tasks)
    3
    """
    return generate("twin", checked(recipe), seed, tasks)


def recorded(workload: Workload) -> Recording:
    """A workload as a recording of it would be, without times of requests.

    >>> from tao.workloads import Task, Turn
    >>> work = Workload("w", (Task("a", (Turn(10, 0, 5, "bash", "test", 2.0), Turn(20, 15, 5))),), 0)
    >>> recorded(work).turns["new_tokens"].tolist()
    [10, 5]
    """
    script, of_task = workload.script, np.diff(workload.script.first)
    turns = np.zeros(len(script.prompt), TURN)
    turns["session"] = np.repeat(np.arange(len(of_task)), of_task)
    turns["context_tokens"], turns["prefix_tokens"] = script.prompt, script.prefix
    turns["new_tokens"] = script.prompt - script.prefix
    turns["output_tokens"], turns["cached_tokens"] = script.output, -1
    for name in ("start_s", "llm_s", "human_s", "tool_s"):
        turns[name] = np.nan
    made = [turn for task in workload.tasks for turn in task.turns]
    calling = np.array([k for k, turn in enumerate(made) if turn.tool], np.int64)
    calls = np.zeros(len(calling), CALL)
    calls["turn"] = calling
    names: list[tuple[str, ...]] = []
    for column, texts in (
        ("tool", [made[k].tool for k in calling]),
        ("tool_class", [made[k].tool_class or "other" for k in calling]),
    ):
        number = {name: k for k, name in enumerate(dict.fromkeys(texts))}
        calls[column] = [number[text] for text in texts]
        names.append(tuple(number))
    calls["seconds"] = turns["tool_s"][calling] = [made[k].tool_s for k in calling]
    calls["asked_s"] = [np.nan if made[k].sleep_s is None else made[k].sleep_s for k in calling]
    parents = np.full(len(of_task), -1, np.int32)
    sessions = tuple(f"s{k + 1}" for k in range(len(of_task)))
    return Recording(sessions, parents, turns, calls, names[0], names[1])


def _check_enough(turns: Values, first: Values) -> None:
    sessions, told = int(first.sum()), (turns["context_tokens"] > 0) & (turns["output_tokens"] >= 0)
    if sessions < FEWEST_SESSIONS or len(turns) < FEWEST_TURNS:
        raise InputError(
            f"the recording has {sessions:,} sessions and {len(turns):,} turns (sub-agents aside); a fit "
            f"needs {FEWEST_SESSIONS} sessions and {FEWEST_TURNS} turns, import more logs"
        )
    if (
        told.mean() < 1 - MOST_UNKNOWN
        or not (told & first).any()
        or not (turns["new_tokens"][~first] >= 0).any()
    ):
        raise InputError(
            f"the recording tells the tokens of {int(told.sum()):,} of {len(turns):,} turns; a fit needs "
            f"those of {1 - MOST_UNKNOWN:.0%} of the turns, import logs that tell them"
        )


def _shared(cached: Values, least: int) -> int:
    """The part of first prompts that is common to all: what providers found in most of them, at least."""
    found = cached[cached > 0]
    if 2 * len(found) < len(cached):
        return 0
    return min(int(np.quantile(found, 0.05, method="lower")), least - 1)


def _clipped(values: Values) -> Clipped:
    limit = mixtures.limit_of(values)
    ((_, mu, sigma),) = mixtures.fit(values, limit[0] if limit else None, 1).mixture
    return Clipped(round(mu, DIGITS), round(sigma, DIGITS), int(values.min()), int(values.max()))


def _mixture(values: Values, limit: tuple[float, float] | None) -> Mixture:
    found = mixtures.fit(values, limit[0] if limit else None, COMPONENTS).mixture
    return tuple((round(w, DIGITS), round(mu, DIGITS), round(sigma, DIGITS)) for w, mu, sigma in found)


def _tool_turns(recording: Recording) -> tuple[Values, Values, Values]:
    """Of each turn that tools follow, in main sessions: class (of the longest call), seconds, sleep asked."""
    calls = recording.calls
    names = np.array([c if c in CLASSES | {"human"} else "other" for c in recording.classes] or ["other"])
    calls = calls[names[calls["tool_class"]] != "human"]
    calls = calls[np.lexsort((-np.nan_to_num(calls["seconds"], nan=-1.0), calls["turn"]))]
    longest = calls[np.concatenate([[True], np.diff(calls["turn"]) > 0])[: len(calls)]]
    session = recording.turns["session"]
    final = np.concatenate([np.diff(session) != 0, [True]])[: len(session)]
    longest = longest[((recording.parents < 0)[session] & ~final)[longest["turn"]]]
    seconds = recording.turns["tool_s"][longest["turn"]]
    return names[longest["tool_class"]], seconds, longest["asked_s"]


def _tools(kinds: Values, seconds: Values, classes: list[str]) -> tuple[dict[str, Mixture], float]:
    """The mixture of each class, and the timeout."""
    known = seconds[~np.isnan(seconds)]
    limit = mixtures.limit_of(known)
    found = {}
    for name in classes:
        own = seconds[(kinds == name) & ~np.isnan(seconds)]
        if len(own) >= FEWEST_CALLS:
            found[name] = _mixture(own, limit)
        else:
            found[name] = STAND_IN_TOOLS.get(name, STAND_IN_TOOLS[""])
    if len(known) < FEWEST_CALLS:
        return found, STAND_IN_TIMEOUT_S
    return found, round(limit[1] if limit else float(known.max()), DIGITS)


# Goodness of fit


def goodness(recording: Recording, recipe: Recipe, seed: int = 0) -> pd.DataFrame:
    """How near a twin comes, quantity by quantity: `ks`, quantiles of both, and a `verdict`.

    `ks` is the distance of Kolmogorov and Smirnov, `ks_chance` what chance alone exceeds in one of 20 cases;
    "not told apart" is a greater distance than "close" that is within chance. Below stand shares and
    correlations, as means, of what the twin does not reproduce.
    """
    count = min(max(recipe.sessions, TWIN_SESSIONS), MAX_TASKS)
    other = recorded(twin(recipe, seed, count))
    pairs = zip(_compared(recording), _compared(other, recording), strict=True)
    rows = [_compared_row(mine, theirs) for mine, theirs in pairs]
    mine, theirs = (_structure(r) for r in (recording, other))
    for name, value in mine.items():
        alike = abs(value - theirs[name]) < statistics.ALIKE
        unknown = not (isfinite(value) and isfinite(theirs[name]))
        verdict = "unknown" if unknown else "alike" if alike else "not reproduced"
        rows.append({"quantity": name, "recorded_mean": value, "twin_mean": theirs[name], "verdict": verdict})
    return pd.DataFrame(rows)


_SIZES = (
    *("turns of a session", "first prompt, tokens", "new tokens of a turn", "output of a turn, tokens"),
    *("last prompt of a session, tokens", "prompts of a session, tokens", "tools after a turn, s"),
)


def _compared(recording: Recording, like: Recording | None = None) -> list[Quantity]:
    """The sizes that a twin should reproduce, and the tool times of each class that `like` has."""
    found = [quantities(recording)[name] for name in _SIZES]
    kinds, seconds, _ = _tool_turns(recording)
    for name in sorted(set(_tool_turns(like or recording)[0])):
        own = seconds[kinds == name]
        known = own[~np.isnan(own)]
        found.append(Quantity(f"tools after a turn, s: {name}", known, len(own) - len(known)))
    return found


def _compared_row(mine: Quantity, theirs: Quantity) -> dict[str, Any]:
    row: dict[str, Any] = {"quantity": mine.name, "n": len(mine.values), "unknown": mine.unknown}
    for side, values in (("recorded", mine.values), ("twin", theirs.values)):
        told = statistics.described(values)
        row |= {f"{side}_{name}": told[name] for name in ("mean", *QUANTILES)}
    n, m = len(mine.values), len(theirs.values)
    if n < FEWEST_CALLS or not m:
        return row | {"verdict": "too few to tell" if n else "not recorded"}
    row["ks"] = mixtures.ks_distance(mine.values, theirs.values)
    row["ks_chance"] = 1.358 * ((n + m) / (n * m)) ** 0.5  # Kolmogorov's 95 % quantile, for large n
    near = "close" if row["ks"] <= CLOSE else "not told apart" if row["ks"] <= row["ks_chance"] else "differs"
    return row | {"verdict": near}


def _structure(recording: Recording) -> dict[str, float]:
    table = statistics.drift(recording).pivot(index="tool_class", columns="fifth", values="share")
    moved = float((table[statistics.FIFTHS] - table[1]).abs().sum() / 2) if len(table) else np.nan
    cluster = statistics.clustering(recording)
    often, after, tools, outputs = cluster.values()
    return {
        "long tools follow long ones: added chance": after - often,
        "correlation of log tool seconds with the turn before": tools,
        "correlation of log output with the turn before": outputs,
        "share of tool classes that changes from the first to the last fifth": moved,
        **statistics.oddities(recording),
    }
