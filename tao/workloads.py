"""What the agents will ask for: sessions as turns of tokens and tool times, recorded or drawn.

A workload is fixed before a run starts. The seeded ones draw everything about session k from
(seed, k) alone, so that policies, and runs of different length, see the same sessions. `snapshots` draws
single moments instead, for planners (`tao.families`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, pairwise
from math import exp
from typing import NamedTuple

import numpy as np

from tao import checks, readiness
from tao.checks import InputError
from tao.families import snapshots as snapshots
from tao.profiles import PS_PER_S
from tao.readiness import Floats, Ints, Kinds
from tao.workload_params import RECIPES, Clipped, Mixture, Recipe

MAX_TOOL_S = 1_000_000.0  # ours: simulated time is int64 picoseconds, which end after 106 days
HUMAN = "human"  # the tool, and its class, that stands for a person's wait: it ends a job
MAX_TASKS = 10_000  # ours: ids have four digits, so that their order is the order of drawing


@dataclass(frozen=True, slots=True)
class Turn:
    """One request and the tool call after it.

    `prompt_tokens` is the whole prompt, cached part included; its first `prefix_tokens` are the
    beginning of the previous context (prompt + output), unchanged. `tool` is empty on the final
    turn. `sleep_s` is what a `sleep` command asked for (None: there was none).
    """

    prompt_tokens: int
    prefix_tokens: int
    output_tokens: int
    tool: str = ""
    tool_class: str = ""
    tool_s: float = 0.0
    sleep_s: float | None = None

    def __post_init__(self) -> None:
        checks.whole(self.prompt_tokens, "turn: prompt_tokens", 1)
        checks.whole(self.prefix_tokens, "turn: prefix_tokens", 0)
        checks.whole(self.output_tokens, "turn: output_tokens", 1)
        checks.text(self.tool, "turn: tool")
        checks.text(self.tool_class, "turn: tool_class")
        check_seconds(self.tool_s, "turn: tool_s")
        if self.sleep_s is not None:
            check_seconds(self.sleep_s, "turn: sleep_s")
        if self.prefix_tokens > self.prompt_tokens:
            raise InputError(
                f"turn: prefix_tokens {self.prefix_tokens:,} is more than prompt_tokens "
                f"{self.prompt_tokens:,}; the prefix is a part of the prompt, lower it"
            )
        if not self.tool and (self.tool_class or self.tool_s or self.sleep_s is not None):
            raise InputError("turn: tool is '' but its class or time is given; name the tool")

    @property
    def context_tokens(self) -> int:
        """Prompt and output: what the session holds when this request is done."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Task:
    """All turns of one session, in order.

    >>> Task("a", (Turn(100, 0, 20, "bash", "test", 1.5), Turn(150, 120, 10))).peak_tokens
    160
    """

    id: str
    turns: tuple[Turn, ...]
    arrival_s: float = 0.0  # when it comes, for runs with `arrivals="trace"`

    def __post_init__(self) -> None:
        object.__setattr__(self, "turns", tuple(self.turns))
        checks.name(self.id, "session id")
        what = f"session {self.id!r}"
        check_seconds(self.arrival_s, f"{what}: arrival_s")
        if not self.turns:
            raise InputError(f"{what} has no turns; give it at least one or leave it out")
        if self.turns[0].prefix_tokens:
            raise InputError(f"{what}, turn 0: prefix_tokens must be 0, as nothing came before")
        for i, (before, turn) in enumerate(pairwise(self.turns)):
            if not before.tool:
                raise InputError(
                    f"{what}, turn {i}: names no tool, but only the final turn may end without one"
                )
            if turn.prefix_tokens > before.context_tokens:
                raise InputError(
                    f"{what}, turn {i + 1}: prefix_tokens {turn.prefix_tokens:,} is more than the "
                    f"{before.context_tokens:,} tokens (prompt + output) of the turn before; lower it"
                )
        if self.turns[-1].tool:
            raise InputError(
                f"{what}: its final turn calls {self.turns[-1].tool!r}; nothing follows, drop the tool"
            )

    @property
    def peak_tokens(self) -> int:
        """The largest context of the session."""
        return max(t.context_tokens for t in self.turns)


