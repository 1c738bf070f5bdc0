"""The asyncio face of the thread that pumps tunnels: its eventfd wakes the loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from fairlead_native._core import PumpCore

if TYPE_CHECKING:
    from fairlead_native._core import TunnelCounts

MOST_CHANNELS: Final = 4096


class TunnelUser(Protocol):
    """Who is told what happens to a tunnel, on the loop; none of these may raise."""

    def wanted(self, channel: int, target: str) -> None:
        """Connect a target: `dial`, `connect` or `refuse`; gateway only."""
        ...

    def accepted(self, channel: int) -> None:
        """Note that the target of a channel of `open` is connected; client only."""
        ...

    def dialled(self, channel: int, target: str, error: int, seconds: float) -> None:
        """Note a dial that failed or took 50 ms; `error` is an errno, or 0: it is connected.

        After an error, `dial` again or `refuse`.
        """
        ...

    def ended(self, channel: int, reason: str, message: str) -> None:
        """Note that a channel has ended.

        The reason is empty when both directions finished, which is not told of channels that came
        from a listener or were dialled; of a connection to a listener that found no channel left it
        is told of 0.
        """
        ...

    def unled(self, channel: int, reason: str, message: str) -> None:
        """Note that a channel has ended that had no connection yet; client only.

        When `connect` was called meanwhile, `ended` or `given_back` says what came of that.
        """
        ...

    def given_back(
        self, channel: int, connection: socket.socket, early: bytes, reason: str, message: str
    ) -> None:
        """Take a connection whose channel has ended with nothing done; client only.

        `early` was read of it, and an end that was read is told again. It does not block.
        """
        ...

    def sendable(self) -> None:
        """Ask for batches for carriers that were not given away; once after each empty one."""
        ...

    def carrier_lost(self, number: int, message: str) -> None:
        """Note that a carrier has ended; once for each that was given away.

        One that was not is to be dropped: the client has lost it.
        """
        ...

    def over(self, reason: str, message: str) -> None:
        """Note that the tunnel has ended, after all its channels and before its carriers."""
        ...

    def untold(self, last: bytes) -> None:
        """Note the batch that ends the tunnel, which no carrier took; the pump has no more."""
        ...

    def gone(self) -> None:
        """Note that its carriers have ended too; nothing follows."""
        ...

    def failed(self, message: str) -> None:
        """Note that the pump has ended, with all that it had; nothing follows.

        What asks the pump for something raises RuntimeError when this was a fault of its own.
        """
        ...


class Pump:
    """A thread and its tunnels; made and used in one running loop."""

    def __init__(self) -> None:
        self._core = PumpCore()
        self._loop = asyncio.get_running_loop()
        self._teller = _Teller(loop=self._loop, core=self._core)
        self._descriptor = self._core.fileno()
        self._loop.add_reader(self._descriptor, self._dispatch)
        self._is_closed = False

    def tunnel(
        self, *, is_client: bool, user: TunnelUser, most_channels: int = MOST_CHANNELS
    ) -> PumpedTunnel:
        """Make one side of a tunnel, without carriers.

        A client opens at most `most_channels`, and a gateway refuses more. RuntimeError: the pump
        has ended.
        """
        if self._is_closed:
            raise RuntimeError("the pump was closed")
        counts = self._core.tunnel(is_client, most_channels)
        self._teller.users[counts.id] = user
        return PumpedTunnel(core=self._core, counts=counts)

    def close(self) -> None:
        """Drop all connections and end the thread; again changes nothing.

        Tunnels that have not ended before are told that they `failed`.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._descriptor)
        self._core.stop()
        self._dispatch()
        self._teller.ended_all("The pump was closed.")

    def _dispatch(self) -> None:
        self._core.dispatch(self._teller)


