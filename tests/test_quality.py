"""What rounding loses, and how often planners miss the optimum, against what can be counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

import tao
from tao import planners, quality
from tao.model import InputError, Node, Params, Session, Snapshot
from tao.workloads import snapshots

FEW = [snapshots("replicated", 6, 2, seed, room_tokens=40_000) for seed in range(12)]


def test_the_loss_is_the_share_of_the_best_credit():
    table = quality.rounding_loss(FEW, [4096, 1], best="exhaustive")
    best = np.array([tao.plan(s, "exhaustive").value.credit for s in FEW])
    dp = np.array([tao.plan(s, "dp", Params(quantum_tokens=4096)).value.credit for s in FEW])
    losses = np.where(best > 0, (best - dp) / np.maximum(best, 1), 0)
    coarse, fine = table.to_dict("records")
    assert coarse["loss_mean"] == pytest.approx(losses.mean())
    assert coarse["loss_worst"] == losses.max() > 0
    assert (fine["loss_mean"], fine["loss_worst"]) == (0, 0)
    assert fine["states_worst"] > coarse["states_worst"]
    assert (coarse["snapshots"], coarse["proven"], coarse["fallbacks"]) == (12, 1, 0)


def test_fallbacks_and_unproven_optima_are_counted():
    table = quality.rounding_loss(FEW, [64], params=Params(state_budget=2), best="bfd")
    (row,) = table.to_dict("records")
    assert row["fallbacks"] > 0.2
    assert row["proven"] < 1


def test_differences_count_plans_below_a_proven_optimum():
    table = quality.differences(FEW, ["bfd", "dp", "exhaustive"], best="exhaustive").set_index("planner")
    best = [tao.plan(s, "exhaustive").value for s in FEW]
    bfd = [tao.plan(s, "bfd").value for s in FEW]
    lost = [b.credit - v.credit for b, v in zip(best, bfd, strict=True) if v.credit < b.credit]
    row = table.loc["bfd"]
    assert row["below"] == sum(v < b for b, v in zip(best, bfd, strict=True))
    assert (row["below_credit"], row["lost_worst"]) == (len(lost), max(lost))
    assert row["lost_mean"] == pytest.approx(np.mean(lost))
    assert table.loc["exhaustive", "below"] == 0
    assert np.isnan(table.loc["exhaustive", "lost_mean"])


def test_only_what_can_be_proven_and_decided_counts():
    alone = Snapshot(0.0, (Node("n", 9_000),), (Session("a", 100), Session("b", 50_000)))
    table = quality.differences([alone, *FEW], ["short_first"], best="exhaustive")
    fitting = [sum((planners.case(s, Params()).prefer >= 0).any(axis=1)) for s in FEW]
    assert table["snapshots"].item() == 13
    assert table["contested"].item() == sum(n > 1 for n in fitting)
    unproven = quality.differences(FEW, ["short_first"], best="bfd")
    assert unproven["unproven"].item() > 0
    assert unproven["snapshots"].item() + unproven["unproven"].item() == 12


@pytest.mark.parametrize("table", [quality.rounding_loss, quality.differences])
def test_no_snapshots_and_unknown_planners_are_refused(table):
    with pytest.raises(InputError, match="no snapshots were given"):
        table([])
    with pytest.raises(InputError, match="planner is 'best'; it must be one of"):
        table(FEW, best="best")
