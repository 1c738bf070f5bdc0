"""WorkspaceService over a real channel: misses, uploads, checkouts, typed errors, Redis."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from opentelemetry.sdk.trace import TracerProvider
from redis.asyncio import Redis

from chassis.errors import FairleadError
from chassis.ids import random_id
from chassis.rpc_channel import open_channel
from chassis.rpc_errors import neighbour_errors
from fairlead.snapshot.v1 import snapshot_pb2
from fairlead.workspace.v1 import workspace_pb2, workspace_pb2_grpc
from tests.fakes.git_client import GitClient, listing
from tests.redis_fixture import RedisServer
from workspace_provisioner.settings import Settings
from workspace_provisioner.wiring import build

if TYPE_CHECKING:
    from fairlead.workspace.v1.workspace_pb2_grpc import WorkspaceServiceAsyncStub as AsyncStub

pytestmark = pytest.mark.asyncio
HOST = random_id("hst")


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    found.write("a", b"a\n")
    found.write("b/c", b"c\n")
    found.commit()
    return found


@pytest.fixture
def configured(tmp_path: Path, bind: str, redis_url: str) -> Settings:
    return Settings(
        bind=bind, host_root=tmp_path / "host", host_id=HOST, redis_url=redis_url, capacity=5
    )


@pytest_asyncio.fixture
async def stub(configured: Settings, redis: Redis) -> AsyncIterator[AsyncStub]:
    async with build(configured):
        channel = open_channel(configured.bind, tracer_provider=TracerProvider())
        async with channel:
            with neighbour_errors("provisioner"):
                yield workspace_pb2_grpc.WorkspaceServiceStub(channel)


def source(
    client: GitClient, *, digest: str = "", changes: snapshot_pb2.Changes | None = None
) -> snapshot_pb2.Source:
    return snapshot_pb2.Source(
        project="p", commit=client.head(), branch="main", digest=digest, changes=changes
    )


def asking(
    wanted: snapshot_pb2.Source, key: str = "k", branch: str = "", tenant: str = "ada"
) -> workspace_pb2.MaterializeWorkspaceRequest:
    return workspace_pb2.MaterializeWorkspaceRequest(
        tenant=tenant, idempotency_key=key, source=wanted, branch=branch
    )


async def upload(
    stub: AsyncStub, client: GitClient, wanted: snapshot_pb2.Source, tenant: str = "ada"
) -> snapshot_pb2.Snapshot:
    async def frames() -> AsyncIterator[workspace_pb2.ImportSnapshotRequest]:
        tips = [snapshot_pb2.Tip(ref="refs/heads/main", commit=client.head())]
        opening = workspace_pb2.OpenImport(tenant=tenant, source=wanted, tips=tips)
        yield workspace_pb2.ImportSnapshotRequest(open=opening)
        pack = client.pack([client.head()])
        for start in range(0, len(pack), 100):
            yield workspace_pb2.ImportSnapshotRequest(chunk=pack[start : start + 100])

    return (await stub.ImportSnapshot(frames())).snapshot


async def refused(call: Awaitable[object]) -> FairleadError:
    """Return the error of a call that has to fail."""
    with pytest.raises(FairleadError) as caught, neighbour_errors("provisioner"):
        await call
    return caught.value


async def test_a_launch_from_miss_to_release(
    stub: AsyncStub, client: GitClient, configured: Settings, redis: Redis
) -> None:
    wanted = source(client, digest="d" * 64)
    missed = (await stub.MaterializeWorkspace(asking(wanted))).miss
    assert missed.reason == snapshot_pb2.MISS_REASON_NO_BASE
    assert list(missed.wanted) == [client.head()]

    snapshot = await upload(stub, client, wanted)
    assert snapshot.snapshot_id.startswith("snp_")
    assert snapshot.host_id == HOST
    assert snapshot.digest == "d" * 64
    assert [tip.ref for tip in snapshot.tips] == ["refs/heads/main"]
    assert snapshot.received_bytes == len(client.pack([client.head()]))
    keys = await redis.keys("fairlead:snapshot:ada:*")
    assert {str(key).rpartition(":")[2] for key in keys} == {client.head(), "d" * 64}
    assert await redis.smembers(keys[0]) == {HOST}
    assert 6 * 86400 < await redis.ttl(keys[0]) <= 7 * 86400

    made = (await stub.MaterializeWorkspace(asking(wanted, branch="try-1"))).workspace
    assert made.state == workspace_pb2.WORKSPACE_STATE_PROVISIONED
    assert made.rung == workspace_pb2.RUNG_CHECKOUT
    assert (made.branch, made.commit, made.host_id) == ("try-1", client.head(), HOST)
    path = configured.host_root / "trees" / made.workspace_id
    assert listing(path) == listing(client.path)
    assert made.expires_at.ToDatetime() > made.created_at.ToDatetime()

    (path / "a").write_bytes(b"b\n")
    named = workspace_pb2.GetWorkspaceRequest(tenant="ada", workspace_id=made.workspace_id)
    plain = (await stub.GetWorkspace(named)).workspace
    assert not plain.HasField("changed_files")
    named.count_changes = True
    assert (await stub.GetWorkspace(named)).workspace.changed_files == 1
    renewing = workspace_pb2.RenewWorkspaceRequest(
        tenant="ada", workspace_id=made.workspace_id, lease=Duration(seconds=7200)
    )
    renewed = (await stub.RenewWorkspace(renewing)).workspace
    assert renewed.expires_at.seconds > made.expires_at.seconds + 3000

    listed = await stub.ListWorkspaces(workspace_pb2.ListWorkspacesRequest())
    assert [each.workspace_id for each in listed.workspaces] == [made.workspace_id]
    releasing = workspace_pb2.ReleaseWorkspaceRequest(tenant="ada", workspace_id=made.workspace_id)
    assert (await stub.ReleaseWorkspace(releasing)).released
    assert not path.exists()
    assert not (await stub.ReleaseWorkspace(releasing)).released
    listed = await stub.ListWorkspaces(workspace_pb2.ListWorkspacesRequest(tenant="ada"))
    assert not listed.workspaces
    gone = (await stub.GetWorkspace(named)).workspace
    assert gone.state == workspace_pb2.WORKSPACE_STATE_RELEASED
    late = await refused(stub.MaterializeWorkspace(asking(wanted, branch="try-1")))
    assert late.reason == "workspace_released"


async def test_changes_ride_along(stub: AsyncStub, client: GitClient, configured: Settings) -> None:
    await upload(stub, client, source(client))
    client.write("a", b"changed\n")
    client.write("new", b"new\n")
    dirty = client.dirty()
    changes = snapshot_pb2.Changes(tree=dirty.tree, pack=dirty.pack)
    made = (await stub.MaterializeWorkspace(asking(source(client, changes=changes)))).workspace
    assert listing(configured.host_root / "trees" / made.workspace_id) == listing(client.path)


async def test_typed_errors(stub: AsyncStub, client: GitClient) -> None:
    good = source(client)
    await upload(stub, client, good)
    await stub.MaterializeWorkspace(asking(good))
    large = snapshot_pb2.Changes(tree="b" * 40, pack=b"x" * (256 * 1024 + 1))
    odd = snapshot_pb2.Source(project="p", commit="--help")
    nothing = workspace_pb2.GetWorkspaceRequest(tenant="ada", workspace_id="../../etc")
    long = workspace_pb2.MaterializeWorkspaceRequest(
        tenant="ada", idempotency_key="x", source=good, lease=Duration(seconds=86401)
    )
    unknown = workspace_pb2.RenewWorkspaceRequest(tenant="ada", workspace_id="wsp_" + "a" * 26)
    cases: list[tuple[str, Awaitable[object]]] = [
        ("branch_invalid", stub.MaterializeWorkspace(asking(good, "x", branch="$(x)..y"))),
        ("branch_invalid", stub.MaterializeWorkspace(asking(good, "x", branch="--force"))),
        ("changes_too_large", stub.MaterializeWorkspace(asking(source(client, changes=large)))),
        ("commit_invalid", stub.MaterializeWorkspace(asking(odd))),
        ("tenant_invalid", stub.MaterializeWorkspace(asking(good, tenant="../x"))),
        ("idempotency_key_invalid", stub.MaterializeWorkspace(asking(good, key=""))),
        ("idempotency_conflict", stub.MaterializeWorkspace(asking(good, branch="other"))),
        ("lease_invalid", stub.MaterializeWorkspace(long)),
        ("workspace_not_found", stub.GetWorkspace(nothing)),
        ("workspace_not_found", stub.RenewWorkspace(unknown)),
        (
            "page_size_invalid",
            stub.ListWorkspaces(workspace_pb2.ListWorkspacesRequest(page_size=1001)),
        ),
        (
            "page_token_invalid",
            stub.ListWorkspaces(workspace_pb2.ListWorkspacesRequest(page_token="../x")),
        ),
    ]
    for reason, call in cases:
        error = await refused(call)
        assert error.reason == reason
        assert error.message.endswith(".")
        assert error.remedy


async def test_frames_out_of_order(stub: AsyncStub, client: GitClient) -> None:
    opening = workspace_pb2.OpenImport(tenant="ada", source=source(client))
    opened = workspace_pb2.ImportSnapshotRequest(open=opening)
    chunk = workspace_pb2.ImportSnapshotRequest(chunk=b"PACK")
    large = workspace_pb2.ImportSnapshotRequest(chunk=b"x" * (1024 * 1024 + 1))
    for frames, reason in (
        ([], "upload_malformed"),
        ([chunk], "upload_malformed"),
        ([opened, opened], "upload_malformed"),
        ([opened, large], "upload_malformed"),
        ([opened, chunk], "pack_invalid"),
        ([opened], "snapshot_incomplete"),
    ):
        assert (await refused(stub.ImportSnapshot(iter(frames)))).reason == reason


async def test_a_client_that_goes_away_leaves_nothing(
    stub: AsyncStub, client: GitClient, configured: Settings
) -> None:
    begun = asyncio.Event()

    async def frames() -> AsyncIterator[workspace_pb2.ImportSnapshotRequest]:
        opening = workspace_pb2.OpenImport(tenant="ada", source=source(client))
        yield workspace_pb2.ImportSnapshotRequest(open=opening)
        yield workspace_pb2.ImportSnapshotRequest(chunk=client.pack([client.head()])[:50])
        begun.set()
        await asyncio.Event().wait()

    incoming = configured.host_root / "workspaces/.incoming"
    call = stub.ImportSnapshot(frames())
    await begun.wait()
    async with asyncio.timeout(60):
        while not list(incoming.iterdir()):  # noqa: ASYNC110 - a file system has no event
            await asyncio.sleep(0.01)
        call.cancel()
        while list(incoming.iterdir()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    missed = (await stub.MaterializeWorkspace(asking(source(client)))).miss
    assert missed.reason == snapshot_pb2.MISS_REASON_NO_BASE


async def test_the_host_announces_itself(
    stub: AsyncStub, configured: Settings, redis: Redis
) -> None:
    announced = await redis.hgetall(f"fairlead:host:{HOST}:workspace")
    assert announced["host_id"] == HOST
    assert announced["address"] == configured.bind
    assert announced["epoch"] == "1"
    assert (announced["workspaces"], announced["capacity"]) == ("0", "5")


async def test_redis_away_is_no_failure(
    configured: Settings, client: GitClient, own_redis: RedisServer
) -> None:
    own_redis.stop()
    settings = configured.model_copy(update={"redis_url": own_redis.url})
    async with (
        build(settings),
        open_channel(settings.bind, tracer_provider=TracerProvider()) as channel,
    ):
        stub = workspace_pb2_grpc.WorkspaceServiceStub(channel)
        await upload(stub, client, source(client))
        assert (await stub.MaterializeWorkspace(asking(source(client)))).workspace.workspace_id


async def test_two_provisioners_serve_a_host_root(
    stub: AsyncStub, configured: Settings, client: GitClient
) -> None:
    await upload(stub, client, source(client))
    made = (await stub.MaterializeWorkspace(asking(source(client)))).workspace
    second = configured.model_copy(update={"bind": f"{configured.bind}2"})
    async with (
        build(second),
        open_channel(second.bind, tracer_provider=TracerProvider()) as channel,
    ):
        other = workspace_pb2_grpc.WorkspaceServiceStub(channel)
        assert (await other.MaterializeWorkspace(asking(source(client)))).workspace == made
        gone = workspace_pb2.ReleaseWorkspaceRequest(tenant="ada", workspace_id=made.workspace_id)
        assert (await other.ReleaseWorkspace(gone)).released
        assert not (await stub.ReleaseWorkspace(gone)).released


@pytest.mark.root
async def test_the_host_root_of_another_user(configured: Settings) -> None:
    root = configured.host_root / "workspaces"
    root.mkdir(parents=True)
    os.chown(root, 12345, 12345)
    with pytest.raises(FairleadError) as caught:
        async with build(configured):
            raise AssertionError
    assert caught.value.reason == "host_root_in_use"


async def test_names_forks_renames_and_checked_releases(
    stub: AsyncStub, client: GitClient, configured: Settings
) -> None:
    host_root = configured.host_root
    await upload(stub, client, source(client))
    request = asking(source(client))
    request.name, request.branch, request.claim_branch = "one", "work", True
    made = (await stub.MaterializeWorkspace(request)).workspace
    assert (made.name, made.branch) == ("one", "work")
    request.idempotency_key = "other"
    assert (await refused(stub.MaterializeWorkspace(request))).reason == "workspace_exists"
    request.name = "two"
    assert (await refused(stub.MaterializeWorkspace(request))).reason == "branch_in_use"
    request.name = "No Name"
    assert (await refused(stub.MaterializeWorkspace(request))).reason == "name_invalid"
    (host_root / "trees" / made.workspace_id / "uncommitted").write_bytes(b"work")
    fork = workspace_pb2.ForkWorkspaceRequest(
        tenant="ada",
        workspace_id=made.workspace_id,
        idempotency_key="fork",
        name="copy",
        branch="copy",
    )
    copied = (await stub.ForkWorkspace(fork)).workspace
    assert copied.rung == workspace_pb2.RUNG_FORK
    assert (copied.name, copied.branch) == ("copy", "copy")
    path = host_root / "trees" / copied.workspace_id / "uncommitted"
    assert path.read_bytes() == b"work"
    rename = workspace_pb2.RenameWorkspaceRequest(
        tenant="ada", workspace_id=made.workspace_id, name="copy"
    )
    assert (await refused(stub.RenameWorkspace(rename))).reason == "workspace_exists"
    rename.name = "three"
    assert (await stub.RenameWorkspace(rename)).workspace.name == "three"
    release = workspace_pb2.ReleaseWorkspaceRequest(
        tenant="ada", workspace_id=made.workspace_id, checked=True
    )
    assert (await refused(stub.ReleaseWorkspace(release))).reason == "workspace_dirty"
    release.checked = False
    assert (await stub.ReleaseWorkspace(release)).released


async def test_a_tenant_has_its_share(configured: Settings, client: GitClient) -> None:
    settings = configured.model_copy(update={"capacity": 4, "tenant_share": 0.5})
    async with (
        build(settings),
        open_channel(settings.bind, tracer_provider=TracerProvider()) as channel,
    ):
        stub = workspace_pb2_grpc.WorkspaceServiceStub(channel)
        await upload(stub, client, source(client))
        for key in "12":
            await stub.MaterializeWorkspace(asking(source(client), key=key))
        third = stub.MaterializeWorkspace(asking(source(client), key="3"))
        assert (await refused(third)).reason == "quota"


async def test_tcp_needs_the_stack_secret(configured: Settings, tmp_path: Path) -> None:
    open_to_all = configured.model_copy(update={"bind": "127.0.0.1:0"})
    with pytest.raises(FairleadError) as caught:
        async with build(open_to_all):
            raise AssertionError
    assert caught.value.reason == "secret_required"
    (tmp_path / "secret").write_text("s" * 32)
    guarded = open_to_all.model_copy(update={"secret_file": tmp_path / "secret"})
    async with build(guarded) as room:
        for secret, reason in ((None, "secret_mismatch"), ("s" * 32, "workspace_not_found")):
            async with open_channel(
                room.address, tracer_provider=TracerProvider(), secret=secret
            ) as channel:
                stub = workspace_pb2_grpc.WorkspaceServiceStub(channel)
                asked = workspace_pb2.GetWorkspaceRequest(tenant="ada", workspace_id="x")
                assert (await refused(stub.GetWorkspace(asked))).reason == reason
