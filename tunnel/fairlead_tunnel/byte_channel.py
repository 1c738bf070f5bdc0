"""One TCP-like byte stream over an ordered, reliable message channel, without I/O.

The protocol is `fairlead.bytes.v1`. A WebRTC data channel with a label of
`fairlead_tunnel.targets`, that protocol, ordered and reliable, is one TCP connection. The side that
creates it is the *opener* (a client), the other one the *acceptor* (a worker or a gateway).

    message              from        meaning
    binary, 1..65536 B   both        the next bytes of the stream
    text `ready`         acceptor    the port is connected; once, before its bytes and `eof`
    text `credit <n>`    both        the receiver of bytes grants n more (decimal, 1 to 9 digits)
    text `eof`           both        the sender sends no more bytes; the other direction goes on
    text `reset <json>`  both        `{"reason": "lower_snake_case", "message": "A sentence."}`:
                                     over at once, both ways

Bytes are sent only against credit: each direction starts with 1 MiB and never has more than 16 MiB
granted and not yet used. Credit exists because a data channel cannot be paused by its reader. The
opener may send bytes and `eof` before `ready`. When both sides have sent `eof` the stream is
complete and either may close the data channel; closing it earlier loses the stream. 65536 bytes is
what a WebRTC peer takes that does not say more (RFC 8841, section 6.1).

What each received message does; P is a protocol error: it resets with reason `protocol_error`.

    received                      opener, not ready  opener, ready  acceptor   after peer's `eof`
    bytes within credit           P                  bytes          bytes      P
    bytes: too many, long, none   P                  P              P          P
    `ready`                       ready              P              P          P
    `credit`, at most 16 MiB      more credit        more credit    the same   more credit
    `eof`                         P                  end of bytes   the same   P
    `reset`                       over               over           over       over
    any other text                P                  P              P          P
    anything once it is over      ignored            ignored        ignored    ignored
    the data channel closes       lost               lost           lost       lost, or complete
"""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

PROTOCOL: Final = "fairlead.bytes.v1"
INITIAL_WINDOW: Final = 1024 * 1024
MAX_WINDOW: Final = 16 * 1024 * 1024
MAX_MESSAGE_BYTES: Final = 64 * 1024
MAX_TEXT: Final = 4096

_CREDIT = re.compile(r"credit ([1-9][0-9]{0,8})")
_REASON = re.compile(r"[a-z][a-z0-9_]{0,63}")


class Side(Enum):
    """Which end of the channel this is."""

    OPENER = "opener"
    ACCEPTOR = "acceptor"


@dataclass(frozen=True, slots=True)
class Ready:
    """The acceptor has connected the port."""


@dataclass(frozen=True, slots=True)
class Received:
    """The next bytes of the stream; say `consumed` when they have left this process."""

    content: bytes


@dataclass(frozen=True, slots=True)
class PeerFinished:
    """The peer sends no more bytes."""


@dataclass(frozen=True, slots=True)
class Over:
    """The stream ended incomplete: reset by either side, or the data channel was lost."""

    reason: str
    message: str


Event: TypeAlias = Ready | Received | PeerFinished | Over
Message: TypeAlias = str | bytes


class Misuse(RuntimeError):
    """This side asked for what the protocol does not allow: a fault of the program."""


def reset_message(reason: str, message: str) -> str:
    """Return the message that ends a stream; the sentence is cut after 256 characters."""
    if not _REASON.fullmatch(reason):
        raise Misuse("a reason is lower snake case")
    text = json.dumps({"reason": reason, "message": message[:256]}, ensure_ascii=True)
    return f"reset {text}"


