"""Asyncio locks by name, kept only while somebody holds one or waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class KeyedLocks:
    """Serialises work on the same key and lets different keys go on side by side; more than one
    may hold the lock of a key when `most` says so.
    """

    def __init__(self, *, most: int = 1) -> None:
        self._most = most
        self._locks: dict[Hashable, tuple[asyncio.Semaphore, int]] = {}

    def is_held(self, key: Hashable) -> bool:
        """Say whether somebody holds the lock of `key`, or waits for it."""
        return key in self._locks

    @asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncIterator[None]:
        """Hold the lock of `key` for the block."""
        lock, users = self._locks.get(key) or (asyncio.Semaphore(self._most), 0)
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)
