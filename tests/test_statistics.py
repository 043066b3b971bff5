"""Statistics of recordings against plain Python, mixtures, and twins: what they recover, tell and refuse."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import norm_files
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tao import charts, mixtures, recipes, statistics, twins
from tao.model import InputError
from tao.statistics import LEVELS, QUANTILES
from tao.traces import Recording
from tao.traces.builder import Builder
from tao.workload_params import RECIPES, STAND_IN_TOOLS
from tao.workloads import WORKLOADS, generate

SHARED = Path(os.environ.get("TAO_SHARED", Path(__file__).parents[2] / "shared"))
NORM = SHARED / "traces" / "norm"

# Tables against plain Python

TOKENS = st.one_of(st.none(), st.integers(0, 5_000))
SECONDS = st.one_of(st.none(), st.sampled_from([0.0, 0.02, 0.5, 6.0, 7.0, 90.0]), st.floats(0, 200))
CALLS = st.lists(st.tuples(st.sampled_from(["test", "read", "web", "human"]), SECONDS), max_size=3)
TURNS = st.lists(st.tuples(TOKENS, TOKENS, TOKENS, CALLS, SECONDS, SECONDS), min_size=1, max_size=6)


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    """A few sessions, some of them sub-agents of the first, with gaps in everything."""
    into = Builder()
    for k, turns in enumerate(draw(st.lists(TURNS, max_size=5))):
        parent = 0 if k and draw(st.integers(0, 3)) == 0 else -1
        for context, output, cached, calls, llm_s, human_s in turns:
            turn = into.turn(into.session(k, parent), context, output, cached)
            into.take(turn, llm=llm_s, human=human_s, tool=calls[0][1] if calls else None)
            for kind, seconds in calls:
                into.call(turn, "bash", seconds=seconds, kind=kind)
    return into.finish()


def told(rows: Any) -> list[dict[str, Any]]:
    """Rows as dicts, what is not known as None."""
    plain = [dict(zip(rows.dtype.names, row, strict=True)) for row in rows.tolist()]
    return [
        {k: None if (v != v or (v == -1 and k.endswith("tokens"))) else v for k, v in row.items()}
        for row in plain
    ]


def main_sessions(recording: Recording) -> list[list[dict[str, Any]]]:
    rows = told(recording.turns)
    return [
        [row for row in rows if row["session"] == k]
        for k, parent in enumerate(recording.parents.tolist())
        if parent < 0
    ]


def quantile(values: list[float], level: float) -> float:
    ordered = sorted(values)
    at = level * (len(ordered) - 1)
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return low + (high - low) * (at - math.floor(at))


def naive_quantities(recording: Recording) -> dict[str, list[float | None]]:
    sessions = main_sessions(recording)
    subs = Counter(recording.turns["session"].tolist())

    def total(session: list[dict[str, Any]], name: str) -> float | None:
        values = [turn[name] for turn in session]
        return None if None in values else sum(values)

    def share(session: list[dict[str, Any]]) -> float | None:
        tool, llm = (sum(turn[name] or 0 for turn in session) for name in ("tool_s", "llm_s"))
        return tool / (tool + llm) if llm else None

    def growth(a: dict[str, Any], b: dict[str, Any]) -> float | None:
        known = a["context_tokens"] is not None and b["context_tokens"] is not None
        return b["context_tokens"] - a["context_tokens"] if known else None

    every = [turn for session in sessions for turn in session]
    return {
        "turns of a session": [len(session) for session in sessions],
        "first prompt, tokens": [session[0]["context_tokens"] for session in sessions],
        "context growth of a turn, tokens": [growth(*two) for s in sessions for two in pairwise(s)],
        "new tokens of a turn": [turn["new_tokens"] for session in sessions for turn in session[1:]],
        "output of a turn, tokens": [turn["output_tokens"] for turn in every],
        "prompts of a session, tokens": [total(session, "context_tokens") for session in sessions],
        "output of a session, tokens": [total(session, "output_tokens") for session in sessions],
        "last prompt of a session, tokens": [session[-1]["context_tokens"] for session in sessions],
        "request, s": [turn["llm_s"] for turn in every],
        "tools after a turn, s": [turn["tool_s"] for session in sessions for turn in session[:-1]],
        "tool share of a session's busy time": [share(session) for session in sessions],
        "wait for a person, s": [turn["human_s"] for turn in every if turn["human_s"]],
        "turns of a sub-agent's session": [subs[k] for k, p in enumerate(recording.parents) if p >= 0],
    }


@settings(max_examples=50)
@given(recordings())
def test_sizes_are_what_plain_python_counts(recording):
    expected = naive_quantities(recording)
    table = statistics.sizes(recording)
    assert list(table["quantity"]) == list(expected)
    for row in table.to_dict("records"):
        values = expected[row["quantity"]]
        known = [float(v) for v in values if v is not None]
        assert (row["n"], row["unknown"]) == (len(known), len(values) - len(known)), row["quantity"]
        if known:
            assert row["mean"] == pytest.approx(sum(known) / len(known))
            assert row["max"] == max(known)
            found = [row[name] for name in QUANTILES]
            assert found == pytest.approx([quantile(known, level) for level in LEVELS])
        else:
            assert math.isnan(row["mean"])
    counts = Counter(expected["turns of a session"])
    assert statistics.turn_counts(recording).values.tolist() == [[n, counts[n]] for n in sorted(counts)]


@settings(max_examples=50)
@given(recordings())
def test_the_table_of_tools_is_what_plain_python_counts(recording):
    calls = [(recording.classes[c["tool_class"]], c["seconds"]) for c in told(recording.calls)]
    whole = sum(s for _, s in calls if s is not None)
    table = statistics.tools(recording)
    assert set(table["tool_class"]) == {"all", *(name for name, _ in calls)}
    assert table["calls"].iloc[1:].is_monotonic_decreasing
    for row in table.to_dict("records"):
        own = [s for name, s in calls if row["tool_class"] in ("all", name)]
        known = [s for s in own if s is not None]
        assert row["calls"] == len(own)
        if own:
            assert row["unknown_share"] == pytest.approx(1 - len(known) / len(own))
            assert row["share_of_calls"] == pytest.approx(len(own) / len(calls))
        if known:
            assert row["p90"] == pytest.approx(quantile(known, 0.9))
            assert row["below_5_s"] == pytest.approx(sum(s < 5 for s in known) / len(known))
            assert row["seconds"] == pytest.approx(sum(known))
        if whole:
            assert row["share_of_time"] == pytest.approx(sum(known) / whole)
    curves = statistics.durations(recording)
    for name, curve in curves.groupby("tool_class"):
        known = [s for kind, s in calls if name in ("all", kind) and s is not None]
        assert (curve["seconds"].iloc[-1], curve["share"].iloc[-1]) == (max(known), 1)
        for seconds, share in zip(curve["seconds"], curve["share"], strict=True):
            at_least = sum(s < seconds for s in known) / len(known)
            assert at_least < share <= sum(s <= seconds for s in known) / len(known) + 1e-12


@settings(max_examples=50)
@given(recordings())
def test_growth_is_what_plain_python_counts(recording):
    sessions = main_sessions(recording)
    table = statistics.growth(recording)
    seen = {}
    for k in range(max(map(len, sessions), default=0)):
        at = [s[k]["context_tokens"] for s in sessions if len(s) > k and s[k]["context_tokens"] is not None]
        if at:
            seen[k + 1] = (len(at), quantile(at, 0.25), quantile(at, 0.95))
    found = zip(table["turn"], table["sessions"], table["p25"], table["p95"], strict=True)
    assert {turn: tuple(rest) for turn, *rest in found} == {k: pytest.approx(v) for k, v in seen.items()}


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def naive_structure(recording: Recording) -> dict[str, float]:
    sessions = main_sessions(recording)
    every = [turn for session in sessions for turn in session]
    prompts = sum(turn["context_tokens"] or 0 for turn in every)
    before = after = 0
    for a, b in (two for session in sessions for two in pairwise(session)):
        if a["context_tokens"] and b["context_tokens"]:
            before += min(a["context_tokens"], b["context_tokens"])
            after += min(a["context_tokens"] + (a["output_tokens"] or 0), b["context_tokens"])
    cached = [t for t in every if t["cached_tokens"] is not None and t["context_tokens"]]
    tools = [[t["tool_s"] for t in session[:-1] if t["tool_s"] is not None] for session in sessions]
    known = [s for session in tools for s in session]
    following = [b for session in tools for a, b in pairwise(session) if a > statistics.LONG_S]
    inner = [turn for session in sessions for turn in session[:-1]]
    later = [two for session in sessions for two in pairwise(session)]
    contexts = [(a["context_tokens"] or 0, b["context_tokens"]) for a, b in later]
    return {
        "the prompt before": ratio(before, prompts),
        "the prompt and output before": ratio(after, prompts),
        "cached, as the provider reported": ratio(
            sum(t["cached_tokens"] for t in cached), sum(t["context_tokens"] for t in cached)
        ),
        "tools over 5 s": ratio(sum(s > 5 for s in known), len(known)),
        "tools over 5 s after such": ratio(sum(s > 5 for s in following), len(following)),
        "turns that a person follows": ratio(sum(bool(t["human_s"]) for t in inner), len(inner)),
        "turns where the prompt shrinks": ratio(
            sum(b is not None and b < a for a, b in contexts), len(later)
        ),
        "sessions of sub-agents": ratio(len(recording) - len(sessions), len(recording)),
    }


@settings(max_examples=60)
@given(recordings())
def test_structure_is_what_plain_python_counts(recording):
    table = statistics.structure(recording).set_index("quantity")["value"]
    for name, value in naive_structure(recording).items():
        assert table[name] == pytest.approx(value, nan_ok=True), name
    shares = statistics.drift(recording).groupby("fifth")["share"].sum()
    assert all(share == pytest.approx(1) or share == 0 for share in shares)


def test_what_leads_to_what_is_seen():
    b = Builder()
    for k in range(20):
        for i, seconds in enumerate([0.1, 0.1, 0.1, 9.0, 8.0, 7.0, 0.1]):
            turn = b.turn(b.session(k), 100 * (i + 1), 10)
            b.take(turn, tool=seconds)
            b.call(turn, "bash", seconds=seconds, kind="read" if i < 3 else "test")
    recording = b.finish()
    found = statistics.clustering(recording)
    assert found["tools over 5 s"] == pytest.approx(3 / 6)
    assert found["tools over 5 s after such"] == 1.0
    assert found["correlation of log tool seconds with the turn before"] > 0.5
    drift = statistics.drift(recording).set_index(["tool_class", "fifth"])["share"]
    assert (drift["read", 1], drift["test", 5]) == (1.0, 1.0)


# Mixtures


@settings(max_examples=60)
@given(
    st.lists(st.floats(1e-3, 1e4), min_size=2, max_size=120),
    st.integers(1, 3),
    st.one_of(st.none(), st.floats(1e-2, 1e4)),
)
def test_likelihood_never_falls(values, components, cut):
    found = mixtures.fit(np.array(values), cut, components)
    rises = np.diff(found.likelihoods)
    assert (rises > -1e-9 * max(map(abs, found.likelihoods), default=1)).all()
    assert sum(weight for weight, _, _ in found.mixture) == pytest.approx(1)
    assert [mu for _, mu, _ in found.mixture] == sorted(mu for _, mu, _ in found.mixture)


def naive_likelihood(values: list[float], mixture: Any, cut: float) -> float:
    total = 0.0
    for x in values:
        z, p = math.log(min(x, cut)), 0.0
        for weight, mu, sigma in mixture:
            a = (z - mu) / sigma
            if x >= cut:
                p += weight * 0.5 * math.erfc(a / math.sqrt(2))
            else:
                p += weight * math.exp(-a * a / 2) / (sigma * math.sqrt(2 * math.pi))
        total += math.log(p)
    return total


def sample(seed: int, n: int, *parts: tuple[float, float, float], most: float = math.inf) -> Any:
    rng = np.random.default_rng(seed)
    which = rng.choice(len(parts), n, p=[w for w, _, _ in parts])
    mu, sigma = (np.array([part[k] for part in parts])[which] for k in (1, 2))
    return np.minimum(np.exp(mu + sigma * rng.standard_normal(n)), most)


def test_the_likelihood_is_that_of_the_mixture_and_no_near_one_is_better():
    values = sample(1, 400, (0.7, 0.0, 0.5), (0.3, 2.0, 0.8), most=8.0)  # half of the second are cut
    found = mixtures.fit(values, 8.0)
    best = naive_likelihood(values.tolist(), found.mixture, 8.0)
    assert found.likelihoods[-1] == pytest.approx(best, rel=1e-6)
    (w, mu, sigma), (w2, mu2, sigma2) = found.mixture
    for change in (0.97, 1.03):
        for near in (
            ((w * change, mu, sigma), (1 - w * change, mu2, sigma2)),
            ((w, mu + change - 1, sigma), (w2, mu2, sigma2)),
            ((w, mu, sigma * change), (w2, mu2, sigma2)),
            ((w, mu, sigma), (w2, mu2 * change, sigma2)),
            ((w, mu, sigma), (w2, mu2, sigma2 * change)),
        ):
            assert naive_likelihood(values.tolist(), near, 8.0) < best


@pytest.mark.parametrize(
    ("parts", "most"),
    [
        (((0.2, 3.16, 0.42), (0.8, 5.12, 1.32)), 5_000.0),
        (((0.72, 0.1, 0.56), (0.28, 1.3, 1.75)), 60.0),
        (((0.55, -2.1, 1.0), (0.45, 2.0, 2.0)), 30.0),
        (((1.0, -2.3, 0.6),), math.inf),
    ],
)
def test_a_mixture_is_found_again_though_a_timeout_cuts_it(parts, most):
    values = sample(7, 10_000, *parts, most=most)
    limit = mixtures.limit_of(values)
    assert (limit is None) == (most == math.inf)
    found = mixtures.fit(values, limit[0] if limit else None, 3).mixture
    assert len(found) == len(parts)
    for (weight, mu, sigma), (weight2, mu2, sigma2) in zip(parts, found, strict=True):
        assert weight2 == pytest.approx(weight, abs=0.05)
        assert mu2 == pytest.approx(mu, abs=0.15)
        assert sigma2 == pytest.approx(sigma, abs=0.15)


def test_zeros_are_a_component_of_their_own():
    values = np.concatenate([np.zeros(50), sample(3, 150, (1.0, 4.0, 0.5))])
    (none, mu, sigma), *rest = mixtures.fit(values).mixture
    assert (none, round(math.exp(mu), 6), sigma) == (0.25, 0.0, 0.0)
    assert sum(weight for weight, _, _ in rest) == pytest.approx(0.75)
    assert mixtures.fit(np.zeros(9)).mixture == ((1.0, mixtures.NOTHING, 0.0),)
    assert mixtures.fit(np.full(9, 5.0)).mixture == ((1.0, math.log(5.0), 0.0),)


def test_a_limit_is_where_values_crowd_at_their_end():
    smooth = sample(5, 4_000, (1.0, 0.0, 1.5))
    assert mixtures.limit_of(smooth) is None
    spread = np.concatenate([np.minimum(smooth, 29.0), np.linspace(29.6, 30.1, 60), [62.0]])
    least, limit = mixtures.limit_of(spread) or (0, 0)
    assert 29.0 < least < 29.6
    assert limit == pytest.approx(29.9, abs=0.2)
    assert mixtures.limit_of(np.array([*range(1, 31), *[30] * 20])) is not None  # a limit on turns
    assert mixtures.limit_of(np.repeat([1, 2, 3, 4, 5], 20)) is None  # no more fives than fours
    assert mixtures.limit_of(np.array([])) is None


@settings(max_examples=50)
@given(*[st.lists(st.integers(0, 9), min_size=1, max_size=20)] * 2)
def test_the_distance_is_the_largest_difference_of_shares(a, b):
    differences = [abs(sum(x <= v for x in a) / len(a) - sum(x <= v for x in b) / len(b)) for v in range(10)]
    assert mixtures.ks_distance(np.array(a), np.array(b)) == pytest.approx(max(differences))


# Twins


@pytest.fixture(scope="module")
def lite():
    """A recipe as recordings have them, a recording of it, and what is fitted to that."""
    recipe = replace(RECIPES["swe-lite"], output_scale=1.0)
    recording = twins.recorded(generate("lite", recipe, seed=3, tasks=300))
    return recipe, recording, twins.fit(recording)


def test_fitting_finds_the_parameters_that_sessions_were_drawn_from(lite):
    recipe, _, found = lite
    assert found.sessions == 300
    assert found.timeout_s == recipe.timeout_s
    error = recipe.turns.sigma / math.sqrt(300)
    assert found.turns.mu == pytest.approx(recipe.turns.mu, abs=3.5 * error)
    assert found.turns.sigma == pytest.approx(recipe.turns.sigma, abs=3.5 * error / math.sqrt(2))
    for name, share in recipe.classes.items():
        assert found.classes.get(name, 0) == pytest.approx(share, abs=0.01)
    pairs = [(recipe.new_tokens, found.new_tokens), (recipe.output_tokens, found.output_tokens)]
    pairs += [
        (recipe.tools[name], found.tools[name]) for name in ("edit", "search", "read", "python", "test")
    ]
    for true, fitted in pairs:
        nonzero = [part for part in fitted if part[2] or part[0] > 0.01]
        assert len(nonzero) == len(true)
        for (weight, mu, sigma), (weight2, mu2, sigma2) in zip(true, nonzero, strict=True):
            assert weight2 == pytest.approx(weight, abs=0.06)
            assert mu2 == pytest.approx(mu, abs=0.2)
            assert sigma2 == pytest.approx(sigma, abs=0.15)
    prompt = recipe.shared_prompt_tokens + math.exp(recipe.first_prompt.mu)
    assert math.exp(found.first_prompt.mu) == pytest.approx(prompt, rel=0.05)


@pytest.mark.long
def test_more_sessions_find_the_parameters_more_closely():
    recipe = RECIPES["swe-verified"]
    found = twins.fit(twins.recorded(generate("large", recipe, seed=1, tasks=5_000)))
    assert (found.turns.mu, found.turns.sigma) == pytest.approx(
        (recipe.turns.mu, recipe.turns.sigma), abs=0.02
    )
    pairs = [(recipe.new_tokens, found.new_tokens[-2:]), (recipe.output_tokens, found.output_tokens)]
    pairs += [(recipe.tools[name], found.tools[name]) for name in ("edit", "python", "test", "build")]
    for true, fitted in pairs:
        assert np.array(fitted) == pytest.approx(np.array(true), abs=0.15)


def test_a_twin_is_close_to_what_was_recorded_and_the_twin_of_a_twin_too(lite):
    _, recording, found = lite
    for table in (
        twins.goodness(recording, found),
        twins.goodness(recording, twins.fit(twins.recorded(twins.twin(found, 9)))),
    ):
        table = table.set_index("quantity")
        whole = table[(table["n"] >= 300) & table["ks"].notna()]
        assert {"turns of a session", "tools after a turn, s: test"} < set(whole.index)
        assert whole["ks"].max() < 0.1
        assert set(whole["verdict"]) == {"close"}
        assert table.loc["turns with several tools", "verdict"] == "alike"


def test_the_same_seed_draws_the_same_twin(lite):
    _, _, found = lite
    assert twins.twin(found, 4, 5) == twins.twin(found, 4, 5) != twins.twin(found, 5, 5)
    assert len(twins.twin(replace(found, sessions=7)).tasks) == 7


def test_a_workload_is_recorded_as_it_is():
    work = WORKLOADS["terminal-bench"](seed=2, tasks=4)
    recording = twins.recorded(work)
    rows, calls = told(recording.turns), told(recording.calls)
    turns = [turn for task in work.tasks for turn in task.turns]
    assert [r["context_tokens"] for r in rows] == [t.prompt_tokens for t in turns]
    assert [r["new_tokens"] for r in rows] == [t.prompt_tokens - t.prefix_tokens for t in turns]
    assert [r["tool_s"] for r in rows] == [t.tool_s if t.tool else None for t in turns]
    found = [(c["turn"], recording.classes[c["tool_class"]], c["seconds"], c["asked_s"]) for c in calls]
    assert found == [(k, t.tool_class, t.tool_s, t.sleep_s) for k, t in enumerate(turns) if t.tool]


def agents(sessions=12, turns=12, kind="test", **told) -> Builder:
    b = Builder()
    for k in range(sessions):
        for i in range(turns):
            row = {"context": 1_000 + 100 * i + k, "output": 20 + i, "cached": None} | told
            turn = b.turn(b.session(k), row["context"], row["output"], row["cached"])
            seconds = None if i % 4 == 3 else 1.0 + (7 * i + k) % 10
            b.take(turn, tool=seconds)
            b.call(turn, "bash", seconds=seconds, kind=kind)
    return b


def test_what_is_unknown_is_left_out_and_counted():
    recording = agents().finish()
    recipe = twins.fit(recording)
    row = twins.goodness(recording, recipe).set_index("quantity").loc["tools after a turn, s"]
    assert (row["n"], row["unknown"]) == (12 * 9, 12 * 2)
    bare = replace(recording, turns=recording.turns.copy())
    bare.turns["tool_s"] = np.nan
    recipe = twins.fit(bare)
    assert recipe.tools == {"test": STAND_IN_TOOLS["test"]}
    table = twins.goodness(bare, recipe).set_index("quantity")
    assert table.loc["tools after a turn, s: test", "verdict"] == "not recorded"


def test_what_a_twin_does_not_reproduce_is_said():
    b = agents()
    for k in range(12):
        child = b.session(("sub", k), k)
        b.turn(child, 500, 10)
    recording = b.finish()
    recording.turns["tool_s"] = np.repeat([0.1, 30.0, 0.1, 30.0], len(recording.turns) // 4)
    recording.turns["human_s"][::3] = 50.0
    verdicts = twins.goodness(recording, twins.fit(recording)).set_index("quantity")["verdict"]
    lost = set(verdicts.index[verdicts == "not reproduced"])
    assert {"sessions of sub-agents", "turns that a person follows"} < lost
    assert "correlation of log tool seconds with the turn before" in lost


def test_a_turn_with_several_calls_counts_as_its_longest():
    b = agents(kind="read")
    for turn in range(0, 144, 2):
        b.call(turn, "bash", seconds=40.0, kind="build")
    recording = b.finish()
    inner = [k for k in range(144) if k % 12 != 11]
    share = sum(k % 2 == 0 for k in inner) / len(inner)
    assert twins.fit(recording).classes == {"build": round(share, 6), "read": round(1 - share, 6)}


def test_the_shared_prompt_is_what_most_first_requests_found_cached():
    assert twins.fit(agents(cached=700).finish()).shared_prompt_tokens == 700
    assert twins.fit(agents(cached=0).finish()).shared_prompt_tokens == 0
    assert twins.fit(agents(cached=90_000).finish()).shared_prompt_tokens == 999  # less than any prompt


def test_sleeps_are_told_by_what_they_asked_for():
    b = Builder()
    for k in range(12):
        for i in range(12):
            turn = b.turn(b.session(k), 100 + 10 * i, 5)
            b.call(turn, "bash", f"sleep {i % 3 + 2}", seconds=3.0)
    recipe = twins.fit(b.finish())
    assert recipe.classes == {"sleep": 1.0}
    assert set(recipe.sleep_choices_s) == {2.0, 3.0, 4.0}


@pytest.mark.parametrize(
    ("recording", "message"),
    [
        (lambda: Builder().finish(), "0 sessions and 0 turns .*a fit needs 10 sessions and 100 turns"),
        (lambda: agents(sessions=9).finish(), "9 sessions and 108 turns"),
        (lambda: agents(turns=8).finish(), "12 sessions and 96 turns"),
        (lambda: agents(output=None).finish(), "tokens of 0 of 144 turns; .*import logs that tell them"),
        (lambda: agents(context=None).finish(), "tokens of 0 of 144 turns"),
    ],
)
def test_too_little_is_refused_with_the_reason(recording, message):
    with pytest.raises(InputError, match=message):
        twins.fit(recording())


# Parameters as JSON


def test_parameters_survive_json_and_name_nothing_but_known_classes(lite):
    found = lite[2]
    assert recipes.from_json(recipes.to_json(found)) == found
    for recipe in RECIPES.values():
        assert recipes.from_json(recipes.to_json(recipe)) == recipe
    secret = recipes.to_json(twins.fit(agents(kind="project-x").finish()))
    assert "project-x" not in secret
    assert json.loads(secret)["classes"] == {"other": 1.0}

    def texts(x: Any) -> set[str]:
        inner = [*x, *x.values()] if isinstance(x, dict) else x if isinstance(x, list) else ()
        return {x} if isinstance(x, str) else {text for part in inner for text in texts(part)}

    shape = texts(json.loads(recipes.to_json(RECIPES["swe-lite"])))
    assert texts(json.loads(secret)) <= shape | twins.CLASSES


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("turns"), "missing: turns"),
        (lambda d: d.update(more=1), "unknown: 'more'"),
        (lambda d: d.update(schema=2), "another schema; this version of tao reads schema 1"),
        (lambda d: d.update(sessions=0), "sessions is 0; .* from 1 to 10,000"),
        (lambda d: d.update(turns=[1, 2]), "turns is .* an object with mu, sigma, lo and hi"),
        (lambda d: d["turns"].update(hi=3), "turns: hi is 3; .* from 8"),
        (lambda d: d["turns"].update(mu=None), "turns: mu is None"),
        (lambda d: d["turns"].update(sigma=-1), "turns: sigma is -1"),
        (lambda d: d["first_prompt"].update(mu=800), "first_prompt: mu 800, .*at most 30"),
        (lambda d: d.update(new_tokens=[[1, 2]]), r"new_tokens is .* a list of \[weight, mu, sigma\]"),
        (lambda d: d.update(new_tokens=[]), "new_tokens: the weights add up to 0"),
        (lambda d: d["new_tokens"].__setitem__(0, ["a", 1, 1]), "new_tokens: weight is 'a'"),
        (lambda d: d.update(output_scale=0), "output_scale is 0"),
        (lambda d: d.update(new_cap=1.5), "new_cap is 1.5"),
        (lambda d: d.update(classes=[]), "classes is .*an object, a key for each class"),
        (lambda d: d["classes"].update(secret=0.1), "'secret' is no class of tools; it must be one of"),
        (lambda d: d["tools"].pop("edit"), "classes has 'edit' but tools does not"),
        (lambda d: d.update(sleep_choices_s=[]), "sleep_choices_s is empty"),
        (lambda d: d.update(sleep_choices_s=3), "sleep_choices_s is 3; it must be a list"),
        (lambda d: d.update(timeout_s=1e7), "at most 1,000,000 s"),
        (lambda d: d.update(timeout_s="60"), "timeout_s or sleep_choices_s is '60'"),
    ],
)
def test_parameters_that_are_wrong_are_refused(change, message):
    data = json.loads(recipes.to_json(RECIPES["swe-lite"]))
    change(data)
    with pytest.raises(InputError, match=rf"mine\.json: .*{message}"):
        recipes.from_json(json.dumps(data), "mine.json")


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "[]", "null", '{"turns": NaN}'])
def test_what_are_no_parameters_at_all_is_refused(text):
    with pytest.raises(InputError, match=r"mine\.json: "):
        recipes.from_json(text, "mine.json")


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just([]), st.just({})
)


@settings(max_examples=80)
@given(st.data())
def test_whatever_stands_in_parameters_they_are_drawn_from_or_refused(data):
    found = json.loads(recipes.to_json(RECIPES["swe-lite"]))
    at: Any = found
    while True:
        key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.booleans()):
            at[key] = data.draw(LEAVES)
            break
        at = at[key]
    try:
        recipe = recipes.from_json(json.dumps(found))
    except InputError:
        return
    if recipe.turns.hi < 1_000:
        assert len(twins.twin(recipe, tasks=1).tasks) == 1


# Charts


def test_charts_tell_recorded_and_twin_apart_in_marks_and_words(lite):
    _, recording, found = lite
    both = (recording, twins.recorded(twins.twin(found, tasks=60)))
    drawn = {
        "durations": charts.duration_curves(charts.beside(*map(statistics.durations, both)), classes=4),
        "growth": charts.context_fan(charts.beside(*map(statistics.growth, both))),
        "turns": charts.turn_histogram(charts.beside(*map(statistics.turn_counts, both))),
    }
    for name, chart in drawn.items():
        spec = chart.to_dict()
        assert "recorded" in spec["description"], name
        assert "twin" in spec["description"], name
        assert "dashed: its synthetic twin" in json.dumps(spec["title"]), name
    alone = charts.turn_histogram(statistics.turn_counts(recording)).to_dict()
    assert "twin" not in alone["description"]
    assert len(alone["layer"]) == 1


def test_a_histogram_holds_every_session_once(lite):
    spec = charts.turn_histogram(statistics.turn_counts(lite[1])).to_dict()
    (rows,) = spec["datasets"].values()
    assert sum(row["sessions"] for row in rows) == 300
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert all(a["to"] <= b["from"] for a, b in pairwise(rows))


def test_a_curve_is_drawn_from_the_least_time_on_and_told_as_it_was():
    table = pd.DataFrame({"tool_class": "all", "seconds": [0.0, 2.0], "share": [0.5, 1.0]})
    spec = charts.duration_curves(table).to_dict()
    assert [row["at_s"] for row in next(iter(spec["datasets"].values()))] == [0.001, 2.0]
    assert "all recorded: 0, 2 s" in spec["description"]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: charts.duration_curves(None), "duration_curves needs a table with"),
        (lambda: charts.duration_curves(pd.DataFrame({"tool_class": []}), classes=9), "from 0 to 6"),
        (lambda: charts.turn_histogram(pd.DataFrame({"turns": [], "sessions": []})), "no rows with values"),
        (
            lambda: charts.turn_histogram(pd.DataFrame({"turns": [1], "sessions": [1], "source": "x"})),
            "source is 'x'",
        ),
        (
            lambda: charts.context_fan(statistics.growth(agents(sessions=3).finish())),
            "no turn that 10 sessions",
        ),
        (lambda: charts.class_shares(pd.DataFrame({"tool_class": ["a"]})), "'share_of_calls' is missing"),
        (lambda: charts.class_shares(statistics.tools(Builder().finish())), "no rows with values"),
    ],
)
def test_charts_refuse_what_they_cannot_draw(draw, message):
    with pytest.raises(InputError, match=message):
        draw()


def test_an_empty_recording_has_empty_tables_and_a_summary():
    empty = Builder().finish()
    assert {name: len(table) for name, table in statistics.tables(empty).items()} == {
        "sizes": 13,
        "turns": 0,
        "growth": 0,
        "tools": 1,
        "durations": 0,
        "fits": 0,
        "structure": 13,
        "drift": 0,
    }
    assert statistics.summary(empty).startswith("0 sessions, 0 of sub-agents, 0 turns, 0 tool calls")


def test_the_summary_names_what_is_unknown():
    text = statistics.summary(agents().finish())
    assert "12 sessions, 0 of sub-agents, 144 turns, 144 tool calls" in text
    assert any(line.split()[:4] == ["test", "1", "1", "0.25"] for line in text.splitlines())


# Tables that were computed from the same public recordings by other code, rounded

PUBLISHED = {
    "swe_verified_mini_gemini3": {
        ("turns of a session", "mean", "p50", "p95", "max"): (40.3, 36, 83, 145),
        ("first prompt, tokens", "p5", "p50", "p95"): (1_364, 1_647, 2_867),
        ("context growth of a turn, tokens", "p5", "p50", "p75", "p95", "mean"): (63, 315, 674, 2_168, 583),
        ("output of a turn, tokens", "p5", "p50", "p90", "p99", "mean"): (23, 89, 681, 2_423, 276),
        ("last prompt of a session, tokens", "p5", "p50", "p95"): (10_800, 22_200, 44_600),
        ("the prompt before",): (0.963,),
        ("the prompt and output before",): (0.979,),
        ("cached, as the provider reported",): (0.838,),
        ("turns where the prompt shrinks",): (0.012,),
    },
    "swe_rebench_claude_code_claude": {
        ("turns of a session", "mean", "p50", "max"): (24.2, 19, 121),
        ("new tokens of a turn", "p50", "p90", "p99", "mean"): (318, 1_973, 8_471, 869),
        ("output of a turn, tokens", "p5", "p50", "p90", "p99", "mean"): (41, 90, 499, 1_381, 198),
        ("the prompt before",): (0.957,),
        ("the prompt and output before",): (0.962,),
        ("all", "p5", "p25", "p50", "p95", "p99", "max", "mean"): (0.017, 0.033, 0.097, 4.5, 83, 362, 2.67),
        ("all", "below_1_s", "below_5_s"): (0.77, 0.95),
        ("read", "share_of_calls", "p50", "p90", "p99"): (0.2, 0.034, 0.65, 1.9),
        ("search", "share_of_calls", "p50", "p90", "p99"): (0.186, 0.075, 0.88, 2.4),
        ("test", "share_of_calls", "p50", "p90", "p99"): (0.152, 1.5, 7.9, 120),
        ("git", "share_of_calls", "p50", "p90", "p99"): (0.098, 0.11, 0.85, 1.7),
        ("subagent", "share_of_calls", "p50", "p90", "p99"): (0.015, 66, 134, 304),
        ("tools over 5 s",): (0.05,),
        ("tools over 5 s after such",): (0.14,),
    },
    "swe_rebench_claude_code_glm": {
        ("turns of a session", "mean", "p50", "p95", "max"): (50.7, 45, 112, 145),
        ("new tokens of a turn", "p50", "p90", "p99", "mean"): (180, 1_195, 9_826, 630),
        ("turns with several tools",): (0.142,),
        ("all", "p5", "p25", "p50", "p75", "p90", "p99", "mean"): (0.011, 0.019, 0.034, 6.7, 9.3, 19.5, 3.04),
    },
    "terminal_bench_mini_sonnet4": {
        ("turns of a session", "mean", "p50", "p95", "max"): (20.4, 18, 42, 58),
        ("new tokens of a turn", "p50", "p90", "p99", "mean"): (117, 631, 4_407, 341),
        ("the prompt before",): (0.928,),
        ("the prompt and output before",): (0.966,),
        ("request, s", "p50", "p90"): (3.2, 11.7),
        ("all", "p50", "p75", "p90", "p95", "p99", "max", "mean"): (0.036, 0.67, 20.8, 29.9, 30, 62, 3.74),
        ("install", "share_of_calls", "p50", "p90"): (0.075, 23.8, 29.9),
        ("tools over 5 s after such",): (0.30,),
        ("correlation of log tool seconds with the turn before",): (0.18,),
    },
    "weka_claude_code": {
        ("turns of a session", "mean", "p95", "max"): (64.8, 203, 514),
        ("output of a turn, tokens", "p5", "p50", "p90", "p99", "mean"): (88, 217, 882, 3_675, 437),
        ("the prompt before",): (0.973,),
        ("turns where the prompt shrinks",): (0.0086,),
        ("all", "p5", "p25", "p50", "p75", "p90", "p95", "p99"): (3, 5, 8, 19, 71, 148, 615),
        ("all", "below_5_s"): (0.17,),
        ("wait for a person, s", "p50"): (126,),
    },
}  # fmt: skip


def rounded_alike(found: float, published: float) -> bool:
    """Equal to the digits that are published, a last digit apart."""
    text = f"{published}".rstrip("0").rstrip(".") if published < 10_000 else f"{published / 100:.0f}"
    step = 100.0 if published >= 10_000 else 10.0 ** -len(text.partition(".")[2])
    return abs(found - published) <= step * 1.001


@pytest.mark.skipif(not NORM.is_dir(), reason="the recordings are not here")
@pytest.mark.parametrize("name", PUBLISHED)
def test_tables_of_public_recordings_are_those_published(name):
    recording = norm_files.recorded(NORM / f"{name}.csv.gz")
    found = {
        **statistics.sizes(recording).set_index("quantity").to_dict("index"),
        **statistics.tools(recording).set_index("tool_class").to_dict("index"),
    }
    shares = statistics.structure(recording).set_index("quantity")["value"]
    for (quantity, *columns), values in PUBLISHED[name].items():
        mine = [found[quantity][column] for column in columns] if columns else [shares[quantity]]
        for value, published, column in zip(mine, values, columns or ["share"], strict=True):
            assert rounded_alike(value, published), (quantity, column, value, published)


@pytest.mark.skipif(not NORM.is_dir(), reason="the recordings are not here")
def test_a_twin_of_a_public_recording_is_close_where_it_says_so():
    recording = norm_files.recorded(NORM / "terminal_bench_mini_sonnet4.csv.gz")
    table = twins.goodness(recording, twins.fit(recording)).set_index("quantity")
    for name in ("new tokens of a turn", "output of a turn, tokens", "tools after a turn, s"):
        assert table.loc[name, "ks"] < 0.06
    assert table.loc["tools after a turn, s: install", "verdict"] == "differs"
