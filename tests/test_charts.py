"""Charts: one style, fixed sizes, texts that fit, and updates that change rows only."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd
import pytest

from tao import charts
from tao.model import InputError

COLUMNS = ["node", "capacity_tokens", "part", "label", "tokens", "credit"]


def frame(*rows: tuple[str, int, str, str, int, int]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=COLUMNS)


@pytest.fixture
def bars() -> pd.DataFrame:
    return frame(
        ("n0", 1000, "resident", "2 residents", 400, 0),
        ("n0", 1000, "admitted", "a-long-session-0042", 100, 90),
        ("n0", 1000, "admitted", "b", 300, 0),
        ("n0", 1000, "free", "", 200, 0),
        ("n1", 500, "resident", "0 residents", 0, 0),
        ("n1", 500, "free", "", 500, 0),
    )


def spec(chart: alt.TopLevelMixin) -> dict[str, Any]:
    return dict(chart.to_dict())


def test_segments_follow_each_other_in_both_views(bars: pd.DataFrame) -> None:
    rows = charts.node_bars_value(bars)["rows"]
    assert [(r["whole0"], r["whole1"]) for r in rows[:4]] == [(0, 400), (400, 500), (500, 800), (800, 1000)]
    assert [(r["room0"], r["room1"]) for r in rows[1:4]] == [(0, 100), (100, 400), (400, 600)]
    assert [r["slot"] for r in rows] == [0, 0, 0, 0, 1, 1]


def test_views_reach_as_far_as_the_largest_node_and_the_largest_room(bars: pd.DataFrame) -> None:
    value = charts.node_bars_value(bars)
    assert (value["whole"], value["room"]) == (1000, 600)


def test_a_cluster_without_room_or_without_nodes_can_be_drawn() -> None:
    full = frame(("n0", 100, "resident", "1 resident", 130, 0), ("n0", 100, "free", "", 0, 0))
    assert charts.node_bars_value(full)["room"] == 1
    assert charts.node_bars_value(frame())["rows"] == []
    charts.node_bars(frame()).to_dict()


def test_cache_credit_decides_the_color_and_the_words_say_it_too(bars: pd.DataFrame) -> None:
    rows = charts.node_bars_value(bars)["rows"]
    assert [r["part"] for r in rows[1:3]] == [charts.WARM, charts.COLD]
    assert rows[1]["words"] == "n0: a-long-session-0042 admitted, 100 tokens, cache credit 90"
    assert rows[3]["words"] == "n0: 200 tokens stay free"


def test_a_label_that_does_not_fit_keeps_its_end_and_a_number_is_never_cut() -> None:
    def lines(part: str, label: str, width: float) -> tuple[str, str]:
        row = {"node": "n0", "capacity_tokens": 9, "part": part, "label": label, "tokens": 9, "credit": 12345}
        texts = charts._texts(row, width)
        return texts["label"], texts["note"]

    assert lines("admitted", "swe-lite-0042", 200) == ("swe-lite-0042", "credit 12,345")
    assert lines("admitted", "swe-lite-0042", 45) == ("…-0042", "12,345")
    assert lines("admitted", "swe-lite-0042", 32) == ("…042", "")
    assert lines("admitted", "swe-lite-0042", 20) == ("", "")
    assert lines("resident", "12 residents", 99) == ("12 residents", "9")
    assert lines("resident", "12 residents", 40) == ("12", "9")


def test_other_rows_change_the_parameter_and_nothing_else(bars: pd.DataFrame) -> None:
    one, other = (spec(charts.node_bars(rows, nodes=2, max_rows=9)) for rows in (bars, bars[4:]))
    (before,), (after,) = one.pop("params"), other.pop("params")
    assert one == other
    assert before["name"] == after["name"] == "bars"
    assert before["value"] != after["value"]


def test_the_chart_is_described_white_and_of_fixed_size(bars: pd.DataFrame) -> None:
    drawn = spec(charts.node_bars(bars))
    assert "room left for the waiting pool" in drawn["description"]
    assert drawn["background"] == "white"
    assert {view["height"] for view in drawn["hconcat"]} == {2 * charts.NODE_HEIGHT}
    assert all(view["width"] for view in drawn["hconcat"])


def test_too_many_rows_are_refused_with_the_chart_and_the_limit(bars: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="node_bars was given 5,001 rows and draws at most 5,000"):
        charts.node_bars(bars, max_rows=5001)


def luminance(color: str) -> float:
    parts = (int(color[k : k + 2], 16) / 255 for k in (1, 3, 5))
    linear = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(
    ("ink", "paper"),
    [
        (charts.INK, "#FFFFFF"),
        (charts.INK, charts.GREY),
        (charts.INK, charts.PARTS[charts.COLD]),
        ("#FFFFFF", charts.PARTS[charts.WARM]),
    ],
)
def test_text_is_readable_on_what_it_lies_on(ink: str, paper: str) -> None:
    assert contrast(ink, paper) >= 4.5  # WCAG 2 AA


def test_lines_and_fills_stand_out_without_color() -> None:
    assert contrast(charts.LINE, "#FFFFFF") >= 3  # WCAG 2 AA for graphics
    assert contrast(charts.PARTS[charts.WARM], charts.PARTS[charts.COLD]) >= 2  # dark and light in gray


def test_a_live_chart_never_echoes_and_has_no_menu(bars: pd.DataFrame) -> None:
    widget = charts.live(charts.node_bars(bars))
    assert widget.embed_options == {"actions": False}
    assert (widget.debounce_wait, widget.max_wait) == (charts.NEVER_MS, False)
    widget.close()


@pytest.mark.parametrize(("value", "offline"), [("1", True), ("", False), (None, False)])
def test_the_drawing_library_comes_along_only_when_asked(
    bars: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, value: str | None, offline: bool
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(alt.JupyterChart, "enable_offline", lambda: asked.append(True))
    if value is None:
        monkeypatch.delenv("TAO_OFFLINE", raising=False)
    else:
        monkeypatch.setenv("TAO_OFFLINE", value)
    charts.live(charts.node_bars(bars)).close()
    assert bool(asked) is offline
