"""The generator of requests: one kept HTTP/1.1 connection each, and as little else as possible."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class Caller:
    """One connection; one request at a time."""

    def __init__(
        self, *, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: bytes
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._headers = headers

    async def call(
        self, method: str, path: str, body: dict[str, object] | None = None
    ) -> tuple[int, dict[str, object]]:
        """Send a request and return the answer's status and document."""
        content = b"" if body is None else json.dumps(body).encode()
        kind = b"" if body is None else b"Content-Type: application/json\r\n"
        self._writer.write(
            b"%s %s HTTP/1.1\r\n%s%sContent-Length: %d\r\n\r\n%s"
            % (method.encode(), path.encode(), self._headers, kind, len(content), content)
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        lines = head.decode("ascii").lower().split("\r\n")
        lengths = [line.partition(":")[2] for line in lines if line.startswith("content-length:")]
        found = await self._reader.readexactly(int(lengths[0]) if lengths else 0)
        document = json.loads(found) if found else {}
        return int(lines[0].split()[1]), document if isinstance(document, dict) else {}


@asynccontextmanager
async def opened_caller(url: str, api_key: str = "") -> AsyncIterator[Caller]:
    """Connect to a server."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    headers = f"Host: {parts.netloc}\r\n" + (
        f"Authorization: Bearer {api_key}\r\n" if api_key else ""
    )
    try:
        yield Caller(reader=reader, writer=writer, headers=headers.encode())
    finally:
        writer.close()


async def rate(
    url: str,
    once: Callable[[Caller], Awaitable[None]],
    *,
    api_key: str = "",
    connections: int,
    seconds: float,
) -> float:
    """Return how often a second `once` is done by so many connections at the same time."""
    done = 0
    begun = time.perf_counter()

    async def go_on() -> None:
        nonlocal done
        async with opened_caller(url, api_key) as caller:
            while time.perf_counter() - begun < seconds:
                await once(caller)
                done += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(connections):
            tasks.create_task(go_on())
    return done / (time.perf_counter() - begun)
