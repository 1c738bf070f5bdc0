"""Locks that hold between all processes of a host root, and end with the process that has them."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from workspace_provisioner.keyed_locks import KeyedLocks
from workspace_provisioner.lock_ports import LockKept

# struct flock of fcntl(2) on 64-bit machines: type, whence, start, length, pid.
_FLOCK = struct.Struct("@hhqqi4x")
_FIRST_WAIT_SECONDS = 0.001
_LONGEST_WAIT_SECONDS = 0.05


class HostLocks:
    """One byte of one file for each key, locked by its open file description (F_OFD_SETLK); between
    the tasks of this process a KeyedLocks decides.
    """

    def __init__(self, *, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._tasks = KeyedLocks()

    def close(self) -> None:
        """Give up every lock."""
        os.close(self._descriptor)

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        async with self._tasks.hold(key):
            await self._wait(key)
            try:
                yield
            finally:
                self._lock(key, fcntl.F_UNLCK)

    @asynccontextmanager
    async def wrest(self, key: str, *, seconds: float) -> AsyncIterator[bool]:
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(seconds):
                    await stack.enter_async_context(self._tasks.hold(key))
                    is_kept = not self._lock(key, fcntl.F_WRLCK)
                    if is_kept:
                        await self._wait_and_tell(key)
            except TimeoutError:
                raise LockKept from None
            try:
                yield is_kept
            finally:
                self._lock(key, fcntl.F_UNLCK)

    def is_wanted(self, key: str) -> bool:
        found = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, _flock(_wish(key), fcntl.F_WRLCK))
        return int(_FLOCK.unpack(found)[0]) != fcntl.F_UNLCK

    async def _wait(self, key: str) -> None:
        """Lock a key that no other task of this process has."""
        # Asked for again and again, as a thread that waits could keep its holder from ending.
        wait = _FIRST_WAIT_SECONDS
        while not self._lock(key, fcntl.F_WRLCK):
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)

    async def _wait_and_tell(self, key: str) -> None:
        """Wait for a key with the lock of its wish, which others may have too."""
        self._lock(_wish(key), fcntl.F_RDLCK)
        try:
            await self._wait(key)
        finally:
            self._lock(_wish(key), fcntl.F_UNLCK)

    @asynccontextmanager
    async def attempt(self, key: str) -> AsyncIterator[bool]:
        if self._tasks.is_held(key):
            yield False
            return
        async with self._tasks.hold(key):
            held = self._lock(key, fcntl.F_WRLCK)
            try:
                yield held
            finally:
                if held:
                    self._lock(key, fcntl.F_UNLCK)

    def _lock(self, key: str, kind: int) -> bool:
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _flock(key, kind))
        except (BlockingIOError, PermissionError):
            return False
        return True


def _flock(key: str, kind: int) -> bytes:
    place = int.from_bytes(hashlib.sha256(key.encode()).digest()[:7])
    return _FLOCK.pack(kind, os.SEEK_SET, place, 1, 0)


def _wish(key: str) -> str:
    return f"wish {key}"
