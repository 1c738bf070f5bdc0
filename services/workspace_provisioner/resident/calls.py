"""Calls on one connection: many at once, each with bytes both ways against credit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Protocol

from chassis.errors import Kind
from workspace_provisioner.resident.frames import (
    INITIAL_CREDIT,
    MAX_CHUNK_BYTES,
    FrameInvalid,
    encoded,
)

_MOST_CREDIT = 16 * 1024 * 1024


class Sink(Protocol):
    """Where frames go."""

    async def send(self, frame: bytes) -> None:
        """Send in order; returns when there is room for more. Raises ConnectionError."""
        ...


class Call:
    """One call: what came with it, the bytes that follow, and what goes back."""

    def __init__(
        self, *, number: int, fields: Mapping[str, object], payload: bytes, sink: Sink
    ) -> None:
        self.number = number
        self.fields = fields
        self.payload = payload
        self.signals: Callable[[int], None] | None = None
        self._sink = sink
        self._chunks: deque[bytes] = deque()
        self._ended = False
        self._arrived = asyncio.Event()
        self._may_receive = INITIAL_CREDIT
        self._used = 0
        self._may_send = INITIAL_CREDIT
        self._has_credit = asyncio.Event()

    def take(self, chunk: bytes) -> None:
        """Take the next bytes from the client; raises FrameInvalid past its credit."""
        self._may_receive -= len(chunk)
        if self._ended or self._may_receive < 0 or not 0 < len(chunk) <= MAX_CHUNK_BYTES:
            raise FrameInvalid("bytes without credit")
        self._chunks.append(chunk)
        self._arrived.set()

    def end(self) -> None:
        """Know that no more bytes come."""
        self._ended = True
        self._arrived.set()

    def grant(self, credit: object) -> None:
        """Let more bytes go back; raises FrameInvalid for what is no sensible number."""
        if type(credit) is not int or not 0 < credit <= _MOST_CREDIT:
            raise FrameInvalid("a credit is out of bounds")
        self._may_send += credit
        if self._may_send > _MOST_CREDIT:
            raise FrameInvalid("more credit than there may be")
        self._has_credit.set()

    async def received(self) -> AsyncIterator[bytes]:
        """Give the client's bytes to their end, and credit for those that were taken."""
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                yield chunk
                self._used += len(chunk)
                if self._used >= INITIAL_CREDIT // 4:
                    self._may_receive += self._used
                    used, self._used = self._used, 0
                    await self._sink.send(encoded(self.number, "credit", credit=used))
            if self._ended:
                return
            self._arrived.clear()
            await self._arrived.wait()

    async def send(self, chunk: bytes, *, stream: str) -> None:
        """Send bytes of a named stream, as the client gives credit for them."""
        rest = memoryview(chunk)
        while rest:
            while self._may_send == 0:
                self._has_credit.clear()
                await self._has_credit.wait()
            size = min(len(rest), self._may_send, MAX_CHUNK_BYTES)
            self._may_send -= size
            frame = encoded(self.number, "bytes", bytes(rest[:size]), stream=stream)
            await self._sink.send(frame)
            rest = rest[size:]


Answer = Mapping[str, object]
Verb = Callable[[Call], Awaitable[Answer]]


def error_fields(
    kind: Kind, message: str, *, reason: str, remedy: str, fields: Mapping[str, str]
) -> dict[str, object]:
    """Return an error as it is sent."""
    return {
        "kind": str(kind),
        "reason": reason,
        "message": message,
        "remedy": remedy,
        "fields": dict(fields),
    }
