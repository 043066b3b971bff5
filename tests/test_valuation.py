"""The decay is accurate, exact where it can be, and the same bits whoever computes it."""

from __future__ import annotations

import math
import random
from decimal import Decimal

import naive
import pytest
import strategies
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from tao import planners, readiness, valuation
from tao.model import CacheNote, Node, Params, Session, Snapshot, ToolCall, Value
from tao.valuation import decayed, power_of_half

many = settings(max_examples=strategies.EXAMPLES, suppress_health_check=list(HealthCheck))

half_lives = st.floats(0.0, 1021.0) | st.floats(0.0, 1.0) | st.floats(0.0, 60.0)  # results are normal floats
both = pytest.mark.skipif(
    not hasattr(power_of_half, "py_func"),
    reason="NUMBA_DISABLE_JIT=1: there is no compiled function to compare with",
)


# The power


@many
@given(half_lives)
@example(math.nextafter(1.0, 0.0))
@example(math.nextafter(1.0, 2.0))
@example(5e-324)
def test_the_power_is_right_to_the_last_bits(x):
    exact = naive.power(x, 1.0)
    assert abs(Decimal(power_of_half(x)) - exact) / exact < Decimal("4e-16")


def test_the_power_is_exact_after_whole_half_lives():
    for n in range(1075):
        assert power_of_half(float(n)) == 2.0**-n, n
    assert power_of_half(-0.0) == 1.0


@pytest.mark.parametrize("x", [1075.5, 1099.9, 1100.0, 1e9, 1e300, math.inf])
def test_the_power_vanishes_in_the_end(x):
    assert power_of_half(x) == 0.0


@many
@given(half_lives, st.floats(-15.3, 3.0))
def test_the_power_never_rises(x, log_step):
    later = x + 10.0**log_step
    assume(later - x >= 4e-15)  # nearer than this the rounding of the last bit may win
    assert power_of_half(later) <= power_of_half(x)


def test_the_power_never_rises_along_a_fine_grid():
    values = [power_of_half(k / 64) for k in range(64 * 1080)]
    assert values == sorted(values, reverse=True)


@both
@many
@given(half_lives | st.floats(1021.0, 1e300))
def test_the_compiled_power_has_the_same_bits_as_the_interpreted_one(x):
    assert power_of_half(x).hex() == power_of_half.py_func(x).hex()


@both
def test_the_bits_agree_on_a_hundred_thousand_ages():
    rng = random.Random(0)
    for _ in range(100_000):
        x = rng.random() * 10 ** rng.randrange(-6, 4)
        assert power_of_half(x) == power_of_half.py_func(x), x


@both
@many
@given(st.integers(0, 2**40), st.floats(-10.0, 1e5), st.floats(1e-3, 1e4))
def test_compiled_credit_equals_interpreted_credit(tokens, age_s, half_life_s):
    assert decayed(tokens, age_s, half_life_s) == decayed.py_func(tokens, age_s, half_life_s)


# Credit


@many
@given(
    st.integers(0, 2**40), st.floats(0.0, 600.0), st.floats(0.1, 100.0), st.sampled_from(strategies.NOWS_S)
)
@example(16_000, 10.0, 10.0, 0.0)
@example(2**40, 0.0, 10.0, 0.0)
@example(1, 0.125, 10.0, 0.0)
def test_credit_equals_its_naive_twin(tokens, age_s, half_life_s, now_s):
    note, params = CacheNote(tokens, now_s - age_s), Params(half_life_s=half_life_s)
    assume(not naive.on_edge(note, now_s, params))
    assert valuation.credit(note, now_s, params) == naive.credit(note, now_s, params)


