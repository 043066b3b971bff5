"""The readiness lab, and the predictor "survival", against slow twins that know only the definition."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import strategies
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tao import charts, durations, lab
from tao.durations import Kinds, chance, expected_s, learn, next_look
from tao.lab import ToolCalls, decisions, scoring
from tao.model import InputError, Params
from tao.readiness import Evidence, forecast
from tao.traces.builder import Builder
from tao.workloads import WORKLOADS

many = settings(max_examples=strategies.EXAMPLES // 5, suppress_health_check=list(HealthCheck))
few = settings(many, max_examples=30)

KINDS = (("bash", "test"), ("bash", "git"), ("bash", ""), ("web", ""), ("read", "read"))
LENGTHS_S = (0.0, 0.125, 0.125, 0.5, 1.0, 1.0, 1.125, 2.0, 3.0, 10.0, 40.0)
SURVIVAL = Params(statistic="survival")
SHRINK = durations.SHRINK_CALLS

finished = st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(LENGTHS_S)), max_size=30)
running = st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(LENGTHS_S)), max_size=6)
kind_of_call = st.sampled_from((*KINDS, ("new", "")))
eighths = st.integers(0, 400).map(lambda k: k / 8)


# The slow twin of the predictor


def rungs(kind):
    """The kind, then those above it, as tests of another call's kind; all calls come last."""
    tool, command_class = kind
    own = [lambda other: other == kind] if command_class else []
    return [*own, lambda other: other[0] == tool, lambda other: True]


def naive_chance(kind, ran_s, within_s, done, others, fallback_s=5.0):
    """`done`: (kind, seconds) of finished calls; `others`: kinds of those that run since long enough."""
    said = within_s / (ran_s + within_s + fallback_s) if within_s > 0 else 0.0
    for belongs in reversed(rungs(kind)):
        longer = [s for k, s in done if belongs(k) and s > ran_s]
        back = [s for s in longer if s <= ran_s + within_s]
        still = [k for k in others if belongs(k)]
        said = (len(back) + SHRINK * said) / (len(longer) + len(still) + SHRINK)
    return said


def learned(done, kind):
    """The book of these calls, and the number of a kind."""
    kinds = Kinds()
    numbers = [kinds.number(tool, command_class or None) for (tool, command_class), _ in done]
    number = kinds.number(kind[0], kind[1] or None)
    book = kinds.book(np.full(len(kinds.names), len(done), np.int64))
    for k, (_, seconds) in zip(numbers, done, strict=True):
        learn(book, k, seconds, durations.SURVIVAL)
    return book, number


def still_of(kind, others):
    """How many of the running calls are of the kind, and of those above it, as kernels take it."""
    counts = [sum(belongs(k) for k in others) for belongs in rungs(kind)]
    return (*counts, 0, 0)[:3]


@many
@given(finished, running, kind_of_call, eighths, eighths)
def test_the_chance_equals_its_naive_twin(done, runs, kind, ran_s, within_s):
    others = [k for k, _ in runs]
    book, number = learned(done, kind)
    said = chance(book, number, ran_s, within_s, still_of(kind, others), 5.0)
    assert said == pytest.approx(naive_chance(kind, ran_s, within_s, done, others), rel=1e-12, abs=1e-15)


@many
@given(finished, running, kind_of_call, eighths, st.lists(eighths, min_size=2, max_size=6))
def test_the_chance_is_one_and_grows_with_the_horizon(done, runs, kind, ran_s, horizons):
    book, number = learned(done, kind)
    still = still_of(kind, [k for k, _ in runs])
    said = [chance(book, number, ran_s, within_s, still, 5.0) for within_s in sorted(horizons)]
    assert all(0.0 <= p < 1.0 for p in said)
    assert said == sorted(said)
    assert chance(book, number, ran_s, 0.0, still, 5.0) == 0.0


@many
@given(finished, st.sampled_from(KINDS[:2]), eighths, eighths)
def test_without_shrinking_it_is_the_frequency_among_calls_that_ran_as_long(done, kind, ran_s, within_s):
    done = [*done, (kind, ran_s + 3.0)]
    longer = [s for k, s in done if k == kind and s > ran_s]
    book, number = learned(done, kind)
    plain = getattr(durations._shares, "py_func", durations._shares)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(durations, "SHRINK_CALLS", 0.0)
        share, unknown = plain(book, number, ran_s, ran_s + within_s, (0, 0, 0))
    assert share == sum(s <= ran_s + within_s for s in longer) / len(longer)
    assert unknown == 0.0


