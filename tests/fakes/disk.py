"""Disks for tests: one that forgets what was not flushed, and one that kills its process."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from workspace_provisioner.disk.file_disk import FileDisk
from workspace_provisioner.ports import Log

Identity = tuple[int, int, int]


class PowerCutDisk:
    """A real directory tree, and beside it what of that is durable.

    `cut` leaves what a power cut may leave: only durable names and contents; or, with `names_stay`,
    all names, but nothing in the files whose contents were not flushed, as file systems with
    delayed allocation do.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._disk = FileDisk()
        self._flushed: dict[Identity, bytes] = {}
        self._names: dict[Path, dict[str, Identity]] = {}
        self._start()

    def _start(self) -> None:
        self._flushed.clear()
        self._names.clear()
        self.sync_all(self._root)

    def write_whole(self, path: Path, content: bytes, *, durably: bool = True) -> None:
        self._disk.write_whole(path, content, durably=durably)
        if durably:
            self._flushed[identity(path)] = content
            self._flush_names(path.parent)

    def make_log(self, path: Path, size: int) -> ForgetfulLog:
        log = self._disk.make_log(path, size)
        self._flush_names(path.parent)
        return ForgetfulLog(log, lambda: self._flush_log(path))

    def _flush_log(self, path: Path) -> None:
        self._names[path.parent][path.name] = identity(path)
        self._flushed[identity(path)] = path.read_bytes()

    def make_exclusive(self, path: Path, content: bytes) -> bool:
        return self._disk.make_exclusive(path, content)

    def rename(self, source: Path, target: Path) -> None:
        self._disk.rename(source, target)

    def remove(self, path: Path) -> bool:
        return self._disk.remove(path)

    def read(self, path: Path) -> bytes | None:
        return self._disk.read(path)

    def names(self, path: Path) -> list[str]:
        return self._disk.names(path)

    def sync_directory(self, path: Path) -> None:
        self._flush_names(path)

    def sync_tree(self, path: Path) -> None:
        for directory, _, files in os.walk(path):
            for name in files:
                with suppress(FileNotFoundError):  # somebody else is at work
                    file = Path(directory) / name
                    self._flushed[identity(file)] = file.read_bytes()
            with suppress(FileNotFoundError):
                self._flush_names(Path(directory))

    def sync_all(self, path: Path) -> None:
        self.sync_tree(self._root)

    def _flush_names(self, directory: Path) -> None:
        """Of a directory that is flushed its parents need not know."""
        self._names[directory] = {each.name: identity(each) for each in directory.iterdir()}

    def cut(self, *, names_stay: bool = False) -> None:
        """Lose what was not flushed."""
        left = self._root.with_name(f"{self._root.name}.left")
        self.leave(left, names_stay=names_stay)
        shutil.rmtree(self._root)
        left.rename(self._root)
        self._start()

    def leave(self, left: Path, *, names_stay: bool = False) -> None:
        """Put into a directory what a power cut would leave if it came now."""
        left.mkdir()
        if names_stay:
            self._leave_names(self._root, left)
        else:
            self._leave_flushed(self._root, left)

    def _leave_flushed(self, directory: Path, left: Path) -> None:
        for name, flushed in self._names.get(directory, {}).items():
            below = directory / name
            if below in self._names or below.is_dir():
                (left / name).mkdir(exist_ok=True)
                self._leave_flushed(below, left / name)
            else:
                (left / name).write_bytes(self._flushed.get(flushed, b""))

    def _leave_names(self, directory: Path, left: Path) -> None:
        for entry in directory.iterdir():
            if entry.is_dir():
                (left / entry.name).mkdir()
                self._leave_names(entry, left / entry.name)
            else:
                (left / entry.name).write_bytes(self._flushed.get(identity(entry), b""))


class ForgetfulLog:
    """A log of a PowerCutDisk."""

    def __init__(self, log: Log, on_flush: Callable[[], None]) -> None:
        self._log = log
        self._on_flush = on_flush

    def append(self, content: bytes) -> bool:
        appended = self._log.append(content)
        self._on_flush()
        return appended

    def close(self) -> None:
        self._log.close()


def identity(path: Path) -> Identity:
    """Tell a file from another one that got its inode later."""
    found = path.lstat()
    return found.st_ino, found.st_mtime_ns, found.st_size


class KillingDisk(FileDisk):
    """Kills its process with SIGKILL before its n-th change."""

    def __init__(self, *, changes: int) -> None:
        self._left = changes

    def write_whole(self, path: Path, content: bytes, *, durably: bool = True) -> None:
        self._count()
        super().write_whole(path, content, durably=durably)

    def make_exclusive(self, path: Path, content: bytes) -> bool:
        self._count()
        return super().make_exclusive(path, content)

    def rename(self, source: Path, target: Path) -> None:
        self._count()
        super().rename(source, target)

    def remove(self, path: Path) -> bool:
        self._count()
        return super().remove(path)

    def _count(self) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1
