"""The panel of notebook 02: credit, order and winner; thrashing and its undoing; and the exercises."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tao import planners, ranking, valuation
from tao.exercises import valuation as exercises
from tao.model import InputError, Params
from tao.panels import Lock, ValuationPanel, picture
from tao.panels.valuation import Setting
from tao.ranking import NODE, ORDERS


@pytest.fixture
def panel() -> Iterator[ValuationPanel]:
    panel = ValuationPanel()
    yield panel
    panel.close()


def drawn(panel: ValuationPanel) -> dict[str, Any]:
    """What the figure was last told to draw, apart from its serial number."""
    params: Any = panel.figure.live.params
    return {name: value for name, value in dict(params.credit).items() if name != "version"}


def state(panel: ValuationPanel) -> tuple[Any, ...]:
    """All that a user sees."""
    return drawn(panel), panel.status.value, panel.cost.value, panel.list.value, panel.text()


def test_the_values_are_those_of_every_planner(panel: ValuationPanel) -> None:
    plan = planners.plan(panel.snapshot, "dp", panel.params)
    values = {row.session: row.value for row in panel.ranks}
    assert plan.placements
    assert all(values[p.session] == p.value for p in plan.placements)


def test_credit_halves_with_each_half_life_on_the_curve(panel: ValuationPanel) -> None:
    rows = {row["x"]: row["y"] for row in drawn(panel)["rows"] if row["session"] == "big"}
    assert len(rows) == 61
    for age in (0.0, 10.0, 30.0):
        assert rows[age] == valuation.decayed(16_000, 24.0 + age, 10.0)
        assert rows[age + 10.0] == rows[age] // 2


def test_the_mark_stands_at_the_age_chosen(panel: ValuationPanel) -> None:
    panel.older.value = 80.0
    assert {row["x"] for row in drawn(panel)["now"]} == {80.0}
    assert {row["session"]: row["y"] for row in drawn(panel)["now"]} == {
        row.session: row.value.credit for row in panel.ranks if row.cached_tokens
    }
    assert drawn(panel)["reach"] == 300.0


@pytest.mark.parametrize(
    ("setting", "winner", "thrashing"),
    [
        (Setting(), "fresh", False),
        (Setting(half_life_s=12.0), "fresh", False),
        (Setting(half_life_s=13.0), "big", False),
        (Setting(half_life_s=0.5), "fresh", False),
        (Setting(half_life_s=0.4), "long", True),
        (Setting(older_s=119.0), "fresh", False),
        (Setting(older_s=120.0), "long", True),
        (Setting(order="ready, credit, tokens"), "big", False),
        (Setting(order="tokens, ready, credit"), "long", True),
        (Setting(horizon_s=3.0, order="ready, credit, tokens"), "fresh", False),
    ],
)
def test_who_wins_hangs_on_half_life_age_horizon_and_order(
    panel: ValuationPanel, setting: Setting, winner: str, thrashing: bool
) -> None:
    panel.setting = setting
    assert (panel.winner.session, panel.thrashing) == (winner, thrashing)
    assert panel.status.value.count(winner) == 1
    assert ("tao-error" in panel.status.value) == ('role="alert"' in panel.status.value) == thrashing
    assert f"1. {winner}" in panel.list.value


def test_age_alone_never_changes_the_order_of_credit_until_it_is_gone(panel: ValuationPanel) -> None:
    for older in range(0, 110, 10):
        panel.older.value = float(older)
        assert [row.session for row in panel.ranks][:2] == ["fresh", "big"]


def test_thrashing_is_caused_and_undone(panel: ValuationPanel) -> None:
    before = state(panel)
    panel.half_life.value = 0.4
    assert "Thrashing: long wins with nothing cached here" in panel.status.value
    assert "reads 24,000 tokens for long" in panel.cost.value
    assert "16,000 of big, who needs only 2,000 more" in panel.cost.value
    panel.undo_button.click()
    assert state(panel) == before
    assert panel.setting == Setting()
    panel.undo()
    assert panel.setting == Setting()


def test_undo_takes_back_one_change_at_a_time(panel: ValuationPanel) -> None:
    panel.setting = Setting(20.0, 5.0, 0.0, "ready, credit, tokens")
    panel.older.value = 7.0
    panel.undo()
    assert panel.setting == Setting(20.0, 5.0, 0.0, "ready, credit, tokens")
    panel.undo()
    assert panel.setting == Setting()


def test_the_facts_are_those_of_the_sessions(panel: ValuationPanel) -> None:
    facts = panel.facts().text()
    assert re.search(r"big +18,000 +16,000 +24 s ago +its request is waiting", facts)
    assert re.search(r"fresh +7,000 +6,000 +6 s ago +by deadline: due in 3.0 s", facts)
    assert re.search(r"new +3,000 +0 +never", facts)


def test_one_session_alone_has_one_curve_and_fewer_controls() -> None:
    one = ValuationPanel(only=("big",))
    assert {row["session"] for row in drawn(one)["rows"]} == {"big"}
    assert (len(one.ranks), one.thrashing) == (1, False)
    png = picture.png(one.chart())
    assert png is not None
    assert len(png) < picture.LIMIT_BYTES
    one.close()


def test_a_session_without_a_cache_has_no_curve_and_an_unknown_one_is_refused() -> None:
    one = ValuationPanel(only=("new",))
    assert drawn(one)["rows"] == []
    one.close()
    with pytest.raises(InputError, match="only names 's9'; it may name big, fresh"):
        ValuationPanel(only=("s9",))


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        (Setting(half_life_s=0.0), "half_life_s is 0.0; it must be from 0.1 to 600 s"),
        (Setting(older_s=301.0), "older_s is 301.0"),
        (Setting(order="luck"), "order is 'luck'; it must be one of credit, ready, tokens; ready"),
    ],
)
def test_a_setting_out_of_bounds_is_refused_and_changes_nothing(
    panel: ValuationPanel, setting: Setting, reason: str
) -> None:
    with pytest.raises(InputError, match=re.escape(reason)):
        panel.setting = setting
    assert panel.setting == Setting()
    with pytest.raises(InputError, match=re.escape(reason)):
        ValuationPanel(setting)


def test_an_order_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="order is 'luck'"):
        ranking.ranked(ranking.five_waiting(), NODE, Params(), "luck")
    assert ranking.thrashes([]) is False


def test_every_order_compares_the_three_numbers_once() -> None:
    assert all(sorted(order) == [0, 1, 2] for order in ORDERS.values())
    assert all(
        [("credit", "ready", "tokens")[k] for k in order] == name.split(", ")
        for name, order in ORDERS.items()
    )


def test_the_table_behind_the_checkbox_has_the_credit_of_now(panel: ValuationPanel) -> None:
    for row in panel.ranks[:2]:
        assert f'<td class="number">{row.value.credit:,}</td>' in panel.figure._table.value


def test_behind_a_lock_the_winner_is_compared_with_the_prediction(panel: ValuationPanel) -> None:
    names = [s.id for s in panel.snapshot.pool]
    lock = Lock("Who?", names, panel, result=lambda: panel.winner.session)
    assert "Ranked" not in lock.text()
    lock.predict("big")
    assert lock.verdict == "You said “big”. It is “fresh”."
    assert "1. fresh" in lock.text()


def test_a_lock_without_an_answer_asks_for_one_in_plain_words(panel: ValuationPanel) -> None:
    lock = Lock("Who?", [s.id for s in panel.snapshot.pool], panel, result=lambda: panel.winner.session)
    commit, _ = lock.buttons
    commit.click()
    assert ">Choose an answer first, then press Commit. Predict: Who?</div>" in lock.error.value
    assert (lock.opened, lock.error.layout.display, lock.status.layout.display) == (False, None, "none")
    with pytest.raises(InputError, match="the prediction is None; it must be one of "):
        lock.predict(None)  # type: ignore[arg-type]
    lock.choice.value = "big"
    commit.click()
    assert (lock.said, lock.opened, lock.error.value) == ("big", True, "")
    assert (lock.error.layout.display, lock.status.layout.display) == ("none", None)


@pytest.mark.parametrize(
    ("check", "wrong", "complaint", "right"),
    [
        (exercises.check_credit, 6000, "too much", 3000),
        (exercises.check_credit, 0, "too little", 3000.0),
        (exercises.check_credit, "much", "not the kind of answer", 3000),
        (exercises.check_turning_point, 12, "With 12 s big does not win", 13),
        (exercises.check_turning_point, 14, "already with a shorter one", 13),
        (exercises.check_turning_point, 12.7, "whole number", 13),
        (exercises.check_best_value, "a", "compare the first numbers first", "b"),
        (exercises.check_best_value, "c", "look at the third", "b"),
        (exercises.check_best_value, "z", 'Answer "a", "b" or "c"', "b"),
    ],
)
def test_each_exercise_knows_unanswered_wrong_and_right(
    check: Any, wrong: Any, complaint: str, right: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for answer in (..., wrong, right):
        check(answer)
        said.append(capsys.readouterr().out)
    assert said[0] == "not answered yet\n"
    assert said[1].startswith("not yet: ")
    assert complaint in said[1]
    assert said[2].startswith("right.")
