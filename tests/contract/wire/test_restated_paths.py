"""A gateway that loses its line in the middle of a restart, at a replica over a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from chassis.clock import SystemClock
from chassis.rpc_channel import open_channel
from relay_gateway.line import Line
from relay_gateway.link import Link
from relay_gateway.message import Hello
from relay_gateway.neighbours import GrpcConversation, GrpcSignalling
from relay_gateway.switchboard import Switchboard
from signalling.session import Session
from signalling.session_rules import Phase
from tests.contract.wire.scripted_gateway import GATEWAY
from tests.contract.wire.session_replica import Replica, open_replica
from tests.contract.wire.test_session_replicas import EIGHT, HELD, RESTART, opened
from tests.eventually import eventually
from tests.fakes.gateway_ports import CarrierFake
from tests.fakes.sessions import OFFER, FakeReachedLaunches, candidate


class _Road:
    """The way to signalling, which is closed while `is_open` is clear."""

    def __init__(self, way: GrpcSignalling) -> None:
        self._way = way
        self.is_open = asyncio.Event()
        self.is_open.set()

    @asynccontextmanager
    async def converse(self, hello: Hello) -> AsyncIterator[GrpcConversation]:
        await self.is_open.wait()
        async with self._way.converse(hello) as conversation:
            yield conversation


@asynccontextmanager
async def gateway_of(replica: Replica, carrier: CarrierFake) -> AsyncIterator[tuple[_Road, Line]]:
    """Run a gateway whose connections are fakes."""
    line = Line(traceparent=lambda: "")
    board = Switchboard(carrier=carrier, line=line, clock=SystemClock(), capacity=4)
    async with open_channel(replica.internal, tracer_provider=replica.provider) as channel, board:
        road = _Road(GrpcSignalling(channel=channel))
        link = Link(
            gateway_id=GATEWAY,
            capacity=4,
            workers_address="127.0.0.1:1",
            signalling=road,
            line=line,
            switchboard=board,
            jitter=lambda least, most: 0.0,
            can_trickle=True,
        )
        linking = asyncio.create_task(link.run())
        try:
            await until_up(line)
            yield road, line
        finally:
            linking.cancel()
            await asyncio.wait((linking,))


async def until_up(line: Line, *, is_up: bool = True) -> None:
    async def look() -> bool:
        return line.is_up

    await eventually(look, lambda found: found is is_up)


async def give(
    http: httpx2.AsyncClient, path: str, candidates: Sequence[str], *, ended: bool = False
) -> list[str]:
    body = {"candidates": candidates, "round": 2, "end_of_candidates": ended}
    return list((await http.post(f"{path}/candidates", json=body)).json()["outcomes"])


@pytest.mark.asyncio
async def test_candidates_reach_a_gateway_once_that_restates_the_old_path_in_mid_restart(
    tmp_path: Path, redis_url: str
) -> None:
    launches, carrier = FakeReachedLaunches(), CarrierFake()
    launches.put("default", HELD)
    async with (
        open_replica(tmp_path, redis_url, launches) as replica,
        gateway_of(replica, carrier) as (road, line),
        replica.http() as http,
    ):
        session_id = await opened(replica)
        path = f"/v1/sessions/{session_id}"

        async def session() -> Session:
            known = replica.half.book.known(session_id)
            assert known is not None
            return known

        await http.post(f"{path}/offer", json={"offer": OFFER})
        made = carrier.made[session_id]
        made.connect()
        await eventually(session, lambda known: known.phase is Phase.CONNECTED)
        restarted = await http.post(f"{path}/restart", json={"offer": RESTART})
        assert restarted.json()["session"]["round"] == 2
        assert await give(http, path, EIGHT[:3]) == ["accepted"] * 3

        road.is_open.clear()
        replica.half.switchboard.end_all()
        await until_up(line, is_up=False)
        assert await give(http, path, EIGHT[3:5]) == ["accepted"] * 2
        before = (await session()).version
        road.is_open.set()
        await eventually(session, lambda known: known.version > before)
        assert (await session()).phase is Phase.ANSWERED
        assert await give(http, path, EIGHT[5:], ended=True) == ["accepted"] * 3

        async def has_all() -> bool:
            return made.has_all

        await eventually(has_all)
        assert made.applied == list(EIGHT)
        assert made.offers == [RESTART]
        made.connect()
        await eventually(session, lambda known: known.phase is Phase.CONNECTED)
        assert await give(http, path, [candidate(9)]) == ["late"]
