"""Unpacks a tar stream below a directory: tarfile reads the headers, all else is done here, beneath
the directory and without trust in names, links and sizes.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tarfile
from collections.abc import Iterator
from typing import IO, Self, cast

from sandbox_worker.file_agent.beneath import Beneath, parted, rename
from sandbox_worker.file_agent.contents import growing, temporary_name
from sandbox_worker.file_agent.frames import LARGEST
from sandbox_worker.file_agent.line import Line, Refused
from sandbox_worker.file_agent.names import remove_tree

_LONGEST_EXTENSION = 256 * 1024
_EXTENSIONS = frozenset(
    {
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    }
)
_MOST_REMEMBERED = 65_536
"""Directories whose times are set at the end, as their content changes them."""

_DECIMAL = re.compile(r"(-?\d{1,11})(?:\.(\d{1,20}))?")
_ZEROS = bytes(LARGEST)


class _Header(tarfile.TarInfo):
    """A header whose extensions are read into memory only when they are small."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header block."""
        member = super().frombuf(buf, encoding, errors)
        if member.type in _EXTENSIONS and member.size > _LONGEST_EXTENSION:
            raise Refused("tree_invalid")
        return member


class _Incoming:
    """The content of a line as a file that can only be read on."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._kept = b""

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; nothing at the end."""
        if not self._kept:
            self._kept = next(self._pieces, b"")
        found, self._kept = self._kept[:size], self._kept[size:]
        return found