def test_credit_halves_every_half_life_in_whole_tokens():
    note, params = CacheNote(1001, 0.0), Params()
    assert [valuation.credit(note, 10.0 * n, params) for n in range(12)] == [1001 // 2**n for n in range(12)]
    assert valuation.credit(note, 20.0, Params(half_life_s=20.0)) == 500
    assert isinstance(valuation.credit(note, 5.0, params), int)


def test_credit_rounds_down():
    assert valuation.credit(CacheNote(3, 0.0), 10.0, Params()) == 1
    assert valuation.credit(CacheNote(1, 0.0), 0.001, Params()) == 0
    assert valuation.credit(CacheNote(1, 0.0), 0.0, Params()) == 1


def test_without_a_note_there_is_no_credit():
    assert valuation.credit(None, 5.0, Params()) == 0


def test_a_note_from_a_clock_ahead_counts_as_fresh():
    assert valuation.credit(CacheNote(100, 10.0), 5.0, Params()) == 100


# The triple


@many
@given(strategies.cases())
def test_values_equal_their_naive_twins(case):
    snapshot, params = case
    twins = naive.values(snapshot, params, strategies.COMMANDS.get)
    notes = [note for s in snapshot.pool for note in s.cached.values()]
    assume(not any(naive.on_edge(note, snapshot.now_s, params) for note in notes))
    for s in snapshot.pool:
        assert valuation.last_node(s) == naive.last_node(s)
        ready = readiness.session_ready(s, snapshot.now_s, params)
        for node in naive.eligible_nodes(snapshot, s):
            assert valuation.value(s, node, ready, snapshot.now_s, params) == twins[s.id, node]


def test_credit_belongs_to_the_node_that_holds_the_cache():
    s = Session("a", 18_000, cached={"n0": CacheNote(16_000, 0.0), "n1": CacheNote(4_000, 10.0)})
    assert valuation.value(s, "n0", False, 10.0, Params()) == Value(8_000, 0, 18_000)
    assert valuation.value(s, "n1", True, 10.0, Params()) == Value(4_000, 1, 18_000)
    assert valuation.value(s, "n2", True, 10.0, Params()) == Value(0, 1, 18_000)


def test_waiting_earns_credit_on_every_node_if_it_is_switched_on():
    s = Session("a", 500, waiting_since_s=2.0, cached={"n0": CacheNote(100, 10.0)})
    assert valuation.ageing(s, 10.0, Params()) == 0
    params = Params(ageing_tokens_per_s=2.6)
    assert valuation.ageing(s, 10.0, params) == 20  # 20.8, whole tokens
    assert valuation.value(s, "n0", True, 10.0, params) == Value(120, 1, 500)
    assert valuation.value(s, "n1", True, 10.0, params) == Value(20, 1, 500)
    assert valuation.ageing(Session("b", 500), 10.0, params) == 0  # nobody knows since when it waits


def test_waiting_never_earns_more_than_the_largest_size():
    s = Session("a", 500, waiting_since_s=-1e14)
    assert valuation.ageing(s, 1e14, Params(ageing_tokens_per_s=1e14)) == 2**40


def test_a_plan_reports_what_waiting_earned_apart():
    s = Session("a", 500, waiting_since_s=2.0, cached={"n0": CacheNote(100, 10.0)})
    snapshot = Snapshot(10.0, (Node("n0", 2_000),), (s,))
    plan = planners.plan(snapshot, "dp", Params(ageing_tokens_per_s=2.6))
    assert (plan.value.credit, plan.ageing_tokens) == (120, 20)


def test_a_session_was_last_where_its_newest_note_is():
    assert valuation.last_node(Session("a", 1)) is None
    notes = {
        "n2": CacheNote(5, 3.0),
        "n1": CacheNote(1, 4.0),
        "n0": CacheNote(9, 4.0),
        "n3": CacheNote(9, 1.0),
    }
    assert valuation.last_node(Session("a", 1, cached=notes)) == "n0"


def test_whole_and_broken_numbers_share_one_compiled_function():
    """JSON brings whole seconds as well as broken ones; a new type would cost a compilation each."""
    if not hasattr(decayed, "signatures"):
        pytest.skip("NUMBA_DISABLE_JIT=1: nothing is compiled")
    valuation.credit(CacheNote(5, 1.5), 2.5, Params())
    before = len(decayed.signatures)
    for seen_at_s, now_s, half_life_s in ((1, 2, 10), (1, 2.5, 10.0), (1, 2, 10.0), (1.5, 2, 10)):
        valuation.credit(CacheNote(5, seen_at_s), now_s, Params(half_life_s=half_life_s))
    assert len(decayed.signatures) == before


def test_a_value_counts_the_whole_context_whatever_is_cached():
    tool = ToolCall("bash", 0.0, finished_s=1.0)
    s = Session("a", 300, "tool", cached={"n0": CacheNote(900, 1.0)}, tool=tool)
    assert valuation.value(s, "n0", True, 1.0, Params()) == Value(900, 1, 300)
