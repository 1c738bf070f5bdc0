"""What a carrier tells its core of a session: servers and policy, and fresh servers each round."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from fairlead_tunnel.carriers import TunnelDesk
from fairlead_tunnel.peer_connection import IcePolicy, PeerPlan
from relay_gateway.ports import Stream
from relay_gateway.session import IceServer, PortTimeout, SdpInvalid, WantedSession
from relay_gateway.target_rules import TargetDenied
from relay_gateway.webrtc_carrier import WebrtcCarrier
from tests.fakes.peer_core import PeerCoreFake

pytestmark = pytest.mark.asyncio


def no_tunnels() -> TunnelDesk:
    raise AssertionError


class NoOpener:
    async def open(self, session: WantedSession, port: int, execution_id: str = "") -> Stream:
        raise PortTimeout


class NoDialler:
    async def dial(self, session: WantedSession, host: str, port: int) -> Stream:
        raise TargetDenied(host, port)


def wanted(offer: str, number: int, credential: str) -> WantedSession:
    return WantedSession(
        "ses_a",
        offer,
        datetime.now(UTC),
        round=number,
        trickles=True,
        ice_servers=(IceServer(("turn:turn.test:3478",), "name", credential),),
        ice_policy="relay",
    )


async def test_the_servers_of_each_round_reach_the_core() -> None:
    core = PeerCoreFake()
    client = core.connect(PeerPlan(trickles=True))
    carrier = WebrtcCarrier(
        core=core, opener=NoOpener(), dialler=NoDialler(), channels_per_session=1, desk=no_tunnels
    )
    association = await carrier.answer(wanted(await client.offer(), 1, "first"), lambda _: None)
    made = core.made[-1]
    assert made.plan.policy is IcePolicy.RELAY
    assert [server.credential for server in made.plan.servers] == ["first"]
    await carrier.restart(association, wanted(await client.restart(), 2, "second"))
    assert [server.credential for server in made.plan.servers] == ["second"]
    with pytest.raises(SdpInvalid):
        await carrier.restart(association, wanted("v=0", 3, "third"))
    assert [server.credential for server in made.plan.servers] == ["second"]
    await association.close()
