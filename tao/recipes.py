"""The parameters of a workload as JSON: only numbers and names of known classes, so fit to be published."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from tao import checks
from tao.checks import InputError, shown
from tao.commands import COMMAND_CLASSES, TOOL_CLASSES
from tao.workload_params import Clipped, Mixture, Recipe
from tao.workloads import MAX_TASKS, MAX_TOOL_S

SCHEMA = 1
MAX_TOKENS = 2**30  # ours: longer than any context
MAX_TURNS, MAX_SHAPE = 100_000, 30.0  # ours: far beyond any agent; keeps exp() of a draw finite
CLASSES = frozenset({*COMMAND_CLASSES.values(), *TOOL_CLASSES.values(), "other"} - {""})
"""The classes that a recipe may name; calls of other classes count as "other"."""


def to_json(recipe: Recipe) -> str:
    """The parameters as JSON text: numbers and names of classes; `from_json` gives back equal ones.

    >>> from tao.workload_params import RECIPES
    >>> from_json(to_json(RECIPES["swe-lite"])) == RECIPES["swe-lite"]
    True
    """
    return json.dumps({"schema": SCHEMA, **asdict(checked(recipe))}, indent=1, allow_nan=False)


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
        return checked(_built(data))
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


def checked(recipe: Recipe) -> Recipe:
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
