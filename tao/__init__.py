"""See, question and tune how inference for many LLM agents is scheduled.

>>> import tao
>>> tao.plan(tao.load("dp_beats_short_first")).value.credit
16791
"""

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
    "load",
    "plan",
    "ready",
    "simulate",
    "snapshot_names",
]
