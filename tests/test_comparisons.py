"""The comparison of policies over seeds: what it runs, and what its intervals mean."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tao
from tao.comparisons import Arm, Comparison, bootstrap, compare, interval
from tao.metrics import METRICS, measure
from tao.model import InputError, Params
from tao.policies import Decision
from tao.simulator import simulate
from tao.traces import open_workload
from tao.workloads import Task, Turn, Workload

SMALL = {"workload": "swe-lite", "nodes": 2, "workers": 6, "tasks": 6, "seeds": 2}


class First:
    """A policy of one's own: everybody to the first node."""

    period_s, gap_s = None, 0.0

    def __init__(self, params):
        self.params = params

    def route(self, view, i):
        return 0

    def on_finish(self, view, i):
        pass

    def tick(self, view):
        return Decision()


def runs(**values):
    """A comparison with these values of `ttft_s`, seed by seed."""
    rows = [
        {"policy": policy, "seed": seed, "ttft_s": x}
        for policy, column in values.items()
        for seed, x in enumerate(column)
    ]
    return Comparison({}, pd.DataFrame(rows))


# --- what is run --------------------------------------------------------------------------------


def test_every_policy_gets_the_sessions_of_every_seed():
    seen = []
    result = compare(policies=["tao", "sticky"], capacity_tokens=50_000, progress=seen.append, **SMALL)
    assert result.runs.groupby("seed").size().tolist() == [2, 2]
    for seed, group in result.runs.groupby("seed"):
        for run in group.to_dict("records"):
            alone = simulate("swe-lite", run["policy"], 2, 6, tasks=6, seed=seed, capacity_tokens=50_000)
            assert run["task_latency_s"] == measure(alone)["task_latency_s"]
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_the_result_is_ready_for_json_and_says_how_it_came_about():
    data = compare(policies=["tao", "sticky"], **SMALL).to_dict()
    assert [p["policy"] for p in data["policies"]] == ["tao", "sticky"]
    assert set(data["policies"][0]) == {"policy", *METRICS}
    assert data["policies"][1]["plan_states"] == {"mean": None, "lo": None, "hi": None}
    assert (data["settings"]["seeds"], data["settings"]["label"]) == ([0, 1], "simulated")
    assert (data["settings"]["tasks"], data["settings"]["params"]) == (6, {})
    assert any("output_scale 0.65" in note for note in data["settings"]["notes"])
    assert json.loads(json.dumps(data, allow_nan=False)) == data


@pytest.mark.parametrize("threads", [None, 2])
def test_the_same_comparison_gives_the_same_bytes_whatever_carries_it_out(threads):
    with ThreadPoolExecutor(2) as pool:
        text = json.dumps(compare(policies=["tao", "sticky"], **SMALL, executor=threads and pool).to_dict())
    assert text == json.dumps(compare(policies=["tao", "sticky"], **SMALL).to_dict())


def test_an_arm_has_parameters_of_its_own():
    arms = [Arm("plain", "tao"), Arm("slow", "tao", Params(plan_cost_s=0.5)), "tao"]
    result = compare(policies=arms, params=Params(plan_cost_s=0.1), **SMALL)
    ttft = result.runs.groupby("policy", sort=False)["ttft_s"].mean()
    assert list(ttft.index) == ["plain", "slow", "tao"]
    assert ttft["plain"] == ttft["tao"] < ttft["slow"]
    assert result.settings["params"] == {"plan_cost_s": 0.1}
    assert result.settings["arms"]["slow"] == {"plan_cost_s": 0.5}


def test_arms_with_other_reserves_still_run_the_same_sessions():
    large = max(task.peak_tokens for task in open_workload("swe-lite", 0, 6).tasks)
    arms = [Arm("lean", "tao", Params(reserve_tokens=0)), "tao"]
    result = compare(policies=arms, capacity_tokens=large, **SMALL | {"seeds": 1})
    assert result.settings["tasks"] == 5
    assert any(note.startswith("left out 1 of 6") for note in result.settings["notes"])


def test_a_policy_of_ones_own_is_compared_by_its_class():
    result = compare(policies=[First, "sticky"], **SMALL)
    first = result.runs[result.runs["policy"] == "First"]
    assert (first["node_imbalance"] == 1.0).all()

    class Nothing:
        def __init__(self, params):
            pass

    with pytest.raises(InputError, match="policy Nothing lacks route, on_finish, tick, period_s, gap_s"):
        compare(policies=[Nothing], **SMALL)


