"""One workload in the simulator and on simulated servers, by the same policies: the same decisions."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="the extra `live` is not installed")

from asgi_node import QWEN, live
from runs import append_only

from tao.history import DECISION
from tao.model import Params
from tao.profiles import PS_PER_S
from tao.simulator import simulate

BLOCK = 16
KV = 20_016  # a server keeps one block for itself
INSTANT = Params(plan_cost_s=0.0, plan_cost_per_state_s=0.0, reserve_tokens=256, quantum_tokens=256)
SHIFT_S = 0.005  # per turn: a server looks at its queue again after 2 ms, and events of 0.5 ms are one


def sessions(seed, count=10):
    """Contexts of 2,000 to 6,000 tokens, so that two nodes do not hold all; tools of up to eight seconds."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        turns = int(rng.integers(3, 8))
        first = (int(rng.integers(1000, 3000)), int(rng.integers(5, 60)), float(rng.uniform(0.1, 8.0)))
        rows.append([first, *(_turn(rng) for _ in range(turns))])
    return append_only(*rows)


def _turn(rng):
    return (int(rng.integers(50, 900)), int(rng.integers(5, 60)), float(np.round(rng.uniform(0.1, 8.0), 3)))


def admissions(history):
    """Who came to which node by a decision, in order."""
    return history.move_rows.array[:, DECISION + 1 :].tolist()


@pytest.mark.parametrize("policy", ["tao", "previous"])
@pytest.mark.parametrize("seed", range(2))
def test_tao_admits_the_same_sessions_in_the_same_order(policy, seed):
    work = sessions(seed)
    shape = {"workers": 8, "params": INSTANT}
    there = live(work, policy, kv_tokens=KV, **shape)
    here = simulate(work, policy, nodes=2, capacity_tokens=KV - BLOCK, profile=QWEN, **shape)
    assert there.failed == {}
    assert len(admissions(here)) > 8
    assert admissions(there) == admissions(here)
    turns = {(r.session, r.turn): r for r in here.turns}
    longest_step_s = QWEN.law.step_ps(8, 8 * 6000, [(6000, 0)]) / PS_PER_S
    for row in there.turns:
        same = turns[row.session, row.turn]
        assert row.node == same.node
        assert abs(row.hit_tokens - same.hit_tokens) <= BLOCK
        for name in ("arrived_ps", "submitted_ps", "first_token_ps", "finished_ps"):
            at, expected = getattr(row, name) / PS_PER_S, getattr(same, name) / PS_PER_S
            assert abs(at - expected) <= longest_step_s + 0.05 * expected + SHIFT_S * row.turn


@pytest.mark.parametrize("policy", ["sticky", "vllm_rr", "session_hash"])
def test_routers_send_every_turn_to_the_same_node(policy):
    work = sessions(7)
    there = live(work, policy, Params(), kv_tokens=KV, workers=4)
    here = simulate(work, policy, nodes=2, workers=4, capacity_tokens=KV - BLOCK, profile=QWEN)
    where = [{(r.session, r.turn): r.node for r in history.turns} for history in (there, here)]
    assert len(where[0]) == len(work.script.prompt)
    if policy == "vllm_rr":  # its next node depends on who is first, to the millisecond
        assert np.mean([where[0][key] == where[1][key] for key in where[0]]) > 0.5
    else:
        assert where[0] == where[1]


def test_a_live_record_steps_back_like_a_simulated_one():
    work = sessions(1)
    there = live(work, "tao", INSTANT, kv_tokens=KV, workers=8)
    planned = [d for d in there.decisions if d.planned]
    assert planned
    for decision in planned:
        assert decision.snapshot is not None
        assert decision.plan is not None
        placed = {p.session: p.node for p in decision.plan.placements}
        assert dict(decision.placed).items() <= placed.items()