class ByteChannel:
    """The state of one end; send what `take_outgoing` returns, in that order."""

    def __init__(self, *, side: Side) -> None:
        self._side = side
        self._ready = False
        self._over: Over | None = None
        self._sent_eof = False
        self._peer_eof = False
        self._credit = INITIAL_WINDOW
        self._granted = INITIAL_WINDOW
        self._consumed = 0
        self._outgoing: deque[Message] = deque()

    @property
    def sendable(self) -> int:
        """How many bytes may be sent now."""
        may_send = self._side is Side.OPENER or self._ready
        return self._credit if may_send and not self._sent_eof and not self._over else 0

    @property
    def over(self) -> Over | None:
        """Why it ended before it was complete, or None."""
        return self._over

    @property
    def is_complete(self) -> bool:
        """Say whether both sides have sent `eof` and nothing went wrong."""
        return self._sent_eof and self._peer_eof and self._over is None

    @property
    def peer_finished(self) -> bool:
        """Say whether the peer has sent `eof`."""
        return self._peer_eof

    def take_outgoing(self) -> list[Message]:
        """Return the messages to send now, oldest first, and forget them."""
        messages = list(self._outgoing)
        self._outgoing.clear()
        return messages

    def accept(self) -> None:
        """Say that the port is connected; acceptor only, once."""
        if self._over:
            return
        if self._side is not Side.ACCEPTOR or self._ready:
            raise Misuse("only an acceptor accepts, and once")
        self._ready = True
        self._outgoing.append("ready")

    def send(self, content: bytes) -> None:
        """Send 1 to 65536 bytes, at most `sendable`; nothing happens once it is over."""
        if self._over:
            return
        if not 1 <= len(content) <= min(self.sendable, MAX_MESSAGE_BYTES):
            raise Misuse(f"{len(content)} bytes cannot be sent now")
        self._credit -= len(content)
        self._outgoing.append(content)

    def finish(self) -> None:
        """Send no more bytes; an acceptor must have accepted."""
        if self._over:
            return
        if self._sent_eof or (self._side is Side.ACCEPTOR and not self._ready):
            raise Misuse("eof is sent once, by an acceptor only after accepting")
        self._sent_eof = True
        self._outgoing.append("eof")

    def consumed(self, count: int) -> None:
        """Note that `count` received bytes have left; grants credit a quarter window at a time."""
        if self._over:
            return
        if not 0 <= count <= INITIAL_WINDOW - self._granted - self._consumed:
            raise Misuse("more consumed than received")
        self._consumed += count
        if self._consumed >= INITIAL_WINDOW // 4 and not self._peer_eof:
            self._outgoing.append(f"credit {self._consumed}")
            self._granted += self._consumed
            self._consumed = 0

    def reset(self, reason: str, message: str) -> None:
        """End the stream at once and tell the peer; nothing happens once it is over."""
        if self._over:
            return
        text = reset_message(reason, message)
        self._over = Over(reason, message)
        self._outgoing.append(text)

    def receive(self, message: Message) -> Event | None:
        """Take a message of the peer and return what it means to this side; see the table above."""
        if self._over:
            return None
        if isinstance(message, bytes):
            return self._receive_bytes(message)
        if message == "ready":
            return self._receive_ready()
        if message == "eof":
            return self._receive_eof()
        if found := _CREDIT.fullmatch(message):
            return self._receive_credit(int(found[1]))
        if message.startswith("reset ") and len(message) <= MAX_TEXT:
            return self._receive_reset(message.removeprefix("reset "))
        return self._protocol_error("An unknown message was received.")

    def channel_closed(self) -> Over | None:
        """Note that the data channel is closed; returns the loss unless it was complete or over."""
        if self._over or self.is_complete:
            return None
        self._over = Over("channel_lost", "The data channel was closed before the stream ended.")
        return self._over

    @property
    def _peer_may_send(self) -> bool:
        return not self._peer_eof and (self._side is Side.ACCEPTOR or self._ready)

    def _receive_bytes(self, content: bytes) -> Event:
        if not self._peer_may_send:
            return self._protocol_error("Bytes were received before `ready` or after `eof`.")
        if not 1 <= len(content) <= MAX_MESSAGE_BYTES:
            return self._protocol_error("A binary message has 1 to 65536 bytes.")
        if len(content) > self._granted:
            return self._protocol_error("More bytes were received than were granted.")
        self._granted -= len(content)
        return Received(content)

    def _receive_ready(self) -> Event:
        if self._side is Side.ACCEPTOR or self._ready:
            return self._protocol_error("`ready` was not expected.")
        self._ready = True
        return Ready()

    def _receive_eof(self) -> Event:
        if not self._peer_may_send:
            return self._protocol_error("`eof` was received before `ready` or twice.")
        self._peer_eof = True
        return PeerFinished()

    def _receive_credit(self, count: int) -> Event | None:
        if self._credit + count > MAX_WINDOW:
            return self._protocol_error("More credit was granted than 16 MiB.")
        self._credit += count
        return None

    def _receive_reset(self, text: str) -> Event:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        match found:
            case {"reason": str(reason), "message": str(message)} if _REASON.fullmatch(reason):
                self._over = Over(reason, message)
                return self._over
            case _:
                return self._protocol_error("A malformed `reset` was received.")

    def _protocol_error(self, message: str) -> Over:
        over = Over("protocol_error", message)
        self.reset(over.reason, over.message)
        return over
