"""A synthetic twin of a recording: parameters that tell nothing but numbers, to publish instead of logs.

`fit` finds the parameters, `to_json` and `from_json` carry them, `twin` draws sessions from them, and
`goodness` tells how near the twin comes and what it does not reproduce.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tao import checks, mixtures, statistics
from tao.checks import InputError, shown
from tao.commands import COMMAND_CLASSES, TOOL_CLASSES
from tao.statistics import QUANTILES, Quantity, main_turns, quantities
from tao.traces.recording import CALL, MAX_TOKENS, TURN, Recording
from tao.workload_params import STAND_IN_SLEEP_S, STAND_IN_TIMEOUT_S, STAND_IN_TOOLS, Clipped, Mixture, Recipe
from tao.workloads import MAX_TASKS, MAX_TOOL_S, Workload, generate

Values = npt.NDArray[Any]

SCHEMA = 1
CLASSES = frozenset({*COMMAND_CLASSES.values(), *TOOL_CLASSES.values(), "other"} - {""})
"""The classes that a recipe may name; calls of other classes count as "other"."""
FEWEST_SESSIONS, FEWEST_TURNS = 10, 100  # ours: fewer give no shape
FEWEST_CALLS = 10  # ours: of a class, for a shape of its own
MOST_UNKNOWN = 0.5  # ours: of the turns; with more, those that tell may be special
COMPONENTS = 3  # ours: at most; with two, short times with a long tail are off by up to 0.15 (ks)
SLEEPS = 20  # ours: how many different sleeps a recipe tells
DIGITS = 6
MAX_TURNS, MAX_SHAPE = 100_000, 30.0  # ours: far beyond any agent; keeps exp() of a draw finite
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
    return generate("twin", _checked(recipe), seed, tasks)


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


# Parameters as JSON


def to_json(recipe: Recipe) -> str:
    """The parameters as JSON text: numbers and names of classes; `from_json` gives back equal ones.

    >>> from tao.workload_params import RECIPES
    >>> from_json(to_json(RECIPES["swe-lite"])) == RECIPES["swe-lite"]
    True
    """
    return json.dumps({"schema": SCHEMA, **asdict(_checked(recipe))}, indent=1, allow_nan=False)


def from_json(text: str, source: str = "parameters") -> Recipe:
    """Parameters from JSON text; raises `InputError` naming `source` and what is wrong with it."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{source}: not valid JSON; is the file complete?") from None
    names = [f.name for f in fields(Recipe)]
    if not isinstance(data, dict) or data.keys() - {"schema"} != set(names):
        keys = data.keys() if isinstance(data, dict) else ()
        missing, extra = (
            [n for n in names if n not in keys],
            [shown(k) for k in keys if k not in {*names, "schema"}],
        )
        raise InputError(
            f"{source}: must be an object with {', '.join(names)}; missing: {checks.listing(missing)}, "
            f"unknown: {checks.listing(extra)}"
        )
    if data.pop("schema", SCHEMA) != SCHEMA:
        raise InputError(f"{source}: of another schema; this version of tao reads schema {SCHEMA}")
    try:
        return _checked(_built(data))
    except InputError as e:
        raise InputError(f"{source}: {e}") from None


def _built(data: dict[str, Any]) -> Recipe:
    """The same in the types of a recipe, whatever is in them."""
    for name in ("turns", "first_prompt"):
        if not isinstance(data[name], dict) or data[name].keys() != {f.name for f in fields(Clipped)}:
            raise InputError(f"{name} is {shown(data[name])}; it must be an object with mu, sigma, lo and hi")
        data[name] = Clipped(**data[name])
    for name in ("classes", "tools"):
        if not isinstance(data[name], dict):
            raise InputError(f"{name} is {shown(data[name])}; it must be an object, a key for each class")
    data["tools"] = {name: _triples(m, f"tools: {name}") for name, m in data["tools"].items()}
    for name in ("new_tokens", "output_tokens"):
        data[name] = _triples(data[name], name)
    if not isinstance(data["sleep_choices_s"], list):
        raise InputError(f"sleep_choices_s is {shown(data['sleep_choices_s'])}; it must be a list of seconds")
    return Recipe(**data | {"sleep_choices_s": tuple(data["sleep_choices_s"])})


def _triples(x: Any, what: str) -> Mixture:
    if not isinstance(x, list) or not all(isinstance(part, list) and len(part) == 3 for part in x):
        raise InputError(f"{what} is {shown(x)}; it must be a list of [weight, mu, sigma]")
    return tuple((part[0], part[1], part[2]) for part in x)


def _checked(recipe: Recipe) -> Recipe:
    """The recipe, refused where it cannot be drawn from."""
    checks.whole(recipe.sessions, "sessions", 1, MAX_TASKS)
    for name, most in (("turns", MAX_TURNS), ("first_prompt", MAX_TOKENS)):
        clipped: Clipped = getattr(recipe, name)
        _lognormal(clipped.mu, clipped.sigma, name)
        checks.whole(clipped.hi, f"{name}: hi", checks.whole(clipped.lo, f"{name}: lo", 1, most), most)
    checks.whole(recipe.shared_prompt_tokens, "shared_prompt_tokens", 0, MAX_TOKENS)
    for name in ("new_cap", "output_cap"):
        checks.whole(getattr(recipe, name), name, 1, MAX_TOKENS)
    checks.positive(recipe.output_scale, "output_scale")
    drawn = {"new_tokens": recipe.new_tokens, "output_tokens": recipe.output_tokens}
    for what, mixture in {**drawn, **{f"tools: {n}": m for n, m in recipe.tools.items()}}.items():
        _weights([part[0] for part in mixture], what)
        for _, mu, sigma in mixture:
            _lognormal(mu, sigma, what)
    _weights(list(recipe.classes.values()), "classes")
    for name in (*recipe.classes, *recipe.tools):
        if name not in CLASSES:
            raise InputError(
                f"{shown(name)} is no class of tools; it must be one of {', '.join(sorted(CLASSES))}"
            )
    if missing := [name for name in recipe.classes if name not in {*recipe.tools, "sleep"}]:
        raise InputError(f"classes has {missing[0]!r} but tools does not; give its mixture")
    if "sleep" in recipe.classes and not recipe.sleep_choices_s:
        raise InputError("classes has 'sleep' but sleep_choices_s is empty; give at least one")
    for seconds in (recipe.timeout_s, *recipe.sleep_choices_s):
        checks.at_least_zero(seconds, "timeout_s or sleep_choices_s")
        if seconds > MAX_TOOL_S:
            raise InputError(
                f"timeout_s or sleep_choices_s is {seconds}; at most {MAX_TOOL_S:,.0f} s are allowed"
            )
    return recipe


def _lognormal(mu: Any, sigma: Any, what: str) -> None:
    checks.finite(mu, f"{what}: mu")
    checks.at_least_zero(sigma, f"{what}: sigma")
    if abs(mu) > MAX_SHAPE or sigma > MAX_SHAPE / 3:
        raise InputError(
            f"{what}: mu {mu}, sigma {sigma}; at most {MAX_SHAPE:g} and {MAX_SHAPE / 3:g} are allowed"
        )


def _weights(weights: list[Any], what: str) -> None:
    for weight in weights:
        checks.at_least_zero(weight, f"{what}: weight")
    if not sum(weights) > 0:
        raise InputError(f"{what}: the weights add up to 0; give at least one that is more")
