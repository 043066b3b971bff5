"""The rivals' kernels: rules by hand, and the same decisions in any order of lists, compiled or not."""

from __future__ import annotations

import ast
import os
import random
import subprocess
import sys
from collections import Counter, OrderedDict
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tao import state
from tao.model import Params
from tao.policies import routers, scored, thunder
from tao.policies.thunder import CODE, DYNAMO, PAPER
from tao.profiles import PS_PER_S
from tao.state import HOLD, REASONING, TOOL, WAITING
from tao.view import View

MODES = {"thunderagent": CODE, "thunderagent_paper": PAPER, "thunderagent_dynamo": DYNAMO}
ANEW = ("vllm_rr", "vllm_dplb", "vllm_cache_aware", "sglang_cache_aware", "llmd")  # routed at each request
STAYING = ("sticky", "session_hash")
RIVALS = (*STAYING, *ANEW, "dynamo_kv", *MODES)


def no_tick(s):
    """A policy under which nobody waits."""


def no_finish(s, i):
    """A policy under which sessions stay where they are."""


def kernels(name):
    """(route, on_finish, tick) of a policy."""
    if name in MODES:
        mode = MODES[name]
        return (
            lambda s, i: thunder.thunderagent_route(s, i, mode),
            lambda s, i: thunder.thunderagent_on_finish(s, i, mode),
            lambda s: thunder.thunderagent_tick(s, mode),
        )
    module = routers if hasattr(routers, f"{name}_route") else scored
    parts = (("route", None), ("on_finish", no_finish), ("tick", no_tick))
    return tuple(getattr(module, f"{name}_{part}", otherwise) for part, otherwise in parts)


class Host:
    """As much of a simulator as the policies need: keeps the state, and applies what they decide at once."""

    def __init__(self, name, sessions, capacity, shared=0, seed=0, shuffled=None):
        ids = [f"s{i:03}" for i in range(sessions)]
        self.view = View(ids, capacity, Params(), shared_prefix_tokens=shared, seed=seed)
        self.state, self.shuffled = self.view.state, shuffled
        self.kernels = kernels(name)
        self.log = []

    def at(self, seconds):
        self.state.clock[state.NOW_PS] = round(seconds * PS_PER_S)

    def start(self, i, tokens, prefix=0):
        """Session i comes with its first request; returns its node or HOLD."""
        state.start(self.state, i)
        return self.request(i, tokens, prefix)

    def request(self, i, tokens, prefix=None):
        """Session i has a request that repeats `prefix` tokens of the conversation so far (None: all)."""
        row = self.state.session[i]
        row[state.PREFIX] = row[state.CONTEXT] if prefix is None else prefix
        state.resize(self.state, i, tokens)
        row[state.PHASE], row[state.SINCE_PS] = WAITING, self.state.clock[state.NOW_PS]
        b = int(self.view.resident[i])
        if b < 0:
            self.shuffle()
            b = int(self.kernels[0](self.state, i))
            self.log.append(("route", i, b))
            if b != HOLD:
                state.move(self.state, i, b)
        if b != HOLD:
            self.submit(i, b)
        return b

    def submit(self, i, b):
        row, node = self.state.session[i], self.state.node[b]
        row[state.PHASE], row[state.LAST_NODE] = REASONING, b
        node[state.INFLIGHT] += 1
        node[state.PREFILLING] += row[state.CHARGE]

    def first_token(self, i):
        row = self.state.session[i]
        self.state.node[row[state.RESIDENT], state.PREFILLING] -= row[state.CHARGE]
        row[state.CHARGE] = 0

    def finish(self, i, output):
        """The answer of session i is complete; it goes into a tool."""
        row, b = self.state.session[i], int(self.view.resident[i])
        self.first_token(i)
        state.resize(self.state, i, int(row[state.CONTEXT]) + output)
        row[state.STREAMED], row[state.PHASE] = 0, TOOL
        row[state.TOOL_PS] = self.state.clock[state.NOW_PS]
        self.state.node[b, state.INFLIGHT] -= 1
        self.state.pair[i, b, state.CACHED] = row[state.CONTEXT]
        self.kernels[1](self.state, i)
        if row[state.LEAVING]:
            row[state.LEAVING] = 0
            state.move(self.state, i, HOLD)

    def end(self, i):
        state.end(self.state, i)

    def tick(self):
        """([(session, node)], [paused]) that the policy decides now, applied."""
        clock = self.state.clock
        clock[state.PLACED] = clock[state.PAUSED] = 0
        self.shuffle()
        self.kernels[2](self.state)
        placed = [(int(i), int(b)) for i, b in self.state.place[: clock[state.PLACED], :2]]
        paused = self.state.pause[: clock[state.PAUSED]].tolist()
        self.log.append(("tick", placed, sorted(paused)))
        for i, b in placed:
            assert self.view.resident[i] < 0
            state.move(self.state, i, b)
            if self.view.phase[i] == WAITING:
                self.submit(i, b)
        for i in paused:
            assert self.view.resident[i] >= 0
            assert not self.view.leaving[i]
            if self.view.phase[i] == REASONING:
                self.view.leaving[i] = 1
            else:
                state.move(self.state, i, HOLD)
        return placed, paused

    def shuffle(self):
        """Lists have no order: bring them into another one."""
        for items, entry, column in (
            (self.state.live, state.LIVE, state.LIVE_AT),
            (self.state.pool, state.POOL, state.POOL_AT),
        ):
            if self.shuffled is not None:
                order = items[: self.state.clock[entry]].tolist()
                self.shuffled.shuffle(order)
                items[: len(order)] = order
                self.state.session[order, column] = range(len(order))


