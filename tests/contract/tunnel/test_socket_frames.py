"""WebSockets of tunnels in parts, with pings between, cut anywhere, and with wrong frames."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.contract.tunnel.http_world import attach_socket, http_door
from tests.contract.tunnel.pumped_ends import MakeWorld
from tests.contract.tunnel.socket_hop import SocketHop, echoes, gone, is_given_by, passed
from tests.contract.tunnel.tunnel_world import Hop
from tests.eventually import SECONDS, eventually

pytestmark = pytest.mark.asyncio
MASK = bytes(4)
"""A mask that changes nothing."""


async def test_messages_in_parts_with_pings_between_lose_nothing(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        hop = SocketHop(url)
        carrier = await attach_socket(it, await passed(it, hop))
        assert await echoes(it)

        async def pongs() -> int:
            return min(hop.pongs["client"], hop.pongs["gateway"])

        await eventually(pongs, lambda count: count > 0)
        carrier.stream.close()
        await gone(carrier)


@pytest.mark.parametrize("size", [1, 5])
async def test_a_path_that_passes_few_bytes_at_a_time_is_read(
    any_world: MakeWorld, size: int
) -> None:
    class Dribble(Hop):
        async def _forward(
            self,
            reader: asyncio.StreamReader,
            writer: asyncio.StreamWriter,
            may: asyncio.Event,
            said: bytearray,
        ) -> None:
            with contextlib.suppress(OSError):
                while (content := await reader.read(size)) and not writer.is_closing():
                    writer.write(content)
                    await writer.drain()
            writer.close()

    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        server = await asyncio.start_server(Dribble((host, int(port))).talk, "127.0.0.1", 0)
        it.servers.append(server)
        carrier = await attach_socket(it, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert await echoes(it, 2000)
        carrier.stream.close()
        await gone(carrier)


@pytest.mark.parametrize(
    ("end", "frame", "code"),
    [
        ("gateway", b"\x81\x81" + MASK + b"a", 1003),
        ("gateway", b"\x82\x01a", 1002),
        ("gateway", b"\xc2\x81" + MASK + b"a", 1002),
        ("gateway", b"\x82\xff" + (2**20).to_bytes(8, "big") + MASK + bytes(2**20), 1009),
        ("gateway", b"\x80\x81" + MASK + b"a", 1002),
        ("client", b"\x81\x01a", 1003),
        ("client", b"\x82\x81" + MASK + b"a", 1002),
        ("client", b"\x82\x7f" + (2**20).to_bytes(8, "big") + bytes(2**20), 1009),
    ],
)
async def test_frames_that_no_carrier_has_end_it_and_nothing_else(
    any_world: MakeWorld, request: pytest.FixtureRequest, end: str, frame: bytes, code: int
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        hop = SocketHop(url)
        carrier = await attach_socket(it, await passed(it, hop))
        assert await echoes(it, 1000)
        hop.inject(end, frame)
        await gone(carrier)
        if is_given_by(end, request):

            async def codes() -> list[int]:
                return hop.codes[end]

            await eventually(codes, lambda found: found[:1] == [code])
        await attach_socket(it, url)
        assert await echoes(it)


async def test_an_end_of_the_hop_is_answered(
    any_world: MakeWorld, request: pytest.FixtureRequest
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        hop = SocketHop(url)
        carrier = await attach_socket(it, await passed(it, hop))
        hop.inject("client", b"\x88\x02\x03\xe9")
        await gone(carrier)

        async def codes() -> list[int]:
            return hop.codes["client"]

        await eventually(codes, lambda found: len(found) == 1)
        if is_given_by("client", request):
            assert hop.codes["client"] == [1001]
