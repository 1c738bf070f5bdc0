"""A tunnel over ordered carriers that end and are replaced, with resets and slow readers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_tunnel import flights, tunnel
from fairlead_tunnel.tunnel import Side, Tunnel
from fairlead_tunnel.tunnel_events import (
    CarriersNamed,
    ChannelDrained,
    ChannelFinished,
    ChannelReceived,
    ChannelReset,
    ChannelWanted,
    TunnelOver,
)

CHANNEL_WINDOW = 5_000
TUNNEL_WINDOW = 2 * CHANNEL_WINDOW
MOST_BATCHES = 2_000


@contextmanager
def small_limits(ranges: int, under_way: int) -> Iterator[None]:
    """Have tunnels reach their limits soon."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(tunnel, "CHANNEL_WINDOW", CHANNEL_WINDOW))
        stack.enter_context(patch.object(tunnel, "TUNNEL_WINDOW", TUNNEL_WINDOW))
        stack.enter_context(patch.object(flights, "MAX_RANGES", ranges))
        stack.enter_context(patch.object(tunnel, "MAX_RANGES", ranges))
        stack.enter_context(patch.object(flights, "MOST_UNDER_WAY", under_way))
        yield


@dataclass(slots=True)
class Direction:
    """What one side writes in a channel, and what the other side has of it."""

    content: bytes
    written: int = 0
    waits: bool = False
    finished: bool = False
    received: bytearray = field(default_factory=bytearray)
    unread: int = 0
    ended: bool = False


@dataclass(slots=True)
class End:
    """A side with an application that writes only when it may, and reads when it likes."""

    tunnel: Tunnel
    random: Random
    sends: dict[int, Direction] = field(default_factory=dict)
    hears: dict[int, Direction] = field(default_factory=dict)
    over_with: set[int] = field(default_factory=set)

    def take(self, batch: bytes, now: float, peer: End) -> None:
        """Take a batch and check what it says."""
        for event in self.tunnel.receive(batch, now):
            assert not isinstance(event, TunnelOver | CarriersNamed), event
            assert event.channel not in self.over_with, "no event follows a reset"
            match event:
                case ChannelWanted(channel):
                    if channel not in self.sends:
                        self.begin(channel, peer)
                    if self.random.random() < 0.8:
                        self.tunnel.accept(channel)
                case ChannelReceived(channel, content):
                    heard = self.hears[channel]
                    assert not heard.ended
                    heard.received += content
                    heard.unread += len(content)
                    sent = peer.sends[channel].content[: len(heard.received)]
                    assert heard.received == sent
                case ChannelFinished(channel):
                    assert not self.hears[channel].ended
                    self.hears[channel].ended = True
                    assert peer.sends[channel].finished
                    assert len(self.hears[channel].received) == peer.sends[channel].written
                case ChannelReset(channel):
                    self.over_with.add(channel)
                case ChannelDrained(channel):
                    self.sends[channel].waits = False
                case _:
                    pass

    def begin(self, channel: int, peer: End) -> None:
        """Make up what this side says in a channel."""
        size = self.random.choice((0, 10, 3_000, 20_000))
        self.sends[channel] = peer.hears[channel] = Direction(self.random.randbytes(size))

    def go_on(self, channel: int, *, gives_up: float = 0.02) -> None:
        """Read, write, finish or reset a channel."""
        if channel in self.over_with:
            return
        says, hears = self.sends[channel], self.hears.get(channel)
        if hears is not None and hears.unread:
            count = self.random.randint(1, hears.unread) if gives_up else hears.unread
            hears.unread -= count
            self.tunnel.consumed(channel, count)
        if self.random.random() < gives_up:
            self.over_with.add(channel)
            self.tunnel.reset(channel, "cancelled", "x" * self.random.choice((0, 1024)))
        elif says.written == len(says.content):
            says.finished = True
            self.tunnel.finish(channel)
        elif not says.waits:
            size = self.random.randint(1, 6_000)
            content = says.content[says.written : says.written + size]
            taken = self.tunnel.write(channel, content)
            says.waits = taken < len(content)
            says.written += taken


@dataclass(slots=True)
class Line:
    """A carrier that keeps order: what is on its way to each side."""

    number: int
    to_client: deque[bytes] = field(default_factory=deque)
    to_gateway: deque[bytes] = field(default_factory=deque)


