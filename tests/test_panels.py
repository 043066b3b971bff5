"""Panels, driven without a browser: steps, planners, words, errors, and an orderly end."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import ipywidgets
import pytest
from ipywidgets.widgets import widget as widget_module
from PIL import Image

import tao
from tao import library
from tao.model import CacheNote, InputError, Node, Params, Session, Snapshot
from tao.panels import SnapshotPanel, Stepper, base, guard, picture, words
from tao.panels.snapshot import SHOWN
from tao.panels.table import Table

EVIL = "<script>alert('&')</script>"


@pytest.fixture(scope="module")
def shared() -> Iterator[SnapshotPanel]:
    """One panel for the tests that only step and look."""
    panel = SnapshotPanel()
    yield panel
    panel.close()


@pytest.fixture
def panel(shared: SnapshotPanel) -> SnapshotPanel:
    shared.step, shared.planner = 1, "dp"
    shared.figure.as_table.value = False
    return shared


def state(panel: SnapshotPanel) -> tuple[Any, ...]:
    """All that a user sees, apart from the serial number of the drawing."""
    drawn = {k: v for k, v in bars(panel).items() if k != "version"}
    boxes = panel.origin, panel.status, panel.error, panel.guarantee, *panel.lists, panel.figure._table
    return panel.step, panel.planner, drawn, [box.value for box in boxes], panel.text()


def bars(panel: SnapshotPanel) -> dict[str, Any]:
    """What the figure was last told to draw."""
    params: Any = panel.figure.live.params
    return dict(params.bars)


def live_widgets() -> int:
    return len(widget_module._instances)


# Size


def test_one_switch_sizes_all_panels_that_are_open_or_yet_to_come(panel: SnapshotPanel) -> None:
    other = SnapshotPanel()
    panel._framed().children[-1].value = 150
    later = SnapshotPanel()
    for each in (panel, other, later):
        assert each.size == 150
        assert [c for c in each.root._dom_classes if c[4:].isdigit()] == ["tao-150"]
    assert other._framed().children[-1].value == 150
    other.size = 100
    assert panel._framed().children[-1].value == 100
    with pytest.raises(InputError, match="size is 300; it must be one of 100, 125"):
        panel.size = 300
    for each in (other, later):
        each.close()


# Steps


def test_constructed_snapshots_come_first_and_recorded_ones_in_order(panel: SnapshotPanel) -> None:
    names = [name for name, _ in panel.snapshots]
    assert names[: len(library.PRESETS)] == list(library.PRESETS)
    assert names[len(library.PRESETS) :] == sorted(n for n in tao.snapshot_names() if n.startswith("replay"))


def test_five_forward_and_five_back_gives_the_same_state(panel: SnapshotPanel) -> None:
    before = state(panel)
    seen = [before]
    for _ in range(5):
        panel.next()
        seen.append(state(panel))
    for expected in reversed(seen[:-1]):
        panel.previous()
        assert state(panel) == expected
    assert len({s[3][0] for s in seen}) == 6


def test_the_ends_hold(panel: SnapshotPanel) -> None:
    panel.previous()
    assert panel.step == 1
    panel.last()
    panel.next()
    assert panel.step == panel.count == len(panel.snapshots)
    panel.first()
    assert panel.step == 1


def test_buttons_number_and_property_all_move(panel: SnapshotPanel) -> None:
    panel.buttons["Next"].click()
    assert (panel.step, panel.name) == (2, "session_177")
    panel.number.value = 4
    assert panel.name == "starved_large"
    panel.step = 5
    assert panel.number.value == 5
    panel.buttons["Last"].click()
    panel.buttons["Previous"].click()
    assert panel.step == panel.count - 1
    panel.buttons["First"].click()
    assert panel.step == 1


@pytest.mark.parametrize("step", [0, 999, "2"])
def test_a_step_that_does_not_exist_is_refused(panel: SnapshotPanel, step: Any) -> None:
    with pytest.raises(InputError, match=r"it must be from 1 to"):
        panel.step = step


def test_a_stepper_needs_a_step() -> None:
    with pytest.raises(InputError, match="SnapshotPanel was given 0 steps"):
        SnapshotPanel([])


# Decisions


@pytest.mark.parametrize("planner", SHOWN)
def test_every_snapshot_with_every_planner_is_shown_in_full(panel: SnapshotPanel, planner: str) -> None:
    panel.planner = planner
    for step, (name, snapshot) in enumerate(panel.snapshots, start=1):
        panel.step = step
        assert panel.snapshot == snapshot
        assert panel.plan == tao.plan(snapshot, planner)
        text = panel.text()
        assert name in text
        assert all(s.id in text for s in snapshot.pool)
        assert all(node.id in text for node in snapshot.nodes)
        assert all(f"{part:,}" in panel.status.value for part in panel.plan.value)


def test_the_totals_of_the_paper_are_on_screen(panel: SnapshotPanel) -> None:
    assert "credit 16,791" in panel.status.value
    assert "No plan can keep more than 16,791 tokens of credit" in panel.text()
    panel.planner = "short_first"
    assert "credit 13,624" in panel.status.value
    assert "behind dp by 3,167 credit" in panel.status.value
    assert panel.regret == (3167, 1, 9090)
    assert "Regret against dp: 3,167 credit, 1 ready, 9,090 tokens" in panel.guarantee.value


def test_the_best_planner_is_marked_even_where_dp_loses(panel: SnapshotPanel) -> None:
    panel.step = 5
    assert panel.name == "quantum_hurts"
    assert panel.best.planner == "short_first"
    rows = {row[0]: row[-1] for row in panel._tables()[1].rows}
    assert rows["▸ dp"] == "3,000 credit"
    assert {rows[name] for name in SHOWN if name != "dp"} == {"best"}


def test_an_unknown_planner_is_refused(panel: SnapshotPanel) -> None:
    with pytest.raises(InputError, match="planner is 'magic'; this panel shows dp, short_first"):
        panel.planner = "magic"


def test_a_fallback_is_named_in_the_headline_and_explained() -> None:
    panel = SnapshotPanel([("mine", tao.load("starved_large"))], Params(state_budget=1))
    assert "dp (placed by bfd) admits" in panel.status.value
    assert "Fallback, dp: more than 1 states, so bfd placed" in panel.guarantee.value
    assert "your own snapshot" in panel.origin.value
    panel.close()


def test_waiting_that_earned_credit_is_told_apart() -> None:
    panel = SnapshotPanel([("mine", tao.load("session_177"))], Params(ageing_tokens_per_s=10.0))
    assert panel.plan.ageing_tokens > 0
    assert f"Waiting earned {panel.plan.ageing_tokens:,} of the credit" in panel.guarantee.value
    panel.close()


def test_an_optimum_is_called_one() -> None:
    snapshot = Snapshot(0.0, (Node("n0", 100),), (Session("a", 10),))
    best = tao.plan(snapshot, "exhaustive", Params(reserve_tokens=0))
    assert words.guarantee(best, Params()) == (
        "The best plan on true sizes. Its value meets the upper bound: on true sizes no plan is worth more."
    )


@pytest.mark.parametrize(
    "snapshot",
    [
        Snapshot(0.0, (), ()),
        Snapshot(0.0, (Node("n0", 0),), ()),
        Snapshot(
            0.0, (Node("n0", 100),), (Session("a", 900, resident_on="n0"), Session("b", 10, eligible=()))
        ),
    ],
    ids=["nothing", "no room", "overfull"],
)
def test_an_empty_or_overfull_cluster_is_shown_as_well(snapshot: Snapshot) -> None:
    panel = SnapshotPanel([("mine", snapshot)])
    assert "dp admits 0 of" in panel.text()
    assert "nobody" in panel.text()
    panel.close()


def test_the_questions_of_the_first_notebook_have_answers(panel: SnapshotPanel) -> None:
    panel.step = 2
    assert panel.name == "session_177"
    assert "177" in panel.plans["dp"].node_of()
    assert "177" in panel.plans["short_first"].deferred
    assert any(plan.value.tokens > panel.best.value.tokens for plan in panel.plans.values())
    panel.step = 4
    assert panel.name == "starved_large"
    admitting = [plan for plan in panel.plans.values() if "large" in plan.node_of()]
    assert admitting
    assert all(plan.value.ready < panel.best.value.ready for plan in admitting)


def test_on_some_recorded_snapshots_all_tie_and_on_some_dp_is_behind(panel: SnapshotPanel) -> None:
    ties, behind = 0, 0
    for step in range(len(library.PRESETS) + 1, panel.count + 1):
        panel.step = step
        ties += len({plan.value for plan in panel.plans.values()}) == 1
        behind += panel.regret > (0, 0, 0)
    assert ties
    assert behind


# Words


class Tags(HTMLParser):
    """Collects the tags and the text of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


