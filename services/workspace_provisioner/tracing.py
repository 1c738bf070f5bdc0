"""The spans of this room; the only file that names them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

from opentelemetry.trace import Tracer

from workspace_provisioner.ports import SnapshotOperations, WorkspaceOperations
from workspace_provisioner.sources import Source, Tip
from workspace_provisioner.workspaces import Miss, Snapshot, Workspace


class TracedWorkspaces:
    """Opens `workspace.materialize` and `workspace.release` around the workspaces' operations."""

    def __init__(self, *, workspaces: WorkspaceOperations, tracer: Tracer, host_id: str) -> None:
        self._workspaces = workspaces
        self._tracer = tracer
        self._host_id = host_id

    async def materialize(
        self, *, idempotency_key: str, source: Source, branch: str, lease: timedelta
    ) -> Workspace | Miss:
        with self._tracer.start_as_current_span("workspace.materialize") as span:
            span.set_attribute("fairlead.host.id", self._host_id)
            span.set_attribute("fairlead.workspace.dirty", source.changes is not None)
            outcome = await self._workspaces.materialize(
                idempotency_key=idempotency_key, source=source, branch=branch, lease=lease
            )
            if isinstance(outcome, Miss):
                span.set_attribute("fairlead.workspace.miss", outcome.reason)
            else:
                span.set_attribute("fairlead.workspace.id", outcome.workspace_id)
                span.set_attribute("fairlead.workspace.rung", "checkout")
            return outcome

    async def get(self, tenant: str, workspace_id: str) -> Workspace:
        return await self._workspaces.get(tenant, workspace_id)

    async def count_changes(self, workspace: Workspace) -> int | None:
        with self._tracer.start_as_current_span("workspace.count_changes") as span:
            span.set_attribute("fairlead.workspace.id", workspace.workspace_id)
            count = await self._workspaces.count_changes(workspace)
            if count is not None:
                span.set_attribute("fairlead.workspace.changed_files", count)
            return count

    async def list(self, tenant: str, *, size: int, after: str) -> tuple[list[Workspace], str]:
        return await self._workspaces.list(tenant, size=size, after=after)

    async def renew(self, tenant: str, workspace_id: str, lease: timedelta) -> Workspace:
        return await self._workspaces.renew(tenant, workspace_id, lease)

    async def release(
        self, tenant: str, *, workspace_id: str = "", idempotency_key: str = ""
    ) -> bool:
        with self._tracer.start_as_current_span("workspace.release") as span:
            span.set_attribute("fairlead.host.id", self._host_id)
            if workspace_id:
                span.set_attribute("fairlead.workspace.id", workspace_id)
            released = await self._workspaces.release(
                tenant, workspace_id=workspace_id, idempotency_key=idempotency_key
            )
            span.set_attribute("fairlead.workspace.released", released)
            return released


class TracedSnapshots:
    """Opens `snapshot.import` around an upload."""

    def __init__(self, *, snapshots: SnapshotOperations, tracer: Tracer, host_id: str) -> None:
        self._snapshots = snapshots
        self._tracer = tracer
        self._host_id = host_id

    async def receive(
        self, source: Source, tips: tuple[Tip, ...], chunks: AsyncIterator[bytes]
    ) -> Snapshot:
        with self._tracer.start_as_current_span("snapshot.import") as span:
            span.set_attribute("fairlead.host.id", self._host_id)
            span.set_attribute("fairlead.snapshot.tips", len(tips))
            snapshot = await self._snapshots.receive(source, tips, chunks)
            span.set_attribute("fairlead.snapshot.id", snapshot.snapshot_id)
            span.set_attribute("fairlead.snapshot.received_bytes", snapshot.received_bytes)
            return snapshot
