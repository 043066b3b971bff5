"""See, question and tune how inference for many LLM agents is scheduled.

>>> import tao
>>> tao.plan(tao.load("dp_beats_short_first")).value.credit
16791
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tao.library import load, snapshot_names
from tao.model import (
    CacheNote,
    Gap,
    InputError,
    Node,
    Params,
    Placement,
    Plan,
    Session,
    Snapshot,
    ToolCall,
    Value,
)

if TYPE_CHECKING:
    from tao import explain
    from tao.live.connection import connect
    from tao.planners import PLANNERS, plan
    from tao.simulator import simulate
    from tao.warmup import ready

__version__ = "0.1.0"

__all__ = [
    "PLANNERS",
    "CacheNote",
    "Gap",
    "InputError",
    "Node",
    "Params",
    "Placement",
    "Plan",
    "Session",
    "Snapshot",
    "ToolCall",
    "Value",
    "compare",
    "connect",
    "explain",
    "load",
    "measure",
    "plan",
    "ready",
    "simulate",
    "snapshot_names",
    "sweep",
]


def __getattr__(name: str) -> object:
    """These bring numba, pandas or the network in, so they are imported when first asked for."""
    homes = {"PLANNERS": "planners", "plan": "planners", "simulate": "simulator", "ready": "warmup"}
    homes |= {"compare": "comparisons", "connect": "live", "measure": "metrics", "sweep": "sweeps"}
    if name == "explain":
        return import_module("tao.explain")
    if name in homes:
        return getattr(import_module(f"tao.{homes[name]}"), name)
    raise AttributeError(f"module 'tao' has no attribute {name!r}")


def __dir__() -> list[str]:
    """For completion, which would miss what is not imported yet."""
    return sorted({*globals(), *__all__})
