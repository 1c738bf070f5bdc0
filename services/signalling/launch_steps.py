"""The steps of a launch, at the same time where they can be: workspace, sandbox, channel, then the
command.

Every step is announced when it starts and when it has finished or failed. The first failure stops
the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

from chassis.clock import Clock
from chassis.errors import DeadlineExceeded, FairleadError, Internal, Unavailable
from signalling.execution import Command
from signalling.host import Host
from signalling.launch import (
    Failure,
    OfferAnswered,
    SnapshotMissed,
    Step,
    StepChanged,
    StepState,
)
from signalling.launch_errors import SnapshotIncomplete, StepTimeout
from signalling.launch_record import LaunchTimings
from signalling.launch_request import LaunchRequest
from signalling.live_launch import LiveLaunch
from signalling.ports import Mesh
from signalling.snapshot import Miss
from signalling.uploads import AwaitedUpload, Uploads
from signalling.workspace import Workspace, WorkspaceOrder

_log = logging.getLogger(__name__)


class LaunchBroken(Exception):
    """The launch cannot go on."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


def failure_of(step: Step | None, raised: Exception) -> Failure:
    """Return what a caller may know of an exception; what is not ours is only logged."""
    match raised:
        case FairleadError():
            error: FairleadError = raised
        case TimeoutError():
            error = StepTimeout(step or "launch")
        case _:
            _log.error("launch failed unexpectedly", exc_info=raised, extra={"step": step})
            error = Internal(
                "Something went wrong inside the front door.",
                reason="internal",
                remedy="Try again; the log of signalling has the details.",
            )
    return Failure(step, error.reason, error.message, error.remedy)


