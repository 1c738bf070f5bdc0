"""Lets programs on this machine share one kept connection: their frames go through, with the
numbers of their calls changed. Flow control stays between the program and the host.

The program's first frame is `open`, with its `patience`; the answer is `hello`, or the `error` of
connecting. From then on the program speaks as if it had the connection itself.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fairlead_sdk.errors import FairleadError
from fairlead_sdk.ssh_channel import FrameWriter, HostChannel
from fairlead_sdk.ssh_errors import error_fields
from fairlead_sdk.ssh_frames import Decoder, Frame, FrameInvalid, encoded
from fairlead_sdk.ssh_kept import KeptSsh

_READ_BYTES = 256 * 1024


async def relay(reader: asyncio.StreamReader, writer: FrameWriter, kept: KeptSsh) -> None:
    """Serve one program until it leaves or the connection is lost; what it began is given up."""
    program = _Program(reader=reader, writer=writer)
    try:
        with suppress(ConnectionError, FrameInvalid):
            patience = await program.patience()
            try:
                channel = await kept.channel(patience=patience)
            except FairleadError as error:
                await program.tell("error", **error_fields(error))
                return
            await program.tell("hello")
            await _while_connected(program, channel)
    finally:
        writer.close()


async def _while_connected(program: _Program, channel: HostChannel) -> None:
    taking = asyncio.ensure_future(program.pass_on(channel))
    losing = asyncio.ensure_future(channel.lost.wait())
    try:
        await asyncio.wait((taking, losing), return_when=asyncio.FIRST_COMPLETED)
    finally:
        taking.cancel()
        losing.cancel()
        await asyncio.wait((taking, losing))
        if not taking.cancelled():
            taking.exception()  # a program that leaves in the middle of a frame, or the host's end
        await program.give_up(channel)


class _Program:
    """One program's side of the relay."""

    def __init__(self, *, reader: asyncio.StreamReader, writer: FrameWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = Decoder()
        self._early: list[Frame] = []
        self._calls: dict[int, int] = {}

    async def patience(self) -> float:
        """Read the first frame."""
        while received := await self._reader.read(_READ_BYTES):
            frames = list(self._decoder.feed(received))
            if not frames:
                continue
            first, *self._early = frames
            found = first.fields.get("patience", 0)
            if first.type != "open" or not isinstance(found, int | float):
                raise FrameInvalid("the first frame is not `open`")
            return float(found)
        raise ConnectionResetError

    async def tell(self, type_: str, **fields: object) -> None:
        """Send a frame of the connection itself."""
        self._writer.write(encoded(0, type_, **fields))
        await self._writer.drain()

    async def pass_on(self, channel: HostChannel) -> None:
        """Pass the program's frames on until it leaves."""
        for frame in self._early:
            await self._pass(frame, channel)
        while received := await self._reader.read(_READ_BYTES):
            for frame in self._decoder.feed(received):
                await self._pass(frame, channel)

    async def _pass(self, frame: Frame, channel: HostChannel) -> None:
        if frame.type == "call":
            if frame.call in self._calls:
                raise FrameInvalid("a call's number is in use")
            self._calls[frame.call] = channel.number(_Back(program=self, number=frame.call))
        number = self._calls.get(frame.call)
        if number is None:
            return  # its answer and this frame have crossed
        await channel.send(encoded(number, frame.type, frame.payload, **frame.fields))
        if frame.type == "cancel":
            channel.forget(number)
            del self._calls[frame.call]

    def back(self, frame: Frame, number: int) -> None:
        """Take a frame for the program. There are never more than its credit allows."""
        if frame.type in ("answer", "error"):
            self._calls.pop(number, None)
        self._writer.write(encoded(number, frame.type, frame.payload, **frame.fields))

    async def give_up(self, channel: HostChannel) -> None:
        """Cancel what the program has left."""
        for number in self._calls.values():
            channel.forget(number)
            with suppress(FairleadError):
                await channel.send(encoded(number, "cancel"))
        self._calls.clear()


class _Back:
    """Takes one call's frames back to the program."""

    def __init__(self, *, program: _Program, number: int) -> None:
        self._program = program
        self._number = number

    def take(self, frame: Frame) -> None:
        """Hand the frame on under the program's number."""
        self._program.back(frame, self._number)

    def fail(self, error: FairleadError) -> None:
        """Do nothing: the relay ends, and the program sees that."""
