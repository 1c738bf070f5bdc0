"""The object stores: one bare repository for each tenant and project, with its durable tips as
refs.

`refs/fairlead/tips/<commit>` and `refs/fairlead/changes/<tree>` are the promises: a ref is there
only after all that it reaches is durable. The warm path reads them from memory; the disk decides
after a restart.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from workspace_provisioner.file_deletion import move_to_trash
from workspace_provisioner.file_layout import Layout, sync_directory, write_whole
from workspace_provisioner.file_work import FileWork
from workspace_provisioner.git_command import Git, GitTimedOut, Place
from workspace_provisioner.git_quarantine import GitQuarantine, Intake
from workspace_provisioner.keyed_locks import KeyedLocks
from workspace_provisioner.ports import Quarantine
from workspace_provisioner.snapshot_records import as_record, from_record
from workspace_provisioner.sources import ProjectKey
from workspace_provisioner.workspaces import Snapshot

log = logging.getLogger(__name__)

_TIPS = "refs/fairlead/tips/"
_CHANGES = "refs/fairlead/changes/"
_MISS_TIPS = 64
_MOST_REMEMBERED = 100_000
_LOOSE_REFS = 64
_LOCK_PAUSE_SECONDS = 0.05


@dataclass(slots=True)
class _Promises:
    """What a store has whole: the commits that are known to be reachable, and the pinned trees."""

    commits: set[str] = field(default_factory=set)
    trees: set[str] = field(default_factory=set)


class GitStores:
    """The stores below a layout's root."""

    def __init__(self, *, layout: Layout, git: Git, files: FileWork, intake: Intake) -> None:
        self._layout = layout
        self._git = git
        self._files = files
        self._intake = intake
        self._promises: dict[ProjectKey, _Promises] = {}
        self._locks = KeyedLocks()

    async def holds(self, key: ProjectKey) -> bool:
        return key in self._promises or await self._load(key) is not None

    async def knows(self, key: ProjectKey, commit: str) -> bool:
        promises = self._promises.get(key) or await self._load(key)
        if promises is None:
            return False
        if commit in promises.commits:
            return True
        found = await self._git.run(
            "for-each-ref", "--count=1", "--format=%(objectname)", f"--contains={commit}", _TIPS,
            place=Place(self._layout.store(key)),
        )  # fmt: skip
        if not found.succeeded or not found.output:
            return False
        if len(promises.commits) < _MOST_REMEMBERED:
            promises.commits.add(commit)
        return True

    async def knows_tree(self, key: ProjectKey, tree: str) -> bool:
        promises = self._promises.get(key) or await self._load(key)
        return promises is not None and tree in promises.trees

    async def tips(self, key: ProjectKey) -> tuple[str, ...]:
        found = await self._git.run(
            "for-each-ref", "--sort=-committerdate", f"--count={_MISS_TIPS}",
            "--format=%(objectname)", _TIPS,
            place=Place(self._layout.store(key)),
        )  # fmt: skip
        return tuple(found.output.decode("ascii").split()) if found.succeeded else ()

    async def is_whole(self, key: ProjectKey, roots: Sequence[str]) -> bool:
        store = self._layout.store(key)
        if not await self._files.run((store / "objects").is_dir):
            return False
        try:
            walked = await self._git.run(
                "rev-list", "--objects", "--quiet", "--stdin",
                place=Place(store),
                given="".join(f"{root}^{{tree}}\n" for root in roots).encode(),
            )  # fmt: skip
            return walked.succeeded and not await self._unreadable_packs(store)
        except GitTimedOut:
            # Not proven damaged: promises are not taken back because the machine is slow.
            return True

    async def forget(self, key: ProjectKey) -> None:
        store = self._layout.store(key)
        async with self._exclusive(key):
            self._promises.pop(key, None)
            if not await self._files.run((store / "objects").is_dir):
                return
            await self._files.run(self._drop_promises, store)
            try:
                unreadable = await self._unreadable_packs(store)
            except GitTimedOut:
                unreadable = []
            await self._files.run(_set_aside, store, unreadable)

    @asynccontextmanager
    async def quarantine(self, key: ProjectKey) -> AsyncIterator[Quarantine]:
        quarantine = GitQuarantine(
            layout=self._layout,
            git=self._git,
            files=self._files,
            intake=self._intake,
            key=key,
            exclusive=lambda: self._exclusive(key),
            settle=self._settle,
        )
        try:
            await quarantine.open()
            yield quarantine
        finally:
            await quarantine.close()

    async def snapshots(self) -> Sequence[Snapshot]:
        return await self._files.run(self._read_snapshots)

    async def _settle(self, snapshot: Snapshot) -> None:
        """Pin what a snapshot promises and write its record; its objects are durable by now."""
        key = snapshot.key
        store = self._layout.store(key)
        promises = self._promises.get(key) or await self._load(key) or _Promises()
        wanted = {f"{_TIPS}{commit}": commit for commit in snapshot.commits}
        if snapshot.changes_tree:
            wanted[f"{_CHANGES}{snapshot.changes_tree}"] = snapshot.changes_tree
        pinned = await self._files.run(_read_pins, store)
        new = {ref: oid for ref, oid in wanted.items() if ref not in pinned}
        if new:
            given = "start\n" + "".join(f"update {ref} {oid}\n" for ref, oid in new.items())
            updated = await self._git.run(
                "update-ref", "--stdin", place=Place(store), given=(given + "commit\n").encode()
            )
            if not updated.succeeded:
                raise OSError(f"git update-ref failed: {updated.complaint}")
        if len(new) >= _LOOSE_REFS:
            await self._git.run("pack-refs", "--all", "--prune", place=Place(store))
        record = store / "snapshots" / f"{snapshot.snapshot_id}.json"
        content = json.dumps(as_record(snapshot)).encode()
        await self._files.run(write_whole, record, content, durably=True)
        promises.commits.update(snapshot.commits)
        if snapshot.changes_tree:
            promises.trees.add(snapshot.changes_tree)
        self._promises[key] = promises

    async def _load(self, key: ProjectKey) -> _Promises | None:
        """Read a store's promises from its refs; None when there is no store."""
        pins = await self._files.run(_read_pins, self._layout.store(key))
        if not pins:
            return None
        promises = _Promises(
            {ref.removeprefix(_TIPS) for ref in pins if ref.startswith(_TIPS)},
            {ref.removeprefix(_CHANGES) for ref in pins if ref.startswith(_CHANGES)},
        )
        return self._promises.setdefault(key, promises)

    async def _unreadable_packs(self, store: Path) -> list[str]:
        names = await self._files.run(_pack_names, store)
        unreadable = []
        for name in names:
            index = store / "objects/pack" / f"{name}.idx"
            checked = await self._git.run("verify-pack", str(index), place=Place(store))
            if not checked.succeeded:
                unreadable.append(name)
        return unreadable

    def _drop_promises(self, store: Path) -> None:
        (store / "packed-refs").unlink(missing_ok=True)
        move_to_trash(store / "refs/fairlead", self._layout.trash)
        move_to_trash(store / "snapshots", self._layout.trash)
        (store / "snapshots").mkdir(mode=0o700)
        sync_directory(store)

    def _read_snapshots(self) -> list[Snapshot]:
        found = []
        for path in self._layout.root.glob("[!.]*/*.git/snapshots/snp_*.json"):
            try:
                found.append(from_record(json.loads(path.read_bytes())))
            except (OSError, ValueError, KeyError, TypeError):
                log.warning("snapshot record unreadable", extra={"record": path.name})
        return found

    def _exclusive(self, key: ProjectKey) -> AbstractAsyncContextManager[None]:
        return _exclusively(self._locks, key, self._layout.store(key).with_suffix(".lock"))


