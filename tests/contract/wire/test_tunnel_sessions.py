"""Sessions of mode tunnel across two replicas over one real Redis: what a client is given opens at
its gateway, and nothing else shows it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from redis.asyncio import Redis

from chassis.redis_client import open_redis
from fairlead.gateway.v1 import gateway_pb2 as gateway
from fairlead.session.v1 import session_pb2 as pb
from fairlead_sdk import Fairlead
from fairlead_sdk.fairlead import AsyncFairlead
from fairlead_sdk.session_records import OpenedSession
from fairlead_tunnel.base64url import base64url, from_base64url
from fairlead_tunnel.ticket import Grant, TicketKey
from tests.contract.wire.front_door import assert_problem
from tests.contract.wire.scripted_gateway import GATEWAY, ScriptedGateway
from tests.contract.wire.session_replica import Replica, open_replica
from tests.contract.wire.test_sessions_api import reason_of
from tests.contract.wire.test_terminal_socket import Served, connected
from tests.eventually import eventually
from tests.fakes.sessions import OFFER, TERMS, FakeReachedLaunches, candidate, held_launch

pytestmark = pytest.mark.asyncio

HELD = held_launch()
BODY = {"target": HELD.launch_id, "mode": "tunnel"}
KEY = {"Idempotency-Key": "mine"}


@pytest_asyncio.fixture
async def replicas(tmp_path: Path, redis_url: str) -> AsyncIterator[tuple[Replica, Replica]]:
    launches = FakeReachedLaunches()
    launches.put("default", HELD)
    async with AsyncExitStack() as stack:
        made = [
            await stack.enter_async_context(open_replica(tmp_path / name, redis_url, launches))
            for name in ("a", "b")
        ]
        yield made[0], made[1]


@asynccontextmanager
async def gateway_of(replica: Replica, *held: str) -> AsyncIterator[ScriptedGateway]:
    async with replica.gateway() as gate:
        welcome = await gate.hello(*held, can_trickle=True, tunnel=TERMS)
        assert [wanted.session_id for wanted in welcome.wanted] == list(held)
        assert all(wanted.is_tunnel for wanted in welcome.wanted)
        yield gate


def opened(ticket: bytes) -> Grant:
    """Open a ticket as the gateway does."""
    return TicketKey(secret=TERMS.ticket_secret, gateway_id=GATEWAY).open(ticket, now=0)


async def texts(redis: Redis) -> str:
    """Return all that a Redis holds."""
    found = []
    async for key in redis.scan_iter():
        match await redis.type(key):
            case "string":
                found.append(str(await redis.get(key)))
            case "hash":
                found.append(str(await redis.hgetall(key)))
            case _:
                found.append(str(key))
    return "\n".join(found)


async def test_a_client_at_one_replica_is_given_a_ticket_for_a_gateway_at_the_other(
    replicas: tuple[Replica, Replica],
) -> None:
    client, other = replicas
    async with gateway_of(other) as gate, client.http() as http:
        made = await http.post("/v1/sessions", json=BODY)
        session = made.json()
        given = session["tunnel"]
        grant = opened(from_base64url(given["ticket"]))
        assert (grant.session, grant.launch, grant.tenant) == (
            session["session_id"],
            HELD.launch_id,
            "default",
        )
        assert (grant.tunnel, base64url(grant.psk)) == (given["tunnel_id"], given["secret"])
        assert from_base64url(given["gateway_key"]) == TERMS.public_key
        assert given["urls"] == list(TERMS.urls)
        assert (session["mode"], session["state"], session["ice_servers"]) == (
            "tunnel",
            "opened",
            [],
        )
        told = (await gate.next()).wanted
        assert (told.session_id, told.is_tunnel, told.offer) == (session["session_id"], True, "")


async def test_a_repeated_call_gets_the_same_answer_and_no_other_call_shows_any_of_it(
    replicas: tuple[Replica, Replica], redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    client, other = replicas
    exporter = InMemorySpanExporter()
    for replica in replicas:
        replica.provider.add_span_processor(SimpleSpanProcessor(exporter))
    caplog.set_level(logging.DEBUG)
    async with (
        gateway_of(other) as gate,
        client.http() as http,
        other.http() as elsewhere,
        open_redis(redis_url) as redis,
    ):
        first = await http.post("/v1/sessions", json=BODY, headers=KEY)
        again = await elsewhere.post("/v1/sessions", json=BODY, headers=KEY)
        assert (first.status_code, first.json()) == (201, again.json())
        session_id = first.json()["session_id"]
        request = pb.OpenSessionRequest(
            launch_id=HELD.launch_id, mode=pb.SESSION_MODE_TUNNEL, idempotency_key="mine"
        )
        over_grpc = await client.grpc.OpenSession(request, metadata=client.metadata)
        assert over_grpc.session.session_id == session_id
        assert over_grpc.tunnel.tunnel_id == first.json()["tunnel"]["tunnel_id"]
        assert over_grpc.tunnel.ticket == from_base64url(first.json()["tunnel"]["ticket"])
        assert over_grpc.tunnel.secret == opened(over_grpc.tunnel.ticket).psk
        assert over_grpc.tunnel.gateway_key == TERMS.public_key
        assert list(over_grpc.tunnel.urls) == list(TERMS.urls)
        ends = over_grpc.tunnel.expires_at.ToSeconds() - over_grpc.session.created_at.ToSeconds()
        assert ends == 60
        conflict = await http.post("/v1/sessions", json=BODY | {"mode": "trickle"}, headers=KEY)
        assert_problem(conflict, 409, "idempotency_conflict")

        path = f"/v1/sessions/{session_id}"
        stored = await texts(redis)
        shown = [await http.get(path), await http.get("/v1/sessions")]
        refused = await http.post(f"{path}/offer", json={"offer": OFFER})
        closed = await http.delete(path, headers=KEY)
        assert (await gate.next()).wanted.session_id == session_id
        assert (await gate.next()).unwanted.session_id == session_id
        assert client.door.answers.bodies == [closed.text]
        gone = await http.post("/v1/sessions", json=BODY, headers=KEY)
        assert (gone.json()["state"], gone.json()["tunnel"]) == ("closed", None)
        events = await http.get(f"{path}/events")
        everywhere = [
            *(answer.text for answer in (*shown, refused, closed, gone, events)),
            caplog.text,
            *(str(record.__dict__) for record in caplog.records),
            *(span.to_json() for span in exporter.get_finished_spans()),
            *client.door.answers.bodies,
            stored + await texts(redis),
        ]
        given = first.json()["tunnel"]
        secrets = [given[name] for name in ("tunnel_id", "ticket", "secret")]
        secrets += [from_base64url(given[name]).hex() for name in ("ticket", "secret")]
        for secret in secrets:
            assert not any(secret in text for text in everywhere)
        assert TERMS.ticket_secret.hex() in everywhere[-1]  # the look does find what is there
        assert not any(TERMS.ticket_secret.hex() in text for text in everywhere[:-1])


async def test_the_sdk_opens_one_and_reads_what_to_attach_with(
    replicas: tuple[Replica, Replica],
) -> None:
    client, other = replicas
    url, key = f"http://127.0.0.1:{client.port}", client.door.key
    async with gateway_of(other), AsyncFairlead(url=url, api_key=key) as fairlead:
        made = await fairlead.sessions.create(HELD.launch_id, mode="tunnel", key="mine")
        assert made.tunnel is not None
        grant = opened(made.tunnel.ticket)
        assert (grant.session, grant.psk) == (made.session.session_id, made.tunnel.secret)
        assert (grant.tunnel, made.tunnel.urls) == (made.tunnel.tunnel_id, TERMS.urls)
        assert made.tunnel.gateway_key == TERMS.public_key
        assert made.tunnel.expires_at is not None
        assert grant.expires == made.tunnel.expires_at.timestamp()

        def blocking() -> OpenedSession:
            with Fairlead(url=url, api_key=key) as other_client:
                return other_client.sessions.create(HELD.launch_id, mode="tunnel", key="mine")

        assert await asyncio.to_thread(blocking) == made
        (listed,) = await fairlead.sessions.list()
        assert (listed.session_id, listed.mode) == (made.session.session_id, "tunnel")
        await fairlead.sessions.close(listed.session_id)
        again = await fairlead.sessions.create(HELD.launch_id, mode="tunnel", key="mine")
        assert (again.session.close_reason, again.tunnel) == ("requested", None)


async def test_nothing_of_a_negotiation_has_a_place_in_it(
    replicas: tuple[Replica, Replica],
) -> None:
    client, other = replicas
    async with gateway_of(other), client.http() as http:
        session_id = (await http.post("/v1/sessions", json=BODY)).json()["session_id"]
        path = f"/v1/sessions/{session_id}"
        for call, body in (
            ("offer", {"offer": OFFER}),
            ("candidates", {"candidates": [candidate(1)]}),
            ("restart", {"offer": OFFER}),
            ("restart", {}),
        ):
            assert_problem(await http.post(f"{path}/{call}", json=body), 409, "mode_conflict")
        relayed = await http.post("/v1/sessions", json=BODY | {"ice_policy": "relay"})
        assert_problem(relayed, 409, "mode_conflict")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.grpc.SendOffer(
                pb.SendOfferRequest(session_id=session_id, offer=OFFER), metadata=client.metadata
            )
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert reason_of(caught.value) == "mode_conflict"


async def test_a_session_is_negotiated_with_the_gateway_of_a_tunnel(
    replicas: tuple[Replica, Replica],
) -> None:
    client, other = replicas
    async with gateway_of(other), client.http() as http:
        tunnel = (await http.post("/v1/sessions", json=BODY)).json()
        body = {"target": tunnel["session_id"], "mode": "trickle"}
        beside = (await http.post("/v1/sessions", json=body)).json()
        assert beside["launch_id"] == HELD.launch_id
        assert beside["gateway_id"] == tunnel["gateway_id"]
        assert beside["session_id"] != tunnel["session_id"]
        assert (await http.delete(f"/v1/sessions/{tunnel['session_id']}")).status_code == 200
        assert_problem(await http.post("/v1/sessions", json=body), 404, "session_not_found")


async def test_without_a_gateway_that_takes_tunnels_there_is_none(
    replicas: tuple[Replica, Replica],
) -> None:
    client, other = replicas
    async with other.gateway() as gate, client.http() as http:
        assert_problem(await http.post("/v1/sessions", json=BODY), 503, "gateway_unavailable")
        await gate.hello(can_trickle=True)
        assert_problem(await http.post("/v1/sessions", json=BODY), 400, "mode_unsupported")
    async with gateway_of(other), client.http() as http:

        async def is_there() -> bool:
            return (await http.post("/v1/sessions", json=BODY)).status_code == 201

        await eventually(is_there)


async def test_a_gateway_with_terms_that_cannot_be_used_is_told_so(
    replicas: tuple[Replica, Replica],
) -> None:
    client, _ = replicas
    async with client.gateway() as gate:
        terms = gateway.TunnelTerms(public_key=b"short", ticket_secret=bytes(32), urls=TERMS.urls)
        hello = gateway.Hello(gateway_id=GATEWAY, tunnel=terms)
        await gate.say(gateway.SynchronizeRequest(hello=hello))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await gate.next()
        assert reason_of(caught.value) == "tunnel_terms_invalid"


async def test_its_life_is_watched_from_the_other_replica(
    replicas: tuple[Replica, Replica],
) -> None:
    client, other = replicas
    async with client.http() as http:
        async with gateway_of(other) as gate:
            session_id = (await http.post("/v1/sessions", json=BODY)).json()["session_id"]
            assert (await gate.next()).wanted.session_id == session_id
            path = f"/v1/sessions/{session_id}"
            served = Served(client.door, client.port, "")
            key = client.door.key
            async with connected(served, path=f"{path}/watch", key=key) as (socket, _):
                first = await socket.document()
                assert first["type"] == "subscribed"
                session = first["session"]
                assert isinstance(session, dict)
                assert session["mode"] == "tunnel"
                assert "tunnel" not in session
                await gate.change(session_id, connected=True)
                assert (await socket.document())["state"] == "connected"
        async with gateway_of(client, session_id) as gate:  # it comes back elsewhere
            watching = pb.WatchSessionRequest(session_id=session_id)
            messages = aiter(other.grpc.WatchSession(watching, metadata=other.metadata))
            subscribed = (await anext(messages)).subscribed.session
            assert subscribed.mode == pb.SESSION_MODE_TUNNEL
            assert subscribed.state == pb.SESSION_STATE_CONNECTED
            assert not (await gate.port(session_id, 1)).HasField("refusal")
            await gate.change(session_id, connected=False, reason="peer_closed")
            told = [message.WhichOneof("event") async for message in messages]
            assert told == ["state", "closed"]
        assert (await http.get(path)).json()["close_reason"] == "peer_closed"


async def test_a_gateway_that_came_back_without_it_has_lost_it(
    replicas: tuple[Replica, Replica],
) -> None:
    client, other = replicas
    async with client.http() as http:
        async with gateway_of(other) as gate:
            session_id = (await http.post("/v1/sessions", json=BODY)).json()["session_id"]
            await gate.change(session_id, connected=True)

            async def is_connected() -> bool:
                found = await http.get(f"/v1/sessions/{session_id}")
                return bool(found.json()["state"] == "connected")

            await eventually(is_connected)
        async with gateway_of(other):
            found = await http.get(f"/v1/sessions/{session_id}")
            assert found.json()["close_reason"] == "gateway_lost"
