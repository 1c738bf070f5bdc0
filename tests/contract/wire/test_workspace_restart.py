"""The provisioner as a process that is killed in the middle of its work, and started again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from opentelemetry.sdk.trace import TracerProvider

from chassis.ids import random_id
from chassis.rpc_channel import open_channel
from fairlead.snapshot.v1 import snapshot_pb2
from fairlead.workspace.v1 import workspace_pb2, workspace_pb2_grpc
from tests.fakes.git_client import GitClient, listing

if TYPE_CHECKING:
    from fairlead.workspace.v1.workspace_pb2_grpc import WorkspaceServiceAsyncStub as AsyncStub

pytestmark = pytest.mark.asyncio
HOST = random_id("hst")


class Process:
    """A provisioner process with a client."""

    def __init__(self, process: asyncio.subprocess.Process, stub: AsyncStub) -> None:
        self.process = process
        self.stub = stub

    async def kill(self) -> None:
        """End it by SIGKILL."""
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def provisioner(host_root: Path, bind: str) -> AsyncIterator[Process]:
    """Start a provisioner; Redis is away, which changes nothing here."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(host_root.parent),
        "FAIRLEAD_HOST_ROOT": str(host_root),
        "FAIRLEAD_HOST_ID": HOST,
        "FAIRLEAD_WORKSPACE_BIND": bind,
        "FAIRLEAD_REDIS_URL": f"unix://{host_root}/no-redis",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "workspace_provisioner",
        env=environment,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with open_channel(bind, tracer_provider=TracerProvider()) as channel:
            async with asyncio.timeout(60):
                await channel.channel_ready()
            yield Process(process, workspace_pb2_grpc.WorkspaceServiceStub(channel))
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await process.wait()


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(900):
        found.write(f"f{number}", os.urandom(2000))
    found.commit()
    return found


def asking(client: GitClient, key: str) -> workspace_pb2.MaterializeWorkspaceRequest:
    source = snapshot_pb2.Source(project="p", commit=client.head(), branch="main")
    return workspace_pb2.MaterializeWorkspaceRequest(
        tenant="ada", idempotency_key=key, source=source
    )


async def frames(
    client: GitClient, cut: int | None = None
) -> AsyncIterator[workspace_pb2.ImportSnapshotRequest]:
    """Send the pack of HEAD; with `cut`, only so many bytes, and then nothing more."""
    source = snapshot_pb2.Source(project="p", commit=client.head(), branch="main")
    opening = workspace_pb2.OpenImport(tenant="ada", source=source)
    yield workspace_pb2.ImportSnapshotRequest(open=opening)
    pack = client.pack([client.head()])[:cut]
    for start in range(0, len(pack), 2**20):
        yield workspace_pb2.ImportSnapshotRequest(chunk=pack[start : start + 2**20])
    if cut is not None:
        await asyncio.Event().wait()


def entries(path: Path, pattern: str = "*") -> list[str]:
    """Return what matches below a directory."""
    return [str(each) for each in path.glob(pattern)]


async def until(path: Path, pattern: str) -> None:
    """Wait until a file is there."""
    async with asyncio.timeout(60):
        while not entries(path, pattern):  # noqa: ASYNC110 - a file system has no event
            await asyncio.sleep(0.01)


async def until_empty(path: Path) -> None:
    """Wait until a directory is empty."""
    async with asyncio.timeout(60):
        while entries(path):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def lost(call: Awaitable[object]) -> None:
    """Wait for the end of a call whose server was killed."""
    with suppress(grpc.aio.AioRpcError):
        await call


async def test_killed_while_it_imports(tmp_path: Path, bind: str, client: GitClient) -> None:
    root = tmp_path / "host"
    async with provisioner(root, bind) as first:
        call = first.stub.ImportSnapshot(frames(client, cut=1_500_000))
        await until(root, "workspaces/.incoming/*/objects/pack/tmp_pack_*")
        await first.kill()
        await lost(call)
    async with provisioner(root, bind) as second:
        await until_empty(root / "workspaces/.trash")
        assert not list((root / "workspaces/.incoming").iterdir())
        assert not (root / "workspaces/ada").exists()
        missed = await second.stub.MaterializeWorkspace(asking(client, "k"))
        assert missed.miss.reason == snapshot_pb2.MISS_REASON_NO_BASE
        await second.stub.ImportSnapshot(frames(client))
        assert (await second.stub.MaterializeWorkspace(asking(client, "k"))).workspace.workspace_id


async def test_killed_while_it_checks_out(tmp_path: Path, bind: str, client: GitClient) -> None:
    root = tmp_path / "host"
    async with provisioner(root, bind) as first:
        await first.stub.ImportSnapshot(frames(client))
        ready = (await first.stub.MaterializeWorkspace(asking(client, "ready"))).workspace
        (root / "trees" / ready.workspace_id / "mine").write_text("work")
        for number in range(2000):
            client.write(f"many/{number}", b"many\n")
        client.commit()
        await first.stub.ImportSnapshot(frames(client))
        call = first.stub.MaterializeWorkspace(asking(client, "half"))
        await until(root, "workspaces/.staging/*/tree/many/*")
        await first.kill()
        await lost(call)
        assert list((root / "workspaces/.staging").iterdir())
    async with provisioner(root, bind) as second:
        listed = await second.stub.ListWorkspaces(workspace_pb2.ListWorkspacesRequest())
        assert [each.workspace_id for each in listed.workspaces] == [ready.workspace_id]
        assert (root / "trees" / ready.workspace_id / "mine").read_text() == "work"
        made = (await second.stub.MaterializeWorkspace(asking(client, "half"))).workspace
        assert listing(root / "trees" / made.workspace_id) == listing(client.path)
        await until_empty(root / "workspaces/.trash")
        assert (root / "workspaces/.epoch").read_text() == "2"
        client.git("reset", "-q", "--hard", "HEAD~1")
        again = (await second.stub.MaterializeWorkspace(asking(client, "ready"))).workspace
        assert again == ready