class Unpacker:
    """Unpacks one stream."""

    def __init__(self, *, line: Line) -> None:
        self._line = line
        self._entries = 0
        self._bytes = 0
        self._directories: dict[bytes, tuple[int, int]] = {}

    def unpack(self, beneath: Beneath, path: bytes, *, parents: bool) -> None:
        """Unpack into a directory; one that is not there appears when it is whole."""
        try:
            descriptor = beneath.directory(path)
        except FileNotFoundError:
            self._unpack_fresh(beneath, path, parents=parents)
        else:
            self._unpack_into(descriptor)
        self._line.answer(self._entries, self._bytes)

    def _unpack_fresh(self, beneath: Beneath, path: bytes, *, parents: bool) -> None:
        with beneath.place(path, parents=parents) as (above, name):
            temporary = temporary_name()
            os.mkdir(temporary, 0o755, dir_fd=above)
            try:
                flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                self._unpack_into(os.open(temporary, flags, dir_fd=above))
                rename((above, temporary), (above, name), overwrite=False)
            except BaseException:
                with contextlib.suppress(OSError, Refused):
                    remove_tree(above, temporary)
                raise

    def _unpack_into(self, directory: int) -> None:
        """Unpack the stream; closes the descriptor."""
        try:
            top = Beneath(directory)
            incoming = _Incoming(self._line.content())
            with tarfile.open(
                fileobj=cast(IO[bytes], incoming),
                mode="r|",
                bufsize=LARGEST,
                tarinfo=_Header,
                encoding="utf-8",
                errors="surrogateescape",
            ) as archive:
                while (member := archive.next()) is not None:
                    vars(archive)["members"] = []  # it would keep every one of them
                    self._line.breathe()
                    self._unpack_one(top, archive, member)
            while incoming.read(LARGEST):
                continue
            self._finish_directories(top)
        except (tarfile.TarError, EOFError, ValueError, RecursionError) as error:
            raise Refused("tree_invalid") from error
        finally:
            os.close(directory)

    def _unpack_one(self, top: Beneath, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = _inside(os.fsencode(member.name))
        if not path:
            if member.isdir():
                return  # the directory itself
            raise Refused("tree_invalid", os.fsencode(member.name))
        self._entries += 1
        mode, modified = member.mode & 0o777, _modified(member)
        if member.isdir():
            os.close(top.directory(path, parents=True))
            if len(self._directories) < _MOST_REMEMBERED:
                self._directories[path] = (mode, modified)
            return
        with top.place(path, parents=True) as (directory, name):
            if member.issym():
                self._link(directory, name, path, os.fsencode(member.linkname), modified)
            elif member.islnk():
                self._hard_link(top, directory, name, os.fsencode(member.linkname))
            elif member.isreg():
                self._file(archive, member, directory, name, mode, modified)
            else:
                raise Refused("tree_invalid", path)

    def _file(
        self,
        archive: tarfile.TarFile,
        member: tarfile.TarInfo,
        directory: int,
        name: bytes,
        mode: int,
        modified: int,
    ) -> None:
        content = archive.extractfile(member)
        if content is None:
            raise Refused("tree_invalid", name)
        with growing(directory, 0o600) as (descriptor, temporary):
            offset = 0
            while piece := content.read(LARGEST):
                offset = _written(descriptor, piece, offset)
                self._bytes += len(piece)
                self._line.breathe()
            if offset != member.size:
                raise Refused("tree_invalid", name)
            os.ftruncate(descriptor, offset)
            os.fchmod(descriptor, mode)
            os.utime(descriptor, ns=(modified, modified))
            rename((directory, temporary), (directory, name))

    def _link(self, directory: int, name: bytes, path: bytes, target: bytes, modified: int) -> None:
        if not stays_inside(path, target):
            raise Refused("path_outside", path)
        temporary = temporary_name()
        os.symlink(target, temporary, dir_fd=directory)
        try:
            os.utime(temporary, ns=(modified, modified), dir_fd=directory, follow_symlinks=False)
            rename((directory, temporary), (directory, name))
        except BaseException:
            os.unlink(temporary, dir_fd=directory)
            raise

    def _hard_link(self, top: Beneath, directory: int, name: bytes, target: bytes) -> None:
        inside = _inside(target)
        if not inside:
            raise Refused("path_outside", target)
        temporary = temporary_name()
        with top.place(inside) as (source, source_name):
            if not stat.S_ISREG(os.stat(source_name, dir_fd=source, follow_symlinks=False).st_mode):
                raise Refused("tree_invalid", target)
            os.link(
                source_name,
                temporary,
                src_dir_fd=source,
                dst_dir_fd=directory,
                follow_symlinks=False,
            )
        try:
            rename((directory, temporary), (directory, name))
        finally:
            # rename(2) leaves both names where they are the same file already.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)

    def _finish_directories(self, top: Beneath) -> None:
        """Set what files inside would have been in the way of, the deepest first."""
        for path in sorted(self._directories, reverse=True):
            self._line.breathe()
            mode, modified = self._directories[path]
            with top.opened(path, os.O_RDONLY | os.O_DIRECTORY) as directory:
                os.utime(directory, ns=(modified, modified))
                os.fchmod(directory, mode)


def stays_inside(path: bytes, target: bytes) -> bool:
    """Say whether a link at `path` of a tree names something in the tree, by its text."""
    if target.startswith(b"/") or not target:
        return False
    depth = path.count(b"/")
    for name in target.split(b"/"):
        if name == b"..":
            depth -= 1
            if depth < 0:
                return False
        elif name not in (b"", b"."):
            depth += 1
    return True


def _inside(name: bytes) -> bytes:
    """Return a member's name without what changes nothing; refuses one that leaves the tree."""
    if name.startswith(b"/") or b".." in (names := name.split(b"/")):
        raise Refused("path_outside", name)
    path = b"/".join(each for each in names if each not in (b"", b"."))
    if b"\0" in path:
        raise Refused("path_invalid", b"")
    if path:
        parted(path)
    return path


def _modified(member: tarfile.TarInfo) -> int:
    """Return a member's time in nanoseconds, exactly."""
    found = _DECIMAL.fullmatch(member.pax_headers.get("mtime", ""))
    if found is None:
        seconds = member.mtime
        return int(seconds) * 10**9 if abs(seconds) < 10**11 else 0
    rest = int((found[2] or "").ljust(9, "0")[:9])
    return int(found[1]) * 10**9 + (-rest if found[1].startswith("-") else rest)


def _written(descriptor: int, piece: bytes, offset: int) -> int:
    """Write a piece; one of zeros only becomes a hole."""
    if piece == _ZEROS[: len(piece)]:
        return offset + len(piece)
    rest = memoryview(piece)
    while rest:
        count = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[count:], offset + count
    return offset
