"""Makes workspaces, copies, names and gives them back: one build for each key, and a release always
wins over a build.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice

from chassis.clock import Clock
from chassis.ids import derived_id, is_id
from workspace_provisioner.build_runs import BuildRuns, Made, Make, MakeWarm
from workspace_provisioner.builder import Builder
from workspace_provisioner.errors import (
    HostFull,
    IdempotencyConflict,
    WorkspaceNotFound,
    WorkspaceReleased,
    storage_errors,
)
from workspace_provisioner.leases import Leases
from workspace_provisioner.lock_ports import Locks
from workspace_provisioner.names import checked_name, claims_of
from workspace_provisioner.ports import (
    Claims,
    Copies,
    Ledger,
    Trees,
    Unsaved,
    UpstreamTips,
    WarmPath,
)
from workspace_provisioner.sources import Source, checked_key, checked_tenant
from workspace_provisioner.workspace_errors import QuotaExceeded
from workspace_provisioner.workspaces import (
    ForkOrder,
    Miss,
    Order,
    Rung,
    State,
    Workspace,
    requested_fork,
    requested_workspace,
)

log = logging.getLogger(__name__)

# As often as the kernel writes old pages back by itself.
_FLUSH_PERIOD = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Limits:
    """What this host takes on: workspaces in all, builds of one tenant at the same time, and
    workspaces of one tenant.
    """

    workspaces: int
    builds: int
    tenant_workspaces: int


class Provisioner:
    """The workspaces of one host; copying files takes one of its `slots`. Call `close` at the end:
    it stops the builds that still run.
    """

    def __init__(
        self,
        *,
        builder: Builder,
        trees: Trees,
        ledger: Ledger,
        claims: Claims,
        copies: Copies,
        warm: WarmPath,
        unsaved: Unsaved,
        upstreams: UpstreamTips,
        locks: Locks,
        clock: Clock,
        secret: bytes,
        limits: Limits,
        slots: asyncio.Semaphore,
        on_discard: Callable[[], None],
    ) -> None:
        self._builder = builder
        self._trees = trees
        self._ledger = ledger
        self._claims = claims
        self._copies = copies
        self._upstreams = upstreams
        self._clock = clock
        self._secret = secret
        self._limits = limits
        self._slots = slots
        self._flushed_at = clock.now()
        self._builds = BuildRuns(locks=locks, most=limits.builds)
        self._leases = Leases(
            trees=trees,
            ledger=ledger,
            claims=claims,
            warm=warm,
            unsaved=unsaved,
            builds=self._builds,
            locks=locks,
            clock=clock,
            on_discard=on_discard,
        )

    async def drain(self) -> None:
        """Start no more builds and wait for those that run."""
        await self._builds.drain()

    async def close(self) -> None:
        """Stop the builds that still run; what was made before outlives a power cut."""
        await self._builds.close()
        try:
            await self._flush()
        except OSError as error:
            log.warning("workspaces not flushed", extra={"cause": str(error)})

    async def _flush(self) -> None:
        await self._ledger.flush(self._trees.make_durable)

    def held(self) -> int:
        """Return how many workspaces there are, those that are being made included."""
        return self._ledger.provisioned() + len(self._builds)

    @property
    def is_building(self) -> bool:
        """Say whether a workspace is being made."""
        return bool(len(self._builds))

    def workspace_id(self, tenant: str, idempotency_key: str) -> str:
        """Return the id that a key's workspace has."""
        return derived_id("wsp", tenant, "workspace", idempotency_key, key=self._secret)

    async def materialize(
        self,
        *,
        idempotency_key: str,
        source: Source,
        branch: str,
        lease: timedelta,
        name: str = "",
        claims_branch: bool = False,
        overlay: bool = False,
    ) -> Workspace | Miss:
        """Make a workspace, or say what is lacking; a repeated key gives the first workspace.

        The build goes on when the caller leaves. Raises LimitBroken, WorkspaceExists, BranchInUse,
        WorkspaceReleased, IdempotencyConflict, HostFull, QuotaExceeded, ProvisionerStopping,
        PackInvalid, CheckoutFailed and StorageUnavailable.
        """
        workspace_id = self.workspace_id(source.key.tenant, checked_key(idempotency_key))
        order = Order(
            workspace_id=workspace_id,
            source=source,
            branch=branch or source.branch,
            lease=lease,
            name=checked_name(name),
            claims_branch=claims_branch,
            overlay=overlay,
        )
        requested = requested_workspace(order, self._clock.now())
        return await self._made(
            requested,
            lambda: self._claimed(requested, lambda: self._build(order, requested)),
            warm=lambda: self._builder.make_warm(order, requested),
        )

    async def _build(self, order: Order, requested: Workspace) -> Workspace | Miss:
        source, freshness = order.source, None
        if source.upstream is not None:
            source, freshness = await self._upstreams.resolve(source)
        return await self._builder.make(
            replace(order, source=source),
            replace(requested, commit=source.commit, freshness=freshness),
        )

    async def fork(
        self,
        tenant: str,
        workspace_id: str,
        *,
        idempotency_key: str,
        name: str,
        branch: str,
        lease: timedelta,
        overlay: bool,
    ) -> Workspace:
        """Copy a live workspace with its uncommitted changes; a repeated key gives the first copy.

        Raises WorkspaceNotFound, ForkFailed and what `materialize` raises.
        """
        copy_id = self.workspace_id(tenant, checked_key(idempotency_key))
        order = ForkOrder(
            workspace_id=copy_id,
            tenant=tenant,
            source_id=workspace_id,
            branch=branch,
            lease=lease,
            name=checked_name(name),
        )
        known = self._known(copy_id, order.request)
        if known is not None:
            return known
        build = self._builds.get(copy_id)
        # While it is made, a repeated call only waits, whatever became of the source.
        source = build.requested if build else await self._live(tenant, workspace_id)
        requested = requested_fork(order, source, self._clock.now())
        made = await self._made(
            requested,
            lambda: self._claimed(
                requested, lambda: self._copy(source, requested, lease, overlay=overlay)
            ),
        )
        assert isinstance(made, Workspace)  # noqa: S101 - a copy cannot miss
        return made

    async def _copy(
        self, source: Workspace, requested: Workspace, lease: timedelta, *, overlay: bool
    ) -> Workspace:
        recorded = False
        try:
            async with self._slots:
                await self._copies.copy(source, requested, overlay=overlay)
            await self._live(source.tenant, source.workspace_id)  # no copy of what is gone
            made = replace(
                requested,
                state=State.PROVISIONED,
                rung=Rung.FORK,
                expires_at=self._clock.now() + lease,
            )
            await self._ledger.put(made)
            recorded = True
        finally:
            if not recorded:
                await self._ledger.remove(requested.workspace_id)
                await self._leases.clear(requested)
        log.info("workspace forked", extra={"workspace_id": made.workspace_id})
        return made

    async def _live(self, tenant: str, workspace_id: str) -> Workspace:
        found = await self.get(tenant, workspace_id)
        if found.state is not State.PROVISIONED:
            raise WorkspaceNotFound(workspace_id)
        return found

    async def _made(
        self, requested: Workspace, make: Make, warm: MakeWarm | None = None
    ) -> Workspace | Miss:
        """Return what a key made before, or make it now."""
        workspace_id, tenant = requested.workspace_id, requested.tenant
        build = self._builds.get(workspace_id)
        if build is None:
            known = self._known(workspace_id, requested.request)
            if known is not None:
                return known
            self._check_room(tenant)
            build = self._builds.start(
                requested,
                lambda: self._made_once(workspace_id, make),
                warm and (lambda: self._made_once(workspace_id, warm)),
            )
        elif build.released:
            raise WorkspaceReleased(workspace_id)
        elif build.requested.request != requested.request:
            raise IdempotencyConflict(workspace_id)
        outcome = await self._builds.outcome(build)
        return outcome if isinstance(outcome, Miss) else _same(outcome, requested.request)

    def _known(self, workspace_id: str, request: str) -> Workspace | None:
        if self._builds.get(workspace_id) is not None:
            return None
        with storage_errors():
            found = self._ledger.get(workspace_id)
        return None if found is None else _same(found, request)

    def _check_room(self, tenant: str) -> None:
        limits = self._limits
        if self.held() >= limits.workspaces:
            raise HostFull(f"it holds {limits.workspaces} already")
        if limits.tenant_workspaces < limits.workspaces:
            held = self._ledger.provisioned(tenant) + self._builds.of_tenant(tenant)
            if held >= limits.tenant_workspaces:
                raise QuotaExceeded(limits.tenant_workspaces)

    async def _made_once(
        self, workspace_id: str, make: Callable[[], Awaitable[Made]]
    ) -> Workspace | Made:
        """Make, unless another process made or released it while this one waited."""
        found = self._ledger.get(workspace_id)
        return await make() if found is None else found

    async def _claimed(
        self, requested: Workspace, make: Callable[[], Awaitable[Workspace | Miss]]
    ) -> Workspace | Miss:
        """Claim name and branch, then make; what was not made claims nothing."""
        workspace_id = requested.workspace_id
        claims = claims_of(requested)
        if not claims:
            return await make()
        await self._claims.take(workspace_id, claims)
        made: Workspace | Miss | None = None
        try:
            made = await make()
        finally:
            if not isinstance(made, Workspace):
                await self._claims.drop(workspace_id, claims)
        return made

    async def get(self, tenant: str, workspace_id: str) -> Workspace:
        """Return a workspace, also one that is being made or was released within a day; raises
        WorkspaceNotFound.
        """
        if not is_id("wsp", workspace_id):
            raise WorkspaceNotFound("")
        build = self._builds.get(workspace_id)
        found = build.requested if build else self._ledger.get(workspace_id)
        if found is None or found.tenant != tenant or not found.project:
            raise WorkspaceNotFound(workspace_id)
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
        """See Leases.renew."""
        await self.get(tenant, workspace_id)
        return await self._leases.renew(tenant, workspace_id, lease)

    async def rename(self, tenant: str, workspace_id: str, name: str) -> Workspace:
        """See Leases.rename."""
        checked_name(name)
        await self.get(tenant, workspace_id)
        return await self._leases.rename(tenant, workspace_id, name)

    async def release(
        self,
        tenant: str,
        *,
        workspace_id: str = "",
        idempotency_key: str = "",
        checked: bool = False,
    ) -> bool:
        """Give a workspace back, by its id or its key; see Leases.release."""
        checked_tenant(tenant)
        by_key = not workspace_id
        if by_key:
            workspace_id = self.workspace_id(tenant, checked_key(idempotency_key))
        return await self._leases.release(tenant, workspace_id, by_key=by_key, checked=checked)

    async def expire(self) -> None:
        """See Leases.expire; now and then the files of what is held are made durable too."""
        await self._leases.expire()
        now = self._clock.now()
        if now - self._flushed_at >= _FLUSH_PERIOD:
            self._flushed_at = now
            await self._flush()

    async def take_away_strays(self) -> None:
        """See Leases.take_away_strays."""
        await self._leases.take_away_strays()

    async def reconcile(self) -> None:
        """See Leases.reconcile."""
        await self._leases.reconcile()


def _same(made: Workspace, request: str) -> Workspace:
    """Return what a key made when it was asked for the same."""
    if made.state is State.RELEASED:
        raise WorkspaceReleased(made.workspace_id)
    if made.request != request:
        raise IdempotencyConflict(made.workspace_id)
    return made
