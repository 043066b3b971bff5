"""The panel of notebook 01: a small run, moment by moment, forward and back; and the notebook's exercises."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tao import charts, timeline
from tao.exercises import sessions as exercises
from tao.history import History
from tao.model import InputError
from tao.panels import Lock, SessionsPanel
from tao.panels.sessions import TOOLS, Case
from tao.profiles import PS_PER_S
from tao.timeline import Span


@pytest.fixture(scope="module")
def history() -> History:
    """Six sessions of the notebook's seed on one node."""
    return timeline.small_run(timeline.short_sessions(6, seed=1))


@pytest.fixture
def panel() -> Iterator[SessionsPanel]:
    panel = SessionsPanel()
    yield panel
    panel.close()


def drawn(panel: SessionsPanel) -> dict[str, Any]:
    """What the figure was last told to draw, apart from its serial number."""
    params: Any = panel.figure.live.params
    return {name: value for name, value in dict(params.lanes).items() if name != "version"}


def state(panel: SessionsPanel) -> tuple[Any, ...]:
    """All that a user sees."""
    return panel.step, drawn(panel), panel.status.value, panel.doing.value, panel.note.value, panel.text()


# The run


def test_the_phases_of_a_session_follow_each_other_and_sum_to_the_run(history: History) -> None:
    told = timeline.spans(history)
    for name in history.session_ids:
        own = [span for span in told if span.session == name]
        assert own[0].begin_ps == 0
        assert all(before.end_ps == after.begin_ps for before, after in pairwise(own))
        assert own[-1].end_ps == history.finished_ps[history.session_ids.index(name)]
    assert max(span.end_ps for span in told) == history.end_ps


def test_spans_spend_the_same_seconds_as_the_columns_of_the_history(history: History) -> None:
    spent = timeline.seconds(timeline.spans(history))
    tool_ps = (history.column("tool_end_ps") - history.column("finished_ps")).sum()
    assert spent["tool"] == pytest.approx(tool_ps / PS_PER_S)
    waited_ps = history.column("scheduled_ps") - history.column("arrived_ps")
    assert spent["waiting"] == pytest.approx(waited_ps[waited_ps >= timeline.LEAST_WAIT_PS].sum() / PS_PER_S)


def test_a_request_that_joins_the_next_step_has_not_waited(history: History) -> None:
    waits = [s.end_ps - s.begin_ps for s in timeline.spans(history) if s.phase == "waiting"]
    assert min(waits) >= timeline.LEAST_WAIT_PS
    assert ((history.column("scheduled_ps") - history.column("arrived_ps")) > 0).sum() > len(waits)


def test_what_happens_at_one_time_is_one_moment(history: History) -> None:
    found = timeline.moments(timeline.spans(history))
    assert len(found[0].begin) == 6
    assert [m.at_ps for m in found] == sorted({m.at_ps for m in found})
    assert sum(len(m.begin) for m in found) == len(timeline.spans(history))
    assert sorted(name for m in found for name in m.done) == history.session_ids


def test_cut_at_a_moment_nothing_lies_beyond_it() -> None:
    told = [
        Span("a", 0, "reasoning", 0, 9, 1),
        Span("a", 0, "tool", 9, 20, 1),
        Span("a", 1, "reasoning", 20, 30, 1),
    ]
    assert [(s.phase, s.end_ps) for s in timeline.until(told, 12)] == [("reasoning", 9), ("tool", 12)]


@pytest.mark.parametrize("seed", range(20))
def test_every_short_session_fits_the_node(seed: int) -> None:
    workload = timeline.short_sessions(8, seed=seed)
    assert all(4 <= len(task.turns) <= 6 for task in workload.tasks)
    assert workload.fitting(timeline.CAPACITY_TOKENS, 512) is workload


def test_a_delay_makes_tools_slower_and_changes_nothing_else() -> None:
    quick, slow = (timeline.short_sessions(4, delay, seed=1) for delay in ((0.0, 0.0), (1.0, 5.0)))
    for before, after in zip(quick.tasks, slow.tasks, strict=True):
        for turn, later in zip(before.turns, after.turns, strict=True):
            assert (turn.prompt_tokens, turn.output_tokens) == (later.prompt_tokens, later.output_tokens)
            assert not turn.tool or 1.0 <= later.tool_s - turn.tool_s <= 5.0


# The panel


def test_five_forward_and_five_back_gives_the_same_state(panel: SessionsPanel) -> None:
    seen = [state(panel)]
    for _ in range(5):
        panel.next()
        seen.append(state(panel))
    for expected in reversed(seen[:-1]):
        panel.previous()
        assert state(panel) == expected
    assert len({s[2] for s in seen}) == 6


def test_each_moment_says_what_happens(panel: SessionsPanel) -> None:
    for step, moment in enumerate(panel.moments, start=1):
        panel.step = step
        assert all(f"{span.session} (turn {span.turn + 1} of" in panel.status.value for span in moment.begin)
        assert all(f"{name} is done" in panel.status.value for name in moment.done)
        assert drawn(panel)["now"] == round(panel.now_s, 3)
        assert len(drawn(panel)["rows"]) == sum(s.begin_ps <= moment.at_ps for s in panel.spans)


