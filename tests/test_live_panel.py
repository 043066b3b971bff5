"""The live panel without a browser: submit, watch, stop, switch, look back, and nothing left behind."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import pairwise
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tao import charts
from tao.checks import InputError
from tao.history import History, TurnRow
from tao.live import Ask, Plan, Sleep, connect
from tao.panels import LivePanel, run_words, updates
from tao.policies import POLICIES
from tao.profiles import PS_PER_S
from tao.workloads import Task, Turn, Workload

PLAN = Plan(nodes=2, kv_tokens=8_192, speedup=40)
SLOW = Workload(  # nobody sees its end
    "slow",
    tuple(Task(f"s{k}", (Turn(900, 0, 8, "bash", "test", 9_000.0), Turn(950, 900, 8))) for k in range(12)),
    0,
)
QUICK = {"sessions": 8, "turns": 3, "workers": 8, "max_seconds": 600, "max_requests": 1_000}


@pytest.fixture(autouse=True)
def no_nodes(monkeypatch):
    monkeypatch.delenv("TAO_NODES", raising=False)


@pytest.fixture(scope="module")
def connection():
    with connect("", plan=PLAN) as connected:
        yield connected


@pytest.fixture(scope="module")
def shared(connection):
    """A panel whose first run is over."""
    panel = LivePanel(connection)
    panel.submit(**QUICK)
    panel.wait(60)
    yield panel
    panel.close()


@pytest.fixture
def panel(shared):
    shared.view.value = "Run"
    shared.switch("tao")
    return shared


@pytest.fixture
def slow(connection):
    """A panel whose runs go on until they are stopped."""
    panel = LivePanel(connection, SLOW)
    yield panel
    panel.close()


def left():
    """Threads, child processes and sockets of this process."""
    threads = {thread.name for thread in threading.enumerate() if thread.name.startswith("tao")}
    process = psutil.Process()
    sockets = {(each.fd, each.laddr) for each in process.net_connections("all")}
    return threads, {child.pid for child in process.children()}, sockets


def more_than(before):
    """What there is now and was not then; others may have ended."""
    return [now - then for now, then in zip(left(), before, strict=True) if now - then]


def drawn(figure, name):
    return getattr(figure.live.params, name)


# What is on screen


def test_the_banner_is_on_everything(panel):
    assert panel.banner == panel.connection.banner
    assert panel.banner.startswith("SIMULATED: 2 nodes, vLLM 0.32.0, 40 times as fast")
    assert panel.text().startswith(panel.banner)
    assert all(table.caption.startswith("SIMULATED: ") for table in panel._tables())
    for chart in (panel.chart(), charts.cache_credit([], panel.banner)):
        title = chart.to_dict()["title"]
        assert title["text"].startswith("SIMULATED: ")
        assert " ".join(title["subtitle"]) == panel.banner
        assert panel.banner in chart.to_dict()["description"]
    panel.view.value = "Decisions"
    assert panel.decisions.name.startswith("SIMULATED, decision 1, at ")
    assert panel.decisions.figure.live.chart.to_dict()["title"] == panel.banner
    banners = [
        child.value for child in panel.root.children if 'class="tao-banner' in getattr(child, "value", "")
    ]
    assert len(banners) == 1
    assert panel.banner.split("(")[0] in banners[0]


def test_every_first_token_is_drawn_as_the_record_has_it(panel):
    history = panel.history
    assert len(history.finished_ps) == 8
    assert not history.failed
    rows = drawn(panel.firsts, "firsts")["rows"]
    assert len(rows) == len(history.turns) == 24
    told = sorted((turn.session, turn.turn) for turn in history.turns)
    seen = sorted((history.session_ids.index(row["session"]), row["turn"]) for row in panel._firsts)
    assert seen == told
    record = {(history.session_ids[turn.session], turn.turn): turn for turn in history.turns}
    for row in panel._firsts:
        turn, at_ps = record[row["session"], row["turn"]], row["at_s"] * PS_PER_S
        assert turn.first_token_ps <= at_ps + 1
        assert row["ttft_s"] == pytest.approx((at_ps - turn.arrived_ps) / PS_PER_S)
    text = panel.text()
    assert all(row["session"] in text for row in panel._sessions)
    assert all(row["node"] in text for row in panel._nodes)
    assert "8 of 8 sessions done" in panel.status.value
    assert "While a cell computes" in text


def test_measured_stands_beside_simulated(panel):
    panel.view.value = "Simulator"
    assert panel.simulated.settings["policy"] == panel.history.settings["policy"] == "tao"
    assert panel.simulated.settings["capacity_tokens"] == panel.history.settings["capacity_tokens"]
    assert len(panel.simulated.turns) == len(panel.history.turns)
    per_turn = [
        sorted((h.session_ids[t.session], t.turn, t.prompt_tokens, t.output_tokens) for t in h.turns)
        for h in (panel.history, panel.simulated)
    ]
    assert per_turn[0] == per_turn[1]  # the same requests
    assert "measured, SIMULATED servers" in panel.beside.value
    for words in ("task latency, s", "time to first token, s", "prefix hit rate", "sessions done"):
        assert words in panel.beside.value


def test_credit_is_drawn_against_what_was_cached(panel):
    panel.view.value = "Cache"
    rows = run_words.credit_rows(panel.history)
    assert drawn(panel.credit, "credit")["rows"] == charts.cache_credit_value(rows)["rows"]
    assert f"{len(rows):,} of 24 turns were placed" in panel.credit_words.value


def test_kept_decisions_can_be_stepped_through_and_back(panel):
    panel.view.value = "Decisions"
    stepper = panel.decisions
    assert [snapshot for _, snapshot in stepper.snapshots] == [
        kept[0] for kept in panel.history.kept.values()
    ]
    before = stepper.text()
    stepper.next()
    assert stepper.text() != before
    stepper.previous()
    assert stepper.text() == before
    placed = [row for row in panel.history.decisions if row.placed and row.plan]
    assert any(f"placed {placed[0].placed[0][0]} on " in name for name, _ in stepper.snapshots)


# What it does


def test_stop_ends_what_is_under_way_and_more_can_be_submitted_before(slow):
    slow.submit(**QUICK | {"sessions": 6, "max_seconds": 80_000})
    first = slow.run
    assert "Under way. tao: 0 of 6 sessions done" in slow.status.value
    slow.submit(sessions=4)
    assert slow.run is first
    slow.buttons["Stop"].click()
    assert first.done
    assert slow.history.failed == dict.fromkeys(range(10), "the run was stopped")
    assert all(row["requests"] == row["held_tokens"] == 0 for row in slow._nodes)
    assert all(row["others"] is None for row in slow._nodes)
    assert "Over after" in slow.status.value
    assert slow.submitted.ids == [f"s{k}" for k in range(10)]
    slow.view.value = "Simulator"
    assert "sessions done" in slow.beside.value
    assert "10 sessions did not come to their end in the run" in slow.beside.value


def test_a_policy_is_switched_under_way_and_then_nothing_is_simulated_beside(slow):
    slow.switch("sticky")
    slow.submit(**QUICK | {"max_seconds": 80_000})
    slow.policy.value = "vllm_rr"
    slow.buttons["Switch"].click()
    slow.stop()
    assert slow.history.settings["policy"] == "vllm_rr"
    assert "sticky then vllm_rr" in slow.status.value
    slow.view.value = "Simulator"
    assert "switched" in slow.beside.value
    slow.view.value = "Decisions"
    assert slow.decisions is None


@pytest.mark.parametrize("limit", ["max_requests", "max_seconds"])
def test_a_run_stops_by_itself(slow, limit):
    slow.submit(**QUICK | {"max_seconds": 80_000, limit: 5})
    slow.wait(30)
    assert f"Stopped after {limit} = 5" in slow.status.value


def test_ones_own_sessions_run_too(panel):
    def agent():
        reply = yield Ask([{"role": "user", "content": "hello"}], options={"max_tokens": 4})
        assert reply.text
        yield Sleep(0.1)
        yield Ask([{"role": "user", "content": "again"}], options={"max_tokens": 4})

    def broken():
        yield Ask([{"role": "user", "content": "<b>"}], options={"max_tokens": 4})
        raise ValueError("<script>")

    panel.submit({"mine": agent, "broken": broken})
    panel.wait(30)
    assert list(panel.history.failed.values()) == ["ValueError: <script>"]
    assert list(panel.history.finished_ps) == [0]
    assert "&lt;script&gt;" in panel.session_table.value
    assert "<script>" not in panel.session_table.value
    panel.view.value = "Simulator"
    assert "own code" in panel.beside.value


def test_what_cannot_be_is_refused_in_words(panel, slow, connection):
    assert set(panel.policy.options) < set(POLICIES)
    with pytest.raises(InputError, match="here it may be"):
        panel.switch("oracle")
    with pytest.raises(InputError, match="no field 'worker'"):
        panel.submit(worker=3)
    fresh = LivePanel(connection, "swe")
    with pytest.raises(InputError, match="it may be swe-lite"):
        fresh.submit()
    with pytest.raises(InputError, match="nothing has been submitted"):
        fresh.wait()
    fresh.close()
    with pytest.raises(InputError, match=r"has 12; ask for fewer"):
        slow.submit(sessions=13)


def test_an_error_of_a_press_is_seen(panel, monkeypatch):
    monkeypatch.setattr(panel, "_workload", "nonsense")
    with pytest.raises(InputError):  # which a press would write to the log
        panel._on_submit(panel.buttons["Submit"])
    assert 'role="alert"' in panel.error.value
    panel._update()  # what the run sends does not wipe it out
    assert 'role="alert"' in panel.error.value
    panel.buttons["Stop"].click()
    assert panel.error.value == ""


def test_nothing_is_left_behind(connection):
    before = left()
    panel = LivePanel(connect("", plan=PLAN))
    panel.submit(**QUICK | {"turns": 30})
    while not panel._firsts:
        time.sleep(0.02)
        panel.refresh()
    assert left()[1] - before[1]
    panel.close()  # and with it goes the last who knew the connection
    panel.close()
    until = time.monotonic() + 5
    while more_than(before) and time.monotonic() < until:
        time.sleep(0.05)
    assert more_than(before) == []


# From the run's thread to the widgets


class Loop:
    """A kernel's loop whose time a test moves."""

    def __init__(self):
        self.now, self.soon, self.later = 0.0, [], []

    def time(self):
        return self.now

    def add_callback(self, do):
        self.soon.append(do)

    def call_at(self, at, do):
        self.later.append((at, do))

    def run_until(self, at):
        while True:
            while self.soon:
                self.soon.pop(0)()
            due = min((when for when, _ in self.later if when <= at), default=None)
            if due is None:
                self.now = at
                return
            self.now = max(self.now, due)
            k = next(k for k, (when, _) in enumerate(self.later) if when == due)
            self.later.pop(k)[1]()


