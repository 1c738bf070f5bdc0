"""Launches from the caller's side: start, watch, get, list, cancel, renew, trace."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Sequence
from datetime import timedelta
from typing import Protocol

from chassis.clock import Clock
from chassis.errors import FairleadError
from chassis.ids import derived_id, random_id
from signalling.host import Host
from signalling.launch import CancelReason, Launch, LaunchEvent, LaunchState
from signalling.launch_errors import (
    Draining,
    IdempotencyConflict,
    LaunchElsewhere,
    LaunchNotFound,
    LaunchNotHeld,
)
from signalling.launch_mirror import LaunchMirror
from signalling.launch_record import LaunchRecord, LaunchTimings
from signalling.launch_request import (
    DEFAULT_LEASE,
    LaunchRequest,
    check_key,
    check_lease,
    check_request,
)
from signalling.launch_runs import LaunchRuns
from signalling.launch_watcher import LaunchWatcher
from signalling.launches import Launches
from signalling.live_launch import LiveLaunch
from signalling.placement import Placement
from signalling.ports import Hosts, LaunchSpans, LaunchStore, RunSpan, Span, SpanStore
from signalling.snapshot import Source
from signalling.workspace import Workspace, WorkspaceState
from signalling.workspace_errors import HostAway, WorkspaceNotFound


class LentWorkspaces(Protocol):
    """The workspaces that launches may work in without making them."""

    async def get(self, tenant: str, workspace_id: str) -> Workspace:
        """Return a workspace; raises WorkspaceNotFound."""
        ...


class Launcher:
    """Every call raises FairleadError; unknown and foreign launches are LaunchNotFound."""

    def __init__(
        self,
        *,
        launches: Launches,
        runs: LaunchRuns,
        mirror: LaunchMirror,
        store: LaunchStore,
        watcher: LaunchWatcher,
        placement: Placement,
        workspaces: LentWorkspaces,
        hosts: Hosts,
        spans: LaunchSpans,
        span_store: SpanStore,
        timings: LaunchTimings,
        clock: Clock,
        replica: str,
        id_key: bytes,
    ) -> None:
        self._launches = launches
        self._runs = runs
        self._mirror = mirror
        self._store = store
        self._watcher = watcher
        self._placement = placement
        self._workspaces = workspaces
        self._hosts = hosts
        self._spans = spans
        self._span_store = span_store
        self._timings = timings
        self._clock = clock
        self._replica = replica
        self._id_key = id_key
        self._began = clock.now()
        self._draining = False
        self._starting: dict[str, tuple[str, asyncio.Future[Launch]]] = {}
        self._reserved: Counter[str] = Counter()

    async def start(self, tenant: str, request: LaunchRequest, key: str | None) -> Launch:
        """Accept a launch, or return the one that `key` has already started.

        Raises InvalidRequest, SdpInvalid, IdempotencyConflict, NoHost, IsolationUnavailable,
        Draining and what the store raises; then nothing is left of it. A caller that goes away
        stops nothing.
        """
        if key:
            check_key(key)
        check_request(request)
        launch_id = (
            derived_id("lch", tenant, "launch", key, key=self._id_key) if key else random_id("lch")
        )
        fingerprint = request.fingerprint()
        live = self._launches.live(tenant, launch_id)
        if live is not None:
            return _same(live.record, fingerprint)
        if launch_id not in self._starting:
            if self._draining:
                raise Draining
            accepted = asyncio.get_running_loop().create_future()
            self._starting[launch_id] = (fingerprint, accepted)
            self._runs.own(self._launch(tenant, launch_id, request, fingerprint, accepted))
        begun, accepted = self._starting[launch_id]
        if begun != fingerprint:
            raise IdempotencyConflict(launch_id)
        return await asyncio.shield(accepted)

    def watch(
        self, tenant: str, launch_id: str, cursor: str | None
    ) -> AsyncGenerator[LaunchEvent, None]:
        """Stream a launch's events; see `LaunchWatcher.watch`. Close it (`aclosing`) when it is
        left early.
        """
        return self._watcher.watch(tenant, launch_id, cursor)

    async def get(self, tenant: str, launch_id: str) -> Launch:
        """Return a launch."""
        return await self._launches.get(tenant, launch_id)

    async def list(
        self, tenant: str, page_size: int, page_token: str
    ) -> tuple[Sequence[Launch], str]:
        """Return a page of launches, newest first, and the token of the next one; page size 0 means
        50.
        """
        return await self._launches.page(tenant, page_size, page_token)

    async def cancel(self, tenant: str, launch_id: str) -> Launch:
        """End a launch in any state; return it when everything that it held is released."""
        record = await self._launches.record(tenant, launch_id)
        if record.launch.finished:
            return record.launch
        live = await self._mine(record)
        live.end(CancelReason.REQUESTED)
        return await live.until(lambda launch: launch.finished)

    async def renew(self, tenant: str, launch_id: str, lease: timedelta | None) -> Launch:
        """Move the end of the lease to `lease` from now; raises LaunchNotHeld, and what the host
        refuses.
        """
        wanted = DEFAULT_LEASE if lease is None else lease
        check_lease(wanted)
        record = await self._launches.record(tenant, launch_id)
        if not record.launch.held:
            raise LaunchNotHeld(launch_id)
        live = await self._mine(record)
        await self._runs.renew(live, wanted)
        return live.launch

    async def trace(self, tenant: str, launch_id: str) -> tuple[str, Sequence[Span]]:
        """Return a launch's trace id and its spans; raises TraceStoreAbsent and
        TraceStoreUnavailable.
        """
        launch = await self._launches.get(tenant, launch_id)
        return launch.trace_id, await self._span_store.spans(launch.trace_id)

    async def drain(self) -> None:
        """Take no new launches and end the watchers' streams; what runs goes on until the process
        stops.
        """
        self._draining = True
        self._watcher.drain()

    async def _mine(self, record: LaunchRecord) -> LiveLaunch:
        """Return the live launch of a record; one that this replica left behind is adopted."""
        live = self._launches.live(record.tenant, record.launch_id)
        if live is not None:
            return live
        if record.owner != self._replica:
            raise LaunchElsewhere(record.launch_id)
        current = await self._store.get(record.tenant, record.launch_id)
        if current is None:
            raise LaunchNotFound(record.launch_id)
        return await self._runs.adopt(current)

    async def _launch(
        self,
        tenant: str,
        launch_id: str,
        request: LaunchRequest,
        fingerprint: str,
        accepted: asyncio.Future[Launch],
    ) -> None:
        """Accept and run one launch inside its span; what it holds afterwards it holds outside of
        it.
        """
        live = None
        try:
            with self._spans.launch(tenant, launch_id) as span:
                live = await self._answer(
                    accepted,
                    self._accept(tenant, launch_id, request, fingerprint, span),
                )
                del self._starting[launch_id]
                if live is None:
                    return
                run = self._runs.open(live)
                self._reserved[live.record.host.host_id] += 1
                try:
                    await run.begin(request)
                finally:
                    self._reserved[live.record.host.host_id] -= 1
                    span.tell(live.launch)
            await run.hold()
        finally:
            self._starting.pop(launch_id, None)
            if live is not None:
                self._runs.close(live)

    async def _answer(
        self,
        accepted: asyncio.Future[Launch],
        accepting: Coroutine[object, object, tuple[Launch, LiveLaunch | None]],
    ) -> LiveLaunch | None:
        """Tell whoever started the launch whether it is accepted; return it if it is to be run
        here.
        """
        try:
            launch, live = await accepting
        except asyncio.CancelledError:
            accepted.set_exception(Draining())
            raise
        except Exception as refused:
            accepted.set_exception(refused)
            live = None
        else:
            accepted.set_result(launch)
        finally:
            accepted.exception()
        return live

    async def _accept(
        self,
        tenant: str,
        launch_id: str,
        request: LaunchRequest,
        fingerprint: str,
        span: RunSpan,
    ) -> tuple[Launch, LiveLaunch | None]:
        """Place and record a launch; without a live one where somebody else runs it already."""
        try:
            host, source = await self._place(tenant, request)
        except FairleadError:
            known = await self._store.get(tenant, launch_id)
            if known is None:
                raise
            return await self._attach(known, fingerprint), None
        now = self._clock.now()
        working = max(request.held_for, timedelta(seconds=self._timings.working_lease))
        record = LaunchRecord(
            tenant=tenant,
            owner=self._replica,
            fingerprint=fingerprint,
            host=host,
            lease=request.held_for,
            has_command=request.command is not None,
            has_channel=bool(request.offer),
            workspace_lent=bool(request.workspace_id),
            traceparent=span.traceparent,
            launch=Launch(
                launch_id=launch_id,
                state=LaunchState.REQUESTED,
                created_at=now,
                project=source.project,
                commit=source.commit,
                branch=request.workspace_branch or source.branch,
                arguments=() if request.command is None else request.command.arguments,
                keep=request.keep,
                trace_id=span.trace_id,
                expires_at=now + working,
                host_id=host.host_id,
            ),
        )
        try:
            known = await self._store.create(record)
        except FairleadError:
            self._mirror.doubt(record)
            raise
        self._mirror.trust(launch_id)
        if known is None:
            live = self._runs.make_live(record)
            return live.launch, live
        if known.fingerprint == fingerprint and self._never_run(known):
            live = self._runs.make_live(known)
            return live.launch, live
        return await self._attach(known, fingerprint), None

    async def _place(self, tenant: str, request: LaunchRequest) -> tuple[Host, Source | Workspace]:
        """Return the host of a launch, and what it works on: of a workspace it is where that is."""
        if request.source is not None:
            host = await self._placement.place(
                tenant,
                request.source,
                request.isolation,
                self._reserved,
                profile=request.profile,
            )
            return host, request.source
        workspace = await self._workspaces.get(tenant, request.workspace_id)
        if workspace.state is not WorkspaceState.PROVISIONED:
            raise WorkspaceNotFound(request.workspace_id)
        found = self._hosts.find(workspace.host_id)
        if found is None:
            raise HostAway
        return found, workspace

    def _never_run(self, known: LaunchRecord) -> bool:
        """Say whether an earlier try of this process created the record without learning that it
        did.
        """
        return (
            known.owner == self._replica
            and known.version == 1
            and known.launch.state is LaunchState.REQUESTED
            and known.launch.created_at >= self._began
            and self._mirror.live(known.launch_id) is None
        )

    async def _attach(self, known: LaunchRecord, fingerprint: str) -> Launch:
        launch = _same(known, fingerprint)
        if known.owner == self._replica and not launch.finished:
            return (await self._mine(known)).launch
        return launch


def _same(record: LaunchRecord, fingerprint: str) -> Launch:
    """Return the launch of a record if it was started by the same request."""
    if record.fingerprint != fingerprint:
        raise IdempotencyConflict(record.launch_id)
    return record.launch