@many
@given(
    finished, running, kind_of_call, eighths, st.sampled_from((0.5, 1.0, 4.0)), st.sampled_from((0.0, 0.25))
)
def test_it_is_ready_whenever_it_returns_within_the_horizon_more_likely_than_not(
    done, runs, kind, ran_s, horizon_s, margin_s
):
    assume(done)
    params = replace(SURVIVAL, horizon_s=horizon_s, margin_s=margin_s)
    book, number = learned(done, kind)
    still = still_of(kind, [k for k, _ in runs])
    expected = expected_s(book, number, ran_s, still, params.settings)
    said = chance(book, number, ran_s, horizon_s - margin_s, still, 5.0)
    assume(abs(said - 0.5) > 1e-9)
    _, rung, ready = forecast(Evidence(0.0, math.nan, math.nan, expected), ran_s, params.settings)
    assert (rung, ready) == (4, said > 0.5)
    assert expected >= ran_s
    if expected < ran_s + 1e5:  # there, and not before, the chance is a half
        about = [max(expected - ran_s + step_s, 0.0) for step_s in (-1e-6, 1e-9)]
        before, then = (chance(book, number, ran_s, within_s, still, 5.0) for within_s in about)
        assert before <= 0.5 + 1e-9
        assert then >= 0.5 - 1e-9


@many
@given(finished, running, kind_of_call, eighths)
def test_the_next_look_comes_no_later_than_its_bit_turns(done, runs, kind, ran_s):
    book, number = learned(done, kind)
    still = still_of(kind, [k for k, _ in runs])
    at_s = next_look(book, number, 100.0, 100.0 + ran_s, still, SURVIVAL.settings)

    def ready(moment_s):
        return chance(book, number, moment_s - 100.0, 1.0, still, 5.0) >= 0.5

    looks = [100.0 + durations.LOOK_S * k for k in range(1000)]
    looks = [m for m in looks if m > 100.0 + ran_s][: durations.LOOKS]
    turned = [m for m in looks if ready(m) != ready(100.0 + ran_s)]
    assert at_s == (turned[0] if turned else looks[-1])


def test_a_call_that_outlives_the_short_ones_is_one_of_the_long_ones():
    history = durations.History()
    for seconds in [0.1] * 40 + [60.0] * 20:
        history.add("bash", "test", seconds)
    said = [history.chance("bash", "test", ran_s, 1.0) for ran_s in (0.0, 0.5, 30.0, 59.5)]
    assert said[0] > 0.6
    assert said[3] > 0.8
    assert max(said[1:3]) < 0.05
    assert history.estimate("bash", "test", "survival") == 0.1
    assert history.estimate("bash", "test", "survival", 0.5) == 60.0


# Replays


moments = st.integers(0, 160).map(lambda k: k / 8)
recordings = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from(KINDS),
        moments,
        st.sampled_from(LENGTHS_S),
        st.sampled_from((None, None, None, 2.0)),
    ),
    min_size=1,
    max_size=16,
)


def tool_calls(rows):
    return ToolCalls.of_rows("drawn", [(s, *kind, at, lasted, asked) for s, kind, at, lasted, asked in rows])


def naive_decisions(rows, params, every_s=0.5):
    """(call, elapsed, predicted length or None, chance) by asking all earlier calls again every time."""
    found = []
    for c, (_, kind, began_s, lasted_s, asked_s) in enumerate(rows):
        ran_s = 0.0
        while ran_s < lasted_s or ran_s == 0.0:
            now_s = began_s + ran_s
            done = [(k, lasted) for _, k, at, lasted, _ in rows if at + lasted < now_s]
            runs = [
                k
                for j, (_, k, at, lasted, _) in enumerate(rows)
                if j != c and at + lasted >= now_s and at <= began_s - params.horizon_s
            ]
            seen = next((x for b in rungs(kind) if (x := [s for k, s in done if b(k)])), [])
            summary = statistics.median if params.statistic == "median" else statistics.fmean
            expected = None if not seen or params.statistic == "survival" else summary(seen)
            found.append(
                (c, ran_s, asked_s, expected, naive_chance(kind, ran_s, 1.0, done, runs), bool(done))
            )
            ran_s += every_s
    return found


