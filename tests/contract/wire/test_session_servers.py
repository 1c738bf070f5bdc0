"""The servers of a session's rounds: each round has credentials that begin with it."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fairlead_sdk.forwarding import open_tunnel
from fairlead_sdk.session_records import SessionServer
from fairlead_tunnel.cores import cores
from signalling.ice_servers import IcePolicy
from tests.contract.wire.gateway_mesh import LAUNCH, echoed, mesh, until
from tests.coturn import Coturn, coturn_server
from tests.eventually import SECONDS, eventually
from tests.fakes.peer_core import Network, PeerCoreFake

pytestmark = pytest.mark.asyncio

SESSION = "ses_" + "a" * 26


def relays(coturn: Coturn, *, age: timedelta = timedelta()) -> tuple[SessionServer, ...]:
    """Return the relay with a credential that was made some time ago and lasts an hour."""
    made = datetime.now(UTC) - age
    found = coturn.servers().for_session(SESSION, IcePolicy.RELAY, now=made)
    return tuple(SessionServer(each.urls, each.username, each.credential) for each in found)


async def test_both_ends_are_given_the_servers_of_each_round() -> None:
    network = Network()
    near, far = PeerCoreFake(network=network), PeerCoreFake(network=network)
    async with asyncio.timeout(SECONDS), mesh(core=far) as it:
        it.sessions.servers = lambda: (SessionServer(("turn:turn.test",), "one", "1"),)
        async with open_tunnel(it.sessions, LAUNCH, core=near) as tunnel:
            for core in (near, far):
                assert [each.username for each in core.made[0].plan.servers] == ["one"]
            it.sessions.servers = lambda: (SessionServer(("turn:turn.test",), "two", "2"),)
            await tunnel._session.restart()
        for core in (near, far):
            (made,) = core.made
            assert [each.username for each in made.plan.servers] == ["two"]


async def allocations(coturn: Coturn) -> list[str]:
    """Return the names that relays were allocated to."""
    told = coturn.log.read_text(errors="replace")
    return re.findall(r"user <(\S+)>: incoming packet ALLOCATE processed, success", told)


@pytest.mark.skipif("native" not in {core.name for core in cores()}, reason="needs make native")
async def test_a_restart_relays_where_the_first_credential_has_ended(tmp_path: Path) -> None:
    near, far = (next(core for core in cores() if core.name == "native") for _ in range(2))
    with coturn_server(tmp_path, "--verbose") as coturn:
        async with asyncio.timeout(SECONDS), mesh(core=far) as it:
            ended, fresh = relays(coturn, age=timedelta(hours=2)), relays(coturn)
            it.sessions.servers = lambda: ended
            async with open_tunnel(it.sessions, LAUNCH, core=near) as tunnel:
                echo = await tunnel.listen(it.servers.echo)
                assert await echoed(echo, b"before") == b"before"
                assert await allocations(coturn) == []
                it.sessions.servers = lambda: fresh
                await tunnel._session.restart()
                await eventually(lambda: allocations(coturn), lambda names: len(names) > 1)
                assert set(await allocations(coturn)) == {fresh[0].username}
                assert await echoed(echo, b"after") == b"after"
            await until(lambda: not it.gateway.sessions)
