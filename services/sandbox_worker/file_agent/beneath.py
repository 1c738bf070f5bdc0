"""Paths beneath a root, resolved by the kernel: openat2(2) with RESOLVE_BENEATH, so that neither
`..` nor a link, nor a race with a program that swaps them, leads out.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

_OPENAT2 = 437
_NO_MAGIC_LINKS = 0x02
_BENEATH = 0x08
_NO_REPLACE = 1
_MOST_LINKS = 40
_TRIES = 128
"""The kernel answers EAGAIN to `..` when anything was renamed meanwhile; RESOLVE_BENEATH asks to
try again.
"""

_LONGEST_PATH = 4095
_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def open_beneath(root: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Open `path` beneath the directory `root`; OSError EXDEV when it leads out."""
    how = _How(flags | os.O_CLOEXEC, mode, _BENEATH | _NO_MAGIC_LINKS)
    for _ in range(_TRIES):
        found = int(
            _libc.syscall(
                ctypes.c_long(_OPENAT2),
                ctypes.c_int(root),
                ctypes.c_char_p(path or b"."),
                ctypes.byref(how),
                ctypes.c_size_t(ctypes.sizeof(how)),
            )
        )
        if found >= 0:
            return found
        if (cause := ctypes.get_errno()) not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(cause, os.strerror(cause), path)


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
                raise OSError(errno.EXDEV, "outside", path)
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
                raise OSError(errno.EXDEV, "outside", path)
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
