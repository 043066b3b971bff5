"""Panels about readiness: one call moment by moment, many calls by statistic, and the exercises."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tao import charts, lab
from tao.exercises import readiness as exercises
from tao.model import InputError, Params, ToolCall
from tao.panels import CalibrationPanel, Lock, ReadinessPanel, call_words, picture
from tao.panels.readiness import CALLS, OWN, WORDS
from tao.readiness import timeline


@pytest.fixture(scope="module")
def shared() -> Iterator[ReadinessPanel]:
    """One panel for all tests that only step, change and look."""
    panel = ReadinessPanel()
    yield panel
    panel.close()


@pytest.fixture
def panel(shared: ReadinessPanel) -> ReadinessPanel:
    shared.params, shared.call = Params(), "known"
    shared.past.clear()
    return shared


@pytest.fixture(scope="module")
def many() -> Iterator[CalibrationPanel]:
    panel = CalibrationPanel()
    yield panel
    panel.close()


def drawn(panel: ReadinessPanel) -> dict[str, Any]:
    """What the figure was last told to draw."""
    params: Any = panel.figure.live.params
    return {name: value for name, value in dict(params.life).items() if name != "version"}


def state(panel: ReadinessPanel) -> tuple[Any, ...]:
    """All that a user sees."""
    fields = {name: field.value for name, field in panel.fields.items()}
    boxes = panel.status, panel.error, panel.verdict, panel.list, panel.figure._table
    return panel.step, panel.count, panel.call, fields, drawn(panel), [box.value for box in boxes]


# One call


@pytest.mark.parametrize("call", CALLS)
def test_every_moment_of_every_call_is_told(panel: ReadinessPanel, call: str) -> None:
    panel.call = call
    life = timeline(CALLS[call], Params())
    assert panel.count == panel.number.max == len(life)
    assert f"<b>{call}</b>: {WORDS[call]}" in panel.verdict.value
    for step, (at, prediction) in enumerate(life, start=1):
        panel.step = step
        assert (panel.now_s, panel.prediction) == (at, prediction)
        assert f"At {at:.1f} s" in panel.status.value
        assert panel.list.value.count('aria-current="true"') == 1


def test_five_forward_and_five_back_gives_the_same_state(panel: ReadinessPanel) -> None:
    panel.call = "lost"
    seen = [state(panel)]
    for _ in range(5):
        panel.next()
        seen.append(state(panel))
    assert len({s[5][0] for s in seen}) == 6
    for expected in reversed(seen[:-1]):
        panel.previous()
        assert state(panel) == expected


def test_a_call_that_returns_as_expected_is_foreseen(panel: ReadinessPanel) -> None:
    assert panel.ready_s == pytest.approx(1.4)
    assert "none of it in vain; its return was foreseen 1.4 s ahead" in panel.verdict.value


def test_a_lost_call_is_void_and_a_deadline_finds_it_and_undo_loses_it_again(panel: ReadinessPanel) -> None:
    panel.call = "lost"
    before = state(panel)
    panel.step = 6
    assert (panel.now_s, panel.prediction.rule) == (35.0, "void")
    assert "every prediction is void" in panel.status.value
    assert "all of it in vain; its return came as a surprise" in panel.verdict.value
    panel.fields["deadline"].value = 60.0
    assert (panel.call, panel.tool.deadline_s, panel.step) == (OWN, 60.0, 1)
    assert "its return was foreseen 1.0 s ahead" in panel.verdict.value
    panel.undo_button.click()
    assert state(panel) == before
    panel.undo()
    assert panel.call == "known"
    panel.undo()
    assert panel.call == "known"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"stale_s": 60.0}, "ready for 2.0 s, all of it in vain"),
        ({"probe_s": 60.0}, "ready for 33.0 s, all of it in vain"),
        ({"horizon_s": 60.0}, "ready for 4.0 s, all of it in vain"),
        ({"stale_s": 60.0, "probe_s": 60.0}, "foreseen 58.0 s ahead"),
    ],
)
def test_only_staleness_and_probe_together_find_a_lost_call_and_at_a_price(
    panel: ReadinessPanel, changes: dict[str, Any], told: str
) -> None:
    panel.call = "lost"
    for name, value in changes.items():
        panel.fields[name].value = value
    assert panel.params == Params(**changes)
    assert panel.call == "lost"
    assert told in panel.verdict.value


def test_the_strongest_evidence_is_in_force(panel: ReadinessPanel) -> None:
    panel.tool = ToolCall("x", 0.0, command="sleep 7", deadline_s=9.0, expected_s=3.0, finished_s=10.0)
    assert panel.prediction.rule == "deadline"
    panel.fields["deadline"].value = 0.0
    assert panel.prediction.rule == "sleep"
    assert panel.tool.command == "sleep 7"
    panel.fields["sleep"].value = 0.0
    assert panel.prediction.rule == "history"
    panel.fields["history"].value = 0.0
    assert panel.prediction.rule == "fallback"
    assert panel.tool == ToolCall("x", 0.0, finished_s=10.0)


def test_a_command_stays_as_it_was_written_while_its_seconds_do(panel: ReadinessPanel) -> None:
    panel.tool = ToolCall("x", 0.0, command="sleep 3 && sleep 4", finished_s=10.0)
    assert panel.fields["sleep"].value == 7.0
    panel.fields["took"].value = 11.0
    assert panel.tool.command == "sleep 3 && sleep 4"
    panel.fields["sleep"].value = 2.5
    assert panel.tool.command == "sleep 2.5"


def test_the_buttons_choose_a_call(panel: ReadinessPanel) -> None:
    panel.toggle.value = "unknown"
    assert (panel.call, panel.prediction.rule) == ("unknown", "fallback")
    panel.toggle.value = OWN
    assert (panel.call, panel.tool) == (OWN, CALLS["unknown"])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("call", "x", "this panel knows known, sleep"),
        ("tool", ToolCall("x", 1.0, finished_s=2.0), "give started_s=0.0"),
        ("tool", ToolCall("x", 0.0), "and a finished_s"),
    ],
)
def test_what_cannot_be_shown_is_refused(panel: ReadinessPanel, name: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        setattr(panel, name, value)


def test_figure_table_and_text_say_the_same(panel: ReadinessPanel) -> None:
    panel.call = "overdue"
    panel.step = 3
    words = [row["words"] for row in drawn(panel)["rows"]]
    assert "ready as a probe from 3.0 to 4.0 s, now" in words
    assert "history: return expected at 3.0 s" in words
    table = panel.figure._table.value
    text = panel.text()
    for at, p in timeline(CALLS["overdue"], Params()):
        assert f"{at:.1f}" in table
        assert call_words.meaning(p, at, Params()) in text


def test_the_ready_lane_is_as_long_as_the_call_is_ready(panel: ReadinessPanel) -> None:
    for call in CALLS:
        panel.call = call
        lane = [row for row in drawn(panel)["rows"] if row["lane"] == "ready"]
        assert sum(row["end"] - row["begin"] for row in lane) == pytest.approx(panel.ready_s)
        assert max(row["end"] for row in drawn(panel)["rows"] if row["part"] != "valid") < drawn(panel)["end"]


def test_all_kinds_of_evidence_at_once_fit_into_the_figure(panel: ReadinessPanel) -> None:
    panel.tool = ToolCall("x", 0.0, command="sleep 50", deadline_s=9.0, expected_s=100.0, finished_s=500.0)
    assert panel.count > 10
    assert len(drawn(panel)["rows"]) < charts.calls.MAX_ROWS


def test_a_prediction_of_its_start_is_drawn_where_staleness_counts_from_there(panel: ReadinessPanel) -> None:
    panel.params = Params(stale_from="made")
    panel.call = "lost"
    assert panel.params.stale_from == "made"
    assert [at for at, p in timeline(panel.tool, panel.params) if p.rule == "void"] == [30.0]
    assert "30.0" in panel.text()


def test_its_picture_is_small_and_has_a_text_beside_it(panel: ReadinessPanel) -> None:
    png = picture.png(panel.chart())
    assert png is not None
    assert len(png) < picture.LIMIT_BYTES
    assert panel.chart().to_dict()["description"]
    assert set(WORDS) == {*CALLS, OWN}


def test_the_lock_of_the_notebook_knows_the_answer() -> None:
    panel = ReadinessPanel("lost")
    lock = Lock("How long?", (0, 60), panel, result=lambda: round(panel.ready_s), unit="seconds")
    lock.predict(30)
    assert lock.verdict == "You said 30 seconds. It is 2 seconds: 28 fewer."
    lock.close()


# Many calls


def test_what_is_simulated_and_what_is_reported_stands_beside_it(many: CalibrationPanel) -> None:
    many.workload, many.view = "swe-lite", "within 0.5 s"
    rows = many._tables()[0].rows
    assert rows[-1] == ("TAO paper", "reported, final", "82.9%", "0.410 s", "not told")
    assert {row[1].partition(",")[0] for row in rows[:-1]} == {"simulated"}
    said = many.chart().to_dict()["description"]
    assert "swe-lite, simulated: mean: start" in said
    assert "reported, 82.9%" in said


def test_the_winner_is_the_lab_s_and_another_one_elsewhere(many: CalibrationPanel) -> None:
    for workload, closest in (("swe-lite", "median"), ("terminal-bench", "survival")):
        many.workload = workload
        final = many.facts.errors.query("when == 'final'").set_index("statistic")["within"]
        assert many.closest == closest == final.idxmax()
        assert all(f"{share:.1%}" in many.status.value for share in final)
        assert many.best == "survival"


def test_the_tables_are_those_of_the_lab(many: CalibrationPanel) -> None:
    from tao.workloads import WORKLOADS

    many.workload = "terminal-bench"
    calls = lab.ToolCalls.of_workload(WORKLOADS["terminal-bench"](seed=0, tasks=40))
    assert many.facts.calls == len(calls)
    assert many.facts.errors.equals(lab.ladder(calls))
    assert (many.facts.reliability["decisions"] >= 30).all()


def test_a_figure_is_drawn_once_and_comes_back(many: CalibrationPanel) -> None:
    many.workload, many.view = "swe-lite", "within 0.5 s"
    first = many.cards["swe-lite", "within 0.5 s"]
    many.view = "said and seen"
    assert first.layout.display == "none"
    assert "Said and seen" in many.lists[0].value
    many.view = "within 0.5 s"
    assert first.layout.display is None
    assert many.cards["swe-lite", "within 0.5 s"] is first
    assert "How far off" in many.lists[0].value


@pytest.mark.parametrize("name", ["workload", "view"])
def test_an_unknown_choice_is_refused(many: CalibrationPanel, name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is 'x'; it must be one of"):
        setattr(many, name, "x")


def test_its_text_holds_every_number_of_both_figures(many: CalibrationPanel) -> None:
    many.workload = "swe-lite"
    text = many.text()
    for table in (*many._tables(), many._reliability()):
        assert table.text() in text


# Exercises


def said(capsys: pytest.CaptureFixture[str], check: Callable[[Any], None], answer: Any) -> str:
    check(answer)
    return capsys.readouterr().out.strip()


def test_the_exercises_speak_of_the_call_in_the_panel() -> None:
    assert CALLS["lost"] == ToolCall("pytest", 0.0, expected_s=3.0, finished_s=exercises.BACK_S)
    assert ToolCall("pytest", 0.0, expected_s=3.0) == exercises.LOST


@pytest.mark.parametrize(
    ("check", "answer", "start"),
    [
        (exercises.check_void, ..., "not answered yet"),
        (exercises.check_void, 10, "not yet: Then history is still in force"),
        (exercises.check_void, 33, "not yet: From there on history is void"),
        (exercises.check_void, 50, "not yet: It is void earlier"),
        (exercises.check_void, "soon", "not yet: 'soon' is not the kind"),
        (exercises.check_void, 35, "right."),
        (exercises.check_announced, ..., "not answered yet"),
        (exercises.check_announced, 30, "not yet: It counts as ready, but too early"),
        (exercises.check_announced, 70, "not yet: With this it never counts as ready"),
        (exercises.check_announced, None, "not yet: None is not the kind"),
        (exercises.check_announced, 60, "not yet: Foreseen; but a later deadline"),
        (exercises.check_announced, 60.5, "right."),
        (exercises.check_command, ..., "not answered yet"),
        (exercises.check_command, "make test", "not yet: The ladder finds no wait"),
        (exercises.check_command, "sleep 5", "not yet: The ladder takes this to wait for 5 s"),
        (exercises.check_command, 12, "not yet: 12 is not the kind"),
        (exercises.check_command, "sleep 12", "right."),
        (exercises.check_command, "sleep 5 && sleep 7", "right."),
        (exercises.check_command, "for i in 1 2 3; do sleep 4; done", "right."),
    ],
)
def test_unanswered_wrong_and_right(
    capsys: pytest.CaptureFixture[str], check: Callable[[Any], None], answer: Any, start: str
) -> None:
    assert said(capsys, check, answer).startswith(start)


def test_the_picture_keeps_the_colors_of_its_legend() -> None:
    image = Image.open(io.BytesIO(picture.png(ReadinessPanel("known").chart())))
    seen = {color for _, color in image.convert("RGB").getcolors(2**16)}
    legend = ((0, 114, 178), (0, 158, 115), (230, 159, 0))  # in force, ready, ready as a probe
    assert all(any(max(map(abs, np.subtract(a, b))) <= 3 for b in seen) for a in legend)
