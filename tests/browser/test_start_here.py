"""Notebook 00 in JupyterLab: first picture, figure, keyboard, accessibility."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nbformat
import pytest
from browsing import PANEL, settle, violations, violations_in_the_dark
from browsing import press as press_in

pytestmark = pytest.mark.browser

NOTEBOOK = "00_start_here.ipynb"

v4: Any = nbformat.v4


@pytest.fixture(scope="module")
def fresh(open_notebook: Callable[[str], Any]) -> Any:
    """The notebook opened, before anything ran."""
    return open_notebook(NOTEBOOK)


@pytest.fixture(scope="module")
def ran(fresh: Any, run_all: Callable[[], None]) -> Any:
    """The same after Run All."""
    run_all()
    return fresh


@pytest.fixture
def panel(ran: Any) -> Any:
    """The panel at its first step."""
    press(ran, "First")
    wait_for_step(ran, 1)
    return ran.locator(PANEL).first


def press(page: Any, name: str) -> None:
    """Press a button of the first panel with the keyboard."""
    press_in(page, name, f"{PANEL} >> nth=0")


def wait_for_step(page: Any, step: int) -> None:
    """Wait until the figure shows what the panel says about the step."""
    page.wait_for_function(
        """step => {
            const panel = document.querySelector('.tao-panel');
            return panel.querySelector('input[type=number]').value == step;
        }""",
        arg=step,
    )
    settle(page)


def spoken(page: Any) -> list[str]:
    """What a screen reader finds in the figure: the label of each mark."""
    marks = page.locator(PANEL).first.locator("svg.marks [aria-roledescription='bar']")
    return [str(mark.get_attribute("aria-label")) for mark in marks.all()]


def drawn(page: Any) -> list[str]:
    """Each text of the figure with its place, and each mark with its shape and label."""
    texts = (
        page.locator(PANEL)
        .first.locator("svg.marks text")
        .evaluate_all(
            """found => found.map(text => {
            const place = text.getBoundingClientRect(), figure = text.ownerSVGElement.getBoundingClientRect();
            return [text.textContent, place.x - figure.x, place.y - figure.y].join(' ');
        }).sort()"""  # sorted: the labels of an axis stand in the order of their arrival
        )
    )
    marks = page.locator(PANEL).first.locator("svg.marks [aria-roledescription='bar']")
    return [*texts, *marks.evaluate_all("marks => marks.map(mark => mark.outerHTML)")]


def test_an_untrusted_copy_shows_the_picture_before_any_run(fresh: Any) -> None:
    picture = fresh.locator(".jp-Notebook .jp-RenderedImage img")
    picture.wait_for()
    assert picture.evaluate("image => image.naturalWidth") > 600
    assert fresh.locator(PANEL).count() == 0


def test_all_cells_run_without_complaint_and_draw_the_figure(ran: Any) -> None:
    for kind in ("error", "stderr"):
        assert ran.locator(f"[data-mime-type='application/vnd.jupyter.{kind}']").count() == 0
    assert "n0: s01 admitted, 7,104 tokens, cache credit 1,156" in spoken(ran)
    assert ran.locator(".jp-Notebook .jp-RenderedImage img").count() == 0


def test_next_by_keyboard_changes_what_a_screen_reader_hears(panel: Any, ran: Any) -> None:
    before = spoken(ran)
    panel.get_by_role("button", name="First", exact=True).focus()
    for key in ("Tab", "Tab", "Space"):
        ran.keyboard.press(key)
    wait_for_step(ran, 2)
    assert spoken(ran) != before
    assert any("177 admitted" in words for words in spoken(ran))
    assert "dp admits 7 of 8" in panel.get_by_role("status").inner_text()


def test_a_typed_number_and_a_planner_work_from_the_keyboard(panel: Any, ran: Any) -> None:
    number = panel.get_by_role("spinbutton", name="Snapshot")
    number.fill("2")
    number.press("Enter")
    wait_for_step(ran, 2)
    press(ran, "short_first")
    settle(ran)
    assert not any("177 admitted" in words for words in spoken(ran))
    assert "short_first admits 6 of 8" in panel.get_by_role("status").inner_text()
    press(ran, "dp")
    settle(ran)


def test_five_forward_and_five_back_draws_the_same(panel: Any, ran: Any) -> None:
    before, height = drawn(ran), panel.bounding_box()["height"]
    for step in range(2, 7):
        press(ran, "Next")
        wait_for_step(ran, step)
        assert panel.bounding_box()["height"] == height  # the page never jumps
    assert drawn(ran) != before
    for _ in range(5):  # as fast as one can press
        press(ran, "Previous")
    wait_for_step(ran, 1)
    assert drawn(ran) == before


def test_the_figure_can_be_read_as_a_table(panel: Any, ran: Any) -> None:
    height = panel.bounding_box()["height"]
    panel.get_by_label("Show as table").press("Space")
    table = panel.get_by_role("table", name="The nodes, segment by segment (tokens)")
    table.wait_for()
    assert "s01" in table.inner_text()
    assert not panel.locator("svg.marks").is_visible()
    assert panel.bounding_box()["height"] == height
    assert violations(ran) == []
    panel.get_by_label("Show as table").press("Space")


def test_a_prediction_opens_the_plans_of_the_next_snapshot(ran: Any) -> None:
    lock = ran.locator(f"{PANEL}:has(button:text-is('Commit'))").first
    lock.get_by_role("button", name="both", exact=True).press("Enter")
    lock.get_by_role("button", name="Commit", exact=True).press("Enter")
    lock.get_by_text("You said “both”. It is “only dp”.").wait_for()
    settle(ran)
    marks = lock.locator("svg.marks [aria-roledescription='bar']")
    assert any("177 admitted" in str(mark.get_attribute("aria-label")) for mark in marks.all())


def test_nothing_serious_stands_in_anyone_s_way(panel: Any, ran: Any) -> None:
    assert panel.is_visible()
    assert violations(ran) == []


def test_a_dark_theme_stays_readable(panel: Any, ran: Any) -> None:
    assert panel.is_visible()
    assert violations_in_the_dark(ran) == []


def test_running_the_cell_again_replaces_the_panel(ran: Any, run_all: Callable[[], None]) -> None:
    before = ran.locator(PANEL).count()
    run_all()
    settle(ran)
    assert ran.locator(PANEL).count() == before
    assert spoken(ran)


def test_a_step_taken_before_the_figure_is_drawn_is_drawn(
    lab: Any, open_notebook: Callable[[str], Any], run_all: Callable[[], None]
) -> None:
    code = "from tao.panels import SnapshotPanel\npanel = SnapshotPanel()\npanel.show()\npanel.step = 2"
    notebook = v4.new_notebook(cells=[v4.new_code_cell(code)])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    (lab.folder / "early.ipynb").write_text(v4.writes_json(notebook))
    page = open_notebook("early.ipynb")
    run_all()
    wait_for_step(page, 2)
    assert any("177 admitted" in words for words in spoken(page))
