"""What every panel shares: display with a static picture, errors in sight, and an orderly end."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

import altair as alt
import ipywidgets as widgets
from IPython.core.getipython import get_ipython
from IPython.display import display

from tao.checks import InputError, listing
from tao.panels import html, picture

P = ParamSpec("P")
SomePanel = TypeVar("SomePanel", bound="Panel")

SIZES = 100, 125, 150  # percent; 150 is for the last row of a lecture hall


def guard(
    handler: Callable[Concatenate[SomePanel, P], None],
) -> Callable[Concatenate[SomePanel, P], None]:
    """Wrap a panel's handler so that an error appears in the panel; under pytest it is raised as well.

    Jupyter drops what a widget's handler raises, which would leave a dead button and no reason.
    """

    @wraps(handler)
    def guarded(self: SomePanel, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self.show_error(None)  # before, not after: a handler may have called another one that failed
        try:
            handler(self, *args, **kwargs)
        except Exception as error:
            self.show_error(error)
            if "PYTEST_CURRENT_TEST" in os.environ:
                raise

    return guarded


class Panel:
    """A box of widgets (`root`) with a status line that an error replaces.

    A subclass fills `root`, and says what it shows in `text` and `chart`. Building a panel again by running
    its cell again closes the one before it, so that nothing piles up. Under the panel is a switch for its
    size (`size`, percent of the usual), which holds for every panel that is open or yet to come.
    """

    _all: ClassVar[WeakSet[Panel]] = WeakSet()
    _size: ClassVar[int] = SIZES[0]

    def __init__(self) -> None:
        self.status = widgets.HTML()
        self.error = widgets.HTML(layout={"display": "none"})
        self.root = widgets.VBox()
        self.root.add_class("tao-panel")
        self.root.add_class(f"tao-{self.size}")
        self._frame: widgets.VBox | None = None
        Panel._all.add(self)
        _replace_predecessor(self)

    @property
    def size(self) -> int:
        """The size of all panels, in percent of the usual one; set it to one of `SIZES`."""
        return Panel._size

    @size.setter
    def size(self, percent: int) -> None:
        if percent not in SIZES:
            raise InputError(f"size is {percent!r}; it must be one of {listing(list(map(str, SIZES)))}")
        Panel._size = percent
        for panel in list(Panel._all):
            panel._resize()

    def text(self) -> str:
        """Everything the panel shows, as plain text."""
        raise NotImplementedError

    def chart(self) -> alt.TopLevelMixin | None:
        """The panel's figure as a chart of its own, for the static picture."""
        return None

    def show_error(self, error: Exception | str | None) -> None:
        """Put an error, or plain words, in the place of the status line; None: back to the status."""
        self.error.value = html.error(error) if error else ""
        self.error.layout.display = None if error else "none"
        self.status.layout.display = "none" if error else None

    def show(self) -> None:
        """Display the panel, and return nothing that the notebook would keep alive."""
        display(self)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close every widget of the panel, in Python and in the browser."""
        Panel._all.discard(self)
        for widget in _widgets_of([self.root, self._frame], {}).values():
            widget.close()

    def _framed(self) -> widgets.VBox:
        """The panel with its style and the switch for its size, as it is displayed."""
        if self._frame is None:
            style = widgets.HTML(html.STYLE, layout={"display": "none"})
            switch = widgets.ToggleButtons(
                options={f"{percent} %": percent for percent in SIZES},
                value=self.size,
                description="Size",
                style={"button_width": "auto", "description_width": "auto"},
            )
            switch.observe(self._on_size, "value")
            self._frame = widgets.VBox([style, self.root, switch])
            self._frame.add_class("tao-frame")
        return self._frame

    @guard
    def _on_size(self, change: dict[str, Any]) -> None:
        self.size = change["new"]

    def _resize(self) -> None:
        for percent in SIZES:
            self.root.remove_class(f"tao-{percent}")
        self.root.add_class(f"tao-{self.size}")
        if self._frame is not None:
            self._frame.children[-1].value = self.size

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle: dict[str, Any] = self._framed()._repr_mimebundle_()
        bundle["text/plain"] = self.text()
        chart = self.chart()
        png = picture.png(chart) if chart is not None else None
        return bundle if png is None else bundle | {"image/png": png}


def wrapped(*children: widgets.Widget) -> widgets.Box:
    """Side by side as far as there is room."""
    return widgets.Box(
        children, layout={"flex_flow": "row wrap", "grid_gap": "6px 8px", "align_items": "flex-start"}
    )


def _widgets_of(value: Any, found: dict[str, widgets.Widget]) -> dict[str, widgets.Widget]:
    """Every widget reachable from `value` (children, layouts, styles), by model id."""
    if isinstance(value, list | tuple):
        for item in value:
            _widgets_of(item, found)
    elif isinstance(value, widgets.Widget) and value.comm is not None and value.model_id not in found:
        found[value.model_id] = value
        _widgets_of(list(value.trait_values().values()), found)
    return found


_built_by: dict[str, tuple[str, list[Panel]]] = {}  # cell -> (its latest run, the panels of that run)


def _replace_predecessor(panel: Panel) -> None:
    cell, run = _running_cell()
    if cell is None:
        return
    last_run, panels = _built_by.get(cell, (run, []))
    if last_run != run:
        for old in panels:
            old.close()
        panels = []
    _built_by[cell] = run, [*panels, panel]


def _running_cell() -> tuple[str | None, str]:
    """The notebook cell that runs now (its id, or its text where the front end sends none) and which run."""
    kernel = getattr(get_ipython(), "kernel", None)
    request = kernel.get_parent() if kernel is not None else {}
    if request.get("msg_type") != "execute_request":
        return None, ""
    return request["metadata"].get("cellId") or request["content"]["code"], request["header"]["msg_id"]
