"""Where clients of tunnels dial in over TCP: a hello in a bounded time, then records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fairlead_tunnel.carriers import GatewayCarrier, TunnelDesk
from fairlead_tunnel.record_stream import RecordStream
from relay_gateway.listener import listen


class TunnelDoor:
    """Takes connections; those that have not shown a ticket are few, and not for long."""

    def __init__(
        self, *, desk: TunnelDesk, most_waiting: int = 256, patience_seconds: float = 5.0
    ) -> None:
        self._desk = desk
        self._most_waiting = most_waiting
        self._patience_seconds = patience_seconds
        self._waiting: set[GatewayCarrier] = set()

    @asynccontextmanager
    async def serve(self, bind: str) -> AsyncIterator[int]:
        """Listen on `host:port` in the block, port 0 for any; gives the bound port.

        Raises AddressNotBindable.
        """
        listener = listen(bind)
        port: int = listener.getsockname()[1]
        server = await asyncio.get_running_loop().create_server(self._meet, sock=listener)
        try:
            yield port
        finally:
            server.close()
            for carrier in self._waiting:
                self._drop(carrier)

    def _meet(self) -> RecordStream:
        if len(self._waiting) >= self._most_waiting:
            self._waiting = {each for each in self._waiting if each.is_greeting}
        carrier = GatewayCarrier(self._desk)
        if len(self._waiting) >= self._most_waiting:
            carrier.stream.abort()
            return carrier.stream
        self._waiting.add(carrier)
        asyncio.get_running_loop().call_later(self._patience_seconds, self._give_up, carrier)
        return carrier.stream

    def _give_up(self, carrier: GatewayCarrier) -> None:
        self._waiting.discard(carrier)
        self._drop(carrier)

    def _drop(self, carrier: GatewayCarrier) -> None:
        if carrier.is_greeting:
            carrier.stream.abort()
