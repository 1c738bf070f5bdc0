"""Runs a tunnel on the thread of `fairlead_native`, past the event loop and the interpreter.

Handshakes, tickets and who may connect to what stay here; bytes do not come here. The native part
is looked up by whoever makes a pump, because it is built where a compiler is and may be missing.
"""

from __future__ import annotations

import socket
from typing import Final, Protocol

from fairlead_tunnel.driver_sides import DriverUser
from fairlead_tunnel.record_stream import RecordStream
from fairlead_tunnel.tunnel import Side, TunnelFull

_MOST_GREETING: Final = 8 * 1024
"""A handshake of so many bytes and a few leaves at once: the connection is given away behind it."""


class PumpedUser(DriverUser, Protocol):
    """Who opens and answers channels; none of these may raise."""

    def dial_failed(self, channel: int, error: int) -> None:
        """Dial another address or `refuse`; `error` is an errno; gateway only."""
        ...

    def given_back(
        self, channel: int, connection: socket.socket, early: bytes, reason: str, message: str
    ) -> None:
        """Take a connection whose channel has ended, where `ended` is not told; client only.

        Nothing was done for it: the gateway drains, or the tunnel ended before it heard of the
        channel. `early` was read of it, at most 64 KiB; an end that was read is told again. It
        does not block; one of `listen` says by `getsockname` where it came from.
        """
        ...


class NativeTunnel(Protocol):
    """What is used of `fairlead_native.PumpedTunnel`."""

    @property
    def channels(self) -> int: ...

    @property
    def bytes_read(self) -> int: ...

    @property
    def bytes_written(self) -> int: ...

    def take(self, batch: bytes) -> None: ...

    def first_batch(self, carrier: int, most: int) -> bytes: ...

    def attach(
        self,
        carrier: int,
        connection: socket.socket,
        *,
        suite: int,
        send: bytes,
        receive: bytes,
        received: bytes,
    ) -> None: ...

    def detach(self, carrier: int) -> None: ...

    def listen(self, listener: socket.socket, target: str) -> int: ...

    def stop_listening(self, listener: int) -> None: ...

    def open(self, target: str, *, hold_seconds: float) -> int | None: ...

    def connect(self, channel: int, connection: socket.socket, early: bytes) -> None: ...

    def dial(self, channel: int, host: str, port: int) -> None: ...

    def refuse(self, channel: int, reason: str, message: str) -> None: ...

    def close(self, reason: str, message: str) -> None: ...


class NativePump(Protocol):
    """What is used of `fairlead_native.Pump`."""

    def tunnel(self, *, is_client: bool, user: PumpedDriver) -> NativeTunnel: ...


