"""The spans and the counter of this room; the only file that names them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta

from opentelemetry.metrics import Meter
from opentelemetry.trace import Span, Tracer, get_current_span

from chassis.errors import FairleadError
from workspace_provisioner.errors import SnapshotIncomplete
from workspace_provisioner.operations import SnapshotOperations, WorkspaceOperations
from workspace_provisioner.sources import Source, Tip
from workspace_provisioner.workspaces import Miss, MissReason, Snapshot, Workspace

_REASONS = frozenset(str(reason) for reason in MissReason)


class MissCounter:
    """Counts why launches were not warm ones, by reason, and notes it on the span that is open."""

    def __init__(self, *, meter: Meter) -> None:
        self._misses = meter.create_counter(
            "fairlead.workspace.misses", description="Launches that were not warm, by reason."
        )

    def count(self, reason: str) -> None:
        """Count a reason; one that is no MissReason is left out."""
        if reason not in _REASONS:
            return
        self._misses.add(1, {"reason": str(reason)})
        get_current_span().add_event("workspace.missed", {"fairlead.workspace.miss": str(reason)})


class TracedWorkspaces:
    """Opens a span around each operation that takes its time, and counts misses."""

    def __init__(
        self,
        *,
        workspaces: WorkspaceOperations,
        misses: MissCounter,
        tracer: Tracer,
        host_id: str,
    ) -> None:
        self._workspaces = workspaces
        self._misses = misses
        self._tracer = tracer
        self._host_id = host_id

    @contextmanager
    def _span(self, name: str) -> Iterator[Span]:
        with self._tracer.start_as_current_span(name) as span:
            span.set_attribute("fairlead.host.id", self._host_id)
            try:
                yield span
            except FairleadError as error:
                self._misses.count(error.reason)
                raise

    async def materialize(
        self,
        *,
        idempotency_key: str,
        source: Source,
        branch: str,
        lease: timedelta,
        name: str = "",
        claims_branch: bool = False,
        overlay: bool = False,
    ) -> Workspace | Miss:
        with self._span("workspace.materialize") as span:
            span.set_attribute("fairlead.workspace.dirty", source.changes is not None)
            for reason in source.noticed:
                self._misses.count(reason)
            outcome = await self._workspaces.materialize(
                idempotency_key=idempotency_key,
                source=source,
                branch=branch,
                lease=lease,
                name=name,
                claims_branch=claims_branch,
                overlay=overlay,
            )
            if isinstance(outcome, Miss):
                span.set_attribute("fairlead.workspace.miss", outcome.reason)
                self._misses.count(outcome.reason)
            else:
                _describe(span, outcome)
            return outcome

    async def fork(
        self,
        tenant: str,
        workspace_id: str,
        *,
        idempotency_key: str,
        name: str,
        branch: str,
        lease: timedelta,
        overlay: bool,
    ) -> Workspace:
        with self._span("workspace.fork") as span:
            span.set_attribute("fairlead.workspace.source_id", workspace_id)
            made = await self._workspaces.fork(
                tenant,
                workspace_id,
                idempotency_key=idempotency_key,
                name=name,
                branch=branch,
                lease=lease,
                overlay=overlay,
            )
            _describe(span, made)
            return made

    async def rename(self, tenant: str, workspace_id: str, name: str) -> Workspace:
        with self._span("workspace.rename") as span:
            span.set_attribute("fairlead.workspace.id", workspace_id)
            return await self._workspaces.rename(tenant, workspace_id, name)

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
        self,
        tenant: str,
        *,
        workspace_id: str = "",
        idempotency_key: str = "",
        checked: bool = False,
    ) -> bool:
        with self._span("workspace.release") as span:
            if workspace_id:
                span.set_attribute("fairlead.workspace.id", workspace_id)
            span.set_attribute("fairlead.workspace.checked", checked)
            released = await self._workspaces.release(
                tenant,
                workspace_id=workspace_id,
                idempotency_key=idempotency_key,
                checked=checked,
            )
            span.set_attribute("fairlead.workspace.released", released)
            return released


class TracedSnapshots:
    """Opens `snapshot.import` around an upload, and counts why one was refused."""

    def __init__(
        self,
        *,
        snapshots: SnapshotOperations,
        misses: MissCounter,
        tracer: Tracer,
        host_id: str,
    ) -> None:
        self._snapshots = snapshots
        self._misses = misses
        self._tracer = tracer
        self._host_id = host_id

    async def receive(
        self,
        source: Source,
        tips: tuple[Tip, ...],
        chunks: AsyncIterator[bytes],
        *,
        tips_only: bool = False,
    ) -> Snapshot:
        with self._tracer.start_as_current_span("snapshot.import") as span:
            span.set_attribute("fairlead.host.id", self._host_id)
            span.set_attribute("fairlead.snapshot.tips", len(tips))
            span.set_attribute("fairlead.snapshot.tips_only", tips_only)
            try:
                snapshot = await self._snapshots.receive(source, tips, chunks, tips_only=tips_only)
            except SnapshotIncomplete as error:
                if not error.is_lost_here:  # else the miss that follows is counted
                    self._misses.count(MissReason.CLIENT_OBJECTS_MISSING)
                raise
            except FairleadError as error:
                self._misses.count(error.reason)
                raise
            span.set_attribute("fairlead.snapshot.id", snapshot.snapshot_id)
            span.set_attribute("fairlead.snapshot.received_bytes", snapshot.received_bytes)
            return snapshot


def _describe(span: Span, workspace: Workspace) -> None:
    span.set_attribute("fairlead.workspace.id", workspace.workspace_id)
    span.set_attribute("fairlead.workspace.rung", workspace.rung)
    if workspace.freshness is not None:
        span.set_attribute("fairlead.workspace.fallback", workspace.freshness.fallback)
        if workspace.freshness.reason:
            span.set_attribute("fairlead.workspace.fallback_reason", workspace.freshness.reason)
