"""Ends sandboxes that have written more to their workspace than they may.

A measured walk, not a quota: what is written between two walks gets through, and a walk takes about
5 s for a million entries. Walks follow each other at least a second apart, one sandbox at a time,
and take at most a fifth of one processor. Files that are deleted count while a process has them
open; those that are only mapped or on their way between processes are not seen.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import Self

from chassis.errors import FairleadError
from sandbox_worker.execution import ExitReason
from sandbox_worker.held_sandbox import HeldSandbox
from sandbox_worker.ports import Trees
from sandbox_worker.sandboxes import Sandboxes

log = logging.getLogger(__name__)

_PERIOD_SECONDS = 1.0
_REST = 4
"""How many times as long as a walk took nothing is walked."""

_BLOCK = 512
_ENTRY_BYTES = 1024
"""What an entry counts at least: inodes run out as well."""

_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEEPEST = 200
"""Levels of directories; a descriptor is held for each, and a deeper tree is over any limit."""


class DiskWatch:
    """Goes round while in its block; `below` lists the processes below one."""

    def __init__(
        self,
        *,
        sandboxes: Sandboxes,
        trees: Trees,
        executor: Executor,
        below: Callable[[int], Iterable[int]] = lambda _: (),
    ) -> None:
        self._sandboxes = sandboxes
        self._below = below
        self._trees = trees
        self._executor = executor
        self._found: dict[str, int] = {}
        self._rounds: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._rounds = asyncio.create_task(self._go_round(), name="disk watch")
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._rounds is not None:
            self._rounds.cancel()
            await asyncio.wait([self._rounds])

    async def sweep(self) -> None:
        """Measure every sandbox with a limit once, and end those that are over it."""
        bounded = self._sandboxes.bounded_on_disk()
        kept = {held.sandbox.sandbox_id for held in bounded}
        self._found = {name: size for name, size in self._found.items() if name in kept}
        for held in bounded:
            begun = time.monotonic()
            told = {"sandbox_id": held.sandbox.sandbox_id}
            try:
                if await self._is_over(held):
                    log.warning("disk limit", extra=told)
                    self._sandboxes.end(held, ExitReason.LIMIT_DISK)
            except FairleadError:
                pass  # the workspace was given back
            except OSError as error:
                log.warning("a walk failed", extra={**told, "cause": error.strerror})
            await asyncio.sleep((time.monotonic() - begun) * _REST)

    async def _is_over(self, held: HeldSandbox) -> bool:
        sandbox = held.sandbox
        tree = await self._trees.find(sandbox.workspace_id)
        most = sandbox.limits.disk_bytes
        root = tree.path if tree.layers is None else Path(tree.layers.upper)
        if tree.layers is None and sandbox.sandbox_id not in self._found:
            # What it held when it was seen first is not the sandbox's.
            self._found[sandbox.sandbox_id] = await self._apart(measure, root, 1 << 62)
            return False
        most += self._found.get(sandbox.sandbox_id, 0)
        total = await self._apart(measure, root, most)
        if total <= most and held.enclosure is not None:
            first = held.enclosure.first_process
            total += await self._apart(deleted_bytes, first, root, self._below)
        return total > most

    async def _apart(self, work: Callable[..., int], *arguments: object) -> int:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, work, *arguments)

    async def _go_round(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD_SECONDS)
            await self.sweep()


def measure(root: Path, most: int) -> int:
    """Return the bytes on disk below a directory, or a number above `most` as soon as that is
    certain. Blocking; no link is followed, also when a program swaps directories meanwhile.

    What a program has shut for itself is opened again where that keeps the worker out as well, as
    it does when both are one user: nothing is to be hidden there.
    """
    linked: set[int] = set()
    total = 0
    levels: list[tuple[int, list[str]]] = []
    try:
        with suppress(FileNotFoundError):
            total += _enter(os.fspath(root), None, levels, linked)
        while levels:
            directory, left = levels[-1]
            if total > most or len(levels) > _DEEPEST:
                return max(total, most + 1)
            if left:
                # Gone, or no longer a directory: a program works there.
                with suppress(OSError):
                    total += _enter(left.pop(), directory, levels, linked)
            else:
                os.close(directory)
                levels.pop()
    finally:
        for directory, _ in levels:
            os.close(directory)
    return total


def deleted_bytes(first: int, root: Path, below: Callable[[int], Iterable[int]]) -> int:
    """Return the bytes on disk of files without a name that processes below `first` have open, on
    the file system of `root` or one that shows it; none below 0. Blocking.
    """
    if not first:
        return 0
    devices: set[int] = set()
    nameless: dict[tuple[int, int], int] = {}
    with suppress(OSError):
        devices.add(os.stat(root).st_dev)
    for pid in below(first):
        # A mounted workspace has a device of its own. Only root may look at the first process.
        with suppress(OSError):
            devices.add(os.lstat(f"/proc/{pid}/root/workspace").st_dev)
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    found = os.stat(f"/proc/{pid}/fd/{name}")
                    if not found.st_nlink:
                        nameless[found.st_dev, found.st_ino] = found.st_blocks * _BLOCK
    return sum(size for (device, _), size in nameless.items() if device in devices)


def _enter(
    name: str, within: int | None, levels: list[tuple[int, list[str]]], linked: set[int]
) -> int:
    """Open a directory as the next level, and return what its entries hold."""
    try:
        directory = os.open(name, _DIRECTORY | os.O_RDONLY, dir_fd=within)
    except PermissionError:
        _open_up(name, within)
        directory = os.open(name, _DIRECTORY | os.O_RDONLY, dir_fd=within)
    folders: list[str] = []
    levels.append((directory, folders))
    total = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                try:
                    found = entry.stat(follow_symlinks=False)
                except PermissionError:
                    _open_up(name, within)
                    found = entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif found.st_nlink > 1:
                    if found.st_ino in linked:
                        continue
                    linked.add(found.st_ino)
                total += max(found.st_blocks * _BLOCK, _ENTRY_BYTES)
    return total


def _open_up(name: str, within: int | None) -> None:
    """Let a directory's owner list and enter it; raises OSError."""
    place = os.open(name, _DIRECTORY | os.O_PATH, dir_fd=within)
    try:
        mode = stat.S_IMODE(os.fstat(place).st_mode)
        os.chmod(f"/proc/self/fd/{place}", mode | stat.S_IRUSR | stat.S_IXUSR)
    finally:
        os.close(place)