def play(name, seed, shuffled=None, steps=250):
    """The log of a random run under a policy, with all that it remembers at the end."""
    draw = random.Random(seed)
    times = 30 if name == "dynamo_kv" else 1  # so large that its queue is used
    capacity = [3000, 4000, 3000] if name == "llmd" else [9000 * times, 12000 * times, 9000 * times]
    host = Host(name, 20, capacity, draw.choice([0, 600]), seed, shuffled)
    view, now_s, left = host.view, 0.0, list(range(19, -1, -1))
    for _ in range(steps):
        now_s += draw.choice([0.0, 0.01, 0.03, 0.7, 30.0])
        host.at(now_s)
        for b in range(3):
            state.scrape(host.state.node, b, host.state.clock[state.NOW_PS], 50 * 10**9)
            row = host.state.node[b]
            row[state.RUNNING] = draw.randrange(4)
            row[state.QUEUED] = draw.randrange(3)
            row[state.PINNED] = draw.randrange(int(row[state.CAPACITY]))
        i, deed = draw.randrange(20), draw.randrange(4)
        prompt, cut = draw.randrange(900, 2500) * times, draw.random() < 0.2
        if view.phase[i] == TOOL and deed:
            before = int(view.context_tokens[i])
            if before > 5000 * times:
                host.end(i)
            else:
                prefix = draw.randrange(700, before) if cut else before
                view.turn[i] += 1
                host.request(i, prefix + prompt // 3, prefix)
        elif view.phase[i] == REASONING:
            host.state.session[i, state.STREAMED] += draw.randrange(60)
            if deed == 1:
                host.first_token(i)
            elif deed > 1:
                host.finish(i, draw.randrange(30, 200))
        elif left and deed == 0:
            host.start(left.pop(), prompt)
        if deed == 3:
            host.tick()
    memory = (host.state.session_memory, host.state.node_memory, host.state.pair_memory)
    return host.log, [m.tolist() for m in memory], int(host.state.clock[state.RANDOM])


# --- All of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RIVALS)
@settings(max_examples=10)
@given(st.integers(0, 2**31 - 1))
def test_decisions_do_not_depend_on_the_order_of_lists(name, seed):
    assert play(name, seed) == play(name, seed, random.Random(seed + 1))


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="compares the two")
def test_interpreted_equals_compiled():
    code = "import test_policies as t; print([t.play(name, 7) for name in t.RIVALS])"
    env = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=Path(__file__).parent,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    interpreted = ast.literal_eval(done.stdout)
    for name, run in zip(RIVALS, interpreted, strict=True):
        assert play(name, 7) == run, name


@pytest.mark.parametrize("name", [*ANEW, "dynamo_kv"])
def test_routers_let_go_of_a_session_after_each_answer(name):
    host = Host(name, 2, [9000, 9000])
    assert host.start(0, 1000) in (0, 1)
    host.finish(0, 50)
    assert host.view.resident[0] == HOLD


