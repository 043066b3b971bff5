"""Notebook 05 in JupyterLab: cell by cell and back, a quantum too coarse and undone, the lock, axe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from browsing import PANEL, press, settle, violations, violations_in_the_dark

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def ran(open_notebook: Callable[[str], Any], run_all: Callable[[], None]) -> Any:
    """The notebook after Run All, at its first panel."""
    page = open_notebook("05_dp_step_by_step.ipynb")
    page.get_by_text("from tao.panels import DpPanel").scroll_into_view_if_needed()
    run_all()
    settle(page)
    return page


@pytest.fixture
def panel(ran: Any) -> Any:
    """The first panel, at its first step."""
    press(ran, "First")
    settle(ran)
    return ran.locator(PANEL).first


def spoken(panel: Any) -> list[str]:
    """What a screen reader finds in the figure: the label of each mark."""
    marks = panel.locator("svg.marks [aria-roledescription='point']")
    return marks.evaluate_all("marks => marks.map(mark => mark.getAttribute('aria-label'))")  # type: ignore[no-any-return]


def wait_for(page: Any, words: str) -> None:
    """Wait until the first panel's text has these words."""
    page.locator(PANEL).first.get_by_text(words).first.wait_for()
    settle(page)


def test_all_cells_run_without_complaint_and_the_base_is_drawn(ran: Any, panel: Any) -> None:
    for kind in ("error", "stderr"):
        assert ran.locator(f"[data-mime-type='application/vnd.jupyter.{kind}']").count() == 0
    assert "each cell of the last column is worth (0, 0, 0)" in panel.inner_text()
    assert panel.locator("svg.marks").count() == 1


def test_five_forward_and_five_back_says_the_same(ran: Any, panel: Any) -> None:
    before, said, height = panel.inner_text(), spoken(panel), panel.bounding_box()["height"]
    for _ in range(5):
        press(ran, "Next")
    wait_for(ran, "Back along the plan. With (10, 10) left, anna")
    assert panel.bounding_box()["height"] == height  # the page never jumps
    assert spoken(panel) != said
    assert violations(ran) == []
    for _ in range(5):
        press(ran, "Previous")
    settle(ran)
    assert (panel.inner_text(), spoken(panel)) == (before, said)


def test_a_quantum_too_coarse_leaves_both_out_and_undo_brings_them_back(ran: Any, panel: Any) -> None:
    press(ran, "Last")
    settle(ran)
    before, height = spoken(panel), panel.bounding_box()["height"]
    panel.get_by_role("button", name="4,096", exact=True).press("Enter")
    press(ran, "Last")
    wait_for(ran, "Kept out by rounding: anna, ben")
    assert spoken(panel) != before
    assert panel.bounding_box()["height"] == height
    press(ran, "Undo")
    press(ran, "Last")
    wait_for(ran, "dp admits 2 of 2")
    assert spoken(panel) == before


def test_a_prediction_opens_the_coarse_table(ran: Any) -> None:
    lock = ran.locator(f"{PANEL}:has({PANEL})")
    lock.scroll_into_view_if_needed()
    assert not lock.locator("svg.marks").is_visible()
    lock.get_by_role("radio", name="the same").or_(lock.get_by_role("button", name="the same")).press("Enter")
    lock.get_by_role("button", name="Commit", exact=True).press("Enter")
    lock.locator("svg.marks").wait_for()
    assert "You said “the same”. It is “less”." in lock.inner_text()
    assert violations(ran) == []
    assert violations_in_the_dark(ran) == []
