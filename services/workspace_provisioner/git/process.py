"""A walled git process, with its pipes on the event loop."""

from __future__ import annotations

import asyncio
import errno
import os
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

from workspace_provisioner.wall.git_wall import GitWall
from workspace_provisioner.wall.jobs import REFUSED, Job

_CHUNK = 256 * 1024
_MOST_OUTPUT = 64 * 1024**2
_COMPLAINT = 16 * 1024


class GitProcess:
    """A process that was started; pipes are there where they were asked for."""

    def __init__(self, *, wall: GitWall) -> None:
        self._wall = wall
        self._name = ""
        self._ended: asyncio.Future[int] | None = None
        self._reading: list[asyncio.ReadTransport] = []
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None

    async def open(self, job: Job, *, given: int, complaints: int) -> Self:
        """Start the job; `given` is PIPE or DEVNULL, `complaints` that too or a descriptor."""
        with _descriptors() as theirs:
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            theirs.append(nothing)
            standard_input, standard_error = nothing, complaints
            try:
                if given == PIPE:
                    standard_input, ours = os.pipe2(os.O_CLOEXEC)
                    theirs.append(standard_input)
                    self.stdin = await _writer(ours)
                self.stdout, standard_output = await self._reader(theirs)
                if complaints == PIPE:
                    self.stderr, standard_error = await self._reader(theirs)
                elif complaints == DEVNULL:
                    standard_error = nothing
                self._name, self._ended = await self._wall.start(
                    job, (standard_input, standard_output, standard_error)
                )
            except BaseException:
                self.close()
                raise
        return self

    @property
    def returncode(self) -> int | None:
        """The exit status, negative after a signal; None while it runs."""
        if self._ended is None or not self._ended.done():
            return None
        return self._ended.result()

    async def wait(self) -> int:
        """Wait until nothing of it is left; returns the exit status."""
        assert self._ended is not None  # noqa: S101 - open() came first
        return await asyncio.shield(self._ended)

    async def outcome(self) -> int:
        """Wait for the exit status of git itself; raises OSError when it could not be started, or
        was lost with the program that starts it.
        """
        status = await self.wait()
        if status == REFUSED:
            raise OSError(errno.ECHILD, "git could not be started or was lost")
        return status

    async def communicate(self, given: bytes = b"") -> tuple[bytes, bytes]:
        """Give it `given`, then read to the end; returns its output and the end of its
        complaints.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._feed(given))
            output = tasks.create_task(self._output())
            complaint = tasks.create_task(_tail(self.stderr))
            tasks.create_task(self.wait())
        return output.result(), complaint.result()

    async def kill(self) -> None:
        """Kill it with everything below it and wait until nothing is left."""
        if self.returncode is None:
            await self._wall.kill(self._name)
            await self.wait()

    def close(self) -> None:
        """Close the pipes."""
        if self.stdin is not None and not self.stdin.transport.is_closing():
            self.stdin.transport.abort()
        for transport in self._reading:
            transport.close()

    async def _feed(self, given: bytes) -> None:
        if self.stdin is None:
            return
        # Git may end before it has read everything: its status says why.
        with suppress(BrokenPipeError, ConnectionResetError):
            if given:
                self.stdin.write(given)
                await self.stdin.drain()
            self.stdin.close()
            await self.stdin.wait_closed()

    async def _output(self) -> bytes:
        assert self.stdout is not None  # noqa: S101 - open() came first
        found = bytearray()
        while chunk := await self.stdout.read(_CHUNK):
            found += chunk
            if len(found) > _MOST_OUTPUT:
                await self._wall.kill(self._name)
        return bytes(found)

    async def _reader(self, theirs: list[int]) -> tuple[asyncio.StreamReader, int]:
        ours, other = os.pipe2(os.O_CLOEXEC)
        theirs.append(other)
        reader = asyncio.StreamReader(limit=_CHUNK)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb", buffering=0)
        )
        self._reading.append(transport)
        return reader, other


async def _writer(descriptor: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()),
        os.fdopen(descriptor, "wb", buffering=0),
    )
    return asyncio.StreamWriter(transport, protocol, None, loop)


async def _tail(reader: asyncio.StreamReader | None) -> bytes:
    if reader is None:
        return b""
    found = b""
    while chunk := await reader.read(_CHUNK):
        found = (found + chunk)[-_COMPLAINT:]
    return found


@contextmanager
def _descriptors() -> Iterator[list[int]]:
    """Close what is put into the list."""
    found: list[int] = []
    try:
        yield found
    finally:
        for descriptor in found:
            os.close(descriptor)
