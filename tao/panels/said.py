"""Said: words in a panel of their own, for a lock to open."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import ipywidgets as widgets

from tao.panels import html
from tao.panels.base import Panel


class Said(Panel):
    """Shows what `words` returns, as it is when the panel is made.

    >>> panel = Said("Two numbers", lambda: "1\\n2")
    >>> panel.text()
    'Two numbers\\n1\\n2'
    >>> panel.close()
    """

    def __init__(self, title: str, words: Callable[[], str]) -> None:
        super().__init__()
        self._text = f"{title}\n{words()}"
        self.status.value = html.status(title)
        said = self._text.partition("\n")[2]
        prose = "" if "  " in said else " style='font: inherit'"  # no columns to keep in line
        self.said = widgets.HTML(f"<pre{prose}>{escape(said)}</pre>")
        self.root.children = [self.status, self.error, self.said]

    def text(self) -> str:
        """Title and words."""
        return self._text
