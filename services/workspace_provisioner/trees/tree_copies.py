"""Copies the files of a workspace while its sandbox may still write them: nothing is followed, and
what is neither file, directory nor symbolic link is left out.

Git writes objects before what names them, so what names them is copied first: a copy of a git
directory in which git goes on has all that its refs and its index reach.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable

from workspace_provisioner.git.checkout import CHANGES_PACK
from workspace_provisioner.trees.layer_views import View, is_whiteout, open_file
from workspace_provisioner.workspace_errors import ForkFailed

_FICLONE = 0x40049409
_DEEPEST = 200
_CHUNK_BYTES = 1024 * 1024
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# No set-user-id or set-group-id: the copy may get another owner.
_MODE = 0o1777
# A ref goes from its own file into `packed-refs`, an object from its own file into a pack.
_LAST_IN_GIT = {"refs": 1, "packed-refs": 2, "objects": 3, "modules": 4, "pack": 5}
# A baseline's changes go when its index and its objects have them.
_FIRST = (".git", CHANGES_PACK)
_MOST_LISTINGS = 20


class TreeCopy:
    """One copy. With `layer`, what is copied is a layer itself: its whiteouts and marks go along.

    `goes_on` is asked before each entry, and raises what ends the copy.
    """

    def __init__(self, *, layer: bool, goes_on: Callable[[], None]) -> None:
        self._layer = layer
        self._goes_on = goes_on
        self._can_clone = True
        self._keeps_owners = os.geteuid() == 0

    def directory(self, view: View, target: int) -> None:
        """Copy what a directory holds into the open, empty directory `target`."""
        self._directory(view, target, in_git=False, depth=0)
        self._marks(view.descriptors[0], target)

    def _directory(
        self, view: View, target: int, *, in_git: bool, depth: int, packs: bool = False
    ) -> None:
        """Copy what a directory holds; `packs` are copied until there are no others: one that is
        replaced is gone when its turn comes, and the one that has its objects is there by then.
        """
        if depth > _DEEPEST:
            raise ForkFailed("its directories are nested too deeply")
        seen: set[str] = set()
        for _ in range(_MOST_LISTINGS):
            entries = self._entries(view)
            fresh = [name for name in entries if name not in seen]
            for name in sorted(fresh, key=_turn_in_git if in_git else _turn):
                self._goes_on()
                self._entry(view, name, entries[name], target, in_git=in_git, depth=depth)
            if not packs or not fresh:
                return
            seen.update(fresh)
        raise ForkFailed("its packs change all the time")

    def _entry(
        self, view: View, name: str, descriptor: int, target: int, *, in_git: bool, depth: int
    ) -> None:
        found = view.look(name, descriptor)
        if found is None:
            return
        inside = in_git or name == ".git"
        if stat.S_ISDIR(found.st_mode):
            self._subdirectory(view, name, target, in_git=inside, depth=depth)
        elif stat.S_ISREG(found.st_mode):
            # A lock of a git process that goes on in the source; nobody would take it away.
            if not (inside and name.endswith(".lock")):
                self._file(name, descriptor, target)
        elif stat.S_ISLNK(found.st_mode):
            _link(name, descriptor, target, found)
        elif self._layer and is_whiteout(found):
            os.mknod(name, stat.S_IFCHR | 0o600, 0, dir_fd=target)

    def _entries(self, view: View) -> dict[str, int]:
        if not self._layer:
            return view.entries()
        (descriptor,) = view.descriptors
        return dict.fromkeys(os.listdir(descriptor), descriptor)

    def _subdirectory(
        self, view: View, name: str, target: int, *, in_git: bool, depth: int
    ) -> None:
        below = view.directory(name)
        if below is None:
            return
        try:
            os.mkdir(name, 0o700, dir_fd=target)
            copied = os.open(name, _DIRECTORY, dir_fd=target)
            try:
                # A branch or a submodule can have that name too: nothing is left out of it.
                packs = in_git and name == "pack"
                self._directory(below, copied, in_git=in_git, depth=depth + 1, packs=packs)
                self._marks(below.descriptors[0], copied)
            finally:
                os.close(copied)
        finally:
            below.close()

    def _file(self, name: str, directory: int, target: int) -> None:
        source = open_file(name, directory)
        if source is None:
            return
        try:
            copied = os.open(name, _NEW, 0o600, dir_fd=target)
            try:
                self._content(source, copied)
                self._marks(source, copied)
            finally:
                os.close(copied)
        finally:
            os.close(source)

    def _content(self, source: int, copied: int) -> None:
        if self._can_clone:
            try:
                fcntl.ioctl(copied, _FICLONE, source)
            except OSError:
                self._can_clone = False
            else:
                return
        size = os.fstat(source).st_size
        place = 0
        while place < size:  # a hole of terabytes stays a hole
            try:
                start = os.lseek(source, place, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    break
                raise
            end = os.lseek(source, start, os.SEEK_HOLE)
            place = start
            while place < end:
                self._goes_on()
                copied_bytes = os.copy_file_range(
                    source, copied, min(end - place, _CHUNK_BYTES), place, place
                )
                if not copied_bytes:
                    return
                place += copied_bytes
        os.truncate(copied, max(size, place))

    def _marks(self, source: int, copied: int) -> None:
        """Give a copy the owner, attributes, mode and times."""
        found = os.fstat(source)
        if self._keeps_owners:
            os.chown(copied, found.st_uid, found.st_gid)
        for name in os.listxattr(source):
            if name.startswith("user.") and (self._layer or not name.startswith("user.overlay.")):
                os.setxattr(copied, name, os.getxattr(source, name))
        os.chmod(copied, stat.S_IMODE(found.st_mode) & _MODE)
        os.utime(copied, ns=(found.st_atime_ns, found.st_mtime_ns))


def _turn(name: str) -> bool:
    return name not in _FIRST


def _turn_in_git(name: str) -> tuple[int, str]:
    return _LAST_IN_GIT.get(name, 0), name


def _link(name: str, directory: int, target: int, found: os.stat_result) -> None:
    try:
        leads_to = os.readlink(name, dir_fd=directory)
    except (FileNotFoundError, OSError):
        return
    os.symlink(leads_to, name, dir_fd=target)
    os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=target, follow_symlinks=False)