class LaunchSteps:
    """The steps of one launch; `begun` are those that may have taken effect, with their start."""

    def __init__(
        self,
        *,
        live: LiveLaunch,
        mesh: Mesh,
        uploads: Uploads,
        timings: LaunchTimings,
        clock: Clock,
    ) -> None:
        self._live = live
        self._mesh = mesh
        self._uploads = uploads
        self._timings = timings
        self._clock = clock
        self.begun: dict[Step, float] = {}
        self.failed: set[Step] = set()

    @property
    def host(self) -> Host:
        """Return the launch's host, with the addresses that it has now."""
        placed = self._live.record.host
        return self._mesh.hosts.find(placed.host_id) or placed

    @property
    def working_lease(self) -> timedelta:
        """Return what the host is asked for while the launch works."""
        least = timedelta(seconds=self._timings.working_lease)
        return max(self._live.record.lease, least)

    async def carry_out(self, request: LaunchRequest) -> None:
        """Do every step; raises LaunchBroken (in a group) as soon as one has failed and the others
        have stopped.
        """
        async with asyncio.TaskGroup() as group:
            if request.offer:
                group.create_task(self._channel(request.offer))
            workspace = group.create_task(self._workspace(request))
            sandbox = group.create_task(self._sandbox(request))
            await self._execution(await workspace, await sandbox, request.command)

    async def _workspace(self, request: LaunchRequest) -> str:
        with self._step(Step.WORKSPACE):
            order = WorkspaceOrder(
                key=self._live.launch_id,
                source=request.source,
                branch=request.workspace_branch,
                lease=self.working_lease,
                claim_branch=bool(request.branch),
            )
            made = await self._materialize(order)
            if isinstance(made, Miss):
                made = await self._upload(made, order)
            launch = self._live.launch.workspace_made(
                made.workspace_id, commit=made.commit, branch=made.branch
            )
            done = replace(
                self._done(Step.WORKSPACE, detail=made.rung),
                freshness=made.freshness,
                lfs_pointers=made.lfs_pointers,
                tags_left_out=made.tags_left_out,
            )
            self._live.update(launch, done)
            return made.workspace_id

    async def _materialize(self, order: WorkspaceOrder) -> Workspace | Miss:
        async with asyncio.timeout(self._timings.step_timeout):
            return await self._mesh.workspaces.materialize(
                self.host, tenant=self._live.tenant, order=order
            )

    async def _upload(self, miss: Miss, order: WorkspaceOrder) -> Workspace:
        """Ask for what is lacking and wait for the workspace that the upload leads to."""
        with self._uploads.expect(
            tenant=self._live.tenant,
            host=self.host,
            order=order,
        ) as awaited:
            self._live.tell(
                SnapshotMissed(
                    reason=miss.reason,
                    wanted=miss.wanted,
                    tips=miss.tips,
                    upload_token=awaited.token,
                    expires_at=awaited.expires_at,
                )
            )
            while True:
                made = await awaited.wait() or await self._made_all_the_same(awaited, order)
                if made is not None:
                    return made

    async def _made_all_the_same(
        self, awaited: AwaitedUpload, order: WorkspaceOrder
    ) -> Workspace | None:
        """Look whether the host can make the workspace after an upload that led to none: it says
        why not, or that objects are lacking still, which after a failed upload another may bring.
        """
        try:
            made = await self._materialize(order)
        except (Unavailable, DeadlineExceeded):
            if awaited.done.is_set():
                raise
            return None
        if isinstance(made, Workspace):
            return made
        if awaited.done.is_set():
            raise SnapshotIncomplete
        return None

    async def _sandbox(self, request: LaunchRequest) -> str:
        with self._step(Step.SANDBOX):
            async with asyncio.timeout(self._timings.step_timeout):
                made = await self._mesh.sandboxes.create(
                    self.host,
                    tenant=self._live.tenant,
                    key=self._live.launch_id,
                    isolation=request.isolation,
                    lease=self.working_lease,
                )
            launch = self._live.launch.sandbox_made(made.sandbox_id, made.isolation)
            self._live.update(launch, self._done(Step.SANDBOX, detail=made.isolation))
            return made.sandbox_id

    async def _channel(self, offer: str) -> None:
        with self._step(Step.CHANNEL):
            async with asyncio.timeout(self._timings.channel_timeout):
                session_id, answer = await self._mesh.channels.answer(
                    self._live.tenant, self._live.launch_id, offer
                )
            self._live.update(
                self._live.launch.session_opened(session_id),
                self._done(Step.CHANNEL),
                OfferAnswered(session_id, answer),
            )

    async def _execution(self, workspace_id: str, sandbox_id: str, command: Command | None) -> None:
        """Join the two and start the command; without one, joining belongs to the sandbox."""
        if command is None:
            with self._step(Step.SANDBOX, announce=False):
                await self._bind(workspace_id, sandbox_id)
            return
        with self._step(Step.EXECUTION):
            await self._bind(workspace_id, sandbox_id)
            async with asyncio.timeout(self._timings.step_timeout):
                execution = await self._mesh.executions.start(
                    self.host,
                    tenant=self._live.tenant,
                    key=self._live.launch_id,
                    sandbox_id=sandbox_id,
                    command=command,
                )
            self._live.update(
                self._live.launch.started(execution.execution_id), self._done(Step.EXECUTION)
            )

    async def _bind(self, workspace_id: str, sandbox_id: str) -> None:
        async with asyncio.timeout(self._timings.step_timeout):
            await self._mesh.sandboxes.bind(
                self.host,
                tenant=self._live.tenant,
                sandbox_id=sandbox_id,
                workspace_id=workspace_id,
            )

    @contextmanager
    def _step(self, step: Step, *, announce: bool = True) -> Iterator[None]:
        """Announce a step's start and failure; what fails inside it leaves as LaunchBroken."""
        if announce:
            self.begun[step] = self._clock.monotonic()
            self._live.tell(StepChanged(step, StepState.STARTED))
        try:
            yield
        except Exception as raised:
            failure = failure_of(step, raised)
            self.failed.add(step)
            elapsed = self._clock.monotonic() - self.begun[step]
            self._live.tell(StepChanged(step, StepState.FAILED, elapsed, failure))
            raise LaunchBroken(failure) from raised

    def _done(self, step: Step, *, detail: str = "") -> StepChanged:
        elapsed = self._clock.monotonic() - self.begun[step]
        return StepChanged(step, StepState.DONE, elapsed, detail=detail)


def first_of(raised: BaseException | None) -> BaseException | None:
    """Return what broke first: a task group lists its exceptions in order."""
    while isinstance(raised, BaseExceptionGroup):
        raised = raised.exceptions[0]
    return raised
