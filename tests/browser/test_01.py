"""Notebook 01 in JupyterLab: a run stepped by the keyboard, two predictions, a reset, accessibility."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from browsing import PANEL, settle, violations, violations_in_the_dark

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def ran(open_notebook: Callable[[str], Any], run_all: Callable[[], None]) -> Any:
    """The notebook after Run All."""
    page = open_notebook("01_sessions_and_tools.ipynb")
    run_all()
    return page


def panel_at(page: Any, place: int) -> Any:
    """The panels of the notebook in order; a lock holds its own."""
    outer = f".jp-OutputArea-output > {PANEL}, .jp-OutputArea-output :not({PANEL}) > {PANEL}"
    return page.locator(outer).nth(place)


def press(panel: Any, name: str) -> None:
    """Press one of its buttons with the keyboard."""
    panel.get_by_role("button", name=name, exact=True).press("Enter")


def says(panel: Any, words: str) -> None:
    """Wait until the status of a run says so, then until the page is quiet."""
    panel.get_by_role("status").filter(has_text=words).first.wait_for()
    settle(panel.page)


def spoken(panel: Any) -> list[str]:
    """What a screen reader finds in the figure: the label of each bar."""
    bars = panel.locator("svg.marks [aria-roledescription='bar']")
    return [str(bar.get_attribute("aria-label")) for bar in bars.all()]


def drawn(panel: Any) -> list[str]:
    """Each bar with its shape and label."""
    bars = panel.locator("svg.marks [aria-roledescription='bar']")
    found: list[str] = bars.evaluate_all("bars => bars.map(bar => bar.outerHTML)")
    return found


def test_all_cells_run_without_complaint_and_the_locks_are_closed(ran: Any) -> None:
    for kind in ("error", "stderr"):
        assert ran.locator(f"[data-mime-type='application/vnd.jupyter.{kind}']").count() == 0
    assert ran.get_by_text("not answered yet").count() == 3
    assert ran.get_by_role("button", name="Commit", exact=True).count() == 2
    assert ran.locator(f"{PANEL} svg.marks:visible").count() == 1


def test_five_forward_and_five_back_draws_the_same(ran: Any) -> None:
    panel = panel_at(ran, 0)
    press(panel, "First")
    says(panel, "0.00 s: the model takes up s1")
    settle(ran)
    before, height = drawn(panel), panel.bounding_box()["height"]
    for step in range(2, 7):
        press(panel, "Next")
        ran.wait_for_function(
            "step => document.querySelector('.tao-panel input[type=number]').value == step", arg=step
        )
    says(panel, "turn 3 of 6")
    assert any("s1, turn 1: tool from" in words for words in spoken(panel))
    assert panel.bounding_box()["height"] == height  # the page never jumps
    for _ in range(5):  # as fast as one can press
        press(panel, "Previous")
    says(panel, "0.00 s: the model takes up s1")
    assert drawn(panel) == before


def test_a_prediction_opens_the_run_and_is_compared_with_it(ran: Any) -> None:
    lock = panel_at(ran, 1)
    lock.get_by_role("spinbutton").first.fill("10")
    press(lock, "Commit")
    lock.get_by_text("You said 10 %. It is 29 %: 19 more.").wait_for()
    lock.locator("svg.marks").wait_for()
    settle(ran)
    assert any("waiting from" in words for words in spoken(lock))


def test_a_setting_waits_for_reset_and_then_changes_what_is_heard(ran: Any) -> None:
    panel = panel_at(ran, 0)
    before = spoken(panel)
    number = panel.get_by_role("spinbutton", name="Sessions")
    number.fill("2")
    number.press("Enter")
    panel.get_by_text("Pending: tools as recorded, sessions 2").wait_for()
    assert spoken(panel) == before
    press(panel, "Reset")
    says(panel, "s2 (turn 1 of")
    assert any(words.startswith("s2, turn 1") for words in spoken(panel))


def test_the_figure_can_be_read_as_a_table(ran: Any) -> None:
    panel = panel_at(ran, 0)
    panel.get_by_label("Show as table").press("Space")
    panel.get_by_role("table", name="Every phase so far").wait_for()
    assert not panel.locator("svg.marks").is_visible()
    panel.get_by_label("Show as table").press("Space")


def test_nothing_serious_stands_in_anyone_s_way(ran: Any) -> None:
    assert panel_at(ran, 1).count() == 1
    assert violations(ran) == []
    assert violations_in_the_dark(ran) == []
