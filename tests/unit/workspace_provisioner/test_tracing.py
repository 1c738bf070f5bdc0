"""Spans and the counter: every reason for which a launch is not the warm one is counted once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chassis.errors import FairleadError
from chassis.limits import LimitBroken
from fairlead_limits.table import WORKSPACE_NAME
from workspace_provisioner.errors import HostFull, SnapshotIncomplete
from workspace_provisioner.sources import Source, Tip, checked_source
from workspace_provisioner.store_errors import StoreLocked
from workspace_provisioner.tracing import MissCounter, TracedSnapshots, TracedWorkspaces
from workspace_provisioner.workspace_errors import (
    BranchInUse,
    QuotaExceeded,
    WorkspaceExists,
)
from workspace_provisioner.workspaces import Miss, MissReason, Order, Rung, Snapshot, Workspace
from workspace_provisioner.workspaces import requested_workspace as requested

pytestmark = pytest.mark.asyncio
LEASE = timedelta(minutes=5)


def source(*noticed: str) -> Source:
    return checked_source(
        tenant="ada",
        project="p",
        object_format="",
        commit="a" * 40,
        branch="main",
        digest="",
        changes=None,
        noticed=noticed,
    )


WORKSPACE = requested(
    Order("wsp_" + "a" * 26, source(), "main", LEASE), datetime(2026, 11, 21, tzinfo=UTC)
)


class Workspaces:
    """Answers what it is told to."""

    def __init__(self) -> None:
        self.answer: Workspace | Miss | FairleadError = WORKSPACE
        self.notices: Callable[[], None] = lambda: None

    async def materialize(self, **asked: object) -> Workspace | Miss:
        self.notices()
        if isinstance(self.answer, FairleadError):
            raise self.answer
        return self.answer

    async def fork(self, tenant: str, workspace_id: str, **asked: object) -> Workspace:
        return await self.rename(tenant, workspace_id, "")

    async def rename(self, tenant: str, workspace_id: str, name: str) -> Workspace:
        found = await self.materialize()
        assert isinstance(found, Workspace)
        return found

    async def get(self, tenant: str, workspace_id: str) -> Workspace:
        return WORKSPACE

    async def count_changes(self, workspace: Workspace) -> int | None:
        return 3

    async def list(self, tenant: str, *, size: int, after: str) -> tuple[list[Workspace], str]:
        return [], ""

    async def renew(self, tenant: str, workspace_id: str, lease: timedelta) -> Workspace:
        return WORKSPACE

    async def release(self, tenant: str, **asked: object) -> bool:
        return True


class Uploads:
    """Refuses every upload."""

    def __init__(self) -> None:
        self.error: FairleadError = SnapshotIncomplete("a blob is not there")

    async def receive(
        self,
        source: Source,
        tips: tuple[Tip, ...],
        chunks: AsyncIterator[bytes],
        *,
        tips_only: bool = False,
    ) -> Snapshot:
        raise self.error


async def nothing() -> AsyncIterator[bytes]:
    chunks: tuple[bytes, ...] = ()
    for chunk in chunks:
        yield chunk


class Room:
    def __init__(self) -> None:
        self.workspaces = Workspaces()
        self._reader = InMemoryMetricReader()
        self._meters = MeterProvider(metric_readers=[self._reader], shutdown_on_exit=False)
        self._spans = InMemorySpanExporter()
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.misses = MissCounter(meter=self._meters.get_meter("room"))
        self.traced = TracedWorkspaces(
            workspaces=self.workspaces,
            misses=self.misses,
            tracer=tracers.get_tracer("room"),
            host_id="hst_x",
        )
        self.uploads = Uploads()
        self.traced_uploads = TracedSnapshots(
            snapshots=self.uploads,
            misses=self.misses,
            tracer=tracers.get_tracer("room"),
            host_id="hst_x",
        )

    def counted(self) -> dict[str, int]:
        found = self._reader.get_metrics_data()
        if found is None:
            return {}
        (metric,) = found.resource_metrics[0].scope_metrics[0].metrics
        assert metric.name == "fairlead.workspace.misses"
        counts: dict[str, int] = {}
        for point in metric.data.data_points:
            assert isinstance(point, NumberDataPoint)
            assert point.attributes is not None
            counts[str(point.attributes["reason"])] = int(point.value)
        return counts

    def told(self) -> list[object]:
        """The reasons that the last span tells."""
        events = [each for each in self.span().events if each.name == "workspace.missed"]
        return [(each.attributes or {})["fairlead.workspace.miss"] for each in events]

    def span(self) -> ReadableSpan:
        return self._spans.get_finished_spans()[-1]

    async def ask(self, *noticed: str) -> Workspace | Miss:
        return await self.traced.materialize(
            idempotency_key="k", source=source(*noticed), branch="", lease=LEASE
        )


ERRORS = (
    WorkspaceExists("n"),
    LimitBroken(WORKSPACE_NAME),
    BranchInUse("b"),
    StoreLocked(seconds=5),
    QuotaExceeded(3),
)
MISSES = (
    MissReason.NO_BASE,
    MissReason.UNKNOWN_COMMIT,
    MissReason.UNKNOWN_CHANGES,
    MissReason.REF_DRIFT,
    MissReason.SNAPSHOT_NOT_DURABLE,
    MissReason.MISSING_OBJECTS,
)
NOTICED = (
    MissReason.CLIENT_REFS_UNREADABLE,
    MissReason.CLIENT_OBJECTS_MISSING,
    MissReason.DIRTY_TOO_LARGE,
)


async def test_every_reason_is_counted_and_traced() -> None:
    room = Room()
    for miss in MISSES:
        room.workspaces.answer = Miss(miss, ())
        await room.ask()
        assert (room.span().attributes or {})["fairlead.workspace.miss"] == miss
    for error in ERRORS:
        room.workspaces.answer = error
        with pytest.raises(type(error)):
            await room.ask()
        (event,) = (e for e in room.span().events if e.name == "workspace.missed")
        assert (event.attributes or {})["fairlead.workspace.miss"] == error.reason
    room.workspaces.answer = WORKSPACE
    for noticed in NOTICED:
        await room.ask(noticed)
        assert room.told() == [noticed]
    room.workspaces.notices = lambda: room.misses.count(MissReason.FS_UNSUPPORTED)
    await room.ask()
    assert room.told() == [MissReason.FS_UNSUPPORTED]
    assert room.counted() == dict.fromkeys(MissReason, 1)


async def test_what_is_warm_or_no_miss_is_not_counted() -> None:
    room = Room()
    await room.ask()
    room.workspaces.answer = HostFull("it holds 1 already")
    with pytest.raises(HostFull):
        await room.ask()
    assert room.counted() == {}


async def test_spans_say_what_was_made() -> None:
    room = Room()
    await room.ask()
    assert room.span().name == "workspace.materialize"
    described = {
        "fairlead.host.id": "hst_x",
        "fairlead.workspace.id": WORKSPACE.workspace_id,
        "fairlead.workspace.rung": Rung.CHECKOUT,
    }
    assert dict(room.span().attributes or {}) == described | {"fairlead.workspace.dirty": False}
    await room.traced.fork(
        "ada",
        "wsp_source",
        idempotency_key="k",
        name="",
        branch="",
        lease=LEASE,
        overlay=False,
    )
    assert room.span().name == "workspace.fork"
    assert dict(room.span().attributes or {}) == described | {
        "fairlead.workspace.source_id": "wsp_source"
    }
    await room.traced.rename("ada", "wsp_x", "name")
    assert room.span().name == "workspace.rename"
    await room.traced.release("ada", workspace_id="wsp_x", checked=True)
    assert room.span().name == "workspace.release"
    assert (room.span().attributes or {})["fairlead.workspace.checked"] is True


async def test_objects_that_the_client_lacks_are_counted_when_its_upload_fails() -> None:
    room = Room()
    with pytest.raises(SnapshotIncomplete):
        await room.traced_uploads.receive(source(), (), nothing())
    assert room.counted() == {MissReason.CLIENT_OBJECTS_MISSING: 1}
    assert room.span().name == "snapshot.import"
    (event,) = (e for e in room.span().events if e.name == "workspace.missed")
    assert (event.attributes or {})["fairlead.workspace.miss"] == "client_objects_missing"
    # What the host has lost is no fault of the client's: the miss that follows is counted.
    assert isinstance(room.uploads.error, SnapshotIncomplete)
    room.uploads.error.is_lost_here = True
    with pytest.raises(SnapshotIncomplete):
        await room.traced_uploads.receive(source(), (), nothing())
    room.uploads.error = StoreLocked(seconds=5)
    with pytest.raises(StoreLocked):
        await room.traced_uploads.receive(source(), (), nothing())
    assert room.counted() == {MissReason.CLIENT_OBJECTS_MISSING: 1, MissReason.BASE_LOCKED: 1}
