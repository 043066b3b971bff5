"""Notebook 08 in JupyterLab: a race is shown, a prediction answered, a setting tuned and taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from browsing import settle, violations

pytestmark = pytest.mark.browser

LOCK = ".tao-panel:has(.tao-panel)"


@pytest.fixture(scope="module")
def ran(open_notebook: Callable[[str], Any], run_all: Callable[[], None]) -> Any:
    """The notebook after Run All."""
    page = open_notebook("08_simulate_and_tune.ipynb")
    run_all()
    return page


@pytest.fixture(scope="module")
def panel(ran: Any) -> Any:
    """The second panel, opened with a prediction."""
    lock = ran.locator(LOCK)
    lock.scroll_into_view_if_needed()
    lock.get_by_role("button", name="TAO better", exact=True).press("Enter")
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


def test_no_output_complains_and_the_first_race_has_its_dots(ran: Any) -> None:
    for kind in ("error", "stderr"):
        assert ran.locator(f"[data-mime-type='application/vnd.jupyter.{kind}']").count() == 0
    said = spoken(ran.locator(".tao-panel").first)
    assert sum(words.startswith("sticky, seed ") for words in said) == 8
    assert any(words.startswith("sticky: +") and words.endswith("TAO better") for words in said)


def test_the_prediction_is_answered(panel: Any) -> None:
    assert "You said “TAO better”. It is “TAO worse”." in panel.inner_text()
    assert any(words.startswith("sticky: −") and words.endswith("TAO worse") for words in spoken(panel))


def test_a_field_is_pending_until_run_and_undo_brings_the_race_back(panel: Any, ran: Any) -> None:
    before, height = spoken(panel), panel.bounding_box()["height"]
    panel.get_by_role("combobox", name="Tool delay").select_option("none")
    panel.get_by_text("Pending: delay none. Run races it.").wait_for()
    assert comes(ran, lambda: spoken(panel) == before)
    panel.get_by_role("button", name="Run", exact=True).press("Enter")
    panel.get_by_text("tool delay: none").wait_for()
    settle(ran)
    better = "sticky: +", "TAO better"
    assert comes(ran, lambda: any(w.startswith(better[0]) and w.endswith(better[1]) for w in spoken(panel)))
    assert panel.bounding_box()["height"] == height  # the page never jumps
    panel.get_by_role("button", name="Undo", exact=True).press("Enter")
    panel.get_by_text("tool delay: 2 to 10 s").wait_for()
    settle(ran)
    assert comes(ran, lambda: spoken(panel) == before)


def test_the_setting_can_be_copied(panel: Any) -> None:
    panel.get_by_role("button", name="Copy as Python", exact=True).press("Enter")
    code = panel.get_by_role("textbox", name="Python")
    code.wait_for()
    assert "extra_delay_s=(2.0, 10.0)" in code.input_value()


def test_nothing_serious_stands_in_anyone_s_way(panel: Any, ran: Any) -> None:
    assert panel.count() == 1
    assert violations(ran) == []
    panel.get_by_label("Show as table").press("Space")
    panel.get_by_role("table", name="Change of task latency against tao").wait_for()
    assert violations(ran) == []
