"""A program's terminal on the event loop, in the place of its three pipes."""

from __future__ import annotations

import asyncio
import os
import termios
import time
from collections.abc import Sequence
from contextlib import suppress

from chassis.packet_link import close_all
from sandbox_worker.execution import Piece, Stream, TerminalSize
from sandbox_worker.execution_errors import StdinClosed
from sandbox_worker.isolation.pipes import FarEnds
from sandbox_worker.isolation.terminal_device import resize_terminal

DEFAULT_TERM = "xterm-256color"
_PIECE_BYTES = 64 * 1024
_MOST_HELD = 128 * 1024
"""More than the kernel keeps between the two sides of a terminal, which is 64 KiB at most."""

_LINE_ENDS = (b"\n", b"\r")


class TerminalPipes:
    """Reads what a terminal shows without ever delaying the exit, and types into it.

    The program's side is held open, too: otherwise a program that closes its own, and opens
    /dev/tty again later, would look like one that has ended.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._near: int | None = None
        self._far: int | None = None
        self._wakeup = asyncio.Event()
        self._room: asyncio.Future[None] | None = None
        self._left = _MOST_HELD
        self._ended = False
        self._hung_up = False
        self._closed = False
        self._is_line_open = False
        self.far = FarEnds(descriptors=())
        """Nothing is handed in: the sandbox's first process opens the terminal."""

    def open(self, sides: Sequence[int]) -> bool:
        """Take the two sides; says whether both have come: a full table of files loses them."""
        if len(sides) != 2:
            close_all(sides)
            return False
        self._near, self._far = sides
        os.set_blocking(self._near, False)
        return True

    def end(self) -> None:
        """Say that the program has ended: only what the terminal holds now is still read.

        A background process may go on writing for ever.
        """
        self._ended = True
        self._wakeup.set()
        self._on_room()

    async def read(self) -> Sequence[Piece]:
        """Wait for output; nothing means that the program has ended and all is read."""
        while True:
            self._wakeup.clear()
            ended = self._ended
            content = self._take()
            if content:
                return [Piece(stream=Stream.STDOUT, content=content, written_at=time.time_ns())]
            if ended:
                return ()
            await self._until_readable()

    async def write(self, content: bytes) -> int:
        """Type some of `content` once there is room; raises StdinClosed."""
        while not self._ended and not self._closed and (near := self._near) is not None:
            try:
                taken = os.write(near, content)
            except BlockingIOError:
                await self._until_room(near)
            except OSError as error:
                raise StdinClosed from error
            else:
                if taken:
                    self._is_line_open = content[taken - 1 : taken] not in _LINE_ENDS
                return taken
        raise StdinClosed

    def close_stdin(self) -> None:
        """Type the end-of-file character; again is harmless."""
        if not self._closed:
            self._closed = True
            self._type_end_of_file()
            self._on_room()

    def resize(self, size: TerminalSize) -> None:
        """Change the terminal's size."""
        if self._near is not None:
            with suppress(OSError):
                resize_terminal(self._near, size.rows, size.columns)

    def close(self) -> None:
        """Close both sides, which hangs up on whoever still has the terminal."""
        self._closed = True
        if self._near is not None and self._far is not None:
            self._loop.remove_reader(self._near)
            self._loop.remove_writer(self._near)
            os.close(self._near)
            os.close(self._far)
            self._near = self._far = None
        self._on_room()

    def _take(self) -> bytes:
        """Read what is there: the kernel gives at most 4 KiB at a time."""
        content = b""
        most = min(_PIECE_BYTES, self._left) if self._ended else _PIECE_BYTES
        while self._near is not None and not self._hung_up and len(content) < most:
            try:
                piece = os.read(self._near, most - len(content))
            except BlockingIOError:
                break
            except OSError:  # EIO: somebody in the sandbox has called vhangup(2)
                self._hung_up = True
                break
            content += piece
        if self._ended:
            self._left -= len(content)
        return content

    async def _until_readable(self) -> None:
        near = None if self._hung_up else self._near
        if near is not None:
            self._loop.add_reader(near, self._wakeup.set)
        try:
            await self._wakeup.wait()
        finally:
            if near is not None and self._near == near:
                self._loop.remove_reader(near)

    def _type_end_of_file(self) -> None:
        """Type it twice on a line that is not ended: the first one only ends the line."""
        if self._near is None or self._ended:
            return
        self._loop.remove_writer(self._near)
        try:
            character = termios.tcgetattr(self._near)[6][termios.VEOF]
            if character != b"\0":  # _POSIX_VDISABLE
                os.write(self._near, character * (2 if self._is_line_open else 1))
        except BlockingIOError:
            self._loop.add_writer(self._near, self._type_end_of_file)
        except OSError:
            return

    async def _until_room(self, near: int) -> None:
        self._room = self._loop.create_future()
        self._loop.add_writer(near, self._on_room)
        try:
            await self._room
        finally:
            self._room = None
            if self._near == near and not self._closed:
                self._loop.remove_writer(near)

    def _on_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
