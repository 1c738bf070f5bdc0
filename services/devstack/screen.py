"""What `up` and `demo` show while they start: one line per preparation and a table whose rows turn
green.
"""

from __future__ import annotations

import os
from typing import TextIO

_GREEN, _RED, _DIM, _BOLD, _PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[2m", "\x1b[1m", "\x1b[0m"


class Screen:
    """Writes to a terminal, or plainly to a file or pipe."""

    def __init__(self, *, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._has_colour = self._is_terminal and "NO_COLOR" not in os.environ
        self._rows: dict[str, tuple[str, str]] = {}
        self._open = False

    def line(self, text: str = "") -> None:
        """Print one line below everything else."""
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def title(self, text: str) -> None:
        """Print a heading."""
        self.line(self._paint(_BOLD, text))

    def step(self, text: str, seconds: float) -> None:
        """Print a finished preparation with its time."""
        mark = self._paint(_GREEN, "✔")
        self.line(f"{mark} {text:<58} {self._paint(_DIM, f'{seconds:6.1f} s')}")

    def table(self, rows: dict[str, str]) -> None:
        """Open a table of parts, by name with their addresses; all of them are starting."""
        self._rows = {name: (address, "starting") for name, address in rows.items()}
        self._open = True
        if self._is_terminal:
            for name in self._rows:
                self.line(self._row(name))

    def report(self, name: str, text: str) -> None:
        """Show what has become of a part: in its row while the table is open, else as a line."""
        if name not in self._rows or not self._open:
            self.line(f"{name} {text}")
            return
        self._rows[name] = (self._rows[name][0], text)
        if self._is_terminal:
            self._stream.write(f"\x1b[{len(self._rows)}A")
            for row in self._rows:
                self._stream.write(f"\x1b[2K{self._row(row)}\n")
            self._stream.flush()
        else:
            self.line(self._row(name))

    def close_table(self) -> None:
        """Let later reports be lines of their own."""
        self._open = False

    def failure(self, text: str) -> None:
        """Print an error of several lines."""
        self._open = False
        first, *rest = text.splitlines()
        self.line("\n".join([self._paint(_RED, first), *rest]))

    def _row(self, name: str) -> str:
        address, text = self._rows[name]
        is_ready = text.startswith("ready")
        mark = self._paint(_GREEN, "●") if is_ready else self._paint(_DIM, "○")
        state = self._paint(_GREEN if is_ready else _DIM, f"{text:<15}")
        return f"  {mark} {name:<22} {state} {self._paint(_DIM, address)}"

    def _paint(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_PLAIN}" if self._has_colour else text
