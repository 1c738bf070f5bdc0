"""Both ends of a tunnel and what lies between them, without I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead_tunnel.frames import Frame, decode
from fairlead_tunnel.tunnel import Side, Tunnel
from fairlead_tunnel.tunnel_events import (
    ChannelAccepted,
    ChannelFinished,
    ChannelReceived,
    ChannelReset,
    ChannelWanted,
    TunnelEvent,
    TunnelOver,
)

MOST = 256 * 1024


@dataclass(slots=True)
class Peer:
    """One end: takes what comes and keeps it; `hears` leaves bytes unconsumed when it is false."""

    tunnel: Tunnel
    consumes: bool = True
    accepts: bool = True
    received: dict[int, bytes] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    accepted: set[int] = field(default_factory=set)
    wanted: dict[int, str] = field(default_factory=dict)
    resets: dict[int, ChannelReset] = field(default_factory=dict)
    over: TunnelOver | None = None
    events: list[TunnelEvent] = field(default_factory=list)

    def take(self, batch: bytes, now: float = 0.0) -> None:
        """Take a batch and do what its events ask for."""
        for event in self.tunnel.receive(batch, now):
            self.events.append(event)
            match event:
                case ChannelWanted(channel, target):
                    self.wanted[channel] = target
                    if self.accepts:
                        self.tunnel.accept(channel)
                case ChannelAccepted(channel):
                    self.accepted.add(channel)
                case ChannelReceived(channel, content):
                    self.received[channel] = self.received.get(channel, b"") + bytes(content)
                    if self.consumes:
                        self.tunnel.consumed(channel, len(content))
                case ChannelFinished(channel):
                    self.finished.add(channel)
                case ChannelReset(channel):
                    self.resets[channel] = event
                case TunnelOver():
                    self.over = event
                case _:
                    pass

    def batch(
        self, *, carrier: int = 1, most: int = MOST, now: float = 0.0, answer: bool = False
    ) -> bytes | None:
        """Return the next batch, or None."""
        taken = self.tunnel.take_batch(carrier=carrier, most=most, now=now, answer=answer)
        if taken is None:
            return None
        batch = b"".join(taken.pieces)
        assert taken.size == len(batch) <= most
        return batch

    def batches(self, *, carrier: int = 1, most: int = MOST, now: float = 0.0) -> list[bytes]:
        """Return all batches that are there to be sent."""
        found = []
        while (batch := self.batch(carrier=carrier, most=most, now=now)) is not None:
            found.append(batch)
        return found


@dataclass(slots=True)
class Pair:
    """A client and a gateway."""

    client: Peer = field(default_factory=lambda: Peer(Tunnel(side=Side.CLIENT)))
    gateway: Peer = field(default_factory=lambda: Peer(Tunnel(side=Side.GATEWAY)))

    def talk(self, *, now: float = 0.0) -> None:
        """Carry everything both ways until neither side has anything to send."""
        while True:
            there = self.client.batches(now=now)
            for batch in there:
                self.gateway.take(batch, now)
            back = self.gateway.batches(now=now)
            for batch in back:
                self.client.take(batch, now)
            if not there and not back:
                return

    def settle(self) -> None:
        """Carry everything, acknowledgements that were put off included."""
        self.talk()
        for round_trip in range(1, 4):
            self.talk(now=float(round_trip))


def frames_of(batch: bytes | None) -> list[Frame]:
    """Return the frames of a batch that is there."""
    assert batch is not None
    return decode(batch)[2]
