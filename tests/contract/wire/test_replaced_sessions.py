"""The SDK, signalling and two gateways: a gateway that takes no offer is replaced by the other."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider

from fairlead_sdk import AsyncFairlead
from fairlead_sdk.forwarding import open_session
from fairlead_tunnel.peer_connection import PeerPlan
from relay_gateway.settings import Settings
from relay_gateway.wiring import Gateway, build
from tests.contract.wire.gateway_mesh import until
from tests.contract.wire.session_replica import Replica, open_replica
from tests.fakes.peer_core import Network, PeerConnectionFake, PeerCoreFake
from tests.fakes.sessions import FakeReachedLaunches, held_launch

pytestmark = pytest.mark.asyncio

HELD = held_launch()


@dataclass
class Mesh:
    """Two gateways at one replica of signalling."""

    replica: Replica
    gateways: dict[str, Gateway] = field(default_factory=dict)
    network: Network = field(default_factory=Network)


class DrainingCore(PeerCoreFake):
    """A client's core: the gateway of the first session begins to drain when that is open and has
    no offer.
    """

    def __init__(self, mesh: Mesh) -> None:
        super().__init__(network=mesh.network)
        self.chosen: list[str] = []
        self.drains: list[asyncio.Task[None]] = []
        self._mesh = mesh

    def connect(self, plan: PeerPlan) -> PeerConnectionFake:
        (session,) = self._mesh.replica.half.book.live()
        self.chosen.append(session.gateway_id)
        if not self.drains:
            gateway = self._mesh.gateways[session.gateway_id]
            self.drains.append(asyncio.create_task(gateway.drain()))
        return super().connect(plan)


@asynccontextmanager
async def two_gateways(folder: Path, redis_url: str) -> AsyncIterator[Mesh]:
    launches = FakeReachedLaunches()
    launches.put("default", HELD)
    async with AsyncExitStack() as stack:
        replica = await stack.enter_async_context(open_replica(folder, redis_url, launches))
        sockets = stack.enter_context(tempfile.TemporaryDirectory(prefix="fls-"))
        mesh = Mesh(replica)
        switchboard = replica.half.switchboard
        for number in range(2):
            chosen = Settings(
                signalling=replica.internal,
                http_bind="127.0.0.1:0",
                tcp_bind="127.0.0.1:0",
                workers_bind=f"unix:{sockets}/relay-{number}",
            )
            core = PeerCoreFake(network=mesh.network)
            gateway = await stack.enter_async_context(
                build(chosen, TracerProvider(shutdown_on_exit=False), core)
            )
            await until(lambda: len(switchboard.connected()) > len(mesh.gateways))
            (gateway_id,) = set(switchboard.connected()) - set(mesh.gateways)
            mesh.gateways[gateway_id] = gateway
        yield mesh


@pytest.mark.parametrize("mode", ["complete", "trickle"])
async def test_a_gateway_that_drains_before_the_offer_is_replaced(
    tmp_path: Path, redis_url: str, mode: str
) -> None:
    async with asyncio.timeout(60), two_gateways(tmp_path, redis_url) as mesh:
        url, key = f"http://127.0.0.1:{mesh.replica.port}", mesh.replica.door.key
        core = DrainingCore(mesh)
        async with (
            AsyncFairlead(url=url, api_key=key) as fairlead,
            open_session(fairlead.sessions, HELD.launch_id, mode=mode, core=core) as session,
        ):
            assert session.is_connected
            first, second = core.chosen
            assert first != second
            assert mesh.gateways[second].sessions == 1
        await asyncio.gather(*core.drains)