@few
@given(recordings, st.sampled_from(("mean", "median", "survival")))
def test_every_decision_equals_one_that_asks_the_past_again(rows, statistic):
    params = Params(statistic=statistic)
    table = decisions(tool_calls(rows), params)
    twin = naive_decisions(rows, params)
    assert list(zip(table["call"], table["ran_s"], strict=True)) == [row[:2] for row in twin]
    for row, (_, ran_s, asked_s, expected, said, known) in zip(table.itertuples(), twin, strict=True):
        if asked_s is not None and ran_s < asked_s + params.stale_s:
            assert (row.rule, row.due_s) == ("sleep", asked_s)
        elif statistic == "survival" and known:
            assert row.rule == "history"
            assert row.chance == pytest.approx(said, rel=1e-9)
            assert abs(said - 0.5) < 1e-9 or row.ready == (said > 0.5)
        elif expected is not None and ran_s < expected + params.stale_s:
            assert row.rule == "history"
            assert row.due_s == pytest.approx(expected)
        assert row.returns == (row.lasted_s - ran_s <= 1.0)
        assert row.probe == (row.ready and ran_s > row.due_s)
        assert row.known_s == min(rows[row.call][2] + row.lasted_s, row.at_s + 1.0)


@few
@given(recordings, moments, st.randoms(use_true_random=False))
def test_what_comes_later_changes_nothing_earlier(rows, cut_s, random):
    def altered(row):
        session, kind, at_s, lasted_s, asked_s = row
        if at_s > cut_s:  # another call altogether
            return (
                session,
                random.choice(KINDS),
                at_s + random.choice(LENGTHS_S),
                random.choice(LENGTHS_S),
                None,
            )
        if at_s + lasted_s <= cut_s:
            return row
        return (session, kind, at_s, cut_s - at_s + 0.125 + random.choice(LENGTHS_S), asked_s)

    kept = []
    for one in (rows, [altered(row) for row in rows]):
        table, call = lab.chances(tool_calls(one)), decisions(tool_calls(one))[["call", "at_s"]]
        known = (call["at_s"] <= cut_s).to_numpy()
        index = pd.MultiIndex.from_arrays([call["call"][known], table["ran_s"][known]])
        kept.append(
            table.loc[known, [p for p in scoring.predictors(table) if p != "hindsight"]].set_axis(index)
        )
    pd.testing.assert_frame_equal(*kept, check_exact=True)


def test_sessions_in_turn_do_not_overlap_and_keep_their_own_order():
    calls = ToolCalls.of_rows(
        "two",
        [
            ("a", "bash", "", 5.0, 2.0, None),
            ("b", "bash", "", 0.0, 1.0, None),
            ("a", "bash", "", 9.0, 1.0, None),
        ],
    ).in_turn()
    assert calls.began_s.tolist() == [0.0, 6.0, 4.0]


def test_a_workload_offers_the_calls_that_it_makes():
    work = WORKLOADS["terminal-bench"](tasks=5)
    calls = ToolCalls.of_workload(work)
    assert len(calls) == sum(bool(turn.tool) for task in work.tasks for turn in task.turns)
    assert calls.lasted_s.sum() == pytest.approx(sum(t.tool_s for task in work.tasks for t in task.turns))
    assert set(calls.classes) <= {turn.tool_class for task in work.tasks for turn in task.turns}


# Tables


@pytest.fixture(scope="module")
def calls():
    """Two kinds of calls, each short or long, in 12 sessions, with sleeps among them."""
    rng = np.random.default_rng(7)
    rows = []
    for s in range(12):
        at_s = float(rng.uniform(0, 5))
        for _ in range(15):
            kind = KINDS[int(rng.integers(4))]
            asked_s = 2.0 if rng.random() < 0.1 else None
            lasted_s = asked_s or float(
                rng.choice((0.1, 0.4, 6.0), p=(0.5, 0.3, 0.2)) * rng.uniform(0.9, 1.1)
            )
            rows.append((f"s{s}", *kind, at_s, lasted_s, asked_s))
            at_s += lasted_s + float(rng.uniform(0, 3))
    return ToolCalls.of_rows("made up", rows)


@pytest.fixture(scope="module")
def table(calls):
    return lab.chances(calls)


def test_a_log_becomes_calls_that_begin_when_answers_end():
    builder = Builder()
    first = builder.turn(builder.session("a"), 100, 20, None, 0.0, 2.0)
    builder.result(builder.call(first, "Bash", "sleep 3", began=2.0), 5.5)
    builder.call(first, "Bash", "ls", began=2.0)  # never ends
    asked = builder.turn(builder.session("a"), 150, 20, None, 6.0, 7.0)
    builder.result(builder.call(asked, "AskUserQuestion", began=7.0), 99.0)
    untimed = [builder.turn(builder.session("b"), 90, 5) for _ in range(3)]
    for turn, seconds in zip(untimed, (1.5, 2.5, 0.5), strict=True):
        builder.call(turn, "Read", seconds=seconds)
    calls = ToolCalls.of_recording(builder.finish())
    assert calls.began_s.tolist() == [2.0, 0.0, 1.5, 4.0]
    assert calls.lasted_s.tolist() == [3.5, 1.5, 2.5, 0.5]
    assert np.nan_to_num(calls.asked_s).tolist() == [3.0, 0, 0, 0]
    assert [calls.tools[k] for k in calls.tool] == ["Bash", "Read", "Read", "Read"]


