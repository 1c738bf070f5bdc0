"""A tunnel without I/O: channels over carriers that may lose, double and reorder what they carry.

The client opens channels, the gateway accepts them; both send bytes in them, each direction in its
own order and against the other side's limits. Whoever has a carrier asks `take_batch` for what is
to be sent over it and gives `receive` what came. What a carrier had under way when it was lost is
sent again over another one, at the same offsets; what arrives twice is dropped. Time is a number of
seconds that callers pass; nothing here reads a clock. `frames` has the bytes.

One channel, as one side sees it; P ends the tunnel with `protocol_error`:

    received         unknown          open                        ended, not forgotten   forgotten
    OPEN             ChannelWanted    ignored; P if another       ignored                ignored
                     (client: P)      target
    ACCEPTED         P                ChannelAccepted once        ignored                ignored
    SEGMENT          P                ChannelReceived, in order   counted                ignored
    FIN              P                ChannelFinished, once all   counted                ignored
                                      before it is here
    RESET            P                ChannelReset; answered by   counted                ignored
                                      RESET
    WINDOW           P                a higher limit              ignored                ignored

A channel is forgotten when both sides know how both of its directions ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from fairlead_tunnel.byte_channel import Misuse
from fairlead_tunnel.channel import Channel, ChannelFrame, Ending, Item
from fairlead_tunnel.flights import Arrivals
from fairlead_tunnel.frames import (
    MAX_RANGES,
    MAX_TARGET_BYTES,
    Accepted,
    Ack,
    Alive,
    Close,
    Content,
    Fin,
    Frame,
    FrameInvalid,
    Open,
    Ping,
    Range,
    Reset,
    Segment,
    Window,
    decode,
)
from fairlead_tunnel.inbound import FlowViolation
from fairlead_tunnel.outbox import SMALLEST_BATCH, Batch, Outbox
from fairlead_tunnel.ranges import RangeSet
from fairlead_tunnel.send_room import SendRoom
from fairlead_tunnel.shared_window import SharedWindow
from fairlead_tunnel.tunnel_events import (
    CarriersNamed,
    ChannelDrained,
    ChannelWanted,
    TunnelEvent,
    TunnelOver,
)

CHANNEL_WINDOW: Final = 8 * 1024 * 1024
TUNNEL_WINDOW: Final = 64 * 1024 * 1024
MOST_CHANNELS: Final = 4096
MOST_EARLY: Final = 256 * 1024
"""So many pieces of all channels may wait for others before them: 50 MiB beside their bytes."""


class Side(Enum):
    """Which end of the tunnel this is."""

    CLIENT = "client"
    GATEWAY = "gateway"


class TunnelFull(RuntimeError):
    """As many channels are open as a tunnel has."""


class Tunnel:
    """One side of a tunnel; see the module's table.

    At most 8 MiB of a channel and 64 MiB of all are kept for sending, and as many for receiving.
    """

    def __init__(self, *, side: Side, most_channels: int = MOST_CHANNELS) -> None:
        self._side = side
        self._most_channels = most_channels
        self._channels: dict[int, Channel] = {}
        self._next_channel = 1
        self._forgotten = RangeSet()
        self._window = SharedWindow(window=TUNNEL_WINDOW)
        self._arrivals = Arrivals()
        self._outbox = Outbox(channels=self._channels, window=self._window, arrivals=self._arrivals)
        self._room = SendRoom(window=CHANNEL_WINDOW, shared=TUNNEL_WINDOW)
        self._early = 0
        self._ack_said = self._all_said = self._alive_said = 0  # by which batch
        self._over: TunnelOver | None = None
        self._close_due = False

    @property
    def over(self) -> TunnelOver | None:
        """Why the tunnel ended, or None."""
        return self._over

    @property
    def channels(self) -> int:
        """How many channels are not forgotten."""
        return len(self._channels)

    def writable(self, channel_id: int) -> int:
        """Return how many bytes `write` would take now."""
        channel = self._channels.get(channel_id)
        return self._room.of(channel) if channel is not None else 0

    # What this side does

    def open(self, target: str, *, hold_until: float | None = None) -> int:
        """Open a channel and return its number; client only.

        With `hold_until` the OPEN waits until then for the first `write`, `finish` or `reset`.
        TunnelFull: no more channels now.
        """
        if self._side is not Side.CLIENT or self._over:
            raise Misuse("only the client of a tunnel that is not over opens channels")
        if not 0 < len(target.encode()) <= MAX_TARGET_BYTES:
            raise Misuse("a target has 1 to 255 bytes")
        if len(self._channels) >= self._most_channels:
            raise TunnelFull(f"{self._most_channels} channels are open")
        channel = Channel(self._next_channel, target, window=CHANNEL_WINDOW, opens=True)
        self._channels[channel.channel_id] = channel
        self._next_channel += 1
        if hold_until is None:
            self._outbox.want(channel)
        else:
            self._outbox.hold(channel, hold_until)
        return channel.channel_id

    def accept(self, channel_id: int) -> None:
        """Say that the target is connected; gateway only, nothing once the channel has ended."""
        channel = self._channels.get(channel_id)
        if channel is None or channel.ended:
            return
        if self._side is not Side.GATEWAY or channel.accepted:
            raise Misuse("only a gateway accepts, and once")
        channel.accepted = True
        channel.say(Item.ACCEPTED)
        self._outbox.want(channel)

    def write(self, channel_id: int, content: Content) -> int:
        """Send bytes and return how many were taken; after fewer than all ChannelDrained follows.

        A channel that has ended takes all and sends none.
        """
        channel = self._channels.get(channel_id)
        if channel is None or channel.ended:
            return len(content)
        if channel.outbound.finished:
            raise Misuse("a direction that has been finished takes no bytes")
        taken = self._room.write(channel, content)
        if taken:
            self._outbox.want(channel)
        return taken

    def finish(self, channel_id: int) -> None:
        """Send no more bytes in a channel; the other direction goes on."""
        channel = self._channels.get(channel_id)
        if channel is None or channel.ended or channel.outbound.finished:
            return
        channel.outbound.finish()
        self._outbox.want(channel)

    def consumed(self, channel_id: int, count: int) -> None:
        """Note that `count` received bytes of a channel have left this process."""
        channel = self._channels.get(channel_id)
        if channel is None or channel.ended:
            return
        moved = channel.inbound.consume(count)
        self._window.consume(count)
        if moved:
            channel.say(Item.WINDOW)
            self._outbox.want(channel)
        self._settle(channel)

    def reset(self, channel_id: int, reason: str, message: str) -> None:
        """Give a channel up in both directions; no event of it follows."""
        channel = self._channels.get(channel_id)
        if channel is not None and not channel.ended:
            self._give_up(channel, Ending(reason, message))

    def unsent(self) -> list[int]:
        """Return the channels of a client whose OPEN was given to no carrier so far."""
        return [k for k, each in self._channels.items() if not each.has_left and not each.ended]

    def ping(self, alive: Sequence[Range] = ()) -> None:
        """Ask the peer for a sign of life with the next batch; a client's says what is `alive`."""
        self._outbox.ask(alive if self._side is Side.CLIENT else ())

    def restate(self) -> None:
        """Say again with the next batch what has come: another carrier may never tell it."""
        self._arrivals.owe(0.0)

    def close(self, reason: str, message: str) -> None:
        """End the tunnel; the next batch, the last one, says so, and all that has come. Once."""
        if self._over is None:
            self._end(reason, message)
            self._close_due = True

    # What carriers do

    def deadline(self) -> float | None:
        """Return when `take_batch` has something to send at the latest, if nothing happens."""
        return self._outbox.deadline()

    def has_news(self, now: float) -> bool:
        """Say whether `take_batch` may have something now, unless all that may be is under way."""
        return self._close_due or (self._over is None and self._outbox.has_news(now))

    def take_batch(
        self,
        *,
        carrier: int,
        most: int,
        now: float,
        answer: bool = False,
        alive: Sequence[Range] = (),
        opens: bool = True,
    ) -> Batch | None:
        """Return what is to be sent over a carrier now, at most `most` bytes (4096 or more).

        None when there is nothing. `answer` acknowledges without delay, for carriers that may not
        be able to later; `alive` names the carriers that the client still waits for. Without
        `opens` channels whose OPEN was never sent wait for a later batch.
        """
        if most < SMALLEST_BATCH:
            raise Misuse("a batch has room for 4096 bytes or more")
        if self._over is None:
            return self._outbox.take_batch(
                carrier=carrier, most=most, now=now, answer=answer, alive=alive, opens=opens
            )
        is_due, self._close_due = self._close_due, False
        return self._outbox.last(Close(self._over.reason, self._over.message)) if is_due else None

    def carrier_lost(self, carrier: int, *, heard: bool = False, reached: bool = True) -> None:
        """Send again what this carrier had under way; of a poll that was `heard`, whose answer says
        what came with it, only the rest. What cannot have `reached` the peer counts as never sent.
        """
        gone = RangeSet()
        gone.add(carrier, carrier + 1)
        self._outbox.lose(gone, heard=heard, reached=reached)

    def receive(self, batch: Content, now: float) -> list[TunnelEvent]:
        """Take a batch of the peer, as it was opened, and return what it means to this side."""
        if self._over:
            return []
        events: list[TunnelEvent] = []
        try:
            batch_id, lowest, frames = decode(batch)
            if not self._arrivals.take(batch_id, lowest, len(batch)):
                frames = []
                self._arrivals.owe(now)
            for frame in frames:
                self._take(frame, batch_id, events, now)
                if self._over:
                    return events
            if self._arrivals.scattered:
                raise FrameInvalid("more batches are missing than may be under way")
        except (FrameInvalid, FlowViolation) as error:
            self.close("protocol_error", str(error))
            events.append(TunnelOver("protocol_error", str(error)))
        return events

    # Receiving

    def _take(self, frame: Frame, batch_id: int, events: list[TunnelEvent], now: float) -> None:
        match frame:
            case Ack(ranges):
                if batch_id == self._ack_said:
                    raise FrameInvalid("a batch acknowledges twice")
                self._ack_said = batch_id
                self._all_said = batch_id if len(ranges) < MAX_RANGES else 0
                self._on_acked(ranges, events)
            case Alive(ranges):
                self._on_alive(ranges, batch_id, events)
            case Close(reason, message):
                self._end(reason, message, told=self._all_said == batch_id)
                events.append(TunnelOver(reason, message))
            case Ping():
                self._arrivals.owe(now)
            case Window(0, limit):
                self._arrivals.owe(now)
                self._widen(limit)
            case Segment() | Open() | Accepted() | Fin() | Reset() | Window():
                self._arrivals.owe(now)
                if frame.channel not in self._forgotten:
                    channel = self._channels.get(frame.channel) or self._opened(frame, events)
                    self._take_for(channel, frame, events)

    def _take_for(self, channel: Channel, frame: ChannelFrame, events: list[TunnelEvent]) -> None:
        inbound, outbound = channel.inbound, channel.outbound
        highest, buffered, early = inbound.highest, outbound.buffered, inbound.early
        events.extend(channel.receive(frame))
        self._window.receive(inbound.highest - highest)
        self._room.free(buffered - outbound.buffered)
        if channel.ended:
            self._window.consume(inbound.abandon())
            self._room.leave(channel)
        self._early += inbound.early - early
        if self._early > MOST_EARLY:
            raise FlowViolation("bytes were sent in more pieces than are kept")
        if channel.has_to_say:
            self._outbox.want(channel)
        self._settle(channel)

    def _opened(self, frame: Frame, events: list[TunnelEvent]) -> Channel:
        """Return the channel that an OPEN makes; FrameInvalid for any other frame."""
        if not isinstance(frame, Open) or self._side is Side.CLIENT or not frame.target:
            raise FrameInvalid("a frame is about a channel that was not opened")
        if len(self._channels) >= 2 * self._most_channels:
            raise FrameInvalid("channels are opened in spite of refusals")
        if len(self._forgotten) > 4 * MOST_CHANNELS:
            raise FrameInvalid("channels are not numbered one after the other")
        channel = Channel(frame.channel, frame.target, window=CHANNEL_WINDOW, opens=False)
        self._channels[frame.channel] = channel
        if len(self._channels) > self._most_channels:
            message = f"The tunnel has {self._most_channels} channels already."
            self._give_up(channel, Ending("channel_limit", message))
        else:
            events.append(ChannelWanted(frame.channel, frame.target))
        return channel

    def _on_acked(self, ranges: Sequence[Range], events: list[TunnelEvent]) -> None:
        parts = self._outbox.acked(ranges)
        if parts is None:
            raise FrameInvalid("a batch was acknowledged that was never sent")
        for part in parts:
            channel = self._channels.get(part.channel)
            if channel is None:
                continue
            before = channel.outbound.buffered
            channel.on_acked(part)
            self._room.free(before - channel.outbound.buffered)
            self._settle(channel)
        if parts:
            events += [ChannelDrained(each.channel_id) for each in self._room.take_drained()]
            if len(ranges) == MAX_RANGES:
                self.ping()  # more may have arrived: a higher `lowest` makes room to tell it

    def _on_alive(self, ranges: Sequence[Range], batch_id: int, events: list[TunnelEvent]) -> None:
        """Take what older carriers had under way as lost, unless newer news came already."""
        if self._side is Side.CLIENT:
            raise FrameInvalid("only a client says which carriers are alive")
        if batch_id == self._alive_said:
            raise FrameInvalid("a batch says twice which carriers are alive")
        if not ranges or batch_id < self._alive_said:
            return
        self._alive_said = batch_id
        gone = RangeSet()
        gone.add(0, ranges[-1][1] + 1)
        for first, last in ranges:
            gone.discard(first, last + 1)
        self._outbox.lose(gone)
        events.append(CarriersNamed(ranges))

    def _widen(self, limit: int) -> None:
        had_credit = self._window.credit > 0
        if not self._window.widen(limit) or had_credit:
            return  # nobody waits for credit while there is some
        for channel in self._channels.values():
            if channel.has_unsent:
                self._outbox.want(channel)

    # What both need

    def _give_up(self, channel: Channel, ending: Ending) -> None:
        self._room.free(channel.outbound.buffered)
        self._early -= channel.inbound.early
        channel.give_up(ending)
        self._window.consume(channel.inbound.abandon())
        self._room.leave(channel)
        self._outbox.want(channel)

    def _settle(self, channel: Channel) -> None:
        """Forget a channel about which nothing is left to say."""
        if channel.forgettable and channel.channel_id in self._channels:
            del self._channels[channel.channel_id]
            self._forgotten.add(channel.channel_id, channel.channel_id + 1)
            self._room.leave(channel)

    def _end(self, reason: str, message: str, *, told: bool = False) -> None:
        unsent = frozenset(k for k, each in self._channels.items() if each.is_unheard(told=told))
        self._over = TunnelOver(reason, message, unsent)
        self._channels.clear()
        self._outbox.clear()
        self._room.clear()
