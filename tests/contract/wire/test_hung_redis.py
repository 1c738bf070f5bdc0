"""A session across a real Redis that stops where it stands, and goes on."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from chassis import redis_client
from fairlead.gateway.v1 import gateway_pb2 as gateway
from signalling.session import Session
from tests.contract.wire.front_door import assert_problem
from tests.contract.wire.session_replica import open_replica
from tests.contract.wire.test_session_replicas import HELD, hello, negotiated
from tests.eventually import eventually
from tests.fakes.sessions import FakeReachedLaunches
from tests.redis_fixture import RedisServer

SESSION_SECONDS = 5.0
BEAT = gateway.SynchronizeRequest(heartbeat=gateway.Heartbeat(sessions=1, channels=1))


@pytest.mark.asyncio
async def test_connected_sessions_outlive_a_redis_that_hung(
    tmp_path: Path, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_client, "WHOLE_SECONDS", 0.5)
    launches = FakeReachedLaunches()
    launches.put("default", HELD)
    async with (
        open_replica(tmp_path, own_redis.url, launches, session_seconds=SESSION_SECONDS) as replica,
        replica.gateway() as gate,
        replica.http() as http,
    ):
        await hello(gate)
        session_id = await negotiated(replica, gate)
        await gate.change(session_id, connected=True)

        async def session() -> Session:
            known = replica.half.book.known(session_id)
            assert known is not None, "the session was closed"
            return known

        async def renewed() -> datetime:
            await gate.say(BEAT)
            return (await session()).expires_at

        before = (await eventually(session, lambda known: known.is_connected)).expires_at
        own_redis.hang()
        for _ in range(2):
            body = {"target": HELD.launch_id, "mode": "trickle"}
            assert_problem(await http.post("/v1/sessions", json=body), 503, "redis_unavailable")
            await gate.say(BEAT)
        # What comes behind a thousand heartbeats waits for none of them.
        for _ in range(1000):
            await gate.say(BEAT)
        await eventually(session, lambda known: known.expires_at < replica.half.clock.now())
        assert not (await gate.port(session_id, 1)).HasField("refusal")
        own_redis.resume()
        await eventually(renewed, lambda at: at > before)
        found = await eventually(
            lambda: http.get(f"/v1/sessions/{session_id}"), lambda answer: answer.is_success
        )
        assert found.json()["state"] == "connected"
