"""The asyncio face of one I/O thread: its eventfd wakes the loop, which tells the connections."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from fairlead_native._core import Core
from fairlead_native.connection import Connection

if TYPE_CHECKING:
    from fairlead_native._core import Outlet

SILENCE_SECONDS: Final = 30.0
"""How long consent lasts (RFC 7675, section 5.1)."""


class Engine:
    """An I/O thread and its connections; made and used in one running loop.

    `addresses` are those that candidates are made of; None stands for the machine's own, or
    loopback where it has no other. A connection is disconnected when its peer was not heard for
    half of `silence` seconds (1 to 3600), and has failed after all of them.
    """

    def __init__(
        self, *, addresses: Sequence[str] | None = None, silence: float = SILENCE_SECONDS
    ) -> None:
        self._core = Core(None if addresses is None else list(addresses), silence)
        self._loop = asyncio.get_running_loop()
        self._teller = _Teller(loop=self._loop)
        self._descriptor = self._core.fileno()
        self._loop.add_reader(self._descriptor, self._dispatch)
        self._is_closed = False

    def connect(self, *, relay_only: bool = False) -> Connection:
        """Make a connection; it binds and sends nothing before its first offer or answer.

        With `relay_only` it offers and uses no path but through a TURN server of `use_servers`.
        """
        connection = Connection(core=self._core, relay_only=relay_only)
        self._teller.connections[connection.number] = connection
        return connection

    def close(self) -> None:
        """Close all connections, tell them, and end the thread; again changes nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._descriptor)
        self._core.stop()
        self._dispatch()

    def _dispatch(self) -> None:
        self._core.dispatch(self._teller)


class _Teller:
    """Passes on what happened; a connection is forgotten when it is closed."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.connections: dict[int, Connection] = {}

    def candidate(self, connection: int, line: str, /) -> None:
        """Pass on a local candidate."""
        if found := self.connections.get(connection):
            found.take_candidate(line)

    def gathered(self, connection: int, /) -> None:
        """Pass on the end of gathering."""
        if found := self.connections.get(connection):
            found.take_gathered()

    def state(self, connection: int, state: str, reason: str, /) -> None:
        """Pass on a state."""
        if found := self.connections.get(connection):
            if state == "closed":
                del self.connections[connection]
            found.take_state(state, reason)

    def channel(
        self,
        connection: int,
        outlet: Outlet,
        label: str,
        protocol: str,
        ordered: bool,
        reliable: bool,
        /,
    ) -> None:
        """Pass on a channel of the peer."""
        if found := self.connections.get(connection):
            found.take_channel(outlet, label, protocol, ordered, reliable)

    def opened(self, connection: int, channel: int, /) -> None:
        """Pass on that a channel is open."""
        if (found := self.connections.get(connection)) and (entry := found.find_channel(channel)):
            entry.take_opened()

    def message(self, connection: int, channel: int, message: bytes | str, /) -> None:
        """Pass on a message."""
        if (found := self.connections.get(connection)) and (entry := found.find_channel(channel)):
            entry.take_message(message)

    def low(self, connection: int, channel: int, /) -> None:
        """Pass on that a channel has room."""
        if (found := self.connections.get(connection)) and (entry := found.find_channel(channel)):
            entry.take_room()

    def closed(self, connection: int, channel: int, /) -> None:
        """Pass on the end of a channel."""
        if found := self.connections.get(connection):
            found.take_closed(channel)

    def failed(self, error: BaseException, /) -> None:
        """Report what a callback raised, as the loop does for its own callbacks."""
        if not isinstance(error, Exception):
            raise error
        message = "a callback of fairlead_native raised"
        self._loop.call_exception_handler({"message": message, "exception": error})
