"""The panel about stale plans, the changes that it shows, and the exercises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from ipywidgets.widgets import widget as widget_module

from tao import charts, library
from tao.changes import CHANGES, EXAMPLE, grew, left, placed, returned, world
from tao.exercises import stale as exercises
from tao.model import InputError, Params
from tao.panels import Lock, StalePanel, picture, stale_words
from tao.panels.stale_words import Story
from tao.planners import plan
from tao.worker import propose, revalidate

ALL = tuple(CHANGES)


@pytest.fixture(scope="module")
def shared() -> Iterator[StalePanel]:
    """One panel for all tests that only change and look."""
    panel = StalePanel()
    yield panel
    panel.close()


@pytest.fixture
def panel(shared: StalePanel) -> StalePanel:
    shared.changes, shared.delay_s, shared.look, shared.step = (), 1.0, True, 1
    return shared


def drawn(panel: StalePanel) -> dict[str, Any]:
    """What the figure was last told to draw."""
    params: Any = panel.figure.live.params
    return {name: value for name, value in dict(params.plan).items() if name != "version"}


def state(panel: StalePanel) -> tuple[Any, ...]:
    """All that a user sees."""
    boxes = panel.status, panel.error, panel.verdict_line, *panel.lists, panel.figure._table
    return panel.step, panel.count, panel.changes, drawn(panel), [box.value for box in boxes], panel.text()


def outcome(panel: StalePanel) -> dict[str, str]:
    """Per session why its placement is dropped."""
    return {d.placement.session: d.reason for d in panel.verdict.dropped}


# The world moves on


@pytest.mark.parametrize("names", [names for k in range(5) for names in combinations(ALL, k)], ids=str)
def test_every_set_of_changes_is_judged_as_the_worker_does(panel: StalePanel, names: tuple[str, ...]) -> None:
    panel.changes = names
    assert panel.count == panel.step == len(names) + 3
    snapshot = library.load(EXAMPLE)
    live = world(snapshot, names, 1.0)
    assert panel.verdict == revalidate(propose(snapshot, "dp", Params()), live, Params())
    assert panel.live == live
    assert panel.overfull == {}
    assert len(outcome(panel)) + len(panel.verdict.applied) == 7


def test_each_reason_appears(panel: StalePanel) -> None:
    panel.changes = ["tool returned"]
    assert outcome(panel) == {}
    panel.changes = ["session grew", "session left"]
    assert outcome(panel) == {"s05": "session changed", "s08": "session gone"}
    panel.changes = ["node filled"]
    assert outcome(panel) == {"s06": "would overflow"}


def test_a_change_after_the_plan_is_too_late(panel: StalePanel) -> None:
    panel.changes = ALL
    panel.delay_s = 0.5
    assert outcome(panel) == {"s05": "session changed"}
    assert panel.count == 5
    panel.step = 1
    assert "too late to matter here: session left, node filled" in panel.verdict_line.value
    panel.delay_s = 0.0
    assert outcome(panel) == {}


def test_applied_blindly_a_node_overflows_and_a_look_undoes_it(panel: StalePanel) -> None:
    panel.changes = ["node filled"]
    before = state(panel)
    panel.look_box.value = False
    assert (panel.look, panel.overfull) == (False, {"n0": 925})
    assert "n0 is overfull by 925 tokens!" in panel.status.value
    assert "does not fit" in panel.verdict_line.value
    panel.look_box.value = True
    assert state(panel) == before
    assert panel.overfull == {}


def test_nobody_is_placed_who_is_gone(panel: StalePanel) -> None:
    panel.changes, panel.look = ["session left"], False
    assert panel.overfull == {}
    assert panel.story.worth.ready == 6


def test_it_is_compared_with_a_plan_made_now(panel: StalePanel) -> None:
    panel.changes = ALL
    fresh = plan(panel.live, "dp").value
    assert fresh > panel.story.worth
    assert f"A plan made now would be worth credit {fresh.credit:,}" in panel.verdict_line.value
    panel.changes = ()
    assert "worth the same" in panel.verdict_line.value


# Steps and controls


def test_five_forward_and_five_back_gives_the_same_state(panel: StalePanel) -> None:
    panel.changes = ALL
    panel.step = 1
    seen = [state(panel)]
    for _ in range(5):
        panel.next()
        seen.append(state(panel))
    assert len({s[4][0] for s in seen}) == 6
    for expected in reversed(seen[:-1]):
        panel.previous()
        assert state(panel) == expected


def test_checkboxes_and_delay_change_the_story(panel: StalePanel) -> None:
    panel.boxes["session left"].value = True
    panel.boxes["tool returned"].value = True
    assert panel.changes == ("tool returned", "session left")
    panel.boxes["session left"].value = False
    assert panel.changes == ("tool returned",)
    panel.delay.value = 0.1
    assert (panel.delay_s, panel.count) == (0.1, 3)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("changes", ["rain"], "there is no change 'rain'; name some of tool returned"),
        ("delay_s", -1, "must be from 0 to 5 s"),
        ("delay_s", 9, "must be from 0 to 5 s"),
    ],
)
def test_what_cannot_happen_is_refused(panel: StalePanel, name: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        setattr(panel, name, value)


# What is shown


def test_a_bar_turns_void_when_the_change_happens(panel: StalePanel) -> None:
    panel.changes = ALL
    lanes = [row for row in drawn(panel)["rows"] if row["lane"] == "s05 to n0"]
    assert [(row["part"], row["begin"], row["end"]) for row in lanes] == [
        ("holds", 0.0, 0.4),
        ("void", 0.4, 1.0),
        ("dropped", 1.0, 1.0),
    ]
    assert lanes[1]["note"] == "session changed"
    panel.step = 3
    now = {row["end"] for row in drawn(panel)["rows"]}
    assert max(now) == 0.4


def test_figure_table_and_text_say_the_same(panel: StalePanel) -> None:
    panel.changes = ALL
    fates = {
        row["lane"]: row["part"] for row in drawn(panel)["rows"] if row["part"] in ("applied", "dropped")
    }
    rows = stale_words.placements(panel.story, panel.step).rows
    assert fates == {f"{row[0]} to {row[1]}": row[3] for row in rows}
    assert stale_words.placements(panel.story, panel.step).text() in panel.text()
    assert "s08 is called off by its user" in panel.text()
    assert "session gone" in panel.figure._table.value


def test_free_tokens_are_those_of_the_snapshots(panel: StalePanel) -> None:
    panel.changes = ["node filled"]
    rows = stale_words.nodes(panel.story, panel.step).rows
    assert rows[0] == ("n0", 25_047, 21_047, "4,452")
    panel.step = 1
    assert stale_words.nodes(panel.story, 1).rows[0] == ("n0", 25_047, 25_047, "not yet")


def test_its_rows_fit_and_its_picture_is_small(panel: StalePanel) -> None:
    panel.changes = ALL
    assert len(drawn(panel)["rows"]) < charts.stale.MAX_ROWS
    png = picture.png(panel.chart())
    assert png is not None
    assert len(png) < picture.LIMIT_BYTES


def test_close_leaves_nothing_behind() -> None:
    before = len(widget_module._instances)
    panel = StalePanel(ALL)
    assert (panel.step, panel.changes) == (1, ALL)
    assert all(box.value for box in panel.boxes.values())
    panel.close()
    assert len(widget_module._instances) == before


def test_the_lock_of_the_notebook_knows_the_answer() -> None:
    panel = StalePanel(ALL)
    result: Callable[[], int] = lambda: len(panel.verdict.applied)  # noqa: E731
    lock = Lock("How many?", (0, 7), panel, result=result, unit="placements")
    lock.predict(4)
    assert lock.verdict == "You said 4 placements. It is 5 placements: 1 more."
    lock.close()


# Changes


def test_a_change_of_nobody_is_refused() -> None:
    snapshot = library.load(EXAMPLE)
    for change in (
        lambda: grew(snapshot, "x", 1),
        lambda: left(snapshot, "x"),
        lambda: returned(snapshot, "x"),
    ):
        with pytest.raises(InputError, match="there is no session 'x'"):
            change()
    with pytest.raises(InputError, match="'s01' has no tool"):
        returned(snapshot, "s01")
    with pytest.raises(InputError, match="there is no change 'rain'"):
        world(snapshot, ["rain"], 1.0)


def test_the_world_only_ages_without_changes() -> None:
    snapshot = library.load(EXAMPLE)
    assert world(snapshot, (), 2.0) == replace(snapshot, now_s=snapshot.now_s + 2.0)
    assert placed(snapshot, ()) == snapshot


def test_a_story_with_other_parameters_uses_them() -> None:
    snapshot, params = library.load(EXAMPLE), Params(reserve_tokens=0)
    story = Story(snapshot, propose(snapshot, "dp", params), ("node filled",), 1.0, True, params)
    assert story.after.free_tokens(params) != story.after.free_tokens(Params())


# Exercises


@pytest.mark.parametrize(
    ("check", "answer", "start"),
    [
        (exercises.check_harmless, ..., "not answered yet"),
        (exercises.check_harmless, "node filled", "not yet: After this, 1 of the placements"),
        (exercises.check_harmless, "rain", "not yet: Answer with one of the names"),
        (exercises.check_harmless, ["tool returned"], "not yet: ['tool returned'] is not the kind"),
        (exercises.check_harmless, "tool returned", "right."),
        (exercises.check_room, ..., "not answered yet"),
        (exercises.check_room, 4_000, "not yet: With so much, a placement is dropped"),
        (exercises.check_room, 3_000, "not yet: It may grow by more"),
        (exercises.check_room, 3_074.5, "not yet: Answer with a whole number"),
        (exercises.check_room, "all", "not yet: 'all' is not the kind"),
        (exercises.check_room, 3_075, "right."),
        (exercises.check_rescue, ..., "not answered yet"),
        (exercises.check_rescue, "node filled", "not yet: Answer with one of the names tool returned"),
        (exercises.check_rescue, "session left", "not yet: With both, s06 is dropped all the same"),
        (exercises.check_rescue, "session grew", "right."),
    ],
)
def test_unanswered_wrong_and_right(
    capsys: pytest.CaptureFixture[str], check: Callable[[Any], None], answer: Any, start: str
) -> None:
    check(answer)
    assert capsys.readouterr().out.strip().startswith(start)
