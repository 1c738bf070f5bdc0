"""The network routes of sandboxes at the front door: what they answer, and how they refuse."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from tests.contract.wire.front_door import Door, make_door
from tests.contract.wire.test_workspaces_rest import problem

pytestmark = pytest.mark.asyncio
UNKNOWN = "/v1/sandboxes/sbx_" + "a" * 26 + "/network"


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return make_door(tmp_path)


async def made(client: httpx2.AsyncClient) -> str:
    answer = await client.post("/v1/sandboxes", json={"network": {"mode": "egress"}})
    assert answer.status_code == 201, answer.text
    return f"/v1/sandboxes/{answer.json()['sandbox_id']}/network"


async def test_a_policy_is_shown_and_changed(door: Door) -> None:
    async with door.client() as client:
        network = await made(client)
        shown = (await client.get(network)).json()
        assert shown == {"policy": {"mode": "egress", "allow": []}, "decisions": []}
        policy = {"mode": "egress", "allow": ["*.a.test:8443", "b.test"]}
        changed = await client.put(network, json=policy)
        assert changed.status_code == 200
        assert changed.json()["network"] == policy
        shown = (await client.get(network)).json()
        assert shown["policy"] == policy
        assert [
            (each["host"], each["port"], each["address"], each["reason"])
            for each in shown["decisions"]
        ] == [("*.a.test:8443", 443, "", "allowed"), ("b.test", 443, "", "allowed")]
        assert all(each["at"] for each in shown["decisions"])


@pytest.mark.parametrize(
    ("mode", "allow", "reason"),
    [
        ("none", ["a.test"], "network_invalid"),
        ("egress", ["a\0b"], "allow_entry_invalid"),
        ("egress", ["a.test"] * 257, "allow_list_too_long"),
    ],
)
async def test_what_no_host_can_be_asked_for_is_refused(
    door: Door, mode: str, allow: list[str], reason: str
) -> None:
    body = {"mode": mode, "allow": allow}
    async with door.client() as client:
        network = await made(client)
        problem(await client.put(network, json=body), 400, reason)


@pytest.mark.parametrize(
    "body", [{}, {"mode": "all"}, {"mode": None}, {"mode": "egress", "allow": "a.test"}, []]
)
async def test_a_body_of_another_shape_is_refused(door: Door, body: object) -> None:
    async with door.client() as client:
        answer = await client.put(await made(client), json=body)
        assert answer.status_code == 400
        assert answer.headers["content-type"] == "application/problem+json"


async def test_an_unknown_sandbox_is_not_found(door: Door) -> None:
    async with door.client() as client:
        problem(await client.get(UNKNOWN), 404, "sandbox_not_found")
        problem(await client.put(UNKNOWN, json={"mode": "none"}), 404, "sandbox_not_found")
