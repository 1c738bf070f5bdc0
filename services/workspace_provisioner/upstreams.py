"""The tip of an upstream instead of the client's commit: as new as was asked for, or a fallback
that says so.

A launch waits for an origin for a bounded time; the fetch itself goes on, so that the next launch
finds what this one waited for in vain.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from chassis.clock import Clock
from chassis.errors import FairleadError
from workspace_provisioner.errors import (
    PackInvalid,
    PackTooLarge,
    SnapshotIncomplete,
    UploadIdle,
)
from workspace_provisioner.origin_ports import (
    Ancestry,
    Intake,
    Known,
    Origins,
    Sighting,
    Sightings,
    Talk,
)
from workspace_provisioner.origins import Origin, OriginFailed, OriginFault, checked_origin
from workspace_provisioner.sources import ProjectKey, Source, Upstream
from workspace_provisioner.workspaces import Freshness

log = logging.getLogger(__name__)

NO_BASE = "no_base"

# For each tenant, so that one whose origins hang does not use up the host.
_MOST_FETCHES = 8

_Wanted = tuple[ProjectKey, str, str]


class OriginFetch:
    """Brings commits of origins into this host's stores, the way that an upload comes."""

    def __init__(
        self, *, origins: Origins, stores: Known, ancestry: Ancestry, intake: Intake
    ) -> None:
        self.origins = origins
        self._stores = stores
        self._ancestry = ancestry
        self._intake = intake

    async def bring_from(self, origin: Origin, key: ProjectKey, commit: str, *, limit: int) -> int:
        """Make a commit of an origin whole in the key's store, unless it is there, and return the
        bytes that came for it; raises OriginFailed, also beyond `limit` bytes.
        """
        if await self._stores.knows(key, commit):
            return 0
        async with self.origins.talk(key.tenant, origin, key.object_format) as talk:
            return await self.bring(key, talk, commit, limit=limit)

    async def bring(
        self, key: ProjectKey, talk: Talk, commit: str, *, limit: int | None = None
    ) -> int:
        """Make a commit whole in the key's store, unless it is there, and return the bytes that
        came for it; raises OriginFailed, and what an upload raises for want of space.
        """
        if await self._stores.knows(key, commit):
            return 0
        having = await self._ancestry.spaced(key)
        source = Source(key, commit, "", "", None)
        chunks = talk.pack(commit, having)
        if limit is not None:
            chunks = _capped(chunks, limit)
        try:
            snapshot = await self._intake.receive(source, (), chunks)
        except UploadIdle as error:
            raise OriginFailed(OriginFault.TIMEOUT, error.reason) from error
        except SnapshotIncomplete as error:
            raise OriginFailed(OriginFault.COMMIT_MISSING, error.reason) from error
        except (PackInvalid, PackTooLarge) as error:
            raise OriginFailed(OriginFault.MALFORMED, error.reason) from error
        return snapshot.received_bytes


async def _capped(chunks: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes]:
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > limit:
            raise PackTooLarge(limit=limit)
        yield chunk


