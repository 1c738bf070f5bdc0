"""Works on names: describes, lists, makes directories, moves and removes."""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import stat

from sandbox_worker.file_agent.beneath import Beneath, rename
from sandbox_worker.file_agent.frames import END
from sandbox_worker.file_agent.line import Line, Refused
from sandbox_worker.file_agent.stats import described, described_at

_DEEPEST = 200
_TRIES = 16


def describe(line: Line, beneath: Beneath, path: bytes, *, follow: bool) -> None:
    """Send what a file is."""
    flags = os.O_PATH if follow else os.O_PATH | os.O_NOFOLLOW
    with beneath.opened(path, flags) as descriptor:
        status = os.fstat(descriptor)
        target = b""
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(b"", dir_fd=descriptor)
        line.answer(*described(path, status, target))


def list_page(line: Line, beneath: Beneath, path: bytes, *, after: bytes, size: int) -> None:
    """Send the entries after a name, at most `size`, each as an answer, then whether more are
    there.
    """
    with beneath.opened(path, os.O_RDONLY | os.O_DIRECTORY) as directory:
        page = heapq.nsmallest(size + 1, _names(line, directory, after))
        for name in page[:size]:
            line.breathe()
            with contextlib.suppress(FileNotFoundError):  # it went meanwhile
                line.answer(*described_at(directory, name, name))
    line.send(END, page[size - 1] if len(page) > size else b"")


def _names(line: Line, directory: int, after: bytes) -> list[bytes]:
    names = []
    with os.scandir(directory) as entries:
        for entry in entries:
            line.breathe()
            name = os.fsencode(entry.name)
            if name > after:
                names.append(name)
    return names


def make_directory(line: Line, beneath: Beneath, path: bytes, *, parents: bool) -> None:
    """Make a directory and send what it is."""
    if parents:
        os.close(beneath.directory(path, parents=True))
    else:
        with beneath.place(path) as (directory, name):
            os.mkdir(name, 0o755, dir_fd=directory)
    describe(line, beneath, path, follow=True)


def move(line: Line, beneath: Beneath, source: bytes, target: bytes, *, overwrite: bool) -> None:
    """Rename and send what was moved."""
    with beneath.place(source) as old, beneath.place(target) as place:
        try:
            rename(old, place, overwrite=overwrite)
        except OSError as error:
            if error.errno == errno.EINVAL:  # into itself
                raise Refused("path_invalid", target) from None
            raise
        line.answer(*described_at(*place, target))


def remove(line: Line, beneath: Beneath, path: bytes, *, recursive: bool) -> None:
    """Remove a name and what is below it."""
    with beneath.place(path) as (directory, name):
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=directory)
        elif recursive:
            remove_tree(directory, name, line)
        else:
            os.rmdir(name, dir_fd=directory)
    line.answer()


def remove_tree(directory: int, name: bytes, line: Line | None = None, depth: int = 0) -> None:
    """Remove a name of a directory by descriptors, so that no swapped link is followed."""
    if depth > _DEEPEST:
        raise Refused("directory_too_deep", name)
    for _ in range(_TRIES):
        try:
            below = os.open(
                name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory
            )
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
            return
        try:
            with os.scandir(below) as found:
                names = [
                    (os.fsencode(entry.name), entry.is_dir(follow_symlinks=False))
                    for entry in found
                ]
            for each, is_directory in names:
                if line is not None:
                    line.breathe()
                _remove_one(below, each, is_directory, line, depth)
        finally:
            os.close(below)
        try:
            os.rmdir(name, dir_fd=directory)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        else:
            return
    raise Refused("directory_not_empty", name)


def _remove_one(
    directory: int, name: bytes, is_directory: bool, line: Line | None, depth: int
) -> None:
    if not is_directory:
        try:
            os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.EISDIR, errno.EPERM):
                raise
        else:
            return
    remove_tree(directory, name, line, depth + 1)
