"""Carries bytes between two streams."""

from __future__ import annotations

import asyncio
from contextlib import suppress

CHUNK = 256 * 1024
_FAREWELL_SECONDS = 2.0


async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Carry bytes until end-of-file, then pass that on and leave the other way open."""
    while content := await source.read(CHUNK):
        sink.write(content)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()


async def take_leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send what is written and end-of-file, and let the peer read it before it is reset: what it
    still sends is thrown away, for two seconds at most.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(_FAREWELL_SECONDS):
            await writer.drain()
            writer.write_eof()
            while await reader.read(CHUNK):
                pass
