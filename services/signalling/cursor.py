"""Positions in a launch's events, and their text. Pure.

A cursor is base64url over `control.output.tag`: the number of the last control event, that of the
last output record, and the tail of the launch's id, so that a cursor of another launch is refused.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

from signalling.launch_errors import CursorInvalid

_TEXT = re.compile(r"(0|[1-9][0-9]{0,17})\.(0|[1-9][0-9]{0,17})\.([a-z2-7]{8})")


@dataclass(frozen=True, slots=True)
class Cursor:
    """What a watcher has seen."""

    control: int = 0
    output: int = 0

    def text(self, launch_id: str) -> str:
        """Return the opaque text for a launch's watcher."""
        plain = f"{self.control}.{self.output}.{launch_id[-8:]}"
        return base64.urlsafe_b64encode(plain.encode()).decode().rstrip("=")

    @staticmethod
    def parse(text: str, launch_id: str) -> Cursor:
        """Read what `text` wrote; raises CursorInvalid for anything else."""
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            match = _TEXT.fullmatch(raw.decode("ascii"))
        except (binascii.Error, ValueError):
            raise CursorInvalid from None
        if match is None or match[3] != launch_id[-8:]:
            raise CursorInvalid
        return Cursor(control=int(match[1]), output=int(match[2]))
