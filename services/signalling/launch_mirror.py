"""Carries launches from memory to the store: in order, again after a failure, and whole after the
store lost them.
"""

from __future__ import annotations

import asyncio
import logging

from chassis.errors import FairleadError
from signalling.launch_record import LaunchRecord
from signalling.live_launch import LiveLaunch
from signalling.ports import LaunchStore, Saved

_log = logging.getLogger(__name__)


class LaunchMirror:
    """The one writer of this replica's records; a launch goes on while the store is away.

    Changes are gathered for a moment before they are written: a launch changes many times in its
    first milliseconds, and writing each of them took a fifth of the time that signalling spends on
    a launch.
    """

    def __init__(
        self,
        *,
        store: LaunchStore,
        owner: str,
        gather_seconds: float,
        check_period: float,
        retry_pause: float,
    ) -> None:
        self._store = store
        self._owner = owner
        self._gather = gather_seconds
        self._check_period = check_period
        self._retry_pause = retry_pause
        self._live: dict[str, LiveLaunch] = {}
        self._dirty: dict[str, LiveLaunch] = {}
        self._written: dict[str, int] = {}
        self._doubtful: dict[str, LaunchRecord] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def follow(self, live: LiveLaunch) -> None:
        """Take care of a launch whose record and events, as they are now, are in the store."""
        self._live[live.launch_id] = live
        self._written[live.launch_id] = live.last_event

    def changed(self, live: LiveLaunch) -> None:
        """Note that a launch has changed."""
        if live.launch_id in self._live:
            self._dirty[live.launch_id] = live
            self._idle.clear()
            self._wake.set()

    def doubt(self, record: LaunchRecord) -> None:
        """Remove a record from the store when it is back: its creation failed, but may have taken
        effect.
        """
        self._doubtful[record.launch_id] = record
        self._wake.set()

    def trust(self, launch_id: str) -> None:
        """Forget the doubt about a record: somebody has asked for its launch again."""
        self._doubtful.pop(launch_id, None)

    def live(self, launch_id: str) -> LiveLaunch | None:
        """Return a launch that this replica runs or has not written down to the end."""
        return self._live.get(launch_id)

    def all(self) -> list[LiveLaunch]:
        """Return all of them."""
        return list(self._live.values())

    async def run(self) -> None:
        """Write until cancelled."""
        marked = away = False
        while True:
            try:
                if not marked:
                    await self._store.claim(self._owner)
                    marked = True
                await self._write_all()
                self._idle.set()
                if away:
                    _log.info("launches are written down again")
                    away = False
                try:
                    async with asyncio.timeout(self._check_period):
                        await self._wake.wait()
                    await asyncio.sleep(self._gather)
                except TimeoutError:
                    await self._check()
            except FairleadError:
                if not away:
                    _log.warning("launches are not written down: the store is away")
                    away = True
                await asyncio.sleep(self._retry_pause)

    async def settle(self) -> None:
        """Return when everything that has changed so far is written down."""
        await self._idle.wait()

    async def _write_all(self) -> None:
        self._wake.clear()
        while self._dirty:
            launch_id, live = next(iter(self._dirty.items()))
            del self._dirty[launch_id]
            try:
                await self._write(live)
            except BaseException:
                self._dirty.setdefault(launch_id, live)
                raise
        for record in list(self._doubtful.values()):
            await self._store.discard(record)
            self.trust(record.launch_id)

    async def _write(self, live: LiveLaunch) -> None:
        record = live.record.next()
        events = live.events_after(self._written[live.launch_id])
        saved = await self._store.save(record, events)
        if saved is Saved.MISSING:
            await self._store.restore(record, live.events_after(0))
        if saved is Saved.CONFLICT:
            _log.error("another replica owns a launch", extra={"launch_id": live.launch_id})
            self._forget(live)
            return
        live.confirm(record.version)
        self._written[live.launch_id] = record.last_event
        if record.launch.finished and live.last_event == record.last_event:
            self._forget(live)

    def _forget(self, live: LiveLaunch) -> None:
        self._live.pop(live.launch_id, None)
        self._written.pop(live.launch_id, None)
        self._dirty.pop(live.launch_id, None)

    async def _check(self) -> None:
        """Write everything again where the store has lost this replica's mark."""
        if await self._store.claim(self._owner):
            for live in self.all():
                self._dirty[live.launch_id] = live
            if self._dirty:
                _log.warning("the store has lost the launches; they are written again")
