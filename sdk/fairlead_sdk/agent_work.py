"""One launch that the agent does for a command: the command's own code, with its two streams and
its interrupts over a socket.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from fairlead_sdk.agent_client import frame
from fairlead_sdk.cli.launch import launching
from fairlead_sdk.cli.running import HUNG_UP, INTERRUPTED, Interrupts, ended
from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.cli.verbs import read_launch
from fairlead_sdk.client import FrontDoor
from fairlead_sdk.discovery import Mesh
from fairlead_sdk.uploads import Histories

OpenDoor = Callable[[str], Awaitable[tuple[FrontDoor, Mesh]]]


class RemoteOutput:
    """The streams of a command at the other end of a socket.

    What belongs to an event leaves in one frame with the event's cursor, so that the command has
    seen it whole or not at all when this process dies.
    """

    def __init__(self, *, writer: asyncio.StreamWriter, is_live: bool, columns: int) -> None:
        self.is_live = is_live
        self.columns = columns
        self._writer = writer
        self._waiting = bytearray()
        self._launch_id = ""
        self._cursor = ""
        self._is_due = False

    def at_once(self, descriptor: int, content: bytes) -> None:
        """Write with the event that is being taken, or soon when there is none."""
        self._waiting += frame(bytes([descriptor]), content)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    async def write(self, descriptor: int, content: bytes) -> None:
        """Write with the event that is being taken."""
        self.at_once(descriptor, content)

    async def drain(self) -> None:
        """Wait until the socket has taken it."""
        self._flush()
        await self._writer.drain()

    async def mark(self, launch_id: str, cursor: str) -> None:
        """Let go of what the event wrote."""
        self._launch_id, self._cursor = launch_id, cursor
        self._send()
        await self._writer.drain()

    async def began(self, key: str, body: bytes) -> None:
        """Tell the command what is asked for, before it is asked."""
        self._writer.write(frame(b"b", key.encode("ascii") + b"\0" + body))
        await self._writer.drain()

    def finish(self, status: int) -> None:
        """Tell the command that it is over."""
        self._flush()
        self._writer.write(frame(b"x", bytes([status & 0xFF])))

    def decline(self) -> None:
        """Tell the command to do it itself; only before anything else."""
        self._writer.write(frame(b"y"))

    def _flush(self) -> None:
        self._is_due = False
        if self._waiting:
            self._send()

    def _send(self) -> None:
        position = f"{self._launch_id}\0{self._cursor}\0".encode("ascii")
        self._writer.write(frame(b"e", position + bytes(self._waiting)))
        self._waiting.clear()


async def launch_for(
    arguments: Sequence[str],
    command: Sequence[str],
    *,
    directory: str,
    reader: asyncio.StreamReader,
    output: RemoteOutput,
    open_door: OpenDoor,
    histories: Histories,
) -> None:
    """Do a launch for the command at the other end, or decline it; returns when it is over."""
    choices, is_json = read_launch(arguments, list(command)) or (None, False)
    if choices is None:
        output.decline()
        return
    chosen = replace(choices, path=os.path.join(directory, choices.path))
    listening: list[asyncio.Task[None]] = []

    def connect(interrupts: Interrupts) -> None:
        listening.append(asyncio.ensure_future(_listen(reader, interrupts)))

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        door, mesh = await open_door(directory)
        if mesh.notice:
            terminal.say(mesh.notice)
        return await launching(chosen, door=door, histories=histories)(terminal, interrupts)

    terminal = Terminal(is_json=is_json, output=output)
    try:
        output.finish(await ended(work, terminal, connect=connect))
        await output.drain()
    except OSError:
        return  # the command left in the middle; what it began is cancelled
    finally:
        for task in listening:
            task.cancel()


async def _listen(reader: asyncio.StreamReader, interrupts: Interrupts) -> None:
    """Pass interrupts on; a command that leaves hangs up."""
    try:
        while await reader.readexactly(5):
            interrupts.take(INTERRUPTED)
    except (OSError, asyncio.IncompleteReadError):
        interrupts.take(HUNG_UP)
