"""What the use cases need from the outside, and what the API needs from the use cases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from workspace_provisioner.sources import Changes, ProjectKey, Source, Tip
from workspace_provisioner.workspaces import Miss, Snapshot, Workspace


class ObjectsLacking(Exception):
    """Git did not find, or could not read, objects that a checkout needs."""


@dataclass(frozen=True, slots=True)
class CheckoutPlan:
    """What to write out: HEAD on `branch` at `commit`; the files of `changes`, or else the
    commit's.
    """

    workspace_id: str
    key: ProjectKey
    commit: str
    branch: str
    changes: Changes | None


class Quarantine(Protocol):
    """Where the objects of an upload wait until they are known to be good and whole."""

    async def receive(self, chunks: AsyncIterator[bytes]) -> int:
        """Index the pack and return its size in bytes; no chunk at all is an empty pack.

        Raises PackInvalid, PackTooLarge, UploadIdle and SnapshotIncomplete.
        """
        ...

    async def admit(self, snapshot: Snapshot) -> None:
        """Move the objects into the store for good, and pin the commits and the tree of changes.

        Raises SnapshotIncomplete when an object is lacking that they reach.
        """
        ...


class Stores(Protocol):
    """The object stores of this host, one for each project key."""

    async def holds(self, key: ProjectKey) -> bool:
        """Say whether there is a store for the key."""
        ...

    async def knows(self, key: ProjectKey, commit: str) -> bool:
        """Say whether the commit is reachable from the key's durable tips."""
        ...

    async def tips(self, key: ProjectKey) -> tuple[str, ...]:
        """Return the newest tips by committer date, at most 64."""
        ...

    async def knows_tree(self, key: ProjectKey, tree: str) -> bool:
        """Say whether a tree of changes was uploaded and is whole."""
        ...

    async def is_whole(self, key: ProjectKey, roots: Sequence[str]) -> bool:
        """Look whether every object of the trees of `roots` is there and every pack readable;
        slow.
        """
        ...

    async def forget(self, key: ProjectKey) -> None:
        """Take back every promise of a damaged store: no tips, no records, and no pack that git
        cannot read.
        """
        ...

    def quarantine(self, key: ProjectKey) -> AbstractAsyncContextManager[Quarantine]:
        """Open a quarantine; whatever was not admitted is gone when it closes."""
        ...

    async def snapshots(self) -> Sequence[Snapshot]:
        """Return the snapshots of all stores."""
        ...


class Trees(Protocol):
    """The files of workspaces."""

    async def build(self, plan: CheckoutPlan) -> bool:
        """Write the files out where nobody looks; returns whether the tree has submodules.

        Raises ObjectsLacking, PackInvalid and CheckoutFailed. What was made stays until `publish`
        or `discard`.
        """
        ...

    async def publish(self, workspace_id: str) -> None:
        """Put the finished files in their place, at once."""
        ...

    async def discard(self, workspace_id: str) -> None:
        """Take a workspace away, finished or not; its files are deleted later. Nothing there is
        fine.
        """
        ...

    async def count_changes(self, workspace: Workspace) -> int | None:
        """Count the files that differ from what was materialised; None when they cannot be
        counted in time.
        """
        ...

    async def present(self) -> frozenset[str]:
        """Return the ids of the workspaces whose files are in place."""
        ...

    async def sweep(self) -> None:
        """Take away what an earlier process left unfinished. Only at start, before the first
        call.
        """
        ...

    async def empty_trash(self) -> bool:
        """Delete of what was discarded for some milliseconds; returns whether all was tried. What
        resists stays for the next time.
        """
        ...

    async def free_bytes(self) -> int:
        """Return the free space of the file system."""
        ...


class Ledger(Protocol):
    """The records of workspaces. Reading is from memory; a write shows at once and returns when it
    survives the end of this process.
    """

    def get(self, workspace_id: str) -> Workspace | None:
        """Return a record."""
        ...

    def provisioned(self) -> int:
        """Count the workspaces that are provisioned, in constant time."""
        ...

    def all(self) -> Iterable[Workspace]:
        """Return every record, in the order of their ids."""
        ...

    async def put(self, workspace: Workspace) -> None:
        """Write a record."""
        ...

    async def remove(self, workspace_id: str) -> None:
        """Drop a record."""
        ...


class SnapshotDirectory(Protocol):
    """Where placement looks up which host holds what."""

    async def publish(self, snapshot: Snapshot) -> None:
        """Say that this host holds a snapshot; raises chassis.errors.Unavailable."""
        ...


class WorkspaceOperations(Protocol):
    """What the API does with workspaces; see Provisioner."""

    async def materialize(
        self, *, idempotency_key: str, source: Source, branch: str, lease: timedelta
    ) -> Workspace | Miss: ...

    async def get(self, tenant: str, workspace_id: str) -> Workspace: ...

    async def count_changes(self, workspace: Workspace) -> int | None: ...

    async def list(self, tenant: str, *, size: int, after: str) -> tuple[list[Workspace], str]: ...

    async def renew(self, tenant: str, workspace_id: str, lease: timedelta) -> Workspace: ...

    async def release(
        self, tenant: str, *, workspace_id: str = "", idempotency_key: str = ""
    ) -> bool: ...


class SnapshotOperations(Protocol):
    """What the API does with uploads; see Importer."""

    async def receive(
        self, source: Source, tips: tuple[Tip, ...], chunks: AsyncIterator[bytes]
    ) -> Snapshot: ...
