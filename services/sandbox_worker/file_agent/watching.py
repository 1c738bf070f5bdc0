"""Watches a directory, and with it those below it, until the worker leaves."""

from __future__ import annotations

import errno
import os
import select

from sandbox_worker.file_agent import inotify
from sandbox_worker.file_agent.beneath import Beneath
from sandbox_worker.file_agent.contents import TEMPORARY
from sandbox_worker.file_agent.inotify import Inotify, Notice
from sandbox_worker.file_agent.line import Line, Refused

MOST_DIRECTORIES = 8192
_PAIR_MILLISECONDS = 20
"""How long the other half of a move is waited for; the kernel tells both one after the other."""

_FLAGS = os.O_RDONLY | os.O_DIRECTORY


class Watcher:
    """One watch."""

    def __init__(self, *, line: Line, beneath: Beneath, path: bytes, recursive: bool) -> None:
        self._line = line
        self._recursive = recursive
        self._inotify = Inotify()
        self._beneath = beneath
        self._path = path.rstrip(b"/")
        self._paths: dict[int, bytes] = {}
        self._moving: Notice | None = None
        self._said: tuple[bytes, bytes] | None = None
        self._ended = False

    def run(self) -> None:
        """Tell of every change until the worker leaves or the directory goes."""
        self._add(b"", told=False)
        self._line.answer(b"started", len(self._paths))
        poll = select.poll()
        poll.register(self._inotify.descriptor, select.POLLIN)
        poll.register(self._line, select.POLLIN)
        while not self._ended:
            found = poll.poll(_PAIR_MILLISECONDS if self._moving else None)
            if any(descriptor == self._line.fileno() for descriptor, _ in found):
                return  # nothing is ever said on it but that it ends
            if not found:
                self._leave_behind()
            self._said = None
            for notice in self._inotify.read():
                self._take(notice)
        self._leave_behind()
        self._line.answer(b"removed")

    def _add(self, path: bytes, *, told: bool) -> None:
        """Watch a directory and what is below it; `told` tells of the names in it, which may have
        come before the watch did.
        """
        pending = [path]
        while pending:
            each = pending.pop()
            if len(self._paths) >= MOST_DIRECTORIES:
                raise Refused("watch_too_large")
            self._line.breathe()
            try:
                directory = self._beneath.open(
                    _joined(self._path, each), _FLAGS | (os.O_NOFOLLOW if each else 0)
                )
            except OSError as error:
                if each and error.errno in (
                    errno.ENOENT,
                    errno.ENOTDIR,
                    errno.ELOOP,
                    errno.EXDEV,
                    errno.EACCES,
                ):  # it went meanwhile, or nobody may look into it
                    continue
                raise
            try:
                self._paths[self._watch(directory)] = each
                if self._recursive or told:
                    pending += self._look(directory, each, told=told)
            finally:
                os.close(directory)
        os.chdir(b"/")  # a directory that is held open is not told of when it is removed

    def _watch(self, directory: int) -> int:
        try:
            return self._inotify.add(directory)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise Refused("watch_too_large") from None
            raise

    def _look(self, directory: int, path: bytes, *, told: bool) -> list[bytes]:
        """Return the directories in a directory."""
        below = []
        with os.scandir(directory) as entries:
            for entry in entries:
                name = os.fsencode(entry.name)
                is_directory = entry.is_dir(follow_symlinks=False)
                if told and not name.startswith(TEMPORARY):
                    self._tell(b"created", _joined(path, name), is_directory=is_directory)
                if is_directory:
                    below.append(_joined(path, name))
        return below

    def _take(self, notice: Notice) -> None:
        if notice.mask & inotify.OVERFLOW:
            self._moving = None
            self._line.answer(b"gap")
            self._add(b"", told=False)
            return
        path = self._paths.get(notice.watch)
        if path is None:
            return
        if notice.mask & (inotify.DELETE_SELF | inotify.MOVE_SELF | inotify.IGNORED):
            if notice.mask & inotify.IGNORED:
                del self._paths[notice.watch]
            if path == b"":
                self._ended = True
            return
        self._change(notice, _joined(path, notice.name))

    def _change(self, notice: Notice, path: bytes) -> None:
        is_directory = bool(notice.mask & inotify.IS_DIRECTORY)
        moving = self._moving
        if moving is not None and not (
            notice.mask & inotify.MOVED_TO and notice.cookie == moving.cookie
        ):
            self._leave_behind()
            moving = None
        if notice.mask & inotify.MOVED_FROM:
            self._moving = notice
        elif notice.mask & inotify.MOVED_TO:
            self._moving = None
            self._arrive(path, moving, is_directory=is_directory)
        elif notice.name.startswith(TEMPORARY):
            return
        elif notice.mask & inotify.CREATE:
            self._tell(b"created", path, is_directory=is_directory)
            if is_directory and self._recursive:
                self._add(path, told=True)
        elif notice.mask & inotify.DELETE:
            self._tell(b"removed", path, is_directory=is_directory)
        elif notice.name or path:
            self._tell(b"modified", path, is_directory=is_directory)

    def _arrive(self, path: bytes, moving: Notice | None, *, is_directory: bool) -> None:
        """Tell of a name that was moved here; what grew whole under another one is changed here."""
        source = None
        if moving is not None and not moving.name.startswith(TEMPORARY):
            source = _joined(self._paths.get(moving.watch, b""), moving.name)
        if source is None:
            self._tell(b"created", path, is_directory=is_directory)
            if is_directory and self._recursive:
                self._add(path, told=True)
            return
        self._tell(b"moved", path, source, is_directory=is_directory)
        if is_directory and self._recursive and not self._rename(source, path):
            self._add(path, told=True)

    def _rename(self, source: bytes, target: bytes) -> bool:
        """Follow a directory; says whether it was watched, which it is not when it moved on before
        that.
        """
        found = False
        for watch, path in self._paths.items():
            if path == source or path.startswith(source + b"/"):
                self._paths[watch] = target + path[len(source) :]
                found = True
        return found

    def _leave_behind(self) -> None:
        """A name was moved out of what is watched."""
        moving, self._moving = self._moving, None
        if moving is None or moving.name.startswith(TEMPORARY):
            return
        path = _joined(self._paths.get(moving.watch, b""), moving.name)
        is_directory = bool(moving.mask & inotify.IS_DIRECTORY)
        if is_directory:
            for watch, each in list(self._paths.items()):
                if each == path or each.startswith(path + b"/"):
                    self._inotify.remove(watch)
                    del self._paths[watch]
        self._tell(b"removed", path, is_directory=is_directory)

    def _tell(self, change: bytes, path: bytes, source: bytes = b"", *, is_directory: bool) -> None:
        """Send an event; the same modification again and again in one look is told once."""
        said = (change, path)
        if change == b"modified" and said == self._said:
            return
        self._said = said
        self._line.answer(change, path, source, int(is_directory))


def _joined(path: bytes, name: bytes) -> bytes:
    return path + b"/" + name if path and name else path or name
