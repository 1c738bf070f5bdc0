"""Tables of text, as wide as they need where a program reads them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from unicodedata import combining, east_asian_width

from fairlead_sdk.cli.terminal import colours_on

_GAP = "  "
_DIM, _BOLD, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Row:
    """One line: a cell for each title; `is_dim` where it is over."""

    cells: Sequence[str]
    is_dim: bool = False


def shown_columns() -> int | None:
    """Give the width of the terminal that standard output is; `None` when it is none."""
    return shutil.get_terminal_size((160, 24)).columns if sys.stdout.isatty() else None


def drawn_table(titles: Sequence[str], rows: Sequence[Row]) -> str:
    """Draw for standard output as it is."""
    return table(titles, rows, columns=shown_columns(), coloured=colours_on(sys.stdout))


def table(
    titles: Sequence[str], rows: Sequence[Row], *, columns: int | None, coloured: bool
) -> str:
    """Draw a table; where it has more than `columns`, the last cell of a line is cut."""
    lines = [tuple(titles), *(tuple(map(_visible, row.cells)) for row in rows)]
    widths = [max(map(_width, cells)) for cells in zip(*lines, strict=True)]
    styles = [_BOLD, *(_DIM if row.is_dim else "" for row in rows)]
    drawn = []
    for cells, style in zip(lines, styles, strict=True):
        *first, last = cells
        padded = (
            cell + " " * (width - _width(cell))
            for cell, width in zip(first, widths[:-1], strict=True)
        )
        line = _cut(_GAP.join([*padded, last]).rstrip(), columns, least=sum(widths[:-1]))
        drawn.append(f"{style}{line}{_PLAIN}" if coloured and style else line)
    return "\n".join(drawn)


def _visible(text: str) -> str:
    """Write out what would move a terminal's cursor or end the line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(
        0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1
        for character in text
    )


def _cut(line: str, columns: int | None, *, least: int) -> str:
    """Cut a line that is too long, but nothing before its last cell."""
    if columns is None or _width(line) <= columns or columns <= least:
        return line
    while _width(line) >= columns:
        line = line[:-1]
    return f"{line}…"
