"""Where clients of tunnels dial in over TCP: a hello in a bounded time, then records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from chassis.listeners import Connection, ConnectionLimits, WaitingConnections, listen_on
from fairlead_tunnel.carriers import GatewayCarrier, TunnelDesk
from fairlead_tunnel.record_stream import RecordStream


class TunnelDoor:
    """Takes connections; those that have not shown a ticket are few, and not for long."""

    def __init__(
        self,
        *,
        desk: TunnelDesk,
        limits: ConnectionLimits | None = None,
        patience_seconds: float = 5.0,
    ) -> None:
        self._desk = desk
        self._waiting = WaitingConnections(limits=limits or ConnectionLimits())
        self._patience_seconds = patience_seconds

    @asynccontextmanager
    async def serve(self, bind: str) -> AsyncIterator[int]:
        """Listen on `host:port` in the block, port 0 for any; gives the bound port.

        Raises AddressNotBindable.
        """
        listener = listen_on(bind)
        port: int = listener.getsockname()[1]
        server = await asyncio.get_running_loop().create_server(self._meet, sock=listener)
        try:
            yield port
        finally:
            server.close()
            self._waiting.end_all()

    def _meet(self) -> RecordStream:
        return _Carrier(self._desk, waiting=self._waiting, seconds=self._patience_seconds).stream


class _Carrier(GatewayCarrier):
    """A connection that has a bounded time to show a ticket."""

    def __init__(self, desk: TunnelDesk, *, waiting: WaitingConnections, seconds: float) -> None:
        super().__init__(desk)
        self.stream = _Stream(self)
        self._waiting = waiting
        self._seconds = seconds
        self._connection: Connection | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connected(self, connection: asyncio.Transport) -> None:
        """Wait for the hello."""
        self._connection = connection
        self._waiting.add(connection)
        self._deadline = asyncio.get_running_loop().call_later(self._seconds, connection.abort)

    def opened(self) -> None:
        """Use the carrier."""
        self._settle()
        super().opened()

    def lost(self, error: Exception | None) -> None:
        """Let what was under way go over another carrier."""
        self._settle()
        super().lost(error)

    def _settle(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._connection is not None:
            self._waiting.discard(self._connection)


class _Stream(RecordStream):
    """A record stream whose user is told of the connection."""

    def __init__(self, carrier: _Carrier) -> None:
        super().__init__(carrier)
        self._carrier = carrier

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; asyncio calls this."""
        super().connection_made(transport)
        self._carrier.connected(cast(asyncio.Transport, transport))
