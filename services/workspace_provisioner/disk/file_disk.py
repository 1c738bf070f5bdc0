"""Files that survive: drafts, fsync and rename, each directory told too."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import threading
from contextlib import suppress
from pathlib import Path

_PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LIBC = ctypes.CDLL(None, use_errno=True)


class FileLog:
    """A log of this machine; see ports.Log. Who comes while another flushes shares the next one."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._size = size
        self._end = self._flushed = 0
        self._writing = threading.Lock()
        self._flushing = threading.Lock()

    def append(self, content: bytes) -> bool:
        with self._writing:
            if self._end + len(content) > self._size:
                return False
            try:
                _write_at(self._descriptor, content, self._end)
            except OSError:
                self._size = 0  # what follows a gap would not be read
                raise
            self._end = end = self._end + len(content)
        with self._flushing:
            if self._flushed < end:
                self._flush()
        return True

    def _flush(self) -> None:
        if not self._size:  # the kernel tells of a failure once, and not each whom it concerns
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        until = self._end
        try:
            os.fdatasync(self._descriptor)
        except OSError:
            self._size = 0
            raise
        self._flushed = until

    def close(self) -> None:
        os.close(self._descriptor)


class FileDisk:
    """The disk of this machine; see ports.Disk."""

    def write_whole(self, path: Path, content: bytes, *, durably: bool = True) -> None:
        draft = _draft(path)
        try:
            _write(draft, content, durably=durably)
            os.rename(draft, path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        if durably:
            self.sync_directory(path.parent)

    def make_log(self, path: Path, size: int) -> FileLog:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Zeros that are written, as the first write to what is only reserved changes the file.
            _write_at(descriptor, bytes(size), 0)
            os.fsync(descriptor)
            self.sync_directory(path.parent)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        return FileLog(descriptor, size)

    def make_exclusive(self, path: Path, content: bytes) -> bool:
        try:
            return _link_whole(path, content)
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return _link_whole(path, content)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def remove(self, path: Path) -> bool:
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    def read(self, path: Path) -> bytes | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            return file.readall()

    def names(self, path: Path) -> list[str]:
        with suppress(FileNotFoundError):
            return os.listdir(path)
        return []

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_tree(self, path: Path) -> None:
        for directory, _, names in os.walk(path, topdown=False):
            for name in names:
                descriptor = os.open(os.path.join(directory, name), _PLAIN)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            self.sync_directory(Path(directory))

    def sync_all(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _LIBC.syncfs(descriptor) != 0:
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error), str(path))
        finally:
            os.close(descriptor)


def boot_id() -> str:
    """Return what names this boot of the machine; see random(4)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def _link_whole(path: Path, content: bytes) -> bool:
    """Give a file its name when it is whole; False when the name is taken."""
    try:
        # Without a name until then, so nothing is left of it when the process is killed.
        descriptor = os.open(path.parent, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
        return _link_draft(path, content)
    try:
        os.write(descriptor, content)
        # With any descriptor Python calls linkat(2), which follows the link of /proc; see open(2).
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)
    except FileExistsError:
        return False
    finally:
        os.close(descriptor)
    return True


def _link_draft(path: Path, content: bytes) -> bool:
    """Do the same where the file system has no files without a name."""
    draft = _draft(path)
    _write(draft, content, durably=False)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def _write(path: Path, content: bytes, *, durably: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _write_at(descriptor, content, 0)
        if durably:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_at(descriptor: int, content: bytes, offset: int) -> None:
    left = memoryview(content)
    while left:
        written = os.pwrite(descriptor, left, offset)
        left, offset = left[written:], offset + written
