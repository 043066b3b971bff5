"""The default profile against a real engine and an independent simulator, where their figures are at hand."""

from __future__ import annotations

import csv
import os
import statistics
from pathlib import Path

import pytest
import strategies
from runs import append_only

from tao.model import Params
from tao.simulator import simulate
from tao.workloads import Task, Turn, Workload

SHARED = Path(os.environ.get("TAO_SHARED", Path(__file__).parents[2] / "shared")) / "calibration"
MEASURED = SHARED / "silicon_qwen3_32b_2xh100_vllm.csv"
AISIMULATE = SHARED / "aisimulate_agentic_qwen3_32b_2xh100.csv"

pytestmark = pytest.mark.skipif(strategies.INTERPRETED, reason="it takes minutes where nothing is compiled")


def where_there_is(path):
    reason = f"{path.name} is not part of the repository; TAO_SHARED may say where it is"
    return pytest.mark.skipif(not path.is_file(), reason=reason)


def points(path):
    """The rows of a CSV file, every entry a number."""
    rows = csv.DictReader(path.read_text("utf-8").splitlines())
    return [{name: float(entry) for name, entry in row.items()} for row in rows]


def means(history, first=0):
    """(TPOT ms, TTFT ms) of the turns from the given one on."""
    tpot, ttft = [], []
    for t in history.turns[first:]:
        tpot.append((t.finished_ps - t.first_token_ps) / (t.output_tokens - 1) / 1e9)
        ttft.append((t.first_token_ps - t.arrived_ps) / 1e9)
    return statistics.fmean(tpot), statistics.fmean(ttft)


@where_there_is(MEASURED)
def test_time_per_output_token_is_within_6_percent_of_30_measured_points(capsys):
    tpot_errors, ttft_errors = [], []
    for point in points(MEASURED):
        prompt, output, batch = (int(point[name]) for name in ("isl", "osl", "batch_size"))
        tasks = tuple(Task(f"r{i:04}", (Turn(prompt, 0, output),)) for i in range(6 * batch))
        requests = Workload("equal requests", tasks, 0)
        history = simulate(requests, "sticky", 1, batch, params=Params(reserve_tokens=0))
        tpot, ttft = means(history, 2 * batch)  # the start is in lock-step, which real clients are not
        tpot_errors.append(tpot / point["silicon_tpot_ms"] - 1)
        ttft_errors.append(ttft / point["silicon_ttft_ms"] - 1)
    mean, worst = (f(map(abs, tpot_errors)) for f in (statistics.fmean, max))
    ttft_mean = statistics.fmean(map(abs, ttft_errors))
    with capsys.disabled():
        print(f"\nTPOT off by {mean:.1%} (at most {worst:.1%}), TTFT by {ttft_mean:.0%}")
    assert len(tpot_errors) == 30
    assert mean <= 0.06


@where_there_is(AISIMULATE)
def test_agents_on_one_node_go_as_in_an_independent_simulator(capsys):
    """Conversations that grow, with equal turns and a fixed time between them, all begun in lock-step.

    Up to 8 at a time fit into the cache; from 12 on they do not, and from 16 on the node thrashes.
    """
    rows = points(AISIMULATE)
    for row in rows:
        at_once, sessions, turns = (int(row[name]) for name in ("concurrency", "sessions", "turns"))
        new, output = int(row["new_input_tokens_per_turn"]), int(row["output_tokens_per_turn"])
        work = append_only(*[[(new, output, row["inter_turn_delay_ms"] / 1000)] * turns] * sessions)
        params = Params(reserve_tokens=0)
        history = simulate(work, "sticky", 1, at_once, capacity_tokens=308_000, params=params)
        tpot, ttft = means(history)
        found = history.column("hit_tokens").sum() / history.column("prompt_tokens").sum()
        throughput = row["total_output_tokens"] * 1e12 / history.end_ps
        errors = {
            "output throughput": throughput / row["output_throughput_tok_s"] - 1,
            "TPOT": tpot / row["mean_tpot_ms"] - 1,
            "reuse": found / row["prefix_cache_reused_ratio"] - 1,
        }
        with capsys.disabled():
            told = ", ".join(f"{name} {error:+.1%}" for name, error in errors.items())
            print(f"\n{at_once} at a time: {told} (TTFT {ttft / row['mean_ttft_ms'] - 1:+.1%})", end="")
        assert history.column("prompt_tokens").sum() == row["total_input_tokens"]
        assert max(map(abs, errors.values())) <= (0.10 if at_once <= 8 else 0.20)
    assert [row["concurrency"] for row in rows] == [1, 4, 8, 12, 16, 24]
