"""A program's three pipes on the event loop, for every isolation that starts real processes."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from sandbox_worker.execution import MOST_RECORD_BYTES, Piece, Stream
from sandbox_worker.execution_errors import StdinClosed

_PIPE_BYTES = 64 * 1024
_LARGE_PIPE_BYTES = 1024 * 1024
"""What a pipe is given once it was found full: a user's pipes are bounded together (pipe(7),
pipe-user-pages-soft), and few programs write that much.
"""


@dataclass(frozen=True, slots=True)
class FarEnds:
    """The program's ends, in the order stdin, stdout, stderr."""

    descriptors: tuple[int, ...]

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


def _pipe() -> tuple[int, int]:
    """Make a pipe; the program may open it by its name, such as `/dev/stderr`, as another user."""
    ends = os.pipe2(os.O_CLOEXEC)
    os.fchmod(ends[0], 0o666)
    return ends


class Pipes:
    """The worker's ends: reads output without ever delaying the exit, and writes standard input."""

    def __init__(self, *, stdin: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._open: dict[Stream, int] = {}
        self._left: dict[Stream, int] = {}
        self._most = dict.fromkeys(Stream, _PIPE_BYTES)
        self._wakeup = asyncio.Event()
        self._ended = asyncio.Event()
        self._stdin: int | None = None
        self._stdin_room: asyncio.Future[None] | None = None
        far: list[int] = []
        try:
            if stdin:
                far_end, self._stdin = _pipe()
                far.append(far_end)
                os.set_blocking(self._stdin, False)
            else:
                far.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            for stream in Stream:
                self._open[stream], far_end = _pipe()
                far.append(far_end)
                os.set_blocking(self._open[stream], False)
        except OSError:
            for descriptor in far:
                os.close(descriptor)
            self.close()
            raise
        self.far = FarEnds(descriptors=(far[0], far[1], far[2]))

    def end(self) -> None:
        """Say that the program has ended: only what the pipes hold now is still read.

        Whoever else keeps them open, a background process for one, may go on writing for ever.
        """
        if not self._ended.is_set():
            for stream, descriptor in self._open.items():
                held = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
                self._left[stream] = struct.unpack("i", held)[0]
            self._ended.set()
            self._wakeup.set()

    async def read(self) -> Sequence[Piece]:
        """Wait for pieces of output; nothing means that the program has ended and all is read."""
        while True:
            self._wakeup.clear()
            ended = self._ended.is_set()
            pieces = [piece for stream in list(self._open) for piece in self._take(stream)]
            if pieces or ended:
                return pieces
            for descriptor in self._open.values():
                self._loop.add_reader(descriptor, self._wakeup.set)
            try:
                await self._wakeup.wait()
            finally:
                for descriptor in self._open.values():
                    self._loop.remove_reader(descriptor)

    async def write(self, content: bytes) -> int:
        """Write some of `content` to standard input once there is room; raises StdinClosed."""
        while (descriptor := self._stdin) is not None:
            try:
                return os.write(descriptor, content)
            except BlockingIOError:
                await self._until_stdin_room(descriptor)
            except OSError as error:
                self.close_stdin()
                raise StdinClosed from error
        raise StdinClosed

    def close_stdin(self) -> None:
        """Let the program read end-of-file."""
        if self._stdin is not None:
            self._loop.remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = None
        if self._stdin_room is not None and not self._stdin_room.done():
            self._stdin_room.set_result(None)

    def close(self) -> None:
        """Close the worker's ends."""
        self.close_stdin()
        for stream in list(self._open):
            self._shut(stream)

    def _take(self, stream: Stream) -> list[Piece]:
        """Read what a pipe holds, at most as much as a large one."""
        pieces: list[Piece] = []
        for _ in range(_LARGE_PIPE_BYTES // MOST_RECORD_BYTES):
            most = min(self._most[stream], self._left.get(stream, MOST_RECORD_BYTES))
            if most == 0:
                break
            try:
                content = os.read(self._open[stream], most)
            except BlockingIOError:
                break
            if not content:
                self._shut(stream)
                break
            if stream in self._left:
                self._left[stream] -= len(content)
            pieces.append(Piece(stream=stream, content=content, written_at=time.time_ns()))
            if len(content) < most:
                break
            if most == _PIPE_BYTES:
                self._enlarge(stream)
        return pieces

    def _enlarge(self, stream: Stream) -> None:
        """Give a full pipe more room; the kernel may refuse it to this user."""
        self._most[stream] = MOST_RECORD_BYTES
        with suppress(OSError):
            fcntl.fcntl(self._open[stream], fcntl.F_SETPIPE_SZ, _LARGE_PIPE_BYTES)

    def _shut(self, stream: Stream) -> None:
        descriptor = self._open.pop(stream)
        self._loop.remove_reader(descriptor)
        os.close(descriptor)

    async def _until_stdin_room(self, descriptor: int) -> None:
        self._stdin_room = self._loop.create_future()
        self._loop.add_writer(descriptor, self._on_stdin_room)
        try:
            await self._stdin_room
        finally:
            self._stdin_room = None
            if self._stdin == descriptor:
                self._loop.remove_writer(descriptor)

    def _on_stdin_room(self) -> None:
        if self._stdin_room is not None and not self._stdin_room.done():
            self._stdin_room.set_result(None)