def html_of(panel: SnapshotPanel) -> str:
    return "".join(
        w.value for w in base._widgets_of(panel.root, {}).values() if isinstance(w, ipywidgets.HTML)
    )


def test_an_id_is_text_wherever_it_appears() -> None:
    sessions = (
        Session(EVIL, 300, cached={EVIL: CacheNote(100, 0.0)}),
        Session(EVIL * 2, 9000),
        Session("b", 10, resident_on=EVIL),
    )
    snapshot = Snapshot(0.0, (Node(EVIL, 2000),), sessions)
    panel = SnapshotPanel([(EVIL, snapshot)], Params(quantum_tokens=1))
    seen = Tags(html_of(panel))
    assert "script" not in {tag for tag, _ in seen.tags}
    assert {k for _, attrs in seen.tags for k in attrs} <= {
        "class", "role", "aria-label", "aria-current", "tabindex", "style", "scope", "colspan",
    }  # fmt: skip
    assert seen.words.count(EVIL) > 5
    panel.show_error(ValueError(EVIL))
    assert "script" not in {tag for tag, _ in Tags(panel.error.value).tags}
    panel.close()


def test_the_table_behind_the_checkbox_says_all_that_the_figure_shows(panel: SnapshotPanel) -> None:
    panel.step = 2
    twin = Tags(panel.figure._table.value)
    tags = [tag for tag, _ in twin.tags]
    assert "caption" in tags
    assert {attrs.get("scope") for tag, attrs in twin.tags if tag == "th"} == {"col", "row"}
    for row in bars(panel)["rows"]:
        numbers = re.findall(r"\d[\d,]*", row["words"].split(": ", 1)[1])
        assert all(number in twin.words for number in numbers), row["words"]


