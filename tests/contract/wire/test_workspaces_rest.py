"""The workspace routes: what they answer, and how they refuse."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path

import httpx2
import pytest

from chassis.errors import ResourceExhausted, Unavailable
from tests.contract.wire.front_door import Door, make_door
from tests.fakes.workspace_room import COMMIT

pytestmark = pytest.mark.asyncio
SOURCE = {"project": "p", "commit": COMMIT, "branch": "main"}
UNKNOWN = "/v1/workspaces/wsp_" + "a" * 26


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return make_door(tmp_path, real_uploads=True)


async def make(client: httpx2.AsyncClient, key: str = "one", **fields: object) -> httpx2.Response:
    return await client.post(
        "/v1/workspaces", json={"source": SOURCE, **fields}, headers={"Idempotency-Key": key}
    )


async def made(client: httpx2.AsyncClient, key: str = "one", **fields: object) -> dict[str, object]:
    answer = await make(client, key, **fields)
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/v1/workspaces/{answer.json()['workspace_id']}"
    return dict(answer.json())


def problem(answer: httpx2.Response, status: int, reason: str) -> Mapping[str, object]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert (document["reason"], document["status"]) == (reason, status)
    assert document["detail"]
    assert document["remedy"]
    return dict(document)


async def test_a_workspace_has_the_fields_of_the_proto(door: Door) -> None:
    async with door.client() as client:
        workspace = await made(client, name="fix", branch="try-1", claim_branch=True, lease=600)
        assert workspace == {
            "workspace_id": workspace["workspace_id"],
            "state": "provisioned",
            "name": "fix",
            "project": "p",
            "commit": COMMIT,
            "branch": "try-1",
            "host_id": "hst_" + "a" * 26,
            "rung": "checkout",
            "has_submodules": False,
            "lfs_pointers": 0,
            "tags_left_out": False,
            "changed_files": None,
            "freshness": None,
            "created_at": "2026-01-01T00:00:00Z",
            "expires_at": "2026-01-01T00:10:00Z",
        }
        path = f"/v1/workspaces/{workspace['workspace_id']}"
        assert (await client.get(path)).json() == workspace
        counted = (await client.get(path, params={"count_changes": "true"})).json()
        assert counted == {**workspace, "changed_files": 0}
        listed = (await client.get("/v1/workspaces")).json()
        page = {"workspaces": [workspace], "next_page_token": "", "unanswered_hosts": []}
        assert listed == page


async def test_the_same_key_gets_the_same_workspace_and_another_body_a_conflict(
    door: Door,
) -> None:
    async with door.client() as client:
        first = await made(client, name="fix")
        assert await made(client, name="fix") == first
        in_body = {"source": SOURCE, "name": "fix", "idempotency_key": "one"}
        assert (await client.post("/v1/workspaces", json=in_body)).json() == first
        both = {"json": in_body, "headers": {"Idempotency-Key": "two"}}
        problem(await client.post("/v1/workspaces", **both), 400, "idempotency_keys_differ")  # type: ignore[arg-type]
        problem(await make(client, name="other"), 409, "idempotency_conflict")
        at_once = await asyncio.gather(*(made(client, "three") for _ in range(5)))
        assert len({str(each["workspace_id"]) for each in at_once}) == 1


async def test_a_miss_is_answered_by_an_upload_that_makes_the_workspace(door: Door) -> None:
    door.room.workspaces.known = {"d" * 40}
    async with door.client() as client:
        missed = problem(await make(client, name="fix"), 409, "unknown_commit")
        assert missed["wanted"] == [COMMIT]
        assert missed["tips"] == ["d" * 40]
        assert missed["expires_at"] == "2026-01-01T00:18:40.000000Z"
        upload = {
            "params": {"upload": missed["upload_token"]},
            "content": b'{"tips": [], "tips_only": true}\nPACK',
            "headers": {"Content-Type": "application/x-fairlead-pack"},
        }
        sent = await client.post("/v1/snapshots", **upload)  # type: ignore[arg-type]
        assert sent.status_code == 201
        workspace = sent.json()["workspace"]
        assert workspace["name"] == "fix"
        assert await made(client, name="fix") == workspace
        history = await client.post("/v1/snapshots", **upload)  # type: ignore[arg-type]
        assert history.json()["workspace"] is None
        again = await client.post("/v1/snapshots", **upload)  # type: ignore[arg-type]
        problem(again, 404, "upload_token_invalid")
        assert door.room.workspaces.imports == [(True, True), (True, False)]


async def test_everything_that_a_client_can_say_of_its_repository_is_taken(door: Door) -> None:
    pack = base64.b64encode(b"PACK").decode()
    source = {
        **SOURCE,
        "commits": {"against": ["d" * 40], "pack": pack},
        "upstream": {"url": "https://host/r.git", "branch": "main", "max_age": 60},
        "noticed": ["client_refs_unreadable", "dirty_too_large"],
        "submodules": True,
        "tags": [{"ref": "refs/tags/v1", "commit": "e" * 40}],
    }
    async with door.client() as client:
        await made(client, source=source)
        asked = next(iter(door.room.workspaces.orders.values()))
        taken = getattr(asked, "source", None)
        assert taken is not None
        assert taken.commits.against == ("d" * 40,)
        assert taken.upstream.max_age.total_seconds() == 60
        assert [reason.value for reason in taken.noticed] == source["noticed"]
        assert taken.submodules
        assert [(tag.ref, tag.commit) for tag in taken.tags] == [("refs/tags/v1", "e" * 40)]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"source": {**SOURCE, "commit": "HEAD"}}, "commit_invalid"),
        ({"branch": "a..b"}, "branch_invalid"),
        ({"claim_branch": True}, "branch_invalid"),
        ({"name": "-x"}, "name_invalid"),
        ({"name": "a\u0000b"}, "name_invalid"),
        ({"lease": 0}, "lease_invalid"),
        ({"colour": "red"}, "invalid_body"),
        ({"source": {**SOURCE, "noticed": ["no_base"]}}, "noticed_invalid"),
        ({"source": {**SOURCE, "noticed": ["nonsense"]}}, "noticed_invalid"),
        (
            {"source": {**SOURCE, "upstream": {"url": "file:///etc", "branch": "main"}}},
            "origin_invalid",
        ),
    ],
)
async def test_a_bad_order_is_refused_with_its_reason(
    door: Door, fields: dict[str, object], reason: str
) -> None:
    async with door.client() as client:
        problem(await make(client, "one", **fields), 400, reason)
    assert door.room.workspaces.held == {}


async def test_the_hosts_refusals_keep_their_reason(door: Door) -> None:
    point = "workspaces.materialize:before"
    async with door.client() as client:
        await made(client, name="fix", branch="x", claim_branch=True)
        problem(await make(client, "two", name="fix"), 409, "workspace_exists")
        taken = await make(client, "two", branch="x", claim_branch=True)
        problem(taken, 409, "branch_in_use")
        door.room.faults.refuse(point, ResourceExhausted("Full.", reason="quota", remedy="rm"))
        problem(await make(client, "two"), 429, "quota")
        door.room.faults.refuse(point, Unavailable("Locked.", reason="base_locked", remedy="Wait"))
        problem(await make(client, "two"), 503, "base_locked")


async def test_fork_rename_and_renew(door: Door) -> None:
    async with door.client() as client:
        first = await made(client, name="fix")
        path = f"/v1/workspaces/{first['workspace_id']}"
        key = {"Idempotency-Key": "fork"}
        forked = await client.post(f"{path}/fork", json={"name": "copy"}, headers=key)
        assert forked.status_code == 201
        assert forked.headers["location"] == f"/v1/workspaces/{forked.json()['workspace_id']}"
        assert (forked.json()["name"], forked.json()["rung"]) == ("copy", "fork")
        again = await client.post(f"{path}/fork", json={"name": "copy"}, headers=key)
        assert again.json() == forked.json()
        other = await client.post(f"{path}/fork", json={"name": "more"}, headers=key)
        problem(other, 409, "idempotency_conflict")
        problem(await client.post(f"{path}/fork", json={"name": "fix"}), 409, "workspace_exists")
        assert (await client.post(f"{path}/fork")).status_code == 201
        renamed = await client.post(f"{path}/rename", json={"name": "done"})
        assert renamed.json() == {**first, "name": "done"}
        taken = await client.post(f"{path}/rename", json={"name": "copy"})
        problem(taken, 409, "workspace_exists")
        renewed = await client.post(f"{path}/renew", json={"lease": 7200})
        assert renewed.json()["expires_at"] == "2026-01-01T02:00:00Z"
        assert (await client.post(f"{path}/renew")).status_code == 200


async def test_delete_refuses_to_lose_work_unless_it_is_forced(door: Door) -> None:
    async with door.client() as client:
        first = await made(client)
        path = f"/v1/workspaces/{first['workspace_id']}"
        key = {"Idempotency-Key": "delete"}
        door.room.workspaces.dirty.add(str(first["workspace_id"]))
        problem(await client.delete(path, headers=key), 409, "workspace_dirty")
        door.room.workspaces.dirty.clear()
        door.room.workspaces.unpushed.add(str(first["workspace_id"]))
        problem(await client.delete(path, headers=key), 409, "workspace_unpushed")
        gone = await client.delete(path, params={"force": "true"}, headers=key)
        assert gone.json() == {"released": True}
        repeated = await client.delete(path, params={"force": "true"}, headers=key)
        assert repeated.json() == {"released": True}
        problem(await client.delete(path, headers=key), 409, "idempotency_conflict")
        assert (await client.delete(path)).json() == {"released": False}
        assert (await client.get(path)).json()["state"] == "released"
        assert (await client.get("/v1/workspaces")).json()["workspaces"] == []


async def test_another_tenants_workspace_is_not_found(door: Door) -> None:
    async with door.client() as client:
        first = await made(client, name="fix")
    async with door.client(door.other_key) as stranger:
        for path in (f"/v1/workspaces/{first['workspace_id']}", UNKNOWN, "/v1/workspaces/..x"):
            answers = [
                await stranger.get(path),
                await stranger.post(f"{path}/fork", json={}),
                await stranger.post(f"{path}/rename", json={"name": "mine"}),
                await stranger.post(f"{path}/renew", json={}),
                await stranger.delete(path, params={"force": "true"}),
            ]
            documents = [problem(answer, 404, "workspace_not_found") for answer in answers]
            assert len({str(document["detail"]) for document in documents}) == 1
        assert (await stranger.get("/v1/workspaces")).json()["workspaces"] == []
        assert (await made(stranger, name="fix"))["name"] == "fix"
    assert len(door.room.workspaces.held) == 2


async def test_pages_go_on_where_the_one_before_ended(door: Door) -> None:
    async with door.client() as client:
        wanted = sorted([str((await made(client, str(n)))["workspace_id"]) for n in range(5)])
        seen: list[str] = []
        params = {"page_size": "2"}
        while True:
            page = (await client.get("/v1/workspaces", params=params)).json()
            seen += [each["workspace_id"] for each in page["workspaces"]]
            if not page["next_page_token"]:
                break
            params["page_token"] = page["next_page_token"]
        assert seen == wanted
        for bad, reason in (("page_size=101", "page_size"), ("page_token=x", "page_token")):
            problem(await client.get(f"/v1/workspaces?{bad}"), 400, f"{reason}_invalid")
