"""A text to take away: shown with all of it selected, so that one more key copies it."""

from __future__ import annotations

import anywidget
import traitlets

# The text can be edited: where none can, JupyterLab's commands of one key hold, and X cuts the cell.
# What is typed stays in the field, until it is shown the next time.
# A page that is opened again shows what was shown, but the focus moves only when a key was pressed for it.
_ESM = """
function render({ model, el }) {
  const id = `tao-${Math.random().toString(36).slice(2)}`;
  el.innerHTML = `<div class="jupyter-widgets widget-inline-hbox widget-textarea" style="width: 98%">
    <label class="widget-label" for="${id}"></label>
    <textarea class="widget-input" id="${id}" rows="8" spellcheck="false"></textarea></div>`;
  const [label, text] = el.firstChild.children;
  label.textContent = model.get("description");
  const update = () => {
    text.value = model.get("value");
    el.firstChild.style.display = model.get("shown") ? "" : "none";
  };
  model.on("change:value", update);
  model.on("change:shown", () => { update(); text.focus(); text.select(); text.scrollTop = 0; });
  update();
}
export default { render };
"""


class CopyText(anywidget.AnyWidget):
    """A text field named `description`, hidden until `show`; `value` is what that shows, `shown` how often.

    >>> field = CopyText(description="Python")
    >>> field.show("import tao"); field.value, field.shown
    ('import tao', 1)
    >>> field.close()
    """

    _esm = _ESM
    description = traitlets.Unicode("Text").tag(sync=True)
    value = traitlets.Unicode("").tag(sync=True)
    shown = traitlets.Int(0).tag(sync=True)

    def show(self, text: str) -> None:
        """Put this text in sight, move the focus to it, and select all of it."""
        with self.hold_sync():
            self.value = text
            self.shown += 1
