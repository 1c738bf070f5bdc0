"""What is typed between a newline and the next character after a tilde, as ssh(1) reads it."""

from __future__ import annotations

from enum import Enum

HELP = (
    "~.  leave; what runs there goes on",
    "~^Z stop this command here",
    "~~  type a tilde",
    "~?  show this",
)
_TILDE, _CTRL_Z = ord("~"), 0x1A
_LINE_ENDS = b"\r\n"


class Escape(Enum):
    """What an escape asks for."""

    LEAVE = "leave"
    STOP = "stop"
    HELP = "help"


_MEANINGS = {ord("."): Escape.LEAVE, _CTRL_Z: Escape.STOP, ord("?"): Escape.HELP}


class Escapes:
    """Takes escapes out of what is typed; they count at the start of a line only."""

    def __init__(self) -> None:
        self._at_start = True
        self._after_tilde = False

    def take(self, typed: bytes) -> list[bytes | Escape]:
        """Return what is to be sent, and the escapes where they were typed."""
        found: list[bytes | Escape] = []
        plain = bytearray()
        for byte in typed:
            if self._after_tilde:
                self._after_tilde = False
                meaning = _MEANINGS.get(byte)
                if meaning is not None:
                    if plain:
                        found.append(bytes(plain))
                        plain.clear()
                    found.append(meaning)
                    self._at_start = True
                    continue
                if byte != _TILDE:
                    plain.append(_TILDE)
            elif self._at_start and byte == _TILDE:
                self._after_tilde = True
                continue
            plain.append(byte)
            self._at_start = byte in _LINE_ENDS
        if plain:
            found.append(bytes(plain))
        return found
