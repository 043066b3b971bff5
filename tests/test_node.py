"""One node: batching, prefix cache, eviction and preemption, as small stories."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tao.model import InputError
from tao.node import Request, SessionCache, SimNode
from tao.profiles import PROFILES

QWEN = PROFILES["qwen3-32b-2xh100"]


def drive(node, arrivals):
    """Submit (time, request) pairs and step the node until it is idle; events as (time, kind, session)."""
    arrivals = sorted(arrivals, key=lambda a: a[0])
    log, now = [], 0
    while arrivals or node.ends_ps is not None:
        if arrivals and (node.ends_ps is None or arrivals[0][0] <= node.ends_ps):
            now, request = arrivals.pop(0)
            node.submit(request, now)
            if node.ends_ps is not None:
                continue
        else:
            now = node.ends_ps
        log += [(now, e.kind, e.request.session) for e in node.step(now)]
        check(node)
    return log


def check(node, sessions=12):
    own = [max(r.computed - node.shared_tokens, 0) for r in node.running]
    filled = [max(r.computed + r.chunk - node.shared_tokens, 0) for r in node.running]
    idle = [node.cache.held(s) for s in range(sessions)]
    assert node.pinned_tokens == sum(own)
    assert node.cache.tokens == sum(held - node.shared_tokens for held in idle if held)
    assert node.shared_tokens + sum(filled) + node.cache.tokens <= node.capacity_tokens
    assert (node.ends_ps is None) == (not node.running and not node.waiting)


def test_a_request_alone_takes_exactly_the_sum_of_its_steps():
    law = QWEN.law
    r = Request(0, prompt_tokens=1000, output_tokens=5, reusable=0)
    drive(SimNode(QWEN), [(0, r)])
    prefill = law.step_ps(0, 0, [(1000, 0)])
    decodes = [law.step_ps(1, 1000 + k) for k in range(4)]
    assert r.first_token_ps == prefill
    assert r.finished_ps == prefill + sum(decodes)
    assert r.computed == 1004  # the last token is never fed back


def test_a_long_prompt_is_prefilled_in_chunks_of_the_token_budget():
    law = QWEN.law
    r = Request(0, prompt_tokens=20_000, output_tokens=1, reusable=0)
    drive(SimNode(QWEN), [(0, r)])
    chunks = [law.step_ps(0, 0, [c]) for c in ((8192, 0), (8192, 8192), (3616, 16384))]
    assert r.finished_ps == sum(chunks)


def test_decodes_go_first_and_a_prefill_gets_the_rest_of_the_budget():
    small = dataclasses.replace(QWEN, max_batched_tokens=100)
    node = SimNode(small)
    a, b = Request(0, 50, 10, 0), Request(1, 150, 1, 0)
    node.submit(a, 0)
    node.step(0)
    node.step(node.ends_ps)
    node.submit(b, node.ends_ps)
    node.step(node.ends_ps)
    assert (a.chunk, b.chunk) == (1, 99)


def test_the_next_turn_hits_whole_blocks_of_the_last_one_but_never_the_whole_prompt():
    node = SimNode(QWEN)
    drive(node, [(0, Request(0, 1000, 5, 0))])
    nxt = Request(0, 1100, 1, 1005)
    drive(node, [(10**13, nxt)])
    assert nxt.hit_tokens == 1004 // 16 * 16
    same = Request(0, 992, 1, 992)
    drive(node, [(10**14, same)])
    assert same.hit_tokens == 976  # 991 tokens at most, in whole blocks of 16


def test_a_rewritten_conversation_hits_only_what_it_kept():
    node = SimNode(QWEN)
    drive(node, [(0, Request(0, 1000, 5, 0))])
    nxt = Request(0, 1100, 1, 320)
    drive(node, [(10**13, nxt)])
    assert nxt.hit_tokens == 320


def test_a_prefix_that_all_sessions_share_is_computed_and_held_once():
    node = SimNode(QWEN, capacity_tokens=2000, shared_tokens=800)
    first, second, third = (Request(s, 1000, 9, 0) for s in range(3))
    drive(node, [(0, first), (1, second), (10**13, third)])
    assert [r.hit_tokens for r in (first, second, third)] == [0, 800, 800]
    assert node.cache.tokens == 3 * 208  # of each what is its own, without the token emitted last
    assert node.free_tokens == 2000 - 800 - 3 * 208


def test_the_oldest_idle_session_is_evicted_first_and_from_its_tail():
    node = SimNode(QWEN, capacity_tokens=3000)
    drive(node, [(0, Request(0, 1000, 1, 0)), (10**12, Request(1, 1000, 1, 0))])
    drive(node, [(10**13, Request(2, 1500, 1, 0))])
    assert isinstance(node.cache, SessionCache)
    assert [node.cache.held(s) for s in (0, 1, 2)] == [500, 1000, 1500]


def test_the_head_of_the_queue_blocks_those_behind_it():
    node = SimNode(QWEN, capacity_tokens=10_000)
    big, small = Request(1, 8000, 2, 0), Request(2, 100, 2, 0)
    drive(node, [(0, Request(0, 5000, 50, 0)), (1, big), (2, small)])
    assert small.scheduled_ps >= big.scheduled_ps


def test_when_the_cache_is_full_the_last_admitted_is_preempted_and_comes_back():
    node = SimNode(QWEN, capacity_tokens=2000)
    first, last = Request(0, 900, 300, 0), Request(1, 900, 300, 0)
    log = drive(node, [(0, first), (1, last)])
    assert (0, "preempted") not in [(s, k) for _, k, s in log]
    assert last.preemptions >= 1
    assert last.recomputed_tokens > 0
    assert first.finished_ps < last.finished_ps
    assert (first.emitted, last.emitted) == (300, 300)


def test_what_can_never_fit_is_refused_with_numbers():
    node = SimNode(QWEN, capacity_tokens=1000)
    with pytest.raises(InputError, match="needs 1,001 tokens but the node holds 1,000"):
        node.submit(Request(7, 1000, 1, 0), 0)


def test_a_canceled_request_leaves_its_tokens_as_idle_cache():
    node = SimNode(QWEN)
    node.submit(Request(0, 1000, 50, 0), 0)
    node.step(0)
    node.step(node.ends_ps)
    assert node.cancel(0)
    assert not node.cancel(0)
    assert (node.pinned_tokens, node.cache.tokens) == (0, 1000)
    node.step(node.ends_ps)
    assert node.ends_ps is None


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.integers(0, 5 * 10**11), st.integers(1, 700), st.integers(1, 60), st.integers(0, 700)),
        min_size=1,
        max_size=12,
    ),
    st.integers(800, 3000),
    st.sampled_from([64, 256, 8192]),
    st.integers(1, 6),
    st.sampled_from([0, 0, 40]),
)
def test_random_loads_keep_all_books(loads, capacity, budget, seats, shared):
    profile = dataclasses.replace(QWEN, max_batched_tokens=budget, max_seqs=seats)
    node = SimNode(profile, capacity, shared_tokens=shared)
    requests = [(at, Request(i, max(p, shared), o, min(r, p))) for i, (at, p, o, r) in enumerate(loads)]
    log = drive(node, requests)
    for at, r in requests:
        assert r.emitted == r.output_tokens
        assert at <= r.scheduled_ps < r.first_token_ps <= r.finished_ps
        assert r.computed == r.prompt_tokens + r.output_tokens - 1
    assert len([1 for _, kind, _ in log if kind == "finished"]) == len(requests)


def test_more_cache_never_lowers_the_hits_of_a_session_alone():
    hits = []
    for capacity in (1200, 1500, 2000, 4000):
        node = SimNode(QWEN, capacity)
        drive(node, [(0, Request(0, 1000, 5, 0)), (10**13, Request(1, 900, 5, 0))])
        again = Request(0, 1050, 1, 1005)
        drive(node, [(2 * 10**13, again)])
        hits.append(again.hit_tokens)
    assert hits == sorted(hits)
    assert hits[0] < hits[-1]
