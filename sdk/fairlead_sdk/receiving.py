"""What comes from a sandbox, put down here: whole or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tarfile
from collections.abc import AsyncIterator

from fairlead_sdk.errors import Internal
from fairlead_sdk.file_records import TreeCopied
from fairlead_sdk.packing import Unpacker, replaced, temporary_beside


class TreeBroken(Internal):
    """The tree ended in the middle, or is no tar stream."""

    def __init__(self) -> None:
        super().__init__(
            "The tree that came from the sandbox is broken.",
            reason="tree_broken",
            remedy="Try again; if it stays so, look at the front door's log.",
        )


async def receive_file(pieces: AsyncIterator[bytes], local: str, *, permissions: int) -> TreeCopied:
    """Write a file here under another name, and put it in its place when it is whole."""
    size = 0
    with replaced(local) as target:
        async for piece in pieces:
            await asyncio.to_thread(target.write, piece)
            size += len(piece)
        target.flush()
        os.fchmod(target.fileno(), permissions & 0o777)
    return TreeCopied(1, size)


async def receive_tree(pieces: AsyncIterator[bytes], local: str) -> TreeCopied:
    """Unpack a tree here: into a directory that is there, else under another name until it is
    whole.
    """
    if await asyncio.to_thread(os.path.isdir, local):
        return await _unpacked(pieces, local)
    temporary = temporary_beside(local.rstrip("/"))
    os.mkdir(temporary)
    try:
        copied = await _unpacked(pieces, temporary)
        os.rename(temporary, local.rstrip("/"))
    except BaseException:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(shutil.rmtree, temporary)
        raise
    return copied


async def _unpacked(pieces: AsyncIterator[bytes], top: str) -> TreeCopied:
    """Unpack in a thread that reads a pipe: when either end fails, the other one notices."""
    reading, writing = os.pipe()

    def unpack() -> TreeCopied:
        with os.fdopen(reading, "rb", buffering=0) as stream:
            return Unpacker(top).unpack(stream)

    def write(piece: bytes) -> None:
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(writing, rest) :]

    unpacking = asyncio.ensure_future(asyncio.to_thread(unpack))
    try:
        try:
            async for piece in pieces:
                await asyncio.shield(asyncio.to_thread(write, piece))
        except BrokenPipeError:
            pass  # its reader says why
        finally:
            os.close(writing)
            await asyncio.wait({unpacking})
            if not unpacking.cancelled():
                unpacking.exception()  # when the pieces broke off, that is the cause, and is told
        return unpacking.result()
    except tarfile.TarError:
        raise TreeBroken from None
