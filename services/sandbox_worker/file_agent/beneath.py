"""Paths beneath a root, resolved name by name: each directory is opened in the one before it and no
link is followed by the kernel, so that neither `..` nor a link, nor a race with a program that
swaps them, leads out. Go's os.Root resolves paths the same way.

Not by openat2(2): a sandbox's filter of system calls cannot see what that is asked for, and refuses
it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

_NO_REPLACE = 1
_MOST_LINKS = 40
_LONGEST_PATH = 4095
_libc = ctypes.CDLL(None, use_errno=True)


def open_beneath(root: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Open `path` beneath the directory `root`; OSError EXDEV when it leads out."""
    names = _names(path)
    if _names_directory(path):
        flags = _to_directory(flags, path)
    directory, place, links = root, 0, 0
    try:
        while place < len(names):
            if names[place] == b"..":
                # From the root again: what was opened may lie elsewhere by now.
                if place == 0:
                    raise _outside(path)
                del names[place - 1 : place + 1]
                directory, place = _instead(directory, root, root), 0
                continue
            is_last = place == len(names) - 1
            wanted = flags if is_last else os.O_PATH | os.O_DIRECTORY
            found = _open_name(directory, names[place], wanted, mode)
            if isinstance(found, int):
                if is_last:
                    return found
                directory, place = _instead(directory, found, root), place + 1
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, "too many links", path)
            if is_last and _names_directory(found):
                flags = _to_directory(flags, path)
            names[place : place + 1] = _names(found)
        return os.open(b".", flags | os.O_CLOEXEC, mode, dir_fd=directory)
    finally:
        _instead(directory, root, root)


def _open_name(directory: int, name: bytes, flags: int, mode: int) -> int | bytes:
    """Open a name of a directory, or return where it leads if it is a link to be followed."""
    for attempt in range(_MOST_LINKS):
        try:
            found = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=directory)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR) or flags & os.O_NOFOLLOW:
                raise
            target = _link_target(directory, name)
            # Without a target it is no link, or none any more: the second error is believed.
            if not target and attempt > 0:
                raise
        else:
            if flags & os.O_NOFOLLOW or not flags & os.O_PATH:
                return found
            if not stat.S_ISLNK(os.fstat(found).st_mode):
                return found
            target = os.readlink(b"", dir_fd=found)
            os.close(found)
        if target.startswith(b"/"):
            raise _outside(name)
        if target:
            return target
    raise OSError(errno.ELOOP, "too many links", name)


def _outside(path: bytes) -> OSError:
    return OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)


def _instead(directory: int, other: int, root: int) -> int:
    """Close a directory unless it is the root, and return the one to be used instead."""
    if directory != root:
        os.close(directory)
    return other


def _names(path: bytes) -> list[bytes]:
    if path.startswith(b"/"):
        raise _outside(path)
    return [name for name in path.split(b"/") if name not in (b"", b".")]


def _names_directory(path: bytes) -> bool:
    """Say whether a path can only be one of a directory, a link to which is followed."""
    return path.endswith((b"/", b"/."))


def _to_directory(flags: int, path: bytes) -> int:
    if flags & os.O_CREAT:
        raise OSError(errno.EISDIR, "a directory", path)
    return (flags | os.O_DIRECTORY) & ~os.O_NOFOLLOW


def rename(source: tuple[int, bytes], target: tuple[int, bytes], *, overwrite: bool = True) -> None:
    """Rename between two places; without `overwrite` OSError EEXIST when something is there."""
    if overwrite:
        os.rename(source[1], target[1], src_dir_fd=source[0], dst_dir_fd=target[0])
    elif (
        _libc.renameat2(
            ctypes.c_int(source[0]),
            ctypes.c_char_p(source[1]),
            ctypes.c_int(target[0]),
            ctypes.c_char_p(target[1]),
            ctypes.c_uint(_NO_REPLACE),
        )
        != 0
    ):
        cause = ctypes.get_errno()
        raise OSError(cause, os.strerror(cause), target[1])


class Root:
    """A directory that no path leaves."""

    def __init__(self, path: bytes) -> None:
        self._path = path.rstrip(b"/")
        self.descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def within(self, path: bytes) -> bytes:
        """Return a path relative to the root; an absolute one is taken when it lies in it."""
        if len(path) > _LONGEST_PATH:
            raise OSError(errno.ENAMETOOLONG, "too long", path)
        if path.startswith(b"/"):
            if path.rstrip(b"/") == self._path:
                return b""
            if not path.startswith(self._path + b"/"):
                raise _outside(path)
            path = path[len(self._path) :].lstrip(b"/")
        return path


class Beneath:
    """Opens and finds beneath one directory, whose descriptor it borrows."""

    def __init__(self, root: int) -> None:
        self.root = root

    def open(self, path: bytes, flags: int, mode: int = 0) -> int:
        """Open beneath the directory; the descriptor is the caller's."""
        return open_beneath(self.root, path, flags, mode)

    @contextmanager
    def opened(self, path: bytes, flags: int, mode: int = 0) -> Iterator[int]:
        """Open for a block."""
        descriptor = self.open(path, flags, mode)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def directory(self, path: bytes, *, parents: bool = False) -> int:
        """Open a directory to work in; with `parents` what is missing is made."""
        flags = os.O_PATH | os.O_DIRECTORY
        try:
            return self.open(path, flags)
        except FileNotFoundError:
            if not parents:
                raise
        names = [name for name in path.split(b"/") if name not in (b"", b".")]
        above = self.open(b".", flags)
        for count in range(1, len(names) + 1):
            prefix = b"/".join(names[:count])
            try:
                try:
                    below = self.open(prefix, flags)
                except FileNotFoundError:
                    with _allowing(errno.EEXIST):
                        os.mkdir(names[count - 1], 0o755, dir_fd=above)
                    below = self.open(prefix, flags)
            finally:
                os.close(above)
            above = below
        return above

    @contextmanager
    def place(
        self, path: bytes, *, follow: bool = False, parents: bool = False
    ) -> Iterator[tuple[int, bytes]]:
        """Give the directory and the last name of a path; with `follow` a link there is resolved.

        OSError EINVAL for a path without a last name.
        """
        for _ in range(_MOST_LINKS):
            above, name = parted(path)
            directory = self.directory(above, parents=parents)
            try:
                target = _link_target(directory, name) if follow else b""
                if not target:
                    yield directory, name
                    return
            finally:
                os.close(directory)
            if target.startswith(b"/"):
                raise _outside(path)
            path = above + b"/" + target if above else target
        raise OSError(errno.ELOOP, "too many links", path)


def parted(path: bytes) -> tuple[bytes, bytes]:
    """Split a path into what is above and its last name; OSError EINVAL when it has none."""
    above, _, name = path.rstrip(b"/").rpartition(b"/")
    if name in (b"", b".", b".."):
        raise OSError(errno.EINVAL, "no name", path)
    return above, name


def _link_target(directory: int, name: bytes) -> bytes:
    try:
        if not stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            return b""
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINVAL):
            return b""
        raise


@contextmanager
def _allowing(*causes: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in causes:
            raise
