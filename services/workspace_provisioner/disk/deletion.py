"""Deletes trees that a sandboxed program has written: of any depth, read-only, with symlinks,
never leaving them.

A subdirectory is first moved up to the trash, so that neither the depth of a tree nor the length
of its paths matters; nothing is ever followed.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from pathlib import Path

log = logging.getLogger(__name__)

_OPEN = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def move_to_trash(path: Path, trash: Path) -> bool:
    """Rename a file or directory into the trash; False when there is none."""
    target = trash / f"{path.name[:60]}.{secrets.token_hex(8)}"
    try:
        try:
            path.rename(target)
        except PermissionError:
            _open_up(os.fspath(path))
            path.rename(target)
    except FileNotFoundError:
        return False
    return True


def take_away(name: str, directory: Path, trash: Path) -> None:
    """Move something to the trash that a sandboxed program has made, whatever it is; nothing there
    is fine.
    """
    found = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    trash_fd = os.open(trash, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lift(name, found, trash_fd)
    except NotADirectoryError:
        os.rename(name, secrets.token_hex(12), src_dir_fd=found, dst_dir_fd=trash_fd)
    except FileNotFoundError:
        return
    finally:
        os.close(found)
        os.close(trash_fd)


def empty_trash(trash: Path, *, seconds: float) -> bool:
    """Delete what is in `trash`, for about so many seconds; returns whether all was tried.

    What resists, such as a mount point, stays and is logged.
    """
    end = time.monotonic() + seconds
    pending = os.listdir(trash)
    trash_fd = os.open(trash, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while pending:
            try:
                pending.extend(_delete(pending.pop(), trash_fd))
            except OSError as error:
                log.warning("trash not deleted", extra={"cause": os.strerror(error.errno or 0)})
            if time.monotonic() >= end:
                break
    finally:
        os.close(trash_fd)
    return not pending


def _delete(name: str, trash_fd: int) -> list[str]:
    """Delete one entry of the trash; its subdirectories move up into the trash and are returned."""
    try:
        opened = os.open(name, _OPEN, dir_fd=trash_fd)
    except (NotADirectoryError, FileNotFoundError):
        _unlink(name, trash_fd)
        return []
    moved: list[str] = []
    try:
        # A descriptor of O_PATH can be had without permission, and only a path can be given
        # permission through it.
        os.chmod(f"/proc/self/fd/{opened}", 0o700)
        directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=opened)
        try:
            with os.scandir(directory) as entries:
                found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
            for child, is_directory in found:
                if is_directory:
                    moved.append(_lift(child, directory, trash_fd))
                else:
                    _unlink(child, directory)
        finally:
            os.close(directory)
    finally:
        os.close(opened)
    os.rmdir(name, dir_fd=trash_fd)
    return moved


def _lift(child: str, directory: int, trash_fd: int) -> str:
    """Move a subdirectory to the trash."""
    _open_up(child, directory)
    lifted = secrets.token_hex(12)
    os.rename(child, lifted, src_dir_fd=directory, dst_dir_fd=trash_fd)
    return lifted


def _open_up(name: str, directory: int | None = None) -> None:
    """Give its owner all rights to a directory; it cannot be moved without the right to write it,
    since its `..` changes.
    """
    opened = os.open(name, _OPEN, dir_fd=directory)
    try:
        os.chmod(f"/proc/self/fd/{opened}", 0o700)
    finally:
        os.close(opened)


def _unlink(name: str, directory: int) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return
