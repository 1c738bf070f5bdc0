"""Creates, binds, renews and releases sandboxes; the same tenant and key always mean the same one.

Release wins: its tombstone is written before anything else, and a create that is under way ends in
it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta

from chassis.clock import Clock
from chassis.errors import FairleadError
from chassis.ids import derived_id
from chassis.limits import check_name
from fairlead_limits.table import DEFAULT_LEASE_SECONDS, IDEMPOTENCY_KEY
from sandbox_worker.errors import (
    ArgumentInvalid,
    HostFull,
    KeyTaken,
    SandboxBound,
    SandboxLost,
    SandboxNotFound,
    SandboxReleased,
    WorkerDraining,
)
from sandbox_worker.execution import ExitReason
from sandbox_worker.held_sandbox import HeldSandbox, SandboxOrder, lease_seconds
from sandbox_worker.network.networks import Networks
from sandbox_worker.owned_tasks import OwnedTasks, outcome
from sandbox_worker.ports import Enclosure, SandboxRecord, SandboxRecords, Trees
from sandbox_worker.sandbox import (
    Fence,
    Hold,
    Limits,
    Sandbox,
    SandboxState,
)
from sandbox_worker.sandbox_plans import SandboxPlan, SandboxPlans

log = logging.getLogger(__name__)

_DEFAULT_PAGE = 100
_LARGEST_PAGE = 1000
_GRACE_SECONDS = 2.0
"""What a sandbox waits beyond its lease before it ends itself: the worker is the one to end it,
unless it is stopped."""


class Sandboxes:
    """The sandboxes of this host."""

    def __init__(
        self,
        *,
        host_id: str,
        id_key: bytes,
        epoch: int,
        plans: SandboxPlans,
        networks: Networks,
        records: SandboxRecords,
        trees: Trees,
        clock: Clock,
        most: int,
        tombstone_seconds: float,
    ) -> None:
        self._host_id = host_id
        self._id_key = id_key
        self._epoch = epoch
        self._plans = plans
        self._networks = networks
        self._records = records
        self._trees = trees
        self._clock = clock
        self._most = most
        self._tombstone_seconds = tombstone_seconds
        self._held: dict[str, HeldSandbox] = {}
        self._tombstones: dict[str, datetime] = {}
        self._fences = itertools.count(1)
        self._tasks = OwnedTasks()
        self._draining = False

    @property
    def count(self) -> int:
        """How many sandboxes are held."""
        return len(self._held)

    @property
    def draining(self) -> bool:
        """Whether nothing more is created."""
        return self._draining

    async def recover(self) -> None:
        """Take over from an earlier life: its sandboxes are gone, and their keys stay used."""
        found = await self._records.all()
        released = [(each.released_at, each.sandbox_id) for each in found if each.released_at]
        self._tombstones.update({sandbox_id: at for at, sandbox_id in sorted(released)})
        for record in found:
            if record.released_at is None:
                await self._entomb(record.sandbox_id, record.tenant, record.fence)
        for isolation in self._plans.isolations:
            await isolation.clean()

    async def create(self, *, tenant: str, key: str, order: SandboxOrder) -> Sandbox:
        """Make a sandbox, or return the one that this tenant and key already mean.

        Raises SandboxReleased, SandboxLost, KeyTaken, IsolationFailed, HostFull, WorkerDraining,
        what SandboxPlans.plan raises and, with a workspace, what `bind` raises.
        """
        sandbox_id = self.id_of(tenant, key)
        plan = self._plans.plan(order)
        held = self._held.get(sandbox_id)
        if held is None:
            if sandbox_id in self._tombstones:
                raise SandboxReleased(sandbox_id)
            if self._draining:
                raise WorkerDraining
            if len(self._held) >= self._most:
                raise HostFull(self._most)
            now = self._clock.now()
            held = HeldSandbox(
                order=order,
                sandbox=Sandbox(
                    sandbox_id=sandbox_id,
                    tenant=tenant,
                    state=SandboxState.REQUESTED,
                    isolation=plan.isolation.name,
                    limits=Limits(),
                    host_id=self._host_id,
                    workspace_id="",
                    created_at=now,
                    expires_at=now + timedelta(seconds=plan.lease),
                    launch_id=order.launch_id,
                    profile=plan.profile,
                    network=plan.network,
                    fence=self._next_fence(),
                ),
                ends_at=self._clock.monotonic() + plan.lease,
            )
            self._held[sandbox_id] = held
            held.making = self._tasks.start(self._make(held, plan), name=f"make {sandbox_id}")
        elif held.order != order:
            raise KeyTaken(sandbox_id)
        if held.making is not None:
            await outcome(held.making)
        if held.ending is ExitReason.HOST_LOST:
            raise SandboxLost(sandbox_id)
        if held.ending is not None:
            raise SandboxReleased(sandbox_id)
        return held.sandbox

    async def bind(self, *, tenant: str, sandbox_id: str, workspace_id: str) -> Sandbox:
        """Give a sandbox its workspace; raises SandboxBound, SandboxNotFound, WorkspaceNotFound."""
        held, enclosure = self.enter(tenant, sandbox_id)
        tree = await self._trees.find(workspace_id)
        if held.sandbox.workspace_id not in ("", workspace_id):
            raise SandboxBound(sandbox_id)
        await enclosure.bind(tree)
        if held.sandbox.workspace_id not in ("", workspace_id):
            raise SandboxBound(sandbox_id)
        held.sandbox = replace(held.sandbox, workspace_id=workspace_id)
        return held.sandbox

    def get(self, *, tenant: str, sandbox_id: str) -> Sandbox:
        """Return a sandbox; raises SandboxNotFound."""
        held = self._held.get(sandbox_id)
        if held is None or held.sandbox.tenant != tenant:
            raise SandboxNotFound(sandbox_id)
        return held.sandbox

    def page(self, *, tenant: str, size: int, after: str) -> tuple[list[Sandbox], str]:
        """Return sandboxes by id and the token of the next page; all tenants' when empty."""
        if not 0 <= size <= _LARGEST_PAGE:
            raise ArgumentInvalid("page_size", f"is from 1 to {_LARGEST_PAGE}")
        size = size or _DEFAULT_PAGE
        wanted = sorted(
            sandbox_id
            for sandbox_id, held in self._held.items()
            if sandbox_id > after and tenant in ("", held.sandbox.tenant)
        )
        page = [self._held[sandbox_id].sandbox for sandbox_id in wanted[:size]]
        return page, wanted[size - 1] if len(wanted) > size else ""

    async def renew(self, *, tenant: str, sandbox_id: str, lease: float) -> Sandbox:
        """Move the end of the lease to `lease` seconds from now; raises SandboxNotFound and
        SandboxLost.
        """
        seconds = lease_seconds(lease, DEFAULT_LEASE_SECONDS)
        held, enclosure = self.enter(tenant, sandbox_id)
        async with held.renewing:
            fence = self._next_fence()
            await enclosure.hold(fence, seconds + _GRACE_SECONDS)
            held, _ = self.enter(tenant, sandbox_id)
            held.ends_at = self._clock.monotonic() + seconds
            expires_at = self._clock.now() + timedelta(seconds=seconds)
            held.sandbox = replace(held.sandbox, expires_at=expires_at, fence=fence)
            return held.sandbox

    async def release(self, *, tenant: str, sandbox_id: str = "", key: str = "") -> bool:
        """Give a sandbox back; returns when no process is left, and whether this call did it.

        A key that means no sandbox yet is used up: a create that is still on its way finds the
        tombstone.
        """
        by_key = not sandbox_id
        if by_key:
            sandbox_id = self.id_of(tenant, key)
        held = self._held.get(sandbox_id)
        if held is None or held.sandbox.tenant != tenant:
            if by_key and sandbox_id not in self._tombstones:
                await self._entomb(sandbox_id, tenant, Fence(self._epoch))
            return False
        first = held.releasing is None
        await outcome(self._end(held, ExitReason.RELEASED))
        return first

    async def release_expired(self) -> None:
        """Release what nobody renewed, and forget tombstones that are old enough."""
        now = self._clock.monotonic()
        ended = [held for held in self._held.values() if held.ends_at <= now]
        for held in ended:
            if held.releasing is None:
                log.info("lease ended", extra={"sandbox_id": held.sandbox.sandbox_id})
                self._end(held, ExitReason.RELEASED)
        oldest = self._clock.now() - timedelta(seconds=self._tombstone_seconds)
        # They lie in the order of their times, however many there are.
        while self._tombstones:
            sandbox_id, at = next(iter(self._tombstones.items()))
            if at >= oldest:
                return
            await self._records.remove(sandbox_id)
            self._tombstones.pop(sandbox_id, None)

    def bounded_on_disk(self) -> Sequence[HeldSandbox]:
        """Return those whose workspace may grow up to a limit only."""
        return [
            held
            for held in self._held.values()
            if held.ending is None and held.sandbox.workspace_id and held.sandbox.limits.disk_bytes
        ]

    def end(self, held: HeldSandbox, reason: ExitReason) -> None:
        """Release a sandbox that has broken a limit; its executions end for this reason."""
        self._end(held, reason)

    async def tidy(self) -> None:
        """Remove what could not be removed when its sandbox ended."""
        for isolation in self._plans.isolations:
            await isolation.tidy()

    def drain(self) -> None:
        """Create nothing more."""
        self._draining = True

    async def close(self) -> None:
        """End all sandboxes with this worker; their executions end with reason host_lost."""
        self._draining = True
        for held in list(self._held.values()):
            self._end(held, ExitReason.HOST_LOST)
        await self._tasks.settle()

    def enter(self, tenant: str, sandbox_id: str) -> tuple[HeldSandbox, Enclosure]:
        """Return a sandbox that can be used; raises SandboxNotFound."""
        held = self._held.get(sandbox_id)
        if (
            held is None
            or held.sandbox.tenant != tenant
            or held.enclosure is None
            or held.ending is not None
            or held.ends_at <= self._clock.monotonic()  # What was stopped for long may be late.
        ):
            raise SandboxNotFound(sandbox_id)
        return held, held.enclosure

    @contextmanager
    def visit(self, tenant: str, sandbox_id: str) -> Iterator[Enclosure]:
        """Make the calling task a visitor: it is cancelled when the sandbox is released."""
        held, enclosure = self.enter(tenant, sandbox_id)
        task = asyncio.current_task()
        if task is not None:
            held.visitors.add(task)
        try:
            yield enclosure
        finally:
            if task is not None:
                held.visitors.discard(task)

    def id_of(self, tenant: str, key: str) -> str:
        """Return the id that a tenant's key means on this host; raises ArgumentInvalid."""
        if not tenant:
            raise ArgumentInvalid("tenant", "is required")
        check_name(IDEMPOTENCY_KEY, key)
        return derived_id("sbx", tenant, "sandbox", key, key=self._id_key)

    def _next_fence(self) -> Fence:
        return Fence(self._epoch, next(self._fences))

    async def _make(self, held: HeldSandbox, plan: SandboxPlan) -> None:
        sandbox = held.sandbox
        try:
            await self._records.put(
                SandboxRecord(
                    sandbox_id=sandbox.sandbox_id, tenant=sandbox.tenant, fence=sandbox.fence
                )
            )
            wanted = held.order.workspace_id
            enclosure = await plan.isolation.enclose(
                sandbox.sandbox_id,
                plan.limits,
                plan.network,
                tenant=sandbox.tenant,
                workspace=await self._trees.find(wanted) if wanted else None,
                hold=Hold(sandbox.fence, plan.lease + _GRACE_SECONDS),
            )
            try:
                await self._networks.prepare(sandbox.sandbox_id, enclosure, plan.network)
            except Exception:
                await enclosure.destroy()
                raise
            self._networks.apply(sandbox.sandbox_id, plan.network)
        except Exception:
            if held.ending is None:
                del self._held[sandbox.sandbox_id]
                with suppress(FairleadError):  # what went wrong first is what is told
                    await self._records.remove(sandbox.sandbox_id)
            raise
        held.enclosure = enclosure
        if held.ending is None:
            held.sandbox = replace(
                held.sandbox,
                state=SandboxState.PROVISIONED,
                workspace_id=held.order.workspace_id,
                walls=tuple(enclosure.walls),
                limits=_held_limits(enclosure.limits, plan.limits),
            )
        self._tasks.start(self._watch(held, enclosure), name=f"watch {sandbox.sandbox_id}")

    async def _watch(self, held: HeldSandbox, enclosure: Enclosure) -> None:
        await enclosure.gone()
        if held.releasing is not None:
            return
        if held.ends_at <= self._clock.monotonic():
            log.warning("a sandbox has ended itself", extra={"sandbox_id": held.sandbox.sandbox_id})
            self._end(held, ExitReason.RELEASED)
            return
        log.warning("sandbox lost", extra={"sandbox_id": held.sandbox.sandbox_id})
        self._end(held, ExitReason.HOST_LOST)

    def _end(self, held: HeldSandbox, reason: ExitReason) -> asyncio.Task[None]:
        if held.releasing is None:
            held.ending = reason
            held.sandbox = replace(held.sandbox, state=SandboxState.RELEASED)
            held.releasing = self._tasks.start(
                self._release(held), name=f"release {held.sandbox.sandbox_id}"
            )
        return held.releasing

    async def _release(self, held: HeldSandbox) -> None:
        sandbox = held.sandbox
        await self._entomb(sandbox.sandbox_id, sandbox.tenant, sandbox.fence)
        for visitor in held.visitors:
            visitor.cancel()
        if held.making is not None:
            await asyncio.wait([held.making])
        await self._networks.cut(sandbox.sandbox_id)
        if held.enclosure is not None:
            await held.enclosure.destroy()
        while held.occupants:
            await asyncio.wait(held.occupants)
        self._held.pop(sandbox.sandbox_id, None)

    async def _entomb(self, sandbox_id: str, tenant: str, fence: Fence) -> None:
        """Use up an id; a disk that takes nothing must not keep processes alive."""
        now = self._clock.now()
        self._tombstones.pop(sandbox_id, None)
        self._tombstones[sandbox_id] = now
        try:
            await self._records.put(
                SandboxRecord(sandbox_id=sandbox_id, tenant=tenant, released_at=now, fence=fence)
            )
        except FairleadError as error:
            log.error("a tombstone is kept in memory only", extra={"reason": error.reason})


def _held_limits(held: Limits, asked: Limits) -> Limits:
    """Return the limits that an enclosure holds, and those that the worker holds it to."""
    return replace(
        held,
        wall_seconds=asked.wall_seconds,
        output_bytes=asked.output_bytes,
        disk_bytes=asked.disk_bytes,
    )