@dataclass(slots=True)
class World:
    """Two sides and the carriers between them."""

    random: Random
    lines: list[Line]
    client: End
    gateway: End
    now: float = 0.0
    begun: int = 100

    def step(self) -> None:
        """Let one thing happen."""
        chance, line = self.random.random(), self.random.choice(self.lines)
        if chance < 0.03 and self.client.tunnel.channels < 8:
            hold = self.random.choice((None, self.now + 0.002))
            channel = self.client.tunnel.open("db:1", hold_until=hold)
            self.client.begin(channel, self.gateway)
        elif chance < 0.4:
            end = self.random.choice((self.client, self.gateway))
            if end.sends:
                end.go_on(self.random.choice([*end.sends]))
        elif chance < 0.65:
            self.send(self.random.choice((self.client, self.gateway)), line)
        elif chance < 0.95:
            self.deliver(self.random.choice((self.client, self.gateway)), line)
        elif chance < 0.98:
            self.now += self.random.choice((0.0005, 0.03))
        else:
            self.end(line)

    def send(self, end: End, line: Line) -> bool:
        """Have a side send a batch over a carrier if it has one."""
        most = self.random.choice((4096, 6_000, 20_000))
        batch = end.tunnel.take_batch(carrier=line.number, most=most, now=self.now)
        if batch is None:
            deadline = end.tunnel.deadline()
            assert deadline is None or deadline > self.now
            return False
        joined = b"".join(batch.pieces)
        assert len(joined) == batch.size <= most
        (line.to_gateway if end is self.client else line.to_client).append(joined)
        return True

    def deliver(self, end: End, line: Line) -> bool:
        """Have the next batch of a carrier arrive if there is one."""
        queue = line.to_client if end is self.client else line.to_gateway
        if not queue:
            return False
        end.take(queue.popleft(), self.now, self.gateway if end is self.client else self.client)
        return True

    def end(self, line: Line) -> None:
        """End a carrier: each side hears of it before or after a part of what was on its way."""
        ends = [self.client, self.gateway]
        self.random.shuffle(ends)
        for end in ends:
            for _ in range(self.random.choice((0, 0, 1, 50))):
                self.deliver(end, line)
            end.tunnel.carrier_lost(line.number)
        if self.random.random() < 0.2:
            while self.deliver(ends[0], line):  # it is late: the other side knew before
                pass
        self.begun += 1
        self.lines[self.lines.index(line)] = Line(self.begun)

    def settle(self) -> None:
        """Have both sides say everything over carriers that stay, that soon stay."""
        for turn in range(400):
            if turn < 100 and self.random.random() < 0.1:
                self.end(self.random.choice(self.lines))
            for end in (self.client, self.gateway):
                for channel in end.sends:
                    end.go_on(channel, gives_up=0.0)
            sent = 0
            for end in (self.client, self.gateway):
                while self.send(end, self.random.choice(self.lines)):
                    sent += 1
                    assert sent < MOST_BATCHES, "there is always something to send"
            under_way = any(each.to_client or each.to_gateway for each in self.lines)
            for line in self.lines:
                for end in (self.client, self.gateway):
                    if self.random.random() < 0.7:
                        self.deliver(end, line)
            due = [each.tunnel.deadline() for each in (self.client, self.gateway)]
            later = [each for each in due if each is not None]
            if not under_way:
                if not later:
                    return
                self.now = max(self.now, min(later))
        raise AssertionError("it goes on for ever")

    def fill(self) -> None:
        """Use both windows up, which only works when nothing of before is counted."""
        channels = [self.client.tunnel.open("db:1") for _ in range(2)]
        for channel in channels:
            for end, peer in ((self.client, self.gateway), (self.gateway, self.client)):
                end.sends[channel] = peer.hears[channel] = Direction(bytes(CHANNEL_WINDOW))
            self.exchange()
        for end in (self.client, self.gateway):
            for channel in channels:
                assert end.tunnel.writable(channel) == CHANNEL_WINDOW
                end.tunnel.write(channel, bytes(CHANNEL_WINDOW))
                end.sends[channel].written = CHANNEL_WINDOW
        self.exchange()
        for end in (self.client, self.gateway):
            for channel in channels:
                assert end.hears[channel].unread == CHANNEL_WINDOW
        self.settle()

    def exchange(self) -> None:
        """Carry everything both ways, while nobody reads or writes."""
        for _ in range(20):
            for end, peer in ((self.client, self.gateway), (self.gateway, self.client)):
                while self.send(end, self.lines[0]):
                    self.deliver(peer, self.lines[0])
            self.now += 1.0


@settings(max_examples=80)
@given(
    seed=st.integers(0, 2**32),
    lines=st.integers(1, 4),
    steps=st.sampled_from((200, 2000)),
    ranges=st.sampled_from((2, 64)),
    under_way=st.sampled_from((5, 4096)),
)
def test_whatever_ends_all_that_is_said_arrives_and_is_forgotten(
    seed: int, lines: int, steps: int, ranges: int, under_way: int
) -> None:
    random = Random(seed)  # noqa: S311  what happens by chance is no secret
    with small_limits(ranges, under_way):
        client, gateway = (End(Tunnel(side=side), random) for side in (Side.CLIENT, Side.GATEWAY))
        world = World(random, [Line(each) for each in range(1, lines + 1)], client, gateway)
        for _ in range(steps):
            world.step()
        world.settle()
        assert client.tunnel.channels == gateway.tunnel.channels == 0
        for end in (client, gateway):
            for channel, direction in end.sends.items():
                if channel not in client.over_with | gateway.over_with:
                    assert direction.received == direction.content
                    assert direction.ended
        world.fill()
        assert client.tunnel.channels == gateway.tunnel.channels == 0
