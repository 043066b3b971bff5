"""Stories about more and more workers: when policy starts to matter, and what the verdict may say."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from tao import cli
from tao.comparisons import Comparison
from tao.crowding import MATTERS, Crowding, crowding, verdict
from tao.metrics import METRICS, measure
from tao.model import InputError
from tao.simulator import simulate
from tao.workloads import HUMAN, WORKLOADS, Task, Turn, Workload

SETTINGS = {"profile": "p", "nodes": 2, "capacity_tokens": 1000, "seeds": [0, 1, 2, 3]}


def found(changes, sessions=100, seeds=4):
    """A crowding in which policy b's latency is so many times policy a's, by number of workers."""
    races, draw = {}, np.random.default_rng(0)
    for workers, (change, spread) in changes.items():
        rows = []
        for seed in range(seeds):
            latency = 100.0 * (1 + draw.normal(0, 0.3))
            row = dict.fromkeys(METRICS, math.nan) | {"seed": seed, "capacity_over_live": 100 / workers}
            factor = 1 + change + spread * (seed - (seeds - 1) / 2)
            rows += [row | {"policy": "a", "task_latency_s": latency}]
            rows += [row | {"policy": "b", "task_latency_s": latency * factor}]
        races[workers] = Comparison(SETTINGS | {"seeds": list(range(seeds))}, pd.DataFrame(rows))
    return Crowding(races, sessions, ())


def test_it_starts_to_matter_where_it_goes_on_doing_so():
    text = verdict(found({50: (0.0, 0.01), 100: (0.1, 0.01), 150: (0.2, 0.01)}))
    assert text.startswith(
        "p on 2 nodes, 1,000 KV tokens each: on your 100 sessions a and b cannot be told apart up"
    )
    assert "up to 50 workers (capacity is 2x the live contexts); it starts to matter at 100 workers" in text
    assert "b is slower than a: +10% [+8%, +12%] at 100, +20% [+18%, +22%] at 150 workers. " in text


def test_one_clear_comparison_among_many_may_be_chance():
    text = verdict(found({50: (0.0, 0.01), 100: (0.1, 0.01), 150: (0.0, 0.01)}))
    assert "cannot be told apart up to 150 workers (capacity is 0.67x the live contexts), the most" in text
    assert "(one of 3 comparisons: may be chance)" in text


def test_losses_are_told_like_wins():
    text = verdict(found({50: (-0.1, 0.01), 100: (-0.2, 0.01)}))
    assert "it matters at 50 workers" in text
    assert "b is faster than a: -10% [-12%, -8%] at 50, -20% [-22%, -18%] at 100 workers" in text


def test_what_is_certain_but_small_does_not_matter():
    assert not any(row.clear for row in found({50: (MATTERS / 2, 0.0001)}).rows())


def test_few_sessions_and_single_runs_are_called_so():
    assert "of so few sessions they are too narrow" in verdict(found({50: (0.1, 0.01)}, sessions=3))
    once = verdict(found({50: (0.1, 0.01)}, seeds=1))
    assert once.endswith("Simulated once, so without an interval; give more --seeds.")


def test_all_policies_get_the_same_resamples_and_the_grid_reaches_past_the_knee():
    work = WORKLOADS["swe-lite"](0, 12)
    result = crowding(work, ["sticky", "tao"], 1, seeds=2, capacity_tokens=60_000)
    counts = list(result.races)
    assert counts == sorted(counts)
    room = {row.workers: row.capacity_over_live for row in result.rows() if row.policy == "sticky"}
    assert room[counts[0]] > 1.3
    assert room[counts[-1]] < 0.7
    for workers, race in result.races.items():
        assert race.settings["tasks"] == 3 * workers
        assert set(race.runs["seed"]) == {0, 1}
    drawn = [work.resampled(30, seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1]
    assert drawn[0].tasks != drawn[2].tasks
    assert {task.turns for task in drawn[0].tasks} <= {task.turns for task in work.tasks}


def test_a_person_ends_a_task_and_is_in_none():
    """Two tasks of one session, each as long as without the person."""
    first, second = Turn(100, 0, 20, HUMAN, HUMAN, 5000.0), Turn(130, 120, 10, "bash", "test", 3.0)
    last = Turn(150, 140, 10)
    with_person = simulate(Workload("w", (Task("a", (first, second, last)),), 0), "sticky", 1, 1)
    tool = Turn(100, 0, 20, "bash", "read", 5000.0)
    without = simulate(Workload("w", (Task("a", (tool, second, last)),), 0), "sticky", 1, 1)
    whole = measure(without)["task_latency_s"]
    assert measure(with_person)["task_latency_s"] == pytest.approx((whole - 5000.0) / 2, rel=1e-9)
    assert measure(with_person)["ttft_s"] == measure(without)["ttft_s"]


RACE = ["--policies", "tao,sticky"]
CSV = "session,turn,context_tokens,output_tokens,tool,tool_class,tool_seconds\n"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "mine.csv"
    rows = [f"s{s},{t},{1000 + 900 * t},80,bash,test,{0.5 + s % 3}" for s in range(25) for t in range(6)]
    path.write_text(CSV + "\n".join(rows) + "\n")
    return str(path)


def test_compare_on_a_log_sweeps_workers_and_ends_with_a_verdict(table, capsys):
    args = [
        "compare",
        "--workload",
        table,
        "--seeds",
        "2",
        "--policies",
        "tao,sticky",
        "--capacity-tokens",
        "30000",
    ]
    assert cli.main(args) == 0
    text = capsys.readouterr().out
    assert "capacity/live" in text
    assert text.splitlines()[-1].startswith(
        "qwen3-32b-2xh100 on 2 nodes, 30,000 KV tokens each: on your 25 sessions"
    )
    assert cli.main([*args, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == text.splitlines()[-1]
    assert told["settings"]["sessions"] == 25
    assert cli.main([*args, "--workers", "4"]) == 0
    assert "on your 25 sessions" in capsys.readouterr().out.splitlines()[-1]


def test_sessions_that_fit_no_node_are_counted(table, capsys):
    args = [
        "compare",
        "--workload",
        table,
        "--seeds",
        "1",
        "--policies",
        "sticky",
        "--capacity-tokens",
        "5000",
    ]
    assert cli.main(args) == 2
    assert "none of 25 sessions fits" in capsys.readouterr().err


def test_a_log_without_tokens_is_refused_with_the_reason(tmp_path, capsys):
    path = tmp_path / "steps.csv"
    columns = "program_id,step_id,prefill_s,decode_s,pause_s,tool_call_s,kv_hit_rate,completed_at"
    path.write_text(f"{columns}\np1,1,1,1,0,0,,1.0\n")
    assert cli.main(["compare", "--workload", str(path)]) == 2
    assert "tells tool times but no tokens" in capsys.readouterr().err


def test_unusable_arguments_are_refused():
    with pytest.raises(InputError, match="workers"):
        crowding(WORKLOADS["swe-lite"](0, 2), workers=[0])
