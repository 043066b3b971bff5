"""Checks and results of notebook 09: what agreed, what was found, who waited, what was not told."""

from __future__ import annotations

from typing import Any

from tao.charts import style
from tao.exercises.base import judge
from tao.history import History
from tao.metrics import COMPARED, measure

ROWS = {style.words(name, unit=False): name for name in COMPARED}
"""What a run and a simulation of it are compared in, in words, and the names of these metrics."""


def agrees_best(measured: History, simulated: History | None) -> str:
    """In which of `ROWS` a run and its simulation differ least, as a share of what was simulated.

    >>> from tao.timeline import short_sessions, small_run
    >>> quick, slow = (small_run(short_sessions(n, seed=1)) for n in (1, 2))
    >>> agrees_best(quick, slow)
    'prefix hit rate'
    """
    real, model = measure(measured), {} if simulated is None else measure(simulated)
    off = {
        words: abs(had / would - 1)
        for words, name in ROWS.items()
        if (had := real[name]) is not None and (would := model.get(name))
    }
    return min(off, key=lambda words: off[words]) if off else "none of them"


def found_percent(history: History) -> int:
    """How much of the promised cache credit was found there, percent; 0 if none was promised."""
    share = measure(history)["credit_realized"]
    return 0 if share is None else round(100 * share)


def check_waited(answer: Any, history: History) -> None:
    """The name of the session that waited longest for a place, all its turns together.

    >>> from tao.timeline import short_sessions, small_run
    >>> check_waited("s1", small_run(short_sessions(6, seed=1)))
    not yet: Another one waited longer.
    """

    def fault(said: Any) -> str:
        waited = dict.fromkeys(history.session_ids, 0)
        for turn in history.turns:
            waited[history.session_ids[turn.session]] += turn.scheduled_ps - turn.arrived_ps
        if said not in waited:
            return f"The sessions are called {', '.join(list(waited)[:3])} and so on."
        return "" if waited[said] == max(waited.values()) else "Another one waited longer."

    judge(answer, fault, "Run it again: is it the same one?")


def check_untold(answer: Any) -> None:
    """What the prefix hit rate of a run is whose server does not tell cached tokens.

    >>> check_untold(0)
    not yet: 0 would say that nothing was found in any cache. The server has said nothing at all.
    """

    def fault(said: Any) -> str:
        if said is None:
            return ""
        if said == 0:
            return "0 would say that nothing was found in any cache. The server has said nothing at all."
        return "Nobody can know a number that the server did not tell."

    judge(answer, fault, "Unknown is unknown, and never zero.")
