"""See, question and tune how inference for many LLM agents is scheduled.

>>> import tao
>>> tao.plan(tao.load("dp_beats_short_first")).value.credit
16791
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tao import explain
    from tao.comparisons import compare
    from tao.library import load, snapshot_names
    from tao.live.connection import connect
    from tao.metrics import measure
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
    from tao.planners import PLANNERS, plan
    from tao.simulator import simulate
    from tao.sweeps import sweep
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

_HOMES = {"PLANNERS": "planners", "load": "library", "plan": "planners", "snapshot_names": "library"}
_HOMES |= {"compare": "comparisons", "connect": "live", "measure": "metrics", "ready": "warmup"}
_HOMES |= {"simulate": "simulator", "sweep": "sweeps"}


def __getattr__(name: str) -> object:
    """Imported when first asked for: a simulated server, say, starts in half the time without numba."""
    if name == "explain":
        return import_module("tao.explain")
    if name in __all__:
        return getattr(import_module(f"tao.{_HOMES.get(name, 'model')}"), name)
    raise AttributeError(f"module 'tao' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
