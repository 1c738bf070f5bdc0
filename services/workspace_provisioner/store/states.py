"""The promises of every store in memory, and the right to change one store's files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.git.command import Git, GitTimedOut, Place
from workspace_provisioner.ports import Disk
from workspace_provisioner.sources import ProjectKey
from workspace_provisioner.store.locks import StoreLocks
from workspace_provisioner.store.repair import is_poisoned, mend, orphan_packs, set_aside
from workspace_provisioner.store.state import StoreState, is_current, read_state

_MOST_PATHS = 10_000


class StoreStates:
    """Reads a store again when one of its files changed; whoever changes it does that alone."""

    def __init__(
        self, *, layout: Layout, git: Git, files: FileWork, disk: Disk, locks: StoreLocks
    ) -> None:
        self._layout = layout
        self._git = git
        self._files = files
        self._disk = disk
        self._locks = locks
        self._states: dict[Path, StoreState] = {}
        self._paths: dict[ProjectKey, Path] = {}

    def store(self, key: ProjectKey) -> Path:
        """Return where a store is; its name is a hash, computed once."""
        found = self._paths.get(key)
        if found is None:
            if len(self._paths) >= _MOST_PATHS:
                self._paths.clear()
            found = self._paths[key] = self._layout.store(key)
        return found

    async def current(self, key: ProjectKey) -> StoreState | None:
        """Return what a store promises; None when there is no store. A poisoned one is put right
        first.
        """
        store = self.store(key)
        state = self._states.get(store)
        if state is not None and is_current(store, state):
            return state
        if await self._files.run(_is_poisoned_store, store, key):
            async with self.alone(key):
                pass
        return await self.read(key)

    async def read(self, key: ProjectKey) -> StoreState | None:
        """Return the same, read again; for whoever is alone with the store."""
        return await self._files.run(self._read, self._layout.store(key))

    def current_now(self, key: ProjectKey) -> StoreState | None:
        """Return the same at once, in any thread, and put nothing right."""
        store = self.store(key)
        state = self._states.get(store)
        return state if state is not None and is_current(store, state) else self._read(store)

    def seen(self, key: ProjectKey) -> StoreState | None:
        """Return the same as it was when somebody last looked, in any thread."""
        store = self.store(key)
        return self._states.get(store) or self._read(store)

    @asynccontextmanager
    async def alone(self, key: ProjectKey) -> AsyncIterator[None]:
        """Change a store's files, which are sound when the block begins; raises StoreLocked."""
        store = self._layout.store(key)
        async with self._locks.hold(store):
            if await self._files.run((store / "objects").is_dir):
                await self._make_sound(key, store)
            yield

    async def _make_sound(self, key: ProjectKey, store: Path) -> None:
        await self._files.run(
            mend,
            store,
            object_format=key.object_format,
            disk=self._disk,
            trash=self._layout.trash,
        )
        unread = []
        for name in await self._files.run(orphan_packs, store):
            # Its move into the store was cut short, or its index is lost.
            pack = store / "objects/pack" / f"{name}.pack"
            try:
                indexed = await self._git.run(
                    "index-pack", str(pack), place=Place(store, config={"core.fsync": "all"})
                )
            except GitTimedOut:
                continue
            if not indexed.succeeded:
                unread.append(name)
        if unread:
            await self._files.run(set_aside, store, unread, disk=self._disk)

    def _read(self, store: Path) -> StoreState | None:
        state = read_state(store, self._states.get(store))
        if state is None:
            self._states.pop(store, None)
        else:
            self._states[store] = state
        return state


def _is_poisoned_store(store: Path, key: ProjectKey) -> bool:
    return (store / "objects").is_dir() and is_poisoned(store, key.object_format)
