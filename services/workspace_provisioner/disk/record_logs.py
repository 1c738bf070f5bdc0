"""Logs of what was recorded since the file system was last flushed.

Flushing a new file flushes its directory and whatever else the file system has begun, also that of
others; flushing bytes of a file that is there is one write. So a record is made durable by a line
in a log, and its own file is only for those who look it up. After a power cut the next boot puts
the lines back that are missing; as long as the machine runs, nobody reads them.
"""

from __future__ import annotations

import errno
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from workspace_provisioner.disk.host_root import Owners
from workspace_provisioner.ports import Disk, Log

LOG_BYTES = 1024 * 1024
"""About 1400 records."""


@dataclass(slots=True)
class _OwnLog:
    """A log of this process; `writers` are those whose record is not in its file yet."""

    path: Path
    log: Log
    writers: int = 0


class RecordLogs:
    """The logs below `directory`, of which this process writes its own; call `open` before
    anything else. `boot` names this boot of the machine. Blocking, and safe in any thread.
    """

    def __init__(self, *, directory: Path, disk: Disk, owners: Owners, boot: str) -> None:
        self._directory = directory
        self._disk = disk
        self._owners = owners
        self._boot = boot.encode()
        self._own: list[_OwnLog] = []
        self._aside: list[Path] = []
        self._changed = threading.Condition()

    def open(self) -> None:
        """Begin a log."""
        with self._changed:
            self._begin()

    def close(self) -> None:
        """Write no more; the logs stay until somebody flushes the file system."""
        for own in self._own:
            own.log.close()

    @contextmanager
    def recorded(self, record: bytes) -> Iterator[None]:
        """Make a record durable; its line stays at least for the block, which writes its file."""
        own = self._append(_line(record))
        try:
            yield
        finally:
            self._leave(own)

    def _append(self, line: bytes) -> _OwnLog:
        if len(_line(self._boot)) + len(line) > LOG_BYTES:  # no log has room for it
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        while True:
            with self._changed:
                own = self._own[-1]
                own.writers += 1
            appended = False
            try:
                appended = own.log.append(line)
            finally:
                if not appended:
                    self._leave(own)
            if appended:
                return own
            with self._changed:
                if self._own[-1] is own:
                    self._begin()

    def _leave(self, own: _OwnLog) -> None:
        with self._changed:
            own.writers -= 1
            self._changed.notify_all()

    def _begin(self) -> None:
        path = self._directory / self._owners.own_name()
        log = self._disk.make_log(path, LOG_BYTES)
        try:
            log.append(_line(self._boot))
        except OSError:
            log.close()
            raise
        self._own.append(_OwnLog(path, log))

    def put_aside(self) -> Sequence[Path]:
        """Begin another log; returns those whose records are all in their files, or whose writers
        have ended. They can be dropped when the file system was flushed after this.
        """
        with self._changed:
            self._begin()
            full, self._own = self._own[:-1], self._own[-1:]
            self._changed.wait_for(lambda: not any(own.writers for own in full))
        for own in full:
            own.log.close()
        self._aside += [own.path for own in full]
        return [*self._aside, *self.left_behind()]

    def drop(self, paths: Sequence[Path]) -> None:
        """Take logs away."""
        for path in paths:
            self._disk.remove(path)
        self._aside = [path for path in self._aside if path not in paths]

    def left_behind(self) -> Sequence[Path]:
        """Return the logs of processes that have ended."""
        names = self._disk.names(self._directory)
        return [self._directory / name for name in names if self._owners.left_behind(name)]

    def lost(self) -> Iterator[bytes]:
        """Return the records of earlier boots: a power cut may have taken their files."""
        for path in self.left_behind():
            lines = _lines(self._disk.read(path) or b"")
            if next(lines, self._boot) != self._boot:
                yield from lines


def _line(content: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(content), content)


def _lines(content: bytes) -> Iterator[bytes]:
    """Return the lines up to the first that is not whole."""
    for line in content.split(b"\n"):
        check, _, text = line.partition(b" ")
        if check != b"%08x" % zlib.crc32(text):
            return
        yield text