def test_a_frequency_counts_earlier_rows_of_its_kind_whose_outcome_was_known(calls):
    frame = decisions(calls)
    by, start = ["rule", "ready"], np.linspace(0.1, 0.9, len(frame))
    found = scoring.frequency(frame, by, start, 2.0)
    rows = frame.to_dict("records")
    for k in range(0, len(rows), 7):
        past = [
            r["returns"]
            for r in rows
            if all(r[c] == rows[k][c] for c in by) and r["known_s"] < rows[k]["at_s"]
        ]
        assert found[k] == pytest.approx((sum(past) + 2.0 * start[k]) / (len(past) + 2.0))


def test_scores_and_their_differences_equal_a_plain_count(table):
    rows = table.to_dict("records")
    found = lab.scores(table).set_index("predictor")
    for name in scoring.predictors(table):
        brier = [(row[name] - row["returns"]) ** 2 for row in rows]
        assert found.loc[name, "brier"] == pytest.approx(statistics.fmean(brier))
    log = [-math.log(row["survival"] if row["returns"] else 1 - row["survival"]) for row in rows]
    assert found.loc["survival", "log_loss"] == pytest.approx(statistics.fmean(log))
    per_session = {}
    for row in rows:
        change = (row["survival"] - row["returns"]) ** 2 - (row["mean"] - row["returns"]) ** 2
        per_session.setdefault(row["session"], []).append(change)
    against = lab.paired(table, against=["mean"]).iloc[0]
    assert against["difference"] == pytest.approx(
        statistics.fmean(x for xs in per_session.values() for x in xs)
    )
    assert against["per_session"] == pytest.approx(
        statistics.fmean(map(statistics.fmean, per_session.values()))
    )
    assert against["boot_lo"] < against["difference"] < against["boot_hi"]
    assert against["better"] == sum(sum(xs) < 0 for xs in per_session.values())


def test_no_predictor_beats_hindsight_and_a_predictor_does_not_beat_itself(table):
    brier = lab.scores(table).set_index("predictor")["brier"]
    assert brier.idxmin() == "hindsight"
    same = table.assign(twin=table["survival"])
    itself = lab.paired(same, against=["twin"])
    assert (itself[["difference", "boot_lo", "boot_hi", "lo", "hi"]] == 0.0).all(axis=None)
    worse = lab.paired(table, "mean", against=["survival"]).iloc[0]
    assert worse["difference"] == -lab.paired(table, against=["mean"]).iloc[0]["difference"]


def test_reliability_adds_up(table):
    parts = lab.reliability(table)
    for name, part in parts.groupby("predictor"):
        assert part["decisions"].sum() == len(table)
        assert len(part) == len({min(int(10 * p), 9) for p in table[name]})
        for column, mean in (("said", table[name].mean()), ("seen", table["returns"].mean())):
            assert np.average(part[column], weights=part["decisions"]) == pytest.approx(mean)


def test_errors_take_the_first_and_the_last_prediction_of_a_call(calls):
    calls = replace(calls, lasted_s=np.where(np.arange(len(calls)) == 9, 80.0, calls.lasted_s))
    frame = decisions(calls)
    found = lab.errors(frame).set_index("when")
    for when, pick in (("start", 0), ("final", -1)):
        off_s = []
        for c in range(len(calls)):
            row = frame[frame["call"] == c].iloc[pick]
            off_s.append(abs(row["due_s"] - row["lasted_s"]))
        said = [x for x in off_s if x < math.inf]
        assert found.loc[when, "mae_s"] == pytest.approx(statistics.fmean(said))
        assert found.loc[when, "capped_mae_s"] == pytest.approx(statistics.fmean(min(x, 30.0) for x in off_s))
        assert found.loc[when, "within"] == sum(x <= 0.5 for x in off_s) / len(off_s)
        assert found.loc[when, "never"] == (len(off_s) - len(said)) / len(off_s)
    by_rule = lab.errors(frame, ["rule"])
    assert by_rule.groupby("when")["calls"].sum().to_dict() == {"start": len(calls), "final": len(calls)}