# --- Routers -------------------------------------------------------------------------------------


def test_sticky_goes_where_the_fewest_are_and_stays():
    host = Host("sticky", 4, [9000, 9000])
    assert [host.start(i, 1000) for i in range(3)] == [0, 1, 0]
    host.finish(0, 50)
    assert host.view.resident[0] == 0
    assert host.start(3, 1000) == 1


def test_session_hash_spreads_sessions_and_a_new_node_moves_only_its_share():
    few, many = Host("session_hash", 400, [9000] * 3), Host("session_hash", 400, [9000] * 4)
    before = [few.start(i, 100) for i in range(400)]
    after = [many.start(i, 100) for i in range(400)]
    assert all(90 < count < 180 for count in Counter(before).values())
    assert all(60 < count < 140 for count in Counter(after).values())
    assert all(new in (old, 3) for old, new in zip(before, after, strict=True))


def test_round_robin_takes_turns_whoever_asks():
    host = Host("vllm_rr", 5, [9000] * 3)
    assert [host.start(i, 1000) for i in range(5)] == [0, 1, 2, 0, 1]


def loads(host, column, *values):
    """Set a column of the nodes by hand."""
    host.state.node[:, column] = values


def test_dplb_counts_what_it_sent_until_the_next_broadcast():
    host = Host("vllm_dplb", 6, [9000] * 2)
    host.at(1.0)
    loads(host, state.RUNNING, 0, 2)
    # Node 0 is lighter by two requests, which it gets although nobody has published them.
    assert [host.start(i, 1000) for i in range(2)] == [0, 0]
    assert host.state.node_memory[:, routers.ADDED].tolist() == [2, 0]
    host.at(1.1)  # published: node 0 has them in its batch, and they count once
    loads(host, state.RUNNING, 2, 3)
    assert host.start(2, 1000) == 0
    assert host.state.node_memory[:, routers.ADDED].tolist() == [1, 0]


def test_dplb_sees_no_more_than_the_last_broadcast():
    host = Host("vllm_dplb", 6, [9000] * 2)
    host.at(0.15)
    loads(host, state.SEEN_RUNNING, 0, 2)
    loads(host, state.RUNNING, 9, 2)
    loads(host, state.CHANGED_PS, 12 * 10**10, 12 * 10**10)
    assert host.start(0, 1000) == 0
    host.at(0.2)
    assert host.start(1, 1000) == 1


def test_dplb_begins_its_scan_one_node_later_each_time():
    host = Host("vllm_dplb", 3, [9000] * 3)
    host.at(1.0)
    loads(host, state.RUNNING, 5, 5, 5)
    # Each tie goes to the node where the scan begins, so long as nothing was added there.
    assert [host.start(i, 1000) for i in range(3)] == [0, 1, 2]


def test_dplb_shuns_a_queue_where_the_cache_is_filling_up():
    host = Host("vllm_dplb", 2, [10_000] * 2)
    host.at(1.0)
    loads(host, state.RUNNING, 2, 6)
    loads(host, state.QUEUED, 2, 0)
    loads(host, state.PINNED, 6_000, 9_000)  # 4 + 6 * 2 * 0.1 = 5.2 against 6
    assert host.start(0, 1000) == 0
    loads(host, state.PINNED, 8_000, 9_000)  # 5 + 6 * 3 * 0.3 = 10.4 against 6
    assert host.start(1, 1000) == 1


@pytest.mark.parametrize("name", ["vllm_cache_aware", "sglang_cache_aware"])
def test_cache_aware_returns_unless_the_loads_are_too_uneven(name):
    host = Host(name, 2, [9000] * 2)
    assert host.start(0, 1000) == 0
    host.finish(0, 100)
    loads(host, state.INFLIGHT, 64, 0)  # not more than 64 apart
    assert host.request(0, 1500) == 0
    host.finish(0, 100)
    loads(host, state.INFLIGHT, 195, 130)  # 65 apart, and just 1.5 times as many
    assert host.request(0, 2000) == 0
    host.finish(0, 100)
    loads(host, state.INFLIGHT, 65, 0)
    assert host.request(0, 2500) == 1
    host.finish(0, 100)
    loads(host, state.INFLIGHT, 0, 0)  # the tree was told even so
    assert host.request(0, 3000) == 1


