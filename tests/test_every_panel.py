"""What holds for every panel: an orderly end, one copy after many runs, names for all controls, a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ipywidgets
import pytest
from ipywidgets.widgets import widget as widget_module

import tao
from tao import panels
from tao.panels import (
    CalibrationPanel,
    DpPanel,
    GamePanel,
    Lock,
    Panel,
    PlannersPanel,
    PlayerPanel,
    RacePanel,
    ReadinessPanel,
    Said,
    SessionsPanel,
    SnapshotPanel,
    StalePanel,
    Stepper,
    ValuationPanel,
    base,
    picture,
)
from tao.panels.copytext import CopyText
from tao.panels.secret import KeyPanel
from tao.panels.sessions import Case
from tao.tuning import Setting

TRAP = [("two_nodes_trap", tao.load("two_nodes_trap"))]
MAKERS: dict[type[Panel], Callable[[], Panel]] = {
    CalibrationPanel: CalibrationPanel,
    DpPanel: DpPanel,
    GamePanel: GamePanel,
    KeyPanel: lambda: KeyPanel(len),
    Lock: lambda: Lock("Who?", ("anna", "ben"), SnapshotPanel(TRAP), result=lambda: "anna"),
    PlannersPanel: lambda: PlannersPanel({"twice": [tao.load("two_nodes_trap")] * 2}),
    PlayerPanel: lambda: PlayerPanel(Setting(workers=4, seeds=1)),
    RacePanel: lambda: RacePanel(Setting(workers=4, seeds=1, rivals=("sticky",))),
    ReadinessPanel: ReadinessPanel,
    Said: lambda: Said("Two", lambda: "1\n2"),
    SessionsPanel: lambda: SessionsPanel(Case(sessions=2)),
    SnapshotPanel: lambda: SnapshotPanel(TRAP),
    StalePanel: StalePanel,
    ValuationPanel: ValuationPanel,
}
FORBIDDEN = "IntSlider", "FloatSlider", "SelectionSlider", "IntRangeSlider", "FloatRangeSlider", "Play"
NAMED = ipywidgets.Button | ipywidgets.Checkbox | ipywidgets.Dropdown | ipywidgets.ToggleButtons
NUMBERS = ipywidgets.BoundedIntText | ipywidgets.BoundedFloatText | ipywidgets.Text | CopyText

every_panel = pytest.mark.parametrize("kind", MAKERS, ids=lambda kind: kind.__name__)


@pytest.fixture
def made(kind: type[Panel]) -> Iterator[Panel]:
    """A panel of this kind."""
    panel = MAKERS[kind]()
    yield panel
    panel.close()


def widgets_of(panel: Panel) -> list[Any]:
    """All widgets of a panel as it is displayed."""
    return list(base._widgets_of(panel._framed(), {}).values())


def live_widgets() -> int:
    return len(widget_module._instances)


def test_no_panel_is_left_out() -> None:
    known = {getattr(panels, name) for name in panels.__all__ if name != "guard"}
    assert known - set(MAKERS) == {Panel, Stepper, panels.LivePanel}  # the last has tests with servers


@every_panel
def test_close_leaves_nothing_behind(kind: type[Panel]) -> None:
    before = live_widgets()
    panel = MAKERS[kind]()
    assert live_widgets() > before
    panel._framed()
    panel.close()
    assert live_widgets() == before


@every_panel
@pytest.mark.parametrize("runs", [3, pytest.param(20, marks=pytest.mark.long)])
def test_running_a_cell_again_keeps_one_panel(
    kind: type[Panel], runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture, "png", lambda chart: None)  # made again each time, which costs the most
    before, counts = live_widgets(), []
    for run in range(runs):
        monkeypatch.setattr(base, "_running_cell", lambda run=run: ("a cell", f"{kind} {runs} {run}"))
        panel = MAKERS[kind]()
        panel._repr_mimebundle_()
        counts.append(live_widgets())
    panel.close()
    assert len(set(counts)) == 1
    assert live_widgets() == before


@every_panel
def test_every_control_has_a_name_and_none_is_a_slider(made: Panel) -> None:
    controls = [widget for widget in widgets_of(made) if isinstance(widget, NAMED | NUMBERS)]
    assert [widget for widget in controls if not widget.description.strip()] == []
    assert [widget for widget in widgets_of(made) if type(widget).__name__ in FORBIDDEN] == []


@every_panel
def test_where_no_widgets_are_a_small_picture_and_words_stand_for_it(made: Panel) -> None:
    bundle = made._repr_mimebundle_()
    assert bundle["text/plain"] == made.text()
    assert made.text().strip()
    assert ("image/png" in bundle) == (made.chart() is not None)
    assert len(bundle.get("image/png", b"")) <= picture.LIMIT_BYTES


@every_panel
def test_all_markup_of_a_panel_is_within_its_style(made: Panel) -> None:
    """One style for all: where a panel is nested in another, it is not sent twice."""
    styles = [w for w in widgets_of(made) if isinstance(w, ipywidgets.HTML) and "<style>" in w.value]
    assert len(styles) == 1