def test_each_rule_earns_its_place_where_it_alone_knows(calls):
    found = lab.ablation(calls).query("when == 'start'").set_index("without")
    assert found.loc["sleep", "mae_s"] > found.loc["nothing", "mae_s"]
    assert found.loc["history", "mae_s"] > found.loc["nothing", "mae_s"]
    none = lab.ablation(calls, Params(fallback_s=3.0)).set_index("without").loc["history and sleep"]
    off_s = np.abs(calls.lasted_s - 3.0)
    assert none.set_index("when").loc["start", "mae_s"] == pytest.approx(off_s.mean())
    steady = replace(calls, lasted_s=np.where(calls.tool == 0, 0.1, 9.0), asked_s=np.full(len(calls), np.nan))
    found = lab.ablation(steady).query("when == 'start'").set_index("without")
    assert found.loc["tool", "mae_s"] > 3 * found.loc["nothing", "mae_s"]


def test_a_sweep_is_the_same_scores_at_another_value(calls, table):
    swept = lab.sweep(calls, {"horizon_s": (0.5, 1.0), "stale_s": (5.0,)})
    assert set(swept["parameter"]) == {"horizon_s", "stale_s"}
    at_one = swept.query("parameter == 'horizon_s' and value == 1.0")
    expected = lab.scores(table)
    assert at_one["brier"].tolist() == expected["brier"].tolist()
    assert at_one["base"].unique().tolist() == [table["returns"].mean()]
    frame = decisions(calls, Params(horizon_s=0.5))
    row = swept.query("value == 0.5 and predictor == 'mean'").iloc[0]
    assert row["recall"] == (frame["ready"] & frame["returns"]).sum() / frame["returns"].sum()
    with pytest.raises(InputError, match="'half_life_s' cannot be swept"):
        lab.sweep(calls, {"half_life_s": (1.0,)})


def test_other_grids_are_parts_of_the_finer_one(calls):
    fine = decisions(calls, SURVIVAL, 0.25)
    for other in (0.5, (0.0, 0.5, 4.0)):
        coarse = decisions(calls, SURVIVAL, other)
        both = fine.merge(coarse, on=["call", "ran_s"])
        assert len(both) == len(coarse) < len(fine)
        assert both["chance_x"].equals(both["chance_y"])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda c: decisions(c, every_s=0.0), "every_s is 0.0"),
        (lambda c: decisions(c, every_s=(0.5, 1.0)), "must ascend from 0"),
        (lambda c: decisions(c, every_s=1e-9), "make every_s longer"),
        (lambda c: c.without("mind"), "without is 'mind'"),
        (lambda c: replace(c, lasted_s=-c.lasted_s), "must be 0 or more"),
        (lambda c: replace(c, lasted_s=c.lasted_s[1:]), "one index of its"),
        (lambda c: replace(c, began_s=c.began_s * np.nan), "must be finite"),
        (lambda c: ToolCalls.of_rows("none", []), "no tool calls"),
        (lambda c: lab.paired(lab.chances(c), "luck"), "there is no predictor 'luck'"),
        (
            lambda c: charts.reliability(lab.reliability(lab.chances(c)).replace("mean", "x")),
            "predictor is 'x'",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(calls, wrong, said):
    with pytest.raises(InputError, match=said):
        wrong(calls)


def test_a_run_compares_the_statistics_and_the_oracle():
    race = lab.latency("swe-lite", nodes=1, workers=3, tasks=4, seeds=1)
    assert race.runs["policy"].tolist() == ["mean", "median", "survival", "oracle"]


def test_the_charts_draw_the_tables_and_say_their_numbers(calls, table):
    vl_convert = pytest.importorskip("vl_convert")
    swept = lab.sweep(calls, {"horizon_s": (0.5, 1.0)})
    drawn = {
        "made up, recomputed: mean: said ": charts.reliability(lab.reliability(table), "made up"),
        "Line: reported, 82.9%": charts.prediction_errors(lab.ladder(calls), lab.PAPER["within"]),
        "interval over sessions: mean: −": charts.readiness_gain(lab.paired(table), score="log_loss"),
        "at 0.5, ": charts.readiness_sweep(swept, "horizon_s"),
    }
    for said, chart in drawn.items():
        spec = chart.to_dict()
        assert said in spec["description"]
        assert "recomputed" in str(spec["title"]["subtitle"])
        picture = vl_convert.vegalite_to_png(spec, scale=1)
        assert 300 < int.from_bytes(picture[16:20], "big") <= 720
