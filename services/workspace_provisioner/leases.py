"""What happens to a workspace once it is there: its lease moves, its name changes, and it is given
back, be it released, ended, or left behind by a dead process.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from operator import itemgetter

from chassis.clock import Clock
from chassis.errors import FairleadError
from workspace_provisioner.build_runs import BuildRuns
from workspace_provisioner.errors import StorageUnavailable, WorkspaceNotFound, storage_errors
from workspace_provisioner.lock_ports import LockKept, Locks
from workspace_provisioner.names import claims_of
from workspace_provisioner.ports import (
    Claims,
    Ledger,
    Trees,
    Unsaved,
    WarmPath,
)
from workspace_provisioner.workspace_errors import WorkspaceBusy
from workspace_provisioner.workspaces import State, Workspace, never_made

log = logging.getLogger(__name__)

MOST_TOMBSTONES = 20_000
"""Released keys that are remembered for a day; of more, the newest."""
_PATIENCE_SECONDS = 10.0
"""How long a release by key waits for another process to stop what it is making."""


class Leases:
    """The ends of workspaces on this host."""

    def __init__(
        self,
        *,
        trees: Trees,
        ledger: Ledger,
        claims: Claims,
        warm: WarmPath,
        unsaved: Unsaved,
        builds: BuildRuns,
        locks: Locks,
        clock: Clock,
        on_discard: Callable[[], None],
    ) -> None:
        self._trees = trees
        self._ledger = ledger
        self._claims = claims
        self._warm = warm
        self._unsaved = unsaved
        self._builds = builds
        self._locks = locks
        self._clock = clock
        self._on_discard = on_discard

    async def renew(self, tenant: str, workspace_id: str, lease: timedelta) -> Workspace:
        """Move the end of a lease to `lease` from now; raises WorkspaceNotFound."""
        async with self._locks.hold(workspace_id):
            found = self._live(tenant, workspace_id)
            renewed = replace(found, expires_at=self._clock.now() + lease)
            with storage_errors():
                await self._ledger.put(renewed)
            return renewed

    async def rename(self, tenant: str, workspace_id: str, name: str) -> Workspace:
        """Give a workspace another name, or none; raises WorkspaceNotFound and WorkspaceExists."""
        async with self._locks.hold(workspace_id):
            found = self._live(tenant, workspace_id)
            if found.name == name:
                return found
            renamed = replace(found, name=name)
            wanted = [each for each in claims_of(renamed) if each not in claims_of(found)]
            given_up = [each for each in claims_of(found) if each not in claims_of(renamed)]
            with storage_errors():
                # New claim, record, old claim: killed in between, one claim is of a workspace that
                # does not have it, which the next one who wants it sees.
                await self._claims.take(workspace_id, wanted)
                try:
                    await self._ledger.put(renamed)
                finally:
                    # What failed, or whose caller has left, may be written all the same.
                    now = self._ledger.get(workspace_id)
                    is_renamed = now is not None and now.name == name
                    await self._claims.drop(workspace_id, given_up if is_renamed else wanted)
        log.info("workspace renamed", extra={"workspace_id": workspace_id})
        return renamed

    def _live(self, tenant: str, workspace_id: str) -> Workspace:
        found = self._ledger.get(workspace_id)
        if found is None or found.tenant != tenant or found.state is not State.PROVISIONED:
            raise WorkspaceNotFound(workspace_id)
        return found

    async def release(self, tenant: str, workspace_id: str, *, by_key: bool, checked: bool) -> bool:
        """Give a workspace back; returns whether there was one. When it returns, its path is gone.

        A release by key also stops a build and keeps a later materialize of that key from making
        anything. With `checked`, raises WorkspaceDirty or WorkspaceUnpushed and changes nothing
        when work would be lost. Raises StorageUnavailable, and WorkspaceBusy when another process
        does not let go of the key's workspace.
        """
        build = self._builds.get(workspace_id)
        if build is None:
            return await self._release(tenant, workspace_id, None, by_key=by_key, checked=checked)
        if build.requested.tenant != tenant:
            return False
        try:
            await self._builds.stop(build)
            return await self._release(
                tenant, workspace_id, build.requested, by_key=by_key, checked=checked
            )
        finally:
            # Not when the build ends: until the record says so, only this tells a materialize
            # which comes in between that the key is released.
            self._builds.forget(build)

    async def _release(
        self,
        tenant: str,
        workspace_id: str,
        stopped: Workspace | None,
        *,
        by_key: bool,
        checked: bool,
    ) -> bool:
        async with self._held(workspace_id, by_key=by_key) as wrested:
            with storage_errors():
                found = self._ledger.get(workspace_id)
                if found is None:
                    now = self._clock.now()
                    if stopped:
                        released = replace(stopped, state=State.RELEASED, released_at=now)
                        await self._ledger.put(released)
                    elif by_key:
                        await self._ledger.put(never_made(tenant, workspace_id, now))
                    return stopped is not None or wrested
                if found.tenant != tenant:
                    return False
                if found.state is State.RELEASED:
                    # What an earlier release may have failed at.
                    await self.clear(found)
                    return False
                if checked:
                    await self._unsaved.check(found)
                await self.give_back(found)
                return True

    @asynccontextmanager
    async def _held(self, workspace_id: str, *, by_key: bool) -> AsyncIterator[bool]:
        """Hold the lock of a workspace; by its key, a build in another process is stopped for it,
        which is what is yielded.
        """
        async with AsyncExitStack() as stack:
            wrested = False
            if by_key:
                try:
                    wrested = await stack.enter_async_context(
                        self._locks.wrest(workspace_id, seconds=_PATIENCE_SECONDS)
                    )
                except LockKept:
                    raise WorkspaceBusy(workspace_id) from None
            else:
                await stack.enter_async_context(self._locks.hold(workspace_id))
            yield wrested

    async def give_back(self, found: Workspace) -> None:
        """End a provisioned workspace: record, files, claims, in this order. Call it under the
        lock of the workspace.
        """
        released = replace(found, state=State.RELEASED, released_at=self._clock.now())
        await self._warm.give_back(released)
        self._on_discard()
        log.info("workspace released", extra={"workspace_id": found.workspace_id})

    async def clear(self, found: Workspace) -> None:
        """Take away what is left of a released workspace; nothing there is fine."""
        try:
            await self._trees.discard(found.workspace_id)
        finally:
            await self._claims.drop(found.workspace_id, claims_of(found))

    async def expire(self) -> None:
        """Give back every workspace whose lease has ended; forget those released before yesterday,
        and the oldest when there are very many.
        """
        now = self._clock.now()
        for each in self._due(now):
            async with self._locks.attempt(each.workspace_id) as held:
                try:
                    found = self._ledger.get(each.workspace_id) if held else None
                    if found is None:
                        continue
                    if found.state is State.RELEASED:
                        if found.released_at == each.released_at:  # not released meanwhile
                            await self._ledger.remove(found.workspace_id)
                    elif found.expires_at <= now:
                        await self.give_back(found)
                        log.info("lease ended", extra={"workspace_id": found.workspace_id})
                except (OSError, FairleadError) as error:
                    log.warning("workspace not given back", extra={"cause": str(error)})

    def _due(self, now: datetime) -> Sequence[Workspace]:
        """Return what `expire` has to look at, without a lock for each of the others."""
        ended: list[Workspace] = []
        released: list[tuple[datetime, Workspace]] = []
        for each in self._ledger.all():
            if each.released_at:
                released.append((each.released_at, each))
            elif each.expires_at <= now:
                ended.append(each)
        spare = len(released) - MOST_TOMBSTONES
        if spare > 0:
            released.sort(key=itemgetter(0))
        yesterday = now - timedelta(hours=24)
        faded = [
            each for place, (at, each) in enumerate(released) if at <= yesterday or place < spare
        ]
        return ended + faded

    async def take_away_strays(self) -> None:
        """Take away the files that no workspace holds: those of builds that were killed, and those
        that could not be moved when they were released. One that is being made is left alone, and
        so is one whose record cannot be read.
        """
        present = await self._trees.strays()
        held = {each.workspace_id for each in self._ledger.all() if each.state is State.PROVISIONED}
        for workspace_id in present - held:
            async with self._locks.attempt(workspace_id) as alone:
                try:
                    found = self._ledger.get(workspace_id) if alone else None
                except StorageUnavailable:
                    continue
                if not alone or (found and found.state is State.PROVISIONED):
                    continue
                await self._trees.discard(workspace_id)
                self._on_discard()
                log.warning("stray workspace taken away", extra={"workspace_id": workspace_id})

    async def reconcile(self) -> None:
        """Bring disk, records and claims together after a start, beside other processes that may
        serve the host root; call before the first request.
        """
        await self._trees.sweep()
        present = await self._trees.present()
        kept = 0
        for each in list(self._ledger.all()):
            if each.state is not State.PROVISIONED:
                continue
            if each.workspace_id in present:
                kept += 1
                continue
            async with self._locks.attempt(each.workspace_id) as alone:
                # Looked at again: it may have been made, or released, since `present`.
                found = self._ledger.get(each.workspace_id) if alone else None
                if found is None or found.state is not State.PROVISIONED:
                    continue
                if found.workspace_id not in await self._trees.present():
                    await self._ledger.remove(found.workspace_id)
        await self.take_away_strays()
        await self._claims.restore()
        log.info("workspaces reconciled", extra={"kept": kept})
