"""Finds out whether a store keeps its promises, and takes back those of a damaged one."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from pathlib import Path

from chassis.clock import Clock
from workspace_provisioner.disk.deletion import move_to_trash
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.git.command import Git, GitTimedOut, Place
from workspace_provisioner.ports import Disk
from workspace_provisioner.sources import ProjectKey
from workspace_provisioner.store.files import KINDS, RETIRED, pack_sizes, read_epoch, read_pins
from workspace_provisioner.store.repair import set_aside
from workspace_provisioner.store.state import StoreState
from workspace_provisioner.store.states import StoreStates
from workspace_provisioner.store.writer import StoreWriter

log = logging.getLogger(__name__)


class GitRepair:
    """Looks at stores with git. `on_epoch` is told of each whose stamps became void."""

    def __init__(
        self,
        *,
        layout: Layout,
        git: Git,
        files: FileWork,
        disk: Disk,
        clock: Clock,
        states: StoreStates,
        on_epoch: Callable[[ProjectKey], Awaitable[None]],
    ) -> None:
        self._layout = layout
        self._git = git
        self._files = files
        self._disk = disk
        self._writer = StoreWriter(disk=disk)
        self._clock = clock
        self._states = states
        self.on_epoch = on_epoch

    async def doubt(self, key: ProjectKey) -> bool:
        """Look whether a store keeps all that it promises, and take that back when it does not;
        returns whether it did not. Slow.
        """
        async with self._states.alone(key):
            pass  # an index that is lost is made again
        # Read again whatever the times of the files say: they may have been written in place.
        state = await self._states.read(key)
        if state is None or state.is_empty:
            return False
        store = self._layout.store(key)
        if not await self._keeps(store, state):
            log.error("store is damaged", extra={"tenant": key.tenant, "store": key.digest})
            await self.forget(key, epoch=state.epoch)
            return True
        if state.is_doubtful:
            async with self._states.alone(key):
                sizes = await self._files.run(pack_sizes, store)
                await self._files.run(self._writer.packs, store, sizes)
        return False

    async def forget(self, key: ProjectKey, *, epoch: int | None = None) -> None:
        """Take back every promise, unless somebody did so since `epoch`. The objects stay as long
        as a workspace may borrow them; only packs that git cannot read are put aside.
        """
        store = self._layout.store(key)
        async with self._states.alone(key):
            if not await self._files.run((store / "objects").is_dir):
                return
            if epoch not in (None, await self._files.run(read_epoch, store)):
                return
            unreadable = await self._unreadable_packs(store)
            await self._files.run(self._take_back, store, unreadable)
        await self.on_epoch(key)

    def _take_back(self, store: Path, unreadable: list[str]) -> None:
        self._writer.bump_epoch(store)
        pins = read_pins(store)
        promises = [name for name in pins if name.startswith(KINDS)]
        retired = f"{RETIRED}{math.ceil(self._clock.now().timestamp())}/"
        kept = {f"{retired}{pins[name]}": pins[name] for name in promises if pins[name]}
        self._writer.pin(store, kept, promises)
        move_to_trash(store / "snapshots", self._layout.trash)
        (store / "snapshots").mkdir(mode=0o700)
        self._disk.remove(store / "tags")
        set_aside(store, unreadable, disk=self._disk)
        sizes = {name: size for name, size in pack_sizes(store).items() if size >= 0}
        self._writer.packs(store, sizes)

    async def _keeps(self, store: Path, state: StoreState) -> bool:
        trees = [f"{oid}^{{tree}}" for oid in (*state.trees, *state.shallow)]
        return await self._walks(store, [*state.tips, *trees])

    async def _walks(self, store: Path, roots: list[str]) -> bool:
        try:
            walked = await self._git.run(
                "rev-list", "--objects", "--quiet", "--stdin",
                place=Place(store),
                given="".join(f"{root}\n" for root in roots).encode(),
            )  # fmt: skip
        except GitTimedOut:
            # Not proven damaged: promises are not taken back because the machine is slow.
            return True
        return walked.succeeded and not await self._unreadable_packs(store)

    async def _unreadable_packs(self, store: Path) -> list[str]:
        unreadable = []
        for name in sorted(await self._files.run(pack_sizes, store)):
            index = store / "objects/pack" / f"{name}.idx"
            try:
                checked = await self._git.run("verify-pack", str(index), place=Place(store))
            except GitTimedOut:
                continue
            if not checked.succeeded:
                unreadable.append(name)
        return unreadable
