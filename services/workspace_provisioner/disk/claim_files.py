"""Claims of names and branches: one file each, which holds the id of its workspace.

A claim is made whole or not at all, before anything else of a workspace. It is removed only under
the lock of the workspace that it names, so a loser never takes a winner's. Claims are not durable:
the records are, and claims are made again from them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.errors import StorageUnavailable
from workspace_provisioner.lock_ports import Locks
from workspace_provisioner.names import Claim, claims_of
from workspace_provisioner.ports import Disk, Ledger
from workspace_provisioner.workspaces import State

log = logging.getLogger(__name__)

_ATTEMPTS = 5


class ClaimFiles:
    """The claims below a layout's host root."""

    def __init__(
        self, *, layout: Layout, disk: Disk, files: FileWork, ledger: Ledger, locks: Locks
    ) -> None:
        self._layout = layout
        self._disk = disk
        self._files = files
        self._ledger = ledger
        self._locks = locks

    async def take(self, workspace_id: str, claims: Sequence[Claim]) -> None:
        if not claims:
            return
        try:
            free = await self._files.run(self.take_free, workspace_id, claims)
            for claim in claims[free:]:
                if not await self._take(workspace_id, claim):
                    raise claim.refused()
        except BaseException:
            await self.drop(workspace_id, claims)
            raise

    def take_free(self, workspace_id: str, claims: Sequence[Claim]) -> int:
        """Take the claims up to the first one that somebody has; returns how many. Safe in any
        thread.
        """
        content = workspace_id.encode()
        for taken, claim in enumerate(claims):
            if not self._disk.make_exclusive(self._path(claim), content):
                return taken
        return len(claims)

    async def drop(self, workspace_id: str, claims: Iterable[Claim]) -> None:
        dropped = list(claims)
        if dropped:
            await self._files.run(self.drop_now, workspace_id, dropped)

    def drop_now(self, workspace_id: str, claims: Iterable[Claim]) -> None:
        """Do the same at once, in any thread.

        The last one first: who gets the first one, the name, then finds the others free as well.
        """
        for claim in reversed(list(claims)):
            self._remove(self._path(claim), workspace_id)

    async def restore(self) -> None:
        for workspace in list(self._ledger.all()):
            if workspace.state is not State.PROVISIONED:
                continue
            async with self._locks.hold(workspace.workspace_id):
                for claim in claims_of(workspace):
                    if not await self._take(workspace.workspace_id, claim):
                        log.error("claim lost", extra={"workspace_id": workspace.workspace_id})
        for path in await self._files.run(self._all):
            holder = self._holder(path)
            if holder:
                await self._drop_stale(path, holder)

    async def _take(self, workspace_id: str, claim: Claim) -> bool:
        path = self._path(claim)
        content = workspace_id.encode()
        for _ in range(_ATTEMPTS):
            if await self._files.run(self._disk.make_exclusive, path, content):
                return True
            holder = self._holder(path)
            if holder == workspace_id:
                return True
            if holder is None:
                continue
            if not await self._drop_stale(path, holder):
                return False
        return False

    async def _drop_stale(self, path: Path, holder: str) -> bool:
        """Remove the claim of a workspace that does not have it; False when it has, or when it is
        just being made, renamed or released.
        """
        if self._holds(holder, path):
            return False
        async with self._locks.attempt(holder) as held:
            if not held or self._holds(holder, path):
                return False
            if await self._files.run(self._remove, path, holder):
                log.info("stale claim dropped", extra={"workspace_id": holder})
            return True

    def _holds(self, holder: str, path: Path) -> bool:
        try:
            found = self._ledger.get(holder)
        except StorageUnavailable:
            return True  # nobody knows what it has
        return (
            found is not None
            and found.state is State.PROVISIONED
            and any(self._path(claim) == path for claim in claims_of(found))
        )

    def _holder(self, path: Path) -> str | None:
        content = self._disk.read(path)
        return None if content is None else content.decode("ascii", "replace")

    def _remove(self, path: Path, workspace_id: str) -> bool:
        return self._holder(path) == workspace_id and self._disk.remove(path)

    def _path(self, claim: Claim) -> Path:
        name = hashlib.sha256(claim.text.encode()).hexdigest()[:32]
        return self._layout.claims(claim.key) / claim.kind / name

    def _all(self) -> list[Path]:
        found = [self._layout.names]
        for _ in range(4):  # tenant, project, kind, claim
            found = [path / name for path in found for name in self._disk.names(path)]
        return found
