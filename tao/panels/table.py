"""A small table with two faces: HTML for the eye and the screen reader, plain text for everything else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

Row = Sequence[str | int]


class Table(NamedTuple):
    """Rows under a caption; the first cell of each row names it. Whole numbers get separators.

    >>> print(Table("Sizes", ("session", "tokens"), [("a", 1200), ("bc", 90)]).text())
    Sizes
      session  tokens
      a         1,200
      bc           90
    """

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    chosen: int = -1  # the row to mark, in HTML

    def html(self) -> str:
        """A `<table>` with caption and scopes; every cell is escaped.

        >>> Table("Sizes", ("session",), [("<b>",)]).html()[-62:]
        '<tbody><tr><th scope="row">&lt;b&gt;</th></tr></tbody></table>'
        """
        head = "".join(
            f'<th scope="col"{_align(number)}>{escape(name)}</th>'
            for name, number in zip(self.columns, self._numeric(), strict=True)
        )
        body = "".join(_html_row(row, k == self.chosen) for k, row in enumerate(self.rows))
        if not self.rows:
            body = f'<tr><td colspan="{len(self.columns)}">nobody</td></tr>'
        caption = f"<caption>{escape(self.caption)}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def text(self) -> str:
        """The caption, then aligned columns, indented; "nobody" without rows."""
        if not self.rows:
            return f"{self.caption}\n  nobody"
        lines = [self.columns, *(tuple(_plain(cell) for cell in row) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join([self.caption, *(self._text_row(line, widths) for line in lines)])

    def _text_row(self, line: Sequence[str], widths: list[int]) -> str:
        cells = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, self._numeric(), strict=True)
        )
        return ("  " + "  ".join(cells)).rstrip()

    def _numeric(self) -> list[bool]:
        return [isinstance(cell, int) for cell in self.rows[0]] if self.rows else [False] * len(self.columns)


def _plain(cell: str | int) -> str:
    return f"{cell:,}" if isinstance(cell, int) else cell


def _html_row(row: Row, chosen: bool) -> str:
    cells = "".join(f"<td{_align(isinstance(cell, int))}>{escape(_plain(cell))}</td>" for cell in row[1:])
    mark = ' class="chosen" aria-current="true"' if chosen else ""
    return f'<tr{mark}><th scope="row">{escape(_plain(row[0]))}</th>{cells}</tr>'


def _align(number: bool) -> str:
    return ' class="number"' if number else ""
