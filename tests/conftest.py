"""Settings for every test."""

from __future__ import annotations

import hypothesis
import pytest
import strategies

from tao import assign

hypothesis.settings.register_profile("tao", deadline=None)  # how fast an example is depends on the machine
hypothesis.settings.load_profile("tao")


@pytest.fixture(autouse=True, scope="session")
def small_tables_where_nothing_is_compiled():
    """Interpreted, large tables take long; coarser bounds give the same plan."""
    if strategies.INTERPRETED:
        assign.BOUND_CELLS = 3_000
