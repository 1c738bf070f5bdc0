"""Owns the runs of this replica's launches, and takes over those that it left behind when it was
stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from datetime import timedelta

from chassis.clock import Clock
from chassis.errors import FairleadError, NotFound
from signalling.launch_errors import LaunchNotHeld
from signalling.launch_mirror import LaunchMirror
from signalling.launch_record import LaunchRecord, LaunchTimings
from signalling.launch_run import LaunchRun
from signalling.live_launch import LiveLaunch
from signalling.ports import EventLog, LaunchStore, Mesh
from signalling.uploads import Uploads

_log = logging.getLogger(__name__)


class LaunchRuns:
    """The tasks of launches; leaving the context stops every run without undoing anything."""

    def __init__(
        self,
        *,
        mirror: LaunchMirror,
        store: LaunchStore,
        log: EventLog,
        mesh: Mesh,
        uploads: Uploads,
        timings: LaunchTimings,
        clock: Clock,
        replica: str,
    ) -> None:
        self._mirror = mirror
        self._store = store
        self._events = log
        self._mesh = mesh
        self._uploads = uploads
        self._timings = timings
        self._clock = clock
        self._replica = replica
        self._runs: dict[str, LaunchRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> LaunchRuns:
        return self

    async def __aexit__(self, *failure: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def own(self, work: Coroutine[object, object, None]) -> None:
        """Run `work` on nobody's time but the process's."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def make_live(self, record: LaunchRecord) -> LiveLaunch:
        """Take a launch whose record has just been created into memory."""
        live = LiveLaunch(record=record, clock=self._clock, changed=self._mirror.changed)
        self._mirror.follow(live)
        return live

    def open(self, live: LiveLaunch) -> LaunchRun:
        """Make the run of a launch, to be ended with `close`."""
        run = LaunchRun(
            live=live,
            mesh=self._mesh,
            uploads=self._uploads,
            timings=self._timings,
            clock=self._clock,
            own=self.own,
        )
        self._runs[live.launch_id] = run
        return run

    def close(self, live: LiveLaunch) -> None:
        """Forget the run of a launch."""
        self._runs.pop(live.launch_id, None)

    async def renew(self, live: LiveLaunch, lease: timedelta) -> None:
        """Renew what a launch holds; raises LaunchNotHeld, and what the host refuses."""
        run = self._runs.get(live.launch_id)
        if run is None or not live.launch.held:
            raise LaunchNotHeld(live.launch_id)
        try:
            await run.renew(lease)
        except NotFound as gone:
            raise LaunchNotHeld(live.launch_id) from gone

    async def adopt(self, record: LaunchRecord) -> LiveLaunch:
        """Go on with a launch that nobody runs, from its record; once, however often it is asked
        for.
        """
        events = await self._events.after(record.launch_id, 0, wait=0)
        known = self._mirror.live(record.launch_id)
        if known is not None:
            return known
        live = LiveLaunch(
            record=record, events=events, clock=self._clock, changed=self._mirror.changed
        )
        if not record.launch.state.terminal:
            live.skip_numbers()
        self._mirror.follow(live)
        _log.info(
            "launch recovered",
            extra={"launch_id": live.launch_id, "state": record.launch.state.value},
        )
        self.own(self._resume(live))
        return live

    async def recover(self) -> None:
        """Adopt what this replica owned when it stopped; tries until the store is there."""
        while True:
            try:
                for record in await self._store.owned(self._replica):
                    if self._mirror.live(record.launch_id) is None:
                        await self.adopt(record)
                return
            except FairleadError:
                _log.warning("launches are not recovered yet: the store is away")
                await asyncio.sleep(self._timings.retry_pause_limit)

    async def _resume(self, live: LiveLaunch) -> None:
        run = self.open(live)
        try:
            await run.resume()
            await run.hold()
        finally:
            self.close(live)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("launch run ended in a fault", exc_info=error)
