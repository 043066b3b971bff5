"""The panel of the dynamic program and its exercises, without a browser: cells, plan, quanta, undo."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import tao
from tao import charts, explain, planners
from tao.charts.grid import MOST_MARKS, NOW, PATH, READ
from tao.exercises import dp
from tao.model import InputError, Node, Params, Session, Snapshot
from tao.panels import DpPanel, Lock
from tao.panels.dp_grid import CODE, SNAPSHOTS


@pytest.fixture
def panel() -> Iterator[DpPanel]:
    panel = DpPanel()
    yield panel
    panel.close()


def drawn(panel: DpPanel) -> dict[str, Any]:
    """What the figure was last told to draw."""
    params: Any = panel.figure.live.params
    return {k: v for k, v in params.grid.items() if k != "version"}


def state(panel: DpPanel) -> tuple[Any, ...]:
    """All that a user sees."""
    return drawn(panel), panel.status.value, panel.message.value, panel.code.value, panel.text()


# Steps


def test_five_forward_and_five_back_gives_the_same_state(panel: DpPanel) -> None:
    seen = [state(panel)]
    for _ in range(5):
        panel.next()
        seen.append(state(panel))
    for expected in reversed(seen[:-1]):
        panel.previous()
        assert state(panel) == expected
    assert len({s[-1] for s in seen}) == 6


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_each_cell_is_shown_once_after_those_that_it_reads(panel: DpPanel, name: str) -> None:
    panel.name, panel.quantum = name, 2048
    last = len(panel.problem.sessions)
    seen = {cell for cell in panel.steps if cell[0] == last}
    for look in panel.looks[1:]:
        if look.line != "base" and not look.path:
            assert look.step.cell not in seen
            assert set(look.step.reads) <= seen
            seen.add(look.step.cell)
    assert seen == set(panel.steps)
    assert panel.count == 1 + len(panel.steps) - panel._base + last


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_the_way_back_is_the_plan_of_the_planner(panel: DpPanel, name: str) -> None:
    panel.name = name
    panel.last()
    placed = {
        panel.problem.sessions[s.cell[0]].id: panel.problem.nodes[s.choice].id
        for s in panel.look.path
        if s.choice is not None
    }
    assert placed == panel.plan.node_of() == tao.plan(panel.snapshot, "dp").node_of()
    assert panel.look.path[0].value == panel.plan.value
    assert f"credit {panel.plan.value.credit:,}" in panel.status.value


def test_a_cell_is_explained_by_words_marks_and_the_line_of_code(panel: DpPanel) -> None:
    panel.step = 5
    assert "With (10, 10) left, anna (10 quanta): place it on n1 for (15,500, 2, 18,000)" in panel.text()
    kinds = [mark["kind"] for mark in drawn(panel)["marks"]]
    assert kinds == [READ, READ, READ, NOW]
    assert drawn(panel)["marks"][-1]["words"].endswith("credit 15,500, ready 2, tokens 18,000")
    assert all(mark["line"] for mark in drawn(panel)["marks"][:3])
    assert "best, choice = offer, b" in panel.code.value.split('aria-current="true"')[1].split("</div>")[0]
    assert sum(drawn(panel)["done"]) == len(panel.steps)


def test_cells_are_done_one_by_one(panel: DpPanel) -> None:
    counts = []
    for step in range(1, panel.count + 1):
        panel.step = step
        counts.append(sum(drawn(panel)["done"]))
    assert counts == [4, 5, 6, 7, 8, 8, 8]


@pytest.mark.parametrize("line", CODE)
def test_each_line_of_code_is_there_once(line: str) -> None:
    function, begins = CODE[line]
    lines = inspect.getsource(function).splitlines()
    assert sum(text.strip().startswith(begins) for text in lines) == 1


def test_a_cell_lies_where_its_room_is(panel: DpPanel) -> None:
    value = drawn(panel)
    at = dict(zip(panel.steps, zip(value["x"], value["y"], strict=True), strict=True))
    assert at[1, (10, 10)][0] > at[1, (0, 10)][0]
    assert at[1, (10, 10)][1] < at[1, (10, 0)][1]
    assert at[0, (10, 10)][0] < at[1, (0, 10)][0] < at[2, (0, 10)][0]
    assert [title["title"] for title in value["titles"]] == ["anna (10)", "ben (10)", "nobody left"]
    for name in SNAPSHOTS:
        panel.name = name
        value = drawn(panel)
        assert min(value["x"]) >= 0
        assert max(value["x"]) + value["w"] <= charts.GRID_SIZE[0]


# Quanta


def test_a_quantum_too_coarse_keeps_out_who_fits_and_undo_brings_it_back(panel: DpPanel) -> None:
    panel.last()
    before = state(panel)
    panel.quantum = 4096
    assert panel.step == 1
    panel.last()
    assert (panel.plan.node_of(), panel.regret.credit) == ({}, 15_500)
    assert list(panel.kept_out) == ["anna", "ben"]
    assert "Kept out by rounding: anna, ben" in panel.message.value
    panel.undo_button.click()
    assert (panel.quantum, panel.unit.value) == (1024, 1024)
    assert panel.kept_out == {}
    panel.last()
    assert state(panel) == before
    panel.undo()
    assert panel.quantum == 1024


def test_undo_goes_back_over_snapshots_too(panel: DpPanel) -> None:
    panel.which.value = "session_177"
    panel.unit.value = 4096
    panel.undo()
    assert (panel.name, panel.quantum) == ("session_177", 1024)
    panel.undo()
    assert (panel.name, panel.which.value) == ("two_nodes_trap", "two_nodes_trap")


def test_the_number_of_steps_follows_the_quantum(panel: DpPanel) -> None:
    panel.name = "dp_beats_short_first"
    assert panel.number.max == panel.count
    fine = panel.count
    panel.quantum = 2048
    assert panel.number.max == panel.count < fine
    assert panel._of.value == f"of {panel.count}"
    assert len(panel.steps) == 389


def test_more_cells_than_can_be_drawn_are_refused_and_nothing_changes(panel: DpPanel) -> None:
    sessions = tuple(Session(f"s{k:02}", 900 + 137 * k) for k in range(12))
    crowd = Snapshot(0.0, (Node("n0", 20_000), Node("n1", 20_000)), sessions)
    mine = DpPanel([("small", tao.load("two_nodes_trap")), ("mine", crowd)], 4096)
    mine.name = "mine"
    before = state(mine)
    with pytest.raises(
        InputError, match=r"in quanta of 64 tokens the table has more than 5,000 cells; choose"
    ):
        mine.quantum = 64
    assert (mine.quantum, mine.unit.value, state(mine)) == (4096, 4096, before)
    assert "more than 5,000 cells" in mine.error.value
    mine.close()


def test_the_recurrence_without_a_limit_computes_all() -> None:
    problem = planners.case(tao.load("session_177"), Params())
    assert len(explain.recurrence(problem)) == len(explain.recurrence(problem, 509)) == 509
    with pytest.raises(InputError, match="more than 508 cells"):
        explain.recurrence(problem, 508)


def test_one_node_is_drawn_in_one_row_and_three_are_refused(panel: DpPanel) -> None:
    panel.name = "quantum_hurts"
    panel.last()
    assert len(set(drawn(panel)["y"])) == 1
    assert list(panel.kept_out) == ["right"]
    three = Snapshot(0.0, tuple(Node(f"n{k}", 9_999) for k in range(3)), (Session("a", 10),))
    with pytest.raises(InputError, match="has 3 nodes and 1 waiting sessions; the grid draws 1 or 2 nodes"):
        DpPanel([("mine", three)])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", "x", "name is 'x'; this panel has two_nodes_trap"),
        ("quantum", 7, "quantum is 7; this panel has 64, 256"),
        ("step", 99, "must be from 1 to 7"),
    ],
)
def test_what_does_not_exist_is_refused(panel: DpPanel, field: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        setattr(panel, field, value)
    with pytest.raises(InputError, match="was given no snapshots"):
        DpPanel([])


# Words, the lock, the end


def test_the_table_says_all_that_the_marks_say(panel: DpPanel) -> None:
    panel.name = "dp_beats_short_first"
    for step in (2, 200, panel.count):
        panel.step = step
        table = panel._table()
        marks = drawn(panel)["marks"]
        assert len(table.rows) == len(marks) <= MOST_MARKS
        for row, mark in zip(table.rows, marks, strict=True):
            assert mark["words"].startswith(f"{row[0]}: {row[2]} quanta left, credit {row[3]:,}")
    assert {mark["kind"] for mark in drawn(panel)["marks"]} == {PATH}


def test_the_coarser_table_keeps_less(panel: DpPanel) -> None:
    panel.name = "dp_beats_short_first"
    assert [panel.against_best(quantum) for quantum in (1024, 2048)] == ["the same", "less"]
    lock = Lock("How much?", ("less", "the same"), panel, lambda: panel.against_best(2048))
    lock.predict("the same")
    panel.quantum = 256
    assert "It is “less”" in lock.verdict
    lock.close()


# Exercises

VALUES = [(15_500, 2, 18_000), (8_000, 2, 18_000), (7_900, 1, 9_000)]


@pytest.mark.parametrize(
    ("check", "answer", "said"),
    [
        (dp.check_quanta, ..., "not answered yet"),
        (dp.check_quanta, 11, "not yet: A size is rounded up"),
        (dp.check_quanta, 13, "not yet: It takes its context and 512"),
        (dp.check_quanta, None, "not yet: None is not the kind of answer"),
        (dp.check_quanta, 12, "right."),
        (dp.check_reads, ..., "not answered yet"),
        (dp.check_reads, VALUES[:1], "not yet: That cell reads 3 cells"),
        (dp.check_reads, [*VALUES[:2], (7_600, 1, 9_000)], "not yet: (7600, 1, 9000) is not among them"),
        (dp.check_reads, VALUES[::-1], "not yet: These are the values"),
        (dp.check_reads, 15_500, "not yet: 15500 is not the kind of answer"),
        (dp.check_reads, VALUES, "right."),
        (dp.check_coarse, ..., "not answered yet"),
        (dp.check_coarse, 2048, "not yet: With quanta of 2,048 tokens dp still admits both."),
        (dp.check_coarse, 0, "not yet: 0 is no quantum"),
        (dp.check_coarse, "4k", "not yet: '4k' is no quantum"),
        (dp.check_coarse, 3000, "right."),
    ],
)
def test_exercises_say_what_is_wrong_and_what_is_right(
    check: Any, answer: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(answer)
    assert capsys.readouterr().out.startswith(said)