class Script(NamedTuple):
    """A workload as arrays, for n sessions and t turns: what the compiled engine plays."""

    first: Ints  # int64[n + 1], a session's first turn
    prompt: Ints  # int64[t]
    prefix: Ints
    output: Ints
    tool_ps: Ints
    kind: Ints  # the tool's number in `Kinds`, 0 on a final turn
    asked_s: Floats  # float64[t], nan where no `sleep` asked for anything


@dataclass(frozen=True)
class Workload:
    """Sessions to run, and `notes`: sentences on what was drawn, repaired or left out.

    The first `shared_prefix_tokens` of every prompt are the same in all sessions.
    """

    name: str
    tasks: tuple[Task, ...]
    seed: int
    notes: tuple[str, ...] = ()
    shared_prefix_tokens: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", tuple(self.tasks))
        object.__setattr__(self, "notes", tuple(self.notes))
        checks.name(self.name, "workload name")
        checks.whole(self.seed, "workload: seed", 0)
        if not self.tasks:
            raise InputError(f"workload {self.name!r} has no sessions; give it at least one")
        checks.unique([t.id for t in self.tasks], "session")
        checks.whole(self.shared_prefix_tokens, "workload: shared_prefix_tokens", 0)
        least = min(turn.prompt_tokens for t in self.tasks for turn in t.turns)
        if self.shared_prefix_tokens > least:
            raise InputError(
                f"workload {self.name!r}: shared_prefix_tokens is {self.shared_prefix_tokens:,} but a prompt "
                f"has only {least:,}; the prefix is a part of every prompt, lower it"
            )

    @cached_property
    def ids(self) -> list[str]:
        """The ids of its sessions, in order."""
        return [task.id for task in self.tasks]

    @cached_property
    def kinds(self) -> Kinds:
        """The kinds of tools that it calls."""
        return self._script[1]

    @cached_property
    def script(self) -> Script:
        """The same as arrays."""
        return self._script[0]

    @cached_property
    def job_ends(self) -> Ints:
        """int64[jobs, 2]: (session, turn) of the turns after which a person is waited for."""
        found = [
            (i, k) for i, t in enumerate(self.tasks) for k, turn in enumerate(t.turns) if turn.tool == HUMAN
        ]
        return np.array(found, np.int64).reshape(-1, 2)

    @cached_property
    def calls_of_kind(self) -> Ints:
        """int64[kinds]: how many calls of each kind it makes, those of more special kinds included."""
        counts = np.bincount(self.script.kind[self.script.kind > 0], minlength=len(self.kinds.names))
        total = counts.copy()
        for k, above in enumerate(self.kinds.above):
            for general in above:
                if general >= 0:
                    total[general] += counts[k]
        return total.astype(np.int64)

    @cached_property
    def _script(self) -> tuple[Script, Kinds]:
        kinds = Kinds()
        turns = [turn for task in self.tasks for turn in task.turns]
        script = Script(
            first=_ints([0, *accumulate(len(task.turns) for task in self.tasks)]),
            prompt=_ints([t.prompt_tokens for t in turns]),
            prefix=_ints([t.prefix_tokens for t in turns]),
            output=_ints([t.output_tokens for t in turns]),
            tool_ps=_ints([round(t.tool_s * PS_PER_S) for t in turns]),
            kind=_ints([kinds.number(t.tool, t.tool_class or None) if t.tool else 0 for t in turns]),
            asked_s=np.array([_asked_s(t) for t in turns]),
        )
        return script, kinds

    def head(self, n: int) -> Workload:
        """The first `n` sessions; raises `InputError` where there are fewer, none runs twice."""
        checks.whole(n, "number of sessions", 1)
        if n > len(self.tasks):
            raise InputError(
                f"{n:,} sessions asked for, but workload {self.name!r} has {len(self.tasks):,}; ask for fewer"
            )
        if n == len(self.tasks):
            return self
        note = f"the first {n:,} of {len(self.tasks):,} sessions; counts above are of all"
        return replace(self, tasks=self.tasks[:n], notes=(*self.notes, note))

    def resampled(self, n: int, seed: int) -> Workload:
        """`n` sessions drawn with replacement, each a session of its own: none shares another's cache.

        >>> WORKLOADS["swe-lite"](0, 2).resampled(3, seed=1).ids
        ['swe-lite-0000', 'swe-lite-0000~1', 'swe-lite-0001']
        """
        checks.whole(n, "number of sessions", 1)
        chosen = np.random.default_rng([checks.whole(seed, "seed", 0), n]).integers(0, len(self.tasks), n)
        seen: dict[int, int] = {}
        tasks = []
        for k in chosen.tolist():
            copy = seen[k] = seen.get(k, -1) + 1
            tasks.append(
                replace(self.tasks[k], id=f"{self.tasks[k].id}~{copy}" if copy else self.tasks[k].id)
            )
        return replace(self, tasks=tuple(tasks), seed=seed)

    def fitting(self, capacity_tokens: int, reserve_tokens: int, strict: bool = False) -> Workload:
        """Leaves out, and notes, sessions that outgrow the largest node; an error if `strict`."""
        checks.whole(capacity_tokens, "capacity_tokens", 0)
        checks.whole(reserve_tokens, "reserve_tokens", 0)
        if int((self.script.prompt + self.script.output).max()) + reserve_tokens <= capacity_tokens:
            return self
        sizes = {t.id: t.peak_tokens + reserve_tokens for t in self.tasks}
        large = {name: size for name, size in sizes.items() if size > capacity_tokens}
        if strict:
            name = max(large, key=lambda name: large[name])
            raise InputError(
                f"session {name!r} needs {large[name]:,} tokens with reserve but the largest node holds "
                f"{capacity_tokens:,}; raise node capacity or drop the session"
            )
        if len(large) == len(sizes):
            raise InputError(
                f"none of {len(sizes):,} sessions fits: the smallest needs {min(sizes.values()):,} tokens "
                f"with reserve but the largest node holds {capacity_tokens:,}; raise node capacity"
            )
        note = (
            f"left out {len(large):,} of {len(sizes):,} sessions that need {min(large.values()):,} to "
            f"{max(large.values()):,} tokens with reserve: the largest node holds {capacity_tokens:,}"
        )
        kept = tuple(t for t in self.tasks if t.id not in large)
        return replace(self, tasks=kept, notes=(*self.notes, note))


