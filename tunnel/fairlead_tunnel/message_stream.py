"""A connection that keeps order and messages, such as a WebSocket, as a carrier of a tunnel."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from fairlead_tunnel.given_carriers import GivenCarrier, GivenSocket, Keeper
from fairlead_tunnel.handshake import AttachRefused, HandshakeInvalid, Keys
from fairlead_tunnel.outbox import Batch
from fairlead_tunnel.record_stream import CarrierUser
from fairlead_tunnel.records import MAX_BATCH_BYTES, TAG_BYTES, Opener, RecordInvalid, Sealer

MOST_MESSAGE_BYTES: Final = MAX_BATCH_BYTES + TAG_BYTES
"""No message of a carrier is longer: neither a record nor a handshake."""
_DRAIN_SECONDS: Final = 1.0


class MessagePipe(Protocol):
    """What carries the messages."""

    @property
    def can_write(self) -> bool:
        """Say whether a message may be written now."""
        ...

    def write(self, message: bytes) -> None:
        """Write a message."""
        ...

    def close(self) -> None:
        """End it after what was written."""
        ...

    def abort(self) -> None:
        """End it now."""
        ...

    def give(self) -> GivenSocket | None:
        """Give the connection of a WebSocket away, with what was to be written first; nothing more
        is said of it here. None: it stays, as that of any other pipe does.
        """
        ...


class MessageStream:
    """A handshake of one message each way, and then one record in each; no length is told."""

    def __init__(
        self, user: CarrierUser, pipe: MessagePipe, *, most_bytes: int = MAX_BATCH_BYTES
    ) -> None:
        self.most_bytes = most_bytes
        self._user = user
        self._pipe: MessagePipe | None = pipe
        self._sealer: Sealer | None = None
        self._opener: Opener | None = None
        self._fault: Exception | None = None
        self._keys: Keys | None = None
        self._keeper: Keeper | None = None
        self._is_given = False
        self._is_retired = False

    @property
    def is_given(self) -> bool:
        """Say whether the connection was given away."""
        return self._is_given

    @property
    def is_open(self) -> bool:
        """Say whether the connection is still there."""
        return self._pipe is not None

    @property
    def can_send(self) -> bool:
        """Say whether a batch may be sent now."""
        return self._pipe is not None and self.takes_last and self._pipe.can_write

    @property
    def takes_last(self) -> bool:
        """Say whether there is a connection to send the last batch over, full or not."""
        return self._sealer is not None and not self._is_retired

    def greet(self, hello: bytes) -> None:
        """Send this side's message of the handshake."""
        if self._pipe is not None:
            self._pipe.write(hello)

    def send(self, batch: Batch) -> None:
        """Seal and send a batch; one that leaves nowhere is lost with the connection."""
        if self._sealer is not None and self._pipe is not None:
            self._pipe.write(self._sealer.seal(b"".join(batch.pieces))[1])

    def give(self, keeper: Keeper) -> GivenCarrier | None:
        """Give the connection away, from `opened` of its user; see `RecordStream.give`."""
        pipe, keys = self._pipe, self._keys
        if pipe is None or keys is None:
            return None
        given = pipe.give()
        if given is None:
            return None
        self._is_given = True
        self._keeper = keeper
        self._sealer = None
        return GivenCarrier(given, keys, is_websocket=True)

    def given_ended(self, error: Exception) -> None:
        """Note that a connection that was given away has ended."""
        self._pipe = self._keeper = None
        self._user.lost(error)

    def look(self) -> tuple[int, int] | None:
        """Return what `Keeper.look` does; None: the connection is here."""
        return self._keeper.look() if self._keeper is not None else None

    def retire(self) -> None:
        """Send nothing more, and end the connection a second later: what the peer has under way
        comes meanwhile, and word of what was sent here.
        """
        self._is_retired = True
        if self._keeper is not None:
            self._keeper.retire()
        asyncio.get_running_loop().call_later(_DRAIN_SECONDS, self.close)

    def close(self) -> None:
        """End the connection after what was sent."""
        if self._keeper is not None:
            self._keeper.drop()
        elif self._pipe is not None:
            self._pipe.close()

    def abort(self) -> None:
        """End the connection now."""
        if self._keeper is not None:
            self._keeper.drop()
        elif self._pipe is not None:
            self._pipe.abort()

    def received(self, message: bytes) -> None:
        """Take a message of the peer."""
        if self._fault is not None:
            return
        try:
            if self._opener is None:
                self._meet(message)
            else:
                self._user.take(self._opener.open(self._opener.next, message))
        except AttachRefused as error:
            self._fault = error
            self.close()  # after the refusal, which either side may have said
        except (HandshakeInvalid, RecordInvalid) as error:
            self._fault = error
            if self._pipe is not None:
                self._pipe.abort()

    def has_room(self) -> None:
        """Note that messages can be written again."""
        self._user.has_room()

    def lost(self, error: Exception | None) -> None:
        """Note that the connection has ended; only the first time counts, and nothing once it was
        given away.
        """
        if self._pipe is not None and not self._is_given:
            self._pipe = None
            self._sealer = None
            self._user.lost(self._fault or error)

    def _meet(self, message: bytes) -> None:
        found = self._user.greet(message)
        if found is None or found[1] != len(message):
            raise HandshakeInvalid("a handshake is not one message")
        keys, _ = found
        self._keys = keys
        self._sealer = Sealer(suite=keys.suite, key=keys.send)
        self._opener = Opener(suite=keys.suite, key=keys.receive)
        self._user.opened()
