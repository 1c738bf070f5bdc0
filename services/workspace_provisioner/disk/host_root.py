"""Joins the processes that serve a host root: each has a token whose file it keeps locked while it
lives, and the starts are counted.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from workspace_provisioner.disk.layout import Layout, write_whole
from workspace_provisioner.errors import HostRootInUse


@dataclass(frozen=True, slots=True)
class Owners:
    """The processes of a host root; `token` is this one's. What is unfinished carries the token of
    its maker in front of a dot, so that only leavings of the dead are taken away.
    """

    directory: Path
    token: str

    def is_alive(self, token: str) -> bool:
        """Say whether the process of a token still runs."""
        if token == self.token:
            return True
        if not token.isalnum():
            return False
        try:
            descriptor = os.open(self.directory / token, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def left_behind(self, name: str) -> bool:
        """Say whether something unfinished of that name belongs to no process that runs."""
        return not self.is_alive(name.partition(".")[0])

    def own_name(self, suffix: str = "") -> str:
        """Return a name for something unfinished that nothing else has."""
        return f"{self.token}.{secrets.token_hex(8)}{suffix}"


@dataclass(frozen=True, slots=True)
class HostRoot:
    """A host root that this process serves; `epoch` grows with each start."""

    owners: Owners
    epoch: int


@contextmanager
def joined_host_root(layout: Layout) -> Iterator[HostRoot]:
    """Serve the host root for the block; raises HostRootInUse when it is another user's."""
    layout.make()
    if layout.root.stat().st_uid != os.geteuid():
        raise HostRootInUse
    token = secrets.token_hex(8)
    draft, place = layout.owners / f".{token}", layout.owners / token
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        draft.rename(place)  # no moment in which it is there and free
        owners = Owners(layout.owners, token)
        with _counting(layout):
            epoch = _next_epoch(layout)
            for name in os.listdir(layout.owners):
                if not name.startswith(".") and not owners.is_alive(name):
                    (layout.owners / name).unlink(missing_ok=True)
        yield HostRoot(owners, epoch)
    finally:
        place.unlink(missing_ok=True)
        draft.unlink(missing_ok=True)
        os.close(descriptor)


@contextmanager
def _counting(layout: Layout) -> Iterator[None]:
    descriptor = os.open(layout.root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _next_epoch(layout: Layout) -> int:
    path = layout.root / ".epoch"
    try:
        epoch = int(path.read_text(encoding="ascii")) + 1
    except (FileNotFoundError, ValueError):
        epoch = 1
    write_whole(path, str(epoch).encode(), durably=True)
    return epoch
