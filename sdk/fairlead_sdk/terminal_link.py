"""One connection to a terminal: its messages as values. See docs/protocol.md."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from fairlead_sdk import json_form as form
from fairlead_sdk.client import problem_of
from fairlead_sdk.json_form import JsonObject
from fairlead_sdk.records import Exit
from fairlead_sdk.terminal_ways import TerminalWays

_POSITION = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a terminal in characters."""

    rows: int
    columns: int

    def document(self) -> JsonObject:
        """Give the JSON form."""
        return {"rows": self.rows, "columns": self.columns}


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How to attach: after which record, as whom, whether to take it, and with which size."""

    after: int
    owner: str
    take_over: bool = False
    size: Size | None = None


@dataclass(frozen=True, slots=True)
class Attached:
    """It is attached; `input_offset` is how far the input has come."""

    input_offset: int
    resumed: bool


@dataclass(frozen=True, slots=True)
class Shown:
    """A record of output."""

    sequence: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Missing:
    """Records that are no longer kept, up to `last_sequence`."""

    last_sequence: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """How far the input was taken."""

    offset: int


@dataclass(frozen=True, slots=True)
class TakenOver:
    """Somebody else has it now."""


Frame = Attached | Shown | Missing | Accepted | TakenOver | Exit


class TerminalSocket(Protocol):
    """What carries the messages: a WebSocket, or a channel of a session."""

    async def send(self, message: str | bytes) -> None:
        """Send a message; raises Unavailable."""
        ...

    async def receive(self) -> str | bytes | None:
        """Return the next message, None when the other side has closed; raises Unavailable."""
        ...


class TerminalLink:
    """Says and hears what a terminal's socket carries."""

    def __init__(self, *, socket: TerminalSocket) -> None:
        self._socket = socket

    async def type(self, offset: int, content: bytes) -> None:
        """Send input; raises `MeshUnavailable`."""
        await self._socket.send(_POSITION.pack(offset) + content)

    async def resize(self, size: Size) -> None:
        """Send a size; raises `MeshUnavailable`."""
        await self._socket.send(json.dumps({"type": "resize", **size.document()}))

    async def open(self, opening: Opening) -> None:
        """Say what is wanted."""
        document: JsonObject = {
            "type": "open",
            "after_sequence": opening.after,
            "take_over": opening.take_over,
            "owner": opening.owner,
        }
        if opening.size is not None:
            document["size"] = opening.size.document()
        await self._socket.send(json.dumps(document))

    async def next(self) -> Frame | None:
        """Return the next frame that is known, None when the other side has closed.

        Raises what the terminal refuses with, and `MeshUnavailable`.
        """
        while (message := await self._socket.receive()) is not None:
            frame = _read(message)
            if frame is not None:
                return frame
        return None


@asynccontextmanager
async def terminal_link(
    ways: TerminalWays, execution_id: str, opening: Opening
) -> AsyncIterator[TerminalLink]:
    """Connect and ask for a terminal."""
    async with ways.connect(execution_id) as socket:
        link = TerminalLink(socket=socket)
        await link.open(opening)
        yield link


def _read(message: str | bytes) -> Frame | None:
    if isinstance(message, bytes):
        if len(message) < _POSITION.size:
            return None
        return Shown(_POSITION.unpack_from(message)[0], message[_POSITION.size :])
    document = form.parse_object(message)
    problem = problem_of(document)
    if problem is not None:
        raise problem
    match form.text(document, "type"):
        case "snapshot":
            return Attached(form.number(document, "input_offset"), form.flag(document, "resumed"))
        case "accepted":
            return Accepted(form.number(document, "offset"))
        case "taken_over":
            return TakenOver()
        case "gap":
            gap = form.child(document, "gap") or document
            return Missing(form.number(gap, "last_sequence"), form.number(gap, "bytes"))
        case "exit":
            return Exit.read(form.child(document, "exit") or {})
        case _:
            return None
