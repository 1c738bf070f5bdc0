"""A watcher's stream: the launch as it is, then control events and output merged, then exactly one
terminal event.

Control events come from memory or the store, output from the worker's journal. The cursor counts
both, so a watcher that comes back gets every event and every record exactly once; the terminal
event comes after all output.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from chassis.clock import Clock
from signalling.cursor import Cursor
from signalling.execution import OutputGap, OutputRecord
from signalling.launch import (
    ControlEvent,
    LaunchEvent,
    LaunchExited,
    LaunchSnapshot,
)
from signalling.launch_errors import CursorGone, CursorInvalid, Draining
from signalling.launch_output import LaunchOutput, last_of
from signalling.launch_record import LaunchRecord, LaunchTimings
from signalling.launches import Launches
from signalling.live_launch import RECOVERY_GAP, LiveLaunch
from signalling.ports import EventLog, Executions

_STORE_WAIT = 3.0


class Feed(Protocol):
    """Where a watcher gets control events from."""

    async def record(self) -> LaunchRecord:
        """Return the record as it now is."""
        ...

    async def after(self, number: int) -> Sequence[ControlEvent]:
        """Wait for control events after a number."""
        ...


class LiveFeed:
    """Events of a launch that this replica runs."""

    def __init__(self, live: LiveLaunch) -> None:
        self._live = live

    async def record(self) -> LaunchRecord:
        return self._live.record

    async def after(self, number: int) -> Sequence[ControlEvent]:
        return await self._live.wait_for_events(number)


class StoredFeed:
    """Events of a launch that ended, or that another replica runs."""

    def __init__(self, *, tenant: str, launch_id: str, launches: Launches, log: EventLog) -> None:
        self._tenant = tenant
        self._launch_id = launch_id
        self._launches = launches
        self._log = log

    async def record(self) -> LaunchRecord:
        return await self._launches.record(self._tenant, self._launch_id)

    async def after(self, number: int) -> Sequence[ControlEvent]:
        while True:
            events = await self._log.after(self._launch_id, number, wait=_STORE_WAIT)
            if events:
                return events
            if (await self.record()).launch.finished:
                raise CursorGone


class LaunchWatcher:
    """Opens streams of events."""

    def __init__(
        self,
        *,
        launches: Launches,
        log: EventLog,
        executions: Executions,
        timings: LaunchTimings,
        clock: Clock,
    ) -> None:
        self._launches = launches
        self._log = log
        self._executions = executions
        self._timings = timings
        self._clock = clock
        self._draining = asyncio.Event()

    def drain(self) -> None:
        """End every stream with Draining; its watcher goes on elsewhere by its cursor."""
        self._draining.set()

    async def watch(
        self, tenant: str, launch_id: str, cursor: str | None
    ) -> AsyncGenerator[LaunchEvent, None]:
        """Stream a launch's events after a cursor; close it when it is left early.

        Raises LaunchNotFound, CursorInvalid, CursorGone and Draining.
        """
        record = await self._launches.record(tenant, launch_id)
        live = self._launches.live(tenant, launch_id)
        position = Cursor.parse(cursor, launch_id) if cursor else Cursor()
        _check(position, record, behind=live is None)
        now = self._clock.now()
        yield LaunchEvent(position.text(launch_id), now, LaunchSnapshot(record.launch))
        if record.launch.state.terminal and position.control >= record.last_event:
            return
        feed: Feed = (
            LiveFeed(live)
            if live is not None
            else StoredFeed(
                tenant=tenant, launch_id=launch_id, launches=self._launches, log=self._log
            )
        )
        stream = _Stream(
            launch_id=launch_id,
            feed=feed,
            position=position,
            output=LaunchOutput(
                executions=self._executions, launches=self._launches, timings=self._timings
            ),
            draining=self._draining,
            timings=self._timings,
            clock=self._clock,
        )
        try:
            while (event := await stream.next()) is not None:
                yield event
        finally:
            await stream.close()


def _check(position: Cursor, record: LaunchRecord, *, behind: bool) -> None:
    """Raise CursorInvalid for a position that the launch has never had.

    The store may be behind what the owner has told its watchers, also what it told before it was
    killed.
    """
    launch = record.launch
    slack = RECOVERY_GAP if behind and not launch.state.terminal else 0
    if position.control > record.last_event + slack:
        raise CursorInvalid
    if launch.exit is not None and position.output > launch.exit.last_sequence:
        raise CursorInvalid
    if position.output and not launch.execution_id and not (slack or launch.state.terminal):
        raise CursorInvalid


class _Stream:
    """One watcher's merge of control events and output."""

    def __init__(
        self,
        *,
        launch_id: str,
        feed: Feed,
        position: Cursor,
        output: LaunchOutput,
        draining: asyncio.Event,
        timings: LaunchTimings,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._launch_id = launch_id
        self._feed = feed
        self._fetched = position.control
        self._told = position.control
        self._seen = position.output
        self._output = output
        self._timings = timings
        self._ready: list[ControlEvent | OutputRecord | OutputGap] = []
        self._terminal: ControlEvent | None = None
        self._over = False
        self._ended = False
        self._events: asyncio.Future[Sequence[ControlEvent]] | None = None
        self._record: asyncio.Future[OutputRecord | OutputGap | None] | None = None
        self._drain = asyncio.ensure_future(draining.wait())

    async def next(self) -> LaunchEvent | None:
        """Return the next event; None after the terminal one."""
        while not self._ended:
            if self._ready:
                return self._tell(self._ready.pop(0))
            await self._look_at_record()
            # A record that came in the meantime is counted as seen by the output already.
            if self._take_record():
                continue
            if self._terminal is not None and not self._output.flowing:
                self._ended = True
                return self._tell(self._terminal)
            await self._wait()
        return None

    async def close(self) -> None:
        """Stop everything that it waits for."""
        waiting = [task for task in (self._events, self._record, self._drain) if task is not None]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await self._output.close()

    async def _look_at_record(self) -> None:
        """Start on the output once there is some; know its end once the launch is over."""
        if self._over or (self._output.opened and self._terminal is None):
            return
        record = await self._feed.record()
        if not self._output.opened and record.launch.execution_id:
            self._output.open(record, self._seen)
        if self._terminal is not None:
            self._over = True
            self._output.launch_is_over(record.launch)

    async def _wait(self) -> None:
        """Wait for whatever comes first: control events, a record, the end of patience."""
        if self._terminal is None and self._events is None:
            self._events = asyncio.ensure_future(self._feed.after(self._fetched))
        if self._record is None and self._output.flowing:
            self._record = asyncio.ensure_future(self._output.next())
        waiting = [task for task in (self._events, self._record, self._drain) if task is not None]
        done, _ = await asyncio.wait(
            waiting, timeout=self._patience(), return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            self._output.give_up()
            return
        if self._drain.done():
            raise Draining
        if self._events is not None and self._events.done():
            events, self._events = self._events.result(), None
            self._sort(events)
        self._take_record()

    def _take_record(self) -> bool:
        """Make the record that has come ready to be told; say whether there was one."""
        if self._record is None or not self._record.done():
            return False
        record, self._record = self._record.result(), None
        if record is not None:
            self._ready.append(record)
        return record is not None

    def _patience(self) -> float | None:
        """Return how long output may stay away once the launch is over."""
        if self._terminal is None:
            return None
        exited = isinstance(self._terminal.happening, LaunchExited)
        return self._timings.host_lost_after if exited else self._timings.note_timeout

    def _sort(self, events: Sequence[ControlEvent]) -> None:
        """Keep the terminal event for the end."""
        for event in events:
            if event.terminal:
                self._terminal = event
            else:
                self._ready.append(event)
            self._fetched = event.number

    def _tell(self, item: ControlEvent | OutputRecord | OutputGap) -> LaunchEvent:
        if isinstance(item, ControlEvent):
            self._told, at = item.number, item.occurred_at
        else:
            self._seen = last_of(item)
            at = item.written_at if isinstance(item, OutputRecord) else self._clock.now()
        cursor = Cursor(self._told, self._seen).text(self._launch_id)
        return LaunchEvent(cursor, at, item.happening if isinstance(item, ControlEvent) else item)
