"""Reads and writes the content of one file."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from sandbox_worker.file_agent.beneath import Beneath, parted, rename
from sandbox_worker.file_agent.frames import CONTENT, END, LARGEST
from sandbox_worker.file_agent.line import Line, Refused
from sandbox_worker.file_agent.stats import described, etag_of

TEMPORARY = b".fairlead-"
"""How the names begin under which files and trees grow until they are whole."""

_QUIETLY = os.O_NONBLOCK | os.O_NOCTTY
_BITS = 0o777


def read(line: Line, beneath: Beneath, path: bytes, offset: int, length: int | None) -> None:
    """Send what a file is, then a range of it; a negative offset counts from its end."""
    with beneath.opened(path, os.O_RDONLY | _QUIETLY) as descriptor:
        status = os.fstat(descriptor)
        _require_file(status, path)
        line.answer(*described(path, status))
        if offset < 0:
            offset = max(0, status.st_size + offset)
        end = status.st_size if length is None else min(status.st_size, offset + length)
        while offset < end:
            piece = os.pread(descriptor, min(LARGEST, end - offset), offset)
            if not piece:
                break
            line.send(CONTENT, piece)
            offset += len(piece)
    line.send(END)


def write_range(
    line: Line,
    beneath: Beneath,
    path: bytes,
    *,
    offset: int,
    truncate: bool,
    permissions: int | None,
    parents: bool,
    if_match: bytes,
) -> None:
    """Write into a file, which is made when it is not there."""
    above, _ = parted(path)
    if parents:
        os.close(beneath.directory(above, parents=True))
    mode = 0o644 if permissions is None else permissions & _BITS
    flags = os.O_WRONLY | _QUIETLY | (0 if if_match else os.O_CREAT)
    with beneath.opened(path, flags, mode if flags & os.O_CREAT else 0) as descriptor:
        status = os.fstat(descriptor)
        _require_file(status, path)
        if if_match and etag_of(status) != if_match:
            raise Refused("file_changed", path)
        for piece in line.content():
            offset += _written(descriptor, piece, offset)
        if truncate:
            os.ftruncate(descriptor, offset)
        if permissions is not None:
            os.fchmod(descriptor, permissions & _BITS)
        status = os.fstat(descriptor)
    line.answer(*described(path, status))


def write_whole(
    line: Line,
    beneath: Beneath,
    path: bytes,
    *,
    create: bool,
    permissions: int | None,
    parents: bool,
    if_match: bytes,
) -> None:
    """Replace or make a file: it grows under another name and takes its place in one step."""
    with beneath.place(path, follow=True, parents=parents) as (directory, name):
        mode = _present_mode(directory, name, path, create=create, if_match=if_match)
        if permissions is not None:
            mode = permissions & _BITS
        with growing(directory, 0o600) as (descriptor, temporary):
            offset = 0
            for piece in line.content():
                offset += _written(descriptor, piece, offset)
            os.fchmod(descriptor, 0o644 if mode is None else mode)
            if if_match:
                _present_mode(directory, name, path, create=False, if_match=if_match)
            rename((directory, temporary), (directory, name), overwrite=not create)
            status = os.fstat(descriptor)
    # Once it is closed: a program that is still open for writing cannot be executed.
    line.answer(*described(path, status))


@contextmanager
def growing(directory: int, mode: int) -> Iterator[tuple[int, bytes]]:
    """Give a fresh file and its name, which is removed at the end if it is still there."""
    temporary = temporary_name()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, mode, dir_fd=directory)
    try:
        yield descriptor, temporary
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)


def temporary_name() -> bytes:
    """Make up a name that nothing has."""
    return TEMPORARY + os.urandom(8).hex().encode() + b".part"


def _written(descriptor: int, piece: bytes, offset: int) -> int:
    rest = memoryview(piece)
    while rest:
        count = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[count:], offset + count
    return len(piece)


def _present_mode(
    directory: int, name: bytes, path: bytes, *, create: bool, if_match: bytes
) -> int | None:
    """Return the permissions of the file that is there; None where none is."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        if if_match:
            raise Refused("file_changed", path) from None
        return None
    if create:
        raise Refused("file_exists", path)
    _require_file(status, path)
    if if_match and etag_of(status) != if_match:
        raise Refused("file_changed", path)
    return status.st_mode & _BITS


def _require_file(status: os.stat_result, path: bytes) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise Refused("is_a_directory", path)
    if not stat.S_ISREG(status.st_mode):
        raise Refused("not_a_file", path)