def _ints(numbers: list[int]) -> Ints:
    return np.array(numbers, np.int64)


def _asked_s(turn: Turn) -> float:
    """What a parser finds in the turn's `sleep` command; nan: nothing."""
    found = None if turn.sleep_s is None else readiness.parsed_sleep(f"sleep {float(turn.sleep_s)!r}")
    return np.nan if found is None else float(found)


def check_seconds(x: object, what: str) -> None:
    """Raises `InputError` unless `x` is a duration that simulated time can hold."""
    if isinstance(x, bool) or not isinstance(x, int | float) or not 0 <= x <= MAX_TOOL_S:
        raise InputError(f"{what} is {x!r}; it must be a number of seconds from 0 to {MAX_TOOL_S:,.0f}")


def draw(mixture: Mixture, rng: np.random.Generator) -> float:
    """One draw from a mixture of lognormals."""
    _, mu, sigma = mixture[_pick([weight for weight, _, _ in mixture], rng)]
    return exp(mu + sigma * rng.standard_normal())


def _pick(weights: Sequence[float], rng: np.random.Generator) -> int:
    """The index of one of `weights`, each as likely as it is heavy."""
    left = rng.random() * sum(weights)
    for i, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return i
    return len(weights) - 1


def _clipped(c: Clipped, rng: np.random.Generator) -> int:
    return round(min(max(draw(((1.0, c.mu, c.sigma),), rng), c.lo), c.hi))


