"""One writer at a time for each store, among this process's tasks and among processes."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from workspace_provisioner.keyed_locks import KeyedLocks
from workspace_provisioner.store_errors import StoreLocked

_PAUSE_SECONDS = 0.05


class StoreLocks:
    """Locks by path; who waits longer than `patience_seconds` gets StoreLocked.

    It is flock(2), which ends with the process that holds it, however that ends.
    """

    def __init__(self, *, patience_seconds: float) -> None:
        self._locks = KeyedLocks()
        self._patience_seconds = patience_seconds

    @asynccontextmanager
    async def hold(self, store: Path) -> AsyncIterator[None]:
        """Change a store alone; raises StoreLocked."""
        path = store.with_suffix(".lock")
        path.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            async with asyncio.timeout(self._patience_seconds) as limit, self._locks.hold(path):
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    await _take(descriptor)
                    limit.reschedule(None)
                    yield
                finally:
                    os.close(descriptor)
        except TimeoutError:
            if limit.expired():
                raise StoreLocked(seconds=self._patience_seconds) from None
            raise


async def _take(descriptor: int) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            return