@asynccontextmanager
async def _exclusively(locks: KeyedLocks, key: ProjectKey, path: Path) -> AsyncIterator[None]:
    """Change a store alone: among this process's tasks by a lock, among processes by flock(2)."""
    async with locks.hold(key):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(_LOCK_PAUSE_SECONDS)
            yield
        finally:
            os.close(descriptor)


def _read_pins(store: Path) -> frozenset[str]:
    """Return the names of the promises of a store, loose before packed, since packing moves them
    that way.
    """
    names: set[str] = set()
    for prefix in (_TIPS, _CHANGES):
        try:
            loose = os.listdir(store / prefix)
        except FileNotFoundError:
            continue
        names.update(f"{prefix}{name}" for name in loose if not name.endswith(".lock"))
    try:
        packed = (store / "packed-refs").read_text(encoding="ascii")
    except FileNotFoundError:
        packed = ""
    for line in packed.splitlines():
        _, _, name = line.partition(" ")
        if name.startswith((_TIPS, _CHANGES)):
            names.add(name)
    return frozenset(names)


def _pack_names(store: Path) -> list[str]:
    found = os.listdir(store / "objects/pack")
    return sorted(name.removesuffix(".idx") for name in found if name.endswith(".idx"))


def _set_aside(store: Path, names: Sequence[str]) -> None:
    """Move packs that git cannot read where it does not look, for whoever wants to examine them."""
    aside = store / "damaged"
    for name in names:
        aside.mkdir(mode=0o700, exist_ok=True)
        for suffix in (".idx", ".rev", ".pack"):
            path = store / "objects/pack" / f"{name}{suffix}"
            if path.exists():
                path.rename(aside / path.name)
