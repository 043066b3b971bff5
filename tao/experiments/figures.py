"""The figures that the TAO paper reports, read from `data/reported`."""

from __future__ import annotations

import csv
from functools import cache
from typing import NamedTuple

from tao import library

Key = tuple[str, str, str, str]  # preset, metric, arm, against


class Figure(NamedTuple):
    """A reported figure: values of TAO and of the best baseline, and the change between them, where given.

    `claim` says how the change is meant: "change" (that much, in that direction), "at_most", "at_least" or
    "within" (either way). A share may be given as `successes` `of` so many.
    """

    baseline: str = ""
    baseline_value: float | None = None
    tao_value: float | None = None
    change: float | None = None
    claim: str = ""
    successes: int | None = None
    of: int | None = None
    note: str = ""


@cache
def reported() -> dict[Key, Figure]:
    """All reported figures by (preset, metric, arm, against); of a plain value the last two are empty.

    >>> reported()["E1-deepseek-swe-lite-64", "task_latency_s", "tao", "best"].tao_value
    185.41
    """
    figures: dict[Key, Figure] = {}
    for row in _rows("changes"):
        baseline, tao, change = (_number(row[name]) for name in ("baseline_value", "tao_value", "change"))
        figure = Figure(row["baseline"], baseline, tao, change, row["claim"], note=row["note"])
        figures[row["preset"], row["metric"], row["arm"], row["against"]] = figure
    for row in _rows("values"):
        count, of = (int(row[name]) if row[name] else None for name in ("count", "of"))
        value = count / of if count is not None and of else _number(row["value"])
        figure = Figure(tao_value=value, successes=count, of=of, note=row["note"])
        figures[row["preset"], row["metric"], "", ""] = figure
    return figures


def _rows(name: str) -> list[dict[str, str]]:
    with (library.folder("data") / "reported" / f"{name}.csv").open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def _number(text: str) -> float | None:
    return float(text) if text else None
