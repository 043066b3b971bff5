"""Metrics of a run and the comparison over seeds, against recomputation by hand."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from tao.history import History, TurnRow
from tao.metrics import METRICS, Comparison, compare, interval, measure, steady_window
from tao.model import InputError
from tao.policies import Sticky
from tao.profiles import PS_PER_S
from tao.simulator import simulate
from tao.workloads import Task, Turn, Workload


def row(session, turn, times_s, tokens=(100, 40, 10), node=0, promised=-1):
    times = [round(t * PS_PER_S) for t in times_s]
    prompt, hit, out = tokens
    return TurnRow(session, turn, node, *times, prompt, hit, out, 0, 0, promised)


def by_hand():
    history = History({"nodes": 2, "capacity_tokens": 500}, ["a", "b"], ["n0", "n1"])
    history.turns = [
        row(0, 0, (0, 1, 2, 4, 8, 10), tokens=(100, 0, 5)),
        row(1, 0, (0, 0, 0, 2, 2, 2), tokens=(100, 0, 1), node=1),
        row(0, 1, (10, 10, 10, 11, 12, 12), tokens=(200, 100, 3), node=1, promised=150),
    ]
    history.started_ps = {0: 0, 1: 0}
    history.finished_ps = {0: 12 * PS_PER_S, 1: 2 * PS_PER_S}
    history.end_ps = 12 * PS_PER_S
    history.live_token_ps = 12 * PS_PER_S * 250
    return history


def test_every_metric_by_hand():
    values = measure(by_hand())
    assert values == {
        "task_latency_s": 7.0,
        "ttft_s": (4 + 2 + 1) / 3,
        "ttft_engine_s": (3 + 2 + 1) / 3,
        "pool_wait_s": 1 / 3,
        "tool_end_to_first_token_s": 1.0,
        "decode_tok_s": 9 / 12,
        "decode_tok_s_makespan": 9 / 12,
        "total_completion_s": 12.0,
        "prefix_hit_rate": 100 / 400,
        "credit_realized": 100 / 150,
        "pauses": 0.0,
        "migrations": 1.0,
        "capacity_over_live": 1000 / 250,
    }
    assert list(values) == list(METRICS)


def test_the_steady_window_lies_between_the_first_end_and_the_last_start():
    history = by_hand()
    assert steady_window(history) == (0, history.end_ps)
    history.started_ps[2] = 6 * PS_PER_S
    assert steady_window(history) == (2 * PS_PER_S, 6 * PS_PER_S)
    # Of session 0's five tokens one comes at 4 s and half of the other four by 6 s; session 1's at 2 s.
    assert measure(history)["decode_tok_s"] == (1 + 2 + 1) / 4


def test_the_parts_of_a_turn_add_up_exactly():
    history = simulate("swe-lite", "tao", 2, 8, tasks=8, capacity_tokens=45_000)
    for t in history.turns:
        pool, queue = t.submitted_ps - t.arrived_ps, t.scheduled_ps - t.submitted_ps
        prefill, decode, tool = (
            t.first_token_ps - t.scheduled_ps,
            t.finished_ps - t.first_token_ps,
            t.tool_end_ps - t.finished_ps,
        )
        assert min(pool, queue, prefill, decode, tool) >= 0
        assert pool + queue + prefill + decode + tool == t.tool_end_ps - t.arrived_ps


@pytest.mark.parametrize("seeds", [2, 3, 8, 30])
def test_95_of_100_intervals_cover_the_true_mean(seeds):
    drawn = np.random.default_rng(seeds).normal(10, 2, (4000, seeds))
    covered = [x["lo"] <= 10 <= x["hi"] for x in map(interval, drawn)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.015)


def test_paired_differences_are_taken_seed_by_seed():
    runs = pd.DataFrame(
        {"policy": ["a", "b"] * 3, "seed": [0, 0, 1, 1, 2, 2], "ttft_s": [1.0, 1.1, 2.0, 2.2, 10.0, 9.0]}
    )
    (row,) = Comparison({}, runs).paired("ttft_s").to_dict("records")
    assert row["policy"] == "b"
    assert row["mean"] == pytest.approx((0.1 + 0.1 - 0.1) / 3)
    assert row["above"] == 2
    assert row["lo"] < 0 < row["hi"]


def test_one_run_has_a_mean_but_no_interval():
    alone = interval(np.array([5.0]))
    assert alone["mean"] == 5.0
    assert np.isnan([alone["lo"], alone["hi"]]).all()
    assert np.isnan(interval(np.array([]))["mean"])


def test_a_workload_in_which_nothing_is_drawn_runs_once():
    turns = (Turn(100, 0, 3, "bash", "read", 0.5), Turn(120, 103, 2))
    fixed = Workload("fixed", (Task("a", turns),), 0)
    result = compare(fixed, ["sticky"], 1, 1, seeds=8)
    assert len(result.runs) == 1
    assert any("nothing here is drawn" in note for note in result.settings["notes"])
    assert result.to_dict()["policies"][0]["ttft_s"]["lo"] is None


def test_policies_are_compared_on_the_same_sessions():
    seen = []
    result = compare(
        "swe-lite", ["tao", "sticky"], 2, 6, tasks=6, seeds=2, capacity_tokens=50_000, progress=seen.append
    )
    assert len(result.runs) == 4
    assert result.runs.groupby("seed").size().tolist() == [2, 2]
    data = result.to_dict()
    assert [p["policy"] for p in data["policies"]] == ["tao", "sticky"]
    assert set(data["policies"][0]) == {"policy", *METRICS}
    assert data["settings"]["seeds"] == [0, 1]
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert seen == sorted(seen)
    assert 0.9 < seen[-1] <= 1.0


def test_the_same_comparison_twice_gives_the_same_bytes():
    texts = [
        json.dumps(compare("terminal-bench", ["thunderagent"], 1, 4, tasks=4, seeds=2).to_dict())
        for _ in range(2)
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policies": []}, "policies are none"),
        ({"policies": ["tao", "tao"]}, "name each once"),
        ({"policies": ["rr"]}, "'rr'; it must be one of tao"),
        ({"seeds": 0}, "seeds is 0"),
        ({"workload": "swe-large"}, "swe-large"),
        ({"profile": "a100"}, "'a100'; it must be one of"),
    ],
)
def test_unusable_arguments_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        compare(**({"workload": "swe-lite", "policies": ["sticky"], "tasks": 2, "seeds": 1} | change))


def test_a_policy_of_ones_own_is_compared_by_its_class():
    class Mine(Sticky):
        pass

    result = compare("swe-lite", [Mine, "sticky"], 2, 4, tasks=4, seeds=2)
    mine, sticky = (result.runs[result.runs["policy"] == name] for name in ("Mine", "sticky"))
    assert mine["ttft_s"].tolist() == sticky["ttft_s"].tolist()

    class Nothing:
        def __init__(self, params):
            pass

    with pytest.raises(InputError, match="policy Nothing lacks route, on_finish, tick, period_s, gap_s"):
        compare("swe-lite", [Nothing], tasks=2, seeds=1)


def test_one_policy_may_be_given_as_a_word():
    assert len(compare("swe-lite", "sticky", 1, 2, tasks=2, seeds=1).runs) == 1
