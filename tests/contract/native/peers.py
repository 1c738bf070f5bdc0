"""Two connections that are joined without signalling, and what goes over them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from fairlead_native import Channel, Connection, Engine, Message, State


class MakeEngine(Protocol):
    """Makes engines that end with the test."""

    def __call__(self, *, silence: float = 30.0) -> Engine: ...


def trickle(one: Connection, other: Connection) -> None:
    """Give each the other's candidates as they are found."""
    for giver, taker in ((one, other), (other, one)):
        giver.on_candidate = taker.add_candidate
        giver.on_gathered = taker.end_of_candidates


class Inbox:
    """What came on a channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.closed = asyncio.Event()
        self.room = asyncio.Event()
        channel.attach(
            on_message=self.messages.put_nowait, on_closed=self.closed.set, on_room=self.room.set
        )

    async def opened(self) -> None:
        """Wait until the channel is open."""
        while not self.channel.is_open:
            self.room.clear()
            await self.room.wait()

    async def send_all(self, content: bytes, count: int, *, size: int = 16384) -> bytes:
        """Send `content` over and over as there is room, and return the SHA-256 of it all."""
        sent = hashlib.sha256()
        for _ in range(count):
            for start in range(0, len(content), size):
                self.channel.send(content[start : start + size])
                while self.channel.queued > 512 * 1024:
                    self.room.clear()
                    await self.room.wait()
            sent.update(content)
        return sent.digest()

    async def take_all(self, size: int) -> bytes:
        """Take `size` bytes and return their SHA-256."""
        return await taken_sum(self.messages, size)


async def taken_sum(messages: asyncio.Queue[Message], size: int) -> bytes:
    """Take binary messages of `size` bytes together and return their SHA-256."""
    taken = hashlib.sha256()
    while size > 0:
        message = await messages.get()
        assert isinstance(message, bytes)
        taken.update(message)
        size -= len(message)
    return taken.digest()


@dataclass
class Pair:
    """Two connected connections with one channel, and its two ends."""

    near: Connection
    far: Connection
    near_end: Inbox
    far_end: Inbox
    states: list[State] = field(default_factory=list)


def first_channel(connection: Connection) -> asyncio.Future[Channel]:
    """Return what will be the first channel that the peer opens."""
    found: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()

    def take(channel: Channel) -> None:
        if not found.done():
            found.set_result(channel)

    connection.on_channel = take
    return found


async def connected_pair(
    near_engine: Engine,
    far_engine: Engine,
    *,
    join: Callable[[Connection, Connection], None] = trickle,
) -> Pair:
    """Connect two engines and open a channel from near to far."""
    near, far = near_engine.connect(), far_engine.connect()
    join(near, far)
    found = first_channel(far)
    near_end = Inbox(near.open_channel("tcp:80", protocol="a protocol"))
    assert near.accept_answer(far.answer(near.offer()))
    far_end = Inbox(await found)
    await near_end.opened()
    pair = Pair(near, far, near_end, far_end)
    near.on_state = lambda: pair.states.append(near.state)
    return pair