def test_the_checkbox_swaps_figure_and_table(panel: SnapshotPanel) -> None:
    card, table = panel.figure._card.layout, panel.figure._table.layout
    assert (card.display, table.display) == (None, "none")
    panel.figure.as_table.value = True
    assert (card.display, table.display) == ("none", None)


def test_a_table_without_rows_says_nobody() -> None:
    empty = Table("Deferred", ("session", "why"), [])
    assert "nobody" in empty.html()
    assert empty.text() == "Deferred\n  nobody"


# Errors


class Broken(Stepper):
    """Fails on step 2."""

    def __init__(self) -> None:
        super().__init__(3)
        self.root.children = [self.controls, self.status, self.error]

    def draw(self) -> None:
        if self.step == 2:
            raise InputError(f"no such thing as {EVIL}")

    def text(self) -> str:
        return f"step {self.step}"


@pytest.fixture
def broken() -> Iterator[Broken]:
    panel = Broken()
    yield panel
    panel.close()


def test_an_error_is_shown_in_the_panel_and_raised_under_test(broken: Broken) -> None:
    with pytest.raises(InputError, match="no such thing"):
        broken.next()
    assert "InputError: no such thing as &lt;script&gt;" in broken.error.value
    assert 'role="alert"' in broken.error.value
    assert (broken.error.layout.display, broken.status.layout.display) == (None, "none")


