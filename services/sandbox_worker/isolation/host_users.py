"""Host uids for sandboxes: each live one has its own, so that the kernel keeps them apart by user
too, and counts each one's processes alone.
"""

from __future__ import annotations

import os
import zlib

from sandbox_worker.errors import IsolationFailed

_KEPT = 256
"""User namespaces that are kept for the next sandbox with the same uid: one takes a millisecond."""


class HostUser:
    """One uid, which is its gid as well, and the descriptor of a user namespace by which mounts map
    files to it; -1 while there is none.
    """

    def __init__(self, uid: int) -> None:
        self.uid = uid
        self.namespace = -1

    def keep(self, namespace: int) -> None:
        """Take such a descriptor."""
        if self.namespace >= 0:
            os.close(namespace)
        else:
            self.namespace = namespace

    def forget(self) -> None:
        """Close the descriptor."""
        if self.namespace >= 0:
            os.close(self.namespace)
            self.namespace = -1


class HostUsers:
    """The uids from `first` on, `count` of them; `seed` says which one comes first, so that several
    workers of a machine seldom use the same ones.
    """

    def __init__(self, *, first: int, count: int, seed: str) -> None:
        self._first = first
        self._count = count
        self._start = zlib.crc32(seed.encode()) % count
        self._made = 0
        self._free: list[HostUser] = []

    def take(self) -> HostUser:
        """Return one that nobody has; raises IsolationFailed when all are in use."""
        if self._free:
            return self._free.pop()
        if self._made >= self._count:
            raise IsolationFailed("every host uid for sandboxes is in use")
        place = (self._start + self._made) % self._count
        self._made += 1
        return HostUser(self._first + place)

    def give_back(self, user: HostUser) -> None:
        """Take one back, once no process and no mount of its sandbox is left."""
        if len(self._free) >= _KEPT:
            user.forget()
        self._free.append(user)

    def close(self) -> None:
        """Close all descriptors."""
        for user in self._free:
            user.forget()
