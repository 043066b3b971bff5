"""When the tool returns: every rung of the ladder, and what happens when a prediction was wrong."""

from __future__ import annotations

import math
import random
import statistics
from itertools import pairwise

import naive
import pytest
import strategies
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tao import readiness
from tao.durations import History
from tao.model import Params, Session, ToolCall
from tao.readiness import Prediction, predict, session_ready, timeline

many = settings(max_examples=1000, suppress_health_check=list(HealthCheck))
some = settings(many, max_examples=300)

sleep = strategies.COMMANDS.get


def bash(**evidence):
    return ToolCall("bash", 100.0, **evidence)


def at(tool, seconds, **params):
    """The prediction `seconds` after the tool's start at 100 s."""
    return predict(tool, 100.0 + seconds, Params(**params))


# Against the naive twin


@many
@given(strategies.cases())
def test_the_ready_bit_equals_its_naive_twin(case):
    snapshot, params = case
    for s in snapshot.sessions:
        assert session_ready(s, snapshot.now_s, params) == naive.ready(s, snapshot.now_s, params, sleep), s


@many
@given(strategies.cases(), st.integers(0, 10**6), st.sampled_from((-0.125, 0.0, 0.125)))
def test_the_ready_bit_equals_its_naive_twin_on_every_boundary(case, choice, step_s):
    snapshot, params = case
    for s in snapshot.sessions:
        if s.tool is None:
            continue
        edges = [0.0, params.probe_s, -params.horizon_s, params.stale_s]
        moments = [due_s + edge for due_s in naive.due_times(s.tool, params, sleep) for edge in edges]
        moments = [m for m in [*moments, s.tool.started_s + params.stale_s] if m < math.inf]
        now_s = moments[choice % len(moments)] + step_s
        assert session_ready(s, now_s, params) == naive.ready(s, now_s, params, sleep), (s, now_s)


def first_believed(tool, now_s, params):
    """The naive twin of the prediction in force: when it is due and which rung it stands on."""
    rungs = [
        ("deadline", tool.deadline_s),
        ("sleep", sleep(tool.command)),
        ("history", tool.expected_s),
        ("fallback", 0),
    ]
    names = [name for name, given_ in rungs if given_ is not None]
    for name, due_s in zip(names, naive.due_times(tool, params, sleep), strict=True):
        if not naive.is_void(due_s, tool.started_s, now_s, params):
            return due_s, name
    return math.inf, "void"


@many
@given(strategies.cases(), st.integers(0, 10**6))
def test_the_rule_and_the_moment_equal_their_naive_twins(case, step):
    snapshot, params = case
    for s in snapshot.sessions:
        if s.tool is None or s.tool.finished_s is not None:
            continue
        now_s = s.tool.started_s + step % 1600 / 8
        prediction = predict(s.tool, now_s, params)
        assert (prediction.return_s, prediction.rule) == first_believed(s.tool, now_s, params)
        assert prediction.probe == (prediction.ready and now_s > prediction.return_s)


# The rungs, strongest first


ALL = {"deadline_s": 103.0, "command": "sleep 7", "expected_s": 11.0}


def test_without_a_tool_a_session_is_ready():
    assert predict(None, 5.0, Params()) == Prediction(5.0, "no tool", True)


def test_an_observed_completion_settles_it_for_ever():
    tool = bash(finished_s=102.0, **ALL)
    assert at(tool, 2.0) == at(tool, 10_000.0) == Prediction(102.0, "completed", True)


def test_each_rung_is_used_when_the_stronger_ones_are_missing():
    assert at(bash(**ALL), 0.0)[:2] == (103.0, "deadline")
    assert at(bash(command="sleep 7", expected_s=11.0), 0.0)[:2] == (107.0, "sleep")
    assert at(bash(command="make", expected_s=11.0), 0.0)[:2] == (111.0, "history")
    assert at(bash(command="make"), 0.0)[:2] == (105.0, "fallback")
    assert at(bash(), 0.0, fallback_s=2.5)[:2] == (102.5, "fallback")


@pytest.mark.parametrize(("command", "asked_s"), [("cd x && sleep 3; make", 3), ("timeout 10 sleep 60", 10)])
def test_the_sleep_rung_reads_whole_commands(command, asked_s):
    assert at(bash(command=command, expected_s=20.0), 0.0)[:2] == (100.0 + asked_s, "sleep")


@pytest.mark.parametrize("command", ["sleep $N", "sleep 5 &", "make", ""])
def test_a_command_that_says_nothing_leaves_the_next_rung(command):
    assert at(bash(command=command, expected_s=20.0), 0.0)[:2] == (120.0, "history")


def test_a_tool_that_sleeps_for_ever_is_never_ready():
    tool = bash(command="sleep infinity", expected_s=1.0)
    for seconds in (0.0, 1.0, 31.0, 1e6, 1e14):
        assert at(tool, seconds) == Prediction(math.inf, "sleep", False)
    assert timeline(tool, Params()) == [(100.0, Prediction(math.inf, "sleep", False))]


