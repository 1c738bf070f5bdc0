"""Opens the sandbox's end of a channel: a door from signalling, then through it."""

from __future__ import annotations

from relay_gateway.line import Line
from relay_gateway.ports import Doors, Stream
from relay_gateway.session import WantedSession


class Opener:
    """The use case behind each data channel."""

    def __init__(self, *, line: Line, doors: Doors) -> None:
        self._line = line
        self._doors = doors

    async def open(self, session: WantedSession, port: int) -> Stream:
        """Connect to a port of the session's sandbox; the FairleadError says why not."""
        door = await self._line.ask_port(session.session_id, port)
        return await self._doors.enter(door)
