"""Paths that die without a word: what was under way goes on over another carrier."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fairlead_tunnel.targets import Target
from tests.contract.tunnel.line_world import Gateway, World, world
from tests.contract.tunnel.test_lines import echoed, listening
from tests.contract.tunnel.tunnel_world import Hop
from tests.eventually import eventually

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("runs_on")]
SECONDS = 60
CONTENT = secrets.token_bytes(6 * 1024 * 1024)


class Silent(Hop):
    """A hop whose connections may fall silent, while later ones are served."""

    def __init__(self, gateway: tuple[str, int]) -> None:
        super().__init__(gateway)
        self._stopped: list[asyncio.Event] = []

    def fall_silent(self) -> None:
        """Forward nothing more of what is connected now, and tell of no end."""
        for each in (self.to_gateway, self.to_client):
            each.clear()
            self._stopped.append(each)
        self.to_gateway, self.to_client = asyncio.Event(), asyncio.Event()
        self.to_gateway.set()
        self.to_client.set()

    def cut(self) -> None:
        """Drop all connections."""
        for each in self._stopped:
            each.set()
        super().cut()


@asynccontextmanager
async def silent_world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[World, Silent]]:
    """A world whose gateway is reached through such a hop; nobody is patient in it."""
    monkeypatch.setattr("fairlead_tunnel.client_carriers.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("fairlead_tunnel.path_watch.LEAST_QUIET", 0.1)
    gateway = Gateway()
    await gateway.start()
    hop = Silent(("127.0.0.1", gateway.port))
    server = await asyncio.start_server(hop.talk, "127.0.0.1", 0)
    gateway.urls = (f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}",)
    try:
        async with world(gateway=gateway) as it:
            yield it, hop
    finally:
        hop.cut()
        server.close()
        await server.wait_closed()


async def more(hop: Hop, count: int) -> None:
    """Wait until the client has said so many bytes more."""
    wanted = len(hop.said) + count

    async def said() -> int:
        return len(hop.said)

    await eventually(said, wanted.__le__)


async def test_bytes_both_ways_go_on_beside_a_path_that_fell_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with asyncio.timeout(SECONDS), silent_world(monkeypatch) as (it, hop):
        port = await listening(it)
        for _ in range(2):
            asking = asyncio.ensure_future(echoed(port, CONTENT))
            await more(hop, 1_000_000)
            hop.fall_silent()
            assert await asking == CONTENT
        assert it.mesh.opened == ["ses_0"]
        assert it.refusals == []


async def test_a_download_goes_on_though_its_client_has_nothing_to_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def source(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(CONTENT[:1000])
        await writer.drain()
        await reader.readexactly(1)
        writer.write(CONTENT[1000:])
        await writer.drain()
        writer.close()

    async with asyncio.timeout(SECONDS), silent_world(monkeypatch) as (it, hop):
        port = await it.ports.listen(Target(await it.serve(source)), host="127.0.0.1", port=0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        assert await reader.readexactly(1000) == CONTENT[:1000]
        hop.fall_silent()
        writer.write(b"y")
        assert await reader.read() == CONTENT[1000:]
        writer.close()
        assert it.mesh.opened == ["ses_0"]


async def test_an_open_channel_without_bytes_keeps_its_carrier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with asyncio.timeout(SECONDS), silent_world(monkeypatch) as (it, hop):
        reader, writer = await asyncio.open_connection("127.0.0.1", await listening(it))
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        await more(hop, 40)  # it was asked
        writer.write(b"y")
        assert await reader.readexactly(1) == b"y"
        writer.close()
        assert it.mesh.opened == ["ses_0"]
