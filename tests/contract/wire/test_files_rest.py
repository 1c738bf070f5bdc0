"""Files over REST: bytes as they are, ranges, conditions, trees, verbs, watches and refusals."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio

from tests.contract.wire.file_room import member, names_in, tar_of
from tests.contract.wire.front_door import make_door
from tests.fakes.file_service import SANDBOX, OneSandbox, file_service

pytestmark = pytest.mark.asyncio
BASE = f"/v1/sandboxes/{SANDBOX}/files"
TAR = "application/x-tar"


@pytest.fixture
def sandbox(tmp_path: Path) -> OneSandbox:
    root = tmp_path / "workspace"
    root.mkdir()
    return OneSandbox(root=root)


@pytest_asyncio.fixture
async def client(
    sandbox: OneSandbox, tmp_path: Path, bind: str
) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        file_service(sandbox, bind=bind) as files,
        make_door(tmp_path / "state", files=files).client() as client,
    ):
        yield client


def reason(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["reason"]


async def test_a_file_goes_in_and_comes_out(
    client: httpx2.AsyncClient, sandbox: OneSandbox
) -> None:
    content = os.urandom(2_000_000)
    put = await client.put(f"{BASE}/a%20b/n%FF.bin?parents=true&permissions=600", content=content)
    assert put.status_code == 200
    assert put.json()["name"] == "a b/n%FF.bin"
    assert put.json()["permissions"] == 0o600
    assert (sandbox.root / "a b" / os.fsdecode(b"n\xff.bin")).read_bytes() == content
    got = await client.get(f"{BASE}/a%20b/n%FF.bin")
    assert got.content == content
    assert got.headers["etag"] == f'"{put.json()["etag"]}"'
    assert got.headers["content-length"] == str(len(content))


@pytest.mark.parametrize(
    ("wanted", "status", "found", "shown"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=-30", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=8-99", 206, b"89", "bytes 8-9/10"),
        ("bytes=10-", 416, None, "bytes */10"),
        ("bytes=-0", 416, None, "bytes */10"),
        ("bytes=5-2", 200, b"0123456789", None),
        ("bytes=1-2,4-5", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
    ],
)
async def test_ranges(
    client: httpx2.AsyncClient,
    sandbox: OneSandbox,
    wanted: str,
    status: int,
    found: bytes | None,
    shown: str | None,
) -> None:
    (sandbox.root / "f").write_bytes(b"0123456789")
    answer = await client.get(f"{BASE}/f", headers={"Range": wanted})
    assert answer.status_code == status
    assert answer.headers.get("content-range") == shown
    if found is None:
        assert reason(answer) == (416, "range_unsatisfiable")
    else:
        assert answer.content == found


async def test_writing_in_ranges_and_on_conditions(
    client: httpx2.AsyncClient, sandbox: OneSandbox
) -> None:
    first = await client.put(f"{BASE}/f", content=b"0123456789", headers={"If-None-Match": "*"})
    assert first.status_code == 200
    again = await client.put(f"{BASE}/f", content=b"x", headers={"If-None-Match": "*"})
    assert reason(again) == (409, "file_exists")
    await client.put(f"{BASE}/f?offset=2&truncate=true", content=b"xx")
    assert (sandbox.root / "f").read_bytes() == b"01xx"
    stale = {"If-Match": f'"{first.json()["etag"]}"'}
    assert reason(await client.put(f"{BASE}/f", content=b"y", headers=stale)) == (
        412,
        "file_changed",
    )
    stat = (await client.post(f"{BASE}:stat", json={"path": "f"})).json()
    fresh = {"If-Match": f'"{stat["etag"]}"'}
    assert (await client.put(f"{BASE}/f", content=b"y", headers=fresh)).status_code == 200
    assert (sandbox.root / "f").read_bytes() == b"y"


async def test_the_same_key_writes_once(client: httpx2.AsyncClient, sandbox: OneSandbox) -> None:
    headers = {"Idempotency-Key": "k1"}
    first = await client.put(f"{BASE}/f", content=b"1", headers=headers)
    (sandbox.root / "f").write_bytes(b"changed")
    again = await client.put(f"{BASE}/f", content=b"1", headers=headers)
    assert again.json() == first.json()
    assert (sandbox.root / "f").read_bytes() == b"changed"


async def test_trees(client: httpx2.AsyncClient, sandbox: OneSandbox) -> None:
    tar = tar_of((member("d", kind=b"5"), b""), (member("d/f"), b"content"))
    put = await client.put(f"{BASE}/up", content=tar, headers={"Content-Type": TAR})
    assert put.json() == {"entries": 2, "content_bytes": 7}
    got = await client.get(f"{BASE}/up", headers={"Accept": TAR})
    assert got.headers["content-type"] == TAR
    assert names_in(got.content) == ["d", "d/f"]
    whole = await client.get(f"{BASE}/", headers={"Accept": TAR})
    assert names_in(whole.content) == ["up", "up/d", "up/d/f"]
    assert reason(await client.get(f"{BASE}/up")) == (409, "is_a_directory")
    hostile = tar_of((member("../x"), b"1"))
    refused = await client.put(f"{BASE}/bad", content=hostile, headers={"Content-Type": TAR})
    assert reason(refused) == (400, "path_outside")
    assert sorted(os.listdir(sandbox.root)) == ["up"]


async def test_verbs(client: httpx2.AsyncClient, sandbox: OneSandbox) -> None:
    async def verb(name: str, **body: object) -> httpx2.Response:
        return await client.post(f"{BASE}:{name}", json=body)

    assert (await verb("mkdir", path="d/e", parents=True)).json()["kind"] == "directory"
    (sandbox.root / "d" / "100%").write_bytes(b"x")
    (sandbox.root / "d" / "é").symlink_to("100%")
    page = (await verb("list", path="d", page_size=2)).json()
    assert [each["name"] for each in page["files"]] == ["100%25", "e"]
    rest = (await verb("list", path="d", page_token=page["next_page_token"])).json()
    assert [(each["name"], each["target"]) for each in rest["files"]] == [("é", "100%25")]
    assert rest["next_page_token"] == ""
    assert (await verb("stat", path="d/é")).json()["kind"] == "file"
    assert (await verb("stat", path="d/é", follow=False)).json()["kind"] == "link"
    assert (await verb("move", source="d/100%25", target="p")).json()["name"] == "p"
    assert reason(await verb("move", source="p", target="d")) == (409, "file_exists")
    assert reason(await client.delete(f"{BASE}/d")) == (409, "directory_not_empty")
    assert (await client.delete(f"{BASE}/d?recursive=true")).json() == {"removed": True}
    assert os.listdir(sandbox.root) == ["p"]


async def test_refusals(client: httpx2.AsyncClient, sandbox: OneSandbox, tmp_path: Path) -> None:
    (sandbox.root / "out").symlink_to("/etc")
    assert reason(await client.get(f"{BASE}/nope")) == (404, "file_not_found")
    assert reason(await client.get(f"{BASE}/out/passwd")) == (400, "path_outside")
    assert reason(await client.get(f"{BASE}/%2e%2e/x")) == (400, "path_outside")
    assert reason(await client.get(f"{BASE}/a%00b")) == (400, "path_invalid")
    assert reason(await client.put(f"{BASE}/out/x", content=b"1")) == (400, "path_outside")
    assert reason(await client.put(f"{BASE}/f?permissions=999", content=b"1")) == (
        400,
        "invalid_parameter",
    )
    answer = await client.post(
        f"{BASE}:stat",
        content=b'{"path": "\\udc80"}',
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 400
    other = BASE.replace(SANDBOX, "sbx_" + "b" * 26)
    assert reason(await client.get(f"{other}/f")) == (404, "sandbox_not_found")
    assert reason(await client.put(f"{other}/f", content=b"1")) == (404, "sandbox_not_found")
    async with make_door(tmp_path / "other").client("") as stranger:
        assert (await stranger.get(f"{BASE}/f")).status_code == 401
    assert os.listdir(sandbox.root) == ["out"]
