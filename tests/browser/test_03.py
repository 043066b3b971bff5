"""Notebook 03 in JupyterLab: the life of a call by keyboard, a lost call found and lost again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from browsing import PANEL, settle, violations, violations_in_the_dark

pytestmark = pytest.mark.browser

NOTEBOOK = "03_will_the_tool_return.ipynb"


@pytest.fixture(scope="module")
def ran(open_notebook: Callable[[str], Any], run_all: Callable[[], None]) -> Any:
    """The notebook after Run All."""
    page = open_notebook(NOTEBOOK)
    run_all()
    return page


@pytest.fixture(scope="module")
def panel(ran: Any) -> Any:
    """The first panel, which no lock closes."""
    return ran.locator(PANEL).first


def press(panel: Any, page: Any, name: str) -> None:
    panel.get_by_role("button", name=name, exact=True).first.focus()
    page.keyboard.press("Enter")
    settle(page)


def said(panel: Any) -> str:
    return str(panel.get_by_role("status").first.inner_text())


def spoken(panel: Any) -> list[str]:
    """What a screen reader finds in the figure: the label of each bar."""
    marks = panel.locator("svg.marks").first.locator("[aria-roledescription='bar']")
    return [str(mark.get_attribute("aria-label")) for mark in marks.all()]


def test_all_cells_run_without_complaint_and_draw_the_figure(ran: Any, panel: Any) -> None:
    for kind in ("error", "stderr"):
        assert ran.locator(f"[data-mime-type='application/vnd.jupyter.{kind}']").count() == 0
    assert "history in force from 0.0 to 5.0 s, now" in spoken(panel)
    assert not ran.locator(f"{PANEL} svg.marks").nth(1).is_visible()  # locks are closed


def test_steps_by_keyboard_lead_forward_and_back(ran: Any, panel: Any) -> None:
    press(panel, ran, "lost")
    first, height = (said(panel), spoken(panel)), panel.bounding_box()["height"]
    for _ in range(5):
        press(panel, ran, "Next")
    assert "every prediction is void" in said(panel)
    assert spoken(panel) != first[1]
    assert panel.bounding_box()["height"] == height  # the page never jumps
    for _ in range(5):
        press(panel, ran, "Previous")
    assert (said(panel), spoken(panel)) == first


def test_a_prediction_opens_the_lock_and_a_deadline_finds_the_call(ran: Any) -> None:
    lock = ran.locator(f"{PANEL}:has(button:text-is('Commit'))").first
    number = lock.get_by_role("spinbutton", name="seconds")
    number.fill("30")
    number.press("Enter")
    press(lock, ran, "Commit")
    lock.get_by_text("You said 30 seconds. It is 2 seconds: 28 fewer.").wait_for()
    deadline = lock.get_by_role("spinbutton", name="deadline, s")
    deadline.fill("60")
    deadline.press("Enter")
    lock.get_by_text("foreseen 1.0 s ahead").wait_for()
    press(lock, ran, "Undo")
    lock.get_by_text("came as a surprise").wait_for()


def test_a_choice_opens_the_second_lock_and_draws_many_calls(ran: Any) -> None:
    lock = ran.locator(f"{PANEL}:has(button:text-is('Commit'))").last
    press(lock, ran, "mean")
    press(lock, ran, "Commit")
    lock.get_by_text("You said “mean”. It is “median”.").wait_for()
    press(lock, ran, "terminal-bench")
    lock.get_by_text("terminal-bench, 789 calls").wait_for()
    press(lock, ran, "said and seen")
    lock.locator("svg.marks:visible").wait_for()


def test_nothing_serious_stands_in_anyone_s_way(ran: Any, panel: Any) -> None:
    assert panel.count() == 1
    assert violations(ran) == []
    assert violations_in_the_dark(ran) == []