def test_a_tool_that_sleeps_for_ever_is_no_longer_believed_if_predictions_age_from_their_making():
    assert at(bash(command="sleep infinity"), 29.0, stale_from="made").rule == "sleep"
    assert at(bash(command="sleep infinity"), 30.0, stale_from="made") == Prediction(math.inf, "void", False)


def test_a_published_deadline_beats_an_endless_sleep():
    assert at(bash(command="sleep infinity", deadline_s=104.0), 3.5) == Prediction(104.0, "deadline", True)


def test_the_margin_is_added_to_every_estimate_but_not_to_what_was_seen():
    for evidence, due_s in (({"deadline_s": 103.0}, 103.5), ({"command": "sleep 7"}, 107.5)):
        assert at(bash(**evidence), 0.0, margin_s=0.5).return_s == due_s
    for evidence, due_s in (({"expected_s": 11.0}, 111.5), ({}, 105.5)):
        assert at(bash(**evidence), 0.0, margin_s=0.5).return_s == due_s
    assert at(bash(finished_s=102.0), 3.0, margin_s=0.5).return_s == 102.0


# Horizon, probe, staleness


def test_a_session_is_ready_from_one_horizon_before_the_return():
    before, begin = math.nextafter(106.0, 0.0), 106.0
    assert not predict(bash(command="sleep 7"), before, Params()).ready
    assert predict(bash(command="sleep 7"), begin, Params()).ready
    assert at(bash(command="sleep 7"), 2.0, horizon_s=5.0).ready


def test_an_overdue_tool_gets_one_short_probe_and_then_nothing():
    tool = bash(command="sleep 7")
    assert predict(tool, 107.0, Params()) == Prediction(107.0, "sleep", True, probe=False)
    assert predict(tool, math.nextafter(107.0, 200.0), Params()) == Prediction(
        107.0, "sleep", True, probe=True
    )
    assert predict(tool, 108.0, Params()) == Prediction(107.0, "sleep", True, probe=True)
    assert predict(tool, math.nextafter(108.0, 200.0), Params()) == Prediction(107.0, "sleep", False)
    assert predict(tool, 136.9, Params()) == Prediction(107.0, "sleep", False)
    assert at(tool, 9.5, probe_s=3.0).probe
    assert not at(tool, 7.001, probe_s=0.0).ready


def test_new_evidence_ends_the_silence_after_a_probe():
    assert not at(bash(), 10.0).ready
    assert at(bash(deadline_s=110.5), 10.0).ready
    assert at(bash(finished_s=109.0), 10.0).ready


def test_a_prediction_is_void_once_it_lies_thirty_seconds_in_the_past():
    tool = bash(deadline_s=103.0, command="sleep 40")
    assert predict(tool, math.nextafter(133.0, 0.0), Params())[:2] == (103.0, "deadline")
    assert predict(tool, 133.0, Params())[:2] == (140.0, "sleep")
    assert predict(tool, 139.5, Params()) == Prediction(140.0, "sleep", True)
    assert at(tool, 4.0, stale_s=1.0)[:2] == (140.0, "sleep")


def test_a_void_prediction_does_not_revive_a_weaker_one_that_is_overdue():
    tool = bash(deadline_s=103.0)
    assert at(tool, 33.5) == Prediction(105.0, "fallback", False)
    assert at(tool, 35.0) == Prediction(math.inf, "void", False)


def test_by_the_other_reading_every_prediction_is_void_thirty_seconds_after_it_was_made():
    tool = bash(command="sleep 60")
    assert at(tool, 29.9, stale_from="made")[:2] == (160.0, "sleep")
    assert (
        at(tool, 30.0, stale_from="made")
        == at(tool, 59.5, stale_from="made")
        == (math.inf, "void", False, False)
    )
    assert at(tool, 59.5, stale_from="due").ready


def test_only_a_running_tool_keeps_a_session_from_being_ready():
    tool = bash(command="sleep 50")
    assert not session_ready(Session("a", 1, "tool", tool=tool), 110.0, Params())
    assert session_ready(Session("a", 1, "waiting", tool=tool), 110.0, Params())
    assert session_ready(Session("a", 1, "reasoning"), 110.0, Params())


# The timeline


seconds = st.floats(0.0, 200.0) | st.sampled_from((0.0, 1.0, 5.0, 30.0, 35.0))
tools = st.builds(
    lambda started_s, deadline, command, expected_s, lasted_s: ToolCall(
        "bash",
        started_s,
        command=command,
        deadline_s=None if deadline is None else started_s + deadline,
        expected_s=expected_s,
        finished_s=None if lasted_s is None else started_s + lasted_s,
    ),
    st.sampled_from((0.0, 1000.0, 0.1, 1_790_000_000.0)),
    st.none() | st.floats(-50.0, 200.0),
    st.sampled_from((None, "ls", "sleep 2", "sleep 0.3", "sleep 1m", "sleep infinity")),
    st.none() | seconds,
    st.none() | seconds,
)