def test_cache_aware_needs_more_than_three_tenths_of_the_prompt():
    host = Host("vllm_cache_aware", 2, [9000] * 2)
    assert host.start(0, 300) == 0
    host.finish(0, 10)
    loads(host, state.INFLIGHT, 1, 0)
    assert host.request(0, 1000) == 1  # 300 of 1000
    host.finish(0, 10)
    loads(host, state.INFLIGHT, 0, 1)
    assert host.request(0, 3333, prefix=1000) == 1  # 1000 of 3333


def test_cache_aware_does_not_match_what_was_rewritten():
    host = Host("vllm_cache_aware", 2, [9000] * 2)
    assert host.start(0, 2000) == 0
    host.finish(0, 100)
    loads(host, state.INFLIGHT, 1, 0)
    assert host.request(0, 2000, prefix=500) == 1  # a quarter of the prompt is left
    host.finish(0, 100)
    loads(host, state.INFLIGHT, 0, 0)
    assert host.state.pair_memory[0, :, routers.LONGEST].tolist() == [500, 2000]
    assert host.request(0, 2600) == 1


def test_cache_aware_crowds_where_the_shared_prefix_was_seen_first():
    host = Host("vllm_cache_aware", 5, [9000] * 2, shared=800)
    assert [host.start(i, 1000) for i in range(4)] == [0] * 4
    assert host.start(4, 8000) == 1  # a tenth of its prompt is no reason


# --- Dynamo --------------------------------------------------------------------------------------


def test_dynamo_adds_prefill_beyond_the_hit_and_active_blocks():
    host = Host("dynamo_kv", 3, [90_000] * 2)
    assert host.start(0, 1000) in (0, 1)
    b = int(host.view.resident[0])
    assert host.state.session[0, state.CHARGE] == host.state.node[b, state.PREFILLING] == 1000
    assert host.start(1, 160) == 1 - b
    host.finish(1, 40)
    # In tokens: 1000 waiting to be prefilled + 480 new + 16 * (63 + 30) blocks, against
    # 480 less the hit of 192 (12 whole blocks of the 200 cached) + 16 * 30.
    state.resize(host.state, 1, 480)
    host.state.session[1, state.PREFIX] = 200
    cost = [int(scored._dynamo_cost(host.state, 1, c)) for c in (b, 1 - b)]
    assert cost == [1000 + 480 + 16 * 93, 480 - 192 + 16 * 30]
    assert host.request(1, 480, prefix=200) == 1 - b
    assert host.state.session[1, state.CHARGE] == 288
    host.first_token(1)
    assert host.state.node[1 - b, state.PREFILLING] == 0
    host.finish(1, 10)
    assert host.state.node_memory[1 - b, scored.ACTIVE] == 0


def test_dynamo_trusts_no_cache_beyond_what_the_prompt_repeats():
    host = Host("dynamo_kv", 1, [90_000] * 2)
    host.state.pair[0, 1, state.CACHED] = 5000
    assert host.start(0, 6000, prefix=1000) == 1
    assert host.state.session[0, state.CHARGE] == 6000 - 992


def test_dynamo_knows_the_shared_prefix_from_the_first_token_on():
    host = Host("dynamo_kv", 3, [90_000] * 2, shared=640)
    b = host.start(0, 1000)
    assert scored._dynamo_hit(host.state, 1, b) == 0
    host.first_token(0)
    state.resize(host.state, 1, 700)
    assert scored._dynamo_hit(host.state, 1, b) == 640
    # 700 - 640 to prefill + 16 * (23 + 44) blocks, against 700 + 16 * 44: nothing is shared twice.
    costs = [int(scored._dynamo_cost(host.state, 1, c)) for c in (b, 1 - b)]
    assert costs == [60 + 16 * 67, 700 + 16 * 44]


def test_dynamo_draws_among_equals():
    starts = [Host("dynamo_kv", 1, [9000] * 3, seed=seed).start(0, 1000) for seed in range(300)]
    assert all(70 < count < 130 for count in Counter(starts).values())


