"""Settings for every test."""

from __future__ import annotations

import pytest
import strategies

from tao import planners


@pytest.fixture(autouse=True, scope="session")
def small_grids_where_nothing_is_compiled():
    """Interpreted, a grid of millions of cells takes minutes; the search over states gives the same plan."""
    if strategies.INTERPRETED:
        planners.GRID_CELLS = 3_000
