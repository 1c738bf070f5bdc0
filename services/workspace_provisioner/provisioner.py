"""Makes workspaces and gives them back: one build for each key, and a release always wins over a
build.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice
from operator import itemgetter

from chassis.clock import Clock
from chassis.errors import FairleadError
from chassis.ids import derived_id, is_id
from workspace_provisioner.builder import Builder
from workspace_provisioner.errors import (
    HostFull,
    IdempotencyConflict,
    ProvisionerStopping,
    WorkspaceNotFound,
    WorkspaceReleased,
    storage_errors,
)
from workspace_provisioner.keyed_locks import KeyedLocks
from workspace_provisioner.ports import Ledger, Trees
from workspace_provisioner.sources import Source, checked_key, checked_tenant
from workspace_provisioner.workspaces import (
    Miss,
    Order,
    State,
    Workspace,
    never_made,
    requested_workspace,
)

log = logging.getLogger(__name__)

MOST_TOMBSTONES = 20_000
"""Released keys that are remembered for a day; of more, the newest."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What this host takes on: workspaces in all, and builds at the same time."""

    workspaces: int
    builds: int


@dataclass(slots=True)
class _Build:
    """A workspace that is being made."""

    order: Order
    requested: Workspace
    task: asyncio.Task[Workspace | Miss] = field(init=False)
    released: bool = False


