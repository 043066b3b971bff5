"""Checks of notebook 08: how much memory is just enough, and where TAO loses; both are simulated anew."""

from __future__ import annotations

from typing import Any

from tao.charts.race import KNEE, RATIO
from tao.charts.seeds import verdict
from tao.checks import InputError, shown
from tao.comparisons import compare
from tao.exercises.base import judge
from tao.tuning import METRICS, Setting

SEEDS = 4  # ours: enough for a mean of a ratio
FEWEST_SEEDS = 4  # ours: an interval of fewer hardly excludes anything
MOST_WORKERS = 64  # ours: a check is to take a second


def check_knee(answer: Any) -> None:
    """Judge a KV capacity per node, in tokens, that puts 24 agents of swe-lite on two nodes at the knee.

    >>> check_knee(...)
    not answered yet
    """

    def fault(said: Any) -> str:
        try:
            setting = Setting(workers=24, capacity_tokens=int(said), seeds=SEEDS)
            ratio = float(compare(**(setting.arguments() | {"policies": "tao"})).runs[RATIO].mean())
        except InputError as e:
            return f"That cannot be run: {e}"
        if KNEE[0] <= ratio <= KNEE[1]:
            return ""
        far = "more" if ratio > KNEE[1] else "less"
        return f"Capacity over live contexts is {ratio:.2f} there, {far} than at the knee."

    judge(answer, fault, "Here a little more memory is worth most.")


def check_loss(answer: Any) -> None:
    """Judge a `Setting` on terminal-bench in which a rival beats TAO in task latency, by the 95 % interval.

    >>> check_loss("slow tools")
    not yet: Give a Setting, such as slow.setting after you have pressed Run.
    """

    def fault(said: Any) -> str:
        if not isinstance(said, Setting):
            return "Give a Setting, such as slow.setting after you have pressed Run."
        if said.workload != "terminal-bench":
            return f"Its workload is {shown(said.workload)}; you have seen that, so take terminal-bench."
        if said.seeds < FEWEST_SEEDS:
            return f"An interval over so few seeds says little; take at least {FEWEST_SEEDS}."
        if said.workers > MOST_WORKERS:
            return f"It works with fewer workers too; take at most {MOST_WORKERS}, so that checking is quick."
        try:
            race = compare(**said.arguments())
        except InputError as e:
            return f"That cannot be run: {e}"
        if not any(verdict(race, rival, METRICS[0]) == "TAO worse" for rival in said.rivals):
            return "None of those rivals beats TAO there: no interval lies wholly on their side."
        return ""

    judge(answer, fault, "Know this setting before you deploy anything.")
