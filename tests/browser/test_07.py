"""Notebook 07 in JupyterLab: step a plan by keyboard, void it, overflow a node and take that back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from browsing import PANEL, settle, violations, violations_in_the_dark

pytestmark = pytest.mark.browser

NOTEBOOK = "07_stale_plans.ipynb"


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
    assert "s01 to n0 holds from 0.0 to 1.0 s" in spoken(panel)


def test_steps_by_keyboard_lead_forward_and_back(ran: Any, panel: Any) -> None:
    for name in ("session grew", "session left", "node filled"):
        panel.get_by_label(name).press("Space")
        settle(ran)
    press(panel, ran, "First")
    first, height = (said(panel), spoken(panel)), panel.bounding_box()["height"]
    for _ in range(5):
        press(panel, ran, "Next")
    assert "s05 to n0 void from 0.4 to 1.0 s, session changed" in spoken(panel)
    assert panel.bounding_box()["height"] == height  # the page never jumps
    for _ in range(5):
        press(panel, ran, "Previous")
    assert (said(panel), spoken(panel)) == first


def test_a_prediction_opens_the_lock_and_an_overflow_comes_and_goes(ran: Any) -> None:
    lock = ran.locator(f"{PANEL}:has(button:text-is('Commit'))").first
    number = lock.get_by_role("spinbutton", name="placements")
    number.fill("4")
    number.press("Enter")
    press(lock, ran, "Commit")
    lock.get_by_text("You said 4 placements. It is 5 placements: 1 more.").wait_for()
    lock.get_by_label("session grew").press("Space")
    lock.get_by_text("s06").first.wait_for()
    look = lock.get_by_label("revalidate before it is applied")
    look.press("Space")
    lock.get_by_text("n0 is overfull by 925 tokens!").wait_for()
    look.press("Space")
    lock.get_by_text("what still holds is applied, 5 of 7 placements").wait_for()


def test_nothing_serious_stands_in_anyone_s_way(ran: Any, panel: Any) -> None:
    assert panel.count() == 1
    assert violations(ran) == []
    assert violations_in_the_dark(ran) == []