class Upstreams:
    """Resolves sources that ask for an upstream. A launch waits at most `wait_seconds`, a fetch
    takes at most `fetch_seconds`.
    """

    def __init__(
        self,
        *,
        fetch: OriginFetch,
        stores: Known,
        sightings: Sightings,
        clock: Clock,
        wait_seconds: float,
        fetch_seconds: float,
    ) -> None:
        self._fetch = fetch
        self._stores = stores
        self._sightings = sightings
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._fetch_seconds = fetch_seconds
        self._running: dict[_Wanted, asyncio.Task[Sighting]] = {}

    async def close(self) -> None:
        """Stop the fetches that still run."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def resolve(self, source: Source) -> tuple[Source, Freshness | None]:
        """Return the source with the upstream's tip for its commit, or as it is with the reason.

        Without an upstream it stays as it is. Raises HostFull and StorageUnavailable.
        """
        upstream = source.upstream
        if upstream is None:
            return source, None
        key = source.key
        if not await self._stores.holds(key):
            # The client's upload is quicker than a whole clone; afterwards it asks again.
            return source, Freshness(upstream.branch, None, fallback=True, reason=NO_BASE)
        try:
            async with asyncio.timeout(self._wait_seconds):
                found = await self._sighting(key, upstream)
        except TimeoutError:
            return source, await self._fallback(key, upstream, OriginFault.TIMEOUT)
        except OriginFailed as failure:
            return source, await self._fallback(key, upstream, failure.fault)
        tip = replace(source, commit=found.commit, commits=None)
        return tip, Freshness(upstream.branch, found.as_of)

    async def _sighting(self, key: ProjectKey, upstream: Upstream) -> Sighting:
        """Return what is known, or what the origin says now."""
        now = self._clock.now()
        oldest = now - upstream.max_age
        known = await self._sightings.get(key, upstream)
        if known and await self._serves(key, known, oldest):
            if known.as_of < now - upstream.max_age / 2:
                # A project in use stays fresh without any launch waiting for it.
                with suppress(OriginFailed):
                    self._begin(key, upstream)
            return known
        while True:
            # A fetch that somebody else began may have asked too early for this launch.
            told = await asyncio.shield(self._begin(key, upstream))
            if told.as_of >= oldest:
                return told

    async def _serves(self, key: ProjectKey, known: Sighting, oldest: datetime) -> bool:
        return bool(
            known.commit and known.as_of >= oldest and await self._stores.knows(key, known.commit)
        )

    async def _fallback(self, key: ProjectKey, upstream: Upstream, fault: OriginFault) -> Freshness:
        known = await self._sightings.get(key, upstream)
        as_of = known.as_of if known else None
        return Freshness(upstream.branch, as_of, fallback=True, reason=fault)

    def _begin(self, key: ProjectKey, upstream: Upstream) -> asyncio.Task[Sighting]:
        """Return the fetch that runs for this key and upstream, or start one."""
        wanted = (key, upstream.url, upstream.branch)
        running = self._running.get(wanted)
        if running is None:
            if sum(each[0].tenant == key.tenant for each in self._running) >= _MOST_FETCHES:
                raise OriginFailed(OriginFault.TIMEOUT, "too many fetches of the tenant hang")
            running = asyncio.create_task(self._ask(key, upstream), name="fetch of an upstream")
            self._running[wanted] = running
            running.add_done_callback(lambda task: self._ended(wanted, task))
        return running

    def _ended(self, wanted: _Wanted, task: asyncio.Task[Sighting]) -> None:
        del self._running[wanted]
        if task.cancelled():
            return
        failure = task.exception()  # seen here, also when nobody waits any more
        if isinstance(failure, OriginFailed):
            extra = {"tenant": wanted[0].tenant, "fault": failure.fault, "cause": failure.detail}
            log.warning("upstream not fetched", extra=extra)
        elif isinstance(failure, FairleadError):
            log.warning("upstream not taken in", extra={"cause": failure.reason})
        elif failure is not None:
            log.error("fetch of an upstream failed", exc_info=failure)

    async def _ask(self, key: ProjectKey, upstream: Upstream) -> Sighting:
        """Ask the origin for its tip and bring it here."""
        asked = self._clock.now()
        origin = checked_origin(upstream.url)
        try:
            async with (
                asyncio.timeout(self._fetch_seconds),
                self._fetch.origins.talk(key.tenant, origin, key.object_format) as talk,
            ):
                commit = await talk.tip(upstream.branch)
                await self._fetch.bring(key, talk, commit)
        except TimeoutError as error:
            raise OriginFailed(OriginFault.TIMEOUT, "the whole fetch took too long") from error
        except OriginFailed as failure:
            if failure.fault is OriginFault.BRANCH_MISSING:
                await self._unsee(key, upstream)
            raise
        sighting = Sighting(commit, asked)
        with suppress(OSError):
            await self._sightings.put(key, upstream, sighting)
        return sighting

    async def _unsee(self, key: ProjectKey, upstream: Upstream) -> None:
        """Never serve again what the branch was before it was deleted."""
        known = await self._sightings.get(key, upstream)
        if known is not None:
            with suppress(OSError):
                await self._sightings.put(key, upstream, replace(known, commit=""))