def test_a_mistake_of_a_policy_of_ones_own_is_reported_with_its_seed():
    class Astray(First):
        def route(self, view, i):
            return 7

    class Broken(First):
        def route(self, view, i):
            return 1 // 0

    with pytest.raises(InputError, match=r"to node 7; .* \(at policy 'Astray', seed 0\)"):
        compare(policies=["tao", Astray], **SMALL)
    with pytest.raises(InputError, match=r"raised ZeroDivisionError .* \(at policy 'Broken', seed 0\)"):
        compare(policies=[Broken], **SMALL)


def test_one_policy_may_be_given_as_a_word_or_an_arm():
    quick = SMALL | {"seeds": 1, "tasks": 2}
    assert len(compare(policies="sticky", **quick).runs) == 1
    assert compare(policies=Arm("mine", "sticky"), **quick).runs["policy"].tolist() == ["mine"]


def test_sessions_may_come_by_themselves_and_wait_for_tools():
    def latency(**change):
        return compare(policies="sticky", **SMALL | change).runs["task_latency_s"]

    assert (latency(tool_servers=1) > latency()).all()
    assert (latency(extra_delay_s=(5.0, 6.0)) > latency()).all()
    assert (latency(output_scale=2.0) > latency()).all()
    assert (latency(arrivals="poisson", rate_per_s=0.001) < latency()).all()  # each session is alone


def test_a_workload_in_which_nothing_is_drawn_runs_once():
    turns = (Turn(100, 0, 3, "bash", "read", 0.5), Turn(120, 103, 2))
    fixed = Workload("fixed", (Task("a", turns), Task("b", turns)), 7)
    result = compare(fixed, ["sticky"], 1, 1, seeds=8)
    assert result.runs["seed"].tolist() == result.settings["seeds"] == [7]
    assert any("nothing here is drawn" in note for note in result.settings["notes"])
    assert result.to_dict()["policies"][0]["ttft_s"]["lo"] is None


def test_arrivals_are_drawn_where_sessions_are_not():
    turns = (Turn(100, 0, 3, "bash", "read", 0.5), Turn(120, 103, 2))
    fixed = Workload("fixed", (Task("a", turns), Task("b", turns)), 7)
    result = compare(fixed, ["sticky"], 1, 1, seeds=3, arrivals="poisson", rate_per_s=0.1)
    assert result.runs["seed"].tolist() == [0, 1, 2]
    assert result.runs["total_completion_s"].nunique() == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policies": []}, "policies are none"),
        ({"policies": ["tao", "tao"]}, "name each once"),
        ({"policies": ["rr"]}, "'rr'; it must be one of tao"),
        ({"policies": [Arm("", "tao")]}, "name of an arm is ''; it must be a string that is not empty"),
        ({"seeds": 0}, "seeds is 0"),
        ({"tasks": 0}, "tasks is 0; it must be a whole number from 1"),
        ({"workers": 0}, r"^workers is 0; it must be a whole number from 1 to 2\*\*40$"),
        ({"workload": "swe-large"}, "swe-large"),
        ({"profile": "a100"}, "'a100'; it must be one of"),
        ({"capacity_tokens": 0}, "capacity_tokens is 0"),
        ({"extra_delay_s": 5.0}, r"extra_delay_s is 5.0; it must be a pair \(least, most\) of seconds"),
        ({"extra_delay_s": (5.0, 1.0)}, r"extra_delay_s is \(5.0, 1.0\); the least comes first"),
        ({"params": {"horizon_s": 2}}, "params is {'horizon_s': 2}; it must be a Params"),
        ({"executor": "fast"}, "executor is 'fast'; it must be a concurrent.futures.Executor"),
        ({"executor": 0}, "executor is 0; it must be a whole number from 1"),
        ({"arrivals": "poisson"}, "give a rate with 'poisson'"),
    ],
)
def test_unusable_arguments_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        compare(**({"workload": "swe-lite", "policies": ["sticky"], "tasks": 2, "seeds": 1} | change))


def test_a_workload_that_is_not_drawn_cannot_be_drawn_otherwise():
    work = open_workload("swe-lite", 0, 2)
    with pytest.raises(InputError, match="output_scale and extra_delay_s change how sessions are drawn"):
        compare(work, "sticky", output_scale=1.0)


def test_the_names_of_the_package_are_functions_even_after_their_modules_were_imported():
    assert tao.compare is compare
    assert tao.sweep.__module__ == "tao.sweeps"


