"""Terminal-Bench's `results.json`, of one trial or of a whole run: totals only, so nothing to import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tao.traces.builder import Builder
from tao.traces.files import Source

TITLE = "Terminal-Bench results"
_TRIAL = ("is_resolved", "failure_mode", "parser_results", "recording_path", "total_input_tokens")


def fits(row: Mapping[str, Any]) -> bool:
    """Whether a document is the results of a trial or of a run."""
    return _trial(row) or _run(row)


def read(source: Source, into: Builder) -> None:
    """Says why nothing of it is imported."""
    what = "one trial's" if _trial(source.document()) else "a run's"
    source.ledger.unread(f"{what} totals, no turns; give the agent's log or cast of the trial")


def _trial(row: Mapping[str, Any]) -> bool:
    return sum(name in row for name in _TRIAL) >= 2


def _run(row: Mapping[str, Any]) -> bool:
    results = row.get("results")
    first = results[0] if isinstance(results, list) and results else None
    return isinstance(results, list) and ("n_resolved" in row or (isinstance(first, dict) and _trial(first)))
