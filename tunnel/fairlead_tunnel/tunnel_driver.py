"""Runs a tunnel on an event loop: its carriers on one side, its ports on the other."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Final

from fairlead_tunnel.channel_port import Port
from fairlead_tunnel.driver_sides import OPEN_UNSENT, TICKET_CARRIER, DriverUser, OrderedCarrier
from fairlead_tunnel.frames import Content, Range
from fairlead_tunnel.outbox import SMALLEST_BATCH
from fairlead_tunnel.ranges import RangeSet, ranges_of
from fairlead_tunnel.tunnel import Tunnel
from fairlead_tunnel.tunnel_events import (
    CarriersNamed,
    ChannelAccepted,
    ChannelDrained,
    ChannelFinished,
    ChannelReceived,
    ChannelReset,
    ChannelWanted,
    TunnelEvent,
    TunnelOver,
)

CROWD_SECONDS: Final = 0.0001
"""What is read so soon after the last batch left is one of many things: they leave together."""
_LEAST_DELAY: Final = 0.001
"""Clocks of loops differ in how fine they are: a look at a time that is not quite there is late
enough, and not at once again."""
_MOST_BATCHES: Final = 8
"""So many leave at a time before others on the loop have their turn."""


class _Stream:
    """What is known here of one channel; what waits in it was read before it was full."""

    __slots__ = ("early", "has_finished", "is_done", "peer_finished", "port", "unsent")

    def __init__(self) -> None:
        self.port: Port | None = None
        self.early: list[Content] = []
        self.unsent: Content = b""
        self.has_finished = False
        self.peer_finished = False
        self.is_done = False


class TunnelDriver:
    """Moves what a tunnel has between its carriers and its ports; used from one event loop only.

    What its methods cause is sent when the loop has its turn, so that what happens together leaves
    together; what a port reads while nothing else happens leaves at once. What waits here is
    bounded: early bytes by the limits of their channels, and of each port one read that the tunnel
    had no room for.
    """

    def __init__(
        self, *, tunnel: Tunnel, user: DriverUser, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tunnel = tunnel
        self._user = user
        self._clock = clock
        self._sent_at = -math.inf
        self._is_taking = False
        self._loop = asyncio.get_running_loop()
        self._carriers: dict[int, OrderedCarrier] = {}
        self._greeting: set[int] = set()
        self._streams: dict[int, _Stream] = {}
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.Handle | None = None
        self._timed_at = 0.0  # what was due then is, and nothing else
        self._timer_due = 0.0
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Say whether the tunnel has ended."""
        return self._is_over

    @property
    def carriers(self) -> int:
        """How many carriers are attached."""
        return len(self._carriers)

    @property
    def channels(self) -> int:
        """How many channels have not ended at both sides, or whose ports are not gone yet."""
        return max(len(self._streams), self._tunnel.channels)

    # Carriers

    def attach(self, number: int, carrier: OrderedCarrier) -> None:
        """Use a carrier from now on; one that comes when the tunnel is over is closed."""
        self._greeting.discard(number)
        if self._is_over:
            carrier.close()
            return
        self._carriers[number] = carrier
        self.flush_soon()

    def detach(self, number: int, *, heard: bool = False, reached: bool = True) -> None:
        """Send again what a carrier had under way; see `CarrierDriver.detach`."""
        self._greeting.discard(number)
        self._carriers.pop(number, None)
        self._tunnel.carrier_lost(number, heard=heard, reached=reached)
        self.flush_soon()

    def take(self, batch: bytes) -> None:
        """Take a batch that came over a carrier."""
        now = self._loop.time()
        self._is_taking = True
        for event in self._tunnel.receive(batch, now):
            self._on(event)
        self._is_taking = False
        if self._tunnel.has_news(now):
            self.flush_soon()
        else:
            self._set_timer()

    def hello_batch(self, number: int, most: int) -> bytes:
        """Return what goes with a client's hello: what there is to send, and which carriers live.

        The number is that of the hello's carrier; `attach` or `detach` follows. A channel that was
        never told of waits for the answer, unless it is a ticket's: whoever refuses a later hello
        has then not heard of it, whether or not that was the gateway.
        """
        self._greeting.add(number)
        alive = ranges_of({*self._carriers, *self._greeting})
        return self._first_batch(number, most, alive, opens=number == TICKET_CARRIER)

    def answer_batch(self, number: int, most: int, *, restate: bool = False) -> bytes:
        """Return what goes with a gateway's answer; empty when there is nothing.

        With `restate` it says what has come though another carrier is about to tell it too.
        """
        if restate:
            self._tunnel.restate()
        return self._first_batch(number, most)

    def _first_batch(
        self, number: int, most: int, alive: Sequence[Range] = (), *, opens: bool = True
    ) -> bytes:
        batch = self._tunnel.take_batch(
            carrier=number, most=most, now=self._timed_at, answer=True, alive=alive, opens=opens
        )
        return b"".join(batch.pieces) if batch is not None else b""

    def ping(self) -> None:
        """Ask the peer for a sign of life, and tell it which carriers a client has."""
        self._tunnel.ping(ranges_of({*self._carriers, *self._greeting}))
        self.flush_soon()

    def flush_soon(self) -> None:
        """Send what there is when the loop has its turn."""
        if self._soon is None and not self._is_over:
            self._soon = self._loop.call_soon(self._flush)

    # Channels

    def open(self, target: str, *, hold_seconds: float = 0.0) -> int:
        """Open a channel; its OPEN waits for its first bytes for at most `hold_seconds`."""
        until = self._loop.time() + hold_seconds if hold_seconds else None
        channel = self._tunnel.open(target, hold_until=until)
        self._streams[channel] = _Stream()
        self.flush_soon()
        return channel

    def connect(self, channel: int, port: Port) -> bool:
        """Lead a channel to a port that is there; False when the channel has ended."""
        if (stream := self._streams.get(channel)) is None:
            return False
        stream.port = port
        early, stream.early = stream.early, []
        for content in early:
            port.write(content)
        if stream.peer_finished:
            port.finish()
        if not stream.unsent:
            port.go_on()  # what it waited for may have left before it was there
        self._end_if_done(stream)
        return True

    def accept(self, channel: int) -> None:
        """Say that the target is connected."""
        self._tunnel.accept(channel)
        self.flush_soon()

    def refuse(self, channel: int, reason: str, message: str) -> None:
        """Give a channel up, and drop its connection."""
        self._tunnel.reset(channel, reason, message)
        self._end(channel, reason, message)
        self.flush_soon()

    def recall(self) -> None:
        """End what no carrier has taken the OPEN of, with OPEN_UNSENT; client only."""
        for channel in self._tunnel.unsent():
            self.refuse(channel, OPEN_UNSENT, "The gateway is away.")

    def close(self, reason: str, message: str) -> None:
        """End the tunnel, its ports and its carriers, after telling the peer; once."""
        self._tunnel.close(reason, message)
        self._on_over(reason, message)

    # What ports tell

    def port_read(self, channel: int, content: Content) -> bool:
        """Send what was read; say whether more may be read now."""
        stream = self._streams.get(channel)
        if stream is None:
            return False
        taken = self._tunnel.write(channel, content)
        stream.unsent = content[taken:]
        self._flush_next()
        return not stream.unsent

    def port_finished(self, channel: int) -> None:
        """Note that nothing more will be read."""
        if (stream := self._streams.get(channel)) is None or stream.has_finished:
            return
        stream.has_finished = True
        if not stream.unsent:
            self._tunnel.finish(channel)
        self._end_if_done(stream)
        self.flush_soon()

    def port_consumed(self, channel: int, count: int) -> None:
        """Note that bytes have left."""
        self._tunnel.consumed(channel, count)
        if self._tunnel.has_news(0.0):
            self.flush_soon()

    def port_lost(self, channel: int, error: Exception | None) -> None:
        """Note that a port is gone; a channel that was not done is given up."""
        stream = self._streams.get(channel)
        if stream is None:
            return
        if stream.is_done and error is None:
            del self._streams[channel]
            self._user.ended(channel, "", "")
        else:
            cause = getattr(error, "strerror", None) or "it was closed"
            self.refuse(channel, "connection_reset", f"The connection was lost: {cause}.")

    # What the tunnel tells

    def _on(self, event: TunnelEvent) -> None:
        match event:
            case ChannelReceived(channel, content):
                stream = self._streams.get(channel)
                if stream is None:
                    return
                if stream.port is not None:
                    stream.port.write(content)
                else:
                    stream.early.append(content)
            case ChannelWanted(channel, target):
                self._streams[channel] = _Stream()
                self._user.wanted(channel, target)
            case ChannelAccepted(channel):
                self._user.accepted(channel)
            case ChannelFinished(channel):
                self._on_finished(channel)
            case ChannelDrained(channel):
                self._on_drained(channel)
            case ChannelReset(channel, reason, message):
                self._end(channel, reason, message)
            case CarriersNamed(alive):
                self._on_named(alive)
            case TunnelOver(reason, message):
                self._on_over(reason, message)

    def _on_finished(self, channel: int) -> None:
        stream = self._streams.get(channel)
        if stream is None:
            return
        stream.peer_finished = True
        if stream.port is not None:
            stream.port.finish()
        self._end_if_done(stream)

    def _on_drained(self, channel: int) -> None:
        stream = self._streams.get(channel)
        if stream is None:
            return
        content, stream.unsent = stream.unsent, b""
        if content and not self.port_read(channel, content):
            return
        if stream.has_finished:
            self._tunnel.finish(channel)
            self._end_if_done(stream)
        elif stream.port is not None:
            stream.port.go_on()

    def _on_named(self, alive: Sequence[Range]) -> None:
        """Drop carriers that the client has lost, though nothing of it was noticed here."""
        kept = RangeSet()
        for first, last in alive:
            kept.add(first, last + 1)
        newest = alive[-1][1]
        for number in [each for each in self._carriers if each < newest and each not in kept]:
            self._carriers.pop(number).abort()

    def _on_over(self, reason: str, message: str) -> None:
        if self._is_over:
            return
        self._flush()  # which tells the peer
        self._is_over = True
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        carriers = [*self._carriers.values()]
        takers = [each for each in carriers if each.takes_last]  # though none may have room
        if takers and (last := self._tunnel.take_batch(carrier=0, most=SMALLEST_BATCH, now=0.0)):
            for carrier in takers:
                carrier.send(last)
        for carrier in carriers:
            carrier.close()
        unsent = self._tunnel.over.unsent if self._tunnel.over is not None else ()
        for channel, stream in [*self._streams.items()]:
            if not stream.is_done:  # else all that it was for has come, and is passed on
                self._end(channel, OPEN_UNSENT if channel in unsent else reason, message)
        self._user.over(reason, message)

    def _end_if_done(self, stream: _Stream) -> None:
        is_done = stream.has_finished and not stream.unsent and stream.peer_finished
        if is_done and stream.port is not None and not stream.is_done:
            stream.is_done = True
            stream.port.close()

    def _end(self, channel: int, reason: str, message: str) -> None:
        if (stream := self._streams.pop(channel, None)) is None:
            return
        if stream.port is not None:
            stream.port.abort()
        self._user.ended(channel, reason, message)

    # Sending

    def _flush_next(self) -> None:
        """Send what was read at once if it comes alone, and else with what comes beside it."""
        is_alone = self._soon is None and not self._is_taking
        if is_alone and self._clock() - self._sent_at > CROWD_SECONDS:
            self._flush()
        else:
            self.flush_soon()

    def _flush(self) -> None:
        self._soon = None
        for _ in range(_MOST_BATCHES):
            if not self._send_one():
                break
        else:
            self.flush_soon()
        self._set_timer()

    def _send_one(self) -> bool:
        """Send a batch over each carrier that can; say whether there may be more to send."""
        has_sent = False
        for number, carrier in [*self._carriers.items()]:
            if not carrier.can_send:
                continue
            batch = self._tunnel.take_batch(
                carrier=number, most=carrier.most_bytes, now=self._timed_at
            )
            if batch is None:
                break
            carrier.send(batch)
            has_sent = True
        if not has_sent:
            return False
        self._sent_at = self._clock()
        return self._tunnel.has_news(self._timed_at)

    def _set_timer(self) -> None:
        """Look again when something is due; a look that comes too early sets the next one."""
        due = self._tunnel.deadline()
        if due is None or (self._timer is not None and self._timer_due <= due):
            return
        if not any(each.can_send for each in self._carriers.values()):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due, now = due, self._loop.time()
        delay = max(due - now, _LEAST_DELAY)
        self._timer = self._loop.call_later(delay, self._on_time, max(due, now))

    def _on_time(self, due: float, turns: int = 2) -> None:
        """Send what was due when the timer was set, once all that has come is read, which takes two
        turns of the loop: an OPEN goes with what is there of its bytes.
        """
        left = self._tunnel.deadline()
        if turns and left is not None and left <= due:
            self._timer = self._loop.call_soon(self._on_time, due, turns - 1)
            return
        self._timer, self._timed_at = None, due
        self._flush()
