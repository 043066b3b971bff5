"""What a policy is, for people: the interface, and compiled policies behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from tao import _cold
from tao._jit import by_reference, njit, pointer
from tao.model import Params
from tao.profiles import PS_PER_S
from tao.state import COST_PS, FALLBACK, HOLD, PAUSED, PLACED, STATES, WAKE_PS, State, begin_tick
from tao.view import View


@dataclass(slots=True)
class Decision:
    """What a tick decided: sessions to place, sessions to pause (by index), and when to ask again.

    With a `cost_s` the placements take so long to find; they are rechecked before they are applied, the
    first ones first. A session that is answering pauses when its answer is complete. `states` and
    `fallback` are for the record.
    """

    placements: list[tuple[int, int]] = field(default_factory=list)
    pauses: list[int] = field(default_factory=list)
    cost_s: float | None = None
    wake_ps: int | None = None
    states: int = 0
    fallback: int = 0


class Policy(Protocol):
    """Who is let in, where, and who has to pause. The simulator calls the three functions:

    `route` when a session has a request and no node, `on_finish` when an answer is complete, and `tick`
    every `period_s` (or, if that is None, whenever something changed, at most every `gap_s`).
    """

    @property
    def period_s(self) -> float | None:
        """Seconds between two ticks; None: after every change."""

    @property
    def gap_s(self) -> float:
        """The least seconds between two ticks after changes."""

    def route(self, view: View, i: int) -> int:
        """A node for session i's request, or HOLD for the waiting pool."""

    def on_finish(self, view: View, i: int) -> None:
        """Session i's answer is complete."""

    def tick(self, view: View) -> Decision:
        """Placements out of the pool, and pauses, now."""


@njit
def hold(state, i):
    """A `route` that leaves everybody in the pool."""
    return HOLD


@njit
def nothing(state, i):
    """An `on_finish` that does nothing."""


@njit
def idle(state):
    """A `tick` that decides nothing."""


class Pointers(NamedTuple):
    """The three functions of a policy, as compiled code calls them."""

    route: Any
    on_finish: Any
    tick: Any


@dataclass(frozen=True)
class Compiled:
    """A policy as three kernels: `route(state, i)`, `on_finish(state, i)` and `tick(state)`.

    `lag_ps`: how old its view of the nodes' load may be. `counts_streamed`: it looks at answers in progress.
    `sees_cache`: it is told what the nodes' caches hold. `sees_tools`: it knows when a tool returns.
    `plans`: its tick only reads the state, and takes long, so that a live host lets it work on a copy.
    """

    params: Params
    route_kernel: Any = hold
    finish_kernel: Any = nothing
    tick_kernel: Any = idle
    period_s: float | None = None
    gap_s: float = 0.0
    lag_ps: int = 0
    counts_streamed: bool = False
    sees_cache: bool = False
    sees_tools: bool = False
    plans: bool = False

    @cached_property
    def pointers(self) -> Pointers:
        """Its functions for compiled code."""
        _cold.settle(wait=True)
        return Pointers(
            pointer(self.route_kernel, "int64", _STATE, 1),
            pointer(self.finish_kernel, "void", _STATE, 1),
            pointer(self.tick_kernel, "void", _STATE, 0),
        )

    def route(self, view: View, i: int) -> int:
        """A node for session i's request, or HOLD."""
        pointers = self.pointers  # first, for it may have to wait until everything is compiled
        return int(_ask_route(pointers.route, view.state, i))

    def on_finish(self, view: View, i: int) -> None:
        """Session i's answer is complete."""
        pointers = self.pointers
        _tell_finish(pointers.on_finish, view.state, i)

    def tick(self, view: View) -> Decision:
        """Placements and pauses now."""
        pointers = self.pointers
        begin_tick(view.state)
        _ask_tick(pointers.tick, view.state)
        return decided(view.state)


_STATE = View(["any"], [1], Params()).state  # all states are of one type


@njit
def _ask_route(route, state, i):
    return route(by_reference(state), i)


@njit
def _tell_finish(on_finish, state, i):
    on_finish(by_reference(state), i)


@njit
def _ask_tick(tick, state):
    tick(by_reference(state))


def decided(state: State) -> Decision:
    """The decision that a compiled tick left in the state."""
    clock = state.clock.tolist()
    return Decision(
        [(row[0], row[1]) for row in state.place[: clock[PLACED]].tolist()],
        state.pause[: clock[PAUSED]].tolist(),
        None if clock[COST_PS] < 0 else clock[COST_PS] / PS_PER_S,
        None if clock[WAKE_PS] < 0 else clock[WAKE_PS],
        clock[STATES],
        clock[FALLBACK],
    )
