"""Stepper: the base of panels that go forward and back through numbered steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets as widgets

from tao.model import InputError
from tao.panels.base import Panel, guard


class Stepper(Panel):
    """First, Previous, Next, Last and a step number from 1 to `count`, all usable with the keyboard alone.

    A subclass shows the current `step` in `draw`, and puts `controls`, `status` and `error` into its `root`.
    The buttons stay enabled at both ends, where they do nothing: a button
    that turns gray under the finger loses the keyboard's focus.
    """

    def __init__(self, count: int, noun: str = "Step") -> None:
        if count < 1:
            raise InputError(f"{type(self).__name__} was given {count} steps; it needs at least one to show")
        super().__init__()
        self.count = count
        self.number = widgets.BoundedIntText(
            value=1, min=1, max=count, description=noun, layout={"width": "150px"}
        )
        self.number.observe(self._on_number, "value")
        moves = {"First": self.first, "Previous": self.previous, "Next": self.next, "Last": self.last}
        self.buttons = {name: _button(name, move) for name, move in moves.items()}
        self._of = widgets.Label(f"of {count}")
        self.controls = widgets.HBox([*self.buttons.values(), self.number, self._of])

    @property
    def step(self) -> int:
        """The current step, counted from 1; set it to go there."""
        return int(self.number.value)

    @step.setter
    def step(self, step: int) -> None:
        if not isinstance(step, int) or not 1 <= step <= self.count:
            raise InputError(f"step is {step!r}; it must be from 1 to {self.count}")
        self.number.value = step

    def restart(self, count: int) -> None:
        """Begin again at the first of `count` steps, and draw it."""
        self.number.unobserve(self._on_number, "value")
        self.number.value, self.number.max, self.count = 1, count, count
        self.number.observe(self._on_number, "value")
        self._of.value = f"of {count:,}"
        self.draw()

    def draw(self) -> None:
        """Bring everything the panel shows up to date with its state."""
        raise NotImplementedError

    @guard
    def first(self) -> None:
        """Go to the first step."""
        self.step = 1

    @guard
    def previous(self) -> None:
        """Go one step back, unless this is the first."""
        self.step = max(self.step - 1, 1)

    @guard
    def next(self) -> None:
        """Go one step forward, unless this is the last."""
        self.step = min(self.step + 1, self.count)

    @guard
    def last(self) -> None:
        """Go to the last step."""
        self.step = self.count

    @guard
    def _on_number(self, change: dict[str, Any]) -> None:
        self.draw()


def _button(name: str, move: Callable[[], None]) -> widgets.Button:
    button = widgets.Button(description=name, layout={"width": "84px"})
    button.on_click(lambda _: move())
    return button
