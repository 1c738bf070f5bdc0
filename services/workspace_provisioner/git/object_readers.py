"""Reads objects of the stores through git processes that stay: one `cat-file --batch` for each of
the few stores that were asked last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path

from workspace_provisioner.git.command import Git, Place
from workspace_provisioner.git.pack_objects import MOST_BYTES, Found, Unsuited
from workspace_provisioner.git.process import GitProcess

_MOST_READERS = 8
_ANSWER_SECONDS = 5.0


class _Reader:
    """One resident process."""

    def __init__(self, *, git: Git, store: Path) -> None:
        self._git = git
        self._store = store
        self._lock = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._process: GitProcess | None = None

    async def fetch(self, wanted: Iterable[str]) -> dict[str, Found]:
        """Read objects; those that are not there are left out. Raises Unsuited, OSError."""
        async with self._lock:
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    return await self._fetch(list(wanted))
            except BaseException:
                # What is still to come would be taken for the answer to the next question.
                await self._end()
                raise

    async def close(self) -> None:
        """End the process."""
        async with self._lock:
            await self._end()

    async def _fetch(self, wanted: list[str]) -> dict[str, Found]:
        if self._process is None or self._process.returncode is not None:
            await self._end()
            self._process = await self._stack.enter_async_context(
                self._git.started(
                    "cat-file", "--batch",
                    place=Place(self._store),
                    complaints=asyncio.subprocess.DEVNULL,
                    lasting=True,
                )
            )  # fmt: skip
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None  # noqa: S101 - they were asked for
        assert stdout is not None  # noqa: S101
        stdin.write("".join(f"{each}\n" for each in wanted).encode())
        found: dict[str, Found] = {}
        total = 0
        for each in wanted:
            words = (await stdout.readuntil(b"\n")).decode("ascii").split()
            if words[-1] == "missing":
                continue
            kind, size = words[1], int(words[2])
            total += size
            if total > MOST_BYTES:
                raise Unsuited("too many bytes")
            content = await stdout.readexactly(size + 1)
            found[each] = (kind, content[:-1])
        return found

    async def _end(self) -> None:
        self._process = None
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()


class ObjectReaders:
    """The readers of a host's stores."""

    def __init__(self, *, git: Git) -> None:
        self._git = git
        self._readers: dict[Path, _Reader] = {}

    async def fetch(self, store: Path, wanted: Iterable[str]) -> dict[str, Found]:
        """Read objects of a store; those that are not there are left out.

        Raises Unsuited when they are too large or git does not answer.
        """
        reader = self._readers.pop(store, None) or _Reader(git=self._git, store=store)
        self._readers[store] = reader
        while len(self._readers) > _MOST_READERS:
            oldest = next(iter(self._readers))
            await self._readers.pop(oldest).close()
        try:
            return await reader.fetch(wanted)
        except (OSError, ValueError, IndexError, EOFError, asyncio.LimitOverrunError) as error:
            raise Unsuited("git does not answer") from error

    async def close(self) -> None:
        """End every reader."""
        readers, self._readers = list(self._readers.values()), {}
        for reader in readers:
            await reader.close()
