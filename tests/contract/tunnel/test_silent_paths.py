"""Paths that die without a word: what was under way goes on over another carrier."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from fairlead_tunnel.targets import Target
from fairlead_tunnel.ways import Kind
from tests.contract.tunnel.line_world import World, world
from tests.contract.tunnel.talks import digest, whole
from tests.contract.tunnel.test_lines import echoed, listening
from tests.contract.tunnel.test_ways import behind_http, kind_of
from tests.contract.tunnel.tunnel_world import Hop
from tests.eventually import eventually
from tests.fakes.passing_hop import passing_hop

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("runs_on"), pytest.mark.slow]
SECONDS = 25
"""Less than the half minute in which TCP notices by itself."""
CONTENT = secrets.token_bytes(6 * 1024 * 1024)
SLOW_RATE = 400 * 1024


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


class Slow(Silent):
    """A hop that takes at once what comes, passes it up no faster than a slow link does, and drops
    what is left of it with the connection.
    """

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        may: asyncio.Event,
        said: bytearray,
    ) -> None:
        if said is not self.said:
            await super()._forward(reader, writer, may, said)
            return
        held: asyncio.Queue[bytes] = asyncio.Queue()

        async def hear() -> None:
            with contextlib.suppress(OSError):
                while content := await reader.read(16384):
                    held.put_nowait(content)
            while not held.empty():
                held.get_nowait()
            held.put_nowait(b"")

        async def pass_on() -> None:
            while content := await held.get():
                await asyncio.sleep(len(content) / SLOW_RATE)
                writer.write(content)
            writer.close()

        async with asyncio.TaskGroup() as group:
            group.create_task(hear())
            group.create_task(pass_on())


@pytest.fixture(
    params=[Kind.TCP, Kind.WEBSOCKET, Kind.REQUESTS], ids=lambda kind: kind.name.lower()
)
def kind(request: pytest.FixtureRequest) -> Kind:
    """The kind of the only carriers that go."""
    found: Kind = request.param
    return found


@asynccontextmanager
async def silent_world(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, hop_class: type[Silent] = Silent
) -> AsyncIterator[tuple[World, Silent]]:
    """A world whose gateway is reached through such a hop; nobody is patient in it."""
    monkeypatch.setattr("fairlead_tunnel.client_carriers.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("fairlead_tunnel.path_watch.LEAST_QUIET", 0.1)
    async with behind_http() as (gateway, url), AsyncExitStack() as stack:
        if kind is Kind.TCP:
            await gateway.listen()
        port = gateway.port if kind is Kind.TCP else int(url.rpartition(":")[2])
        hop = hop_class(("127.0.0.1", port))
        stack.callback(hop.cut)
        server = await asyncio.start_server(hop.talk, "127.0.0.1", 0)
        stack.callback(server.close)
        port = server.sockets[0].getsockname()[1]
        gateway.urls = (f"tcp://127.0.0.1:{port}",)
        if kind is not Kind.TCP:
            one = await stack.enter_async_context(passing_hop(f"http://127.0.0.1:{port}"))
            one.lets_websockets = kind is Kind.WEBSOCKET
            one.lets_streams = kind is Kind.REQUESTS
            gateway.urls = (one.url,)
        async with world(gateway=gateway) as it:
            assert kind_of(it) is kind
            yield it, hop


async def more(hop: Hop, count: int) -> None:
    """Wait until the client has said so many bytes more."""
    wanted = len(hop.said) + count

    async def said() -> int:
        return len(hop.said)

    await eventually(said, wanted.__le__)


async def test_bytes_both_ways_go_on_beside_a_path_that_fell_silent(
    monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    async with asyncio.timeout(SECONDS), silent_world(monkeypatch, kind) as (it, hop):
        port = await listening(it)
        for _ in range(2):
            asking = asyncio.ensure_future(echoed(port, CONTENT))
            await more(hop, 1_000_000)
            hop.fall_silent()
            assert await asking == CONTENT
        assert it.mesh.opened == ["ses_0"]
        assert it.refusals == []


async def test_a_download_goes_on_though_its_client_has_nothing_to_send(
    monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    async def source(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(CONTENT[:1000])
        await writer.drain()
        await reader.readexactly(1)
        writer.write(CONTENT[1000:])
        await writer.drain()
        writer.close()

    async with asyncio.timeout(SECONDS), silent_world(monkeypatch, kind) as (it, hop):
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
    monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    async with asyncio.timeout(SECONDS), silent_world(monkeypatch, kind) as (it, hop):
        reader, writer = await asyncio.open_connection("127.0.0.1", await listening(it))
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        await more(hop, 40)  # it was asked
        writer.write(b"y")
        assert await reader.readexactly(1) == b"y"
        writer.close()
        assert it.mesh.opened == ["ses_0"]


async def test_an_upload_goes_on_over_a_hop_that_takes_longer_than_any_answer_did(
    monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    monkeypatch.setattr("fairlead_tunnel.path_watch._FIRST_RTT", 0.03)
    content = CONTENT[: 1024 * 1024]
    async with asyncio.timeout(SECONDS), silent_world(monkeypatch, kind, Slow) as (it, _):
        port = await it.ports.listen(Target(await it.serve(digest)), host="127.0.0.1", port=0)
        assert await whole(port, content) == hashlib.sha256(content).digest()
        assert it.mesh.opened == ["ses_0"]
