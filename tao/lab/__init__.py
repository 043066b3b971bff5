"""The readiness lab: recorded tool calls replayed through the predictors, and how well they did.

Start with `ToolCalls`, replay them with `decisions`, and ask the tables of `errors` and `scores` of that.
"""

from tao.lab.accuracy import PAPER, ablation, errors, ladder, latency
from tao.lab.calls import ToolCalls
from tao.lab.replay import EVERY_S, decisions
from tao.lab.scoring import chances, losses, paired, reliability, scores, sweep

__all__ = [
    "EVERY_S",
    "PAPER",
    "ToolCalls",
    "ablation",
    "chances",
    "decisions",
    "errors",
    "ladder",
    "latency",
    "losses",
    "paired",
    "reliability",
    "scores",
    "sweep",
]
