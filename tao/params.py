"""Every constant of valuation, readiness, planning and the `tao` policy, each with its source."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from tao import checks
from tao.checks import InputError, shown

MAX_STATES = 100_000_000  # ours: more would not fit into memory

StaleFrom = Literal["due", "made"]
Statistic = Literal["mean", "median", "survival"]
Planner = Literal["dp", "short_first", "bfd", "worst_fit", "fifo", "exact"]
PauseRule = Literal["smallest", "least_value"]


@dataclass(frozen=True, slots=True)
class Params:
    """Every constant of valuation, readiness and planning; the source of each is beside it in the code.

    Value: `half_life_s` in which cache credit halves; `horizon_s` within which a tool has to return to
    count as ready; `ageing_tokens_per_s` of credit for waiting.
    Readiness: `fallback_s` a tool takes when nothing is known; `stale_s` after which a prediction is void,
    counted from `stale_from` ("due" or "made"); `statistic` of history ("mean",
    "median", or "survival": how long such calls go on that have run as long); `probe_s` for which an
    overdue tool stays ready; `margin_s` added to every prediction.
    Planning: `quantum_tokens` to which dp rounds; `state_budget` beyond which bfd places; `reserve_tokens`
    held for each session to grow into; `share_prefix`: charge the shared prefix once per node.
    The `tao` policy: `planner` it places with, and `pause_rule` for an overfull node ("smallest" first and
    no more than needed; "least_value": those worth least, by the same dynamic program). `decay` and
    `readiness` switch a part of the value off. In simulation: a plan takes `plan_cost_s` +
    `plan_cost_per_state_s` * states, and at least `replan_gap_s` lie between two plans.

    >>> Params(half_life_s=20.0).half_life_s
    20.0
    """

    half_life_s: float = 10.0  # TAO paper: credit halves every 10 s
    horizon_s: float = 1.0  # TAO paper: ready = needed within 1 s
    fallback_s: float = 5.0  # TAO paper: tool time when nothing is known
    stale_s: float = 30.0  # TAO paper: a prediction this far out of date is void
    stale_from: StaleFrom = "due"  # ours: the paper leaves open from when the 30 s count
    statistic: Statistic = "mean"  # TAO paper: averages; the others are ours, better on real tools
    probe_s: float = 1.0  # ours: the paper gives no length for its probe of an overdue tool
    margin_s: float = 0.0  # ours: the paper adds a margin but does not say how large
    quantum_tokens: int = 1024  # ours: the paper does not give its quantum
    state_budget: int = 200_000  # ours: the paper does not give its budget
    reserve_tokens: int = 512  # ours: room to grow, held for every session on a node
    share_prefix: bool = False  # ours: charge the shared prefix once per node, not per session
    ageing_tokens_per_s: float = 0.0  # ours: extra credit per second of waiting, off
    plan_cost_s: float = 0.0005  # ours: simulated cost of a plan = this + plan_cost_per_state_s * states
    plan_cost_per_state_s: float = 1e-7  # ours: in the range of the paper's 1.59 ms mean
    replan_gap_s: float = 0.05  # ours: the least time between two plans
    decay: bool = True  # TAO paper: E3 and E5 switch it off
    readiness: bool = True  # TAO paper: E3 and E5 switch it off
    planner: Planner = "dp"  # TAO paper
    pause_rule: PauseRule = "smallest"  # ours: ThunderAgent's order, but no more than needed

    def __post_init__(self) -> None:
        for name in ("half_life_s", "stale_s"):
            checks.positive(getattr(self, name), f"Params.{name}")
        for name in _PARAM_SECONDS:
            checks.at_least_zero(getattr(self, name), f"Params.{name}")
        for name, least in (("quantum_tokens", 1), ("reserve_tokens", 0)):
            checks.whole(getattr(self, name), f"Params.{name}", least)
        checks.whole(self.state_budget, "Params.state_budget", 1, MAX_STATES)
        checks.one_of(self.stale_from, StaleFrom, "Params.stale_from")
        checks.one_of(self.statistic, Statistic, "Params.statistic")
        checks.one_of(self.planner, Planner, "Params.planner")
        checks.one_of(self.pause_rule, PauseRule, "Params.pause_rule")
        for name in ("share_prefix", "decay", "readiness"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"Params.{name} is {shown(getattr(self, name))}; it must be True or False")

    def changed(self) -> dict[str, object]:
        """The parameters that differ from their defaults.

        >>> Params(half_life_s=20.0).changed()
        {'half_life_s': 20.0}
        """
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}

    @property
    def settings(self) -> Settings:
        """The same as plain numbers, for compiled code."""
        return _settings(self)


class Settings(NamedTuple):
    """`Params` as compiled code takes them: words as their position among the allowed ones."""

    half_life_s: float  # inf without decay
    horizon_s: float
    fallback_s: float
    stale_s: float
    stale_from: int
    statistic: int
    probe_s: float
    margin_s: float
    quantum_tokens: int
    state_budget: int
    reserve_tokens: int
    share_prefix: bool
    ageing_tokens_per_s: float
    plan_cost_s: float
    plan_cost_per_state_s: float
    readiness: bool
    planner: int
    pause_rule: int


@lru_cache(maxsize=256)
def _settings(params: Params) -> Settings:
    numbers: dict[str, object] = {}
    for f in fields(params):
        given = getattr(params, f.name)
        numbers[f.name] = _CODES[f.name].index(given) if f.name in _CODES else type(f.default)(given)  # type: ignore[misc]
    if not params.decay:
        numbers["half_life_s"] = math.inf
    return Settings(**{name: numbers[name] for name in Settings._fields})  # type: ignore[arg-type]


_CODES: dict[str, tuple[str, ...]] = {
    "stale_from": get_args(StaleFrom),
    "statistic": get_args(Statistic),
    "planner": get_args(Planner),
    "pause_rule": get_args(PauseRule),
}
_PARAM_SECONDS = (
    "horizon_s",
    "fallback_s",
    "probe_s",
    "margin_s",
    "ageing_tokens_per_s",
    "plan_cost_s",
    "plan_cost_per_state_s",
    "replan_gap_s",
)
