"""Tool times for logs that tell none, by command class."""

from __future__ import annotations

import numpy as np

from tao.workload_params import STAND_IN_SLEEP_S, STAND_IN_TIMEOUT_S, STAND_IN_TOOLS
from tao.workloads import draw


def drawn(tool_class: str, asked_s: float | None, rng: np.random.Generator) -> tuple[float, float | None]:
    """(seconds, seconds asked of a `sleep`) of a call of that class.

    >>> drawn("sleep", 90.0, np.random.default_rng(0))
    (60.0, 90.0)
    """
    if tool_class == "sleep":
        if asked_s is None:
            asked_s = STAND_IN_SLEEP_S[rng.integers(len(STAND_IN_SLEEP_S))]
        return min(asked_s, STAND_IN_TIMEOUT_S), asked_s
    seconds = draw(STAND_IN_TOOLS.get(tool_class, STAND_IN_TOOLS[""]), rng)
    if tool_class != "subagent":
        seconds = min(seconds, STAND_IN_TIMEOUT_S)
    return round(seconds, 6), asked_s
