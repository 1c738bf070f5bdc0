"""The steps of a launch, at the same time where they can be: workspace, sandbox, channel, then the
command.

Every step is announced when it starts and when it has finished or failed. The first failure stops
the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta

from chassis.clock import Clock
from chassis.errors import DeadlineExceeded, FairleadError, Internal, Unavailable
from signalling.execution import Command, OutputFrame
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
from signalling.ports import NO_OUTPUT, Mesh
from signalling.sandbox import Sandbox, SandboxOrder
from signalling.snapshot import Miss, Source
from signalling.uploads import AwaitedUpload, Uploads
from signalling.workspace import Workspace, WorkspaceOrder, WorkspaceState
from signalling.workspace_errors import WorkspaceNotFound

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

    async def carry_out(
        self, request: LaunchRequest, calls: AsyncExitStack
    ) -> AsyncIterator[OutputFrame] | None:
        """Do every step; return what tells the command's exit, open in `calls`, if there is a
        command.

        Raises LaunchBroken (in a group) as soon as one has failed and the others have stopped.
        """
        async with asyncio.TaskGroup() as group:
            if request.offer:
                group.create_task(self._channel(request.offer))
            if request.source is None:
                workspace = group.create_task(self._lent_workspace(request.workspace_id))
            else:
                workspace = group.create_task(self._workspace(request, request.source))
            sandbox = group.create_task(self._sandbox(request))
            return await self._execution(await workspace, await sandbox, request.command, calls)

    async def _lent_workspace(self, workspace_id: str) -> str:
        """Look at a workspace that is there already, and hold it as long as the launch works."""
        with self._step(Step.WORKSPACE):
            async with asyncio.timeout(self._timings.step_timeout):
                found = await self.hold_workspace(workspace_id, self.working_lease)
            launch = self._live.launch.workspace_made(
                workspace_id, commit=found.commit, branch=found.branch
            )
            self._live.update(launch, self._done(Step.WORKSPACE, detail="there already"))
            return workspace_id

    async def hold_workspace(self, workspace_id: str, lease: timedelta) -> Workspace:
        """Have a workspace held for `lease`; one that is lent is held for longer as it may be."""
        host, tenant = self.host, self._live.tenant
        if self._live.record.workspace_lent:
            found = await self._mesh.workspaces.get(host, tenant=tenant, workspace_id=workspace_id)
            if found.state is WorkspaceState.RELEASED:
                raise WorkspaceNotFound(workspace_id)
            if found.expires_at >= self._clock.now() + lease:
                return found
        return await self._mesh.workspaces.renew(
            host, tenant=tenant, workspace_id=workspace_id, lease=lease
        )

    async def _workspace(self, request: LaunchRequest, source: Source) -> str:
        with self._step(Step.WORKSPACE):
            order = WorkspaceOrder(
                key=self._live.launch_id,
                source=source,
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
                    order=SandboxOrder(
                        key=self._live.launch_id,
                        isolation=request.isolation,
                        profile=request.profile,
                        limits=request.limits,
                        network=request.network,
                        lease=self.working_lease,
                        launch_id=self._live.launch_id,
                    ),
                )
            launch = self._live.launch.sandbox_made(made.sandbox_id, made.isolation)
            done = replace(self._done(Step.SANDBOX, detail=_described(made)), sandbox=made)
            self._live.update(launch, done)
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

    async def _execution(
        self,
        workspace_id: str,
        sandbox_id: str,
        command: Command | None,
        calls: AsyncExitStack,
    ) -> AsyncIterator[OutputFrame] | None:
        """Join the two and start the command; without one, joining belongs to the sandbox."""
        if command is None:
            with self._step(Step.SANDBOX, announce=False):
                await self._bind(workspace_id, sandbox_id)
            return None
        with self._step(Step.EXECUTION):
            await self._bind(workspace_id, sandbox_id)
            async with asyncio.timeout(self._timings.step_timeout):
                running = self._mesh.executions.run(
                    self.host,
                    tenant=self._live.tenant,
                    key=self._live.launch_id,
                    sandbox_id=sandbox_id,
                    command=command,
                    after=NO_OUTPUT,
                )
                execution, frames = await calls.enter_async_context(running)
            self._live.update(
                self._live.launch.started(execution.execution_id), self._done(Step.EXECUTION)
            )
            return frames

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


def _described(sandbox: Sandbox) -> str:
    """Name the isolation, and say where programs are root on the host."""
    stays_root = any(wall.name == "unprivileged" and not wall.stands for wall in sandbox.walls)
    return f"{sandbox.isolation}, as root" if stays_root else sandbox.isolation


def first_of(raised: BaseException | None) -> BaseException | None:
    """Return what broke first: a task group lists its exceptions in order."""
    while isinstance(raised, BaseExceptionGroup):
        raised = raised.exceptions[0]
    return raised
