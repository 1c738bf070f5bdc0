"""A tunnel over polls that are lost, doubled and reordered: every byte arrives, once, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_tunnel.tunnel import Tunnel
from tests.unit.fairlead_tunnel.tunnel_pair import Pair, Peer

MOST_STEPS = 20_000
MOST = 16 * 1024


@dataclass(slots=True)
class Poll:
    """A request on its way, or its answer."""

    number: int
    body: bytes | None
    is_answer: bool = False


@dataclass(slots=True)
class Stream:
    """What one side has to say in one channel."""

    tunnel: Tunnel
    channel: int
    content: bytes
    written: int = 0
    finished: bool = False

    def go_on(self, random: Random) -> None:
        """Write the next piece, or finish."""
        if self.finished:
            return
        if self.written == len(self.content):
            self.tunnel.finish(self.channel)
            self.finished = True
            return
        size = min(random.randint(1, 9000), self.tunnel.writable(self.channel))
        piece = self.content[self.written : self.written + size]
        self.tunnel.write(self.channel, piece)
        self.written += len(piece)


@dataclass(slots=True)
class World:
    """A client with `polls` polls at once, and what happens to each by chance."""

    random: Random
    loss: float
    polls: int
    pair: Pair = field(default_factory=Pair)
    on_the_way: list[Poll] = field(default_factory=list)
    open_polls: set[int] = field(default_factory=set)
    begun: int = 0
    now: float = 0.0
    streams: list[Stream] = field(default_factory=list)
    answered: set[int] = field(default_factory=set)

    def open(self, size: int) -> None:
        """Open a channel with something to say."""
        hold = self.random.choice((None, self.now + 0.002))
        client = self.pair.client.tunnel
        channel = client.open(f"db:{size + 1}", hold_until=hold)
        self.streams.append(Stream(client, channel, self.random.randbytes(size)))

    def step(self) -> None:
        """Let a moment pass."""
        self.now += 0.001
        for channel in self.pair.gateway.wanted.keys() - self.answered:
            self.answered.add(channel)
            content = self.random.randbytes(self.random.randint(0, 60_000))
            self.streams.append(Stream(self.pair.gateway.tunnel, channel, content))
        for stream in self.streams:
            stream.go_on(self.random)
        if len(self.open_polls) < self.polls:
            self._begin()
        self.random.shuffle(self.on_the_way)
        under_way, self.on_the_way = self.on_the_way, []
        for poll in under_way:
            if self.random.random() < 0.5:
                self.on_the_way.append(poll)
            elif self.random.random() < self.loss:
                self.open_polls.remove(poll.number)
                self.pair.client.tunnel.carrier_lost(poll.number)
            elif poll.is_answer:
                self.open_polls.remove(poll.number)
                self._deliver(self.pair.client, poll)
            else:
                self._answer(poll)

    def _begin(self) -> None:
        self.begun += 1
        self.open_polls.add(self.begun)
        batch = self.pair.client.tunnel.take_batch(
            carrier=self.begun,
            most=MOST,
            now=self.now,
            alive=[(each, each) for each in sorted(self.open_polls)],
        )
        assert batch is not None, "what is alive is always told"
        assert batch.size <= MOST
        self.on_the_way.append(Poll(self.begun, b"".join(batch.pieces)))

    def _answer(self, poll: Poll) -> None:
        self._deliver(self.pair.gateway, poll)
        if self.random.random() < 0.1:
            self._deliver(self.pair.gateway, poll)
        body = self.pair.gateway.batch(carrier=poll.number, most=MOST, now=self.now, answer=True)
        self.on_the_way.append(Poll(poll.number, body, is_answer=True))

    def _deliver(self, peer: Peer, poll: Poll) -> None:
        if poll.body is not None:
            peer.take(poll.body, self.now)

    @property
    def done(self) -> bool:
        """Say whether both sides have said everything and forgotten it."""
        client, gateway = self.pair.client.tunnel, self.pair.gateway.tunnel
        opened = len(self.streams) == 2 * len(self.answered)
        return opened and client.channels == gateway.channels == 0


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    loss=st.sampled_from((0.0, 0.1, 0.3)),
    polls=st.integers(1, 5),
    sizes=st.lists(st.integers(0, 60_000), min_size=1, max_size=6),
)
def test_every_byte_arrives_once_and_in_order(
    seed: int, loss: float, polls: int, sizes: list[int]
) -> None:
    random = Random(seed)  # noqa: S311  what happens by chance is no secret
    world = World(random=random, loss=loss, polls=polls)
    for size in sizes:
        world.open(size)
    for _ in range(MOST_STEPS):
        if world.done:
            break
        world.step()
    assert world.done
    pair = world.pair
    for stream in world.streams:
        peer = pair.gateway if stream.tunnel is pair.client.tunnel else pair.client
        assert peer.received.get(stream.channel, b"") == stream.content
        assert stream.channel in peer.finished
    assert pair.client.over is None
    assert pair.gateway.over is None
    assert not pair.client.resets
    assert not pair.gateway.resets
