"""Runs a tunnel on the thread of `fairlead_native`, past the event loop and the interpreter.

Handshakes, tickets and who may connect to what stay here; bytes do not come here. The native part
is looked up by whoever makes a pump, because it is built where a compiler is and may be missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from typing import Final, Protocol

from fairlead_tunnel.driver_sides import DriverUser, OrderedCarrier
from fairlead_tunnel.message_stream import MessageStream
from fairlead_tunnel.native_tunnel import NativeTunnel, PumpedCarrier
from fairlead_tunnel.outbox import SMALLEST_BATCH, Batch
from fairlead_tunnel.record_stream import RecordStream
from fairlead_tunnel.socks5 import Credentials
from fairlead_tunnel.tunnel import MOST_CHANNELS, Side, TunnelFull

_MOST_GREETING: Final = 8 * 1024
"""A handshake of so many bytes and a few leaves at once: the connection is given away behind it."""
_MOST_BATCHES: Final = 8
"""So many leave at a time before others on the loop have their turn."""


class PumpedUser(DriverUser, Protocol):
    """Who opens and answers channels; none of these may raise."""

    def dialled(self, channel: int, target: str, error: int, seconds: float) -> None:
        """Note a dial that failed or took 50 ms; gateway only.

        After an error, which is an errno, `refuse` or dial again; 0: it is connected.
        """
        ...

    def given_back(
        self, channel: int, connection: socket.socket, early: bytes, reason: str, message: str
    ) -> None:
        """Take a connection whose channel has ended, where `ended` is not told; client only.

        Nothing was done for it: the gateway drains, or the tunnel ended before it heard of the
        channel (`open_unsent`); or it waits for its reply still. `early` was read of it, at most
        16 MiB; an end that was read is told again. It does not block; one of `listen` says by
        `getsockname` where it came from.
        """
        ...


class NativePump(Protocol):
    """What is used of `fairlead_native.Pump`."""

    def tunnel(
        self, *, is_client: bool, user: PumpedDriver, most_channels: int
    ) -> NativeTunnel: ...


class PumpedDriver:
    """One side of a tunnel, as `TunnelDriver` but for its ports, which are sockets here.

    A socket that is given to it belongs to it. What it is told happens a little later, on the loop.
    """

    def __init__(
        self,
        *,
        pump: NativePump,
        side: Side,
        user: PumpedUser,
        most_channels: int = MOST_CHANNELS,
    ) -> None:
        self._user = user
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, RecordStream | MessageStream] = {}
        self._foreign: dict[int, OrderedCarrier] = {}
        self._soon: asyncio.Handle | None = None
        self._is_armed = False
        self._last = b""
        self._open: set[int] = set()
        self._led: set[int] = set()
        self._refused: set[int] = set()
        self._is_client = side is Side.CLIENT
        self._is_over = False
        self._is_told = False
        self._tunnel = pump.tunnel(
            is_client=self._is_client, user=self, most_channels=most_channels
        )

    @property
    def is_over(self) -> bool:
        """Say whether the tunnel has ended."""
        return self._is_over

    @property
    def carriers(self) -> int:
        """How many carriers are attached."""
        return len(self._streams) + len(self._foreign)

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

    def attach(self, number: int, carrier: OrderedCarrier) -> None:
        """Use a carrier from now on; one that comes when the tunnel is over is closed.

        A connection that can be is given away; any other carrier is given batches.
        """
        if self._is_over:
            carrier.close()
            return
        given = None
        if isinstance(carrier, RecordStream | MessageStream):
            given = carrier.give(PumpedCarrier(self._tunnel, number))
        if not isinstance(carrier, RecordStream | MessageStream) or given is None:
            self._foreign[number] = carrier
            self._tunnel.attach_foreign(number)
            self.flush_soon()
            return
        self._streams[number] = carrier
        self._tunnel.attach(
            number,
            given.given.connection,
            suite=given.keys.suite,
            send=given.keys.send,
            receive=given.keys.receive,
            received=given.given.received,
            unsent=given.given.unsent,
            is_websocket=given.is_websocket,
        )

    def detach(self, number: int, *, heard: bool = False, reached: bool = True) -> None:
        """Send again what a carrier had under way; see `CarrierDriver.detach`."""
        self._foreign.pop(number, None)
        self._tunnel.detach(number, heard=heard, reached=reached)
        self._flush_unless_armed()

    def take(self, batch: bytes) -> None:
        """Take a batch that came over a carrier, or with a handshake."""
        self._tunnel.take(batch)
        self._flush_unless_armed()

    def hello_batch(self, number: int, most: int) -> bytes:
        """Return what goes with a client's hello: what there is to send, and which carriers live.

        The number is that of the hello's carrier; `attach` or `detach` follows.
        """
        return self._first_batch(number, most)

    def answer_batch(self, number: int, most: int, *, restate: bool = False) -> bytes:
        """Return what goes with a gateway's answer; empty when there is nothing.

        With `restate` it says what has come though another carrier is about to tell it too.
        """
        return self._first_batch(number, most, restate=restate)

    def _first_batch(self, number: int, most: int, *, restate: bool = False) -> bytes:
        if self._last:
            last, self._last = self._last, b""
            return last
        most = min(most, _MOST_GREETING)
        with contextlib.suppress(RuntimeError):  # the pump has failed, which is about to be told
            return self._tunnel.first_batch(number, most, restate=restate)
        return b""

    def ping(self) -> None:
        """Ask the peer for a sign of life, and tell it which carriers a client has."""
        self._tunnel.ping()

    def flush_soon(self) -> None:
        """Send what there is when the loop has its turn: a carrier that is here has room."""
        if self._foreign and self._soon is None:
            self._soon = self._loop.call_soon(self._flush)

    def _flush_unless_armed(self) -> None:
        if not self._is_armed:
            self.flush_soon()

    def _flush(self) -> None:
        self._soon = None
        for _ in range(_MOST_BATCHES):
            if not self._send_one():
                break
        else:
            self.flush_soon()

    def _send_one(self) -> bool:
        """Send a batch over each carrier that is here and can; say whether any was."""
        has_sent = False
        for number, carrier in [*self._foreign.items()]:
            if not carrier.can_send:
                continue
            batch = None
            with contextlib.suppress(RuntimeError):  # the pump has failed
                batch = self._tunnel.take_batch(number, carrier.most_bytes)
            if batch is None:
                continue  # the client has lost it, which is about to be told
            self._is_armed = not batch
            if not batch:
                return has_sent
            carrier.send(Batch(0, [batch], len(batch)))
            has_sent = True
        return has_sent

    def _flush_last(self) -> None:
        """Send what ends the tunnel, behind all that carriers have room for where all are full."""
        self._flush()
        for number, carrier in [*self._foreign.items()]:
            if carrier.takes_last:
                with contextlib.suppress(RuntimeError):  # the pump has failed
                    if batch := self._tunnel.take_batch(number, SMALLEST_BATCH):
                        carrier.send(Batch(0, [batch], len(batch)))

    # Channels

    def listen(self, listener: socket.socket, target: str, *, hold_seconds: float = 0.0) -> int:
        """Lead the connections of a listening socket to a target; returns the listener's number.

        Their OPENs wait for their first bytes for at most `hold_seconds`.
        """
        return self._tunnel.listen(listener, target, hold_seconds=hold_seconds)

    def listen_socks(
        self, listener: socket.socket, credentials: Credentials | None, *, seconds: float
    ) -> int:
        """Serve SOCKS5 on a listening socket to clients that ask within `seconds`; returns the
        listener's number.

        A client that was not answered yet is given back with all that was read of it, messages
        that were answered first. A channel 0 stands for that of a client that has none.
        """
        pair = None if credentials is None else (credentials.user, credentials.password)
        return self._tunnel.listen_socks(listener, pair, seconds=seconds)

    def stop_listening(self, listener: int) -> None:
        """Accept no more; when this returns the address is free.

        Clients of SOCKS5 that have not asked yet are given back with OPEN_UNSENT.
        """
        with contextlib.suppress(RuntimeError):  # the pump has failed: it listens no more
            self._tunnel.stop_listening(listener)

    def open(self, target: str, *, hold_seconds: float = 0.0) -> int:
        """Open a channel; its OPEN waits for its first bytes for at most `hold_seconds`.

        TunnelFull: no more channels now, or the tunnel is over.
        """
        channel = None
        if not self._is_over:
            with contextlib.suppress(
                RuntimeError
            ):  # the pump has failed, which is about to be told
                channel = self._tunnel.open(target, hold_seconds=hold_seconds)
        if channel is None:
            raise TunnelFull("the tunnel is over, or has as many channels as it may")
        self._open.add(channel)
        return channel

    def connect(
        self, channel: int, connection: socket.socket, early: bytes = b"", reply: bytes = b""
    ) -> None:
        """Lead a channel to a connection that is there, which accepts it at a gateway.

        `early` was read of it, and comes before what is still to be read. One with a `reply` is
        told that when the target is there, and is given back where it never is.
        """
        if self._is_client:
            self._led.add(channel)
        self._tunnel.connect(channel, connection, early, reply)

    def dial(
        self,
        channel: int,
        addresses: Sequence[str],
        port: int,
        *,
        seconds: float,
        spent: float = 0.0,
    ) -> None:
        """Lead a channel to the first of some IP addresses that answers, each in its share of
        `seconds`, of which some were `spent`; `dialled` says when that fails.
        """
        self._tunnel.dial(channel, addresses, port, seconds=seconds, spent=spent)

    def refuse(self, channel: int, reason: str, message: str) -> None:
        """Give a channel up, and drop its connection."""
        if channel in self._led:
            self._refused.add(channel)
        self._tunnel.refuse(channel, reason, message)

    def recall(self) -> None:
        """End what no carrier has taken the OPEN of, with OPEN_UNSENT; client only."""
        self._tunnel.recall()

    def close(self, reason: str, message: str) -> None:
        """End the tunnel, its ports and its carriers, after telling the peer; once."""
        if self._is_over:
            return
        self._is_over = True
        self._tunnel.close(reason, message)
        self._flush_last()  # before whoever closes ends the carriers that are here

    # What the pump tells

    def wanted(self, channel: int, target: str) -> None:
        """Pass on that a channel is wanted."""
        self._open.add(channel)
        self._user.wanted(channel, target)

    def accepted(self, channel: int) -> None:
        """Pass on that a target is connected."""
        self._user.accepted(channel)

    def dialled(self, channel: int, target: str, error: int, seconds: float) -> None:
        """Pass on how a dial went."""
        self._user.dialled(channel, target, error, seconds)

    def ended(self, channel: int, reason: str, message: str) -> None:
        """Pass on that a channel has ended."""
        self._open.discard(channel)
        self._led.discard(channel)
        self._refused.discard(channel)
        self._user.ended(channel, reason, message)

    def unled(self, channel: int, reason: str, message: str) -> None:
        """Pass on that a channel has ended, unless a connection is on its way to it."""
        if channel not in self._led:
            self.ended(channel, reason, message)

    def given_back(
        self, channel: int, connection: socket.socket, early: bytes, reason: str, message: str
    ) -> None:
        """Give a connection back, unless its user has given it up meanwhile."""
        self._led.discard(channel)
        if channel in self._refused:
            connection.close()
            self.ended(channel, reason, message)
            return
        self._open.discard(channel)
        self._user.given_back(channel, connection, early, reason, message)

    def sendable(self) -> None:
        """Send what there is over carriers that are here."""
        self._is_armed = False
        self._flush()

    def carrier_lost(self, number: int, message: str) -> None:
        """Tell a carrier that it has ended, or end one that the client has lost."""
        if (stream := self._streams.pop(number, None)) is not None:
            stream.given_ended(ConnectionError(message))
        if (foreign := self._foreign.pop(number, None)) is not None:
            foreign.abort()

    def over(self, reason: str, message: str) -> None:
        """Pass on that the tunnel has ended."""
        self._is_over = self._is_told = True
        self._flush_last()  # which tells the peer
        if self._soon is not None:
            self._soon.cancel()
        foreign, self._foreign = self._foreign, {}
        for carrier in foreign.values():
            carrier.close()
        self._user.over(reason, message)

    def untold(self, last: bytes) -> None:
        """Keep what ends the tunnel for a later answer."""
        self._last = last

    def gone(self) -> None:
        """Tell carriers that came when the tunnel was over."""
        for number in [*self._streams]:
            self.carrier_lost(number, "The tunnel is over.")

    def failed(self, message: str) -> None:
        """Pass on that everything has ended with the pump."""
        reason = "client_failed" if self._is_client else "gateway_failed"
        self._is_over = True
        for channel in [*self._open]:
            self.ended(channel, reason, message)
        if not self._is_told:
            self.over(reason, message)
        self.gone()
