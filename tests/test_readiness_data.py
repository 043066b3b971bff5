"""How well returns of real tools are predicted: recordings replayed through the readiness lab.

`pytest -s tests/test_readiness_data.py` prints the figures. Recorded texts were removed from the files, so
the class comes from their column and a sleep from the seconds it asked for.
"""

from __future__ import annotations

import csv
import gzip
import os
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tao import lab
from tao.lab import ToolCalls
from tao.model import Params

SHARED = Path(os.environ.get("TAO_SHARED", Path(__file__).parents[2] / "shared"))
FILES = ("terminal_bench_mini_sonnet4", "swe_rebench_claude_code_claude")
ORDERS = ("together", "in turn")


@cache
def recorded(name: str, order: str = "together") -> ToolCalls:
    """The calls of known length of a file; `began_s` counts from the first request of their session."""
    path = SHARED / "traces" / "norm" / f"{name}.csv.gz"
    if not path.is_file():
        pytest.skip(f"{path} is not here; TAO_SHARED may name the folder above traces/")
    if order == "in turn":
        return recorded(name).in_turn()
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return ToolCalls.of_rows(
            name,
            [
                (
                    row["session"],
                    row["tool"],
                    row["tool_class"],
                    float(row["t_start"]) + float(row["llm_seconds"] or 0.0),
                    float(row["tool_seconds"]),
                    float(row["sleep_req"]) if row["sleep_req"] else None,
                )
                for row in csv.DictReader(file)
                if row["tool"] and row["tool_seconds"]
            ],
        )


@cache
def chances(name: str, order: str) -> pd.DataFrame:
    return lab.chances(recorded(name, order))


@cache
def ladder(name: str, order: str) -> pd.DataFrame:
    return lab.ladder(recorded(name, order).without("sleep")).set_index(["statistic", "when"])


@cache
def best_constant(name: str) -> tuple[float, float]:
    """The constant guess with the least MAE, and that MAE, in seconds; only hindsight knows it."""
    lasted_s = recorded(name).lasted_s
    grid = np.unique([0.0, np.median(lasted_s), lasted_s.mean(), *np.geomspace(0.001, 400.0, 4000)])
    errors = np.array([np.abs(lasted_s - constant_s).mean() for constant_s in grid])
    return float(grid[errors.argmin()]), float(errors.min())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", FILES)
def test_survival_is_better_than_mean_and_median_beyond_chance(name, order):
    found = lab.paired(chances(name, order), against=["mean", "median"])
    assert len(found) == 4  # against two, in two scores
    assert (found["boot_hi"] < 0).all()
    assert (found["hi"] < 0).all()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", FILES)
def test_the_median_per_class_is_within_half_a_second_in_at_least_74_percent(name, order):
    assert ladder(name, order).loc[("median", "start"), "within"] >= 0.74


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", FILES)
def test_the_median_per_class_beats_every_constant_and_the_running_mean(name, order):
    constant_s, constant_mae_s = best_constant(name)
    assert constant_s == np.median(recorded(name).lasted_s)  # as theory has it
    found = ladder(name, order)["mae_s"]
    assert found["median", "start"] < min(constant_mae_s, found["mean", "start"])


@pytest.mark.parametrize("name", FILES)
def test_the_first_ready_bit_of_the_median_beats_the_base_rate(name):
    hits = {}
    for statistic in ("mean", "median"):
        first = lab.decisions(recorded(name), Params(statistic=statistic)).query("ran_s == 0")
        said, true = first["ready"], first["returns"]
        hits[statistic] = (said & true).sum() / said.sum(), (said & true).sum() / true.sum(), true.mean()
    precision, recall, base = hits["median"]
    assert precision > base
    assert recall > hits["mean"][1]


@pytest.mark.parametrize("name", FILES)
def test_print_the_figures(name):
    calls = recorded(name)
    tables = {
        "errors, recomputed": lab.ladder(calls),
        "errors per rule": lab.ladder(calls, by=["rule"]),
        "scores": lab.scores(chances(name, "together")),
        "survival against the others": lab.paired(chances(name, "together")),
    }
    print(f"\n{name}: {len(calls):,} calls; reported by the TAO paper, other tools: {lab.PAPER}")
    for title, table in tables.items():
        print(f"{title}\n{table.round(4).to_string(index=False)}")
        assert len(table)
