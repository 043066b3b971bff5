"""The settings of a race, as code, tables and sentences; pure, no widgets."""

from __future__ import annotations

from typing import Any

from tao.charts import seeds, style
from tao.charts.race import KNEE, RATIO
from tao.comparisons import Comparison
from tao.panels.table import Table
from tao.tuning import METRICS, Setting


def what(s: Setting) -> str:
    """The setting in a sentence."""
    machines = f"{s.nodes} nodes of {s.capacity_tokens:,} tokens"
    tuned = f"half-life {s.half_life_s:g} s, horizon {s.horizon_s:g} s, history by {s.statistic}"
    agents = f"{s.workload}: {s.tasks} sessions, {s.workers} at a time"
    return f"{agents}, on {machines}; tool delay: {s.delay}; {tuned}."


def headline(race: Comparison, metric: str) -> str:
    """Against how many rivals TAO is better, worse, or neither, by intervals over seeds."""
    found = [row["verdict"] for row in seeds.seed_rows(race, metric)[0]]
    counts = {kind: found.count(kind) for kind in (seeds.BETTER, seeds.WORSE, seeds.UNCLEAR)}
    said = ", ".join(f"{kind} {_than(kind)} {n}" for kind, n in counts.items() if n)
    count = len(race.settings["seeds"])
    return f"{style.words(metric, unit=False).capitalize()}, {count} seed{'s' * (count > 1)}: {said}."


def _than(kind: str) -> str:
    return "against" if kind == seeds.UNCLEAR else "than"


def knee(race: Comparison) -> str:
    """Where the setting lies: memory over what the running sessions hold, and what to expect there."""
    ratio = float(race.runs.query("policy == 'tao'")[RATIO].mean())
    if ratio > KNEE[1]:
        where = "so there are fewer sessions than at the knee: they fit, and little is to decide"
    elif ratio < KNEE[0]:
        where = "so there are more sessions than at the knee: somebody always waits"
    else:
        where = "which is the knee: a little more memory changes a lot"
    about = f"KV capacity over live contexts is {ratio:.2f}, {where} ({KNEE[0]} to {KNEE[1]})."
    return f"{about} All figures are simulated."


def means(race: Comparison) -> Table:
    """The mean of each metric with its 95 % interval, policy by policy."""
    summary = race.summary()
    rows = []
    for policy in race.runs["policy"].unique():
        of = summary[summary["policy"] == policy].set_index("metric")
        rows.append((str(policy), *(_interval(of.loc[metric]) for metric in METRICS)))
    return Table("Means over seeds, 95 % interval (simulated)", ("policy", *map(style.words, METRICS)), rows)


def changes(race: Comparison) -> Table:
    """Each rival's change against TAO, in every metric, and who is better: losses like wins."""
    rows = [
        (row["policy"], style.words(metric, unit=False), row["change"], row["verdict"])
        for metric in METRICS
        for row in seeds.seed_rows(race, metric)[0]
    ]
    return Table("Change against tao, all metrics", ("policy", "metric", "mean (95 % interval)", "who"), rows)


def seed_table(race: Comparison, metric: str) -> Table:
    """The figure as a table: the change of every rival on every seed."""
    wide = race.differences(metric, style.OURS).pivot(index="policy", columns="seed", values="change")
    wide = wide.reindex([name for name in race.runs["policy"].unique() if name != style.OURS])
    rows = [
        (str(name), *(style.change(x) for x in row))
        for name, row in zip(wide.index, wide.to_numpy(), strict=True)
    ]
    return Table(
        f"Change of {style.words(metric, unit=False)} against tao",
        ("policy", *(f"seed {s}" for s in wide.columns)),
        rows,
    )


def _interval(row: Any) -> str:
    if row["lo"] != row["lo"]:
        return style.number(row["mean"])
    return f"{style.number(row['mean'])} ({style.number(row['lo'])} to {style.number(row['hi'])})"