def test_dynamo_holds_only_where_all_are_busy():
    host = Host("dynamo_kv", 2, [900_000] * 2)
    loads(host, state.PREFILLING, scored.DYNAMO_QUEUE + 1, scored.DYNAMO_QUEUE)
    assert host.start(0, 160) == 1
    assert host.start(1, 160) == HOLD


def test_dynamo_lets_in_by_time_of_waiting_until_all_are_busy_again():
    host = Host("dynamo_kv", 6, [900_000])
    loads(host, state.PREFILLING, scored.DYNAMO_QUEUE + 1)
    for i, at in ((0, 3.0), (1, 1.0), (2, 2.0), (3, 1.0)):
        host.at(at)
        assert host.start(i, 100_000) == HOLD
    assert host.tick() == ([], [])
    host.at(4.0)
    loads(host, state.PREFILLING, scored.DYNAMO_QUEUE - 100_000)
    assert host.start(4, 10) == HOLD  # nobody overtakes
    assert host.tick()[0] == [(1, 0), (3, 0)]
    loads(host, state.PREFILLING, 0)
    assert [i for i, _ in host.tick()[0]] == [2, 0]
    loads(host, state.PREFILLING, 0)
    assert [i for i, _ in host.tick()[0]] == [4]
    assert host.start(5, 10) == 0


def test_dynamo_forgets_whoever_waits_no_more():
    host = Host("dynamo_kv", 2, [900_000] * 2)
    loads(host, state.PREFILLING, scored.DYNAMO_QUEUE + 1, scored.DYNAMO_QUEUE + 1)
    assert host.start(0, 100) == HOLD
    host.end(0)
    loads(host, state.PREFILLING, 0, 0)
    assert host.tick() == ([], [])
    assert host.start(1, 100) != HOLD


# --- llm-d ---------------------------------------------------------------------------------------


def test_llmd_weighs_queue_usage_and_prefix():
    host = Host("llmd", 2, [10_000] * 3)
    host.at(1.0)
    loads(host, state.QUEUED, 4, 2, 0)
    loads(host, state.PINNED, 1_000, 2_000, 9_500)
    # 2 * 0/4 + 2 * 0.9 = 1.8, 2 * 2/4 + 2 * 0.8 = 2.6, 2 * 4/4 + 2 * 0.05 = 2.1
    assert host.start(0, 6400) == 1
    host.finish(0, 0)
    loads(host, state.QUEUED, 4, 4, 4)  # all equal: 2 for each
    loads(host, state.PINNED, 0, 9_000, 1_000)
    # The 100 blocks of 64 tokens from before are 100 of 105 on node 1: 2 + 0.2 + 2.857 against 4.
    assert host.request(0, 6720) == 1
    host.finish(0, 0)
    loads(host, state.QUEUED, 0, 4, 4)
    # 2 + 2 against 0 + 0.2 + 3 * 105/106
    assert host.request(0, 6784) == 0


def test_usage_counts_the_shared_prefix_once_where_something_runs():
    node = np.zeros((1, state.NODE_COLUMNS), np.int64)
    node[0, state.CAPACITY] = 1000
    assert routers.usage(node, 0, 3, 400, 100) == 0.5
    assert routers.usage(node, 0, 0, 0, 100) == 0.0


def test_llmd_sees_metrics_of_up_to_50_ms_ago():
    host = Host("llmd", 3, [10_000] * 2)
    host.at(0.07)
    loads(host, state.CHANGED_PS, 60 * 10**9, 60 * 10**9)
    loads(host, state.SEEN_QUEUED, 1, 0)
    loads(host, state.QUEUED, 0, 9)
    assert [host.start(i, 1000) for i in range(2)] == [1, 1]  # a burst goes to one node
    host.at(0.1)
    assert host.start(2, 1000) == 0


def test_llmd_draws_among_equals():
    starts = [Host("llmd", 1, [9000] * 3, seed=seed).start(0, 1000) for seed in range(300)]
    assert all(70 < count < 130 for count in Counter(starts).values())


def indexed(host, b):
    """The sessions in node b's index, oldest first."""
    ends, memory = host.state.node_memory[b], host.state.pair_memory[:, b]
    found, i = [], int(ends[scored.OLDEST])
    while i:
        assert memory[i - 1, scored.OLDER] == (found[-1] + 1 if found else 0)
        found.append(i - 1)
        i = int(memory[i - 1, scored.NEWER])
    assert ends[scored.NEWEST] == (found[-1] + 1 if found else 0)
    assert ends[scored.INDEXED] == memory[found, scored.ENTRIES].sum()
    return found


