"""Calls to a host over one connection: many at once, each with bytes both ways against credit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Protocol, TypeAlias

from fairlead_sdk.errors import FairleadError
from fairlead_sdk.json_form import JsonObject
from fairlead_sdk.ssh_errors import ConnectionLost, error_from_host
from fairlead_sdk.ssh_frames import (
    INITIAL_CREDIT,
    MAX_CALLS,
    MAX_CHUNK_BYTES,
    Decoder,
    Frame,
    FrameInvalid,
    encoded,
)

_READ_BYTES = 256 * 1024
# The rest is for pings, and for calls that were given up and still end over there.
_MOST_CALLS = MAX_CALLS - 8
Answer: TypeAlias = JsonObject


class FrameWriter(Protocol):
    """What `asyncio.StreamWriter` does for frames."""

    def close(self) -> None:
        """Close it; what is written still leaves."""
        ...

    def write(self, content: bytes, /) -> None:
        """Write soon."""
        ...

    async def drain(self) -> None:
        """Wait for room; raises `ConnectionError`."""
        ...


class Taker(Protocol):
    """What becomes of the frames of one call."""

    def take(self, frame: Frame) -> None:
        """Take a frame of the call, an answer or error as the last one."""
        ...

    def fail(self, error: FairleadError) -> None:
        """Know that the connection is lost."""
        ...


class HostCall:
    """One call under way."""

    def __init__(self, *, channel: HostChannel) -> None:
        self.number = channel.number(self)
        self._channel = channel
        self._arrived: deque[Frame] = deque()
        self._something = asyncio.Event()
        self._failure: FairleadError | None = None
        self._used = 0
        self._may_send = INITIAL_CREDIT
        self._has_credit = asyncio.Event()
        self.answer: Answer | None = None

    def take(self, frame: Frame) -> None:
        """Take a frame of this call."""
        if frame.type == "credit":
            credit = frame.fields.get("credit")
            if type(credit) is not int or credit <= 0:
                raise FrameInvalid("a credit is out of bounds")
            self._may_send += credit
            self._has_credit.set()
        else:
            self._arrived.append(frame)
            if frame.type in ("answer", "error"):
                self._has_credit.set()
            self._something.set()

    def fail(self, error: FairleadError) -> None:
        """Know that nothing comes any more."""
        self._failure = error
        self._something.set()
        self._has_credit.set()

    async def outputs(self) -> AsyncIterator[tuple[str, bytes]]:
        """Give the host's bytes with the name of their stream, to their end; then `answer` is
        there. Raises the host's error, or `ConnectionLost`.
        """
        while True:
            while self._arrived:
                frame = self._arrived.popleft()
                if frame.type == "answer":
                    self.answer = frame.fields
                    return
                if frame.type == "error":
                    raise error_from_host(self._channel.destination, frame.fields)
                yield str(frame.fields.get("stream", "")), frame.payload
                await self._credit(len(frame.payload))
            if self._failure is not None:
                raise self._failure
            self._something.clear()
            await self._something.wait()

    async def answered(self) -> Answer:
        """Wait for the answer; bytes before it are dropped."""
        async for _ in self.outputs():
            pass
        return self.answer or {}

    async def _credit(self, size: int) -> None:
        self._used += size
        if self._used >= INITIAL_CREDIT // 4:
            used, self._used = self._used, 0
            await self._channel.send(encoded(self.number, "credit", credit=used))

    async def send(self, chunk: bytes) -> bool:
        """Send the next bytes, as the host gives credit; false once it has answered and wants no
        more. Raises `ConnectionLost`.
        """
        rest = memoryview(chunk)
        while rest:
            while self._may_send == 0 or self._is_over:
                if self._failure is not None:
                    raise self._failure
                if self._is_over:
                    return False
                self._has_credit.clear()
                await self._has_credit.wait()
            size = min(len(rest), self._may_send, MAX_CHUNK_BYTES)
            self._may_send -= size
            await self._channel.send(encoded(self.number, "bytes", bytes(rest[:size])))
            rest = rest[size:]
        return True

    @property
    def _is_over(self) -> bool:
        return self._failure is not None or any(
            frame.type in ("answer", "error") for frame in self._arrived
        )

    async def end(self) -> None:
        """Say that no more bytes come."""
        await self._channel.send(encoded(self.number, "end"))

    async def signal(self, number: int) -> None:
        """Signal the group of the call's command."""
        await self._channel.send(encoded(self.number, "signal", signal=number))

    async def close(self) -> None:
        """Give the call up, unless it has been answered."""
        if self._channel.forget(self.number) and self._failure is None:
            with suppress(FairleadError):
                await self._channel.send(encoded(self.number, "cancel"))


