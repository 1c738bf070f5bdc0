"""Packs a file or a directory as a tar stream (POSIX.1-2001, as tarfile writes it).

What may not be read, and what a tar stream has no use for, is left out; a last entry for the
directory itself then names it, percent-encoded, in an extended header.
"""

from __future__ import annotations

import os
import stat
import tarfile

from sandbox_worker.file_agent.beneath import Beneath
from sandbox_worker.file_agent.frames import CONTENT, END, LARGEST
from sandbox_worker.file_agent.line import Line, Refused

_BLOCK = 512
_DEEPEST = 200
_LEFT_OUT = "FAIRLEAD.left_out"
_MOST_NAMED_BYTES = 64 * 1024
_PLAIN = frozenset(b"/._-+~abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


class Packer:
    """Writes one stream; names are relative to what is packed."""

    def __init__(self, *, line: Line) -> None:
        self._line = line
        self._waiting = bytearray()
        self._left_out = ""

    def pack(self, beneath: Beneath, path: bytes) -> None:
        """Pack a path to its end."""
        descriptor = beneath.open(path, os.O_PATH)
        try:
            is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        finally:
            os.close(descriptor)
        if is_directory:
            directory = beneath.open(path, os.O_RDONLY | os.O_DIRECTORY)
            status = os.fstat(directory)
            self._line.answer()
            self._directory(directory, b"", 0)
            if self._left_out:
                self._header(b"./", status, tarfile.DIRTYPE, more={_LEFT_OUT: self._left_out})
        else:
            with beneath.place(path, follow=True) as (above, name):
                if not stat.S_ISREG(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
                    raise Refused("not_a_file", path)
                self._line.answer()
                self._entry(above, name, os.path.basename(path.rstrip(b"/")), 0)
        self._write(bytes(_BLOCK * 2))
        self._flush()
        self._line.send(END)

    def _directory(self, directory: int, prefix: bytes, depth: int) -> None:
        """Pack what is in a directory, whose descriptor it closes."""
        try:
            with os.scandir(directory) as entries:
                names = sorted(os.fsencode(entry.name) for entry in entries)
            for name in names:
                self._entry(directory, name, prefix + name, depth)
        finally:
            os.close(directory)

    def _entry(self, directory: int, name: bytes, shown: bytes, depth: int) -> None:
        """Pack one name; what goes or changes its kind meanwhile is left out."""
        self._line.breathe()
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                target = os.readlink(name, dir_fd=directory)
                self._header(shown, status, tarfile.SYMTYPE, target=target)
            elif stat.S_ISDIR(status.st_mode) and depth < _DEEPEST:
                below = os.open(name, _FLAGS | os.O_DIRECTORY, dir_fd=directory)
                self._header(shown, status, tarfile.DIRTYPE)
                self._directory(below, shown + b"/", depth + 1)
            elif stat.S_ISREG(status.st_mode):
                self._file(directory, name, shown)
            else:
                self._leave_out(shown)
        except PermissionError:
            self._leave_out(shown)
        except (FileNotFoundError, NotADirectoryError):
            return

    def _leave_out(self, shown: bytes) -> None:
        """Note a name, as far as there is room for it."""
        if len(self._left_out) < _MOST_NAMED_BYTES:
            text = "".join(chr(each) if each in _PLAIN else f"%{each:02X}" for each in shown)
            self._left_out += f" {text}"

    def _file(self, directory: int, name: bytes, shown: bytes) -> None:
        descriptor = os.open(name, _FLAGS | os.O_NONBLOCK, dir_fd=directory)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return
            self._header(shown, status, tarfile.REGTYPE, size=status.st_size)
            offset = 0
            while offset < status.st_size:
                piece = os.pread(descriptor, min(LARGEST, status.st_size - offset), offset)
                # A header has promised the size: what was cut off meanwhile is filled up.
                piece = piece or bytes(min(LARGEST, status.st_size - offset))
                self._write(piece)
                offset += len(piece)
            self._write(bytes(-offset % _BLOCK))
        finally:
            os.close(descriptor)

    def _header(
        self,
        shown: bytes,
        status: os.stat_result,
        kind: bytes,
        *,
        size: int = 0,
        target: bytes = b"",
        more: dict[str, str] | None = None,
    ) -> None:
        member = tarfile.TarInfo(os.fsdecode(shown))
        member.type = kind
        member.size = size
        member.mode = status.st_mode & 0o777
        member.mtime = status.st_mtime_ns // 10**9
        member.linkname = os.fsdecode(target)
        member.pax_headers = more or {}
        if rest := status.st_mtime_ns % 10**9:
            member.pax_headers["mtime"] = f"{status.st_mtime_ns // 10**9}.{rest:09d}"
        self._write(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))

    def _write(self, content: bytes) -> None:
        self._waiting += content
        if len(self._waiting) >= LARGEST:
            for start in range(0, len(self._waiting) - LARGEST + 1, LARGEST):
                self._line.send(CONTENT, bytes(self._waiting[start : start + LARGEST]))
            del self._waiting[: len(self._waiting) // LARGEST * LARGEST]

    def _flush(self) -> None:
        if self._waiting:
            self._line.send(CONTENT, bytes(self._waiting))
            self._waiting.clear()


_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