@some
@given(tools, strategies.params(), st.integers(0, 2**32))
def test_the_timeline_says_what_predict_says_at_any_moment(tool, params, seed):
    rows = timeline(tool, params)
    running = ToolCall(
        "bash", tool.started_s, tool.command_class, tool.command, tool.deadline_s, tool.expected_s
    )
    changes = readiness.changes(running, params)
    end_s = changes[-1] + 10.0 if tool.finished_s is None else tool.finished_s
    rng = random.Random(seed)
    for _ in range(200):
        now_s = rng.uniform(tool.started_s, min(end_s, tool.started_s + rng.choice((1.0, 10.0, 100.0, 1e9))))
        if now_s in changes or now_s == tool.finished_s:
            continue  # on the very moment of a change either side may hold
        in_force = [prediction for since_s, prediction in rows if since_s <= now_s][-1]
        assert in_force == predict(running, now_s, params), now_s
    if tool.finished_s is not None:
        for now_s in (tool.finished_s, tool.finished_s + rng.uniform(0.0, 1000.0)):
            assert rows[-1] == (tool.finished_s, predict(tool, now_s, params))


@some
@given(tools, strategies.params())
@example(ToolCall("bash", 0.0, finished_s=0.0), Params())
@example(ToolCall("bash", 0.0, finished_s=4.0), Params())
def test_a_timeline_starts_with_the_tool_never_repeats_itself_and_ends_with_the_completion(tool, params):
    rows = timeline(tool, params)
    assert rows[0][0] == tool.started_s
    assert [since_s for since_s, _ in rows] == sorted(since_s for since_s, _ in rows)
    assert all(a != b for (_, a), (_, b) in pairwise(rows))
    completions = [row for row in rows if row[1].rule == "completed"]
    if tool.finished_s is None:
        assert completions == []
    else:
        assert completions == rows[-1:] == [(tool.finished_s, Prediction(tool.finished_s, "completed", True))]


@some
@given(tools, strategies.params(), st.floats(0.0, 100.0))
def test_a_timeline_that_stops_early_is_the_beginning_of_the_whole(tool, params, after_s):
    until_s = tool.started_s + after_s
    whole = timeline(tool, params)
    assert timeline(tool, params, until_s) == [row for row in whole if row[0] <= until_s]


def test_the_story_of_a_tool_that_takes_longer_than_it_said():
    tool = bash(deadline_s=102.0, expected_s=33.0, finished_s=150.0)
    assert [(since_s - 100, *p[1:]) for since_s, p in timeline(tool, Params())] == [
        (0.0, "deadline", False, False),
        (1.0, "deadline", True, False),
        (2.0, "deadline", True, True),
        (3.0, "deadline", False, False),
        (32.0, "history", True, False),
        (33.0, "history", True, True),
        (34.0, "history", False, False),
        (50.0, "completed", True, False),
    ]


# What history teaches


calls = st.lists(
    st.tuples(
        st.sampled_from(("bash", "read", "grep")),
        st.sampled_from(("test", "git", None)),
        st.floats(0.0, 1000.0) | st.sampled_from((0.0, 0.1, 0.25)),
    ),
    max_size=30,
)


@many
@given(calls, st.sampled_from(("bash", "read", "new")), st.sampled_from(("test", "git", "build", None)))
def test_history_is_the_mean_and_median_of_the_most_specific_kind_seen(calls, tool, command_class):
    history = History()
    for call in calls:
        history.add(*call)
    levels = (
        [s for name, kind, s in calls if (name, kind) == (tool, command_class)] if command_class else [],
        [s for name, _, s in calls if name == tool],
        [s for _, _, s in calls],
    )
    seen = next((level for level in levels if level), None)
    mean, median = (history.estimate(tool, command_class, which) for which in ("mean", "median"))
    if seen is None:
        assert mean is median is None
    else:
        assert mean == pytest.approx(statistics.fmean(seen), rel=1e-12)
        assert median == statistics.median(seen)


def test_history_falls_back_from_class_to_tool_to_all():
    history = History()
    assert history.estimate("bash", "test", "mean") is None
    history.add("read", None, 1.0)
    assert history.estimate("bash", "test", "mean") == 1.0
    history.add("bash", "git", 2.0)
    assert history.estimate("bash", "test", "mean") == 2.0
    history.add("bash", "test", 9.0)
    assert history.estimate("bash", "test", "mean") == 9.0
    assert history.estimate("bash", None, "mean") == 5.5
    assert history.estimate("web", "web", "mean") == 4.0


def test_the_median_shrugs_off_the_one_call_that_hung():
    history = History()
    for lasted_s in (0.1, 0.1, 0.1, 300.0):
        history.add("bash", "test", lasted_s)
    assert history.estimate("bash", "test", "median") == 0.1
    assert history.estimate("bash", "test", "mean") > 75.0
