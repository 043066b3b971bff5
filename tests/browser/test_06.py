"""Notebook 06 in JupyterLab: the lock opens, a small budget breaks dp, undo mends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from browsing import settle, violations, violations_in_the_dark

pytestmark = pytest.mark.browser

PANEL = ".tao-panel:has(.tao-panel)"  # the lock and what it opens


@pytest.fixture(scope="module")
def ran(open_notebook: Callable[[str], Any], run_all: Callable[[], None]) -> Any:
    """The notebook after Run All."""
    page = open_notebook("06_dp_vs_heuristics.ipynb")
    run_all()
    return page


@pytest.fixture(scope="module")
def panel(ran: Any) -> Any:
    """The panel, opened with a prediction."""
    lock = ran.locator(PANEL)
    lock.scroll_into_view_if_needed()
    assert not lock.locator("svg.marks").is_visible()
    number = lock.get_by_role("spinbutton", name="decisions")
    number.fill("20")
    number.press("Tab")
    lock.get_by_role("button", name="Commit", exact=True).press("Enter")
    lock.locator("svg.marks").wait_for()
    settle(ran)
    return lock


def comes(page: Any, seen: Callable[[], bool]) -> bool:
    """Whether something is seen within twenty seconds."""
    for _ in range(200):
        if seen():
            return True
        page.wait_for_timeout(100)
    return False


def spoken(panel: Any) -> list[str]:
    """What a screen reader finds in the figure: the label of each mark."""
    marks = panel.locator("svg.marks [aria-roledescription='point']")
    return marks.evaluate_all("marks => marks.map(mark => mark.getAttribute('aria-label'))")  # type: ignore[no-any-return]


def wait_for(page: Any, words: str) -> None:
    """Wait until the panel's text has these words."""
    page.locator(PANEL).get_by_text(words).first.wait_for()
    settle(page)


def test_no_output_complains(ran: Any) -> None:
    for kind in ("error", "stderr"):
        assert ran.locator(f"[data-mime-type='application/vnd.jupyter.{kind}']").count() == 0


def test_the_prediction_is_answered_and_every_plan_has_a_mark(panel: Any) -> None:
    assert "You said 20 decisions. It is 12 decisions: 8 fewer." in panel.inner_text()
    said = spoken(panel)
    assert sum(words.startswith("short_first on snapshot") for words in said) == 35
    assert "exact on snapshot 1: as good as the optimum" in said


def test_a_planner_chosen_by_keyboard_changes_the_line_in_bold(panel: Any, ran: Any) -> None:
    panel.get_by_role("button", name="short_first", exact=True).press("Enter")
    wait_for(ran, "short_first is as good as the optimum on 19 of 35")
    assert "the same on 21" in panel.inner_text()
    panel.get_by_role("button", name="dp", exact=True).press("Enter")
    wait_for(ran, "dp is as good as the optimum on 28 of 35")


def test_five_forward_and_five_back_says_the_same(panel: Any, ran: Any) -> None:
    before, said = panel.inner_text(), spoken(panel)
    for _ in range(5):
        panel.get_by_role("button", name="Next", exact=True).press("Enter")
    wait_for(ran, "Snapshot 6: dp")
    assert panel.inner_text() != before
    for _ in range(5):
        panel.get_by_role("button", name="Previous", exact=True).press("Enter")
    wait_for(ran, "Snapshot 1: dp")
    assert comes(ran, lambda: (panel.inner_text(), spoken(panel)) == (before, said))


def test_a_budget_of_one_state_breaks_dp_and_undo_mends_it(panel: Any, ran: Any) -> None:
    panel.get_by_role("combobox", name="Set").select_option("shared beginning")
    wait_for(ran, "shared beginning: 35 snapshots")
    number = panel.get_by_role("spinbutton", name="Snapshot")
    number.fill("3")
    number.press("Enter")
    wait_for(ran, "Snapshot 3: dp")
    before, height = spoken(panel), panel.bounding_box()["height"]
    panel.get_by_role("combobox", name="Budget").select_option("1 state")
    wait_for(ran, "Fallback, dp: more than 1 states")
    assert comes(ran, lambda: any("more than 1, so bfd placed" in words for words in spoken(panel)))
    assert panel.bounding_box()["height"] == height  # the page never jumps
    panel.get_by_role("button", name="Undo", exact=True).press("Enter")
    panel.get_by_text("Fallback, dp: more than 1 states").wait_for(state="detached")
    settle(ran)
    assert comes(ran, lambda: spoken(panel) == before)


def test_nothing_serious_stands_in_anyone_s_way(panel: Any, ran: Any) -> None:
    assert panel.count() == 1
    assert violations(ran) == []
    panel.get_by_label("Show as table").press("Space")
    panel.get_by_role("table", name="What each plan is worth less than the optimum").wait_for()
    assert violations(ran) == []
    assert violations_in_the_dark(ran) == []
    panel.get_by_label("Show as table").press("Space")
