"""The snapshots that come with the package show what their captions say."""

from __future__ import annotations

import pytest

import tao
from tao import explain, library
from tao.library import PRESETS

REPLAYS = [name for name in library.snapshot_names() if name.startswith("replay_")]
FOUR = ("dp", "short_first", "bfd", "worst_fit")


def over_live(snapshot):
    return sum(n.capacity_tokens for n in snapshot.nodes) / sum(s.context_tokens for s in snapshot.sessions)


def test_dp_beats_short_first_by_the_reported_totals():
    snapshot = tao.load("dp_beats_short_first")
    assert tao.plan(snapshot, "dp").value.credit == 16_791
    assert tao.plan(snapshot, "exhaustive").value.credit == 16_791
    assert tao.plan(snapshot, "short_first").value.credit == 13_624


def test_session_177_is_admitted_by_dp_and_deferred_by_short_first():
    snapshot = tao.load("session_177")
    dp, short = tao.plan(snapshot, "dp"), tao.plan(snapshot, "short_first")
    assert (len(dp.placements), len(short.placements)) == (7, 6)
    assert "177" in dp.node_of()
    assert "177" in short.deferred
    largest = max(snapshot.pool, key=lambda s: s.context_tokens)
    assert largest.id == "177"


def test_the_trap_needs_a_joint_decision():
    snapshot = tao.load("two_nodes_trap")
    values = {p: tao.plan(snapshot, p).value for p in FOUR}
    assert values["dp"] == tao.plan(snapshot, "exhaustive").value
    assert all(values["dp"] > values[p] for p in FOUR[1:])
    first = {max(s.cached, key=lambda node, s=s: s.cached[node].tokens) for s in snapshot.pool}
    assert first == {"n0"}


def test_the_small_ones_starve_the_large_one_whoever_plans():
    snapshot = tao.load("starved_large")
    assert [s.context_tokens for s in snapshot.pool] == [4000] * 4 + [9000]
    assert [n.capacity_tokens for n in snapshot.nodes] == [10_000, 10_000]
    assert all("large" in tao.plan(snapshot, p).deferred for p in ("short_first", "exhaustive", "dp"))
    assert len(tao.plan(snapshot, "exhaustive").placements) == 4
    assert len(tao.plan(snapshot, "dp").placements) == 2  # what rounding does to them is said in the caption


def test_rounding_hurts_dp_here():
    snapshot = tao.load("quantum_hurts")
    dp = tao.plan(snapshot, "dp")
    for planner in FOUR[1:]:
        assert tao.plan(snapshot, planner).value > dp.value
    assert dp.exact
    assert dp.problem == "quantized"
    assert dp.bound > dp.value
    assert tao.plan(snapshot, "dp", tao.Params(quantum_tokens=1)).value > dp.value


def test_enough_replays_with_crowded_pools_at_the_knee():
    snapshots = {name: tao.load(name) for name in REPLAYS}
    assert len(snapshots) >= 20
    crowded = [s for s in snapshots.values() if len(s.pool) >= 8 and tao.plan(s).deferred]
    assert 2 * len(crowded) >= len(snapshots)
    assert all(0.85 <= over_live(s) <= 1.05 for s in snapshots.values())
    times = [s.now_s for s in snapshots.values()]
    assert times == sorted(times)
    assert all(len(s.pool) for s in snapshots.values())


def test_replays_hold_ties_and_differences():
    best = [{p: tao.plan(tao.load(name), p).value for p in FOUR} for name in REPLAYS]
    ties = sum(len(set(values.values())) == 1 for values in best)
    wins = sum(values["dp"] > max(values[p] for p in FOUR[1:]) for values in best)
    assert ties >= 1
    assert wins >= 1


def test_every_preset_has_a_caption_and_every_file_a_name():
    assert set(PRESETS) | set(REPLAYS) == set(library.snapshot_names())
    assert all("reported totals" in PRESETS[name] for name in ("dp_beats_short_first", "session_177"))
    assert "recorded" in library.describe("replay_01")


@pytest.mark.parametrize("name", library.snapshot_names())
def test_every_deferral_in_the_files_has_a_reason(name):
    snapshot = tao.load(name)
    for planner in FOUR:
        plan = tao.plan(snapshot, planner)
        assert set(explain.why_deferred(snapshot, plan)) == set(plan.deferred)