class Provisioner:
    """The workspaces of one host. Use as `async with`: leaving it stops the builds that still
    run.
    """

    def __init__(
        self,
        *,
        builder: Builder,
        trees: Trees,
        ledger: Ledger,
        clock: Clock,
        secret: bytes,
        limits: Limits,
        on_discard: Callable[[], None],
    ) -> None:
        self._builder = builder
        self._trees = trees
        self._ledger = ledger
        self._clock = clock
        self._secret = secret
        self._limits = limits
        self._on_discard = on_discard
        self._builds: dict[str, _Build] = {}
        self._slots = asyncio.Semaphore(limits.builds)
        self._changing = KeyedLocks()
        self._stopping = False

    async def drain(self) -> None:
        """Start no more builds and wait for those that run."""
        self._stopping = True
        tasks = [build.task for build in self._builds.values()]
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Stop the builds that still run; nothing of them stays."""
        self._stopping = True
        tasks = [build.task for build in self._builds.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def held(self) -> int:
        """Return how many workspaces there are, those that are being made included."""
        return self._ledger.provisioned() + len(self._builds)

    @property
    def is_building(self) -> bool:
        """Say whether a workspace is being made."""
        return bool(self._builds)

    def workspace_id(self, tenant: str, idempotency_key: str) -> str:
        """Return the id that a key's workspace has."""
        return derived_id("wsp", tenant, "workspace", idempotency_key, key=self._secret)

    async def materialize(
        self, *, idempotency_key: str, source: Source, branch: str, lease: timedelta
    ) -> Workspace | Miss:
        """Check a source out, or say what is lacking; a repeated key gives the first workspace.

        The build goes on when the caller leaves. Raises WorkspaceReleased, IdempotencyConflict,
        HostFull, ProvisionerStopping, PackInvalid, CheckoutFailed and StorageUnavailable.
        """
        workspace_id = self.workspace_id(source.key.tenant, checked_key(idempotency_key))
        order = Order(workspace_id, source, branch or source.branch, lease)
        build = self._builds.get(workspace_id)
        if build is None:
            made = self._ledger.get(workspace_id)
            if made is not None:
                return self._same(made, order)
            build = self._start(order)
        elif build.released:
            raise WorkspaceReleased(workspace_id)
        elif not build.requested.is_of(order):
            raise IdempotencyConflict(workspace_id)
        outcome = await self._outcome(build)
        return outcome if isinstance(outcome, Miss) else self._same(outcome, order)

    async def _outcome(self, build: _Build) -> Workspace | Miss:
        task = build.task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not task.cancelled() or (caller is not None and caller.cancelling()):
                raise
            if build.released:
                raise WorkspaceReleased(build.order.workspace_id) from None
            raise ProvisionerStopping from None

    def _same(self, made: Workspace, order: Order) -> Workspace:
        if made.state is State.RELEASED:
            raise WorkspaceReleased(made.workspace_id)
        if not made.is_of(order):
            raise IdempotencyConflict(made.workspace_id)
        return made

    def _start(self, order: Order) -> _Build:
        if self._stopping:
            raise ProvisionerStopping
        if self.held() >= self._limits.workspaces:
            raise HostFull(f"it holds {self._limits.workspaces} already")
        requested = requested_workspace(order, self._clock.now())
        build = _Build(order=order, requested=requested)
        build.task = asyncio.create_task(self._run(build), name=f"build {order.workspace_id}")
        self._builds[order.workspace_id] = build
        build.task.add_done_callback(lambda _: self._ended(build))
        return build

    def _ended(self, build: _Build) -> None:
        if not build.task.cancelled():
            build.task.exception()  # seen here, also when every caller has left
        if not build.released:
            self._forget(build)

    def _forget(self, build: _Build) -> None:
        if self._builds.get(build.order.workspace_id) is build:
            del self._builds[build.order.workspace_id]

    async def _run(self, build: _Build) -> Workspace | Miss:
        async with self._slots:
            with storage_errors():
                return await self._builder.make(build.order, build.requested)

    async def get(self, tenant: str, workspace_id: str) -> Workspace:
        """Return a workspace, also one that is being made or was released within a day; raises
        WorkspaceNotFound.
        """
        build = self._builds.get(workspace_id)
        found = build.requested if build else self._ledger.get(workspace_id)
        if found is None or found.tenant != tenant or not found.project:
            raise WorkspaceNotFound(workspace_id if is_id("wsp", workspace_id) else "")
        return found

    async def count_changes(self, workspace: Workspace) -> int | None:
        """Count the files that differ from what was materialised; None when that cannot be."""
        if workspace.state is not State.PROVISIONED:
            return None
        return await self._trees.count_changes(workspace)

    async def list(self, tenant: str, *, size: int, after: str) -> tuple[list[Workspace], str]:
        """Return the next `size` workspaces after an id, of one tenant or of all, and the token
        of the rest.
        """
        rest = (
            each
            for each in self._ledger.all()
            if each.state is State.PROVISIONED
            and each.workspace_id > after
            and tenant in ("", each.tenant)
        )
        page = list(islice(rest, size))
        more = next(rest, None) is not None
        return page, page[-1].workspace_id if more else ""

    async def renew(self, tenant: str, workspace_id: str, lease: timedelta) -> Workspace:
        """Move the end of a lease to `lease` from now; raises WorkspaceNotFound."""
        async with self._changing.hold(workspace_id):
            found = await self.get(tenant, workspace_id)
            if found.state is not State.PROVISIONED:
                raise WorkspaceNotFound(workspace_id)
            renewed = replace(found, expires_at=self._clock.now() + lease)
            await self._ledger.put(renewed)
            return renewed

    async def release(
        self, tenant: str, *, workspace_id: str = "", idempotency_key: str = ""
    ) -> bool:
        """Give a workspace back; returns whether there was one. When it returns, its path is gone.

        A release by key also stops a build and keeps a later materialize of that key from making
        anything. Raises StorageUnavailable.
        """
        checked_tenant(tenant)
        by_key = not workspace_id
        if by_key:
            workspace_id = self.workspace_id(tenant, checked_key(idempotency_key))
        build = self._builds.get(workspace_id)
        if build is None or build.requested.tenant != tenant:
            return await self._release(tenant, workspace_id, None, by_key=by_key)
        build.released = True
        try:
            build.task.cancel()
            await asyncio.wait({build.task})
            return await self._release(tenant, workspace_id, build.requested, by_key=by_key)
        finally:
            # Not when the build ends: until the record says so, only this tells a materialize
            # which comes in between that the key is released.
            self._forget(build)

    async def _release(
        self, tenant: str, workspace_id: str, stopped: Workspace | None, *, by_key: bool
    ) -> bool:
        async with self._changing.hold(workspace_id):
            with storage_errors():
                found = self._ledger.get(workspace_id)
                if found is None:
                    now = self._clock.now()
                    if stopped:
                        released = replace(stopped, state=State.RELEASED, released_at=now)
                        await self._ledger.put(released)
                    elif by_key:
                        await self._ledger.put(never_made(tenant, workspace_id, now))
                    return stopped is not None
                if found.tenant != tenant:
                    return False
                if found.state is State.RELEASED:
                    # What an earlier release may have failed at.
                    await self._trees.discard(workspace_id)
                    return False
                await self._give_back(found)
                return True

    async def expire(self) -> None:
        """Give back every workspace whose lease has ended; forget those released before yesterday,
        and the oldest when there are very many.
        """
        now = self._clock.now()
        for each in self._due(now):
            async with self._changing.hold(each.workspace_id):
                found = self._ledger.get(each.workspace_id)
                if found is None:
                    continue
                try:
                    if found.state is State.RELEASED:
                        await self._ledger.remove(found.workspace_id)
                    elif found.expires_at <= now:
                        await self._give_back(found)
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
        """Take away the trees that nothing holds: those that could not be moved when they were
        released.
        """
        present = await self._trees.present()
        held = {each.workspace_id for each in self._ledger.all() if each.state is State.PROVISIONED}
        for workspace_id in present - held - self._builds.keys():
            found = self._ledger.get(workspace_id)
            if workspace_id in self._builds or (found and found.state is State.PROVISIONED):
                continue  # made while another one was taken away
            await self._trees.discard(workspace_id)
            self._on_discard()
            log.warning("stray workspace taken away", extra={"workspace_id": workspace_id})

    async def reconcile(self) -> None:
        """Bring disk and records together after a restart; call before the first request."""
        await self._trees.sweep()
        present = await self._trees.present()
        kept = set()
        for each in list(self._ledger.all()):
            if each.state is not State.PROVISIONED:
                continue
            if each.workspace_id in present:
                kept.add(each.workspace_id)
            else:
                await self._ledger.remove(each.workspace_id)
        for workspace_id in present - kept:
            await self._trees.discard(workspace_id)
        log.info("workspaces reconciled", extra={"kept": len(kept)})

    async def _give_back(self, found: Workspace) -> None:
        await self._ledger.put(replace(found, state=State.RELEASED, released_at=self._clock.now()))
        await self._trees.discard(found.workspace_id)
        self._on_discard()
        log.info("workspace released", extra={"workspace_id": found.workspace_id})
