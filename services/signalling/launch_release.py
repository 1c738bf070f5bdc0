"""Gives back what a launch holds: bounded attempts, sandbox before workspace, channels beside them.

A release goes by the launch's key, so it reaches what is still being made. What cannot be confirmed
is tried again behind the launch's back, for as long as a room may take to come back; after that the
host reclaims it when its lease ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine

from chassis.clock import Clock
from chassis.errors import FairleadError
from signalling.launch import Step, StepChanged, StepState
from signalling.launch_record import LaunchTimings
from signalling.launch_steps import LaunchSteps
from signalling.live_launch import LiveLaunch
from signalling.ports import Mesh

_log = logging.getLogger(__name__)
_UNCONFIRMED = "not confirmed; it is tried again, and ends with its lease at the latest"

Own = Callable[[Coroutine[object, object, None]], None]
"""Runs work on nobody's time but the process's."""


class LaunchRelease:
    """The way back of one launch."""

    def __init__(
        self,
        *,
        live: LiveLaunch,
        mesh: Mesh,
        steps: LaunchSteps,
        timings: LaunchTimings,
        clock: Clock,
        own: Own,
    ) -> None:
        self._live = live
        self._mesh = mesh
        self._steps = steps
        self._timings = timings
        self._clock = clock
        self._own = own

    async def release(self) -> None:
        """Give everything back."""
        await self._give_back(announce=False)

    async def undo(self, *, but_workspace: bool = False) -> None:
        """Give everything back that a step made or was making, and announce each."""
        await self._give_back(announce=True, but_workspace=but_workspace)

    async def _give_back(self, *, announce: bool, but_workspace: bool = False) -> None:
        async with asyncio.TaskGroup() as group:
            # Also without an offer: a client may have opened sessions while the launch was held.
            group.create_task(self._close_channel(announce=announce))
            group.create_task(self._release_host(announce=announce, but_workspace=but_workspace))

    async def _close_channel(self, *, announce: bool) -> None:
        began = self._clock.monotonic()
        confirmed = await self._surely(
            Step.CHANNEL, lambda: self._mesh.channels.close_launch(self._live.launch_id)
        )
        if announce:
            self._undone(Step.CHANNEL, began, confirmed=confirmed)

    async def _release_host(self, *, announce: bool, but_workspace: bool) -> None:
        tenant, key = self._live.tenant, self._live.launch_id
        began = self._clock.monotonic()
        confirmed = await self._surely(
            Step.SANDBOX,
            lambda: self._mesh.sandboxes.release(self._steps.host, tenant=tenant, key=key),
        )
        if announce:
            self._undone(Step.EXECUTION, began, confirmed=confirmed)
            self._undone(Step.SANDBOX, began, confirmed=confirmed)
        if self._live.record.workspace_lent or but_workspace:
            return
        began = self._clock.monotonic()
        confirmed = await self._surely(
            Step.WORKSPACE,
            lambda: self._mesh.workspaces.release(self._steps.host, tenant=tenant, key=key),
        )
        if announce:
            self._undone(Step.WORKSPACE, began, confirmed=confirmed)

    async def _surely(self, step: Step, call: Callable[[], Awaitable[object]]) -> bool:
        """Try a few times; say whether it was confirmed. What was not goes on being tried."""
        pause = self._timings.retry_pause
        for attempt in range(1, self._timings.release_attempts + 1):
            if await self._confirmed(step, call):
                return True
            if attempt < self._timings.release_attempts:
                await asyncio.sleep(pause)
                pause = min(pause * 2, self._timings.retry_pause_limit)
        self._own(self._insist(step, call))
        return False

    async def _insist(self, step: Step, call: Callable[[], Awaitable[object]]) -> None:
        """Go on trying until the release is confirmed, or its time is over."""
        ends = self._clock.monotonic() + self._timings.release_later
        while self._clock.monotonic() < ends:
            await asyncio.sleep(self._timings.retry_pause_limit)
            if await self._confirmed(step, call):
                return

    async def _confirmed(self, step: Step, call: Callable[[], Awaitable[object]]) -> bool:
        try:
            async with asyncio.timeout(self._timings.release_timeout):
                await call()
            return True
        except (FairleadError, TimeoutError) as error:
            _log.warning(
                "release failed",
                extra={
                    "launch_id": self._live.launch_id,
                    "step": step.value,
                    "reason": error.reason if isinstance(error, FairleadError) else "timeout",
                },
            )
        except Exception:
            _log.exception("release failed unexpectedly", extra={"step": step.value})
        return False

    def _undone(self, step: Step, began: float, *, confirmed: bool) -> None:
        if step not in self._steps.begun or step in self._steps.failed:
            return
        self._live.tell(
            StepChanged(
                step,
                StepState.UNDONE,
                self._clock.monotonic() - began,
                detail="" if confirmed else _UNCONFIRMED,
            )
        )
