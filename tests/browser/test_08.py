"""Notebook 08 in JupyterLab: a race, a prediction, a setting tuned and taken back, and a run played."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from browsing import settle, violations, violations_in_the_dark

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
    lock = ran.locator(LOCK).first
    lock.scroll_into_view_if_needed()
    lock.get_by_role("button", name="TAO better", exact=True).press("Enter")
    lock.get_by_role("button", name="Commit", exact=True).press("Enter")
    lock.locator("svg.marks").wait_for()
    settle(ran)
    return lock


@pytest.fixture(scope="module")
def player(ran: Any) -> Any:
    """The panel that plays a run, at its first moment."""
    player = ran.locator(".tao-panel").filter(has=ran.get_by_role("button", name="Reset", exact=True))
    player.scroll_into_view_if_needed()
    player.get_by_role("button", name="First", exact=True).press("Enter")
    player.get_by_text("0.0 s: ").first.wait_for()
    return player


def bars(player: Any) -> list[str]:
    """What a screen reader finds in the bars of the nodes."""
    marks = player.locator("svg.marks [aria-roledescription='bar']")
    return marks.evaluate_all("marks => marks.map(mark => mark.getAttribute('aria-label'))")  # type: ignore[no-any-return]


def moment(player: Any) -> int:
    """The number of the moment shown."""
    return int(player.get_by_role("spinbutton", name="Moment").input_value())


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


def selected(page: Any) -> str:
    """What Ctrl+C would copy from the field that has the focus."""
    return page.evaluate("""() => {
        const {value, selectionStart, selectionEnd} = document.activeElement;
        return value ? value.slice(selectionStart, selectionEnd) : "";
    }""")  # type: ignore[no-any-return]


def test_the_setting_can_be_copied(panel: Any, ran: Any) -> None:
    panel.get_by_role("button", name="Copy as Python", exact=True).press("Enter")
    code = panel.get_by_role("textbox", name="Python")
    code.wait_for()
    assert "extra_delay_s=(2.0, 10.0)" in code.input_value()
    assert comes(ran, lambda: selected(ran) == code.input_value())
    ran.keyboard.press("Control+C")
    ran.keyboard.type("gone")
    assert code.input_value() == "gone"  # the selection, which was all of it
    ran.keyboard.press("Control+V")
    assert "race = tao.compare(" in code.input_value()
    panel.get_by_role("button", name="Copy as Python", exact=True).click()
    assert comes(ran, lambda: selected(ran).startswith("import tao"))
    assert selected(ran) == code.input_value()


def test_nothing_serious_stands_in_anyone_s_way(panel: Any, ran: Any) -> None:
    assert panel.count() == 1
    assert violations(ran) == []
    panel.get_by_label("Show as table").press("Space")
    panel.get_by_role("table", name="Change of task latency against tao").wait_for()
    assert violations(ran) == []


def test_five_forward_and_five_back_says_the_same(player: Any, ran: Any) -> None:
    seen = [(player.inner_text(), bars(player))]
    for _ in range(5):
        player.get_by_role("button", name="Next", exact=True).press("Enter")
        before = seen[-1][0]
        assert comes(ran, lambda before=before: player.inner_text() != before)  # type: ignore[misc]
        ran.wait_for_timeout(500)  # text and figure come one after the other
        seen.append((player.inner_text(), bars(player)))
    assert len({text for text, _ in seen}) == 6
    assert any("n0: " in word and "a place while" in word for word in seen[-1][1])
    for expected in reversed(seen[:-1]):
        player.get_by_role("button", name="Previous", exact=True).press("Enter")
        assert comes(ran, lambda expected=expected: (player.inner_text(), bars(player)) == expected)  # type: ignore[misc]


def test_space_plays_and_enter_pauses(player: Any, ran: Any) -> None:
    height = player.bounding_box()["height"]
    player.get_by_role("button", name="Play", exact=True).press("Space")
    player.get_by_role("button", name="Pause", exact=True).wait_for()
    assert comes(ran, lambda: moment(player) >= 5)
    ran.keyboard.press("Enter")  # the button has kept the focus
    player.get_by_role("button", name="Play", exact=True).wait_for()
    ran.wait_for_timeout(700)
    text, number = player.inner_text(), moment(player)
    ran.wait_for_timeout(1_000)
    assert (player.inner_text(), moment(player)) == (text, number)
    assert player.bounding_box()["height"] == height  # the page never jumps
    player.get_by_role("button", name="Play", exact=True).press("Space")
    assert comes(ran, lambda: moment(player) > number)
    player.get_by_role("button", name="Last", exact=True).press("Enter")
    player.get_by_role("button", name="Play", exact=True).wait_for()
    assert comes(ran, lambda: moment(player) == 400)


def test_another_policy_is_pending_until_reset(player: Any, ran: Any) -> None:
    player.get_by_role("combobox", name="Policy").select_option("sticky")
    player.get_by_text("Pending: policy sticky. Reset runs it from the first moment.").wait_for()
    assert moment(player) == 400
    player.get_by_role("button", name="Reset", exact=True).press("Enter")
    player.get_by_text("policy sticky, seed 0").wait_for()
    player.get_by_role("spinbutton", name="Moment").fill("151")
    player.get_by_role("spinbutton", name="Moment").press("Enter")
    assert comes(ran, lambda: any("wait in the engine's queue" in words for words in bars(player)))
    assert "0 in the pool" in player.inner_text()


def test_nothing_serious_stands_in_the_way_of_the_player(player: Any, ran: Any) -> None:
    assert player.count() == 1
    assert violations(ran) == []
    player.get_by_label("Show as table").press("Space")
    player.get_by_role("table", name="All nodes until now, moment by moment").wait_for()
    assert violations(ran) == []
    assert violations_in_the_dark(ran) == []
    player.get_by_label("Show as table").press("Space")