def generate(
    name: str,
    recipe: Recipe,
    seed: int = 0,
    tasks: int | None = None,
    output_scale: float | None = None,
    extra_delay_s: tuple[float, float] | None = None,
) -> Workload:
    """Sessions drawn by a recipe, named after `name`; `extra_delay_s` = (lo, hi) lengthens every tool call.

    >>> few, many = (generate("mine", RECIPES["swe-lite"], tasks=k) for k in (2, 5))
    >>> few.tasks == many.tasks[:2]
    True
    """
    count = recipe.sessions if tasks is None else tasks
    scale = recipe.output_scale if output_scale is None else output_scale
    lo, hi = extra_delay_s or (0.0, 0.0)
    _check_settings(seed, count, scale, lo, hi)
    notes = [f"drawn from the recipe {name!r}: output_scale {scale:g}; tool times are independent"]
    if hi:
        notes.append(f"every tool call takes {lo:g} to {hi:g} s longer, uniformly drawn")
    recipe = replace(recipe, output_scale=scale)
    drawn = (
        _task(f"{name}-{k:04d}", recipe, (lo, hi), np.random.default_rng([seed, k])) for k in range(count)
    )
    return Workload(name, tuple(drawn), seed, tuple(notes), recipe.shared_prompt_tokens)


def _check_settings(seed: int, tasks: int, output_scale: float, lo: float, hi: float) -> None:
    checks.whole(seed, "seed", 0)
    checks.whole(tasks, "tasks", 1)
    checks.positive(output_scale, "output_scale")
    if tasks > MAX_TASKS:
        raise InputError(f"tasks is {tasks:,}; at most {MAX_TASKS:,} sessions can be drawn")
    check_seconds(lo, "extra_delay_s: least")
    check_seconds(hi, "extra_delay_s: most")
    if lo > hi:
        raise InputError(f"extra_delay_s is ({lo}, {hi}); the least comes first, swap them")


def _task(name: str, recipe: Recipe, delay_s: tuple[float, float], rng: np.random.Generator) -> Task:
    """One session: the context grows by each turn's output and what the tool adds."""
    turns: list[Turn] = []
    left = _clipped(recipe.turns, rng)
    prompt, prefix = recipe.shared_prompt_tokens + _clipped(recipe.first_prompt, rng), 0
    while True:
        left -= 1
        output = min(draw(recipe.output_tokens, rng), recipe.output_cap)
        output = max(1, round(output * recipe.output_scale))
        if not left:
            return Task(name, (*turns, Turn(prompt, prefix, output)))
        turns.append(Turn(prompt, prefix, output, "bash", *_call(recipe, delay_s, rng)))
        prefix = prompt + output
        prompt = prefix + round(min(draw(recipe.new_tokens, rng), recipe.new_cap))


def _call(
    recipe: Recipe, delay_s: tuple[float, float], rng: np.random.Generator
) -> tuple[str, float, float | None]:
    """(class, seconds, seconds a `sleep` asked for) of one tool call."""
    tool_class = list(recipe.classes)[_pick(list(recipe.classes.values()), rng)]
    sleep_s = None
    if tool_class == "sleep":
        seconds = sleep_s = recipe.sleep_choices_s[rng.integers(len(recipe.sleep_choices_s))]
    else:
        seconds = draw(recipe.tools[tool_class], rng)
    # Also drawn where it is 0, so that a run with and one without extra delay are a pair.
    # Whole microseconds: the last bit of exp() differs between machines.
    seconds = min(seconds, recipe.timeout_s) + rng.uniform(*delay_s)
    return tool_class, round(seconds, 6), sleep_s


# name -> (seed=0, tasks=None, output_scale=None, extra_delay_s=None) -> Workload
WORKLOADS: dict[str, Callable[..., Workload]] = {
    name: partial(generate, name, recipe) for name, recipe in RECIPES.items()
}
