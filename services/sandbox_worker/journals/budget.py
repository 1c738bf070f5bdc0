"""How much the journals of a host may hold together, by sandbox, tenant and host, and which records
go first when that is too much: those of ended executions, the oldest first, then those of whoever
holds most.

Counts are in memory: what a journal holds is known again once it has been read from the disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from sandbox_worker.execution import GapReason

MIB = 1024 * 1024
LEAST_BYTES = MIB
"""What each execution that runs may hold, whatever the others do."""

_RESERVED_PART = 20
"""The reserve is at most this part of the file system."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """Bounds in bytes of all journals of one sandbox, of one tenant and of the host, and the space
    that is left free on their file system.
    """

    sandbox: int = 256 * MIB
    tenant: int = 1024 * MIB
    host: int = 4096 * MIB
    reserve: int = 256 * MIB


class Evictable(Protocol):
    """A journal, as the budget sees it."""

    @property
    def has_ended(self) -> bool:
        """Whether its execution has ended."""
        ...

    @property
    def is_read(self) -> bool:
        """Whether somebody reads it."""
        ...

    def may_evict(self, *, newest: bool) -> bool:
        """Say whether its oldest records may go; with `newest` also when they are all it has."""
        ...

    async def evict(self, reason: GapReason) -> None:
        """Delete its oldest records."""
        ...

    def retry(self) -> None:
        """Look for room again, if it waits for that."""
        ...


@dataclass(slots=True)
class _Group:
    """Journals with a common bound, in the order in which they began and ended."""

    most: int
    held: int = 0
    members: int = 0
    running: dict[Evictable, None] = field(default_factory=dict)
    ended: dict[Evictable, None] = field(default_factory=dict)
    """Those that still hold something."""


@dataclass(slots=True)
class _Account:
    sandbox_id: str
    tenant: str
    groups: tuple[_Group, _Group, _Group]
    held: int = 0


class JournalBudget:
    """The counts of all journals of a host."""

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self._accounts: dict[Evictable, _Account] = {}
        self._sandboxes: dict[str, _Group] = {}
        self._tenants: dict[str, _Group] = {}
        self._host = _Group(budgets.host)
        self._waiting: set[Evictable] = set()

    @property
    def held(self) -> int:
        """Bytes that all journals hold."""
        return self._host.held

    def most_of_sandbox(self, disk_bytes: int) -> int:
        """Return the bound of a sandbox's journals, which is less where its disk is limited."""
        most = self._budgets.sandbox
        return min(most, max(disk_bytes, LEAST_BYTES)) if disk_bytes else most

    def enter(
        self, journal: Evictable, *, sandbox_id: str, tenant: str, most: int, held: int
    ) -> None:
        """Count a journal; `most` bounds all of its sandbox."""
        sandbox = self._sandboxes.setdefault(sandbox_id, _Group(most))
        sandbox.most = most
        of_tenant = self._tenants.setdefault(tenant, _Group(self._budgets.tenant))
        groups = (sandbox, of_tenant, self._host)
        self._accounts[journal] = _Account(sandbox_id, tenant, groups)
        for group in groups:
            group.members += 1
            (group.ended if journal.has_ended else group.running)[journal] = None
        self.changed(journal, held)

    def leave(self, journal: Evictable) -> None:
        """Forget a journal that was deleted."""
        account = self._accounts.pop(journal, None)
        if account is None:
            return
        for group in account.groups:
            group.members -= 1
            group.held -= account.held
            group.running.pop(journal, None)
            group.ended.pop(journal, None)
        if not account.groups[0].members:
            del self._sandboxes[account.sandbox_id]
        if not account.groups[1].members:
            del self._tenants[account.tenant]
        self._waiting.discard(journal)
        self._wake()

    def changed(self, journal: Evictable, by: int) -> None:
        """Count bytes that a journal has taken, or given back."""
        account = self._accounts.get(journal)
        if account is None:
            return
        account.held += by
        for group in account.groups:
            group.held += by
        if by < 0:
            self._wake()

    def ended(self, journal: Evictable) -> None:
        """Take note that its execution has ended."""
        account = self._accounts.get(journal)
        if account is None:
            return
        for group in account.groups:
            group.running.pop(journal, None)
            group.ended[journal] = None
        self._waiting.discard(journal)
        self._wake()

    async def make_room(self, journal: Evictable, size: int) -> bool:
        """Evict until `size` bytes of a journal fit into every bound; False where nothing more may
        go, and then it is told to look again once that has changed.
        """
        account = self._accounts.get(journal)
        if account is None:
            return True
        for group in account.groups:
            if not await self._reduce(group, group.most - size):
                if account.held + size <= LEAST_BYTES:
                    continue
                self._waiting.add(journal)
                return False
        self._waiting.discard(journal)
        return True

    async def relieve(self, reason: GapReason) -> bool:
        """Evict some records because the disk is full; False where none may go."""
        victim = self._victim(self._host, newest=False)
        if victim is None:
            return False
        await victim.evict(reason)
        return True

    async def enforce(self, *, size: int, free: int) -> None:
        """Evict what is over a bound, now that the file system has `size` bytes, `free` of them to
        be taken.
        """
        reserve = min(self._budgets.reserve, size // _RESERVED_PART)
        self._host.most = max(0, min(self._budgets.host, self._host.held + free - reserve))
        for group in (*self._sandboxes.values(), *self._tenants.values(), self._host):
            await self._reduce(group, group.most)
        self._wake()

    async def _reduce(self, group: _Group, most: int) -> bool:
        """Evict until a group holds at most so many bytes; False where nothing more may go."""
        while group.held > most:
            victim = self._victim(group, newest=True)
            if victim is None:
                return False
            await victim.evict(GapReason.EVICTED)
        return True

    def _victim(self, group: _Group, *, newest: bool) -> Evictable | None:
        """Choose a journal whose oldest records go."""
        groups: Iterable[_Group] = (group,)
        if group is self._host:
            # Of the tenant that holds most: nobody is to lose by what another one writes.
            groups = sorted(self._tenants.values(), key=lambda tenant: -tenant.held)
        for each in groups:
            victim = self._victim_of(each, newest=newest)
            if victim is not None:
                return victim
        return None

    def _victim_of(self, group: _Group, *, newest: bool) -> Evictable | None:
        read: Evictable | None = None
        unread: Evictable | None = None
        spent = []
        for journal in group.ended:
            if not journal.may_evict(newest=newest):
                spent.append(journal)  # it holds nothing, for good
            elif not journal.is_read:
                unread = journal
                break
            elif read is None:
                read = journal
        for journal in spent:
            del group.ended[journal]
        if unread is not None:
            return unread
        candidates = [each for each in group.running if each.may_evict(newest=newest)]
        if candidates:
            return max(candidates, key=lambda each: self._accounts[each].held)
        return read

    def _wake(self) -> None:
        for journal in self._waiting:
            journal.retry()
