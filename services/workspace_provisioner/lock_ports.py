"""What the use cases need of locks."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol


class LockKept(Exception):
    """Whoever has a lock did not let go in time."""


class Locks(Protocol):
    """Locks between all processes that serve this host root; none outlives its process."""

    def hold(self, key: str) -> AbstractAsyncContextManager[None]:
        """Hold the lock of `key` for the block; waits for it."""
        ...

    def attempt(self, key: str) -> AbstractAsyncContextManager[bool]:
        """Hold the lock of `key` for the block unless somebody has it; yields whether it is
        held.
        """
        ...

    def wrest(self, key: str, *, seconds: float) -> AbstractAsyncContextManager[bool]:
        """Hold the lock of `key` for the block; another process that has it is told meanwhile that
        it `is_wanted`. Yields whether one had it; raises LockKept when it did not let go in time.
        """
        ...

    def is_wanted(self, key: str) -> bool:
        """Say whether another process would wrest the lock of `key` from this one."""
        ...
