"""WorkspaceService of the front door over real gRPC and a real Redis, before a fake host."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Mapping

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from redis.asyncio import Redis

from chassis.errors import FairleadError
from chassis.rpc_errors import neighbour_errors
from fairlead.snapshot.v1 import snapshot_pb2
from fairlead.workspace.v1 import workspace_pb2 as pb
from tests.contract.wire.launch_mesh import Mesh, running_mesh
from tests.eventually import eventually
from tests.fakes.launch_room import COMMIT

pytestmark = pytest.mark.asyncio
UNKNOWN = "wsp_" + "a" * 26


@pytest_asyncio.fixture
async def mesh(redis: Redis) -> AsyncIterator[Mesh]:
    with tempfile.TemporaryDirectory(prefix="flw-") as directory:
        async with running_mesh(redis, directory) as running:
            yield running


def source(commit: str = COMMIT) -> snapshot_pb2.Source:
    return snapshot_pb2.Source(project="p", commit=commit, branch="main")


def asking(
    key: str = "one",
    commit: str = COMMIT,
    more: Mapping[str, object] | None = None,
    **fields: object,
) -> pb.MaterializeWorkspaceRequest:
    return pb.MaterializeWorkspaceRequest(
        tenant="somebody else",
        idempotency_key=key,
        source=source(commit),
        **{**fields, **(more or {})},  # type: ignore[arg-type]
    )


async def make(
    mesh: Mesh, key: str = "one", commit: str = COMMIT, **fields: object
) -> pb.Workspace:
    answer = await mesh.public.MaterializeWorkspace(asking(key, commit, fields))
    assert answer.WhichOneof("outcome") == "workspace", answer
    return answer.workspace


async def refused(call: Awaitable[object]) -> str:
    with pytest.raises(FairleadError) as error, neighbour_errors("signalling"):
        await call
    return error.value.reason


async def test_the_tenant_comes_from_the_key_and_not_from_the_request(mesh: Mesh) -> None:
    made = await make(mesh, name="fix")
    assert made.tenant == "default"
    ((tenant, _),) = mesh.workspaces.held
    assert tenant == "default"
    named = pb.GetWorkspaceRequest(tenant="default", workspace_id=made.workspace_id)
    stranger = mesh.public.GetWorkspace(named, metadata=(("tenant", "other"),))
    assert await refused(stranger) == "workspace_not_found"
    assert (await mesh.public.GetWorkspace(named)).workspace == made


async def test_cold_is_two_calls(mesh: Mesh) -> None:
    answer = await mesh.public.MaterializeWorkspace(asking(commit="d" * 40, name="fix"))
    assert answer.miss.reason == snapshot_pb2.MISS_REASON_UNKNOWN_COMMIT
    assert list(answer.miss.tips) == [COMMIT]
    assert answer.miss.upload_token
    assert answer.miss.HasField("expires_at")

    async def frames() -> AsyncIterator[pb.ImportSnapshotRequest]:
        yield pb.ImportSnapshotRequest(
            open=pb.OpenImport(
                tenant="somebody else",
                source=source("d" * 40),
                materialize=pb.MaterializeWorkspaceRequest(idempotency_key="one", name="fix"),
            )
        )
        yield pb.ImportSnapshotRequest(chunk=b"PA")
        yield pb.ImportSnapshotRequest(chunk=b"CK")

    imported = await mesh.public.ImportSnapshot(frames())
    assert imported.snapshot.received_bytes == 4
    workspace = imported.materialized.workspace
    assert (workspace.name, workspace.commit, workspace.branch) == ("fix", "d" * 40, "main")
    again = await mesh.public.MaterializeWorkspace(asking(commit="d" * 40, name="fix"))
    assert again.workspace == workspace


async def test_the_token_of_a_miss_is_good_for_an_upload_too(mesh: Mesh) -> None:
    miss = (await mesh.public.MaterializeWorkspace(asking(commit="d" * 40))).miss

    async def frames() -> AsyncIterator[snapshot_pb2.UploadSnapshotRequest]:
        opening = snapshot_pb2.OpenUpload(upload_token=miss.upload_token, tips_only=True)
        yield snapshot_pb2.UploadSnapshotRequest(open=opening)
        yield snapshot_pb2.UploadSnapshotRequest(chunk=b"PACK")

    assert (await mesh.snapshots.UploadSnapshot(frames())).snapshot.received_bytes == 4
    assert (await make(mesh, commit="d" * 40)).commit == "d" * 40
    assert (await mesh.snapshots.UploadSnapshot(frames())).snapshot.received_bytes == 4
    assert await refused(mesh.snapshots.UploadSnapshot(frames())) == "upload_token_invalid"


async def test_an_import_begins_with_its_open_frame(mesh: Mesh) -> None:
    async def frames() -> AsyncIterator[pb.ImportSnapshotRequest]:
        yield pb.ImportSnapshotRequest(chunk=b"PACK")

    assert await refused(mesh.public.ImportSnapshot(frames())) == "upload_frames_invalid"


async def test_every_verb_reaches_the_host(mesh: Mesh) -> None:
    made = await make(mesh, name="fix")
    lease = Duration(seconds=7200)
    forked = await mesh.public.ForkWorkspace(
        pb.ForkWorkspaceRequest(
            workspace_id=made.workspace_id, idempotency_key="fork", name="copy", lease=lease
        )
    )
    assert (forked.workspace.name, forked.workspace.rung) == ("copy", pb.RUNG_FORK)
    renaming = pb.RenameWorkspaceRequest(workspace_id=made.workspace_id, name="done")
    assert (await mesh.public.RenameWorkspace(renaming)).workspace.name == "done"
    renewing = pb.RenewWorkspaceRequest(workspace_id=made.workspace_id, lease=lease)
    renewed = (await mesh.public.RenewWorkspace(renewing)).workspace
    assert renewed.expires_at.seconds - renewed.created_at.seconds == 7200
    page = await mesh.public.ListWorkspaces(pb.ListWorkspacesRequest(page_size=1))
    rest = await mesh.public.ListWorkspaces(
        pb.ListWorkspacesRequest(page_token=page.next_page_token)
    )
    listed = [each.workspace_id for each in (*page.workspaces, *rest.workspaces)]
    assert listed == sorted([made.workspace_id, forked.workspace.workspace_id])
    counting = pb.GetWorkspaceRequest(workspace_id=made.workspace_id, count_changes=True)
    assert (await mesh.public.GetWorkspace(counting)).workspace.HasField("changed_files")
    mesh.workspaces.dirty.add(made.workspace_id)
    checked = pb.ReleaseWorkspaceRequest(workspace_id=made.workspace_id, checked=True)
    assert await refused(mesh.public.ReleaseWorkspace(checked)) == "workspace_dirty"
    forced = pb.ReleaseWorkspaceRequest(workspace_id=made.workspace_id)
    assert (await mesh.public.ReleaseWorkspace(forced)).released
    assert not (await mesh.public.ReleaseWorkspace(forced)).released


async def test_what_a_key_made_is_released_by_the_key(mesh: Mesh) -> None:
    await make(mesh)
    by_key = pb.ReleaseWorkspaceRequest(idempotency_key="one")
    assert (await mesh.public.ReleaseWorkspace(by_key)).released
    assert await refused(mesh.public.MaterializeWorkspace(asking())) == "workspace_released"


async def test_refusals_carry_their_reason(mesh: Mesh) -> None:
    await make(mesh, name="fix")
    materialize = mesh.public.MaterializeWorkspace
    for reason, call in (
        ("workspace_exists", materialize(asking("two", name="fix"))),
        ("name_invalid", materialize(asking("two", name="-"))),
        ("branch_invalid", materialize(asking("two", branch="a..b"))),
        ("commit_invalid", materialize(asking("two", commit="x"))),
        (
            "workspace_not_found",
            mesh.public.GetWorkspace(pb.GetWorkspaceRequest(workspace_id=UNKNOWN)),
        ),
        (
            "workspace_not_found",
            mesh.public.ForkWorkspace(pb.ForkWorkspaceRequest(workspace_id=UNKNOWN)),
        ),
        (
            "workspace_not_found",
            mesh.public.ReleaseWorkspace(pb.ReleaseWorkspaceRequest(workspace_id=UNKNOWN)),
        ),
        (
            "page_token_invalid",
            mesh.public.ListWorkspaces(pb.ListWorkspacesRequest(page_token="x")),
        ),
    ):
        assert await refused(call) == reason


async def test_losing_redis_costs_a_directory_miss_only(mesh: Mesh, redis: Redis) -> None:
    made = await make(mesh)
    for pattern in ("fairlead:workspace:*", "fairlead:workspace-key:*"):

        async def kept(pattern: str = pattern) -> list[str]:
            return [str(key) async for key in redis.scan_iter(pattern)]

        await redis.delete(*await eventually(kept))
    named = pb.GetWorkspaceRequest(workspace_id=made.workspace_id)
    assert (await mesh.public.GetWorkspace(named)).workspace == made
    assert await make(mesh) == made