class PumpedDriver:
    """One side of a tunnel, as `TunnelDriver` but for its ports, which are sockets here.

    A socket that is given to it belongs to it. What it is told happens a little later, on the loop.
    """

    def __init__(self, *, pump: NativePump, side: Side, user: PumpedUser) -> None:
        self._user = user
        self._streams: dict[int, RecordStream] = {}
        self._led: set[int] = set()
        self._refused: set[int] = set()
        self._is_client = side is Side.CLIENT
        self._is_over = False
        self._tunnel = pump.tunnel(is_client=self._is_client, user=self)

    @property
    def is_over(self) -> bool:
        """Say whether the tunnel has ended."""
        return self._is_over

    @property
    def carriers(self) -> int:
        """How many carriers are attached."""
        return len(self._streams)

    @property
    def channels(self) -> int:
        """How many channels have not ended."""
        return self._tunnel.channels

    @property
    def bytes_read(self) -> int:
        """How many bytes were read from the connections of its channels."""
        return self._tunnel.bytes_read

    @property
    def bytes_written(self) -> int:
        """How many bytes were written to the connections of its channels."""
        return self._tunnel.bytes_written

    # Carriers

    def attach(self, number: int, carrier: RecordStream) -> None:
        """Use a carrier from now on; one that comes when the tunnel is over is closed."""
        if self._is_over:
            carrier.close()
            return
        given = carrier.give(lambda: self._tunnel.detach(number))
        if given is None:
            return
        self._streams[number] = carrier
        self._tunnel.attach(
            number,
            given.connection,
            suite=given.keys.suite,
            send=given.keys.send,
            receive=given.keys.receive,
            received=given.received,
        )

    def detach(self, number: int) -> None:
        """Send again what a carrier had under way: it is lost."""
        self._tunnel.detach(number)

    def take(self, batch: bytes) -> None:
        """Take a batch that came with a handshake."""
        self._tunnel.take(batch)

    def hello_batch(self, number: int, most: int) -> bytes:
        """Return what goes with a client's hello: what there is to send, and which carriers live.

        The number is that of the hello's carrier; `attach` or `detach` follows.
        """
        return self._tunnel.first_batch(number, min(most, _MOST_GREETING))

    def answer_batch(self, number: int, most: int) -> bytes:
        """Return what goes with a gateway's answer; empty when there is nothing."""
        return self._tunnel.first_batch(number, min(most, _MOST_GREETING))

    def flush_soon(self) -> None:
        """Do nothing: the thread sends what there is."""

    # Channels

    def listen(self, listener: socket.socket, target: str) -> int:
        """Lead the connections of a listening socket to a target; returns the listener's number."""
        return self._tunnel.listen(listener, target)

    def stop_listening(self, listener: int) -> None:
        """Accept no more; when this returns the address is free."""
        self._tunnel.stop_listening(listener)

    def open(self, target: str, *, hold_seconds: float = 0.0) -> int:
        """Open a channel; its OPEN waits for its first bytes for at most `hold_seconds`.

        TunnelFull: no more channels now, or the tunnel is over.
        """
        channel = self._tunnel.open(target, hold_seconds=hold_seconds)
        if channel is None:
            raise TunnelFull("the tunnel is over, or has as many channels as it may")
        return channel

    def connect(self, channel: int, connection: socket.socket, early: bytes = b"") -> None:
        """Lead a channel to a connection that is there, which accepts it at a gateway.

        `early` was read of it, and comes before what is still to be read.
        """
        if self._is_client:
            self._led.add(channel)
        self._tunnel.connect(channel, connection, early)

    def dial(self, channel: int, host: str, port: int) -> None:
        """Connect an IP address and lead a channel there; `dial_failed` says when that fails."""
        self._tunnel.dial(channel, host, port)

    def refuse(self, channel: int, reason: str, message: str) -> None:
        """Give a channel up, and drop its connection."""
        if channel in self._led:
            self._refused.add(channel)
        self._tunnel.refuse(channel, reason, message)

    def close(self, reason: str, message: str) -> None:
        """End the tunnel, its ports and its carriers, after telling the peer; once."""
        self._tunnel.close(reason, message)

    # What the pump tells

    def wanted(self, channel: int, target: str) -> None:
        """Pass on that a channel is wanted."""
        self._user.wanted(channel, target)

    def accepted(self, channel: int) -> None:
        """Pass on that a target is connected."""
        self._user.accepted(channel)

    def dial_failed(self, channel: int, error: int) -> None:
        """Pass on that an address was not reached."""
        self._user.dial_failed(channel, error)

    def ended(self, channel: int, reason: str, message: str) -> None:
        """Pass on that a channel has ended."""
        self._led.discard(channel)
        self._refused.discard(channel)
        self._user.ended(channel, reason, message)

    def unled(self, channel: int, reason: str, message: str) -> None:
        """Pass on that a channel has ended, unless a connection is on its way to it."""
        if channel not in self._led:
            self._user.ended(channel, reason, message)

    def given_back(
        self, channel: int, connection: socket.socket, early: bytes, reason: str, message: str
    ) -> None:
        """Give a connection back, unless its user has given it up meanwhile."""
        self._led.discard(channel)
        if channel in self._refused:
            connection.close()
            self.ended(channel, reason, message)
            return
        self._user.given_back(channel, connection, early, reason, message)

    def carrier_lost(self, number: int, message: str) -> None:
        """Tell a carrier that it has ended."""
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.given_ended(ConnectionError(message))

    def over(self, reason: str, message: str) -> None:
        """Pass on that the tunnel has ended."""
        self._is_over = True
        self._user.over(reason, message)

    def gone(self) -> None:
        """Tell carriers that came when the tunnel was over."""
        for number in [*self._streams]:
            self.carrier_lost(number, "The tunnel is over.")
