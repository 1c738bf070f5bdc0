"""The pack of changes that was made last, kept under `<git directory>/fairlead` for a launch of the
very same files.

The same files means: same commit and, for every changed path, the same mode, size, times and inode.
A file that was written in the same tick of the clock in which it was read could change once more
without showing it, so that nothing is kept then.
"""

from __future__ import annotations

import binascii
import contextlib
import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Stamped(Protocol):
    """A path and what lstat says of it."""

    @property
    def path(self) -> bytes:
        """Its name below the top."""
        ...

    @property
    def stamp(self) -> tuple[int, ...]:
        """Device, mode, size, mtime and ctime in nanoseconds, inode; empty when it is gone."""
        ...


class ChangesMemo:
    """One reading of changed files: `begin`, then `find`, then `keep` what was made instead."""

    def __init__(self, *, git_directory: Path) -> None:
        self._path = git_directory / "fairlead" / "changes"
        self._began: os.stat_result | None = None

    def begin(self) -> None:
        """Take the file system's time, before any file is looked at."""
        self._began = file_system_time(self._path.parent)

    def find(self, commit: str, files: Sequence[Stamped]) -> tuple[str, bytes] | None:
        """Give tree and pack of these files on this commit; no tree when nothing differs."""
        try:
            header, pack = self._path.read_bytes().split(b"\n", 1)
            key, check, tree = header.decode("ascii").split(" ")
        except (OSError, ValueError):
            return None
        if key != _key(commit, files) or int(check, 16) != binascii.crc32(pack):
            return None
        return tree, pack

    def keep(self, commit: str, files: Sequence[Stamped], tree: str, pack: bytes) -> None:
        """Keep what these files gave, if a later change of them would show."""
        if self._began is None or not all(is_settled(file.stamp, self._began) for file in files):
            return
        header = f"{_key(commit, files)} {binascii.crc32(pack):x} {tree}\n".encode("ascii")
        part = self._path.with_name(f"part-{secrets.token_hex(4)}")
        with contextlib.suppress(OSError):
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(header + pack)
            part.replace(self._path)


def file_system_time(directory: Path) -> os.stat_result | None:
    """Give the stat of a file that is made there now, so by the clock that files there get; None
    when nothing can be written.
    """
    part = directory / f"part-{secrets.token_hex(4)}"
    try:
        directory.mkdir(exist_ok=True)
        part.touch(0o600, exist_ok=False)
        try:
            return part.stat()
        finally:
            part.unlink()
    except OSError:
        return None


def is_settled(stamp: tuple[int, ...], began: os.stat_result) -> bool:
    """Say whether a change of a file with this stamp after `began` would show."""
    if not stamp:
        return True
    device, _, _, modified, changed, _ = stamp
    return device == began.st_dev and max(modified, changed) < began.st_mtime_ns


def _key(commit: str, files: Sequence[Stamped]) -> str:
    hashed = hashlib.sha256(commit.encode("ascii"))
    for file in files:
        hashed.update(b"\0%s\0%s" % (file.path, repr(file.stamp).encode("ascii")))
    return hashed.hexdigest()
