"""Looks into a workspace from outside as its sandbox sees it: one directory, or layers that lie
over each other. What a sandboxed program made of it can lead nowhere else: nothing is followed.

The rules for layers are those of the kernel's Documentation/filesystems/overlayfs.rst.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not blocked by a FIFO that took a file's place.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPAQUE = "user.overlay.opaque"


def is_whiteout(found: os.stat_result) -> bool:
    """Say whether an entry of a layer says that there is nothing."""
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


class View:
    """An open directory; `descriptors` are its layers, the topmost first. Close it."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self.descriptors = tuple(descriptors)

    def close(self) -> None:
        """Close all layers."""
        for descriptor in self.descriptors:
            os.close(descriptor)

    def entries(self) -> dict[str, int]:
        """Return the names that are there, each with the layer that has it."""
        found: dict[str, int] = {}
        hidden: set[str] = set()
        for descriptor in self.descriptors:
            with os.scandir(descriptor) as listed:
                names = [each.name for each in listed]
            for name in names:
                if name in found or name in hidden:
                    continue
                looked = self.look(name, descriptor)
                if looked is None:
                    continue
                if is_whiteout(looked):
                    hidden.add(name)
                else:
                    found[name] = descriptor
        return found

    def look(self, name: str, descriptor: int) -> os.stat_result | None:
        """Return what an entry of a layer is; None when it has just gone."""
        try:
            return os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def directory(self, name: str) -> View | None:
        """Open a subdirectory; None when there is none."""
        opened: list[int] = []
        for descriptor in self.descriptors:
            looked = self.look(name, descriptor)
            if looked is None:
                continue
            if not stat.S_ISDIR(looked.st_mode):
                break
            try:
                opened.append(os.open(name, _DIRECTORY, dir_fd=descriptor))
            except (FileNotFoundError, NotADirectoryError):
                break
            except OSError:
                View(opened).close()
                raise
            if _is_opaque(opened[-1]):
                break
        return View(opened) if opened else None

    def file(self, name: str) -> int | None:
        """Open a regular file for reading; None when there is none."""
        for descriptor in self.descriptors:
            looked = self.look(name, descriptor)
            if looked is None:
                continue
            return open_file(name, descriptor) if stat.S_ISREG(looked.st_mode) else None
        return None

    def read(self, parts: Sequence[str], most: int) -> bytes | None:
        """Return a file's content; None when there is no regular file, or a larger one."""
        with self.below(parts[:-1]) as parent:
            descriptor = parent.file(parts[-1]) if parent is not None else None
            if descriptor is None:
                return None
            with os.fdopen(descriptor, "rb") as file:
                content = file.read(most + 1)
        return content if len(content) <= most else None

    @contextmanager
    def below(self, parts: Sequence[str]) -> Iterator[View | None]:
        """Open the directory at a path below this one for the block; yields None when there is
        none.
        """
        opened: list[View] = []
        view: View | None = self
        try:
            for part in parts:
                view = view.directory(part) if view is not None else None
                if view is None:
                    break
                opened.append(view)
            yield view
        finally:
            for each in opened:
                each.close()


@contextmanager
def opened_view(paths: Sequence[Path]) -> Iterator[View]:
    """Open a directory by its layers, the topmost first, for the block."""
    descriptors: list[int] = []
    try:
        for path in paths:
            descriptors.append(os.open(path, _DIRECTORY))
        yield View(descriptors)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def open_file(name: str, directory: int) -> int | None:
    """Open a regular file of a directory for reading; None when it is something else by now."""
    try:
        descriptor = os.open(name, _FILE, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):  # gone, or a link by now
            return None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return descriptor


def _is_opaque(descriptor: int) -> bool:
    try:
        return os.getxattr(descriptor, _OPAQUE) == b"y"
    except OSError:
        return False
