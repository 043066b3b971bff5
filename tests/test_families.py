"""Families of snapshots: what they are drawn from, and that they are the same every time."""

from __future__ import annotations

import numpy as np
import pytest

from tao import planners, readiness, valuation
from tao.families import FAMILIES, NOW_S, SHARED_TOKENS, recorded_sets
from tao.model import InputError, Params
from tao.workloads import snapshots

DRAWN = [name for name in FAMILIES if name != "recorded"]
MANY, NODES = 20_000, 16


@pytest.mark.parametrize("family", DRAWN)
def test_a_snapshot_depends_on_its_numbers_alone(family):
    np.random.seed(1)
    first = snapshots(family, 40, 4, 7)
    np.random.seed(2)
    assert first == snapshots(family, 40, 4, 7)
    assert first != snapshots(family, 40, 4, 8)
    assert (len(first.pool), len(first.nodes)) == (40, 4)
    assert [s.id for s in first.sessions] == sorted(s.id for s in first.sessions)


def test_families_share_sessions_and_room():
    rows = [[(s.id, s.context_tokens, s.phase) for s in snapshots(f, 50, 4, 3).sessions] for f in DRAWN]
    assert all(row == rows[0] for row in rows)
    rooms = {f: snapshots(f, 50, 4, 3).nodes for f in ("unique", "replicated", "shared", "stress")}
    assert len(set(rooms.values())) == 1


@pytest.fixture(scope="module")
def many():
    return snapshots("replicated", MANY, NODES)


def test_sizes_are_lognormal_and_clipped(many):
    sizes = np.array([s.context_tokens for s in many.pool])
    assert (sizes.min(), sizes.max()) == (1_500, 120_000)
    logs = np.log(sizes[(sizes > 1_500) & (sizes < 120_000)])
    assert np.median(sizes) == pytest.approx(18_000, rel=0.02)
    assert logs.std() == pytest.approx(0.7, rel=0.03)  # hardly any is clipped


def test_a_third_is_ready_and_four_in_five_are_cached_on_two_nodes(many):
    ready = [readiness.session_ready(s, many.now_s, Params()) for s in many.pool]
    assert np.mean(ready) == pytest.approx(0.35, abs=0.015)
    assert {len(s.cached) for s in many.pool} == {0, 2}
    assert np.mean([bool(s.cached) for s in many.pool]) == pytest.approx(0.8, abs=0.015)


def test_ages_are_exponential_and_whole_blocks_of_the_context_are_cached(many):
    pairs = [list(s.cached.values()) for s in many.pool if s.cached]
    ages = NOW_S - np.array([[note.seen_at_s for note in pair] for pair in pairs])
    assert ages.mean(axis=0) == pytest.approx([8, 20], rel=0.03)
    assert ages.std(axis=0) == pytest.approx([8, 20], rel=0.05)
    cut = [s.context_tokens - note.tokens for s in many.pool for note in s.cached.values()]
    assert (min(cut), max(cut)) == (0, 15)
    homes = np.unique([list(s.cached) for s in many.pool if s.cached], return_counts=True)[1]
    assert len(homes) == NODES
    assert homes.max() < 1.2 * homes.min()


@pytest.mark.parametrize("room", [60_000, 300_000])
def test_a_third_to_all_of_the_room_is_free(room):
    free = np.array(list(snapshots("unique", 5, 1_000, room_tokens=room).free_tokens(Params()).values()))
    assert room // 3 <= free.min() < 1.02 * room / 3
    assert 0.98 * room < free.max() <= room
    assert free.mean() == pytest.approx(2 * room / 3, rel=0.03)


def test_in_a_cold_cluster_nothing_is_cached_and_all_is_free():
    cold = snapshots("cold", 20, 3)
    assert not any(s.cached for s in cold.pool)
    assert set(cold.free_tokens(Params()).values()) == {300_000}
    assert {n.capacity_tokens for n in snapshots("cold", 20, 3, room_tokens=9_000).nodes} == {9_000}


def test_shared_adds_the_same_worth_on_every_node_up_to_the_context():
    alone, both = (planners.case(snapshots(f, 300, 4, 5), Params()) for f in ("unique", "shared"))
    added = both.credit - alone.credit
    common = added.max(axis=0)
    assert (common <= SHARED_TOKENS).all()
    assert len(set(common.tolist())) == 4
    assert (added == np.minimum(common, both.tokens[:, None])).all()
    assert (np.count_nonzero(alone.credit, axis=1) <= 1).all()


def test_ten_thousand_sessions_on_64_nodes_are_drawn():
    snapshot = snapshots("stress", 10_000, 64)
    assert (len(snapshot.pool), len(snapshot.nodes)) == (10_000, 64)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("uniqe", 5, 2),
            "family is 'uniqe'; it must be one of unique, replicated, shared, cold, stress, rec",
        ),
        ((["unique"], 5, 2), "family is .'unique'.; it must be one of"),
        (("unique", 0, 2), "n is 0; it must be a whole number from 1 to 100,000"),
        (("unique", 5.5, 2), "n is 5.5"),
        (("unique", 5, 0), "nodes is 0; it must be a whole number from 1 to 1,024"),
        (("unique", 5, 2, -1), "seed is -1"),
        (("replicated", 5, 1), "nodes is 1; family 'replicated' needs 2 or more, on one node take 'unique'"),
        (("recorded", 160, 2), "no recorded snapshot 0 of 160 workers on 2 nodes; there are 32 workers on 2"),
        (("recorded", 160, 4, 300), "no recorded snapshot 300 .* 160 workers on 4 nodes: seeds 0 to 299"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, said):
    with pytest.raises(InputError, match=said):
        snapshots(*arguments)


def test_unusable_room_is_refused():
    with pytest.raises(InputError, match="room_tokens is 0; it must be a whole number from 1"):
        snapshots("unique", 5, 2, room_tokens=0)
    with pytest.raises(InputError, match="recorded snapshots have the room they have, drop it"):
        snapshots("recorded", 160, 4, room_tokens=60_000)


# The recorded set


def test_the_recorded_set_covers_32_to_160_workers():
    sets = recorded_sets()
    assert sets == {(32, 2): 100, (64, 2): 100, (96, 4): 100, (128, 4): 100, (160, 4): 300}


@pytest.mark.parametrize(("workers", "nodes"), list(recorded_sets()))
def test_recorded_snapshots_lie_at_the_knee_with_room_for_somebody(workers, nodes):
    seen = [snapshots("recorded", workers, nodes, seed) for seed in range(0, 100, 3)]
    for s in seen:
        assert len(s.nodes) == nodes
        assert len(s.sessions) == workers
        live = sum(x.context_tokens for x in s.sessions)
        assert 0.85 <= sum(b.capacity_tokens for b in s.nodes) / live <= 1.05
        assert (planners.case(s, Params()).prefer >= 0).any()
        assert all(note.tokens <= x.context_tokens for x in s.pool for note in x.cached.values())
        last = [valuation.last_node(x) for x in s.pool]
        assert any(last)
    assert len({s.now_s for s in seen}) == len(seen)
    assert (
        np.mean([len(s.pool) for s in seen]) > workers / 20
    )  # pools are not hand-picked, but they are pools