@given(st.lists(st.floats(0, 3), min_size=1, max_size=40))
@settings(max_examples=50)
def test_pokes_are_drawn_soon_and_at_most_five_times_a_second(times):
    loop, drawn_at = Loop(), []
    helper = updates.Updates(lambda: drawn_at.append(loop.now))
    helper._loop = loop
    loop.now = 100.0
    for at in sorted(times):
        loop.run_until(100 + at)
        helper.poke()
    loop.run_until(200)
    assert all(b - a >= updates.PERIOD_S - 1e-9 for a, b in pairwise(drawn_at))
    for at in times:
        assert any(-1e-9 <= when - (100 + at) <= updates.PERIOD_S + 1e-9 for when in drawn_at)
    helper.close()
    helper.poke()
    loop.run_until(300)
    assert max(drawn_at) < 200


def test_pokes_from_any_thread_are_drawn_in_the_kernel_s_and_harmless_without_one(monkeypatch):
    updates.Updates(lambda: pytest.fail("there is no kernel")).poke()

    async def kernel():
        from tornado.ioloop import IOLoop

        shell = SimpleNamespace(kernel=SimpleNamespace(io_loop=IOLoop.current()))
        monkeypatch.setattr(updates, "get_ipython", lambda: shell)
        threads, done = [], asyncio.Event()
        helper = updates.Updates(lambda: (threads.append(threading.current_thread()), done.set()))
        pokers = [threading.Thread(target=lambda: [helper.poke() for _ in range(200)]) for _ in range(4)]
        for poker in pokers:
            poker.start()
        await asyncio.wait_for(done.wait(), 5)
        for poker in pokers:
            poker.join()
        await asyncio.sleep(3 * updates.PERIOD_S)
        return threads

    threads = asyncio.run(kernel())
    assert set(threads) == {threading.main_thread()}
    assert len(threads) <= 4


