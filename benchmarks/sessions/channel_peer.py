"""`python -m benchmarks.sessions.channel_peer CORE offer|answer`: one end of a data channel, with
aiortc or the native core. The programs of other stacks beside it do the same.

The offering end prints its description as JSON, is told the other one's, prints `open`, and then
does what it is told: `up BYTES`, `down BYTES` (both are hashed where they arrive) or `ping COUNT`;
it prints the seconds, of pings the median. The answering end is told a description and answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import statistics
import struct
import sys
import time
from collections.abc import Callable
from typing import Protocol

from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription

from benchmarks.sessions.program import own_input
from fairlead_tunnel.loopback_candidates import offer_loopback_when_alone

PIECE_BYTES = 65_536
_HIGH_BYTES, _LOW_BYTES = 1 << 20, 1 << 18
_PATTERN = bytes((31 * place + 7) & 255 for place in range(PIECE_BYTES))


class Sender(Protocol):
    """Puts messages into a channel."""

    def __call__(self, message: bytes | str, /) -> None:
        """Send one."""
        ...


def pieces_digest(size: int) -> str:
    """Return the SHA-256 of the first `size` bytes that are sent."""
    digest = hashlib.sha256()
    for number in range(size // PIECE_BYTES):
        digest.update(struct.pack(">Q", number) + _PATTERN[8:])
    return digest.hexdigest()


class End:
    """One end of a channel, whichever library has it."""

    def __init__(self) -> None:
        self.send: Sender
        self.queued: Callable[[], int]
        self.is_open = asyncio.Event()
        self.room = asyncio.Event()
        self._texts: asyncio.Queue[str] = asyncio.Queue()
        self._echoes: asyncio.Queue[bytes] = asyncio.Queue()
        self._digest = hashlib.sha256()
        self._left = 0
        self._arrived = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self.is_answerer = False

    def take(self, message: bytes | str) -> None:
        """Take a message."""
        if isinstance(message, str):
            if self.is_answerer:
                self._obey(message)
            else:
                self._texts.put_nowait(message)
        elif self._left:
            self._digest.update(message)
            self._left -= len(message)
            if not self._left:
                self._arrived.set()
                if self.is_answerer:
                    self.send(self._digest.hexdigest())
        elif self.is_answerer:
            self.send(message)
        else:
            self._echoes.put_nowait(message)

    def expect(self, size: int) -> None:
        """Hash the next bytes."""
        self._digest, self._left = hashlib.sha256(), size
        self._arrived.clear()

    def _obey(self, text: str) -> None:
        word, _, size = text.partition(" ")
        if word == "up":
            self.expect(int(size))
        else:
            self._sending = asyncio.ensure_future(self.pour(int(size)))

    async def pour(self, size: int) -> None:
        """Send so many bytes, as fast as there is room."""
        for number in range(size // PIECE_BYTES):
            while self.queued() > _HIGH_BYTES:
                self.room.clear()
                await self.room.wait()
            self.send(struct.pack(">Q", number) + _PATTERN[8:])

    async def do(self, order: str) -> float:
        """Do what an offering end is told; return seconds."""
        word, _, number = order.partition(" ")
        size = int(number)
        if word == "ping":
            spent = []
            for _ in range(size):
                begun = time.perf_counter()
                self.send(_PATTERN[:64])
                await self._echoes.get()
                spent.append(time.perf_counter() - begun)
            return statistics.median(spent)
        wanted = pieces_digest(size)
        begun = time.perf_counter()
        if word == "up":
            self.send(order)
            await self.pour(size)
            found = await self._texts.get()
        else:
            self.expect(size)
            self.send(order)
            await self._arrived.wait()
            found = self._digest.hexdigest()
        spent_seconds = time.perf_counter() - begun
        assert found == wanted, "what arrived is not what was sent"
        return spent_seconds


class AiortcEnd(End):
    """One end in aiortc."""

    def __init__(self) -> None:
        super().__init__()
        offer_loopback_when_alone(importlib.import_module("aioice.ice"))
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))

    async def offer(self) -> str:
        self._attach(self._connection.createDataChannel("bench"))
        await self._connection.setLocalDescription(await self._connection.createOffer())
        return self._connection.localDescription.sdp

    async def answer(self, offer: str) -> str:
        self._connection.on("datachannel", self._attach)
        await self._connection.setRemoteDescription(RTCSessionDescription(sdp=offer, type="offer"))
        await self._connection.setLocalDescription(await self._connection.createAnswer())
        return self._connection.localDescription.sdp

    async def accept(self, answer: str) -> None:
        description = RTCSessionDescription(sdp=answer, type="answer")
        await self._connection.setRemoteDescription(description)

    def _attach(self, channel: object) -> None:
        from aiortc import RTCDataChannel

        assert isinstance(channel, RTCDataChannel)
        channel.bufferedAmountLowThreshold = _LOW_BYTES
        self.send = channel.send
        self.queued = lambda: channel.bufferedAmount
        channel.on("message", self.take)
        channel.on("bufferedamountlow", self.room.set)
        channel.on("open", self.is_open.set)


class NativeEnd(End):
    """One end in the native core."""

    def __init__(self) -> None:
        super().__init__()
        self._connection = importlib.import_module("fairlead_native").Engine().connect()

    async def offer(self) -> str:
        self._attach(self._connection.open_channel("bench"))
        self._connection.offer()
        await self._connection.wait_gathered()
        return str(self._connection.description())

    async def answer(self, offer: str) -> str:
        self._connection.on_channel = self._attach
        self._connection.answer(offer)
        await self._connection.wait_gathered()
        return str(self._connection.description())

    async def accept(self, answer: str) -> None:
        self._connection.accept_answer(answer)

    def _attach(self, channel: NativeChannel) -> None:
        def has_room() -> None:
            self.room.set()
            if channel.is_open:
                self.is_open.set()

        self.send = channel.send
        self.queued = lambda: channel.queued
        channel.attach(on_message=self.take, on_room=has_room)


class NativeChannel(Protocol):
    """What is used of `fairlead_native.Channel`."""

    @property
    def is_open(self) -> bool:
        """Say whether both sides have it."""
        ...

    @property
    def queued(self) -> int:
        """How many bytes wait to be sent."""
        ...

    def attach(
        self, *, on_message: Callable[[bytes | str], None], on_room: Callable[[], None]
    ) -> None:
        """Deliver messages."""
        ...

    def send(self, message: bytes | str) -> None:
        """Queue a message."""
        ...


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def main(core: str, role: str) -> None:
    told = await own_input()
    end = AiortcEnd() if core == "aiortc" else NativeEnd()
    end.is_answerer = role == "answer"
    if end.is_answerer:
        offer = json.loads(await told.readline())["sdp"]
        _say(json.dumps({"sdp": await end.answer(offer)}))
        await told.read()
        return
    _say(json.dumps({"sdp": await end.offer()}))
    await end.accept(json.loads(await told.readline())["sdp"])
    await end.is_open.wait()
    _say("open")
    while order := (await told.readline()).decode().strip():
        _say(repr(await end.do(order)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
