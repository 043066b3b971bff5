"""Notebook 02 in JupyterLab: two predictions, a thrashing cache and its undoing, accessibility."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from browsing import PANEL, settle, violations, violations_in_the_dark

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def ran(open_notebook: Callable[[str], Any], run_all: Callable[[], None]) -> Any:
    """The notebook after Run All."""
    page = open_notebook("02_value_of_a_session.ipynb")
    run_all()
    return page


def outer(page: Any, place: int) -> Any:
    """The panels of the notebook in order; a lock holds its own."""
    found = f".jp-OutputArea-output > {PANEL}, .jp-OutputArea-output :not({PANEL}) > {PANEL}"
    return page.locator(found).nth(place)


def choose(panel: Any, name: str, value: str) -> None:
    """Type a number into one of the panel's fields."""
    field = panel.get_by_role("spinbutton", name=name)
    field.fill(value)
    field.press("Enter")


def spoken(panel: Any) -> list[str]:
    """What a screen reader finds at the marks of the figure."""
    settle(panel.page)
    marks = panel.locator("svg.marks [aria-roledescription='point']")
    return [str(mark.get_attribute("aria-label")) for mark in marks.all()]


def test_all_cells_run_without_complaint_and_the_locks_are_closed(ran: Any) -> None:
    for kind in ("error", "stderr"):
        assert ran.locator(f"[data-mime-type='application/vnd.jupyter.{kind}']").count() == 0
    assert ran.get_by_text("not answered yet").count() == 3
    assert ran.get_by_role("button", name="Commit", exact=True).count() == 2
    assert spoken(outer(ran, 0)) == ["big: credit 3,031 if its cache is 0 s older"]


def test_an_older_cache_by_keyboard_changes_what_is_heard(ran: Any) -> None:
    one = outer(ran, 0)
    height = one.bounding_box()["height"]
    choose(one, "Caches older by, s", "10")
    one.get_by_text("credit 1,515, ready 1").wait_for()
    assert spoken(one) == ["big: credit 1,515 if its cache is 10 s older"]
    assert one.bounding_box()["height"] == height  # the page never jumps
    one.get_by_role("button", name="Undo", exact=True).press("Enter")
    one.get_by_text("credit 3,031, ready 1").wait_for()
    assert spoken(one) == ["big: credit 3,031 if its cache is 0 s older"]


def test_a_prediction_opens_the_table_whose_winner_thrashing_changes(ran: Any) -> None:
    lock = outer(ran, 1)
    lock.get_by_role("button", name="big", exact=True).press("Enter")
    lock.get_by_role("button", name="Commit", exact=True).press("Enter")
    lock.get_by_text("You said “big”. It is “fresh”.").wait_for()
    before = spoken(lock)
    choose(lock, "Half-life, s", "0.4")
    lock.get_by_role("alert").filter(has_text="Thrashing: long wins").wait_for()
    assert spoken(lock) != before
    assert violations(ran) == []
    lock.get_by_role("button", name="Undo", exact=True).press("Enter")
    lock.get_by_text("fresh gets the place").wait_for()
    assert spoken(lock) == before


def test_the_order_is_swapped_with_the_keyboard_and_back(ran: Any) -> None:
    lock = outer(ran, 1)
    for order, winner in (("ready, credit, tokens", "big"), ("credit, ready, tokens", "fresh")):
        lock.get_by_role("button", name=order, exact=True).press("Space")
        lock.get_by_text(f"{winner} gets the place").wait_for()
        assert f"1. {winner}" in lock.get_by_role("table", name=f"Ranked by {order}").inner_text()


def test_the_figure_can_be_read_as_a_table(ran: Any) -> None:
    one = outer(ran, 0)
    one.get_by_label("Show as table").press("Space")
    one.get_by_role("table", name="Credit: as chosen, then along the curves").wait_for()
    assert not one.locator("svg.marks").is_visible()
    assert violations(ran) == []
    assert violations_in_the_dark(ran) == []
    one.get_by_label("Show as table").press("Space")
