"""The default profile against measured runs of a real engine, where those are at hand."""

from __future__ import annotations

import csv
import os
import statistics
from pathlib import Path

import pytest

from tao.model import Params
from tao.simulator import simulate
from tao.workloads import Task, Turn, Workload

SHARED = Path(os.environ.get("TAO_SHARED", Path(__file__).parents[2] / "shared"))
MEASURED = SHARED / "calibration" / "silicon_qwen3_32b_2xh100_vllm.csv"


@pytest.mark.skipif(not MEASURED.is_file(), reason="the measured points are not part of the repository")
def test_time_per_output_token_is_within_6_percent_of_30_measured_points(capsys):
    tpot_errors, ttft_errors = [], []
    for point in csv.DictReader(MEASURED.read_text().splitlines()):
        prompt, output, batch = (int(float(point[name])) for name in ("isl", "osl", "batch_size"))
        tasks = tuple(Task(f"r{i:04}", (Turn(prompt, 0, output),)) for i in range(6 * batch))
        requests = Workload("equal requests", tasks, 0)
        requests = Workload("equal requests", tasks, 0)
        history = simulate(requests, "sticky", 1, batch, params=Params(reserve_tokens=0))
        steady = history.turns[2 * batch :]  # the start is in lock-step, which real clients are not
        tpot = statistics.fmean((t.finished_ps - t.first_token_ps) / (output - 1) for t in steady) / 1e9
        ttft = statistics.fmean(t.first_token_ps - t.arrived_ps for t in steady) / 1e9
        tpot_errors.append(tpot / float(point["silicon_tpot_ms"]) - 1)
        ttft_errors.append(ttft / float(point["silicon_ttft_ms"]) - 1)
    mean, worst = (f(map(abs, tpot_errors)) for f in (statistics.fmean, max))
    ttft_mean = statistics.fmean(map(abs, ttft_errors))
    with capsys.disabled():
        print(f"\nTPOT off by {mean:.1%} (at most {worst:.1%}), TTFT by {ttft_mean:.0%}")
    assert len(tpot_errors) == 30
    assert mean <= 0.06
