"""What is to be sent next in a tunnel: whose turn it is, and what was lost before."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from fairlead_tunnel.channel import ROOM_FOR_CONTROL, Channel, Item, Part
from fairlead_tunnel.flights import Arrivals, Departures
from fairlead_tunnel.frames import (
    BATCH_HEADER_BYTES,
    Ack,
    Alive,
    Close,
    Content,
    Ping,
    Range,
    Window,
    batch_header,
    encode,
)
from fairlead_tunnel.ranges import RangeSet
from fairlead_tunnel.shared_window import SharedWindow

SMALLEST_BATCH: Final = 4096
_SHARE: Final = 127 * 1024
"""So many bytes of a channel go into a batch when others wait too: two of them fill the largest."""
_ROOM_FOR_NEWS: Final = 4 + 64 * (16 + 8)
"""ACK and ALIVE fit into this."""


class Batch(NamedTuple):
    """What is to be sent as one record: its pieces in order, `size` bytes in all."""

    batch_id: int
    pieces: list[Content]
    size: int


class Outbox:
    """Fills batches from channels that want to send, each in its turn."""

    def __init__(
        self, *, channels: Mapping[int, Channel], window: SharedWindow, arrivals: Arrivals
    ) -> None:
        self._channels = channels
        self._window = window
        self._arrivals = arrivals
        self._departures = Departures()
        self._ready: deque[Channel] = deque()
        self._held: dict[int, float] = {}
        self._told: tuple[int, int] | None = None
        self._ping_due = False
        self._alive: Sequence[Range] = ()

    def ask(self, alive: Sequence[Range]) -> None:
        """Ask the peer for a sign of life, and tell it which carriers there are."""
        self._ping_due = True
        self._alive = alive or self._alive

    def want(self, channel: Channel) -> None:
        """Have a channel asked for what it has to send; a held one is held no more."""
        if self._held:
            self._held.pop(channel.channel_id, None)
        if not channel.queued:
            channel.queued = True
            self._ready.append(channel)

    def hold(self, channel: Channel, until: float) -> None:
        """Have a channel asked at that time, unless it wants to be before."""
        self._held[channel.channel_id] = until

    def deadline(self) -> float | None:
        """Return when something has to be sent at the latest, if nothing happens."""
        if not self._held:
            return self._arrivals.due
        times = [*self._held.values()]
        if self._arrivals.due is not None:
            times.append(self._arrivals.due)
        return min(times)

    def has_news(self, now: float) -> bool:
        """Say whether there is something to send, but for what is held."""
        is_wanted = bool(self._ready) or self._window.due or self._ping_due
        return is_wanted or self._arrivals.is_due(now)

    def clear(self) -> None:
        """Send nothing of any channel any more."""
        self._ready.clear()
        self._held.clear()
        self._arrivals.due = None

    def last(self, close: Close) -> Batch:
        """Return the batch that ends the tunnel, and says what came before: nothing else did."""
        return self._seal(0, [b"", encode(Ack(self._arrivals.tell())), encode(close)], [])

    def take_batch(
        self,
        *,
        carrier: int,
        most: int,
        now: float,
        answer: bool,
        alive: Sequence[Range],
        opens: bool,
    ) -> Batch | None:
        """Return what is to be sent now, or None; see `Tunnel.take_batch`."""
        if self._held:
            self._release(now)
        if self._alive:
            alive, self._alive = alive or self._alive, ()
        arrivals = self._arrivals
        ack_due = arrivals.is_due(now) or (answer and arrivals.due is not None)
        has_news = bool(self._ready) or self._window.due or self._ping_due
        if not has_news and not ack_due and not alive:
            return None  # most often: who sends asks until there is nothing
        pieces: list[Content] = [b""]
        parts: list[Part] = []
        if not self._departures.full:
            room = most - BATCH_HEADER_BYTES - _ROOM_FOR_NEWS
            self._fill(pieces, parts, room, opens=opens)
        if len(pieces) == 1 and not ack_due and not alive:
            return None
        if alive:
            pieces.insert(1, encode(Alive(alive)))
        if ranges := arrivals.tell():
            pieces.insert(1, encode(Ack(ranges)))  # first, so that nothing of it counts as lost
        batch = self._seal(carrier, pieces, parts)
        if ranges:
            self._told = batch.batch_id, carrier
        return batch

    def acked(self, ranges: Sequence[Range]) -> list[Part] | None:
        """Return what has arrived with these batches; None when one was never sent."""
        for first, last in ranges:
            if self._told and first <= self._told[0] <= last:
                self._told = None
        return self._departures.acked(ranges)

    def lose(self, carriers: RangeSet, *, heard: bool = False, reached: bool = True) -> None:
        """Send again what went over these carriers and is not known to have arrived.

        `heard`: the peer has taken what it got of them, the newest ACK too. Not `reached`: it has
        got nothing of them.
        """
        if self._told and self._told[1] in carriers:
            self._told = None
            if not heard:
                self._arrivals.due = 0.0  # the newest ACK may be lost: the peer waits for the next
        for part in self._departures.lost(carriers):
            if part.item is Item.PING:
                self._ping_due = True
            elif part.channel == 0:
                self._window.due = True
            elif (channel := self._channels.get(part.channel)) is not None:
                channel.on_lost(part, reached=reached)
                self.want(channel)

    def _release(self, now: float) -> None:
        for channel_id in [each for each, until in self._held.items() if until <= now]:
            del self._held[channel_id]
            if channel_id in self._channels:
                self.want(self._channels[channel_id])

    def _fill(self, pieces: list[Content], parts: list[Part], room: int, *, opens: bool) -> None:
        window = self._window
        if window.due:
            window.due = False
            pieces.append(encode(Window(0, window.limit)))
            parts.append(Part(0, Item.WINDOW))
        if self._ping_due:
            self._ping_due = False
            pieces.append(encode(Ping()))
            parts.append(Part(0, Item.PING))
        room -= sum(map(len, pieces))
        waiting = len(self._ready)
        while waiting and room > ROOM_FOR_CONTROL:
            waiting -= 1
            channel = self._ready.popleft()
            channel.queued = False
            if channel.channel_id not in self._channels:
                continue
            if not (opens or channel.has_left):
                self.want(channel)
                continue
            room -= channel.take_control(pieces, parts)
            share = min(room - 16, _SHARE) if self._ready else room - 16
            size, fresh = channel.take_segments(pieces, parts, most=share, credit=window.credit)
            window.credit -= fresh
            room -= size
            if channel.outbound.repeats or (channel.has_unsent and window.credit > 0):
                self.want(channel)
                waiting += 1

    def _seal(self, carrier: int, pieces: list[Content], parts: list[Part]) -> Batch:
        batch_id, lowest = self._departures.depart(carrier, parts)
        pieces[0] = batch_header(batch_id, lowest)
        return Batch(batch_id, pieces, sum(map(len, pieces)))
