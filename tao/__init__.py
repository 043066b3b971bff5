"""See, question and tune how inference for many LLM agents is scheduled.

>>> import tao
>>> tao.plan(tao.load("dp_beats_short_first")).value.credit
16791
"""

from tao import explain
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
    "explain",
    "load",
    "measure",
    "plan",
    "ready",
    "simulate",
    "snapshot_names",
]


def __getattr__(name: str) -> object:
    """`tao.compare` and `tao.measure` bring pandas in, so they are imported when first asked for."""
    if name in ("compare", "measure"):
        from tao import metrics

        return getattr(metrics, name)
    raise AttributeError(f"module 'tao' has no attribute {name!r}")
