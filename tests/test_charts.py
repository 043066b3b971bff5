"""Charts: one style, fixed sizes, texts that fit, numbers in words, and updates that change rows only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import altair as alt
import pandas as pd
import pytest

from tao import charts, library, quality
from tao.charts import lanes, nodes, player, race, seeds, shares, style
from tao.charts.lanes import PHASES
from tao.comparisons import Comparison
from tao.history import History
from tao.metrics import TERMS, costs, waits
from tao.model import InputError
from tao.playback import PARTS, Playback, playback
from tao.policies import POLICIES
from tao.simulator import simulate

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
        texts = nodes._texts(row, width)
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
        (charts.INK, race.BETTER),
        (charts.INK, race.WORSE),
        *((charts.INK, charts.PALETTE[name]) for name in shares.TERM_COLORS),
    ],
)
def test_text_is_readable_on_what_it_lies_on(ink: str, paper: str) -> None:
    assert contrast(ink, paper) >= 4.5  # WCAG 2 AA


def test_lines_and_fills_stand_out_without_color() -> None:
    assert contrast(charts.LINE, "#FFFFFF") >= 3  # WCAG 2 AA for graphics
    assert contrast(charts.PARTS[charts.WARM], charts.PARTS[charts.COLD]) >= 2  # dark and light in gray


def test_a_live_chart_never_echoes_and_has_no_menu() -> None:
    widget = charts.live(charts.paired_dots(CHANGES))
    assert widget.embed_options == {"actions": False}
    assert (widget.debounce_wait, widget.max_wait) == (charts.NEVER_MS, False)
    widget.close()


@pytest.mark.parametrize(("value", "offline"), [("1", True), ("", False), (None, False)])
def test_the_drawing_library_comes_along_only_when_asked(
    monkeypatch: pytest.MonkeyPatch, value: str | None, offline: bool
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(alt.JupyterChart, "enable_offline", lambda: asked.append(True))
    if value is None:
        monkeypatch.delenv("TAO_OFFLINE", raising=False)
    else:
        monkeypatch.setenv("TAO_OFFLINE", value)
    charts.live(charts.paired_dots(CHANGES)).close()
    assert bool(asked) is offline


# --- races: one small table per chart -------------------------------------------------------------


def table(columns: str, *rows: tuple[Any, ...]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=columns.split())


@pytest.fixture(scope="module")
def history() -> History:
    return simulate("swe-lite", "tao", nodes=2, workers=6, tasks=8, capacity_tokens=60_000)


def runs(seeds: int = 2) -> pd.DataFrame:
    rows = [
        (policy, seed, tokens, tokens / 50_000 + seed / 100, base + seed, None)
        for policy, base in (("sticky", 40.0), ("tao", 20.0))
        for tokens in (30_000, 90_000)
        for seed in range(seeds)
    ]
    return table("policy seed capacity_tokens capacity_over_live task_latency_s ttft_s", *rows)


REPORTED = table("label lo hi", ("the paper", 18.0, 21.5))
CELLS = table(
    "workers extra_delay_s rival mean lo hi",
    (8, (0, 0), "sticky", -0.2, -0.3, -0.1),
    (8, (1, 5), "llmd", 0.3, 0.1, 0.5),
    (16, (0, 0), "sticky", 0.02, -0.1, 0.14),
    (16, (1, 5), "sticky", -0.04, float("nan"), float("nan")),
)
CHANGES = table("policy seed change", ("sticky", 0, 0.1), ("sticky", 1, 0.3), ("llmd", 0, -0.05))


COSTS = table(
    "planner n nodes plan_median_ms", ("dp", 40, 4, 0.9), ("dp", 1000, 16, 30.0), ("mine", 40, 4, 0.1)
)
LOSSES = table(
    "quantum_tokens snapshots states_mean loss_mean loss_worst",
    (2048, 9, 600.4, 0.07, 0.32),
    (512, 9, 80_000.0, 0.024, 0.1),
)
MISSED = table(
    "planner snapshots contested below lost_mean lost_worst",
    ("dp", 35, 23, 0, None, None),
    ("bfd", 35, 23, 6, 900.0, 3_167.0),
)


def waited(history: History) -> pd.DataFrame:
    return pd.concat([waits(history).assign(policy=name) for name in ("sticky", "tao")])


def spent(history: History) -> pd.DataFrame:
    return pd.concat([costs(history).assign(policy=name) for name in ("sticky", "tao")])


@pytest.fixture(scope="module")
def races(history: History) -> dict[str, dict[str, Any]]:
    """The specification of every chart, validated."""
    drawn = {
        "latency_vs_capacity": charts.latency_vs_capacity(runs(), REPORTED),
        "win_loss_map": charts.win_loss_map(CELLS),
        "paired_dots": charts.paired_dots(CHANGES),
        "wait_by_size": charts.wait_by_size(waited(history)),
        "cost_bars": charts.cost_bars(spent(history)),
        "swimlane": charts.swimlane(history, seconds=60),
        "planner_costs": charts.planner_costs(COSTS),
        "rounding_loss": charts.rounding_loss(LOSSES),
        "differences": charts.differences(MISSED, label="simulated"),
    }
    return {name: spec(chart) for name, chart in drawn.items()}


AXES = {  # the others are rows of names
    "latency_vs_capacity": {"KV capacity over live working set", "task latency, s"},
    "win_loss_map": {"workers (sessions at a time)", "added tool delay, s"},
    "paired_dots": {"change against tao"},
    "wait_by_size": {"tenth of the requests, by size of prompt", "mean wait in pool and queue, s"},
    "cost_bars": {"share of KV capacity × time"},
    "swimlane": {"seconds since the run began"},
    "planner_costs": {"waiting sessions × nodes", "median of plan(), ms"},
    "rounding_loss": {"quantum, tokens", "share of the best credit lost"},
    "differences": {"share of snapshots"},
}


def axis_titles(vega: Any) -> Iterator[str]:
    if isinstance(vega, dict):
        yield from (axis["title"] for axis in vega.get("axes", ()) if "title" in axis)
    for part in vega.values() if isinstance(vega, dict) else vega if isinstance(vega, list) else ():
        yield from axis_titles(part)


def test_every_chart_renders_with_titles_and_is_no_wider_than_a_notebook(
    races: dict[str, dict[str, Any]],
) -> None:
    vl_convert = pytest.importorskip("vl_convert")
    for name, drawn in races.items():
        assert drawn["title"]["text"], name
        assert set(axis_titles(vl_convert.vegalite_to_vega(drawn))) == AXES[name]
        picture = vl_convert.vegalite_to_png(drawn, scale=1)
        assert picture.startswith(b"\x89PNG"), name
        assert 300 < int.from_bytes(picture[16:20], "big") <= 720, name


def test_descriptions_say_the_numbers(races: dict[str, dict[str, Any]], history: History) -> None:
    said = {name: drawn["description"] for name, drawn in races.items()}
    assert "sticky: 40.5 at 0.605, 40.5 at 1.8" in said["latency_vs_capacity"]
    assert "dashed: reported, the paper, 18 to 21.5." in said["latency_vs_capacity"]
    assert "sticky: +20.0% (−107.1% to +147.1%); llmd: −5.0%." in said["paired_dots"]
    assert said["planner_costs"].endswith("dp: 0.9 at 40 × 4, 30 at 1,000 × 16; mine: 0.1 at 40 × 4.")
    assert "recomputed on 9 snapshots: 2,048: mean 7.0%, worst 32.0%, 600 states; " in said["rounding_loss"]
    assert said["differences"].endswith(
        "dp: 0 of 35; bfd: 6 of 35, 900 credit lost on average, 3,167 at worst."
    )
    assert "simulated on 35 snapshots" in said["differences"]
    share = costs(history).set_index("term")["share"]
    assert f"tao: {', '.join(f'{term} {share[term]:.0%}' for term in TERMS)}" in said["cost_bars"]
    first = waits(history).query("cache == 'warm'").iloc[0]
    assert f"tao warm: 1: {style.number(first['wait_mean_s'])}, " in said["wait_by_size"]
    assert said["swimlane"].startswith(
        "Sessions of tao from 0 to 60 s: 6, on n0, n1. Of their time: pool wait"
    )


def test_a_cell_says_whether_it_is_won_lost_or_unclear_whichever_way_the_metric_goes() -> None:
    verdicts = {
        metric: list(race._cells(CELLS, metric)["verdict"]) for metric in ("task_latency_s", "decode_tok_s")
    }
    assert verdicts["task_latency_s"] == ["better", "worse", "unclear", "unclear"]
    assert verdicts["decode_tok_s"] == ["worse", "better", "unclear", "unclear"]
    assert (
        "8 workers, delay 1 to 5 s, +30.0% vs llmd, worse" in spec(charts.win_loss_map(CELLS))["description"]
    )


@pytest.mark.parametrize(
    ("metric", "colors"),
    [
        ("task_latency_s", [race.BETTER, "white", race.WORSE]),
        ("decode_tok_s", [race.WORSE, "white", race.BETTER]),
    ],
)
def test_wins_and_losses_are_equally_strong(metric: str, colors: list[str]) -> None:
    scale = spec(charts.win_loss_map(CELLS, metric=metric))["layer"][0]["encoding"]["color"]["scale"]
    assert scale["domain"] == [-0.3, 0, 0.3]
    assert scale["range"] == colors
    assert contrast(race.BETTER, race.WORSE) < 1.1


def test_hatching_stays_in_its_cell() -> None:
    points = [float(x) for x in re.split("[ML,]", race._hatch(50, 20)) if x]
    assert max(map(abs, points[0::2])) == 50
    assert max(map(abs, points[1::2])) == 20


def test_a_cell_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match=r"a cell twice \(8 workers, delay 0 s"):
        charts.win_loss_map(pd.concat([CELLS, CELLS]))


# --- colors ---------------------------------------------------------------------------------------


def test_every_policy_has_a_look_of_its_own() -> None:
    assert set(charts.LOOKS) == set(POLICIES)
    assert len({(look.color, look.shape) for look in charts.LOOKS.values()}) == len(POLICIES)
    assert [name for name, look in charts.LOOKS.items() if look.color == charts.PALETTE["blue"]] == ["tao"]


def test_a_policy_looks_the_same_whoever_else_is_in_the_chart() -> None:
    alone = {name: charts.looks([name])[name] for name in (*POLICIES, "mine")}
    assert charts.looks(["mine", *reversed(POLICIES)]) == alone
    others = charts.looks([f"mine {k}" for k in range(12)])
    assert len(set(map(str, others.values()))) == 12


def test_colors_follow_the_policy_through_all_charts(races: dict[str, dict[str, Any]]) -> None:
    for name in ("latency_vs_capacity", "paired_dots", "wait_by_size"):
        text = json.dumps(races[name])
        scales = re.findall(r'"scale": {"domain": (\[[^]]*"sticky"[^]]*\]), "range": (\["#[^]]*\])', text)
        assert scales, name
        for domain, colors in scales:
            assert dict(zip(json.loads(domain), json.loads(colors), strict=True))["sticky"] == style.LINE


# --- what cannot be drawn ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "rows"),
    [
        (charts.latency_vs_capacity, runs()),
        (charts.win_loss_map, CELLS),
        (charts.paired_dots, CHANGES),
        (charts.wait_by_size, table("policy decile cache turns wait_mean_s", ("tao", 1, "warm", 1, 0.5))),
        (charts.cost_bars, table("policy term share", ("tao", "decode", 1.0))),
        (charts.planner_costs, COSTS),
        (charts.rounding_loss, LOSSES),
        (charts.differences, MISSED),
    ],
)
def test_no_rows_and_missing_columns_are_refused_and_one_row_is_drawn(draw: Any, rows: pd.DataFrame) -> None:
    with pytest.raises(InputError, match=f"{draw.__name__} was given no rows with values"):
        draw(rows.head(0))
    with pytest.raises(InputError, match=f"needs a table with .*; '{rows.columns[0]}' is missing"):
        draw(rows.iloc[:, 1:])
    with pytest.raises(InputError, match=f"{draw.__name__} needs a table with"):
        draw(None)
    spec(draw(rows.head(1)))


def test_a_metric_without_any_value_and_an_unknown_wait_are_refused() -> None:
    with pytest.raises(InputError, match="no rows with values"):
        charts.latency_vs_capacity(runs(), metric="ttft_s")
    with pytest.raises(InputError, match="value is 'wait_s'; it must be one of wait_mean_s"):
        charts.wait_by_size(CHANGES, value="wait_s")
    with pytest.raises(InputError, match="value is 'ms'; it must be one of plan_median_ms"):
        charts.planner_costs(COSTS, value="ms")


def test_one_seed_has_dots_but_no_interval() -> None:
    assert spec(charts.paired_dots(CHANGES[CHANGES["seed"] == 0]))["description"].endswith(
        ": sticky: +10.0%; llmd: −5.0%."
    )
    assert "line: one seed" in spec(charts.latency_vs_capacity(runs(seeds=1)))["title"]["subtitle"][0]


# --- lanes ----------------------------------------------------------------------------------------


def test_phases_follow_each_other_and_sum_to_the_turn_exactly(history: History) -> None:
    rows = charts.phases(history)
    assert len(rows) == len(PHASES) * len(history.turns)
    assert (rows["begin_ps"] <= rows["end_ps"]).all()
    follows = rows["begin_ps"].shift(-1)[rows["phase"] != "tool"] == rows["end_ps"][rows["phase"] != "tool"]
    assert follows.all()
    by_turn = rows.assign(ps=rows["end_ps"] - rows["begin_ps"]).groupby(["session", "turn"])["ps"].sum()
    for turn in history.turns:
        lasted = turn.tool_end_ps - turn.arrived_ps
        assert by_turn[history.session_ids[turn.session], turn.turn] == lasted
    # A session does one thing at a time, over its turns too.
    ordered = rows.sort_values(["session", "begin_ps", "end_ps"])
    same = ordered["session"] == ordered["session"].shift()
    assert (ordered["begin_ps"] >= ordered["end_ps"].shift())[same].all()


def test_a_lane_is_cut_at_the_window_and_sessions_come_in_their_order(history: History) -> None:
    drawn = spec(charts.swimlane(history, first=10.5, seconds=20, sessions=3))
    bars = drawn["layer"][0]
    (rows,) = [rows for rows in drawn["datasets"].values() if "phase" in rows[0]]
    assert bars["encoding"]["y"]["sort"] == [f"swe-lite-{k:04d}" for k in range(3)]
    assert min(row["begin_s"] for row in rows) == 10.5
    assert max(row["end_s"] for row in rows) == 30.5


def test_a_stay_ends_where_its_session_moves_or_waits_in_the_pool() -> None:
    rows = table(
        "session node phase begin_s end_s",
        ("a", "n0", "decode", 0, 1),
        ("a", "n0", "tool", 1, 2),
        ("a", "n0", "pool wait", 2, 3),
        ("a", "n0", "decode", 3, 4),
        ("a", "n1", "decode", 4, 5),
        ("b", "n1", "decode", 0, 1),
    )
    stays = lanes._stays(rows)[["session", "node", "begin_s", "end_s"]].values.tolist()
    assert stays == [["a", "n0", 0, 2], ["a", "n0", 3, 4], ["a", "n1", 4, 5], ["b", "n1", 0, 1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"first": -1}, "first is -1"),
        ({"seconds": 0}, "seconds is 0"),
        ({"sessions": 0}, "sessions is 0"),
        ({"first": 1e6}, "no session runs between 1,000,000 and 1,000,120 s; the last turn ends at"),
    ],
)
def test_a_window_without_sessions_is_refused(history: History, arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        charts.swimlane(history, **arguments)


def test_a_history_without_turns_has_no_phases_and_no_lanes() -> None:
    empty = History({"policy": "tao"}, ["a"], ["n0"])
    assert charts.phases(empty).empty
    with pytest.raises(InputError, match="the last turn ends at 0 s"):
        charts.swimlane(empty)


# --- charts that a panel updates: misses, dots per seed, places -------------------------------------


EDGES = 6  # px of the margins and borders of a card


def rendered(chart: alt.TopLevelMixin) -> tuple[int, int]:
    """The size in px of the picture of a chart."""
    vl_convert = pytest.importorskip("vl_convert")
    picture = vl_convert.vegalite_to_png(spec(chart), scale=1)
    return int.from_bytes(picture[16:20], "big"), int.from_bytes(picture[20:24], "big")


def only_the_parameter_differs(one: alt.TopLevelMixin, other: alt.TopLevelMixin) -> bool:
    """Whether two charts are the same but for the value of their parameter, and that differs."""
    specs = spec(one), spec(other)
    before, after = (drawn.pop("params")[0]["value"] for drawn in specs)
    return specs[0] == specs[1] and before != after


def missed(snapshots: int = 3, less: int = 0) -> pd.DataFrame:
    """Rows as `tao.quality.misses` makes them: dp is as good as the optimum, bfd misses it on the first."""
    columns = "snapshot planner credit ready tokens most below proven states placed_by"
    rows: list[tuple[Any, ...]] = []
    for n in range(1, snapshots + 1):
        rows.append((n, "dp", 0, 0, 0, 1_000, False, n != 3, 10 ** min(n, 5), "bfd" if n == 2 else "dp"))
        rows.append((n, "bfd", less if n == 1 else 0, 0, 5, 1_000, n == 1, True, 0, "bfd"))
    return table(columns, *rows)


def test_a_missed_optimum_is_told_in_kind_size_and_words() -> None:
    value = charts.misses_value(missed(less=250), 200_000, 2)
    rows = {(row["planner"], row["n"]): row for row in value["rows"]}
    assert len(rows) == 6
    assert rows["bfd", 1]["words"] == "bfd on snapshot 1: 250 of 1,000 tokens of credit less than the optimum"
    kinds = [rows[key]["kind"] for key in (("bfd", 1), ("dp", 1), ("dp", 3))]
    assert kinds == ["less credit (larger: a larger share)", "as good as the optimum", "optimum not proven"]
    tie = charts.misses_value(missed(less=0), 200_000)["rows"][1]
    assert tie["words"] == "bfd on snapshot 1: as much credit as the optimum, 5 tokens less"
    more = charts.misses_value(missed(less=900), 200_000)["rows"][1]
    assert more["size"] > rows["bfd", 1]["size"] > tie["size"] > rows["dp", 1]["size"]
    assert [row["words"] for row in value["counts"]] == ["0 of 3", "1 of 3"]
    assert [row["over"] for row in value["states"]] == [False, True, False]
    assert value["states"][1]["words"] == "dp on snapshot 2: more than 200,000, so bfd placed"
    assert (value["budget"], value["chosen"]) == (200_000, 2)


def test_misses_of_a_preset_are_those_that_quality_finds() -> None:
    found = quality.misses([library.load("dp_beats_short_first")])
    rows = charts.misses_value(found, 200_000)["rows"]
    assert {row["planner"]: row["kind"] != "as good as the optimum" for row in rows} == dict(
        zip(found["planner"], found["below"], strict=True)
    )


def test_misses_are_drawn_once_and_then_updated() -> None:
    one, other = charts.misses(missed(less=250), 200_000), charts.misses(missed(less=90), 1_000, 3)
    assert only_the_parameter_differs(one, other)
    drawn = spec(one)
    assert drawn["background"] == "white"
    assert "one mark per planner and snapshot" in drawn["description"]
    assert drawn["title"]["subtitle"].startswith("recomputed; below")
    assert spec(charts.misses(missed(), 9, label=""))["title"]["subtitle"].startswith("below")
    width, height = rendered(charts.misses(missed(snapshots=35), 200_000))
    card = charts.misses_size(2, 35)
    assert width <= card[0] - EDGES
    assert height <= card[1] - EDGES
    with pytest.raises(InputError, match="misses was given 5,002 rows and draws at most 5,000"):
        charts.misses(missed(2_501), 9)


def raced(changes: dict[str, list[float]], metric: str = "task_latency_s") -> Comparison:
    """A race in which tao has 100 on every seed and others that much more, as shares."""
    rows = [
        (policy, seed, 100.0 * (1 + change))
        for policy, each in ({"tao": [0.0] * len(next(iter(changes.values())))} | changes).items()
        for seed, change in enumerate(each)
    ]
    return Comparison({}, table(f"policy seed {metric}", *rows))


def test_a_dot_per_seed_and_their_mean_with_a_verdict() -> None:
    means, dots = charts.seed_rows(
        raced({"sticky": [0.1, 0.2, 0.3], "llmd": [-0.1, 0.1, 0.0]}), "task_latency_s"
    )
    assert [(row["policy"], row["verdict"]) for row in means] == [
        ("sticky", seeds.UNCLEAR),
        ("llmd", seeds.UNCLEAR),
    ]
    assert means[0]["mean"] == pytest.approx(0.2)
    assert means[0]["lo"] < 0 < means[0]["hi"]
    assert [dot["x"] for dot in dots if dot["slot"] == 0] == pytest.approx([0.1, 0.2, 0.3])
    assert [dot["words"] for dot in dots[:2]] == ["sticky, seed 0: +10.0%", "sticky, seed 1: +20.0%"]


@pytest.mark.parametrize(
    ("metric", "verdict"), [("task_latency_s", seeds.BETTER), ("decode_tok_s", seeds.WORSE)]
)
def test_the_verdict_knows_which_way_a_metric_goes(metric: str, verdict: str) -> None:
    race = raced({"sticky": [0.2, 0.21, 0.22]}, metric)
    assert charts.seed_rows(race, metric)[0][0]["verdict"] == seeds.verdict(race, "sticky", metric) == verdict


def test_one_seed_is_a_dot_without_an_interval() -> None:
    ((mean,), dots) = charts.seed_rows(raced({"sticky": [0.1]}), "task_latency_s")
    assert (mean["lo"], mean["hi"], mean["verdict"]) == (mean["mean"], mean["mean"], seeds.UNCLEAR)
    assert mean["change"] == "+10.0%"
    assert len(dots) == 1


def test_dots_are_drawn_once_and_then_updated_and_small_changes_stay_small() -> None:
    small, large = (
        charts.seed_rows(raced({"sticky": each}), "task_latency_s") for each in ([0.001, 0.002], [0.5, 0.7])
    )
    assert only_the_parameter_differs(charts.seed_dots(*small, 3), charts.seed_dots(*large, 3))
    value = charts.seed_dots_value(*small)
    assert value["least"] <= -seeds.LEAST_REACH
    assert value["most"] >= seeds.LEAST_REACH
    assert charts.seed_dots_value(*large)["most"] > 0.7
    drawn = spec(charts.seed_dots(*large, 3))
    assert "mean with its 95 % interval" in drawn["description"]
    assert drawn["background"] == "white"
    width, height = rendered(charts.seed_dots(*large, 3))
    card = charts.seed_dots_size(3)
    assert width <= card[0] - EDGES
    assert height <= card[1] - EDGES


@pytest.fixture(scope="module")
def played(history: History) -> Playback:
    return playback(history, 50)


def test_places_follow_each_other_and_end_at_the_room(played: Playback) -> None:
    value = charts.places_value(played, 20)
    for name in played.node_ids:
        rows = [row for row in value["bars"] if row["node"] == name]
        assert rows[0]["lo"] == 0
        assert [row["lo"] for row in rows[1:]] == [row["hi"] for row in rows[:-1]]
        assert rows[-1]["hi"] == played.room_tokens
        assert all(f"{row['hi'] - row['lo']:,} tokens" in row["words"] for row in rows)
    assert len(value["edges"]) == len(PARTS) + 1
    assert all(len(edge) == 21 for edge in value["edges"])
    assert all(low <= high for k in range(4) for low, high in zip(*value["edges"][k : k + 2], strict=True))


def test_places_beyond_the_room_are_drawn_beyond_it() -> None:
    crowded = simulate("swe-lite", "sticky", nodes=1, workers=8, tasks=8, capacity_tokens=40_000)
    crowd = playback(crowded, 50)
    k = max(range(50), key=lambda k: crowd.over(k, 0))
    assert crowd.over(k, 0) > 0
    value = charts.places_value(crowd, k)
    assert max(row["hi"] for row in value["bars"]) == crowd.used(k, 0) == value["reach"]
    assert value["most"] == value["reach"] > value["room"]
    assert all(row["part"] not in ("free", "cached") for row in value["bars"])


def test_a_step_changes_the_parameter_of_places_and_nothing_else(played: Playback) -> None:
    assert only_the_parameter_differs(charts.places(played, 3), charts.places(played, 40))
    drawn = spec(charts.places(played, 3))
    assert drawn["background"] == "white"
    for word in ("thick line", "pool (solid)", "queues (dashed)"):
        assert word in drawn["description"]


@pytest.mark.parametrize("moment", [0, 20, 49])
def test_places_fit_their_card_at_every_moment(played: Playback, moment: int) -> None:
    width, height = rendered(charts.places(played, moment))
    card = charts.PLACES_SIZE
    assert card[0] - 40 <= width <= card[0] - EDGES
    assert card[1] - 40 <= height <= card[1] - EDGES
    assert card[0] <= 846  # px that a projector 1280 px wide leaves beside the list of files


def test_places_have_a_color_a_name_and_readable_letters_each() -> None:
    assert set(player.COLORS) == set(player.NAMES) == {*PARTS, "free", "pool"}
    assert len(set(player.COLORS.values())) == len(player.COLORS)
    for part in PARTS:
        assert contrast(style.INK, player.COLORS[part]) >= 4.5


def test_too_many_moments_are_refused(history: History) -> None:
    with pytest.raises(InputError, match="places was given 5,004 rows and draws at most 5,000"):
        charts.places(playback(history, 834))
