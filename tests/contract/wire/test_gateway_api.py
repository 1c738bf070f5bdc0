"""GatewayService.Synchronize: hello and welcome, replaced and broken streams, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import pytest

from fairlead.gateway.v1 import gateway_pb2 as gateway
from fairlead.session.v1 import session_pb2 as pb
from tests.contract.wire.scripted_gateway import GATEWAY, ScriptedGateway
from tests.contract.wire.test_sessions_api import Desk, desk, reason_of
from tests.eventually import eventually
from tests.fakes.sessions import ANSWER, OFFER, FakeSessionStore

__all__ = ["desk"]
pytestmark = pytest.mark.asyncio


async def answered(desk: Desk, gate: ScriptedGateway) -> str:
    session = await desk.open()
    offer = desk.offer(session.session_id)
    assert (await gate.next()).wanted.session_id == session.session_id
    await gate.answer(session.session_id)
    assert (await offer).answer == ANSWER
    return session.session_id


def closed_as(desk: Desk, session_id: str) -> Callable[[], Awaitable[str]]:
    async def look() -> str:
        return (await desk.get(session_id)).close_reason

    return look


async def test_internal_calls_need_the_stack_secret(desk: Desk) -> None:
    for secret in (None, "wrong"):
        async with desk.gateway(secret) as gate:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await gate.hello()
            assert reason_of(caught.value) == "secret_mismatch"


@pytest.mark.parametrize(
    "first",
    [
        gateway.SynchronizeRequest(),
        gateway.SynchronizeRequest(heartbeat=gateway.Heartbeat()),
        gateway.SynchronizeRequest(hello=gateway.Hello(gateway_id="../x")),
    ],
)
async def test_a_stream_begins_with_a_hello(desk: Desk, first: gateway.SynchronizeRequest) -> None:
    async with desk.gateway() as gate:
        await gate.say(first)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await gate.next()
        assert reason_of(caught.value) == "hello_expected"


async def test_a_gateway_that_comes_back_is_told_what_is_wanted(desk: Desk) -> None:
    async with desk.gateway() as gate:
        await gate.hello()
        kept = await answered(desk, gate)
        lost = await answered(desk, gate)
        left = await answered(desk, gate)
        opened = (await desk.open()).session_id
    async with desk.gateway() as gate:
        end = gateway.SessionChanged(session_id=left, close_reason="peer_closed")
        welcome = await gate.hello(kept, "ses_" + "z" * 26, ended=[end])
        wanted = {session.session_id: session.offer for session in welcome.wanted}
        assert wanted == {kept: OFFER, opened: ""}
        assert (await desk.get(lost)).close_reason == "gateway_lost"
        assert (await desk.get(left)).close_reason == "peer_closed"
        assert (await desk.get(kept)).state == pb.SESSION_STATE_ANSWERED


async def test_an_offer_survives_a_broken_stream(desk: Desk) -> None:
    async with desk.gateway() as gate:
        await gate.hello()
        session = await desk.open()
        offer = desk.offer(session.session_id)
        await gate.next()
    async with desk.gateway() as gate:
        welcome = await gate.hello()
        assert [found.offer for found in welcome.wanted] == [OFFER]
        await gate.answer(session.session_id)
        assert (await offer).answer == ANSWER


async def test_a_second_stream_ends_the_first(desk: Desk) -> None:
    async with desk.gateway() as first, desk.gateway() as second:
        await first.hello()
        await second.hello()
        assert await first.stream.read() is grpc.aio.EOF
        assert await answered(desk, second)


async def test_a_gateway_that_leaves_is_no_longer_listed(desk: Desk) -> None:
    async with desk.gateway() as gate:
        await gate.hello(capacity=3)
        beat = gateway.Heartbeat(sessions=1, channels=2, draining=True)
        await gate.say(gateway.SynchronizeRequest(heartbeat=beat))

        async def draining() -> bool:
            return any(found.draining for found in await desk.switchboard.gateways())

        await eventually(draining)
        (listed,) = await desk.switchboard.gateways()
        assert (listed.gateway_id, listed.capacity, listed.channels) == (GATEWAY, 3, 2)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await desk.open()
        assert reason_of(caught.value) == "gateway_unavailable"

    async def gone() -> bool:
        return not await desk.switchboard.gateways()

    await eventually(gone)


async def test_a_gateway_tells_the_end_of_a_session(desk: Desk) -> None:
    async with desk.gateway() as gate:
        await gate.hello()
        session_id = await answered(desk, gate)
        await gate.change(session_id, connected=False, reason="peer_closed")
        assert await eventually(closed_as(desk, session_id)) == "peer_closed"
        refusal = (await gate.port(session_id, 3)).refusal
        assert refusal.reason == "session_closed"


async def test_a_refused_offer_reaches_the_client(desk: Desk) -> None:
    async with desk.gateway() as gate:
        await gate.hello()
        session = await desk.open()
        offer = desk.offer(session.session_id)
        await gate.next()
        refused = gateway.SessionAnswered(
            session_id=session.session_id,
            refusal=gateway.Refusal(reason="sdp_invalid", message="No candidate fits."),
        )
        await gate.say(gateway.SynchronizeRequest(answered=refused))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await offer
        assert reason_of(caught.value) == "offer_refused"
        assert "No candidate fits." in (caught.value.details() or "")
        assert (await desk.get(session.session_id)).close_reason == "offer_failed"


async def test_a_port_does_not_wait_for_a_report_that_waits_for_the_store(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, hang = asyncio.Event(), asyncio.Event()

    async def save(*_: object, **__: object) -> bool:
        asked.set()
        await hang.wait()
        return False

    async def connected() -> bool:
        return (await desk.get(first)).state == pb.SESSION_STATE_CONNECTED

    async with desk.gateway() as gate:
        await gate.hello()
        first, second = await answered(desk, gate), await answered(desk, gate)
        await gate.change(first, connected=True)
        await eventually(connected)
        monkeypatch.setattr(FakeSessionStore, "save", save)
        await gate.change(second, connected=True)
        await asyncio.wait_for(asked.wait(), 60)
        assert not (await gate.port(first, 1)).HasField("refusal")


async def test_ports_are_refused_with_a_reason(desk: Desk) -> None:
    async with desk.gateway() as gate:
        await gate.hello()
        session_id = await answered(desk, gate)
        assert (await gate.port("ses_" + "z" * 26, 1)).refusal.reason == "session_not_found"
        assert (await gate.port(session_id, 2, port=0)).refusal.reason == "port_invalid"
        many = [
            gateway.SynchronizeRequest(
                port_wanted=gateway.PortWanted(request_id=n, session_id=session_id, port=80)
            )
            for n in range(10, 60)
        ]
        await asyncio.gather(*(gate.say(request) for request in many))
        granted = [(await gate.next()).port_granted for _ in many]
        assert sorted(grant.request_id for grant in granted) == list(range(10, 60))
        assert not any(grant.HasField("refusal") for grant in granted)
