"""What a file is, as fields of an answer."""

from __future__ import annotations

import os
import stat

FIELDS = 7
"""How many fields describe a file."""


def kind_of(status: os.stat_result) -> bytes:
    """Return the kind of a file."""
    if stat.S_ISREG(status.st_mode):
        return b"file"
    if stat.S_ISDIR(status.st_mode):
        return b"directory"
    return b"link" if stat.S_ISLNK(status.st_mode) else b"other"


def etag_of(status: os.stat_result) -> bytes:
    """Return what changes when the file does: inode, size and time of the last change."""
    return b"%x-%x-%x" % (status.st_ino, status.st_size, status.st_ctime_ns)


def described(name: bytes, status: os.stat_result, target: bytes = b"") -> tuple[bytes | int, ...]:
    """Return the fields of a file."""
    kind = kind_of(status)
    return (
        name,
        kind,
        0 if kind == b"directory" else status.st_size,
        stat.S_IMODE(status.st_mode),
        status.st_mtime_ns,
        target,
        etag_of(status),
    )


def described_at(directory: int, name: bytes, shown: bytes) -> tuple[bytes | int, ...]:
    """Return the fields of a name in a directory, links not followed."""
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    target = os.readlink(name, dir_fd=directory) if stat.S_ISLNK(status.st_mode) else b""
    return described(shown, status, target)