def test_the_table_of_now_counts_who_reasons(panel: SessionsPanel) -> None:
    for step in range(1, panel.count + 1):
        panel.step = step
        *rows, total = panel._tables()[1].rows
        working = sum(row[1] == "reasoning" for row in rows)
        assert total[1] == f"{working} reasoning"
        assert working == timeline.reasoning_at(panel.spans, panel.now_s)
    assert all(row[1] == "done" for row in rows)


def test_the_first_moment_does_not_tell_the_end(panel: SessionsPanel) -> None:
    assert {row["end_s"] for row in drawn(panel)["rows"]} == {0.0}
    assert "0.0" in panel.doing.value


def test_reset_applies_what_is_pending_and_only_reset_does(panel: SessionsPanel) -> None:
    before = panel.history
    panel.step = 4
    panel.tools.value, panel.sessions.value, panel.seed.value = "4 to 20 s longer", 3, 2
    assert (panel.step, panel.history) == (4, before)
    assert "Pending: tools 4 to 20 s longer, sessions 3, seed 2" in panel.note.value
    panel.reset_button.click()
    assert panel.case == panel.pending == Case("4 to 20 s longer", 3, 2)
    assert (panel.step, panel.number.max, panel.controls.children[-1].value) == (
        1,
        panel.count,
        f"of {panel.count}",
    )
    assert drawn(panel)["sessions"] == ["s1", "s2", "s3"]
    assert "Pending" not in panel.note.value
    panel.last()
    assert "is done" in panel.status.value


def test_going_back_to_the_same_controls_gives_the_same_run(panel: SessionsPanel) -> None:
    before = state(panel)
    panel.sessions.value = 2
    panel.reset()
    assert state(panel) != before
    panel.sessions.value = 6
    panel.reset()
    assert state(panel) == before


def test_the_numbers_that_the_notebook_asks_for(panel: SessionsPanel) -> None:
    slow = SessionsPanel(Case("1 to 5 s longer"))
    assert (panel.percent("waiting"), slow.percent("waiting")) == (29, 3)
    assert (round(panel.end_s), round(slow.end_s)) == (30, 33)
    gained = timeline.seconds(slow.spans)["tool"] - timeline.seconds(panel.spans)["tool"]
    assert gained == pytest.approx(76.0, abs=1.0)
    slow.close()


def test_the_longer_the_tools_the_less_is_waited() -> None:
    shares = []
    for tools in TOOLS:
        panel = SessionsPanel(Case(tools, 8))
        shares.append(panel.percent("waiting"))
        panel.close()
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 5 * shares[-1]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("slow"), "tools is 'slow'; it must be one of as recorded"),
        (Case(sessions=9), "sessions is 9; it must be a whole number from 1 to 8"),
        (Case(seed=-1), "seed is -1"),
    ],
)
def test_a_case_that_is_not_offered_is_refused(case: Case, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        SessionsPanel(case)


def test_the_table_behind_the_checkbox_has_every_phase_of_the_figure(panel: SessionsPanel) -> None:
    panel.step = 30
    for row in drawn(panel)["rows"]:
        for number in (row["begin_s"], row["end_s"]):
            assert f"<td>{number:.2f}</td>" in panel.figure._table.value


def test_too_many_phases_are_refused() -> None:
    with pytest.raises(InputError, match="stepped_lanes was given 5,001 rows"):
        charts.stepped_lanes_value([Span("a", 0, "tool", 0, 1, 1)] * 5_001, ["a"], 0.0, 1.0)


def test_behind_a_lock_the_run_opens_with_the_gap(panel: SessionsPanel) -> None:
    lock = Lock("How long?", (0, 200), panel, result=lambda: round(panel.end_s), unit="s")
    assert "Every phase" not in lock.text()
    lock.predict(50)
    assert lock.verdict == "You said 50 s. It is 30 s: 20 fewer."
    assert "Every phase" in lock.text()


# The exercises


def said(check: Any, answer: Any, capsys: pytest.CaptureFixture[str]) -> str:
    check(answer)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("check", "wrong", "complaint", "right"),
    [
        (exercises.check_places, 2, "With so few", 5),
        (exercises.check_places, 8, "With so many", 5.0),
        (exercises.check_longest_wait, "s1", "s1 waits 11.5 s; 1 of the others", "s8"),
        (exercises.check_longest_wait, 8, "name of a lane", "s8"),
        (exercises.check_reasoning_at, lambda spans, at_s: 6, "At 7.7 s .* too many", timeline.reasoning_at),
        (exercises.check_reasoning_at, lambda: 6, "not the kind of answer", timeline.reasoning_at),
    ],
)
def test_each_exercise_knows_unanswered_wrong_and_right(
    check: Any, wrong: Any, complaint: str, right: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(check, ..., capsys) == "not answered yet\n"
    answer = said(check, wrong, capsys)
    assert answer.startswith("not yet: ")
    assert re.search(complaint, answer)
    assert said(check, right, capsys).startswith("right. ")
