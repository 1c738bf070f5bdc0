"""A connection that keeps order as a carrier of a tunnel: a handshake, and then records."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Protocol, cast

from fairlead_tunnel.given_carriers import GivenCarrier, GivenSocket, Keeper, take_socket
from fairlead_tunnel.handshake import MAX_HELLO_BYTES, AttachRefused, HandshakeInvalid, Keys
from fairlead_tunnel.outbox import Batch
from fairlead_tunnel.receive_buffer import ReceiveBuffer
from fairlead_tunnel.records import (
    LENGTH_BYTES,
    MAX_BATCH_BYTES,
    TAG_BYTES,
    Opener,
    RecordInvalid,
    Sealer,
)
from fairlead_tunnel.silence import notice_silence, unarrived

_LARGEST_RECORD: Final = LENGTH_BYTES + MAX_BATCH_BYTES + TAG_BYTES
_MOST_UNSENT: Final = 512 * 1024
LINGER_SECONDS: Final = 2.0
"""For what was sent to leave, and for the peer to end its direction."""


class CarrierUser(Protocol):
    """Who speaks through a record stream; none of these but `greet` may raise."""

    def greet(self, received: bytes) -> tuple[Keys, int] | None:
        """Take what came until the handshake is done: its keys, and how many bytes it has.

        None: more has to come. HandshakeInvalid and AttachRefused end the connection.
        """
        ...

    def opened(self) -> None:
        """Note that records can be sent."""
        ...

    def take(self, batch: bytes) -> None:
        """Take a batch of the peer."""
        ...

    def has_room(self) -> None:
        """Note that there is room again after `can_send` was false."""
        ...

    def lost(self, error: Exception | None) -> None:
        """Note that the connection has ended, for whatever reason; called once."""
        ...


class RecordStream(asyncio.BufferedProtocol):
    """The protocol of such a connection.

    At most two records wait here for the rest of theirs, and 768 KiB to be sent. What comes is
    always read: the limits of the tunnel's channels bound it.
    """

    most_bytes = MAX_BATCH_BYTES

    def __init__(self, user: CarrierUser) -> None:
        self._user = user
        self._transport: asyncio.Transport | None = None
        self._buffer = ReceiveBuffer(most=2 * _LARGEST_RECORD)
        self._sealer: Sealer | None = None
        self._opener: Opener | None = None
        self._received = 0
        self._is_full = False
        self._is_closing = False
        self._linger: asyncio.TimerHandle | None = None
        self._fault: Exception | None = None
        self._keys: Keys | None = None
        self._is_given = False
        self._keeper: Keeper | None = None

    @property
    def can_send(self) -> bool:
        """Say whether a batch may be sent now."""
        return not self._is_full and self.takes_last

    @property
    def takes_last(self) -> bool:
        """Say whether there is a connection to send the last batch over, full or not."""
        return self._sealer is not None and not self._is_closing

    def look(self) -> tuple[int, int]:
        """Return how many bytes have come, and how many have not arrived as far as is known."""
        if self._keeper is not None:
            return self._keeper.look()
        return self._received, unarrived(self._transport)

    @property
    def is_connected(self) -> bool:
        """Say whether the connection was made and has not ended."""
        return self._transport is not None or self._keeper is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; asyncio calls this, and has set TCP_NODELAY."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_MOST_UNSENT)
        if self._is_closing:
            self._transport.abort()
        else:
            notice_silence(transport.get_extra_info("socket"), always_reads=True)

    def greet(self, hello: bytes) -> None:
        """Send a part of the handshake."""
        if self._transport is not None and not self._is_closing:
            self._transport.write(hello)

    def send(self, batch: Batch) -> None:
        """Seal and send a batch; one that leaves nowhere is lost with the connection."""
        if self._sealer is None or self._transport is None or self._is_closing:
            return
        # A view, since asyncio slices what does not leave at once.
        record = self._sealer.seal_in_order(b"".join(batch.pieces))
        self._transport.write(memoryview(record))

    def give(self, keeper: Keeper) -> GivenCarrier | None:
        """Give the connection away, from `opened` of its user: nothing is read or written here.

        Who has it calls `given_ended` when it has ended. None, and it stays here; see
        `take_socket`.
        """
        transport, keys = self._transport, self._keys
        if transport is None or keys is None:
            return None
        connection = take_socket(transport)
        if connection is None:
            return None
        self._is_given = True
        self._keeper = keeper
        self._sealer = self._opener = None
        return GivenCarrier(GivenSocket(connection, self._buffer.drain()), keys)

    def given_ended(self, error: Exception) -> None:
        """Note that a connection that was given away has ended."""
        self._keeper = None
        self._user.lost(error)

    def close(self) -> None:
        """End this direction after what was sent, and the connection once the peer has ended its
        own, or 2 s later: one that is closed under what its peer still sends is reset, and what was
        sent before may be lost. What comes meanwhile is taken.
        """
        if self._keeper is not None:
            self._keeper.drop()
            return
        was_closing, self._is_closing = self._is_closing, True
        transport = self._transport
        if transport is None or was_closing or transport.is_closing():
            return
        if not transport.can_write_eof():
            transport.close()
            return
        self._linger = asyncio.get_running_loop().call_later(LINGER_SECONDS, transport.abort)
        with contextlib.suppress(OSError):  # it was reset, which is told as its loss
            transport.write_eof()

    def abort(self) -> None:
        """End the connection at once, and drop what was not sent."""
        if self._keeper is not None:
            self._keeper.drop()
            return
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Say where to read to; asyncio calls this."""
        return self._buffer.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read; asyncio calls this."""
        self._received += nbytes
        self._buffer.filled(nbytes)
        if self._fault is not None:
            self._buffer.drain()
            return
        try:
            if self._opener is not None or self._greeted():
                self._take_records()
        except AttachRefused as error:
            self._fault = error
            self.close()  # after the refusal, which either side may have said
        except (HandshakeInvalid, RecordInvalid) as error:
            self._fault = error
            self.abort()

    def _greeted(self) -> bool:
        received = bytes(self._buffer.content)
        found = self._user.greet(received)
        if found is None:
            if len(received) > MAX_HELLO_BYTES:
                raise HandshakeInvalid("a handshake is longer than any")
            return False
        keys, size = found
        self._buffer.take(size)
        self._keys = keys
        self._sealer = Sealer(suite=keys.suite, key=keys.send)
        self._opener = Opener(suite=keys.suite, key=keys.receive)
        self._user.opened()
        return True

    def _take_records(self) -> None:
        while self._fault is None and (opener := self._opener) is not None:
            content = self._buffer.content
            if len(content) < LENGTH_BYTES:
                return
            end = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "big")
            if end > _LARGEST_RECORD:
                raise RecordInvalid("a record is longer than any")
            if len(content) < end:
                self._buffer.need(end)
                return
            batch = opener.open(opener.next, content[LENGTH_BYTES:end])
            self._buffer.take(end)
            self._user.take(batch)

    def pause_writing(self) -> None:
        """Send no more for now; asyncio calls this."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Go on; asyncio calls this."""
        self._is_full = False
        self._user.has_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that it has ended; asyncio calls this."""
        self._transport = None
        if self._linger is not None:
            self._linger.cancel()
        if self._is_given:
            return
        self._sealer = self._opener = None
        self._is_closing = True
        self._user.lost(self._fault or exc)
