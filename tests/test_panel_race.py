"""RacePanel: pending settings, verdicts, undo, code that runs, export; and the exercises of its notebook."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ipywidgets.widgets import widget as widget_module

import tao.workloads
from tao.charts import seeds
from tao.comparisons import compare
from tao.exercises import tuning
from tao.model import InputError
from tao.panels import RacePanel, race, race_words
from tao.profiles import DEFAULT_PROFILE, PROFILES, Profile
from tao.tuning import METRICS, PRESETS, Setting, code

SMALL = Setting(nodes=1, workers=6, seeds=3, rivals=("sticky", "thunderagent"))


@pytest.fixture(scope="module")
def shared() -> Iterator[RacePanel]:
    panel = RacePanel(SMALL)
    yield panel
    panel.close()


@pytest.fixture
def panel(shared: RacePanel) -> RacePanel:
    shared.history.clear()
    shared.setting = SMALL
    shared.undo()  # with nothing to take back, it drops what is pending
    shared.metric = METRICS[0]
    return shared


def drawn(panel: RacePanel) -> dict[str, Any]:
    """What the figure was last told to draw."""
    params: Any = panel.figure.live.params
    return dict(params.race)


def state(panel: RacePanel) -> tuple[Any, ...]:
    """All that a user sees, apart from the serial number of the drawing."""
    shown = {k: v for k, v in drawn(panel).items() if k != "version"}
    boxes = panel.about, panel.status, panel.waiting, *panel.boxes, panel.figure._table
    return panel.pending, shown, [box.value for box in boxes], panel.text()


@pytest.mark.parametrize("metric", METRICS)
def test_every_dot_and_interval_is_that_of_the_comparison(panel: RacePanel, metric: str) -> None:
    panel.metric = metric
    result = compare(**SMALL.arguments())
    paired = result.paired(metric, "tao").set_index("policy")
    for row in drawn(panel)["means"]:
        assert (row["mean"], row["lo"], row["hi"]) == tuple(paired.loc[row["policy"], ["mean", "lo", "hi"]])
        assert row["verdict"] == seeds.verdict_of(row["lo"], row["hi"], metric)
    assert sorted(dot["x"] for dot in drawn(panel)["dots"]) == sorted(
        result.differences(metric, "tao")["change"]
    )


def test_fields_are_pending_until_run(panel: RacePanel) -> None:
    before = drawn(panel)
    panel.fields["workers"].value = 8
    panel.rivals["thunderagent"].value = False
    assert panel.setting == SMALL
    assert drawn(panel) == before
    assert "Pending: workers 8, rivals sticky. Run races it." in panel.waiting.value
    panel.buttons["Run"].click()
    assert panel.setting == replace(SMALL, workers=8, rivals=("sticky",))
    assert "Nothing is pending" in panel.waiting.value
    assert "8 at a time" in panel.text()
    assert [row["policy"] for row in drawn(panel)["means"]] == ["sticky"]


def test_slow_tools_and_back(panel: RacePanel) -> None:
    before = state(panel)
    panel.change(delay="4 to 20 s")
    panel.run()
    assert drawn(panel)["means"] != before[1]["means"]
    panel.buttons["Undo"].click()
    assert state(panel) == before
    assert panel.history == []


def test_a_preset_is_filled_in_and_does_not_run_by_itself(panel: RacePanel) -> None:
    panel.preset.value = "crowded, slow tools"
    assert panel.pending == PRESETS["crowded, slow tools"]
    assert panel.setting == SMALL
    panel.preset.value = "(choose)"


def test_wins_and_losses_are_both_among_the_presets() -> None:
    verdicts = {
        name: [seeds.verdict(race, rival) for rival in PRESETS[name].rivals]
        for name in ("crowded, quick tools", "crowded, slow tools")
        for race in [compare(**PRESETS[name].arguments())]
    }
    assert set(verdicts["crowded, quick tools"]) == {"TAO better"}
    assert verdicts["crowded, slow tools"][1:] == ["TAO worse", "TAO worse"]
    ratio = compare(**PRESETS["room for all"].arguments()).runs["capacity_over_live"]
    assert ratio.min() > 1.2


def test_a_verdict_turns_with_the_metric() -> None:
    assert seeds.verdict_of(-0.3, -0.1, "task_latency_s") == "TAO worse"
    assert seeds.verdict_of(-0.3, -0.1, "decode_tok_s") == "TAO better"
    assert seeds.verdict_of(float("nan"), float("nan"), "ttft_s") == "unclear"


def test_one_seed_has_no_interval_and_no_verdict(panel: RacePanel) -> None:
    panel.change(seeds=1)
    panel.run()
    assert {row["verdict"] for row in drawn(panel)["means"]} == {"unclear"}
    assert "1 seed: unclear against 2" in panel.status.value


def test_the_code_is_the_race(panel: RacePanel, capsys: pytest.CaptureFixture[str]) -> None:
    panel.change(half_life_s=20.0, statistic="median")
    panel.buttons["Copy as Python"].click()
    assert "params=tao.Params(half_life_s=20.0, statistic='median')" in panel.copied.value
    scope: dict[str, Any] = {}
    exec(panel.copied.value, scope)
    panel.run()
    pd.testing.assert_frame_equal(scope["race"].runs, panel.race.runs)
    assert "sticky" in capsys.readouterr().out


MINE = replace(PROFILES[DEFAULT_PROFILE], name="my-servers", host_ms=np.float64(0.1) * 3, t0_ms=20)


@pytest.mark.parametrize("profile", [MINE, PROFILES[DEFAULT_PROFILE], "glm-4.7-8xh100", Path("mine.json")])
def test_the_code_runs_with_any_profile(
    profile: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.json").write_text(MINE.to_json())
    panel = RacePanel(replace(SMALL, workers=4, seeds=1), profile=profile)
    scope: dict[str, Any] = {}
    exec(panel.code, scope)
    assert scope["race"].settings == panel.race.settings
    pd.testing.assert_frame_equal(scope["race"].runs, panel.race.runs)
    assert scope.get("Profile") is (Profile if profile is MINE else None)  # spelled out only where it must be
    panel.close()


def test_a_profile_in_the_code_is_that_profile() -> None:
    scope: dict[str, Any] = {"compare": dict}
    exec(code(SMALL, MINE).replace("tao.compare", "compare").partition("print")[0], scope)
    assert scope["race"]["profile"] == MINE


@pytest.mark.parametrize("kind", [str, Path])
def test_the_code_runs_with_the_logs_that_are_raced(
    kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"s{i},0,{900 + i},9\n" for i in range(30))
    Path("mine.csv").write_text(f"session,turn,context_tokens,output_tokens\n{rows}")
    panel = RacePanel(replace(SMALL, workload=kind("mine.csv"), seeds=1), workloads=["mine.csv"])
    assert (panel.pending, panel.fields["workload"].options.count("mine.csv")) == (panel.setting, 1)
    scope: dict[str, Any] = {}
    exec(panel.code, scope)
    pd.testing.assert_frame_equal(scope["race"].runs, panel.race.runs)
    panel.close()


def test_a_workload_that_no_program_can_name_is_refused() -> None:
    work: Any = tao.workloads.WORKLOADS["swe-lite"](tasks=2)
    with pytest.raises(
        InputError, match=r"workload is a Workload; .* give one of these, or call tao\.compare"
    ):
        Setting(workload=work)


def test_every_press_shows_the_code_anew_for_the_browser_to_select(panel: RacePanel) -> None:
    before = panel.copied.shown
    for press in (1, 2):
        panel.copied.value = "edited in the browser"
        panel.buttons["Copy as Python"].click()
        assert (panel.copied.value, panel.copied.shown) == (panel.code, before + press)


def test_export_writes_the_file_that_is_named(
    panel: RacePanel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("race.csv", "race.json", "race.py"):
        panel.file.value = name
        panel.buttons["Export"].click()
        assert f"Written: {name}." in panel.exported.value
    pd.testing.assert_frame_equal(pd.read_csv("race.csv"), panel.race.runs)
    assert json.loads(Path("race.json").read_text())["settings"]["label"] == "simulated"
    assert Path("race.py").read_text() == panel.code + "\n"
    with pytest.raises(InputError, match=r"cannot write race\.py"):
        panel.export()
    panel.file.value = "race.exe"
    with pytest.raises(InputError, match=r"must end in \.csv, \.json, \.py"):
        panel.export()


def test_what_takes_long_shows_how_far_it_is(panel: RacePanel, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    panel.progress.observe(lambda change: seen.append(change["new"]), "value")
    monkeypatch.setattr(race, "QUIET_S", -1.0)
    panel.change(workers=7)
    panel.run()
    assert seen
    assert max(seen) == 100
    assert panel.progress.layout.visibility == "hidden"


def test_what_is_not_offered_is_refused(panel: RacePanel) -> None:
    for field, match in (({"size": 1}, "no field 'size'"), ({"delay": "long"}, "delay is 'long'")):
        with pytest.raises(InputError, match=match):
            panel.change(**field)
    with pytest.raises(InputError, match="rival 'magic' is not offered"):
        panel.change(rivals=("magic",))
    with pytest.raises(InputError, match="metric is 'x'"):
        panel.metric = "x"
    panel.change(rivals=())
    with pytest.raises(InputError, match="no rival is chosen"):
        panel.run()
    assert "no rival is chosen" in panel.error.value


REFUSED = [
    ({"nodes": 20}, "nodes is 20; it must be a whole number from 1 to 16"),
    ({"workers": 500}, "workers is 500; it must be a whole number from 1 to 200"),
    ({"workers": 4.5}, "workers is 4.5; it must be a whole number"),
    ({"capacity_tokens": 100}, "capacity_tokens is 100"),
    ({"half_life_s": 0.1}, "half_life_s is 0.1; it must be a number from 0.5 to 600"),
    ({"horizon_s": float("nan")}, "horizon_s is nan; it must be a number from 0 to 60"),
    ({"seeds": True}, "seeds is True"),
    ({"delay": "long"}, "delay is 'long'; it must be one of none"),
    ({"statistic": "mode"}, "statistic is 'mode'; it must be one of mean"),
    ({"workload": "nothing"}, "nothing"),
    ({"rivals": ("magic",)}, "rival 'magic' is not offered"),
    ({"rivals": "sticky"}, "rivals is 'sticky'; it must be a sequence"),
]


@pytest.mark.parametrize(("fields", "reason"), REFUSED)
def test_a_field_never_changes_what_it_is_given(
    panel: RacePanel, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        panel.change(**fields)
    assert panel.pending == SMALL


@pytest.mark.parametrize(("fields", "reason"), [*REFUSED, ({"rivals": ()}, "no rival is chosen; take at")])
def test_a_setting_that_cannot_be_shown_is_refused(fields: dict[str, Any], reason: str) -> None:
    before = len(widget_module._instances)
    with pytest.raises(InputError, match=reason):
        RacePanel(Setting(**fields))
    assert len(widget_module._instances) == before


def test_a_setting_in_its_own_order_and_types_is_not_pending() -> None:
    panel = RacePanel(Setting(workers=np.int64(4), half_life_s=5, seeds=1, rivals=["sticky", "thunderagent"]))  # type: ignore[arg-type]
    assert panel.pending == panel.setting
    assert "Nothing is pending." in panel.waiting.value
    assert "workers=4," in panel.code
    panel.close()


def test_picture_text_and_table_say_the_same(panel: RacePanel) -> None:
    bundle = panel._repr_mimebundle_()
    assert 2_000 < len(bundle["image/png"]) <= 40 * 1024
    for row in drawn(panel)["means"]:
        assert row["change"] in bundle["text/plain"]
    table = race_words.seed_table(panel.race, panel.metric).text()
    assert all(dot["words"].split(": ")[1] in table for dot in drawn(panel)["dots"])


# Exercises

LOSS = Setting(workload="terminal-bench", workers=24, delay="2 to 10 s", seeds=4)
NO_LOSS: list[dict[str, Any]] = [{"delay": "none", "workers": 4}, {"seeds": 2}, {"workers": 200}]


def test_the_checks_know_unanswered_wrong_and_right(capsys: pytest.CaptureFixture[str]) -> None:
    tries: list[tuple[Any, list[Any], Any]] = [
        (tuning.check_knee, [300_000, 30_000, 60_000, 10, "much"], 90_000),
        (
            tuning.check_loss,
            [PRESETS["crowded, slow tools"], *(replace(LOSS, **no) for no in NO_LOSS), "slow"],
            LOSS,
        ),
    ]
    for check, wrong, right in tries:
        for answer in (..., *wrong, right):
            check(answer)
        first, *middle, last = capsys.readouterr().out.splitlines()
        assert first == "not answered yet"
        assert len(middle) == len(wrong)
        assert all(line.startswith("not yet: ") for line in middle)
        assert last.startswith("right. ")