def test_outside_tests_an_error_is_only_shown_and_the_next_success_clears_it(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    broken.next()
    assert "no such thing" in broken.error.value
    broken.next()
    assert broken.step == 3
    assert (broken.error.value, broken.error.layout.display) == ("", "none")
    assert broken.status.layout.display is None


def test_a_guarded_handler_keeps_its_name_and_arguments(broken: Broken) -> None:
    seen: list[int] = []

    class Other(Broken):
        @guard
        def handle(self, a: int, *, b: int) -> None:
            """Docs."""
            seen.append(a + b)

    other = Other()
    other.handle(1, b=2)
    assert (seen, Other.handle.__name__, Other.handle.__doc__) == ([3], "handle", "Docs.")
    other.close()


# Life and representation


def test_running_a_cell_again_twenty_times_keeps_one_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots = [("mine", tao.load("two_nodes_trap"))]
    counts = []
    for run in range(20):
        monkeypatch.setattr(base, "_running_cell", lambda run=run: ("cell 3", f"run {run}"))
        panel = SnapshotPanel(snapshots)
        counts.append(live_widgets())
    panel.close()
    assert len(set(counts)) == 1


def test_two_panels_of_one_run_both_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_running_cell", lambda: ("cell 7", "run 1"))
    panels = [Broken(), Broken()]
    assert all(panel.root.comm is not None for panel in panels)
    monkeypatch.setattr(base, "_running_cell", lambda: ("cell 7", "run 2"))
    third = Broken()
    assert all(panel.root.comm is None for panel in panels)
    third.close()


def test_the_representation_has_widget_picture_and_text(panel: SnapshotPanel) -> None:
    bundle = panel._repr_mimebundle_()
    shown = widget_module._instances[bundle["application/vnd.jupyter.widget-view+json"]["model_id"]]
    assert panel.root in shown.children
    assert bundle["text/plain"] == panel.text()
    image = Image.open(io.BytesIO(bundle["image/png"]))
    assert image.mode == "P"
    assert image.width > 600


def test_every_picture_is_small(panel: SnapshotPanel) -> None:
    for step in (1, 2, 4, 9, panel.count):
        panel.step = step
        png = picture.png(panel.chart())
        assert png is not None
        assert len(png) <= picture.LIMIT_BYTES == 40 * 1024


def test_a_picture_that_cannot_be_made_small_is_left_out(
    panel: SnapshotPanel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture, "LIMIT_BYTES", 100)
    assert picture.png(panel.chart()) is None


@pytest.mark.parametrize("missing", ["vl_convert", "PIL"])
def test_without_the_renderer_the_text_stands_alone(
    panel: SnapshotPanel, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    bundle = panel._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "application/vnd.jupyter.widget-view+json"}
    assert "session" in bundle["text/plain"]


def test_show_displays_and_returns_nothing(panel: SnapshotPanel, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    monkeypatch.setattr(base, "display", shown.append)
    assert panel.show() is None  # type: ignore[func-returns-value]
    assert shown == [panel]


def test_a_browser_that_starts_from_old_rows_gets_the_current_ones(panel: SnapshotPanel) -> None:
    live = panel.figure.live
    panel.step = 3
    current = bars(panel)
    old = current | {"version": 0, "rows": []}
    live._params = {"bars": old}  # what the browser reports when it has set the chart up
    assert bars(panel)["rows"] == current["rows"]
    assert bars(panel)["version"] > current["version"]


def test_redrawing_the_same_rows_is_a_change(panel: SnapshotPanel) -> None:
    before = bars(panel)["version"]
    panel.draw()
    assert bars(panel)["version"] == before + 1
