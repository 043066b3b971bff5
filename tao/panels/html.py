"""Pieces of HTML that panels share; whatever comes from data is escaped."""

from __future__ import annotations

from html import escape
from typing import Literal

# Colors come from the theme, so that dark themes work; the fallbacks are for front ends without one.
STYLE = """<style>
.tao-panel { max-width: 1440px; gap: 6px; container-type: inline-size; }
.tao-panel.tao-125 { zoom: 1.25; } .tao-panel.tao-150 { zoom: 1.5; }
.tao-panel .tao-panel { zoom: 1; }
.tao-frame > .widget-toggle-buttons { display: flex; flex-flow: row nowrap; align-self: flex-end; }
.tao-frame > .widget-toggle-buttons > .widget-label { width: auto; margin-right: 6px; }
.tao-panel .widget-html, .tao-panel .tao-card { margin: 0 2px; }
.tao-panel .widget-html > .widget-html-content {
  line-height: 1.4; font-size: 13px; color: var(--jp-ui-font-color1, #1f2328); }
.tao-panel .widget-toggle-buttons { display: flex; flex-flow: row nowrap; }
.tao-panel .tao-two { min-height: 55px; }
.tao-panel .tao-three { min-height: 73px; }
@container (min-width: 1080px) { .tao-panel .tao-two { min-height: 37px; }
  .tao-panel .tao-three { min-height: 55px; } }
.tao-panel .tao-status { font-size: 15px; font-weight: 600; min-height: 21px; }
.tao-panel .tao-banner { border-radius: 4px; padding: 3px 8px; font-weight: 600;
  color: #1F2328; background: #E69F00; }
.tao-panel .tao-banner.tao-live { color: white; background: #0072B2; }
.tao-panel .tao-error { border-left: 5px solid #D55E00; padding-left: 8px; }
.tao-panel .tao-card, .tao-panel .tao-scroll { overflow: auto; box-sizing: border-box;
  border: 1px solid var(--jp-border-color1, #bdbdbd); border-radius: 4px; }
.tao-panel .tao-card { background: white; }
.tao-panel .tao-card > *, .tao-panel .tao-card .vega-embed { width: 100%; max-width: 100%; }
.tao-panel .tao-card svg.marks { max-width: 100%; height: auto; }
.tao-panel .tao-scroll:focus-visible { outline: 2px solid var(--jp-brand-color1, #1976d2); }
.tao-panel table { border-collapse: collapse; width: 100%; font-size: 12px; }
.tao-panel caption { text-align: left; font-weight: 600; padding: 5px; font-size: 13px; }
.tao-panel th, .tao-panel td { padding: 2px 5px; text-align: left; vertical-align: top; }
.tao-panel thead th { border-bottom: 1px solid var(--jp-border-color1, #bdbdbd); }
.tao-panel tbody th, .tao-panel .number, .tao-panel .tao-narrow td { white-space: nowrap; }
.tao-panel .number { text-align: right; font-variant-numeric: tabular-nums; }
.tao-panel .tao-prose { padding: 5px; }
.tao-panel tr.chosen { background: var(--jp-layout-color2, #eeeeee); }
</style>"""


def banner(text: str) -> str:
    """A line that says on what servers a panel works; LIVE ones have another color."""
    kind = "tao-banner tao-live" if text.startswith("LIVE") else "tao-banner"
    return f'<div class="{kind}">{escape(text)}</div>'


def status(text: str) -> str:
    """A line marked as the status of the panel."""
    return f'<div class="tao-status" role="status">{escape(text)}</div>'


def error(problem: Exception | str) -> str:
    """The kind of an error and what it says, or plain words, which screen readers announce at once."""
    text = problem if isinstance(problem, str) else f"{type(problem).__name__}: {problem}"
    return f'<div class="tao-status tao-error" role="alert">{escape(text)}</div>'


def lines(*texts: str, room: Literal["two", "three"], name: str = "") -> str:
    """Paragraphs of plain text, the first after a `name` in bold, with room kept for so many lines.

    So what follows stays put when the text changes. On a narrow screen it is one line more.
    """
    bold = f"<b>{escape(name)}</b>: " if name else ""
    paragraphs = "</div><div>".join(escape(text) for text in texts)
    return f'<div class="tao-{room}"><div>{bold}{paragraphs}</div></div>'


def paragraphs(title: str, text: str) -> str:
    """A heading in bold and each line of plain text as a paragraph of its own."""
    lines = "".join(f"<div>{escape(line)}</div>" for line in text.splitlines())
    return f'<div class="tao-prose"><b>{escape(title)}</b>{lines}</div>'


def scroll(content: str, label: str, height: int) -> str:
    """HTML `content` in a box `height` px high that the keyboard can reach and scroll."""
    return (
        f'<div class="tao-scroll" role="region" aria-label="{escape(label)}" tabindex="0" '
        f'style="height: {height}px">{content}</div>'
    )
