"""The place-by-hand panel and its exercises, without a browser: moves, overflow, undo, the best plan."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from ipywidgets.widgets import widget as widget_module

import tao
from tao import charts, library, planners
from tao.byhand import by_hand
from tao.exercises import placing
from tao.model import InputError, Node, Params, Session, Snapshot
from tao.panels import GamePanel
from tao.panels.game import PUZZLES


@pytest.fixture
def game() -> Iterator[GamePanel]:
    panel = GamePanel()
    yield panel
    panel.close()


def bars(panel: GamePanel) -> list[dict[str, Any]]:
    """What the figure was last told to draw."""
    params: Any = panel.figure.live.params
    return list(params.bars["rows"])


def state(panel: GamePanel) -> tuple[Any, ...]:
    """All that a user sees."""
    buttons = {s: toggle.value for s, toggle in panel._round.toggles.items()}
    return panel.placed, bars(panel), buttons, panel.status.value, panel.advice.value, panel.text()


def press(panel: GamePanel, session: str, node: str) -> None:
    """As the buttons of a session do."""
    panel._round.toggles[session].value = node


# By hand


@pytest.mark.parametrize("name", PUZZLES)
@pytest.mark.parametrize("planner", ["dp", "short_first", "bfd"])
def test_a_planners_placement_by_hand_is_worth_what_the_planner_says(name: str, planner: str) -> None:
    snapshot = tao.load(name)
    plan = tao.plan(snapshot, planner)
    plan_by_hand, over = by_hand(snapshot, plan.node_of())
    assert (plan_by_hand.value, plan_by_hand.deferred, over) == (plan.value, plan.deferred, {})


def test_no_placement_of_the_trap_that_fits_is_worth_more_than_the_best() -> None:
    snapshot = tao.load("two_nodes_trap")
    found = []
    for nodes in itertools.product(["", "n0", "n1"], repeat=2):
        placed = {s: b for s, b in zip(["anna", "ben"], nodes, strict=True) if b}
        attempt = by_hand(snapshot, placed)
        assert attempt.fits == (len(set(placed.values())) == len(placed))
        if attempt.fits:
            found.append(attempt.plan.value)
    assert max(found) == planners.plan(snapshot, "exact").value == (15_500, 2, 18_000)


@pytest.mark.parametrize(
    ("placed", "message"),
    [
        ({"busy": "n0"}, "no session 'busy' waits here; there are a, b"),
        ({"a": "n7"}, "session 'a' cannot go to 'n7'; it may use n0, n1"),
        ({"b": "n0"}, "session 'b' cannot go to 'n0'; it may use n1"),
    ],
)
def test_a_placement_that_is_not_allowed_is_refused(placed: dict[str, str], message: str) -> None:
    sessions = Session("a", 10), Session("b", 10, eligible=("n1",)), Session("busy", 10, resident_on="n0")
    with pytest.raises(InputError, match=message):
        by_hand(Snapshot(0.0, (Node("n0", 99), Node("n1", 99)), sessions), placed)


def test_only_nodes_that_were_chosen_can_overflow() -> None:
    sessions = Session("a", 10), Session("busy", 500, resident_on="n0")
    snapshot = Snapshot(0.0, (Node("n0", 99), Node("n1", 99)), sessions)
    params = Params(reserve_tokens=0)
    assert by_hand(snapshot, {"a": "n1"}, params).over == {}
    assert by_hand(snapshot, {"a": "n0"}, params).over == {"n0": 411}


# Moves


def test_nothing_is_placed_at_first_and_the_best_is_hidden(game: GamePanel) -> None:
    assert game.placed == {}
    assert game.chart().to_dict()
    assert not game.lock.opened
    text = game.text()
    assert "15,500" not in text
    assert "a joint decision" not in text  # what the puzzle shows would give it away
    with pytest.raises(InputError, match="still hidden; commit to a prediction first"):
        game.show_best()


def test_buttons_and_python_make_the_same_moves(game: GamePanel) -> None:
    press(game, "anna", "n1")
    press(game, "ben", "n0")
    by_buttons = state(game)
    game.restart()
    game.place("anna", "n1")
    game.place("ben", "n0")
    assert state(game) == by_buttons
    assert game.regret == (0, 0, 0)


def test_five_moves_and_five_undone_gives_the_same_state(game: GamePanel) -> None:
    game.puzzle = "dp_beats_short_first"
    seen = [state(game)]
    for session, node in (("s01", "n0"), ("s04", "n1"), ("s08", "n1"), ("s04", ""), ("s02", "n0")):
        press(game, session, node)
        seen.append(state(game))
    for expected in reversed(seen[:-1]):
        game.buttons["Undo"].click()
        assert state(game) == expected
    game.undo()
    assert game.placed == {}


def test_to_press_what_is_pressed_is_no_move(game: GamePanel) -> None:
    game.place("anna", "n0")
    game.place("anna", "n0")
    game.undo()
    assert game.placed == {}


def test_start_over_can_be_undone(game: GamePanel) -> None:
    game.place("anna", "n0")
    game.buttons["Start over"].click()
    assert game.placed == {}
    game.undo()
    assert game.placed == {"anna": "n0"}


def test_an_overflow_is_told_in_words_and_in_the_figure_and_can_be_undone(game: GamePanel) -> None:
    game.place("anna", "n0")
    fits = state(game)
    game.place("ben", "n0")
    assert game.over == {"n0": 8_784}
    assert "No plan: n0 overflows by 8,784 tokens" in game.status.value
    assert "worth nothing" in game.advice.value
    words = [row["words"] for row in bars(game)]
    assert "n0: ben does not fit, 9,512 tokens, cache credit 7,900" in words
    assert "n0: anna admitted, 9,512 tokens, cache credit 8,000" in words
    assert "n0: overflows by 8,784 tokens" in words
    game.lock.skip()
    assert game.against().rows[-1] == ("▸ yours", "no plan", "", "", 2, "does not fit")
    game.undo()
    assert state(game)[:5] == fits[:5]


def test_the_last_one_placed_is_the_one_that_does_not_fit(game: GamePanel) -> None:
    game.place("ben", "n0")
    game.place("anna", "n0")
    parts = {row["label"]: row["part"] for row in bars(game) if row["label"]}
    assert (parts["anna"], parts["ben"]) == ("does not fit", "admitted with cache credit")


def test_the_end_of_each_node_is_where_its_room_ends(game: GamePanel) -> None:
    free = game.snapshot.free_tokens(game.params)
    for placed in ({}, {"anna": "n0"}, {"anna": "n0", "ben": "n0"}):
        for session in ("anna", "ben"):
            game.place(session, placed.get(session))
        assert {row["node"]: row["limit"] for row in bars(game)} == free


def test_without_overflow_the_chart_has_no_part_for_it() -> None:
    frame = GamePanel()
    plain, marked = (str(charts.node_bars(frame._bars(), overflow=on).to_dict()) for on in (False, True))
    frame.close()
    assert "does not fit" not in plain
    assert "does not fit" in marked


# The best


@pytest.mark.parametrize("name", PUZZLES)
def test_the_best_is_shown_after_a_prediction_and_undo_brings_the_own_back(
    game: GamePanel, name: str
) -> None:
    game.puzzle = name
    first = game.snapshot.pool[0].id
    game.place(first, "n0")
    game.lock.predict(0)
    assert f"It is {game.best.value.credit:,} tokens" in game.lock.verdict
    game._round.reveal.button.click()
    assert game.plan.value == game.best.value == planners.plan(game.snapshot, "exhaustive").value
    assert game.against().rows[-1][-1] == "best"
    game.undo()
    assert game.placed == {first: "n0"}
    assert game.regret > (0, 0, 0)


def test_the_totals_of_the_paper_stand_beside_the_own(game: GamePanel) -> None:
    game.puzzle = "dp_beats_short_first"
    game.lock.skip()
    text = game.text()
    assert "16,791" in text
    assert "13,624" in text
    assert "3,167 credit" in text


def test_each_puzzle_keeps_its_moves_and_its_lock(game: GamePanel) -> None:
    game.place("anna", "n0")
    game.lock.skip()
    game.puzzle = "session_177"
    assert (game.placed, game.lock.opened) == ({}, False)
    assert game._round.box.layout.display is None
    game.puzzle = "two_nodes_trap"
    assert (game.placed, game.lock.opened) == ({"anna": "n0"}, True)
    assert game.rounds["session_177"].box.layout.display == "none"


# What comes in, and the end


def test_what_cannot_be_played_is_refused(game: GamePanel) -> None:
    crowd = Snapshot(0.0, (Node("n0", 99),), tuple(Session(f"s{k:02}", 1) for k in range(13)))
    with pytest.raises(InputError, match=r"'mine' has 13 waiting sessions and 1 nodes; by hand one places"):
        GamePanel([("mine", crowd)])
    with pytest.raises(InputError, match="was given no snapshots"):
        GamePanel([])
    with pytest.raises(InputError, match="no session 'eve' waits here"):
        game.place("eve", None)
    with pytest.raises(InputError, match="it may use n0, n1"):
        game.place("anna", "n7")
    with pytest.raises(InputError, match="puzzle is 'chess'; this panel poses two_nodes_trap"):
        game.puzzle = "chess"


def test_a_node_that_is_not_allowed_has_no_button() -> None:
    sessions = Session("a", 10, eligible=("n1",)), Session("b", 10, eligible=())
    panel = GamePanel([("mine", Snapshot(0.0, (Node("n0", 9_999), Node("n1", 9_999)), sessions))])
    assert [value for _, value in panel._round.toggles["a"].options] == ["", "n1"]
    assert "not allowed" in panel.text()
    assert panel.best.node_of() == {"a": "n1"}
    panel.close()


def test_close_leaves_nothing_behind() -> None:
    before = len(widget_module._instances)
    panel = GamePanel()
    panel.puzzle = "session_177"
    panel.lock.skip()
    panel.close()
    assert len(widget_module._instances) == before


# Exercises

BEST = {"s01": "n0", "s02": "n0", "s05": "n0", "s06": "n0", "s03": "n1", "s07": "n1", "s08": "n1"}


@pytest.mark.parametrize(
    ("check", "answer", "said"),
    [
        (placing.check_who_moves, ..., "not answered yet"),
        (placing.check_who_moves, "ben", "not yet: What would that session keep anywhere else?"),
        (placing.check_who_moves, ["anna"], "not yet: ['anna'] does not wait there"),
        (placing.check_who_moves, "anna", "right."),
        (placing.check_placement, ..., "not answered yet"),
        (placing.check_placement, "s01", "not yet: 's01' is not the kind of answer"),
        (placing.check_placement, {"s01": "n5"}, "not yet: session 's01' cannot go to 'n5'"),
        (placing.check_placement, {"s04": "n0", "s07": "n0", "s08": "n0"}, "not yet: n0 overflows by 4,970"),
        (placing.check_placement, {}, "not yet: It fits, but keeps 13,624 tokens of credit less"),
        (placing.check_placement, BEST, "right. No plan that fits keeps more than 16,791."),
        (placing.check_without_177, ..., "not answered yet"),
        (placing.check_without_177, 4_125, "not yet: More is possible: short_first keeps that much"),
        (placing.check_without_177, 8_014, "not yet: More is possible: put each"),
        (placing.check_without_177, 17_815, "not yet: Without 177 no plan that fits keeps that much"),
        (placing.check_without_177, "much", "not yet: 'much' is not the kind of answer"),
        (placing.check_without_177, 8_015, "right. With it the best plan keeps 17,815"),
    ],
)
def test_exercises_say_what_is_wrong_and_what_is_right(
    check: Any, answer: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(answer)
    assert capsys.readouterr().out.startswith(said)


def test_a_tie_with_short_first_is_not_enough(capsys: pytest.CaptureFixture[str]) -> None:
    placing.check_placement(tao.plan(library.load("dp_beats_short_first"), "short_first").node_of())
    assert "ties with short_first" in capsys.readouterr().out
