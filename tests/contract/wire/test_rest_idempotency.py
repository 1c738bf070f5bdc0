"""Mutations over REST that come with a key."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chassis.redis_client import RedisUnavailable
from tests.contract.wire.front_door import LAUNCH, Door, assert_problem, make_door
from tests.fakes.front_door import SANDBOX
from tests.fakes.sessions import OFFER

pytestmark = pytest.mark.asyncio


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return make_door(tmp_path)


async def test_a_key_makes_any_mutation_happen_once(door: Door) -> None:
    async with door.client() as client, door.client(door.other_key) as stranger:
        body = {"arguments": ["sleep", "9"]}
        made = await client.post(f"/v1/sandboxes/{SANDBOX}/executions", json=body)
        path = made.headers["location"] + "/signal"
        key = {"Idempotency-Key": "once"}
        answers = await asyncio.gather(
            *(client.post(path, json={"signal": 15}, headers=key) for _ in range(3))
        )
        assert [answer.status_code for answer in answers] == [200] * 3
        assert len({answer.text for answer in answers}) == 1
        assert door.executions.signals == [15]
        refused = await client.post(path, json={"signal": 9}, headers=key)
        assert_problem(refused, 409, "idempotency_conflict")
        refused = await stranger.post(path, json={"signal": 15}, headers=key)
        assert_problem(refused, 404, "execution_not_found")
        await client.post(path, json={"signal": 15}, headers={"Idempotency-Key": "twice"})
        assert door.executions.signals == [15, 15]
        for bad in ("", "x" * 256):
            refused = await client.post(path, json={"signal": 1}, headers={"Idempotency-Key": bad})
            assert_problem(refused, 400, "idempotency_key_invalid")


async def test_a_failed_mutation_may_be_tried_again_with_its_key(door: Door) -> None:
    key = {"Idempotency-Key": "again"}
    async with door.client() as client:
        made = await client.post("/v1/launches", json=LAUNCH)
        path = made.headers["location"] + "/renew"
        door.launches.raising = RedisUnavailable()
        assert_problem(await client.post(path, headers=key), 503, "redis_unavailable")
        door.launches.raising = None
        assert (await client.post(path, headers=key)).status_code == 200


async def test_the_answer_of_a_restart_is_not_kept(door: Door) -> None:
    """It has credentials, and the same offer gets the same answer without that."""
    session = "/v1/sessions/ses_" + "a" * 26
    key = {"Idempotency-Key": "once"}
    async with door.client() as client:
        for name in (session, f"/v1/sessions/{'a/' * 11}"):
            for body in ({}, {"offer": OFFER}):
                await client.post(f"{name}/restart", json=body, headers=key)
        assert door.answers.bodies == []
        kept = await client.post(f"{session}/offer", json={"offer": OFFER}, headers=key)
        assert door.answers.bodies == [kept.text]
