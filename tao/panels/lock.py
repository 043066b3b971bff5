"""Lock: a prediction to make before a panel opens, and the result beside it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import altair as alt
import ipywidgets as widgets

from tao.model import InputError
from tao.panels import html
from tao.panels.base import Panel, guard, wrapped


class Lock(Panel):
    """Keeps `panel` closed until the learner commits to one of a few answers, or a whole number in bounds.

    `among` holds the answers, or (least, most). `result` is asked when the lock opens and gives the true
    one. `said`: what the prediction was; None before, and after *Skip*, which teachers may press.

    >>> from tao.panels import SnapshotPanel
    >>> lock = Lock("How many get in?", (0, 20), SnapshotPanel(), result=lambda: 6, unit="sessions")
    >>> lock.predict(4)
    >>> lock.verdict
    'You said 4 sessions. It is 6 sessions: 2 more.'
    >>> lock.close()
    """

    def __init__(
        self,
        question: str,
        among: Sequence[str] | tuple[int, int],
        panel: Panel,
        result: Callable[[], str | int],
        unit: str = "",
    ) -> None:
        super().__init__()
        self.question, self.panel, self.unit = question, panel, unit
        self.said: str | int | None = None
        self.opened = False
        self._truth: str | int = ""
        self._among: tuple[Any, ...] = tuple(among)
        self._result = result
        self.choice = self._control()
        commit, skip = widgets.Button(description="Commit"), widgets.Button(description="Skip")
        commit.on_click(lambda _: self._on_commit())
        skip.on_click(lambda _: self.skip())
        commit.tooltip = "lay down the prediction and open what is below"
        skip.tooltip = "open what is below without a prediction"
        self.buttons = [commit, skip]
        self.status.value = html.status(f"Predict: {question}")
        self._ask = wrapped(self.choice, *self.buttons)
        panel.root.layout.display = "none"
        self.root.children = [self.status, self.error, self._ask, panel.root]

    @property
    def verdict(self) -> str:
        """The result against the prediction, with the gap; empty before."""
        if not self.opened:
            return ""
        truth = self._truth
        told = f"It is {self._with_unit(truth)}"
        if self.said is None:
            return f"{told}. (Skipped.)"
        said = f"You said {self._with_unit(self.said)}."
        if truth == self.said:
            return f"{said} So it is."
        if isinstance(truth, int) and isinstance(self.said, int):
            return f"{said} {told}: {abs(truth - self.said):,} {'more' if truth > self.said else 'fewer'}."
        return f"{said} {told}."

    @guard
    def predict(self, answer: str | int) -> None:
        """Commit to an answer and open the panel; raises `InputError` for one that is not offered."""
        if self._is_number():
            offered = isinstance(answer, int) and self._among[0] <= answer <= self._among[1]
        else:
            offered = answer in self._among
        if not offered:
            raise InputError(f"the prediction is {answer!r}; it must be {self._offer()}")
        self.said = answer
        self._open()

    @guard
    def skip(self) -> None:
        """Open the panel without a prediction."""
        self._open()

    def text(self) -> str:
        """The question, and once it is answered the result and everything that the panel shows."""
        if not self.opened:
            return f"Predict: {self.question}\n({self._offer()}; then what is below opens)"
        return f"{self.question}\n{self.verdict}\n\n{self.panel.text()}"

    def chart(self) -> alt.TopLevelMixin | None:
        """The panel's figure once it is open."""
        return self.panel.chart() if self.opened else None

    def close(self) -> None:
        """Close the lock and the panel below."""
        self.panel.close()
        super().close()

    @guard
    def _on_commit(self) -> None:
        if self.choice.value is None:
            self.show_error(f"Choose an answer first, then press Commit. Predict: {self.question}")
        else:
            self.predict(self.choice.value)

    def _open(self) -> None:
        self.opened, self._truth = True, self._result()  # as it is now, whatever is done to the panel later
        self.status.value = html.status(f"{self.question} {self.verdict}")
        self._ask.layout.display = "none"
        self.panel.root.layout.display = None

    def _is_number(self) -> bool:
        return isinstance(self._among[0], int)

    def _offer(self) -> str:
        if self._is_number():
            return f"a whole number from {self._among[0]} to {self._among[1]}"
        return "one of " + ", ".join(map(str, self._among))

    def _with_unit(self, x: str | int) -> str:
        text = f"{x:,}" if isinstance(x, int) else f"\u201c{x}\u201d"
        return f"{text} {self.unit}".rstrip()

    def _control(self) -> Any:
        if self._is_number():
            least, most = self._among
            return widgets.BoundedIntText(
                value=least, min=least, max=most, description=self.unit or "number", layout={"width": "200px"}
            )
        style = {"button_width": "auto", "description_width": "auto"}
        return widgets.ToggleButtons(options=list(self._among), value=None, description="Answer", style=style)
