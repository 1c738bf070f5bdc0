"""The worker's end of a line to one file agent, which is hostile territory: frames are bounded,
parsed with distrust, and awaited for a limited time only.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from chassis.errors import FairleadError
from sandbox_worker.file import FileKind, FileStat
from sandbox_worker.file_agent.frames import (
    ANSWER,
    CONTENT,
    END,
    FAILURE,
    HEADER,
    LARGEST,
    PROGRESS,
    REQUEST,
    frame,
    join,
    split,
)
from sandbox_worker.file_agent.stats import FIELDS
from sandbox_worker.file_errors import FileAgentLost, FileAgentSilent, file_error

_LONGEST_NUMBER = 20
_LONGEST_ETAG = 64
_PERMISSIONS = 0o7777
_SPOKEN = frozenset({ANSWER, CONTENT, END, FAILURE, PROGRESS})


@dataclass(frozen=True, slots=True)
class Frame:
    """What an agent sent: an answer, content, or the end."""

    kind: bytes
    payload: bytes

    @property
    def fields(self) -> list[bytes]:
        """The fields of an answer or an end."""
        return split(self.payload)


class FileLine:
    """One request to one agent."""

    def __init__(
        self,
        *,
        link: socket.socket,
        kill: Callable[[], Awaitable[None]],
        silence: float,
    ) -> None:
        link.setblocking(False)
        self._link = link
        self._kill = kill
        self._silence = silence
        self._loop = asyncio.get_running_loop()

    async def ask(self, *fields: bytes | int) -> None:
        """Send the request."""
        await self._send(frame(REQUEST, join(*fields)))

    async def feed(self, content: AsyncIterator[bytes]) -> list[bytes]:
        """Send content to its end and return the fields of the answer, which may come before."""
        try:
            async for piece in content:
                for start in range(0, len(piece), LARGEST):
                    await self._send(frame(CONTENT, piece[start : start + LARGEST]))
                    while self._has_spoken():
                        if (found := await self._frame(self._silence)).kind != PROGRESS:
                            return _answered(found)
            await self._send(frame(END))
        except FileAgentLost:
            pass  # its last words tell why, if there are any
        return await self.answer()

    async def answer(self) -> list[bytes]:
        """Wait for an answer; return its fields."""
        return _answered(await self.next())

    async def next(self, *, patient: bool = False) -> Frame:
        """Wait for the next frame, with `patient` for as long as it takes.

        Raises what a failure means, FileAgentLost and FileAgentSilent.
        """
        while (found := await self._frame(None if patient else self._silence)).kind == PROGRESS:
            continue
        return found

    def close(self) -> None:
        """Leave the agent, which sees it and ends; again is harmless."""
        self._link.close()

    def _has_spoken(self) -> bool:
        try:
            return bool(self._link.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        except OSError:
            raise FileAgentLost from None

    async def _frame(self, silence: float | None) -> Frame:
        try:
            async with asyncio.timeout(silence):
                kind, length = HEADER.unpack(await self._exactly(HEADER.size))
                if kind not in _SPOKEN or length > LARGEST:
                    raise FileAgentLost
                payload = await self._exactly(length)
        except TimeoutError:
            await self._kill()
            raise FileAgentSilent from None
        if kind == FAILURE:
            raise _failure(split(payload))
        return Frame(kind, payload)

    async def _exactly(self, size: int) -> bytes:
        content = bytearray(size)
        rest = memoryview(content)
        while rest:
            try:
                count = await self._loop.sock_recv_into(self._link, rest)
            except OSError:
                raise FileAgentLost from None
            if count == 0:
                raise FileAgentLost
            rest = rest[count:]
        return bytes(content)

    async def _send(self, content: bytes) -> None:
        try:
            async with asyncio.timeout(self._silence):
                await self._loop.sock_sendall(self._link, content)
        except TimeoutError:
            await self._kill()
            raise FileAgentSilent from None
        except OSError:
            raise FileAgentLost from None


def _answered(found: Frame) -> list[bytes]:
    if found.kind != ANSWER:
        raise FileAgentLost
    return found.fields


def read_stat(fields: list[bytes]) -> FileStat:
    """Read the fields that describe a file; raises FileAgentLost for what is none."""
    if len(fields) != FIELDS:
        raise FileAgentLost
    name, kind, size, permissions, modified, target, etag = fields
    try:
        return FileStat(
            name=name,
            kind=FileKind(kind.decode("ascii")),
            size=read_number(size),
            permissions=read_number(permissions) & _PERMISSIONS,
            modified=read_number(modified),
            target=target,
            etag=_text(etag),
        )
    except ValueError:
        raise FileAgentLost from None


def read_number(field: bytes) -> int:
    """Read a number of at most 63 bits; raises FileAgentLost for anything else."""
    digits = field[1:] if field.startswith(b"-") else field
    if not digits.isdigit() or len(field) > _LONGEST_NUMBER:
        raise FileAgentLost
    number = int(field)
    if not -(2**63) <= number < 2**63:
        raise FileAgentLost
    return number


def _text(field: bytes) -> str:
    text = field.decode("ascii")
    if not (0 < len(text) <= _LONGEST_ETAG and text.isprintable() and '"' not in text):
        raise FileAgentLost
    return text


def _failure(fields: list[bytes]) -> FairleadError:
    if len(fields) != 3:
        return FileAgentLost()
    reason, path, cause = fields
    return file_error(reason.decode("ascii", "replace"), path, cause.decode("ascii", "replace"))
