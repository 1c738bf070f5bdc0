"""A whole provisioner over a real directory, and the https server that its projects come from."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from chassis.clock import SystemClock
from tests.fakes.git_client import GitClient
from tests.fakes.provisioner_room import LEASE, SnapshotList, chunked
from tests.https_git import NAME, HttpsGitServer
from workspace_provisioner.core import Bounds, Core, opened_core
from workspace_provisioner.origin_access import OriginAccess
from workspace_provisioner.sources import Source
from workspace_provisioner.trees.layer_files import read_layer
from workspace_provisioner.workspaces import Miss, Workspace


async def loopback(host: str, port: int) -> list[str]:
    """Resolve the server's name to the address that is listed, and others to one that is not."""
    return ["127.0.0.1" if host == NAME else "127.0.0.9"]


@dataclass(slots=True)
class Host:
    """A provisioner, and the server that its projects come from."""

    core: Core
    https: HttpsGitServer

    async def upload(self, client: GitClient) -> None:
        source = client.source()
        await self.core.importer.receive(source, (), chunked(client.pack([source.commit])))

    async def ask(self, key: str, source: Source, *, overlay: bool = False) -> Workspace | Miss:
        return await self.core.provisioner.materialize(
            idempotency_key=key, source=source, branch="", lease=LEASE, overlay=overlay
        )

    async def make(self, key: str, source: Source, *, overlay: bool = False) -> Workspace:
        made = await self.ask(key, source, overlay=overlay)
        assert isinstance(made, Workspace), made
        return made

    def tree(self, made: Workspace) -> Path:
        """Return where a workspace's own files are."""
        layer = read_layer(self.core.layout.layers / made.workspace_id)
        return layer.upper if layer else self.core.layout.trees / made.workspace_id


@asynccontextmanager
async def opened(
    root: Path, https: HttpsGitServer, *, wait: float = 30.0, credentials: Path | None = None
) -> AsyncIterator[Host]:
    program = shutil.which("git")
    assert program is not None
    async with opened_core(
        host_root=root / "host",
        git_program=program,
        secret=b"secret",
        bounds=Bounds(
            workspaces=100, tenant_workspaces=100, builds=8, uploads=4, pack_bytes=1 << 30,
            idle_seconds=30, git_seconds=60, reserve_bytes=0,
        ),
        clock=SystemClock(),
        directory=SnapshotList(),
        on_reason=lambda reason: None,
        access=OriginAccess(
            wait_seconds=wait, allowed=("127.0.0.1",), credentials=credentials, resolve=loopback,
            trust=https.trust(),
        ),
    ) as core:  # fmt: skip
        yield Host(core, https)
