"""Settings for every test."""

from __future__ import annotations

import pytest
import strategies

from tao import assign


@pytest.fixture(autouse=True, scope="session")
def small_tables_where_nothing_is_compiled():
    """Interpreted, large tables take long; coarser bounds give the same plan."""
    if strategies.INTERPRETED:
        assign.BOUND_CELLS = 3_000