class PumpedTunnel:
    """One side of a tunnel; sockets that are given to it belong to it, whatever comes of it."""

    def __init__(self, *, core: PumpCore, counts: TunnelCounts) -> None:
        self._core = core
        self._counts = counts
        self._listeners = 0

    @property
    def number(self) -> int:
        """Its number in the pump."""
        return self._counts.id

    @property
    def channels(self) -> int:
        """How many channels have not ended."""
        return self._counts.channels

    @property
    def bytes_read(self) -> int:
        """How many bytes were read from the connections of its channels."""
        return self._counts.read

    @property
    def bytes_written(self) -> int:
        """How many bytes were written to the connections of its channels."""
        return self._counts.written

    # Carriers

    def take(self, batch: bytes) -> None:
        """Take a batch that came with a handshake."""
        self._core.take(self.number, batch)

    def first_batch(self, carrier: int, most: int, *, restate: bool = False) -> bytes:
        """Return what goes with a carrier's handshake, at most `most` bytes, 4096 or more.

        With `restate` it says what has come though another carrier is about to tell it too.
        """
        return self._core.first_batch(self.number, carrier, most, restate)

    def attach(
        self,
        carrier: int,
        connection: socket.socket,
        *,
        suite: int,
        send: bytes,
        receive: bytes,
        received: bytes = b"",
        unsent: bytes = b"",
        is_websocket: bool = False,
    ) -> None:
        """Use a connection as a carrier, with the keys of its handshake, what came behind that, and
        what of it has not left.

        That of a WebSocket carries its frames.
        """
        given = connection.detach(), suite, send, receive, received, unsent, is_websocket
        self._core.attach(self.number, carrier, *given)

    def retire(self, carrier: int) -> None:
        """Send nothing more over a carrier that was given: another one has taken its place."""
        self._core.retire(self.number, carrier)

    def attach_foreign(self, carrier: int) -> None:
        """Make batches for a carrier that stays with whoever calls."""
        self._core.attach_foreign(self.number, carrier)

    def take_batch(self, carrier: int, most: int) -> bytes | None:
        """Return what is to be sent over such a carrier now, at most `most` bytes, 4096 or more.

        After an empty one `sendable` is told when there is something. None: the client has lost
        this carrier, as `carrier_lost` says.
        """
        return self._core.take_batch(self.number, carrier, most)

    def look(self, carrier: int) -> tuple[int, int] | None:
        """Return how many bytes have come over a carrier that was given, and how many have not
        arrived; None: it is gone. RuntimeError: the pump has failed.
        """
        return self._core.look(self.number, carrier)

    def ping(self) -> None:
        """Ask the peer for a sign of life."""
        self._core.ping(self.number)

    def detach(self, carrier: int, *, heard: bool = False, reached: bool = True) -> None:
        """Drop a carrier, also one whose handshake has failed.

        What it had under way is sent again, but for what was `heard` and answered; it counts as
        never sent where nothing of it can have `reached` the peer.
        """
        self._core.detach(self.number, carrier, heard, reached)

    # Channels

    def listen(self, listener: socket.socket, target: str, *, hold_seconds: float = 0.0) -> int:
        """Lead the connections of a listening socket to a target; returns the listener's number.

        Their OPENs wait for their first bytes for at most `hold_seconds`.
        """
        self._listeners += 1
        self._core.listen(self.number, self._listeners, listener.detach(), target, hold_seconds)
        return self._listeners

    def listen_socks(
        self, listener: socket.socket, credentials: tuple[bytes, bytes] | None, *, seconds: float
    ) -> int:
        """Serve SOCKS5 (RFC 1928) on a listening socket; returns the listener's number.

        Clients show the `credentials` (RFC 1929) where there are any, and ask within `seconds`; an
        OPEN waits for nothing. One that was not answered is given back with all that was read of
        it, its messages first: those were answered, but not its request. The channel of one that
        has not asked yet, or could not be opened, is 0. Who is refused is told as `ended`,
        "client_refused", with channel 0, too.
        """
        self._listeners += 1
        self._core.listen_socks(
            self.number, self._listeners, listener.detach(), credentials, seconds
        )
        return self._listeners

    def stop_listening(self, listener: int) -> None:
        """Accept no more; when this returns the address is free.

        Clients of SOCKS5 that have not asked yet are given back, "open_unsent".
        """
        self._core.stop_listening(self.number, listener)

    def open(self, target: str, *, hold_seconds: float = 0.0) -> int | None:
        """Open a channel and return its number; None: there are too many, or the tunnel is over.

        Its OPEN waits for its first bytes for at most `hold_seconds`.
        """
        return self._core.open(self.number, target, hold_seconds)

    def connect(
        self, channel: int, connection: socket.socket, early: bytes = b"", reply: bytes = b""
    ) -> None:
        """Lead a channel to a connection of which `early` was read; this accepts a gateway's.

        One with a `reply` is told that when the target is there, and is given back where it never
        is, whatever the reason.
        """
        self._core.connect(self.number, channel, connection.detach(), early, reply)

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

        Nothing happens where the channel has ended, or has a connection.
        """
        self._core.dial(self.number, channel, addresses, port, seconds, spent)

    def refuse(self, channel: int, reason: str, message: str) -> None:
        """Give a channel up, and drop its connection."""
        self._core.refuse(self.number, channel, reason, message)

    def recall(self) -> None:
        """Give up all channels whose OPEN never left, and give their connections back."""
        self._core.recall(self.number)

    def close(self, reason: str, message: str) -> None:
        """End the tunnel, its connections and its carriers, after telling the peer; once."""
        self._core.close(self.number, reason, message)


class _Teller:
    """Passes on what happened."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop, core: PumpCore) -> None:
        self._loop = loop
        self._core = core
        self.users: dict[int, TunnelUser] = {}

    def wanted(self, tunnel: int, channel: int, target: str, /) -> None:
        """Pass on that a channel is wanted."""
        if user := self.users.get(tunnel):
            user.wanted(channel, target)

    def accepted(self, tunnel: int, channel: int, /) -> None:
        """Pass on that a channel is accepted."""
        if user := self.users.get(tunnel):
            user.accepted(channel)

    def dialled(
        self, tunnel: int, channel: int, target: str, error: int, seconds: float, /
    ) -> None:
        """Pass on how a dial went."""
        if user := self.users.get(tunnel):
            user.dialled(channel, target, error, seconds)

    def ended(self, tunnel: int, channel: int, reason: str, message: str, /) -> None:
        """Pass on the end of a channel."""
        if user := self.users.get(tunnel):
            user.ended(channel, reason, message)

    def unled(self, tunnel: int, channel: int, reason: str, message: str, /) -> None:
        """Pass on the end of a channel without a connection."""
        if user := self.users.get(tunnel):
            user.unled(channel, reason, message)

    def given_back(
        self, tunnel: int, channel: int, descriptor: int, early: bytes, reason: str, message: str, /
    ) -> None:
        """Pass a connection on, or close it where nobody is."""
        connection = socket.socket(fileno=descriptor)
        connection.setblocking(False)
        if user := self.users.get(tunnel):
            user.given_back(channel, connection, early, reason, message)
        else:
            connection.close()

    def sendable(self, tunnel: int, /) -> None:
        """Pass on that there is something to send."""
        if user := self.users.get(tunnel):
            user.sendable()

    def carrier_lost(self, tunnel: int, carrier: int, message: str, /) -> None:
        """Pass on the end of a carrier."""
        if user := self.users.get(tunnel):
            user.carrier_lost(carrier, message)

    def over(self, tunnel: int, reason: str, message: str, /) -> None:
        """Pass on the end of a tunnel."""
        if user := self.users.get(tunnel):
            user.over(reason, message)

    def gone(self, tunnel: int, /) -> None:
        """Have a tunnel forgotten, behind all that was asked of it."""
        with contextlib.suppress(RuntimeError):  # the pump has failed, which is about to be told
            last = self._core.last_batch(tunnel)
            if last and (user := self.users.get(tunnel)):
                user.untold(last)
        self._core.forget(tunnel)

    def forgotten(self, tunnel: int, /) -> None:
        """Pass on that nothing is left of a tunnel."""
        if user := self.users.pop(tunnel, None):
            user.gone()

    def ended_all(self, message: str, /) -> None:
        """Pass on that the pump has ended."""
        users, self.users = self.users, {}
        for user in users.values():
            user.failed(message)

    def failed(self, error: BaseException, /) -> None:
        """Report what a callback raised, as the loop does for its own callbacks."""
        if not isinstance(error, Exception):
            raise error
        message = "a callback of fairlead_native raised"
        self._loop.call_exception_handler({"message": message, "exception": error})
