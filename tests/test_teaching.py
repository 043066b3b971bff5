"""The notes for teachers: a section for each notebook, links that lead somewhere, the lessons' answers."""

from __future__ import annotations

import re

import pytest

import tao
from tao import library, quality
from tao.changes import CHANGES
from tao.charts.seeds import verdict
from tao.exercises import start
from tao.panels import (
    CalibrationPanel,
    DpPanel,
    PlannersPanel,
    RacePanel,
    ReadinessPanel,
    SessionsPanel,
    StalePanel,
    ValuationPanel,
)
from tao.panels.sessions import Case
from tao.panels.valuation import Setting
from tao.tuning import PRESETS, longest_wait, who_waits

FOLDER = library.folder("notebooks")
ROOT = FOLDER.parent
NOTES = (FOLDER / "teaching.md").read_text("utf-8")
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
PARTS = re.findall(r"^## \[(\d\d) .+?\](.*?)(?=^## |\Z)", NOTES, re.DOTALL | re.MULTILINE)
SECTIONS = {number: " ".join(text.split()) for number, text in PARTS}
MINUTES = {"three": 3, "ten": 10, "fifteen": 15, "twenty": 20, "twenty-five": 25}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_notebook_has_a_section_with_its_minutes_a_question_and_something_to_break(path):
    section = SECTIONS[path.stem[:2]]
    minutes = MINUTES[re.search(r"\*\*After these ([\w-]+) minutes", path.read_text("utf-8"))[1]]
    assert section.startswith(f"({path.name}): {minutes} minutes")
    for part in ("**Ask**", "**Wrong**", "**Project**", "**Break** it", "*Undo*"):
        assert part in section


def test_the_minutes_add_up():
    assert len(SECTIONS) == len(NOTEBOOKS)
    each = [int(text) for text in re.findall(r"^## .*: (\d+) minutes$", NOTES, re.M)]
    assert f"{sum(each)} minutes by what each of them promises" in NOTES


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "notebooks/teaching.md"])
def test_links_lead_to_files(name):
    if not (ROOT / name).is_file():
        pytest.skip("an installed package has no checkout around it")
    links = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", (ROOT / name).read_text("utf-8"))
    assert links
    assert [link for link in links if not (ROOT / name).parent.joinpath(link).exists()] == []


def answers() -> dict[str, list[str]]:
    """By notebook, what the notes must say its panels answer."""
    trap, long = tao.load("two_nodes_trap"), tao.load("session_177")
    six, slow = SessionsPanel(), SessionsPanel(Case("1 to 5 s longer"))
    swapped = ValuationPanel(Setting(order="ready, credit, tokens"))
    more, less, same = quality.against(PlannersPanel().misses, "dp", "short_first")
    race = RacePanel(PRESETS["crowded, slow tools"]).race
    coarse = DpPanel([("dp_beats_short_first", tao.load("dp_beats_short_first"))], quantum=2048)
    dp, short = tao.plan(long, "dp"), tao.plan(long, "short_first")
    best, first = (tao.plan(trap, planner).value.credit for planner in ("exact", "short_first"))
    calls = CalibrationPanel()
    waited = who_waits(["tao"])
    assert longest_wait(waited, "tao") == "large, cold"
    lets_in = start.admitted_by("177", {"dp": dp, "short_first": short})
    return {
        "00": [
            f"({lets_in.capitalize().replace('dp', '`dp`')}.)",
            f"{len(short.placements)} sessions with {short.value.credit:,} tokens of credit, "
            f"not {len(dp.placements)} with {dp.value.credit:,}",
        ],
        "01": [f"({six.percent('waiting')} %.)", f"({slow.end_s:.0f} s, not {six.end_s:.0f} s.)"],
        "02": [f"(`{ValuationPanel().winner.session}`.)", f"(`{swapped.winner.session}`.)"],
        "03": [
            f"({ReadinessPanel('lost').ready_s:.0f}.)",
            f"(The {calls.closest}; `{calls.best}` is surest",
        ],
        "04": [f"({best:,}; short-first {first:,}.)"],
        "05": [f"({coarse.against_best(2048).capitalize()}.)"],
        "06": [f"({more}; less on {less}, the same on {same}.)"],
        "07": [f"({len(StalePanel(CHANGES).verdict.applied)}.)"],
        "08": [
            f"({verdict(race, 'sticky')}.)",
            f"(Large ones that have lost their cache: {waited['tao', 'wait, s'].max():.0f} s.)",
        ],
    }


def test_the_answers_are_those_of_the_lessons():
    missing = [(k, text) for k, said in answers().items() for text in said if text not in SECTIONS[k]]
    assert missing == []


def test_the_menus_and_controls_it_names_are_in_the_notebooks():
    for path in NOTEBOOKS:
        section = SECTIONS[path.stem[:2]].partition("**Break** it")[2]
        source = path.read_text("utf-8")
        assert [name for name in re.findall(r"`(\w+)`", section) if name not in source] == []


def test_it_fits_two_printed_pages():
    assert len(NOTES.splitlines()) <= 110
    assert max(map(len, NOTES.splitlines())) <= 130
