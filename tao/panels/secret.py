"""A field for an API key, which goes to who needs it and stays nowhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import ipywidgets as widgets
import traitlets

from tao.live.given import Secret
from tao.panels import html
from tao.panels.base import Panel, guard

T = TypeVar("T")


class _Field(widgets.Password):  # type: ignore[misc]
    """Sends what was typed, once, when it is left; no echo of it goes to all open front ends."""

    value = traitlets.Unicode("").tag(sync=True, echo_update=False)


class KeyPanel(Panel, Generic[T]):
    """A password field and a button: `use` gets the key, `result` is what it returned.

    The field is emptied as soon as it is read, so that no saved notebook holds the key.

    >>> panel = KeyPanel(lambda key: f"{len(key)} characters, {key!r}")
    >>> panel.field.value = "sk-123"
    >>> panel.field.value
    ''
    >>> panel.button.click()
    >>> panel.result
    "6 characters, '***'"
    >>> panel.close()
    """

    def __init__(self, use: Callable[[str], T]):
        super().__init__()
        self.result: T | None = None
        self._use, self._key = use, Secret("")
        self.field = _Field(description="API key", continuous_update=False, placeholder="is stored nowhere")
        self.button = widgets.Button(description="Use", disabled=True)
        self.field.observe(self._take, "value")
        self.button.on_click(self._give)
        self.root.children = [widgets.HBox([self.field, self.button]), self.status, self.error]
        self._say("No key yet: type it and leave the field.")

    def text(self) -> str:
        """The status."""
        return self._words

    def close(self) -> None:
        """Forget a key that was not used, and close the widgets."""
        self._key = Secret("")
        super().close()

    def _take(self, _change: Any) -> None:
        """Take what was typed out of the widget, whose state front ends save; here nothing can fail."""
        if self.field.value:
            self._key = Secret(self.field.value.strip())
            self.field.value = ""
            self.button.disabled = False
            self._say("The key is here and the field empty: press Use.")

    @guard
    def _give(self, _button: widgets.Button) -> None:
        key, self._key = self._key, Secret("")
        self.button.disabled = True
        self._say("The key was refused: type it again.")
        self.result = self._use(key)
        self._say("The key is in use, and forgotten here.")

    def _say(self, words: str) -> None:
        self._words = words
        self.status.value = html.status(words)
