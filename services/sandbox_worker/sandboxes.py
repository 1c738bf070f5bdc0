"""Creates, binds, renews and releases sandboxes; the same tenant and key always mean the same one.

Release wins: its tombstone is written before anything else, and a create that is under way ends in
it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta

from chassis.clock import Clock
from chassis.errors import FairleadError
from chassis.ids import derived_id
from sandbox_worker.errors import (
    ArgumentInvalid,
    HostFull,
    IsolationUnavailable,
    IsolationUnknown,
    SandboxBound,
    SandboxNotFound,
    SandboxReleased,
    WorkerDraining,
)
from sandbox_worker.execution import ExitReason
from sandbox_worker.held_sandbox import HeldSandbox, check_limits, lease_seconds
from sandbox_worker.owned_tasks import OwnedTasks, outcome
from sandbox_worker.ports import Enclosure, Isolation, SandboxRecord, SandboxRecords, Trees
from sandbox_worker.sandbox import (
    DEFAULT_LIMITS,
    ISOLATIONS,
    Limits,
    Sandbox,
    SandboxState,
)

log = logging.getLogger(__name__)

_DEFAULT_PAGE = 100
_LARGEST_PAGE = 1000
_LONGEST_KEY = 256


class Sandboxes:
    """The sandboxes of this host."""

    def __init__(
        self,
        *,
        host_id: str,
        id_key: bytes,
        isolations: Mapping[str, Isolation],
        records: SandboxRecords,
        trees: Trees,
        clock: Clock,
        most: int,
        tombstone_seconds: float,
    ) -> None:
        self._host_id = host_id
        self._id_key = id_key
        self._isolations = isolations
        self._records = records
        self._trees = trees
        self._clock = clock
        self._most = most
        self._tombstone_seconds = tombstone_seconds
        self._held: dict[str, HeldSandbox] = {}
        self._tombstones: dict[str, datetime] = {}
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

    @property
    def isolations(self) -> Sequence[str]:
        """The isolations of this host, weakest first."""
        return [name for name in ISOLATIONS if name in self._isolations]

    async def recover(self) -> None:
        """Take over from an earlier life: its sandboxes are gone, and their keys stay used."""
        for record in await self._records.all():
            if record.released_at is None:
                await self._entomb(record.sandbox_id, record.tenant)
            else:
                self._tombstones[record.sandbox_id] = record.released_at
        for isolation in self._isolations.values():
            await isolation.clean()

    async def create(
        self, *, tenant: str, key: str, isolation: str = "", limits: Limits, lease: float = 0
    ) -> Sandbox:
        """Make a sandbox, or return the one that this tenant and key already mean.

        `lease` is in seconds, 0 for the default. Raises SandboxReleased, IsolationUnknown,
        IsolationUnavailable, IsolationFailed, HostFull, ArgumentInvalid, WorkerDraining.
        """
        check_limits(limits)
        sandbox_id = self.id_of(tenant, key)
        chosen = self._chosen(isolation)
        seconds = lease_seconds(lease)
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
                sandbox=Sandbox(
                    sandbox_id=sandbox_id,
                    tenant=tenant,
                    state=SandboxState.REQUESTED,
                    isolation=chosen.name,
                    limits=Limits(),
                    host_id=self._host_id,
                    workspace_id="",
                    created_at=now,
                    expires_at=now + timedelta(seconds=seconds),
                ),
                ends_at=self._clock.monotonic() + seconds,
            )
            self._held[sandbox_id] = held
            held.making = self._tasks.start(
                self._make(held, chosen, limits.over(DEFAULT_LIMITS)), name=f"make {sandbox_id}"
            )
        if held.making is not None:
            await outcome(held.making)
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

    def renew(self, *, tenant: str, sandbox_id: str, lease: float) -> Sandbox:
        """Move the end of the lease to `lease` seconds from now; raises SandboxNotFound."""
        seconds = lease_seconds(lease)
        held, _ = self.enter(tenant, sandbox_id)
        held.ends_at = self._clock.monotonic() + seconds
        expires_at = self._clock.now() + timedelta(seconds=seconds)
        held.sandbox = replace(held.sandbox, expires_at=expires_at)
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
                await self._entomb(sandbox_id, tenant)
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
        for sandbox_id in [name for name, at in self._tombstones.items() if at < oldest]:
            await self._records.remove(sandbox_id)
            self._tombstones.pop(sandbox_id, None)

    async def tidy(self) -> None:
        """Remove what could not be removed when its sandbox ended."""
        for isolation in self._isolations.values():
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
        if not 0 < len(key) <= _LONGEST_KEY:
            raise ArgumentInvalid("idempotency_key", f"has 1 to {_LONGEST_KEY} characters")
        return derived_id("sbx", tenant, "sandbox", key, key=self._id_key)

    def _chosen(self, name: str) -> Isolation:
        available = self.isolations
        if not name:
            return self._isolations[available[-1]]
        if name not in ISOLATIONS:
            raise IsolationUnknown(name, ISOLATIONS)
        if name not in self._isolations:
            raise IsolationUnavailable(name, available)
        return self._isolations[name]

    async def _make(self, held: HeldSandbox, isolation: Isolation, limits: Limits) -> None:
        sandbox = held.sandbox
        try:
            await self._records.put(
                SandboxRecord(sandbox_id=sandbox.sandbox_id, tenant=sandbox.tenant)
            )
            enclosure = await isolation.enclose(sandbox.sandbox_id, limits)
        except Exception:
            if held.ending is None:
                del self._held[sandbox.sandbox_id]
                with suppress(FairleadError):  # what went wrong first is what is told
                    await self._records.remove(sandbox.sandbox_id)
            raise
        held.enclosure = enclosure
        if held.ending is None:
            held.sandbox = replace(
                held.sandbox, state=SandboxState.PROVISIONED, limits=enclosure.limits
            )
        self._tasks.start(self._watch(held, enclosure), name=f"watch {sandbox.sandbox_id}")

    async def _watch(self, held: HeldSandbox, enclosure: Enclosure) -> None:
        await enclosure.gone()
        if held.releasing is None:
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
        await self._entomb(sandbox.sandbox_id, sandbox.tenant)
        for visitor in held.visitors:
            visitor.cancel()
        if held.making is not None:
            await asyncio.wait([held.making])
        if held.enclosure is not None:
            await held.enclosure.destroy()
        while held.occupants:
            await asyncio.wait(held.occupants)
        self._held.pop(sandbox.sandbox_id, None)

    async def _entomb(self, sandbox_id: str, tenant: str) -> None:
        """Use up an id; a disk that takes nothing must not keep processes alive."""
        now = self._clock.now()
        self._tombstones[sandbox_id] = now
        try:
            await self._records.put(
                SandboxRecord(sandbox_id=sandbox_id, tenant=tenant, released_at=now)
            )
        except FairleadError as error:
            log.error("a tombstone is kept in memory only", extra={"reason": error.reason})