class HostChannel:
    """One connection's calls. `lost` is set when it has ended, for whatever reason."""

    def __init__(
        self, *, reader: asyncio.StreamReader, writer: FrameWriter, destination: str
    ) -> None:
        self.destination = destination
        self.lost = asyncio.Event()
        self._reader = reader
        self._writer = writer
        self._decoder = Decoder()
        self._calls: dict[int, Taker] = {}
        self._next = 1
        self._places = asyncio.Semaphore(_MOST_CALLS)
        self._placed: set[int] = set()
        self._first: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()

    async def hello(self) -> Answer:
        """Wait for the host's first frame; `follow` has to run. Raises the host's error."""
        frame = await asyncio.shield(self._first)
        if frame.type == "error":
            raise error_from_host(self.destination, frame.fields)
        return frame.fields

    async def follow(self) -> None:
        """Take frames until the connection ends; every open call then raises `ConnectionLost`."""
        cause = ""
        try:
            while received := await self._reader.read(_READ_BYTES):
                for frame in self._decoder.feed(received):
                    self._take(frame)
        except FrameInvalid as broken:
            cause = str(broken)
        except ConnectionError as broken:
            cause = broken.strerror or ""
        finally:
            self._end(ConnectionLost(self.destination, cause))

    def _take(self, frame: Frame) -> None:
        if frame.call == 0:
            if not self._first.done():
                self._first.set_result(frame)
            elif frame.type == "error":
                raise FrameInvalid(str(frame.fields.get("message", "an error without a call")))
            return
        over = frame.type in ("answer", "error")
        call = self._leave(frame.call) if over else self._calls.get(frame.call)
        if call is not None:
            call.take(frame)

    def _end(self, error: FairleadError) -> None:
        if self.lost.is_set():
            return
        self.lost.set()
        if not self._first.done():
            self._first.set_exception(error)
            self._first.exception()  # seen here, when nobody waits for it
        for call in list(self._calls.values()):
            call.fail(error)
        for number in tuple(self._placed):
            self._give_place(number)

    def number(self, taker: Taker) -> int:
        """Give a number for a call, whose frames `taker` takes until it is forgotten."""
        number, self._next = self._next, self._next + 1
        self._calls[number] = taker
        return number

    async def start(self, verb: str, payload: bytes = b"", /, **fields: object) -> HostCall:
        """Begin a call, once the host has a place for it. Raises `ConnectionLost`."""
        await self._places.acquire()
        call = HostCall(channel=self)
        self._placed.add(call.number)
        await self._begin(call, verb, payload, **fields)
        return call

    async def ping(self) -> None:
        """Let the host answer, however many calls there are. Raises what it answers, and
        `ConnectionLost`.
        """
        call = HostCall(channel=self)
        await self._begin(call, "ping")
        try:
            await call.answered()
        finally:
            await call.close()

    async def _begin(
        self, call: HostCall, verb: str, payload: bytes = b"", /, **fields: object
    ) -> None:
        try:
            await self.send(encoded(call.number, "call", payload, verb=verb, **fields))
        except BaseException:
            self.forget(call.number)
            raise

    async def ask(self, verb: str, payload: bytes = b"", /, **fields: object) -> Answer:
        """Call and wait for the answer."""
        call = await self.start(verb, payload, **fields)
        try:
            return await call.answered()
        finally:
            await call.close()

    async def send(self, frame: bytes) -> None:
        """Send a frame; returns when there is room for more. Raises `ConnectionLost`."""
        if self.lost.is_set():
            raise ConnectionLost(self.destination)
        try:
            self._writer.write(frame)
            await self._writer.drain()
        except ConnectionError:
            self._end(ConnectionLost(self.destination))
            raise ConnectionLost(self.destination) from None

    def forget(self, number: int) -> bool:
        """Take nothing for a call any more; says whether it was there."""
        return self._leave(number) is not None

    def _leave(self, number: int) -> Taker | None:
        self._give_place(number)
        return self._calls.pop(number, None)

    def _give_place(self, number: int) -> None:
        if number in self._placed:
            self._placed.remove(number)
            self._places.release()
