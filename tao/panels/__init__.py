"""Panels for notebooks: each shows a decision of the package and lets one step, switch and ask why.

>>> from tao.panels import SnapshotPanel
>>> panel = SnapshotPanel()
>>> panel.step = 2
>>> panel.name, panel.plan.value.credit
('session_177', 17815)
>>> panel.close()
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tao import _altair  # noqa: F401 # first
from tao.panels.base import Panel, guard
from tao.panels.calibration import CalibrationPanel
from tao.panels.dp_grid import DpPanel
from tao.panels.game import GamePanel
from tao.panels.lock import Lock
from tao.panels.planners import PlannersPanel
from tao.panels.player import PlayerPanel
from tao.panels.race import RacePanel
from tao.panels.readiness import ReadinessPanel
from tao.panels.said import Said
from tao.panels.sessions import SessionsPanel
from tao.panels.snapshot import SnapshotPanel
from tao.panels.stale import StalePanel
from tao.panels.stepper import Stepper
from tao.panels.valuation import ValuationPanel

if TYPE_CHECKING:
    from tao.panels.live import LivePanel
    from tao.panels.secret import KeyPanel

__all__ = [
    "CalibrationPanel",
    "DpPanel",
    "GamePanel",
    "KeyPanel",
    "LivePanel",
    "Lock",
    "Panel",
    "PlannersPanel",
    "PlayerPanel",
    "RacePanel",
    "ReadinessPanel",
    "Said",
    "SessionsPanel",
    "SnapshotPanel",
    "StalePanel",
    "Stepper",
    "ValuationPanel",
    "guard",
]


def __getattr__(name: str) -> object:
    """These need the extra `live`."""
    homes = {"KeyPanel": "secret", "LivePanel": "live"}
    if name in homes:
        return getattr(import_module(f"tao.panels.{homes[name]}"), name)
    raise AttributeError(f"module 'tao.panels' has no attribute {name!r}")
