"""Panels for notebooks: each shows a decision of the package and lets one step, switch and ask why.

>>> from tao.panels import SnapshotPanel
>>> panel = SnapshotPanel()
>>> panel.step = 2
>>> panel.name, panel.plan.value.credit
('session_177', 17815)
>>> panel.close()
"""

from tao.panels.base import Panel, guard
from tao.panels.secret import KeyPanel
from tao.panels.snapshot import SnapshotPanel
from tao.panels.stepper import Stepper

__all__ = ["KeyPanel", "Panel", "SnapshotPanel", "Stepper", "guard"]