# --- what the intervals say ---------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [2, 3, 8, 30])
def test_95_of_100_intervals_cover_the_true_mean(seeds):
    drawn = np.random.default_rng(seeds).normal(10, 2, (4000, seeds))
    covered = [x["lo"] <= 10 <= x["hi"] for x in map(interval, drawn)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize(("seeds", "share"), [(2, 0.5), (8, 0.89), (30, 0.94)])
def test_a_bootstrap_of_few_seeds_covers_less_than_it_promises(seeds, share):
    drawn = np.random.default_rng(seeds).normal(10, 2, (600, seeds))
    covered = [x["boot_lo"] <= 10 <= x["boot_hi"] for x in map(bootstrap, drawn)]
    assert np.mean(covered) == pytest.approx(share, abs=0.05)


def test_the_bootstrap_equals_one_that_resamples_in_plain_python():
    change = np.array([0.1, -0.2, 0.4, 0.05, 0.0])
    drawn = np.random.default_rng(0).integers(0, 5, (10_000, 5))
    means = sorted(float(np.mean([change[k] for k in row])) for row in drawn.tolist())
    found = bootstrap(change)
    assert found["boot_lo"] == pytest.approx(means[250], abs=0.002)
    assert found["boot_hi"] == pytest.approx(means[9_750], abs=0.002)
    assert found == bootstrap(change)


def test_paired_differences_are_taken_seed_by_seed():
    result = runs(a=[1.0, 2.0, 10.0], b=[1.1, 2.2, 9.0])
    (row,) = result.paired("ttft_s").to_dict("records")
    assert row["policy"] == "b"
    assert row["mean"] == pytest.approx((0.1 + 0.1 - 0.1) / 3)
    assert (row["above"], row["seeds"]) == (2, 3)
    assert row["lo"] < row["boot_lo"] < 0 < row["boot_hi"] < row["hi"]
    dots = result.differences("ttft_s")
    assert dots["seed"].tolist() == [0, 1, 2]
    assert dots["change"].tolist() == pytest.approx([0.1, 0.1, -0.1])


finite = st.floats(0.5, 2.0)


@settings(max_examples=40)
@given(st.lists(st.tuples(finite, finite, finite), min_size=1, max_size=6), st.sampled_from("abc"))
def test_paired_summarizes_the_differences_to_any_of_the_policies(values, against):
    result = runs(**dict(zip("abc", zip(*values, strict=True), strict=True)))
    table = result.paired("ttft_s", against).set_index("policy")
    assert list(table.index) == [name for name in "abc" if name != against]
    for policy, group in result.differences("ttft_s", against).groupby("policy"):
        ours = [row["abc".index(policy)] for row in values]
        theirs = [row["abc".index(against)] for row in values]
        expected = [x / y - 1 for x, y in zip(ours, theirs, strict=True)]
        assert group["change"].tolist() == pytest.approx(expected)
        assert table.loc[policy, "mean"] == pytest.approx(np.mean(expected))
        assert table.loc[policy, "above"] == sum(x > y for x, y in zip(ours, theirs, strict=True))


def test_a_difference_to_nothing_is_no_number_and_no_error():
    result = runs(a=[0.0, 2.0, np.nan, 4.0], b=[1.0, 3.0, 1.0, np.nan], c=[0.0, 0.0, 0.0, 0.0])
    changes = result.differences("ttft_s").set_index(["policy", "seed"])["change"]
    assert changes.loc["b"].isna().tolist() == [True, False, True, True]
    assert changes.loc["c"].dropna().tolist() == [-1.0, -1.0]
    table = result.paired("ttft_s").set_index("policy")
    assert table["seeds"].to_dict() == {"b": 1, "c": 2}
    assert table.loc["b", "mean"] == 0.5
    assert np.isnan(table.loc["b", ["lo", "hi", "boot_lo", "boot_hi"]].to_numpy(float)).all()
    assert runs(a=[0.0], b=[1.0]).paired("ttft_s")["mean"].isna().all()


def test_one_policy_alone_differs_from_nobody():
    assert runs(a=[1.0, 2.0]).paired("ttft_s").empty
    assert list(runs(a=[1.0, 2.0]).differences("ttft_s").columns) == ["policy", "seed", "change"]


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="there is no metric 'speed'; it must be one of task_latency_s"):
        runs(a=[1.0]).paired("speed")
    with pytest.raises(InputError, match="against is 'z'; it must be one of a, b"):
        runs(a=[1.0], b=[1.0]).differences("ttft_s", "z")


def test_one_run_has_a_mean_but_no_interval():
    alone = interval(np.array([5.0]))
    assert alone["mean"] == 5.0
    assert np.isnan([alone["lo"], alone["hi"], *bootstrap(np.array([5.0])).values()]).all()
    assert np.isnan(interval(np.array([]))["mean"])
