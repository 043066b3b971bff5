"""Notebook 04 in JupyterLab: placing with the keyboard, an overflow and back, the prediction, axe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from browsing import PANEL, press, settle, violations, violations_in_the_dark

pytestmark = pytest.mark.browser

NOTEBOOK = "04_place_by_hand.ipynb"


@pytest.fixture(scope="module")
def ran(open_notebook: Callable[[str], Any], run_all: Callable[[], None]) -> Any:
    """The notebook after Run All."""
    page = open_notebook(NOTEBOOK)
    run_all()
    settle(page)
    return page


def spoken(page: Any) -> list[str]:
    """What a screen reader finds in the figure: the label of each mark."""
    marks = page.locator(f"{PANEL} svg.marks [aria-roledescription='bar']")
    return [str(mark.get_attribute("aria-label")) for mark in marks.all()]


def status(page: Any) -> str:
    """The first status line of the panel."""
    return str(page.locator(PANEL).first.get_by_role("status").first.inner_text())


def choose(page: Any, session: str, option: str) -> None:
    """Press one of the buttons of a session with the keyboard."""
    row = page.locator(f"{PANEL} .widget-toggle-buttons").filter(has_text=f"{session} (")
    row.get_by_role("button", name=option).focus()
    page.keyboard.press("Enter")
    settle(page)


def test_all_cells_run_without_complaint_and_draw_the_empty_nodes(ran: Any) -> None:
    for kind in ("error", "stderr"):
        assert ran.locator(f"[data-mime-type='application/vnd.jupyter.{kind}']").count() == 0
    assert "n0: 10,240 tokens stay free" in spoken(ran)
    assert ran.get_by_text("not answered yet").count() == 3
    assert not ran.get_by_role("button", name="Show best").is_visible()


def test_an_overflow_is_seen_and_heard_and_can_be_undone(ran: Any) -> None:
    before, height = spoken(ran), ran.locator(PANEL).first.bounding_box()["height"]
    choose(ran, "anna", "n0: 8,000")
    one = spoken(ran)
    assert "n0: anna admitted, 9,512 tokens, cache credit 8,000" in one
    choose(ran, "ben", "n0: 7,900")
    assert "n0: ben does not fit, 9,512 tokens, cache credit 7,900" in spoken(ran)
    assert "n0: overflows by 8,784 tokens" in spoken(ran)
    assert "No plan: n0 overflows by 8,784 tokens" in status(ran)
    assert violations(ran) == []
    press(ran, "Undo")
    settle(ran)
    assert spoken(ran) == one
    press(ran, "Undo")
    settle(ran)
    assert spoken(ran) == before
    assert ran.locator(PANEL).first.bounding_box()["height"] == height  # the page never jumps


def test_a_prediction_opens_the_best_plan_which_can_be_shown_and_undone(ran: Any) -> None:
    before = spoken(ran)
    number = ran.get_by_role("spinbutton", name="tokens").locator("visible=true")
    number.fill("15900")
    number.press("Enter")
    ran.get_by_role("button", name="Commit").locator("visible=true").press("Enter")
    ran.get_by_text("You said 15,900 tokens. It is 15,500 tokens: 400 fewer.").wait_for()
    ran.get_by_role("button", name="Show best").locator("visible=true").press("Enter")
    settle(ran)
    assert "n1: anna admitted, 9,512 tokens, cache credit 7,600" in spoken(ran)
    assert "credit 15,500" in status(ran)
    assert violations(ran) == []
    assert violations_in_the_dark(ran) == []
    press(ran, "Undo")
    settle(ran)
    assert spoken(ran) == before


def test_another_puzzle_has_its_own_sessions_and_lock(ran: Any) -> None:
    press(ran, "session_177")
    settle(ran)
    choose(ran, "177", "n0: 9,800")
    assert "n0: 177 admitted, 21,912 tokens, cache credit 9,800" in spoken(ran)
    assert not ran.get_by_role("button", name="Show best").locator("visible=true").count()
