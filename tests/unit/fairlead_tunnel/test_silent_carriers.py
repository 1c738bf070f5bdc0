"""What a client does about a carrier whose path has died in silence."""

from __future__ import annotations

import asyncio

from fairlead_tunnel.client_carriers import TunnelEnd
from fairlead_tunnel.handshake import AttachRefused
from tests.eventually import eventually
from tests.fakes.virtual_time import run
from tests.unit.fairlead_tunnel.test_tunnel_client import Carrier, Room, User, Ways


class Silent(Carrier):
    """One over which nothing ever comes."""

    def look(self) -> tuple[int, int]:
        """Say that nothing has."""
        return 0, 0


def test_a_tunnel_that_is_known_no_more_ends_with_its_silent_carrier() -> None:
    async def scenario() -> None:
        room, user = Room(ways=Ways(make=Silent)), User()
        client = room.client()
        await client.attach(5)
        client.open("tcp:80", user)
        gone = AttachRefused("tunnel_unknown", "It has started anew.")
        room.ways.faults = [gone, gone]
        async with asyncio.timeout(10):
            assert await client.keep() == TunnelEnd(gone.reason, gone.message)
        assert len(room.ways.carriers) == 1

    run(scenario())


def test_a_silent_carrier_is_kept_while_no_other_way_goes() -> None:
    async def scenario() -> None:
        room, user = Room(ways=Ways(make=Silent)), User()
        client = room.client()
        await client.attach(5)
        client.open("tcp:80", user)
        room.ways.faults = [OSError("away")]
        keeping = asyncio.ensure_future(client.keep())
        first = room.ways.carriers[0]

        async def tried() -> tuple[int, int]:
            return len(room.ways.names), len(room.ways.carriers)

        await eventually(tried, (2, 1).__eq__)
        assert not first.gone.done()
        await eventually(tried, (3, 2).__eq__)
        await first.gone
        await client.close("normal", "Done.")
        await keeping

    run(scenario())
