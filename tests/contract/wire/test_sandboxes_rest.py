"""The sandbox routes: what they answer, and how they refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import httpx2
import pytest

from chassis.errors import Unavailable
from signalling.sandbox import SandboxOrder
from tests.contract.wire.front_door import Door, make_door
from tests.fakes.mesh import HOST
from tests.fakes.workspace_room import TENANT

pytestmark = pytest.mark.asyncio
UNKNOWN = "/v1/sandboxes/sbx_" + "a" * 26


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return make_door(tmp_path)


async def make(client: httpx2.AsyncClient, key: str = "one", **fields: object) -> httpx2.Response:
    return await client.post("/v1/sandboxes", json=fields, headers={"Idempotency-Key": key})


async def made(client: httpx2.AsyncClient, key: str = "one", **fields: object) -> dict[str, object]:
    answer = await make(client, key, **fields)
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/v1/sandboxes/{answer.json()['sandbox_id']}"
    return dict(answer.json())


def problem(answer: httpx2.Response, status: int, reason: str) -> Mapping[str, object]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert (document["reason"], document["status"]) == (reason, status)
    assert document["detail"]
    return dict(document)


async def test_a_sandbox_has_the_fields_of_the_proto(door: Door) -> None:
    async with door.client() as client:
        sandbox = await made(
            client,
            isolation="process",
            profile="",
            limits={"processes": 9, "wall_time": 1.5},
            network={"mode": "egress", "allow": ["pypi.org"]},
            lease=600,
        )
        assert sandbox == {
            "sandbox_id": sandbox["sandbox_id"],
            "state": "provisioned",
            "isolation": "process",
            "profile": "default",
            "limits": {
                "memory_bytes": 0,
                "processes": 9,
                "open_files": 0,
                "file_bytes": 0,
                "cpu_milli": 0,
                "disk_bytes": 0,
                "wall_time": 1.5,
                "output_bytes": 0,
            },
            "network": {"mode": "egress", "allow": ["pypi.org"]},
            "walls": [
                {"name": "script", "stands": True, "reason": ""},
                {"name": "stone", "stands": False, "reason": "a fake"},
            ],
            "host_id": HOST.host_id,
            "workspace_id": "",
            "launch_id": "",
            "fence": {"epoch": 1, "counter": 1},
            "created_at": sandbox["created_at"],
            "expires_at": sandbox["expires_at"],
        }
        found = await client.get(f"/v1/sandboxes/{sandbox['sandbox_id']}")
        assert found.json() == sandbox
        page = (await client.get("/v1/sandboxes")).json()
        assert page == {"sandboxes": [sandbox], "next_page_token": "", "unanswered_hosts": []}
        location = f"/v1/sandboxes/{sandbox['sandbox_id']}"
        renewed = (await client.post(f"{location}/renew", json={"lease": 7200})).json()
        assert renewed["expires_at"] > str(sandbox["expires_at"])
        assert (await client.delete(location)).json() == {"released": True}
        problem(await client.delete(location), 404, "sandbox_not_found")


async def test_a_body_is_not_needed(door: Door) -> None:
    async with door.client() as client:
        first, second = await client.post("/v1/sandboxes"), await client.post("/v1/sandboxes")
    assert first.status_code == second.status_code == 201
    assert first.json()["sandbox_id"] != second.json()["sandbox_id"]


async def test_a_key_makes_one_sandbox(door: Door) -> None:
    async with door.client() as client:
        many = await asyncio.gather(*(made(client) for _ in range(4)))
        assert len({each["sandbox_id"] for each in many}) == 1
        problem(await make(client, lease=61), 409, "idempotency_conflict")
        answer = await client.post(
            "/v1/sandboxes", json={"idempotency_key": "x"}, headers={"Idempotency-Key": "y"}
        )
        problem(answer, 400, "idempotency_keys_differ")
        in_body = await client.post("/v1/sandboxes", json={"idempotency_key": "one"})
        assert in_body.json() == many[0]


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({"isolation": "walled"}, 409, "isolation_unavailable"),
        ({"isolation": "No!"}, 400, "isolation_invalid"),
        ({"isolation": 1}, 400, "invalid_body"),
        ({"profile": "large"}, 400, "profile_unknown"),
        ({"profile": "L"}, 400, "profile_invalid"),
        ({"limits": {"processes": -1}}, 400, "limit_invalid"),
        ({"limits": {"memory": 1}}, 400, "invalid_body"),
        ({"limits": {"memory_bytes": 2**63}}, 400, "limit_invalid"),
        ({"network": {"mode": "all"}}, 400, "invalid_body"),
        ({"network": {"mode": "none", "allow": ["a"]}}, 400, "network_invalid"),
        ({"lease": 0}, 400, "lease_invalid"),
        ({"lease": "1"}, 400, "invalid_body"),
        ({"workspace_id": "wsp_x"}, 404, "workspace_not_found"),
        ({"host_id": "hst_x"}, 404, "host_not_found"),
        ({"tenant": "other"}, 400, "invalid_body"),
    ],
)
async def test_what_cannot_be_asked_for(
    door: Door, fields: dict[str, object], status: int, reason: str
) -> None:
    async with door.client() as client:
        problem(await make(client, **fields), status, reason)  # type: ignore[arg-type]
    assert not door.sandboxes.worker.held


async def test_a_launchs_sandbox_is_listed_and_not_taken(door: Door) -> None:
    made = await door.sandboxes.worker.create(
        HOST, tenant=TENANT, order=SandboxOrder(key="lch_x", launch_id="lch_x")
    )
    location = f"/v1/sandboxes/{made.sandbox_id}"
    async with door.client() as client:
        (listed,) = (await client.get("/v1/sandboxes")).json()["sandboxes"]
        assert listed["launch_id"] == "lch_x"
        refused = problem(await client.delete(location), 409, "sandbox_in_use")
        assert refused["launch_id"] == "lch_x"
        problem(await client.post(f"{location}/renew"), 409, "sandbox_in_use")
    assert door.sandboxes.worker.held


async def test_another_tenant_sees_nothing(door: Door) -> None:
    async with door.client() as client:
        sandbox = await made(client)
    location = f"/v1/sandboxes/{sandbox['sandbox_id']}"
    async with door.client(door.other_key) as client:
        assert (await client.get("/v1/sandboxes")).json()["sandboxes"] == []
        for answer in (
            await client.get(location),
            await client.delete(location),
            await client.post(f"{location}/renew"),
            await client.get(UNKNOWN),
        ):
            problem(answer, 404, "sandbox_not_found")


async def test_a_silent_host_is_named_in_the_page(door: Door) -> None:
    away = Unavailable("Away.", reason="host_unavailable")
    door.sandboxes.faults.refuse("sandboxes.list:before", away)
    async with door.client() as client:
        problem(await client.get("/v1/sandboxes"), 503, "host_unavailable")


@pytest.mark.parametrize(
    ("query", "reason"),
    [("page_size=101", "page_size_invalid"), ("page_token=x", "page_token_invalid")],
)
async def test_pages_that_cannot_be(door: Door, query: str, reason: str) -> None:
    async with door.client() as client:
        problem(await client.get(f"/v1/sandboxes?{query}"), 400, reason)


async def test_a_key_is_needed(door: Door) -> None:
    async with door.client("") as client:
        problem(await client.post("/v1/sandboxes"), 401, "key_missing")
