"""PlannersPanel: counts, choices and undo, fallbacks, words; and the exercises of its notebook."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import tao
from tao import charts, planners, quality
from tao.exercises import heuristics
from tao.model import InputError, Params
from tao.panels import PlannersPanel, miss_words
from tao.panels.planners import BUDGETS, QUANTA
from tao.panels.snapshot import SHOWN
from tao.workloads import snapshots

SETS = {
    "twice": [snapshots("replicated", 16, 3, seed) for seed in range(6)],
    "shared": [snapshots("shared", 16, 3, seed) for seed in range(6)],
}


@pytest.fixture
def panel() -> Iterator[PlannersPanel]:
    panel = PlannersPanel(SETS)
    yield panel
    panel.close()


def drawn(panel: PlannersPanel) -> dict[str, Any]:
    """What the figure was last told to draw."""
    params: Any = panel.figure.live.params
    return dict(params.misses)


def state(panel: PlannersPanel) -> tuple[Any, ...]:
    """All that a user sees, apart from the serial number of the drawing."""
    shown = {k: v for k, v in drawn(panel).items() if k != "version"}
    boxes = panel.about, panel.status, panel.here, *panel.boxes, panel.figure._table
    fields = [field.value for field in panel.fields.values()]
    return panel.step, panel.planner, fields, shown, [box.value for box in boxes], panel.text()


@pytest.mark.parametrize("planner", SHOWN)
def test_the_counts_are_those_of_the_plans(panel: PlannersPanel, planner: str) -> None:
    best = [tao.plan(s, "exact").value for s in SETS["twice"]]
    values = [tao.plan(s, planner).value for s in SETS["twice"]]
    below = sum(v < b for v, b in zip(values, best, strict=True))
    panel.planner = planner
    assert f"{planner} is as good as the optimum on {6 - below} of 6 snapshots" in panel.status.value
    counts = {row["planner"]: row["words"] for row in drawn(panel)["counts"]}
    assert counts[planner] == f"{below} of 6"
    assert {row[0]: row[1] for row in panel._tables()[0].rows}[f"▸ {planner}"] == below


def test_a_rule_of_thumb_is_compared_with_dp(panel: PlannersPanel) -> None:
    panel.planner = "short_first"
    dp, other = ([tao.plan(s, name).value for s in SETS["twice"]] for name in ("dp", "short_first"))
    more = sum(x > y for x, y in zip(dp, other, strict=True))
    less = sum(x < y for x, y in zip(dp, other, strict=True))
    assert more > 0
    assert f"dp is worth more on {more}, less on {less}, the same on {6 - more - less}" in panel.text()


def test_five_forward_and_five_back_gives_the_same_state(panel: PlannersPanel) -> None:
    seen = [state(panel)]
    for _ in range(5):
        panel.next()
        seen.append(state(panel))
    assert len({words[4][2] for words in seen}) == 6
    for expected in reversed(seen[:-1]):
        panel.previous()
        assert state(panel) == expected


def test_too_small_a_budget_hands_over_to_another_planner_and_undo_brings_the_search_back(
    panel: PlannersPanel,
) -> None:
    panel.choose("shared")
    before = state(panel)
    assert not any(row["over"] for row in drawn(panel)["states"])
    panel.choose(state_budget=1)
    over = [row["n"] for row in drawn(panel)["states"] if row["over"]]
    assert over
    panel.step = over[0]
    assert "Fallback, dp: more than 1 states, so bfd placed" in panel.here.value
    assert any("more than 1, so bfd placed" in row["words"] for row in drawn(panel)["states"])
    assert {row[0]: row[-1] for row in panel._tables()[0].rows}["▸ dp"] == len(over)
    panel.step = 1
    panel.undoing.click()
    assert state(panel) == before
    panel.undo()
    assert panel.choice.family == "twice"
    panel.undo()  # nothing is left to take back
    assert panel.history == []


def test_the_optimum_does_not_depend_on_the_budget(panel: PlannersPanel) -> None:
    panel.choose("shared")
    most = list(panel.misses["most"])
    panel.choose(state_budget=1)
    assert list(panel.misses["most"]) == most
    assert panel.best == tao.plan(panel.snapshot, "exact")


@pytest.mark.parametrize(("field", "value"), [("quantum_tokens", QUANTA[-1]), ("state_budget", BUDGETS[-1])])
def test_fields_and_python_reach_the_same(panel: PlannersPanel, field: str, value: int) -> None:
    panel.fields[field].value = value
    assert getattr(panel.params, field) == value
    assert len(panel.history) == 1
    seen = state(panel)
    panel.undo()
    panel.choose(**{field: value})
    assert state(panel) == seen


def test_finer_quanta_lose_less(panel: PlannersPanel) -> None:
    losses = panel.losses.set_index("quantum_tokens")["loss_mean"]
    assert losses[QUANTA[0]] > losses[QUANTA[-1]] == 0
    assert f"{losses[QUANTA[0]]:.1%}" in panel.boxes[1].value


def test_the_proof_of_the_optimum_is_in_the_panel(panel: PlannersPanel) -> None:
    for step in range(1, panel.count + 1):
        panel.step = step
        most = tao.plan(panel.snapshot, "exact").value.credit
        assert f"No plan can keep more than {most:,} tokens of credit" in panel.boxes[2].value


def test_figures_of_recorded_sets_are_called_simulated() -> None:
    panel = PlannersPanel(SETS, recorded=["shared"])
    assert "(recomputed: " in panel.text()
    panel.choose("shared")
    assert "(simulated: " in panel.text()
    panel.close()


def test_the_packaged_sets_show_ties_and_fallbacks() -> None:
    panel = PlannersPanel()
    assert "recorded, 32 workers: 35 snapshots (simulated" in panel.text()
    more, less, same = quality.against(panel.misses, "dp", "short_first")
    assert same > more > less > 0  # the notebook says so
    panel.choose("nothing cached")
    assert not panel.misses["credit"].any()
    panel.choose("shared beginning", state_budget=1)
    assert (panel.misses.query("planner == 'dp'")["placed_by"] == "bfd").sum() > 10
    assert max(len(panel.misses), 35) <= charts.MAX_ROWS
    panel.close()


def test_what_is_not_offered_is_refused(panel: PlannersPanel) -> None:
    with pytest.raises(InputError, match="family is 'mine'; it must be one of twice"):
        panel.choose("mine")
    with pytest.raises(InputError, match="state_budget is 7; it must be one of 200000"):
        panel.choose(state_budget=7)
    with pytest.raises(InputError, match="planner is 'magic'"):
        panel.planner = "magic"
    with pytest.raises(InputError, match="give each as many"):
        PlannersPanel({"a": SETS["twice"], "b": SETS["shared"][:2]})


def test_the_table_behind_the_figure_has_every_mark(panel: PlannersPanel) -> None:
    table = miss_words.everywhere(panel.misses).text()
    for row in drawn(panel)["rows"]:
        words = row["words"].split(": ", 1)[1]
        found = re.match(r"([\d,]+) of [\d,]+ tokens of credit less", words)
        assert f"{found[1]} credit" in table if found else words


def test_each_mark_says_what_it_is() -> None:
    table = quality.misses([tao.load("quantum_hurts"), tao.load("starved_large")], list(SHOWN))
    said = {row["words"] for row in charts.misses_value(table, 200_000)["rows"]}
    assert "dp on snapshot 1: 3,000 of 6,000 tokens of credit less than the optimum" in said
    assert "exact on snapshot 1: as good as the optimum" in said
    assert any("as much credit as the optimum, 1 ready less" in words for words in said)


def test_an_optimum_that_is_not_proven_is_not_called_one() -> None:
    given = [snapshots("shared", 16, 3, seed) for seed in range(6)]
    table = quality.misses(given, ["bfd"], best="bfd")
    unproven = table[~table["proven"]]
    assert len(unproven)
    rows = charts.misses_value(table, 1)["rows"]
    assert {rows[k]["kind"] for k in unproven.index} == {"optimum not proven"}


def test_the_picture_is_small(panel: PlannersPanel) -> None:
    bundle = panel._repr_mimebundle_()
    assert 2_000 < len(bundle["image/png"]) <= 40 * 1024
    assert bundle["text/plain"] == panel.text()


# Exercises


def test_the_checks_know_unanswered_wrong_and_right(capsys: pytest.CaptureFixture[str]) -> None:
    table = quality.misses(SETS["twice"], ["dp", "short_first"])
    same = quality.against(table, "dp", "short_first")[2]
    tries = [
        (lambda x: heuristics.check_ties(x, table), same + 1, same),
        (heuristics.check_quantum, 1024, 8),
        (heuristics.check_quantum, 4, 8),
        (heuristics.check_quantum, 10, 8),
        (heuristics.check_fallback, "worst_fit", "bfd"),
        (heuristics.check_fallback, "magic", "BFD"),
    ]
    for check, wrong, right in tries:
        for answer in (..., wrong, object(), right):
            check(answer)
        said = capsys.readouterr().out.splitlines()
        assert said[0] == "not answered yet"
        assert said[1].startswith("not yet: ")
        assert said[2].startswith("not yet: ")
        assert said[3].startswith("right. ")
        assert str(right) not in said[1].replace("short_first", "").split()


def test_the_coarsest_quantum_is_found_by_planning_and_not_written_down() -> None:
    snapshot = tao.load(heuristics.HURT)
    best = tao.plan(snapshot, "exact").value.credit
    good = [q for q in (2**k for k in range(13)) if _credit(snapshot, q) == best]
    assert max(good) == 8


def _credit(snapshot: Any, quantum: int) -> int:
    return int(planners.plan(snapshot, "dp", Params(quantum_tokens=quantum)).value.credit)
