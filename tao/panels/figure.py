"""A chart in a panel: drawn once, then fed with new rows, with a table in its place on demand."""

from __future__ import annotations

from typing import Any

import altair as alt
import ipywidgets as widgets

from tao import charts
from tao.panels import html


class Figure:
    """A live chart that draws the parameter `name`, and a checkbox that shows a table instead.

    The browser sets the chart up once; `update` only sends the parameter. `size` is the width and height of
    its card in px.
    """

    def __init__(self, chart: alt.TopLevelSpec, name: str, size: tuple[int, int]) -> None:
        self._name, self._version, self._height = name, 0, size[1]
        self._value: dict[str, Any] = {}
        self.live = charts.live(chart)
        self.live.observe(self._on_echo, "_params")
        self._card = widgets.Box([self.live], layout={"height": f"{size[1]}px"})
        self._card.add_class("tao-card")
        self._table = widgets.HTML(layout={"display": "none"})
        self.as_table = widgets.Checkbox(description="Show as table", indent=False)
        self.as_table.observe(self._on_toggle, "value")
        self.widget = widgets.VBox(
            [self._card, self._table, self.as_table], layout={"width": f"{size[0]}px", "max_width": "100%"}
        )

    def update(self, value: dict[str, Any], table: str) -> None:
        """Draw `value`, and put the HTML `table` with the same facts behind the checkbox."""
        self._value = value
        self._send()
        self._table.value = html.scroll(table, "The figure as a table", self._height)

    def _send(self) -> None:
        self._version += 1  # so that sending the same value again counts as a change
        setattr(self.live.params, self._name, self._value | {"version": self._version})

    def _on_echo(self, change: dict[str, Any]) -> None:
        # A browser that (re)draws the chart starts from its first value and reports it: send the current one.
        reported = change["new"].get(self._name, {})
        if self._version and reported.get("version") != self._version:
            self._send()

    def _on_toggle(self, change: dict[str, Any]) -> None:
        self._card.layout.display = "none" if change["new"] else None
        self._table.layout.display = None if change["new"] else "none"