# Words and charts


def turn(session, k, promised, hit, prompt=100):
    times = [k * PS_PER_S + n for n in range(6)]
    return TurnRow(session, k, 0, *times, prompt, 0, hit, 5, 0, 0, promised)


@given(st.lists(st.tuples(st.integers(-1, 300), st.integers(-1, 300)), max_size=12))
@settings(max_examples=50)
def test_the_words_on_credit_agree_with_counting(pairs):
    history = History({"policy": "tao"}, ["a"], ["n0"])
    for k, (promised, hit) in enumerate(pairs):
        history.turn_rows.append(turn(0, k, promised, hit))
    rows = run_words.credit_rows(history)
    assert [(row["promised_tokens"], row["hit_tokens"]) for row in rows] == [p for p in pairs if min(p) >= 0]
    value = charts.cache_credit_value(rows)
    assert value["x"] == value["y"] == (max((max(p) for p in pairs if min(p) >= 0), default=0) or 1)
    lost = [row for row in value["rows"] if row["kind"] == "cached less than estimated"]
    assert len(lost) == sum(0 <= hit < promised for promised, hit in pairs)
    said = run_words.credit_summary(history)
    assert f"{sum(p >= 0 for p, _ in pairs)} of {len(pairs)} turns were placed" in said
    unknown = sum(p >= 0 > hit for p, hit in pairs)
    assert ("unknown, not 0" in said) == bool(unknown)
    assert f"Of {unknown} the server" in said or not unknown
    both = [(p, hit) for p, hit in pairs if p > 0 <= hit]
    found = f"{sum(min(p) for p in both):,} of {sum(p for p, _ in both):,} tokens"
    assert found in said or not both


def test_only_the_latest_marks_and_rows_are_drawn():
    rows = [{"session": "a", "turn": k, "node": "n0", "at_s": float(k), "ttft_s": 1.0} for k in range(1_500)]
    value = charts.first_tokens_value(rows)
    assert [row["x"] for row in value["rows"]] == [float(k) for k in range(500, 1_500)]
    table = run_words.first_tokens(rows, "LIVE: 1 node")
    assert [row[1] for row in table.rows] == list(range(1_499, 1_499 - run_words.ROWS, -1))


def test_a_live_banner_looks_different():
    from tao.panels import html

    assert "tao-live" in html.banner("LIVE: 1 node, vLLM 0.32.0; every node that is named answers")
    assert "tao-live" not in html.banner("SIMULATED: 2 nodes")
    assert "<b>" not in html.banner("LIVE: <b>")
