"""What the use cases need from the outside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from workspace_provisioner.names import Claim
from workspace_provisioner.sources import Changes, ProjectKey, Source, Tip
from workspace_provisioner.stamps import PackedTags, StoreStamp
from workspace_provisioner.workspaces import Freshness, MissReason, Rung, Snapshot, Workspace


class ObjectsLacking(Exception):
    """Git did not find, or could not read, objects that a checkout needs."""


class Drifted(Exception):
    """The store no longer is what it was when something was prepared from it."""

    def __init__(self, reason: MissReason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class CheckoutPlan:
    """What to make: HEAD on `branch` at `commit`; the files of `changes`, or else the commit's.
    With `overlay` it may be laid over a template.
    """

    workspace_id: str
    key: ProjectKey
    commit: str
    branch: str
    changes: Changes | None
    overlay: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """How a workspace was made, and what its commit holds."""

    rung: Rung
    has_submodules: bool
    submodules_fault: str
    lfs_pointers: int


class Quarantine(Protocol):
    """Where the objects of an upload wait until they are known to be good and whole."""

    async def receive(self, chunks: AsyncIterator[bytes]) -> int:
        """Index the pack and return its size in bytes; no chunk at all is an empty pack.

        Raises PackInvalid, PackTooLarge, UploadIdle and SnapshotIncomplete.
        """
        ...

    async def admit(self, snapshot: Snapshot) -> Snapshot:
        """Move the objects into the store for good, and pin the commits and the tree of changes.

        Returns the snapshot as it is recorded. Raises SnapshotIncomplete when an object is lacking
        that they reach, and StoreLocked.
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

    async def lack(self, key: ProjectKey, commit: str, *, again: bool = False) -> MissReason | None:
        """Say why the commit cannot be served, or None when it is reachable from the key's durable
        tips; from memory while the store's files stay as they are, and not `again`.
        """
        ...

    async def stamp(self, key: ProjectKey, commit: str) -> StoreStamp | None:
        """Return what to compare the store with later; None when the commit is not known."""
        ...

    def verify(self, key: ProjectKey, stamp: StoreStamp) -> MissReason | None:
        """Compare the store with a stamp by looking at some ten files; safe in any thread.

        None: it keeps its promise. REF_DRIFT: the pin is lost or changed. SNAPSHOT_NOT_DURABLE: no
        record promises the pin. MISSING_OBJECTS: a pack is gone or cut, or the epoch moved on.
        """
        ...

    async def mark_used(self, key: ProjectKey) -> None:
        """Note that a store is of use, as whoever asks it does."""
        ...

    async def is_shallow(self, key: ProjectKey, commit: str) -> bool:
        """Say whether only the trees of a known commit are there, and none of its ancestors."""
        ...

    async def tags(self, key: ProjectKey) -> tuple[Tip, ...]:
        """Return the tags that clients sent, by name: full refs and what they name."""
        ...

    def packed_tags(self, key: ProjectKey) -> PackedTags:
        """Return the same in the form of git, as they were when the store was last looked at; in
        any thread.
        """
        ...

    async def doubt(self, key: ProjectKey) -> bool:
        """Look whether the store keeps all that it promises, and take the promises back when it
        does not; returns whether it did not. Slow.
        """
        ...

    def quarantine(
        self, key: ProjectKey, *, alone: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[Quarantine]:
        """Open a quarantine; whatever was not admitted is gone when it closes. The commits in
        `alone` come with their trees, and without their ancestors.
        """
        ...

    async def snapshots(self) -> Sequence[Snapshot]:
        """Return the snapshots of all stores."""
        ...


class Trees(Protocol):
    """The files of workspaces."""

    @property
    def can_overlay(self) -> bool:
        """Say whether workspaces can be laid over templates on this host."""
        ...

    async def take(self, plan: CheckoutPlan) -> Taken:
        """Put a whole workspace in its place by the cheapest way that there is.

        Raises Drifted, ObjectsLacking, PackInvalid and CheckoutFailed; what was made then stays
        until `discard`.
        """
        ...

    async def refresh(self, key: ProjectKey) -> None:
        """Compare what was prepared of a project with its store; mend it, or drop it."""
        ...

    async def discard(self, workspace_id: str) -> None:
        """Take a workspace away, finished or not; its files are deleted later. Nothing there is
        fine.
        """
        ...

    async def count_changes(self, workspace: Workspace) -> int | None:
        """Count the files that differ from what was made; None when that cannot be in time."""
        ...

    async def present(self) -> frozenset[str]:
        """Return the ids of the workspaces whose files are in place and whole."""
        ...

    async def strays(self) -> frozenset[str]:
        """Return the ids of all workspaces of which anything is there."""
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

    async def make_durable(self) -> None:
        """Make that durable over which workspaces are laid."""
        ...

    async def free_bytes(self) -> int:
        """Return the free space of the file system."""
        ...


class Log(Protocol):
    """A file that has its size from the start and is written in place, front to back: to flush it
    is to flush bytes and nothing else of the file system. Safe in any thread.
    """

    def append(self, content: bytes) -> bool:
        """Write behind what is there; durable, with all before it, when this returns. False when
        there is no room for it; nothing is written then.
        """
        ...

    def close(self) -> None:
        """Write no more."""
        ...


class Disk(Protocol):
    """The operations by which something survives: safe in any thread, each whole or not at all."""

    def write_whole(self, path: Path, content: bytes, *, durably: bool = True) -> None:
        """Put a file in place: the old one or the whole new one is there at any time, and the new
        one durably when this returns, unless that is not asked for.
        """
        ...

    def make_log(self, path: Path, size: int) -> Log:
        """Make a log of so many bytes, all zeros, where nothing is; durable with its name."""
        ...

    def make_exclusive(self, path: Path, content: bytes) -> bool:
        """Put a whole file where nothing is, with the directories above it; False when something
        is there. Not durable.
        """
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Move a file or directory; durable after `sync_directory` of both parents."""
        ...

    def remove(self, path: Path) -> bool:
        """Take a file away; False when there is none. Durable after `sync_directory`."""
        ...

    def read(self, path: Path) -> bytes | None:
        """Return what a file holds; None when there is none."""
        ...

    def names(self, path: Path) -> list[str]:
        """Return the names in a directory; none when there is no directory."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        ...

    def sync_tree(self, path: Path) -> None:
        """Make a directory and all that is below it durable."""
        ...

    def sync_all(self, path: Path) -> None:
        """Make everything on the file system of `path` durable; slow."""
        ...


class Shelves(Protocol):
    """What is prepared for launches to take."""

    @property
    def can_overlay(self) -> bool:
        """Say whether workspaces can be laid over templates on this host."""
        ...

    async def prepare(self, key: ProjectKey, commit: str, *, depth: int) -> None:
        """Make a commit's template where overlays can be mounted, and pool entries up to `depth`,
        at idle priority. Raises ObjectsLacking and CheckoutFailed.
        """
        ...

    async def collect(self) -> None:
        """Drop what nobody has taken for long, but nothing that a workspace needs."""
        ...


class Ledger(Protocol):
    """The records of workspaces, of all processes that serve this host root."""

    def get(self, workspace_id: str) -> Workspace | None:
        """Return a record as it is on the disk; raises StorageUnavailable for another form."""
        ...

    def provisioned(self, tenant: str = "") -> int:
        """Count the provisioned workspaces, of one tenant or of all, in constant time; those of
        other processes as `all` last saw them.
        """
        ...

    def all(self) -> Iterable[Workspace]:
        """Return every record, in the order of their ids."""
        ...

    async def put(self, workspace: Workspace) -> None:
        """Write a record; it is durable when this returns."""
        ...

    async def remove(self, workspace_id: str) -> None:
        """Drop a record."""
        ...

    async def flush(self, first: Callable[[], Awaitable[None]]) -> None:
        """Make the files of all workspaces durable that are recorded by now, and `first` that on
        which they stand; nothing to do is fine.
        """
        ...


class WarmPath(Protocol):
    """Several steps in one piece of work where nothing has to be waited for: what is prepared is
    taken, and what was made is given back. Call all of it under the lock of the workspace.
    """

    async def take(self, requested: Workspace, plan: CheckoutPlan) -> Workspace | None:
        """Claim, lay over the commit's template, record, in this order; returns the workspace.

        None when a claim is taken, nothing is prepared, or something is left to do or to look at:
        nothing of it stays then.
        """
        ...

    async def give_back(self, released: Workspace) -> None:
        """Record that a workspace was released, and take away its files and its claims, in this
        order; nothing there is fine.
        """
        ...


class Claims(Protocol):
    """Names and branches that a workspace has for itself. Call all of it under the lock of the
    workspace.
    """

    async def take(self, workspace_id: str, claims: Sequence[Claim]) -> None:
        """Take all or none; raises WorkspaceExists or BranchInUse. One whose workspace does not
        have it any more is taken over.
        """
        ...

    async def drop(self, workspace_id: str, claims: Iterable[Claim]) -> None:
        """Give claims up; those that are another workspace's stay."""
        ...

    async def restore(self) -> None:
        """Make the claims that the records say and drop all others. Only at start, without any
        lock.
        """
        ...


class Copies(Protocol):
    """Copies of live workspaces."""

    async def copy(self, source: Workspace, made: Workspace, *, overlay: bool) -> None:
        """Put a copy of a workspace's files in place as `made`, on a branch of its own when the
        copy claims one.

        Raises ForkFailed, BranchInUse and HostFull; what was made then stays until `discard`.
        """
        ...


class Unsaved(Protocol):
    """Looks for work that is in a workspace alone."""

    async def check(self, workspace: Workspace) -> None:
        """Raises WorkspaceDirty or WorkspaceUnpushed, also when it cannot be told."""
        ...


class SnapshotDirectory(Protocol):
    """Where placement looks up which host holds what."""

    async def publish(self, snapshot: Snapshot) -> None:
        """Say that this host holds a snapshot; raises chassis.errors.Unavailable."""
        ...

    async def is_current(self) -> bool:
        """Say whether all that this process published is still there; raises Unavailable."""
        ...


class UpstreamTips(Protocol):
    """What this host knows of where projects come from; see Upstreams."""

    async def resolve(self, source: Source) -> tuple[Source, Freshness | None]:
        """Return the source with the upstream's tip for its commit, or as it is with the reason."""
        ...
