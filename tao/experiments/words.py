"""A report in words: the cells of its table, and what has to be said about them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tao.experiments.reports import Report
from tao.output import number

MOST = 12  # ours: of more settings the sizes are left out
HEAD = (
    "setting",
    "C/live",
    "metric",
    "against",
    "reported",
    "simulated",
    "change [95 %]",
    "agrees",
    "TAO is",
)
_CLAIMS = {"at_most": "at most ", "at_least": "at least ", "within": "within "}


def intro(report: Report) -> list[str]:
    """What was run, and what the columns are."""
    settings = [
        f"{name}: {s['workload']}, {s['tasks']} sessions, {s['workers']} workers on {s['nodes']} x "
        f"{s['profile']}, {s['capacity_tokens']:,} KV tokens each"
        for name, s in report.settings.items()
    ]
    return [
        *_once(f"{p.experiment}: {p.what}" for p in report.presets),
        *(settings if len(settings) <= MOST else ()),
        "reported: the TAO paper, one run, no interval; baseline -> TAO, change",
        f"simulated: our model, {report.seeds} seeds; the change is paired by seed, with its 95 % interval; "
        "C/live: KV capacity / live contexts (knee: 0.85 to 1.2)",
    ]


def cells(report: Report) -> list[tuple[str, ...]]:
    """The table's rows under `HEAD`; of the search for losses the clear ones, the greatest losses first."""
    rows = report.table
    if report.presets[0].experiment == "losses":
        rows = rows[rows["tao_is"] != "unclear"].assign(size=rows["simulated_change"].abs())
        rows = rows.sort_values(["tao_is", "size"], ascending=False)
    return [_cells(row) for row in rows.itertuples()]


def _cells(row: Any) -> tuple[str, ...]:
    sides = [row.arm if row.arm != "tao" else "", row.baseline]
    reported = [_arrow(row.metric, row.reported_baseline, row.reported_tao)]
    if row.reported_change == row.reported_change:
        reported.append(_CLAIMS.get(row.claim, "") + _change(row.reported_change, row.metric, row.absolute))
    return (
        row.preset,
        f"{row.capacity_over_live:.2f}",
        row.metric,
        " / ".join(side for side in sides if side),
        ", ".join(text for text in reported if text),
        _arrow(row.metric, row.simulated_baseline, row.simulated_tao),
        _spread(row),
        row.agrees,
        row.tao_is,
    )


def _arrow(metric: str, baseline: float, tao: float) -> str:
    return " -> ".join(_value(metric, x) for x in (baseline, tao) if x == x)


def _value(metric: str, x: float) -> str:
    return f"{x:.2%}" if "share" in metric or metric.endswith("_rate") else number(x)


def _spread(row: Any) -> str:
    if not row.baseline:
        return f"[{_value(row.metric, row.lo)}, {_value(row.metric, row.hi)}]" if row.lo == row.lo else ""
    if row.simulated_change != row.simulated_change:
        return "-"
    mean, lo, hi = (_change(x, row.metric, row.absolute) for x in (row.simulated_change, row.lo, row.hi))
    return f"{mean} [{lo}, {hi}]" if row.lo == row.lo else mean


def _change(x: float, metric: str, absolute: bool) -> str:
    if not absolute:
        return f"{x:+.1%}"
    return f"{1000 * x:+.1f} ms" if metric.endswith("_s") else f"{100 * x:+.2f} points"


def remarks(report: Report) -> list[str]:
    """How many rows agree, are won and lost; what cannot be shown; our choices; where things come from."""
    table, settings = report.table, report.settings.values()
    agree = [f"{(table['agrees'] == word).sum()} {word}" for word in ("yes", "no", "unclear")]
    verdicts = [f"{word} in {(table['tao_is'] == word).sum()}" for word in ("better", "worse", "unclear")]
    told = ((r["preset"], f"{r['metric']}: {r['note']}") for r in table.to_dict("records") if r["note"])
    return [
        f"agrees with what is reported: {', '.join(agree)}; TAO is {', '.join(verdicts)}",
        *_once(f"{p.experiment} cannot show: {p.cannot}" for p in report.presets),
        *_grouped((p.name, f"our choice: {p.ours}") for p in report.presets if p.ours),
        *_once(f"profile {s['profile']}: {s['provenance'] or 'origin not stated'}" for s in settings),
        *_once(f"known error of {s['profile']}: {s['known_error'] or 'not stated'}" for s in settings),
        *_grouped(told),
        *(f"note: {note}" for note in report.notes),
    ]


def _grouped(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Each line once, with the presets that it is about."""
    names: dict[str, dict[str, None]] = {}
    for name, line in pairs:
        names.setdefault(line, {})[name] = None
    return [
        f"{line} ({', '.join(of) if len(of) <= 4 else f'{len(of)} settings'})" for line, of in names.items()
    ]


def _once(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(lines))
