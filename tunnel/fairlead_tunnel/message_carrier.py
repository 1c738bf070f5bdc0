"""The client's carriers that have messages, over a WebSocket, two requests or a data channel."""

from __future__ import annotations

from typing import Protocol

from fairlead_tunnel.carriers import ClientAttach
from fairlead_tunnel.driver_sides import CarrierDriver
from fairlead_tunnel.handshake import ClientHandshake
from fairlead_tunnel.message_stream import MessagePipe, MessageStream
from fairlead_tunnel.records import MAX_BATCH_BYTES


class ClientPipe(MessagePipe, Protocol):
    """A pipe that is open, and over which nothing was said."""

    def lead_to(self, stream: MessageStream) -> None:
        """Give it everything that comes."""
        ...

    def look(self) -> tuple[int, int]:
        """Return how many bytes have come, and how many have not arrived as far as is known."""
        ...


class MessageCarrier(ClientAttach):
    """The client's use of one pipe."""

    stream: MessageStream

    def __init__(
        self,
        *,
        driver: CarrierDriver,
        number: int,
        handshake: ClientHandshake,
        pipe: ClientPipe,
        most_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        super().__init__(driver=driver, number=number, handshake=handshake)
        self.pipe = pipe
        self.stream = MessageStream(self, pipe, most_bytes=most_bytes)
        pipe.lead_to(self.stream)

    def look(self) -> tuple[int, int]:
        """Return how many bytes have come, and how many have not arrived as far as is known."""
        return self.stream.look() or self.pipe.look()

    def retire(self) -> None:
        """Send nothing more, and end once what was under way has had time to come."""
        self.stream.retire()