def test_llmd_forgets_the_head_of_the_oldest_first():
    host = Host("llmd", 4, [1600])  # an index of 100 blocks, that is of 6,400 tokens
    for i in range(3):
        host.start(i, 40 * 64)
        host.finish(i, 0)
    matches = host.state.pair_memory[:, 0, scored.MATCH]
    entries = host.state.pair_memory[:, 0, scored.ENTRIES]
    assert matches.tolist() == [0, 40, 40, 0]  # 20 of session 0's blocks are there, but not its first
    assert entries.tolist() == [20, 40, 40, 0]
    assert indexed(host, 0) == [0, 1, 2]
    host.request(1, 41 * 64)
    assert indexed(host, 0) == [0, 2, 1]
    assert entries.tolist() == [19, 41, 40, 0]
    host.start(3, 50 * 64)  # 19 + 31 of the 40 blocks of session 2 have to go
    assert indexed(host, 0) == [2, 1, 3]
    assert matches.tolist() == [0, 41, 0, 50]
    assert entries.tolist() == [0, 41, 9, 50]
    host.finish(1, 0)
    host.request(1, 41 * 64, prefix=30 * 64 + 63)
    assert indexed(host, 0) == [2, 3, 1]


@settings(max_examples=50)
@given(st.integers(0, 2**31 - 1))
def test_llmd_index_equals_an_index_of_single_blocks(seed):
    draw = random.Random(seed)
    shared = draw.choice([0, 5])
    host = Host("llmd", 12, [1600, 2400], shared * 64 + draw.randrange(64), seed)
    indices = [OrderedDict(), OrderedDict()]  # oldest block first
    for _ in range(60):
        i = draw.randrange(12)
        tokens = max(int(host.view.context_tokens[i]), 64 * 6) + draw.randrange(64 * 9)
        if tokens > 64 * 60:  # more would fit on no node
            continue
        blocks = [(-1 if k < shared else i, k) for k in range(tokens // 64)]
        if host.view.phase[i] == state.NEW:
            state.start(host.state, i)
        host.state.session[i, state.PREFIX] = host.view.context_tokens[i]
        state.resize(host.state, i, tokens)
        for b, index in enumerate(indices):
            known = next((k for k, block in enumerate(blocks) if block not in index), len(blocks))
            assert scored._llmd_match(host.state, i, b) == known / max(len(blocks), 1)
        b = host.request(i, tokens)
        for block in blocks:
            indices[b][block] = None
            indices[b].move_to_end(block)
            if len(indices[b]) > host.view.capacity_tokens[b] // 16:
                indices[b].popitem(last=False)
        host.finish(i, 0)


def test_llmd_finds_no_more_of_a_rewritten_prompt_than_it_repeats():
    host = Host("llmd", 1, [1600])
    host.start(0, 640)
    host.finish(0, 0)
    host.state.session[0, state.PREFIX] = 200
    assert scored._llmd_match(host.state, 0, 0) == 3 / 10


def test_llmd_never_forgets_the_prefix_that_all_share():
    host = Host("llmd", 5, [1600, 1600], shared=1280)  # 20 blocks
    host.at(1.0)
    loads(host, state.QUEUED, 0, 1)
    for i in range(4):
        assert host.start(i, 60 * 64) == 0
        host.finish(i, 0)
    assert indexed(host, 0) == [2, 3]  # of 40 own blocks each: 80 + 20
    state.resize(host.state, 0, 60 * 64)
    assert [scored._llmd_match(host.state, 0, b) for b in range(2)] == [20 / 60, 0.0]


def test_llmd_counts_no_more_of_a_prompt_than_131072_tokens():
    host = Host("llmd", 1, [900_000])
    host.start(0, 200_000)
    assert host.state.pair_memory[0, 0, scored.MATCH] == 2048


# --- ThunderAgent --------------------------------------------------------------------------------


def agents(name, contexts, capacity, resident=-1, phase=WAITING, turn=3):
    """A cluster with sessions of these sizes."""
    host = Host(name, len(contexts), capacity)
    host.view.context_tokens[:], host.view.turn[:] = contexts, turn
    host.view.phase[:], host.view.resident[:] = phase, resident
    host.view.recount()
    return host


def test_thunderagent_starves_the_large_one():
    for name in MODES:
        capacity = [12_000] * 2 if name == "thunderagent_dynamo" else [10_000] * 2
        placed, _ = agents(name, [4000, 4000, 4000, 4000, 9000], capacity).tick()
        assert sorted(placed) == [(0, 0), (1, 1), (2, 0), (3, 1)]


def test_thunderagent_marks_everybody_when_answering_sessions_overflow_a_little():
    contexts = [1800, 1900, 2000, 2100, 2100]  # 9,900 and 5 * 100, 400 too many
    host = agents("thunderagent", contexts, [10_000], resident=0, phase=REASONING)
    assert sorted(host.tick()[1]) == [0, 1, 2, 3, 4]
    assert host.tick()[1] == []  # they are marked already
    paper = agents("thunderagent_paper", contexts, [10_000], resident=0, phase=REASONING)
    assert paper.tick()[1] == [0]
    assert paper.tick()[1] == []  # it will make the room; nobody else has to go
    dynamo = agents("thunderagent_dynamo", contexts, [10_400 * 100 // 95 + 1], resident=0, phase=REASONING)
    assert dynamo.tick()[1] == []
    dynamo.state.node[0, state.CAPACITY] -= 2
    assert sorted(dynamo.tick()[1]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", MODES)
def test_thunderagent_pauses_the_smallest_in_a_tool_first(name):
    host = agents(name, [6000, 2000, 1000, 2500, 500], [10_000], resident=0, phase=TOOL)
    host.view.phase[4] = REASONING
    # 12,000 and 5 * 100: 2,500 too many, for Dynamo 4,500.
    assert host.tick()[1] == ([2, 1, 3] if name == "thunderagent_dynamo" else [2, 1])
    assert host.view.resident[[1, 2]].tolist() == [HOLD, HOLD]


def test_shortest_first_is_not_the_cheapest_way_to_make_room():
    # With 100 each, 4,000 + 5,000 + 6,000 are 6,000 too many. Recomputing costs the square.
    sizes = [4, 5, 6]
    host = agents("thunderagent", [s * 1000 - 100 for s in sizes], [9_000], resident=0, phase=TOOL)
    paused = host.tick()[1]
    covers = [c for k in range(4) for c in combinations(range(3), k) if sum(sizes[i] for i in c) >= 6]
    best = min(covers, key=lambda c: sum(sizes[i] ** 2 for i in c))
    assert paused == [0, 1]
    assert sum(sizes[i] ** 2 for i in paused) == 41
    assert (best, sum(sizes[i] ** 2 for i in best)) == ((2,), 36)


@pytest.mark.parametrize("name", MODES)
def test_thunderagent_resumes_waiting_before_new_before_acting(name):
    host = agents(name, [1000, 2000, 3000], [3200 if name != "thunderagent_dynamo" else 3800])
    host.view.turn[:], host.view.phase[:] = [5, 0, 5], [TOOL, WAITING, WAITING]
    assert host.tick()[0] == [(2, 0)]
    host = agents(name, [1000, 2000], [2500])
    host.view.turn[:], host.view.phase[:] = [5, 0], [TOOL, WAITING]
    assert host.tick()[0] == [(1, 0)]


def test_thunderagent_fits_worst_longest_first():
    # Shortest first all three fit into the pooled room of 7,300; then 3,500 goes to the node with most room,
    # 2,000 to the other one, and 1,400 finds 500 and 1,200 left.
    host = agents("thunderagent", [1400, 2000, 3500], [4_100, 3_300])
    assert host.tick()[0] == [(2, 0), (1, 1)]


def test_thunderagent_ranks_by_the_size_at_the_pause():
    for name, first in (("thunderagent", 0), ("thunderagent_paper", 1)):
        host = agents(name, [1000, 1500], [2500], resident=0, phase=TOOL)
        for i in range(2):
            host.kernels[1](host.state, i)
            state.move(host.state, i, HOLD)
        host.request(0, 2100)  # has grown since
        host.request(1, 1600)
        assert host.tick()[0] == [(first, 0)]


def test_thunderagent_starts_a_new_session_on_the_lightest_node_if_nobody_waits():
    host = agents("thunderagent", [3000, 1000, 500, 0, 0], [5_000] * 2)
    host.view.phase[:3], host.view.resident[:3] = REASONING, [0, 1, 1]
    host.view.phase[3:] = state.NEW
    host.view.turn[3:] = 0
    host.view.recount()
    host.state.session[1, state.STREAMED] = 1519  # counted as 1,500: 3,000 against 3,000
    assert host.start(3, 1000) == 0
    assert host.start(4, 2000) == HOLD  # 1,000 - 2 * 100 and 2,000 - 2 * 100 are free
    host = agents("thunderagent", [100, 0], [5_000])
    host.view.phase[1], host.view.turn[1] = state.NEW, 0
    host.view.recount()
    assert host.start(1, 100) == HOLD  # behind the one that waits


def test_only_the_paper_and_dynamo_see_a_session_fade_while_it_is_in_a_tool():
    def host(name):
        made = agents(name, [4000, 2000, 0], [6_000] * 2, resident=[0, 1, -1], phase=[TOOL, REASONING, 0])
        made.view.turn[2] = 0
        made.view.recount()
        made.at(3.0)  # 4,000 are 500 by now
        return made

    assert host("thunderagent").start(2, 1500) == 1
    assert host("thunderagent_paper").start(2, 1500) == 0
    assert host("thunderagent_dynamo").start(2, 1500) == 0
    assert host("thunderagent_paper").start(2, 5000) == 0
    assert host("thunderagent_dynamo").start(2, 5000) == HOLD  # but only the paper lets others use the room


def test_the_paper_does_not_pause_for_a_load_that_has_faded():
    for name, paused in (("thunderagent", [0]), ("thunderagent_paper", [])):
        host = agents(name, [4000, 5000], [9_000], resident=0, phase=[TOOL, REASONING])
        host.at(1.0)
        assert host.tick()[1] == paused


def test_dynamo_pauses_down_to_80_percent_and_resumes_up_to_85():
    host = agents("thunderagent_dynamo", [900, 900, 900, 6700], [10_000], 0, [TOOL, TOOL, TOOL, REASONING])
    assert host.tick()[1] == [0, 1]  # 9,800 are above 9,500; two of 1,000 go, 7,800 are left
    host.view.context_tokens[0] = 601
    host.view.context_tokens[1] = 800
    assert host.tick() == ([], [])  # 8,500 would be exceeded
    host.view.context_tokens[0] = 600
    assert host.tick() == ([(0, 0)], [])


def test_thunderagent_forces_in_whoever_has_waited_for_half_an_hour():
    host = agents("thunderagent", [5000, 9000, 9500], [6_000] * 2, phase=[REASONING, WAITING, WAITING])
    host.view.resident[0], host.view.last_node[2] = 0, 0
    host.view.recount()
    host.at(1799.0)
    assert host.tick() == ([], [])
    host.at(1800.0)
    placed, paused = host.tick()
    assert placed == [(1, 1), (2, 0)]  # where the fewest are, and back home
    assert sorted(paused) == [0, 1, 2]  # what came in counts at once


@settings(max_examples=60)
@given(st.sampled_from(sorted(MODES)), st.integers(0, 2**31 - 1))
def test_thunderagent_never_resumes_into_room_that_is_not_there(name, seed):
    draw = random.Random(seed)
    contexts = [draw.randrange(10, 4000) for _ in range(12)]
    host = agents(name, contexts, [6_000, 5_000, 8_000])
    host.view.resident[:] = [draw.choice([-1, -1, 0, 1, 2]) for _ in contexts]
    inside = host.view.resident >= 0
    host.view.phase[:] = [draw.choice([REASONING, TOOL] if here else [WAITING, TOOL]) for here in inside]
    host.view.recount()
    before = host.view.used_tokens + 100 * host.view.residents
    placed, _ = host.tick()
    added = np.zeros(3, np.int64)
    for i, b in placed:
        added[b] += contexts[i] + 100
    top = host.view.capacity_tokens * (85 if name == "thunderagent_dynamo" else 100) // 100
    assert ((added == 0) | (before + added <= top)).all()
