"""Charts: a tidy DataFrame in, an Altair chart out.

One style for all: fixed sizes, white background (readable in dark themes too), a palette that color-blind
people can tell apart, a second cue beside color, and a description. A policy looks the same in every chart.
A chart that a panel updates reads its rows from a parameter, so that new rows move the marks without
drawing the chart again.
"""

from tao import _altair  # noqa: F401 # first
from tao.charts.calls import LIFE_SIZE, call_life, call_life_value
from tao.charts.decay import CREDIT_SIZE, credit_curves, credit_curves_value
from tao.charts.grid import GRID_SIZE, dp_grid, dp_grid_value
from tao.charts.lanes import STEPPED_SIZE, phases, stepped_lanes, stepped_lanes_value, swimlane
from tao.charts.live import cache_credit, cache_credit_value, first_tokens, first_tokens_value
from tao.charts.misses import misses, misses_size, misses_value
from tao.charts.nodes import COLD, NODE_HEIGHT, PARTS, WARM, node_bars, node_bars_size, node_bars_value
from tao.charts.planning import PLANNER_LOOKS, differences, planner_costs, rounding_loss
from tao.charts.player import PLACES_SIZE, places, places_value
from tao.charts.race import latency_vs_capacity, paired_dots, win_loss_map
from tao.charts.readiness import (
    PREDICTORS,
    prediction_errors,
    readiness_gain,
    readiness_sweep,
    reliability,
)
from tao.charts.recordings import beside, class_shares, context_fan, duration_curves, turn_histogram
from tao.charts.seeds import seed_dots, seed_dots_size, seed_dots_value, seed_rows
from tao.charts.shares import cost_bars, wait_by_size
from tao.charts.stale import stale_plan, stale_plan_size, stale_plan_value
from tao.charts.style import GREY, INK, LINE, LOOKS, MAX_ROWS, NEVER_MS, PALETTE, Look, live, looks

__all__ = [
    "COLD",
    "CREDIT_SIZE",
    "GREY",
    "GRID_SIZE",
    "INK",
    "LIFE_SIZE",
    "LINE",
    "LOOKS",
    "MAX_ROWS",
    "NEVER_MS",
    "NODE_HEIGHT",
    "PALETTE",
    "PARTS",
    "PLACES_SIZE",
    "PLANNER_LOOKS",
    "PREDICTORS",
    "STEPPED_SIZE",
    "WARM",
    "Look",
    "beside",
    "cache_credit",
    "cache_credit_value",
    "call_life",
    "call_life_value",
    "class_shares",
    "context_fan",
    "cost_bars",
    "credit_curves",
    "credit_curves_value",
    "differences",
    "dp_grid",
    "dp_grid_value",
    "duration_curves",
    "first_tokens",
    "first_tokens_value",
    "latency_vs_capacity",
    "live",
    "looks",
    "misses",
    "misses_size",
    "misses_value",
    "node_bars",
    "node_bars_size",
    "node_bars_value",
    "paired_dots",
    "phases",
    "places",
    "places_value",
    "planner_costs",
    "prediction_errors",
    "readiness_gain",
    "readiness_sweep",
    "reliability",
    "rounding_loss",
    "seed_dots",
    "seed_dots_size",
    "seed_dots_value",
    "seed_rows",
    "stale_plan",
    "stale_plan_size",
    "stale_plan_value",
    "stepped_lanes",
    "stepped_lanes_value",
    "swimlane",
    "turn_histogram",
    "wait_by_size",
    "win_loss_map",
]
