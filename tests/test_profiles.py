"""Engine profiles: the law in whole picoseconds, the fit to the tables, and profiles of one's own."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tao.model import InputError
from tao.profiles import PROFILES, Profile, profile
from tao.simulator import simulate

SHARED = Path(os.environ.get("TAO_SHARED", Path(__file__).parents[2] / "shared"))
GRID = SHARED / "calibration" / "step_time_grid.csv"
QWEN_SHAPE = {"layers": 64, "heads": 64, "kv_heads": 8, "head_dim": 128, "gpus": 2}


@given(
    st.sampled_from(list(PROFILES.values())),
    st.integers(0, 300),
    st.integers(0, 10**6),
    st.lists(st.tuples(st.integers(1, 900), st.integers(0, 100_000)), max_size=5),
)
def test_the_law_in_picoseconds_is_the_law_in_floats(p, decodes, context, chunks):
    new = sum(n for n, _ in chunks)
    work = p.t0_ms + p.t1_ms * (1 - (1 - p.expert_share) ** (decodes + new))
    if new:
        work = max(work, p.prefill_ms + p.prefill_us * new / 1e3)
    attention_us = sum(p.attention_us_per_1k / 1e3 * n * (c + n / 2) for n, c in chunks)
    ms = p.host_ms + work + (attention_us + p.t2_us * decodes + p.kv_us_per_1k * context / 1e3) / 1e3
    assert p.law.step_ps(decodes, context, chunks) == pytest.approx(ms * 1e9, rel=1e-9, abs=2)


@pytest.mark.parametrize("name", PROFILES)
def test_a_step_takes_longer_with_more_to_do(name):
    law = PROFILES[name].law
    assert law.step_ps(8, 80_000) > law.step_ps(8, 40_000)
    assert law.step_ps(8, 80_000, [(2000, 0)]) > law.step_ps(8, 80_000)
    assert law.step_ps(0, 0, [(2000, 50_000)]) > law.step_ps(0, 0, [(2000, 0)])


@pytest.mark.skipif(not GRID.is_file(), reason="the kernel tables are not part of the repository")
@pytest.mark.parametrize(
    ("name", "rows", "decode", "prefill"),
    [
        ("deepseek-v4-flash-4xh100", "deepseek-v4-flash-4xh100-vllm", 0.035, 0.085),
        ("glm-4.7-8xh100", "glm-4.7-8xh100-sglang", 0.041, 0.016),
    ],
)
def test_the_stated_fit_is_the_fit(name, rows, decode, prefill):
    law = dataclasses.replace(PROFILES[name], max_batched_tokens=70_000).law
    errors = {"gen": [], "ctx": []}
    for row in csv.DictReader(GRID.read_text().splitlines()):
        if row["profile"] == rows:
            batch, tokens, cached = (int(row[k]) for k in ("batch", "tokens", "prefix_tokens"))
            decoding = row["phase"] == "gen"
            ps = law.step_ps(batch, batch * tokens) if decoding else law.step_ps(0, 0, [(tokens, cached)])
            errors[row["phase"]].append(abs((ps - law.host) / 1e9 / float(row["step_ms"]) - 1))
    assert statistics.fmean(errors["gen"]) == pytest.approx(decode, abs=0.001)
    assert statistics.fmean(errors["ctx"]) == pytest.approx(prefill, abs=0.001)
    assert f"decode {decode:.1%}".replace("%", " %") in PROFILES[name].known_error
    assert f"prefill {prefill:.1%}".replace("%", " %") in PROFILES[name].known_error


def test_a_roofline_of_qwen_comes_close_to_the_fitted_profile():
    rough = Profile.from_roofline("rough", params_total=32.8e9, params_active=32.8e9, **QWEN_SHAPE)
    fitted = PROFILES["qwen3-32b-2xh100"]
    for name in ("t0_ms", "kv_us_per_1k", "attention_us_per_1k", "capacity_tokens"):
        assert getattr(rough, name) == pytest.approx(getattr(fitted, name), rel=0.08), name
    assert "not compared" in rough.known_error


def test_weights_that_leave_no_room_are_refused_with_numbers():
    with pytest.raises(InputError, match=r"93\.1 GiB of weights leave no room for KV cache in 80 GiB"):
        Profile.from_roofline("big", params_total=1e11, params_active=1e11, **QWEN_SHAPE)


def test_a_profile_goes_to_json_and_back_and_runs(tmp_path):
    rough = Profile.from_roofline("mine", params_total=32.8e9, params_active=32.8e9, **QWEN_SHAPE)
    path = tmp_path / "profile.json"
    path.write_text(rough.to_json())
    assert profile(path) == rough
    history = simulate("swe-lite", "sticky", 1, 2, tasks=2, profile=str(path))
    assert history.settings["profile"] == "mine"
    assert history.settings["known_error"] == "not compared with any measurement"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"speed": 1}, "speed is not known; a profile has name, capacity_tokens"),
        ({"t0_ms": None}, "t0_ms is None; it must be a finite number, 0 or more"),
        ({"t0_ms": float("nan")}, "t0_ms is nan"),
        ({"capacity_tokens": 0}, "capacity_tokens is 0; it must be a whole number from 1"),
        ({"expert_share": 1.5}, "expert_share is 1.5; it is at most 1"),
        ({"provenance": 5}, "provenance is 5; it must be a string"),
        ({"name": ""}, "it must be a string that is not empty"),
    ],
)
def test_unusable_profiles_are_refused(tmp_path, change, message):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(json.loads(PROFILES["glm-4.7-8xh100"].to_json()) | change))
    with pytest.raises(InputError, match=message):
        profile(path)


def test_damaged_or_incomplete_files_are_refused(tmp_path):
    path = tmp_path / "profile.json"
    text = PROFILES["glm-4.7-8xh100"].to_json()
    for damaged in ("", "[]", "5", text[:100], "[" * 100_000, '{"name": "x"}'):
        path.write_text(damaged)
        with pytest.raises(InputError, match=r"profile\.json"):
            profile(path)
    with pytest.raises(InputError, match=r"'a100'; it must be one of qwen3.*, or a JSON file"):
        profile("a100")
