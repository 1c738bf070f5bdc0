"""One launch from its first step to the release of what it held; one terminal event, whatever
happens.

A wish to end it (cancel, end of the lease) stops whatever is under way. When the process stops, a
run just stops too: nothing is undone, and `launch_recovery` goes on from the record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta

from chassis.clock import Clock
from chassis.errors import (
    DeadlineExceeded,
    FairleadError,
    Internal,
    NotFound,
    OutOfRange,
    Unavailable,
)
from signalling.execution import Execution, Exit, ExitReason, OutputFrame
from signalling.launch import (
    CancelReason,
    Failure,
    LaunchCancelled,
    LaunchExited,
    LaunchFailed,
    LaunchProvisioned,
    LaunchState,
    Step,
)
from signalling.launch_errors import HostLost
from signalling.launch_record import LaunchTimings
from signalling.launch_release import LaunchRelease, Own
from signalling.launch_request import LaunchRequest
from signalling.launch_steps import LaunchBroken, LaunchSteps, failure_of, first_of
from signalling.live_launch import LiveLaunch
from signalling.ports import NO_OUTPUT, Mesh
from signalling.uploads import Uploads

_log = logging.getLogger(__name__)

_HOST_LOST = HostLost().reason
RESTARTED = Failure(
    None,
    "signalling_restarted",
    "The front door was restarted before the launch's steps were done.",
    "Launch again.",
)


Following = AbstractAsyncContextManager[AsyncIterator[OutputFrame]]


class _LeaseOver(Exception):
    """The launch is to end because its lease has."""


class LaunchRun:
    """The run of one launch: `begin` or `resume` once, then `hold` if it still holds something."""

    def __init__(
        self,
        *,
        live: LiveLaunch,
        mesh: Mesh,
        uploads: Uploads,
        timings: LaunchTimings,
        clock: Clock,
        own: Own,
    ) -> None:
        self._live = live
        self._mesh = mesh
        self._timings = timings
        self._clock = clock
        self._steps = LaunchSteps(
            live=live, mesh=mesh, uploads=uploads, timings=timings, clock=clock
        )
        self._release = LaunchRelease(
            live=live, mesh=mesh, steps=self._steps, timings=timings, clock=clock, own=own
        )

    async def begin(self, request: LaunchRequest) -> None:
        """Carry a new launch out until it is over or only holds what it has."""
        await self._supervise(self._carry_out(request))

    async def hold(self) -> None:
        """Wait for the end of the lease, or the wish to end it, and release; nothing where nothing
        is held.
        """
        if self._live.launch.released_at is None:
            await self._supervise(self._until_lease_ends())

    async def resume(self) -> None:
        """Go on with a launch that a stopped process has left behind, as `begin` does."""
        self._assume_steps()
        launch = self._live.launch
        unanswered = self._live.record.has_channel and not launch.session_id
        match launch.state:
            case LaunchState.REQUESTED:
                await self._conclude(self._fail(RESTARTED))
            case LaunchState.RUNNING if unanswered:
                await self._conclude(self._fail(RESTARTED))
            case LaunchState.RUNNING:
                await self._supervise(self._see_through())
            case LaunchState.PROVISIONED:
                return
            case LaunchState.EXITED if launch.keep:
                return
            case _:
                await self._conclude(self._give_back())

    async def _carry_out(self, request: LaunchRequest) -> None:
        async with AsyncExitStack() as calls:
            frames = await self._steps.carry_out(request, calls)
            if frames is not None:
                await self._see_through(_rest(frames, calls))
                return
        lease = self._live.record.lease
        launch = self._live.launch.provisioned().renewed(self._clock.now() + lease)
        self._live.update(launch, LaunchProvisioned(launch))
        await self._set_leases(lease)

    async def _see_through(self, started: Following | None = None) -> None:
        """Wait for the command's end, tell it, and release or hold; `started` is the rest of the
        call that has just started it.
        """
        async with asyncio.TaskGroup() as group:
            renewing = group.create_task(self._keep_leases())
            try:
                exit_ = await self._wait_for_exit(started)
            finally:
                renewing.cancel()
        if exit_.reason is ExitReason.HOST_LOST:
            self._live.update(self._live.launch.stopped(exit_))
            raise self._host_lost()
        if exit_.reason is ExitReason.RELEASED:
            self._live.update(self._live.launch.stopped(exit_))
            raise _LeaseOver
        launch = self._live.launch
        changed, refused = await asyncio.gather(self._count_changes(), self._refused())
        now = self._clock.now()
        exited = launch.exited(exit_, now)
        if launch.keep:
            exited = exited.renewed(now + self._live.record.lease)
        kept = launch.keep or self._live.record.workspace_lent
        told = LaunchExited(exit_, changed, discarded=not kept and changed != 0, refused=refused)
        self._live.update(exited, told)
        if launch.keep:
            await self._set_leases(self._live.record.lease)
        else:
            await self._give_back()

    def _host_lost(self) -> LaunchBroken:
        kept = self._live.launch.keep or self._live.record.workspace_lent
        workspace_id = self._live.launch.workspace_id if kept else ""
        return LaunchBroken(failure_of(Step.EXECUTION, HostLost(workspace_id)))

    async def _wait_for_exit(self, started: Following | None) -> Exit:
        """Follow the execution across broken streams; raises LaunchBroken for a lost host."""
        pause, last_heard = self._timings.retry_pause, self._clock.monotonic()
        following, heard = started or self._follow(), started is not None
        while True:
            try:
                async with following as frames:
                    async for frame in frames:
                        heard = True
                        if isinstance(frame, Exit):
                            return frame
                        if isinstance(frame, Execution) and frame.exit is not None:
                            return frame.exit
            except NotFound as gone:
                raise self._host_lost() from gone
            except (Unavailable, DeadlineExceeded, Internal, OutOfRange) as away:
                _log.warning(
                    "execution cannot be followed",
                    extra={"launch_id": self._live.launch_id, "reason": away.reason},
                )
            now = self._clock.monotonic()
            if heard:
                last_heard, pause = now, self._timings.retry_pause
            elif now - last_heard > self._timings.host_lost_after:
                raise self._host_lost()
            await asyncio.sleep(pause)
            pause = min(pause * 2, self._timings.retry_pause_limit)
            following, heard = self._follow(), False

    def _follow(self) -> Following:
        return self._mesh.executions.watch(
            self._steps.host,
            tenant=self._live.tenant,
            execution_id=self._live.launch.execution_id,
            after=NO_OUTPUT,
        )

    async def _keep_leases(self) -> None:
        """Renew what the host holds as long as the command runs."""
        while True:
            lease = self._steps.working_lease
            await asyncio.sleep(lease.total_seconds() / 3)
            await self._set_leases(lease)
            self._live.update(self._live.launch.renewed(self._clock.now() + lease))

    async def renew(self, lease: timedelta) -> None:
        """Make `lease` the one in force, here and on the host; raises what the host refuses."""
        working = self._live.launch.state is LaunchState.RUNNING
        await self._ask_for(max(lease, self._steps.working_lease) if working else lease)
        self._live.hold_for(lease)

    async def _ask_for(self, lease: timedelta) -> None:
        """Make the host hold workspace and sandbox for `lease` and the grace."""
        launch, host = self._live.launch, self._steps.host
        asked = lease + timedelta(seconds=self._timings.lease_grace)
        async with asyncio.timeout(self._timings.release_timeout):
            await self._mesh.sandboxes.renew(
                host, tenant=self._live.tenant, sandbox_id=launch.sandbox_id, lease=asked
            )
            await self._steps.hold_workspace(launch.workspace_id, asked)

    async def _set_leases(self, lease: timedelta) -> None:
        try:
            await self._ask_for(lease)
        except (FairleadError, TimeoutError):
            _log.warning(
                "the host's leases were not set", extra={"launch_id": self._live.launch_id}
            )

    async def _until_lease_ends(self) -> None:
        while True:
            ends = self._live.launch.expires_at
            left = 0.0 if ends is None else (ends - self._clock.now()).total_seconds()
            if left <= 0:
                raise _LeaseOver
            try:
                async with asyncio.timeout(left):
                    await self._live.next_change()
            except TimeoutError:
                continue

    async def _count_changes(self) -> int | None:
        """Count the changed files, unless that would delay the news of the command's end."""
        try:
            async with asyncio.timeout(self._timings.count_patience):
                workspace = await self._mesh.workspaces.get(
                    self._steps.host,
                    tenant=self._live.tenant,
                    workspace_id=self._live.launch.workspace_id,
                    count_changes=True,
                )
                return workspace.changed_files
        except (FairleadError, TimeoutError):
            _log.warning("changes were not counted", extra={"launch_id": self._live.launch_id})
            return None

    async def _refused(self) -> tuple[str, ...]:
        """Return what an allow list would need for connections that the network has refused."""
        try:
            async with asyncio.timeout(self._timings.count_patience):
                found = await self._mesh.sandboxes.network(
                    self._steps.host,
                    tenant=self._live.tenant,
                    sandbox_id=self._live.launch.sandbox_id,
                )
                return found.unlisted
        except (FairleadError, TimeoutError):
            return ()

    async def _supervise(self, work: Coroutine[object, object, None]) -> None:
        """Run `work` until it is done or somebody wishes the end; then conclude."""
        working = asyncio.ensure_future(work)
        wish = asyncio.ensure_future(self._live.wait_for_end())
        try:
            await asyncio.wait((working, wish), return_when=asyncio.FIRST_COMPLETED)
            working.cancel()
            await asyncio.wait((working,))
        finally:
            working.cancel()
            wish.cancel()
            await asyncio.gather(working, wish, return_exceptions=True)
        if working.cancelled():
            await self._conclude(self._end(wish.result()))
            return
        match first_of(working.exception()):
            case None:
                return
            case LaunchBroken(failure=failure):
                await self._conclude(self._fail(failure))
            case _LeaseOver():
                await self._conclude(self._end(CancelReason.LEASE_EXPIRED))
            case Exception() as raised:
                await self._conclude(self._fail(failure_of(None, raised)))
            case fatal:
                raise fatal

    async def _conclude(self, ending: Coroutine[object, object, None]) -> None:
        """Await an ending; a fault in it still ends the launch for those who watch."""
        try:
            await ending
        except Exception as raised:
            failure, now = failure_of(None, raised), self._clock.now()
            if self._live.launch.state.terminal:
                self._live.update(self._live.launch.released(now))
            else:
                launch = self._live.launch.failed(failure, now).released(now)
                self._live.update(launch, LaunchFailed(failure))

    async def _fail(self, failure: Failure) -> None:
        if self._live.launch.state.terminal:
            await self._give_back()
            return
        # What was to be kept is not lost with the sandbox.
        keeps = failure.reason == _HOST_LOST and self._live.launch.keep
        await self._release.undo(but_workspace=keeps)
        if keeps:
            await self._keep_workspace()
        await self._note_exit()
        now = self._clock.now()
        launch = self._live.launch.failed(failure, now).released(now)
        self._live.update(launch, LaunchFailed(failure))

    async def _keep_workspace(self) -> None:
        try:
            async with asyncio.timeout(self._timings.release_timeout):
                lease = self._live.record.lease
                await self._steps.hold_workspace(self._live.launch.workspace_id, lease)
        except (FairleadError, TimeoutError):
            _log.warning("the lease was not set", extra={"launch_id": self._live.launch_id})

    async def _end(self, reason: CancelReason) -> None:
        if self._live.launch.state.terminal:
            await self._give_back()
            return
        await self._release.undo()
        await self._note_exit()
        now = self._clock.now()
        self._live.update(self._live.launch.cancelled(now).released(now), LaunchCancelled(reason))

    async def _give_back(self) -> None:
        await self._release.release()
        self._live.update(self._live.launch.released(self._clock.now()))

    async def _note_exit(self) -> None:
        """Learn how far the output of a command goes that was ended from outside."""
        launch = self._live.launch
        if launch.state is not LaunchState.RUNNING or launch.exit is not None:
            return
        try:
            async with asyncio.timeout(self._timings.note_timeout):
                execution = await self._mesh.executions.get(
                    self._steps.host, tenant=self._live.tenant, execution_id=launch.execution_id
                )
        except (FairleadError, TimeoutError):
            return
        if execution.exit is not None:
            self._live.update(launch.stopped(execution.exit))

    def _assume_steps(self) -> None:
        """Count every step that the lost process may have begun as begun."""
        record, now = self._live.record, self._clock.monotonic()
        self._steps.begun = {Step.WORKSPACE: now, Step.SANDBOX: now}
        if record.has_channel:
            self._steps.begun[Step.CHANNEL] = now
        if record.has_command and record.launch.execution_id:
            self._steps.begun[Step.EXECUTION] = now


@asynccontextmanager
async def _rest(
    frames: AsyncIterator[OutputFrame], calls: AsyncExitStack
) -> AsyncIterator[AsyncIterator[OutputFrame]]:
    """Open the rest of a call that is open in `calls`; leaving it ends the call."""
    async with calls:
        yield frames
