"""Sessions across two replicas over one real Redis: REST, WebSocket and gRPC on one, the gateway on
the other, and what happens when either goes away.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from wsproto.events import AcceptConnection

from fairlead.gateway.v1 import gateway_pb2 as gateway
from fairlead.session.v1 import session_pb2 as pb
from tests.contract.wire.front_door import assert_problem
from tests.contract.wire.scripted_gateway import ScriptedGateway
from tests.contract.wire.session_replica import Replica, open_replica
from tests.contract.wire.test_sessions_api import reason_of
from tests.contract.wire.test_terminal_socket import Served, connected
from tests.eventually import eventually
from tests.fakes.sessions import (
    ANSWER,
    OFFER,
    FakeReachedLaunches,
    candidate,
    held_launch,
)
from tests.redis_fixture import RedisServer

pytestmark = pytest.mark.asyncio

HELD = held_launch()
RESTART = OFFER.replace("abcd", "efgh")
EIGHT = [candidate(number) for number in range(8)]
Events = AsyncIterator[Mapping[str, object]]


@pytest.fixture
def launches() -> FakeReachedLaunches:
    launches = FakeReachedLaunches()
    launches.put("default", HELD)
    return launches


@pytest_asyncio.fixture
async def replicas(
    tmp_path: Path, redis_url: str, launches: FakeReachedLaunches
) -> AsyncIterator[tuple[Replica, Replica]]:
    async with AsyncExitStack() as stack:
        made = [
            await stack.enter_async_context(open_replica(tmp_path / name, redis_url, launches))
            for name in ("a", "b")
        ]
        yield made[0], made[1]


async def hello(gate: ScriptedGateway, *held: str) -> gateway.Welcome:
    return await gate.hello(*held, can_trickle=True)


async def find(gate: ScriptedGateway, session_id: str, *texts: str, first: int = 0) -> None:
    found = gateway.CandidatesFound(
        session_id=session_id, round=1, first=first, candidates=texts, end_of_candidates=False
    )
    await gate.say(gateway.SynchronizeRequest(candidates_found=found))


async def until(events: Events, kind: str) -> Mapping[str, object]:
    async with asyncio.timeout(60):
        async for event in events:
            if event["type"] == kind:
                return event
    raise AssertionError(f"no {kind}")


async def opened(replica: Replica) -> str:
    async with replica.http() as client:
        body = {"target": HELD.launch_id, "mode": "trickle"}
        made = await client.post("/v1/sessions", json=body)
        assert made.status_code == 201, made.text
        assert made.json()["ice_servers"] == []
        return str(made.json()["session_id"])


async def negotiated(client: Replica, gate: ScriptedGateway) -> str:
    """Bring a session of mode trickle up; the gateway hangs wherever it does."""
    session_id = await opened(client)
    async with client.http() as http:
        offer = http.post(f"/v1/sessions/{session_id}/offer", json={"offer": OFFER})
        offering = asyncio.create_task(offer)
        assert (await gate.next()).wanted.trickles
        await gate.answer(session_id)
        assert (await offering).json()["answer"] == ANSWER
    return session_id


async def test_a_client_at_one_replica_meets_a_gateway_at_the_other(
    replicas: tuple[Replica, Replica],
) -> None:
    client, other = replicas
    async with other.gateway() as gate:
        await hello(gate)
        session_id = await negotiated(client, gate)
        async with client.events(session_id) as events, client.http() as http:
            assert (await anext(events))["type"] == "subscribed"
            path = f"/v1/sessions/{session_id}"
            body = {"candidates": [*EIGHT, "rubbish"], "end_of_candidates": True}
            given = await http.post(f"{path}/candidates", json=body)
            assert given.json() == {"outcomes": [*["accepted"] * 8, "invalid"]}
            order = (await gate.next()).candidates_given
            assert (order.first, list(order.candidates), order.end_of_candidates) == (
                0,
                EIGHT,
                True,
            )
            await find(gate, session_id, candidate(20))
            await find(gate, session_id, candidate(20), candidate(21))
            assert (await until(events, "candidates"))["candidates"] == [candidate(20)]
            assert (await until(events, "candidates"))["candidates"] == [candidate(21)]
            await gate.change(session_id, connected=True)
            assert (await until(events, "state"))["state"] == "connected"
            late = await http.post(f"{path}/candidates", json={"candidates": [candidate(9)]})
            assert late.json() == {"outcomes": ["late"]}
            wish = gateway.RestartWanted(session_id=session_id, round=1)
            await gate.say(gateway.SynchronizeRequest(restart_wanted=wish))
            assert (await until(events, "restart_wanted"))["round"] == 1
            restarting = asyncio.create_task(http.post(f"{path}/restart", json={"offer": RESTART}))
            wanted = (await gate.next()).wanted
            assert (wanted.round, wanted.offer, list(wanted.candidates)) == (2, RESTART, [])
            answered = gateway.SessionAnswered(session_id=session_id, answer="v=0", round=2)
            await gate.say(gateway.SynchronizeRequest(answered=answered))
            restarted = (await restarting).json()
            assert (restarted["answer"], restarted["session"]["round"]) == ("v=0", 2)
            await http.delete(path)
            assert (await gate.next()).unwanted.session_id == session_id
            ended = await until(events, "closed")
            assert (ended["reason"], ended["user_initiated"]) == ("requested", True)
            assert [event async for event in events] == []


async def test_both_move_to_the_other_replica_and_go_on(
    tmp_path: Path, redis_url: str, launches: FakeReachedLaunches
) -> None:
    async with open_replica(tmp_path / "b", redis_url, launches) as other:
        async with AsyncExitStack() as life:
            dying = await life.enter_async_context(
                open_replica(tmp_path / "a", redis_url, launches)
            )
            gate = await life.enter_async_context(dying.gateway())
            await hello(gate)
            session_id = await negotiated(dying, gate)
            events = await life.enter_async_context(dying.events(session_id))
            cursor = (await until(events, "answer"))["sequence"]
            assert isinstance(cursor, int)
            await gate.change(session_id, connected=True)
            await until(events, "state")
        async with other.gateway() as gate:
            welcome = await hello(gate, session_id)
            assert [wanted.session_id for wanted in welcome.wanted] == [session_id]
            async with other.events(session_id, cursor) as events:
                assert (await anext(events))["sequence"] == cursor
                told = [await anext(events) for _ in range(2)]
                assert [event["sequence"] for event in told] == [cursor + 1, cursor + 2]
                await gate.change(session_id, connected=False, reason="tunnel_closed")
                ended = await until(events, "closed")
                assert (ended["reason"], ended["retryable"]) == ("tunnel_closed", False)


async def test_connected_sessions_outlive_a_redis_that_went_away(
    tmp_path: Path, own_redis: RedisServer, launches: FakeReachedLaunches
) -> None:
    async with (
        open_replica(tmp_path, own_redis.url, launches) as replica,
        replica.gateway() as gate,
        replica.http() as http,
    ):
        await hello(gate)
        session_id = await negotiated(replica, gate)
        await gate.change(session_id, connected=True)
        async with replica.events(session_id) as events:
            await until(events, "answer")
            await until(events, "state")
            assert (await until(events, "state"))["state"] == "connected"
            own_redis.stop()
            refused = await http.post(
                "/v1/sessions", json={"target": HELD.launch_id, "mode": "trickle"}
            )
            assert_problem(refused, 503, "redis_unavailable")
            assert not (await gate.port(session_id, 1)).HasField("refusal")
            beat = gateway.Heartbeat(sessions=1, channels=1)
            await gate.say(gateway.SynchronizeRequest(heartbeat=beat))
            own_redis.start()

            async def is_back() -> bool:
                return (await http.get(f"/v1/sessions/{session_id}")).status_code == 200

            await eventually(is_back)
            found = (await http.get(f"/v1/sessions/{session_id}")).json()
            assert found["state"] == "connected"
            await http.delete(f"/v1/sessions/{session_id}")
            assert (await gate.next()).unwanted.session_id == session_id
            await until(events, "closed")


async def test_watching_over_a_socket(replicas: tuple[Replica, Replica]) -> None:
    client, other = replicas
    async with other.gateway() as gate:
        await hello(gate)
        session_id = await negotiated(client, gate)
        served = Served(client.door, client.port, "")
        key, path = client.door.key, f"/v1/sessions/{session_id}/watch?cursor=2"
        unknown = "/v1/sessions/ses_unknown/watch"
        async with connected(served, path=path, key=key) as (socket, _):
            first = await socket.document()
            assert (first["type"], first["sequence"]) == ("subscribed", 2)
            assert (await socket.document())["sequence"] == 3
            await gate.change(session_id, connected=False, reason="connection_lost")
            ended = await socket.document()
            assert (ended["type"], ended["reason"], ended["retryable"]) == (
                "closed",
                "connection_lost",
                True,
            )
            assert await socket.closed() == 1000
        async with connected(served, path=unknown, key=key) as (socket, _):
            refused = await socket.document()
            assert refused["type"] == "problem"
            assert await socket.closed() == 4404


async def test_a_browser_watches_with_its_key_as_a_subprotocol(
    replicas: tuple[Replica, Replica],
) -> None:
    client, _ = replicas
    async with client.gateway() as gate:
        await hello(gate)
        session_id = await opened(client)
        served = Served(client.door, client.port, "")
        offered = ["fairlead.session.v1", f"fairlead.key.{client.door.key}"]
        path = f"/v1/sessions/{session_id}/watch"
        async with connected(served, path=path, protocols=offered) as (socket, answer):
            assert isinstance(answer, AcceptConnection)
            assert answer.subprotocol == "fairlead.session.v1"
            assert (await socket.document())["type"] == "subscribed"


async def test_a_name_of_the_clients_own_leads_to_the_session_in_every_path(
    replicas: tuple[Replica, Replica],
) -> None:
    client, other = replicas
    name = "B_C-" + "A" * 18
    standard = name.replace("_", "/").replace("-", "+") + "=="
    async with other.gateway() as gate, client.http() as http, other.http() as elsewhere:
        await hello(gate)
        body = {"launch_id": HELD.launch_id, "mode": "trickle", "conversation_id": name}
        session_id = (await http.post("/v1/sessions", json=body)).json()["session_id"]
        again = await elsewhere.post("/v1/sessions", json=body | {"conversation_id": standard})
        assert again.json()["session_id"] == session_id
        for spelling in (name, standard, standard.replace("/", "%2F")):
            path = f"/v1/sessions/{spelling}"
            assert (await elsewhere.get(path)).json()["session_id"] == session_id
            given = await http.post(f"{path}/candidates", json={"candidates": EIGHT[:1]})
            assert given.status_code == 200
        closed = await http.delete(f"/v1/sessions/{standard}")
        assert closed.json()["close_reason"] == "requested"


async def test_a_socket_that_is_left_is_watched_by_nobody(
    replicas: tuple[Replica, Replica],
) -> None:
    client, _ = replicas
    async with client.gateway() as gate:
        await hello(gate)
        session_id = await opened(client)
        served = Served(client.door, client.port, "")
        path = f"/v1/sessions/{session_id}/watch"
        async with connected(served, path=path, key=client.door.key) as (socket, _):
            await socket.document()
            assert client.half.book.is_watched(session_id)

        async def is_left() -> bool:
            return not client.half.book.is_watched(session_id)

        await eventually(is_left)


async def test_watching_as_server_sent_events(replicas: tuple[Replica, Replica]) -> None:
    client, other = replicas
    async with other.gateway() as gate, client.http() as http:
        await hello(gate)
        session_id = await negotiated(client, gate)
        await http.delete(f"/v1/sessions/{session_id}")
        path = f"/v1/sessions/{session_id}/events"
        headers = {"Accept": "text/event-stream", "Last-Event-ID": "1"}
        blocks = (await http.get(path, headers=headers)).text.removesuffix("\n\n").split("\n\n")
        names = [block.split("\n")[-2].removeprefix("event: ") for block in blocks]
        assert names == ["subscribed", "state", "closed"]
        assert json.loads(blocks[-1].split("data: ")[1])["reason"] == "requested"
        assert_problem(await http.get(path, params={"cursor": "99"}), 400, "cursor_invalid")
        assert_problem(await http.get(path, params={"cursor": "x"}), 400, "cursor_invalid")


async def test_watching_and_candidates_over_grpc(replicas: tuple[Replica, Replica]) -> None:
    client, other = replicas
    metadata = client.metadata
    async with other.gateway() as gate:
        await hello(gate)
        session_id = await negotiated(client, gate)
        watching = client.grpc.WatchSession(
            pb.WatchSessionRequest(session_id=session_id, cursor=1), metadata=metadata
        )
        messages = aiter(watching)
        subscribed = await anext(messages)
        assert subscribed.subscribed.session.mode == pb.SESSION_MODE_TRICKLE
        assert (await anext(messages)).answer.answer == ANSWER
        given = await client.grpc.AddCandidates(
            pb.AddCandidatesRequest(session_id=session_id, candidates=EIGHT), metadata=metadata
        )
        assert set(given.outcomes) == {pb.CANDIDATE_OUTCOME_ACCEPTED}
        assert list((await gate.next()).candidates_given.candidates) == EIGHT
        fresh = await client.grpc.RestartSession(
            pb.RestartSessionRequest(session_id=session_id), metadata=metadata
        )
        assert (fresh.answer, fresh.session.round) == ("", 1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.grpc.AddCandidates(
                pb.AddCandidatesRequest(session_id=session_id, round=2, candidates=EIGHT),
                metadata=metadata,
            )
        assert reason_of(caught.value) == "round_invalid"
        closing = pb.CloseSessionRequest(session_id=session_id)
        await client.grpc.CloseSession(closing, metadata=metadata)
        rest = [message async for message in messages]
        assert [message.WhichOneof("event") for message in rest] == ["state", "closed"]
        assert rest[-1].closed.user_initiated


async def test_thirty_five_at_once(replicas: tuple[Replica, Replica]) -> None:
    client, other = replicas
    async with other.gateway() as gate:
        await hello(gate)

        async def answer_all() -> None:
            for _ in range(35):
                await gate.answer((await gate.next()).wanted.session_id)

        answering = asyncio.create_task(answer_all())

        async def negotiate() -> str:
            session_id = await opened(client)
            async with client.http() as http:
                answered = await http.post(
                    f"/v1/sessions/{session_id}/offer", json={"offer": OFFER}
                )
                return str(answered.json()["answer"])

        answers = await asyncio.gather(*(negotiate() for _ in range(35)))
        await answering
        assert answers == [ANSWER] * 35


async def test_a_session_is_in_memory_once_however_many_read_it(
    replicas: tuple[Replica, Replica],
) -> None:
    one, two = replicas
    async with one.gateway() as gate:
        await hello(gate)
        async with one.http() as http:
            opened = await http.post("/v1/sessions", json={"launch_id": HELD.launch_id})
        session_id = opened.json()["session_id"]
        here = await one.half.book.get(session_id)
        assert await one.half.book.get(session_id) is here
        assert await two.half.book.get(session_id) == here
