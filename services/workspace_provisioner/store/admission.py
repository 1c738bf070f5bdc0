"""Lets the objects of an upload into a store: all whole, then durable, then promised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.errors import SnapshotIncomplete
from workspace_provisioner.git.command import Git, Place
from workspace_provisioner.git.connectivity import GitConnectivity
from workspace_provisioner.git.directory import make_git_directory
from workspace_provisioner.ports import Disk
from workspace_provisioner.sources import ProjectKey
from workspace_provisioner.store.files import (
    CHANGES,
    SHALLOW,
    TAGS,
    TIPS,
    pack_sizes,
    read_records,
    read_tags,
)
from workspace_provisioner.store.git_repair import GitRepair
from workspace_provisioner.store.state import StoreState
from workspace_provisioner.store.states import StoreStates
from workspace_provisioner.store.writer import StoreWriter
from workspace_provisioner.workspaces import Snapshot

_MOST_TAGS = 50_000


class GitAdmission:
    """The only way for objects into a store."""

    def __init__(
        self,
        *,
        layout: Layout,
        git: Git,
        files: FileWork,
        disk: Disk,
        states: StoreStates,
        repair: GitRepair,
        seconds: float,
    ) -> None:
        self._layout = layout
        self._git = git
        self._files = files
        self._disk = disk
        self._writer = StoreWriter(disk=disk)
        self._states = states
        self._repair = repair
        self._connectivity = GitConnectivity(git=git, seconds=seconds)

    async def admit(
        self,
        key: ProjectKey,
        path: Path,
        snapshot: Snapshot,
        known: Mapping[str, str],
        content: Callable[[], Awaitable[None]],
        *,
        tips_only: bool,
    ) -> Snapshot:
        """Check what is in the git directory `path` and flush it, move it into the store and
        promise it; it stays outside when `content`, which is run beside the other checks, raises.
        Kinds of objects that are `known` are not asked for.

        Returns the snapshot as it is recorded. Raises SnapshotIncomplete and StoreLocked.
        """
        store = self._layout.store(key)
        place = Place(path, alternates=(store / "objects",) if store.is_dir() else ())
        state = await self._states.current(key)
        if tips_only:
            await content()
            await self._flush(path)
            snapshot = await self._connectivity.kinds(snapshot, known, place)
            snapshot = await self._without_history(snapshot, state, place)
            walked = await self._walk(key, snapshot, state, place)
        else:
            snapshot, walked = await self._look(key, snapshot, known, state, place, content)
        async with self._states.alone(key):
            state = await self._states.read(key)
            if not _is_same_ground(walked, state):
                await self._connectivity.walk(snapshot, _tips(state), place)
            await self._files.run(self._put_in, key, path, snapshot)
        if not tips_only and state is not None and state.alone:
            await self.make_whole(key)
        return snapshot

    async def _look(
        self,
        key: ProjectKey,
        snapshot: Snapshot,
        known: Mapping[str, str],
        state: StoreState | None,
        place: Place,
        content: Callable[[], Awaitable[None]],
    ) -> tuple[Snapshot, StoreState | None]:
        """Look at content and kinds, walk and flush side by side; of several errors, the one about
        what comes first here is told.
        """
        fault, kinds, walked, flushed = await asyncio.gather(
            content(),
            self._connectivity.kinds(snapshot, known, place),
            self._walk(key, snapshot, state, place),
            self._flush(place.git_dir),
            return_exceptions=True,
        )
        if isinstance(fault, BaseException):
            raise fault
        if isinstance(kinds, BaseException):
            raise kinds
        if isinstance(walked, BaseException):
            raise walked
        if isinstance(flushed, BaseException):
            raise flushed
        return kinds, walked

    async def _flush(self, path: Path) -> None:
        await self._files.run(self._disk.sync_tree, path / "objects/pack")

    async def _walk(
        self, key: ProjectKey, snapshot: Snapshot, state: StoreState | None, place: Place
    ) -> StoreState | None:
        """Walk what is new; when that fails because the store lost what it promised, walk all."""
        try:
            await self._connectivity.walk(snapshot, _tips(state), place)
        except SnapshotIncomplete:
            if not _tips(state) or not await self._repair.doubt(key):
                raise
            await self._connectivity.walk(snapshot, frozenset(), place)
            return await self._states.current(key)
        return state

    async def _without_history(
        self, snapshot: Snapshot, state: StoreState | None, place: Place
    ) -> Snapshot:
        """Find the commits whose parents are not there, and let git see that they have none."""
        parents = await self._connectivity.parents(snapshot.commits, place)
        shallow = tuple(
            commit
            for commit in snapshot.commits
            if not all(state is not None and state.is_rooted(each) for each in parents[commit])
        )
        await self._files.run(write_shallow, place.git_dir, shallow)
        return replace(snapshot, shallow=shallow)

    def _put_in(self, key: ProjectKey, path: Path, snapshot: Snapshot) -> None:
        """Objects, then what pins them, then the record: a promise is never there too early."""
        store = self._layout.store(key)
        if not (store / "objects").is_dir():
            self._make_store(key, path / "store", store)
        self._writer.move_packs(path / "objects/pack", store)
        self._writer.packs(store, {n: s for n, s in pack_sizes(store).items() if s >= 0})
        self._writer.mark_shallow(store, snapshot.shallow)
        self._writer.pin(store, _pins(snapshot))
        tags = {tip.ref: tip.commit for tip in snapshot.tips if tip.ref.startswith("refs/tags/")}
        before = read_tags(store)
        after = {**before, **tags}
        if after != before and len(after) <= _MOST_TAGS:
            self._writer.tags(store, after)
        self._writer.record(store, snapshot)

    def _make_store(self, key: ProjectKey, draft: Path, store: Path) -> None:
        store.parent.mkdir(mode=0o700, exist_ok=True)
        make_git_directory(draft, object_format=key.object_format, bare=True)
        (draft / "snapshots").mkdir(mode=0o700)
        self._writer.key(draft, key)
        self._disk.sync_tree(draft)
        self._writer.publish(draft, store)

    async def make_whole(self, key: ProjectKey) -> None:
        """Drop the shallow marks of commits whose history has come."""
        store = self._layout.store(key)
        async with self._states.alone(key):
            state = await self._states.read(key)
            alone = state.alone if state is not None else ()
            whole = {each for each in alone if await self._reaches(store, each)}
            if whole:
                await self._files.run(self._drop_marks, store, whole)
        if whole:
            await self._repair.on_epoch(key)

    async def _reaches(self, store: Path, commit: str) -> bool:
        found = await self._git.run(
            "for-each-ref", "--count=1", "--format=%(refname)", f"--contains={commit}", TIPS,
            place=Place(store),
        )  # fmt: skip
        return found.succeeded and bool(found.output)

    def _drop_marks(self, store: Path, whole: set[str]) -> None:
        self._writer.pin(store, {f"{TIPS}{commit}": commit for commit in whole})
        self._writer.drop_marks(store, whole)
        for record in read_records(store, {}).values():
            left = tuple(each for each in record.snapshot.shallow if each not in whole)
            if left != record.snapshot.shallow:
                self._writer.record(store, replace(record.snapshot, shallow=left))
        self._writer.pin(store, {}, [f"{SHALLOW}{commit}" for commit in whole])


def write_shallow(git_dir: Path, commits: tuple[str, ...]) -> None:
    """Say in a git directory which of its commits have no parents there; see
    gitrepository-layout(5).
    """
    path = git_dir / "shallow"
    if commits:
        path.write_text("".join(f"{commit}\n" for commit in sorted(commits)), encoding="ascii")
    else:
        path.unlink(missing_ok=True)


def _pins(snapshot: Snapshot) -> Mapping[str, str]:
    kinds = {commit: SHALLOW if commit in snapshot.shallow else TIPS for commit in snapshot.commits}
    kinds.update((tag, TAGS) for tag, _ in snapshot.tags)
    if snapshot.changes_tree:
        kinds[snapshot.changes_tree] = CHANGES
    return {f"{kind}{oid}": oid for oid, kind in kinds.items()}


def _tips(state: StoreState | None) -> frozenset[str]:
    return state.tips if state is not None else frozenset()


def _is_same_ground(walked: StoreState | None, now: StoreState | None) -> bool:
    """Say whether all that a walk took for granted is still there."""
    if walked is None or now is None:
        return not _tips(walked)
    return walked.epoch == now.epoch and walked.tips <= now.tips
