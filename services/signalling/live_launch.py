"""A launch in the memory of the replica that runs it: the only place where it changes.

Whoever watches it waits for the next change here; `launch_mirror` carries every change to the
store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from chassis.clock import Clock
from signalling.launch import CancelReason, ControlEvent, Happening, Launch
from signalling.launch_record import LaunchRecord

RECOVERY_GAP = 1000
"""Numbers skipped by a recovered launch: its watchers may have seen events that were never written
down.
"""


class LiveLaunch:
    """One launch, its control events so far and the wish to end it, if there is one."""

    def __init__(
        self,
        *,
        record: LaunchRecord,
        events: Sequence[ControlEvent] = (),
        clock: Clock,
        changed: Callable[[LiveLaunch], None],
    ) -> None:
        self._record = record
        self._events = list(events)
        self._clock = clock
        self._changed = changed
        self._change = asyncio.Event()
        self._wish: CancelReason | None = None
        self._wished = asyncio.Event()
        self.recovered = False

    @property
    def record(self) -> LaunchRecord:
        """Return the record as it now is; its version is that of the last confirmed write."""
        return self._record

    @property
    def launch(self) -> Launch:
        """Return the launch as it now is."""
        return self._record.launch

    @property
    def tenant(self) -> str:
        """Return whose it is."""
        return self._record.tenant

    @property
    def launch_id(self) -> str:
        """Return its id."""
        return self._record.launch.launch_id

    @property
    def last_event(self) -> int:
        """Return the number of its newest control event."""
        return self._record.last_event

    def update(self, launch: Launch, *happenings: Happening) -> None:
        """Make `launch` its state and append what happened, as one change."""
        now, number = self._clock.now(), self._record.last_event
        for happening in happenings:
            number += 1
            self._events.append(ControlEvent(number, now, happening))
        self._record = replace(self._record, launch=launch, last_event=number)
        self._announce()

    def tell(self, *happenings: Happening) -> None:
        """Append what happened; the launch itself stays as it is."""
        self.update(self.launch, *happenings)

    def hold_for(self, lease: timedelta) -> None:
        """Make `lease` the one that is in force from now on."""
        self._record = replace(
            self._record,
            lease=lease,
            launch=self.launch.renewed(self._clock.now() + lease),
        )
        self._announce()

    def skip_numbers(self) -> None:
        """Leave a gap before the next event, for a launch that was read back after a crash."""
        self.recovered = True
        self._record = replace(self._record, last_event=self._record.last_event + RECOVERY_GAP)

    def confirm(self, version: int) -> None:
        """Note that the store now has this version."""
        self._record = replace(self._record, version=version)

    def events_after(self, number: int) -> list[ControlEvent]:
        """Return the control events that it has after a number."""
        return [event for event in self._events if event.number > number]

    async def wait_for_events(self, number: int) -> list[ControlEvent]:
        """Return the control events after a number; wait until there is one."""
        while not (events := self.events_after(number)):
            await self._change.wait()
        return events

    async def next_change(self) -> None:
        """Return at the next change, of whatever kind."""
        await self._change.wait()

    async def until(self, holds: Callable[[Launch], bool]) -> Launch:
        """Return the launch as soon as `holds` does."""
        while not holds(self.launch):
            await self._change.wait()
        return self.launch

    def end(self, reason: CancelReason) -> None:
        """Wish it to end; the first wish counts."""
        if self._wish is None:
            self._wish = reason
            self._wished.set()

    async def wait_for_end(self) -> CancelReason:
        """Return why it is to end, once somebody wishes it."""
        await self._wished.wait()
        return self._wish or CancelReason.REQUESTED

    def _announce(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()
        self._changed(self)
