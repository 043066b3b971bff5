"""The paper's experiments: its figures are typed right and shown beside what we simulate, agreeing or not."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace

import pandas as pd
import pytest

from tao import experiments, library
from tao.cli import main
from tao.comparisons import compare
from tao.experiments import BASELINES, GRID, PRESETS, agrees, cells, chosen, reported, run
from tao.experiments.reports import _line
from tao.jobs import Arm
from tao.metrics import METRICS
from tao.model import InputError, Params
from tao.policies import POLICIES
from tao.profiles import PROFILES
from tao.workloads import WORKLOADS

NAN = math.nan
SMALL = {"seeds": 2, "tasks": 4}
ADDED = {"planning_s", "planning_share"}  # columns of runs that `measure` does not know
RECORDED = {
    *("dp_better_share", "dp_better_share_of_several", "changed_share"),
    *("plan_ms_mean", "plan_ms_p95", "resumes"),
}


def lines(name):
    with (library.folder("data") / "reported" / f"{name}.csv").open(encoding="utf-8") as text:
        return list(csv.DictReader(text))


def shown(capsys, *argv):
    status = main(["compare", *argv])
    out = capsys.readouterr()
    return status, out.out, out.err


# What the paper reports


def test_figures_are_the_papers():
    figures = reported()
    e1 = "E1-deepseek-swe-lite-64"
    latency = figures[e1, "task_latency_s", "tao", "best"]
    assert latency[:5] == ("vllm_cache_aware", 253.228, 185.410, -0.268, "change")
    assert figures[e1, "ttft_s", "tao", "best"][:4] == ("dynamo_kv", 0.351, 0.224, -0.363)
    assert figures[e1, "decode_tok_s", "tao", "best"][:4] == ("vllm_cache_aware", 1561.307, 2021.523, 0.295)
    assert figures["E1-qwen-swe-lite-96", "decode_tok_s", "tao", "best"].change == -0.051
    assert figures["E1-qwen-swe-verified-128", "task_latency_s", "tao", "best"].change == 0.025
    assert figures["E2-glm-swe-verified-96", "ttft_s", "tao", "best"].change == -0.384
    assert figures["E5-delay-4-20", "total_completion_s", "tao", "previous"].change == -0.1928
    assert figures["E5-delay-4-20", "changed_share", "", ""].tao_value == 200 / 2_521
    assert figures["E6-qwen-swe-lite-160", "fallback_share", "", ""].tao_value == 0.0898
    assert figures["E7-session-hash-16", "decode_tok_s", "tao", "session_hash"].baseline_value == 785.159


@pytest.mark.parametrize("row", lines("changes"))
def test_reported_changes_follow_from_the_values_beside_them(row):
    if row["baseline_value"]:
        change = float(row["tao_value"]) / float(row["baseline_value"]) - 1
        assert change == pytest.approx(float(row["change"]), abs=0.002)  # the paper's own rounding
    if row["claim"] != "change":
        assert not row["baseline_value"]


def test_every_reported_row_has_a_setting_that_shows_it():
    for row in lines("changes"):
        keys = {(c.metric, c.arm, c.against) for c in PRESETS[row["preset"]].contrasts}
        assert (row["metric"], row["arm"], row["against"]) in keys
        assert row["baseline"] in ("", *BASELINES)
    for row in lines("values"):
        alone = {c.metric for c in PRESETS[row["preset"]].contrasts if not c.against}
        assert row["metric"] in alone | RECORDED


# Presets


def test_there_are_twelve_and_six_main_settings_and_each_experiment_has_some():
    assert [len(chosen(e)) for e in ("E1", "E2", "E5", "E6", "E7", "E8")] == [12, 6, 3, 4, 1, 5]
    assert {p.workers for p in chosen("E8")} == {4, 8, 16, 32, 64}
    assert all(p.nodes == 1 for e in ("E2", "E8") for p in chosen(e))
    assert {(p.nodes, p.profile) for p in chosen("E1")} == {
        (2, "deepseek-v4-flash-4xh100"),
        (4, "qwen3-32b-2xh100"),
    }
    assert chosen("losses") == GRID


@pytest.mark.parametrize("preset", [*PRESETS.values(), *GRID], ids=lambda p: p.name)
def test_presets_name_what_there_is_and_say_what_they_cannot_show(preset):
    assert preset.name.startswith(preset.experiment)
    assert preset.workload in WORKLOADS
    assert preset.profile in PROFILES
    assert preset.cannot
    names = [arm.name for arm in preset.arms]
    assert len(set(names)) == len(names)
    assert {arm.policy for arm in preset.arms} <= set(POLICIES)
    for contrast in preset.contrasts:
        assert contrast.arm in names
        assert contrast.against in ("", "best", *names)
        assert contrast.against != "best" or set(BASELINES) <= set(names)
        assert contrast.metric in {*METRICS} | ADDED


def test_the_arms_of_the_ablation_switch_one_thing_at_a_time():
    arms = {arm.name: arm for arm in PRESETS["E3-deepseek-swe-lite-32"].arms}
    assert arms["credit only"].params == Params(decay=False, readiness=False)
    assert arms["credit + decay"] == Arm("credit + decay", "tao", Params(readiness=False))


# What follows from an interval


@pytest.mark.parametrize(
    ("change", "lo", "hi", "claim", "said"),
    [
        (-0.1, -0.3, -0.2, "change", "yes"),
        (-0.1, 0.01, 0.2, "change", "no"),
        (0.1, 0.01, 0.2, "change", "yes"),
        (0.1, -0.2, -0.01, "change", "no"),
        (0.1, -0.2, 0.4, "change", "unclear"),
        (0.1, 0.0, 0.0, "change", "unclear"),
        (0.1, NAN, NAN, "change", "unclear"),
        (None, 0.1, 0.2, "change", ""),
        (0.02, -0.5, 0.01, "at_most", "yes"),
        (0.02, 0.03, 0.04, "at_most", "no"),
        (0.02, 0.01, 0.04, "at_most", "unclear"),
        (-0.08, -0.01, 0.3, "at_least", "yes"),
        (-0.08, -0.3, -0.1, "at_least", "no"),
        (0.02, -0.01, 0.01, "within", "yes"),
        (0.02, 0.03, 0.04, "within", "no"),
        (0.02, -0.04, -0.03, "within", "no"),
        (0.02, -0.03, 0.01, "within", "unclear"),
    ],
)
def test_agreement_by_hand(change, lo, hi, claim, said):
    assert agrees(change, lo, hi, claim) == said


def by_hand(metric, tao, absolute=False, **rivals):
    values = pd.DataFrame({"tao": tao} | {name: [9.0, 9.0] for name in BASELINES} | rivals)
    return _line(
        experiments.Contrast(metric, absolute=absolute),
        values,
        experiments.Figure(change=-0.1, claim="change"),
    )


def test_the_best_baseline_is_the_best_in_that_metric_and_better_means_better():
    fast = by_hand("task_latency_s", [4.0, 8.0], dynamo_kv=[5.0, 10.0], vllm_rr=[6.0, 11.0])
    assert (fast["baseline"], fast["simulated_baseline"], fast["simulated_tao"]) == ("dynamo_kv", 7.5, 6.0)
    assert fast["simulated_change"] == pytest.approx(-0.2)  # paired: the same on both seeds
    assert (fast["agrees"], fast["tao_is"]) == ("yes", "better")
    slow = by_hand("decode_tok_s", [8.0, 16.0], dynamo_kv=[10.0, 20.0])
    assert (slow["baseline"], slow["agrees"], slow["tao_is"]) == ("dynamo_kv", "yes", "worse")
    late = by_hand("ttft_s", [0.2, 0.2], absolute=True, vllm_rr=[0.1, 0.1])
    assert late["simulated_change"] == pytest.approx(0.1)
    assert (late["agrees"], late["tao_is"]) == ("no", "worse")
    assert by_hand("ttft_s", [8.0, 12.0])["tao_is"] == "unclear"


# Runs, shrunk


@pytest.mark.parametrize(
    "name",
    [
        "E1-qwen-swe-lite-96",
        "E2-glm-swe-verified-96",
        "E3-deepseek-swe-lite-32",
        "E5-delay-1-5",
        "E7",
        "losses-qwen-swe-lite-32",
    ],
)
def test_a_preset_runs_and_every_comparison_is_in_its_table(name):
    (preset,) = chosen(name)
    report = run(name, **SMALL)
    assert list(report.table.columns) == list(experiments.COLUMNS)
    compared = report.table[: len(preset.contrasts)]
    assert list(compared["metric"]) == [c.metric for c in preset.contrasts]
    assert set(report.table["metric"][len(preset.contrasts) :]) <= RECORDED
    assert len(report.runs) == 2 * len(preset.arms)
    assert set(report.table["agrees"]) <= {"yes", "no", "unclear", ""}
    assert any("not the paper's setting" in note for note in report.notes)


def test_the_runs_are_those_of_compare():
    preset = PRESETS["E7-session-hash-16"]
    report = run(preset, **SMALL)
    same = compare("swe-lite", preset.arms, 2, 16, profile=preset.profile, **SMALL)
    columns = ["policy", "seed", *METRICS]
    pd.testing.assert_frame_equal(report.runs[columns], same.runs[columns])
    change = same.paired("decode_tok_s", "session_hash").iloc[0]
    row = report.table.iloc[0]
    assert (row["simulated_change"], row["lo"], row["hi"]) == pytest.approx(
        (change["mean"], change.lo, change.hi)
    )
    assert report.table.set_index("metric").loc["resumes", "simulated_tao"] == 0


def test_recorded_decisions_are_counted_beside_the_reported_ones():
    rows = run("E3-deepseek-swe-lite-32", seeds=1, tasks=40).table.set_index("metric")
    assert "reported 6 of 35" in rows.loc["dp_better_share", "note"]
    assert "here " in rows.loc["dp_better_share", "note"]
    assert rows.loc["dp_better_share", "reported_tao"] == 6 / 35
    share = rows.loc["dp_better_share", "simulated_tao"]
    assert 0 <= share <= rows.loc["dp_better_share_of_several", "simulated_tao"]


def test_planning_costs_count_failed_searches():
    # Crowded nodes, no credit to tell sessions apart, and one state: else no search fails.
    cost = Params(quantum_tokens=64, state_budget=1, half_life_s=0.1, replan_gap_s=2.0)
    preset = PRESETS["E6-qwen-swe-lite-160"]
    arms = (Arm("tao", "tao", cost), *preset.arms[1:])
    report = run(replace(preset, workers=64, capacity_tokens=60_000, arms=arms), seeds=1, tasks=64)
    tao = report.runs[report.runs["policy"] == "tao"].iloc[0]
    failed_s = cost.plan_cost_per_state_s * cost.state_budget * tao["fallback_share"] * tao["planner_calls"]
    assert tao["fallback_share"] > 0
    assert tao["planning_s"] > cost.plan_cost_s * tao["planner_calls"] + failed_s
    assert set(report.table["metric"]) >= {"plan_ms_mean", "plan_ms_p95"}


def test_one_seed_is_unclear_and_zero_tasks_an_error():
    report = run("E1-qwen-terminal-bench-16", seeds=1, tasks=3)
    assert set(report.table["tao_is"]) == {"unclear"}
    with pytest.raises(InputError, match="tasks is 0"):
        run("E1-qwen-terminal-bench-16", tasks=0)


# The command


def test_the_command_prints_the_table_and_what_it_cannot_show(capsys):
    status, out, err = shown(capsys, "--preset", "E8-glm-swe-lite-8", "--tasks", "4", "--seeds", "2")
    assert (status, err) == (0, "")
    assert all(word in out for word in experiments.HEAD)
    assert "at most +2.3%" in out
    assert "+15.0 ms" in out
    assert "cannot show: on one node" in out
    assert "our choice: the model" in out
    assert "known error" in out
    assert "note: 4 sessions instead of the preset's: not the paper's setting" in out
    assert "note: 2 seeds instead of 8" in out


def test_json_is_finite_or_null(capsys):
    status, out, _ = shown(capsys, "--preset", "E7", "--tasks", "2", "--seeds", "1", "--json")
    data = json.loads(out)
    assert status == 0
    assert data["label"] == "simulated"
    assert all(list(row) == list(experiments.COLUMNS) for row in data["rows"])
    assert data["rows"][0]["lo"] is None
    assert data["rows"][0]["reported_tao"] == 886.772
    assert data["presets"][0]["settings"]["workers"] == 16


def test_list_names_every_preset(capsys):
    status, out, _ = shown(capsys, "--preset", "list")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == list(PRESETS)
    assert [row["name"] for row in json.loads(shown(capsys, "--preset", "list", "--json")[1])] == list(
        PRESETS
    )


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--preset", "E9"], "preset is 'E9'; it must be an experiment or a setting: E1, E2"),
        (["--preset", "E1", "--workers", "3"], "--preset fixes --workers; give only --tasks, --seeds and"),
        (["--preset", "E1", "--seeds", "0"], "seeds is 0"),
    ],
)
def test_mistakes_get_one_line(capsys, argv, said):
    status, out, err = shown(capsys, *argv)
    assert (status, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_losses_come_first_and_only_clear_rows_are_printed():
    report = run("E7", **SMALL)
    table = pd.concat([report.table.iloc[:1]] * 3, ignore_index=True).assign(
        tao_is=["better", "unclear", "worse"]
    )
    grid = experiments.Report(GRID[:1], report.settings, table, report.runs, 2, ())
    assert [row[-1] for row in cells(grid)] == ["worse", "better"]
