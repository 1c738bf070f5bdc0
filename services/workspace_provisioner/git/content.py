"""Counts what uploaded objects and trees would become, with git and before anything is checked out:
the counting ends where a limit does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.errors import PackInvalid
from workspace_provisioner.git.command import Git, Place
from workspace_provisioner.git.pack_caps import PackCaps, check_pack
from workspace_provisioner.git.process import GitProcess
from workspace_provisioner.sources import ObjectFormat

_CHUNK = 256 * 1024
_MOST_DELTAS = 500_000
_MOST_REMEMBERED = 10_000
_OBJECT = "--batch-check=%(objectname) %(objectsize) %(deltabase)"


class GitContent:
    """Checks packs, objects and trees against the limits; a tree that fitted is not counted again.

    Small packs are taken apart in `unpacking`, since they may become very large.
    """

    def __init__(self, *, git: Git, caps: PackCaps, seconds: float, unpacking: FileWork) -> None:
        self._git = git
        self._seconds = seconds
        self._fitting: dict[str, tuple[int, int]] = {}
        self._unpacking = unpacking
        self.caps = caps

    async def check_small_pack(self, pack: bytes, object_format: ObjectFormat) -> None:
        """Look at every object of a pack; raises PackTooLarge and PackInvalid."""
        await self._unpacking.run(check_pack, pack, self.caps, id_bytes=object_format.digits // 2)

    async def check_objects(self, place: Place) -> None:
        """Look at every object of the place's own; raises PackTooLarge and PackInvalid.

        Chains are followed in packs of up to 500,000 deltas: a larger one would need much memory
        here, and git reads it within its limit of time or not at all.
        """
        total = count = 0
        bases: dict[bytes, bytes] = {}
        arguments = ("cat-file", "--batch-all-objects", "--unordered", "--buffer", _OBJECT)
        async with self._lines(place, *arguments, end=b"\n") as (lines, process):
            async for line in lines:
                name, size, base = line.split(b" ")
                count += 1
                total += int(size)
                self.caps.check_object(int(size))
                self.caps.check_total(total)
                self.caps.check_objects(count)
                if base.strip(b"0") and len(bases) < _MOST_DELTAS:
                    bases[name] = base
            if await process.outcome() != 0:
                raise PackInvalid("git cannot list its objects")
        if len(bases) < _MOST_DELTAS:
            self.caps.check_chain(_longest(bases))

    async def check_tree(self, place: Place, root: str) -> None:
        """Count the paths and bytes of a commit's or tree's files; raises PackTooLarge.

        What is lacking or unreadable is not said here: whoever walks or checks out says it.
        """
        if root in self._fitting:
            return
        count = total = 0
        arguments = ("ls-tree", "-r", "-t", "-l", "-z", "--full-tree", root)
        async with self._lines(place, *arguments, end=b"\0") as (lines, process):
            async for line in lines:
                about, _, path = line.partition(b"\t")
                count += 1
                self.caps.check_paths(count)
                self.caps.check_path(path)
                size = about[about.rindex(b" ") + 1 :]
                # "-" for a directory, "BAD" for what is lacking.
                if size.isdigit():
                    total += int(size)
                    self.caps.check_object(int(size))
                    self.caps.check_total(total)
            status = await process.outcome()
        if status < 0:
            # Git goes down into trees by recursion.
            self.caps.check_path(b"/" * (self.caps.depth + 1))
        if status == 0:
            self._remember(root, count, total)

    def counted(self, root: str) -> tuple[int, int] | None:
        """Return how many files, with how many bytes, a commit or tree has that fitted; None when
        that is not known.
        """
        return self._fitting.get(root)

    def count_grown(
        self, before: tuple[int, int], root: str, added: Iterable[tuple[bytes, int]]
    ) -> None:
        """Count a commit's files as those of one that was `counted` before, with paths and bytes
        that are `added`: that is how many there are at most. Raises PackTooLarge; then they have
        to be counted.
        """
        count, total = before
        for path, size in added:
            count += 1
            total += size
            self.caps.check_path(path)
            self.caps.check_object(size)
        self.caps.check_paths(count)
        self.caps.check_total(total)
        self._remember(root, count, total)

    def _remember(self, root: str, count: int, total: int) -> None:
        self._fitting[root] = (count, total)
        if len(self._fitting) > _MOST_REMEMBERED:
            del self._fitting[next(iter(self._fitting))]

    @asynccontextmanager
    async def _lines(
        self, place: Place, *arguments: str, end: bytes
    ) -> AsyncIterator[tuple[AsyncIterator[bytes], GitProcess]]:
        """Run a command whose output is read while it prints, and that is killed when the reader
        has seen enough.
        """
        try:
            async with (
                asyncio.timeout(self._seconds),
                self._git.started(
                    *arguments, place=place, complaints=asyncio.subprocess.DEVNULL
                ) as process,
            ):
                yield _split(process, end), process
        except TimeoutError:
            raise PackInvalid("git took too long to list it") from None


async def _split(process: GitProcess, end: bytes) -> AsyncIterator[bytes]:
    assert process.stdin is not None  # noqa: S101 - it was asked for
    assert process.stdout is not None  # noqa: S101 - it was asked for
    process.stdin.close()
    rest = b""
    while chunk := await process.stdout.read(_CHUNK):
        *lines, rest = (rest + chunk).split(end)
        for line in lines:
            yield line


def _longest(bases: dict[bytes, bytes]) -> int:
    """Return how many deltas stand on each other at most."""
    depths: dict[bytes, int] = {}
    longest = 0
    for name in bases:
        chain = []
        while name in bases and name not in depths:
            chain.append(name)
            name = bases[name]
        depth = depths.get(name, 0)
        for each in reversed(chain):
            depth += 1
            depths[each] = depth
        longest = max(longest, depth)
    return longest
