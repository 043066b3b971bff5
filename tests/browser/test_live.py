"""Notebook 09 in JupyterLab: it moves while nobody computes, buttons answer, nothing stands in the way."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import press, settle, violations, violations_in_the_dark

pytestmark = pytest.mark.browser

PANEL = ".tao-panel:has(.tao-banner)"
MARK = "svg.marks path[aria-roledescription='point']"
NOTEBOOK = "09_live.ipynb"


@pytest.fixture(scope="module")
def ran(open_notebook: Callable[[str], Any], run_all: Callable[[], None]) -> Any:
    """The notebook opened and run from top to bottom."""
    page = open_notebook(NOTEBOOK)
    run_all()
    page.locator(PANEL).get_by_text("Over after").wait_for()
    return page


def status(page: Any) -> str:
    """What the status line says."""
    return str(page.locator(PANEL).get_by_role("status").first.text_content())


def marks(page: Any) -> int:
    """How many marks the figure shows."""
    return int(page.locator(f"{PANEL} {MARK}").count())


def picture(page: Any, name: str) -> None:
    """A screenshot for whoever looks at them: where TAO_PICTURES says."""
    if folder := os.environ.get("TAO_PICTURES"):
        page.locator(PANEL).scroll_into_view_if_needed()
        page.screenshot(path=Path(folder) / f"{name}.png")


def test_it_ran_and_says_what_is_simulated(ran: Any) -> None:
    assert ran.locator("[data-mime-type='application/vnd.jupyter.error']").count() == 0
    said = ran.locator("[data-mime-type='application/vnd.jupyter.stderr']").all_inner_texts()
    assert all("cannot keep up" in text for text in said)
    assert ran.locator(f"{PANEL} .tao-banner").text_content().startswith("SIMULATED: 2 nodes")
    assert "SIMULATED: first tokens" in ran.locator(f"{PANEL} svg.marks").first.text_content()
    assert marks(ran) == 72
    picture(ran, "over")


def test_a_run_is_drawn_while_it_goes_on_and_stops_by_the_keyboard(ran: Any) -> None:
    panel = ran.locator(PANEL)
    turns = panel.get_by_role("spinbutton", name="Turns each")
    turns.fill("10")
    turns.press("Enter")
    press(ran, "Submit")
    panel.get_by_text("Under way").wait_for()
    before = marks(ran)
    ran.wait_for_function(
        "([css, n]) => document.querySelectorAll(css).length > n", arg=[f"{PANEL} {MARK}", before + 3]
    )
    assert "Under way" in status(ran)
    picture(ran, "under_way")
    press(ran, "Stop")
    panel.get_by_text("Over after").wait_for()
    assert "failed" in status(ran)
    settle(ran)
    assert violations(ran) == []


def test_the_figure_can_be_read_as_a_table(ran: Any) -> None:
    panel = ran.locator(PANEL)
    panel.get_by_label("Show as table").first.press("Space")
    panel.get_by_role("table", name="SIMULATED: the latest first tokens").wait_for()
    assert violations(ran) == []
    panel.get_by_label("Show as table").first.press("Space")


def test_every_view_is_reached_by_the_keyboard_and_serious_about_access(ran: Any) -> None:
    panel = ran.locator(PANEL)
    for view, shown in (
        ("Simulator", "tao, measured and simulated"),
        ("Cache", "turns were placed"),
        ("Decisions", "SIMULATED, decision 1, at"),
        ("Run", "load of each node"),
    ):
        press(ran, view)
        panel.get_by_text(shown).first.wait_for()
        settle(ran)
        assert violations(ran) == [], view
        picture(ran, view.lower())
        if view == "Decisions":
            press(ran, "Next")
            panel.get_by_text("SIMULATED, decision 2, at").wait_for()


def test_predictions_open_both_locks(ran: Any) -> None:
    rows, found = (
        ran.locator(".tao-panel:has(button:text-is('Commit'))").nth(k).element_handle() for k in (0, 1)
    )
    choice = rows.query_selector("button:text-is('prefix hit rate')")
    choice.press("Enter")
    rows.query_selector("button:text-is('Commit')").press("Enter")
    ran.get_by_text("You said “prefix hit rate”.").wait_for()
    assert "tao.simulate" in rows.inner_text()
    number = found.query_selector("input[type=number]")
    number.fill("50")
    number.press("Enter")
    found.query_selector("button:text-is('Commit')").press("Enter")
    ran.get_by_text("You said 50 percent.").wait_for()
    assert "were placed with credit" in found.inner_text()
    settle(ran)
    assert violations(ran) == []
    assert violations_in_the_dark(ran) == []
    picture(ran, "locks")


def test_it_fits_a_large_screen_too(ran: Any) -> None:
    ran.set_viewport_size({"width": 1920, "height": 1080})
    settle(ran)
    assert ran.locator(PANEL).evaluate("panel => panel.scrollWidth <= panel.clientWidth")
    assert ran.locator(PANEL).bounding_box()["width"] > 1000
    picture(ran, "large")
    ran.set_viewport_size({"width": 1280, "height": 720})
