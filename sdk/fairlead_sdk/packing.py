"""Trees on this machine as tar streams, both ways.

What comes from a sandbox is not trusted: no name and no link of it leads out of the directory that
it is unpacked into.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tarfile
from collections.abc import Iterator
from typing import IO, Self
from urllib.parse import unquote

from fairlead_sdk.errors import InvalidArgument
from fairlead_sdk.file_records import TreeCopied

PIECE = 256 * 1024
_BLOCK = 512
_LEFT_OUT = "FAIRLEAD.left_out"
"""Names in an extended header of the top, percent-encoded, that the sandbox did not pack."""


class TreeRefused(InvalidArgument):
    """A tree from a sandbox holds what is not unpacked here."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"The tree from the sandbox holds {name!r}, which is not unpacked.",
            reason="tree_refused",
            remedy="Look at it inside the sandbox; nothing of it was kept here.",
            fields={"name": name},
        )


class Packer:
    """Packs a directory; what it has come to is there at the end."""

    def __init__(self, top: str) -> None:
        self._top = top
        self._entries = 0
        self._bytes = 0
        self._left_out: list[str] = []

    @property
    def copied(self) -> TreeCopied:
        """What was packed."""
        return TreeCopied(self._entries, self._bytes, tuple(self._left_out))

    def pieces(self) -> Iterator[bytes]:
        """Give the tar stream; raises OSError for what cannot be read."""
        waiting = bytearray()
        for part in self._parts():
            waiting += part
            while len(waiting) >= PIECE:
                yield bytes(waiting[:PIECE])
                del waiting[:PIECE]
        yield bytes(waiting) + bytes(2 * _BLOCK)

    def _parts(self) -> Iterator[bytes]:
        pending = [""]
        while pending:
            folder = pending.pop()
            with os.scandir(os.path.join(self._top, folder)) as found:
                entries = sorted(found, key=lambda entry: entry.name)
            for entry in entries:
                name = f"{folder}/{entry.name}" if folder else entry.name
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    pending.append(name)
                    yield self._header(name, status, tarfile.DIRTYPE)
                elif stat.S_ISLNK(status.st_mode):
                    target = os.readlink(entry.path)
                    if stays_inside(name, target):
                        yield self._header(name, status, tarfile.SYMTYPE, target=target)
                    else:
                        self._left_out.append(name)
                elif stat.S_ISREG(status.st_mode):
                    yield from self._file(name, entry.path)
                else:
                    self._left_out.append(name)

    def _file(self, name: str, path: str) -> Iterator[bytes]:
        with open(path, "rb") as content:
            status = os.fstat(content.fileno())
            yield self._header(name, status, tarfile.REGTYPE, size=status.st_size)
            left = status.st_size
            while left:
                # The header has promised the size: what was cut off meanwhile is filled up.
                piece = content.read(min(PIECE, left)) or bytes(min(PIECE, left))
                yield piece
                left -= len(piece)
            yield bytes(-status.st_size % _BLOCK)
            self._bytes += status.st_size

    def _header(
        self, name: str, status: os.stat_result, kind: bytes, *, size: int = 0, target: str = ""
    ) -> bytes:
        self._entries += 1
        member = tarfile.TarInfo(name)
        member.type, member.size, member.linkname = kind, size, target
        member.mode = status.st_mode & 0o777
        member.mtime = status.st_mtime_ns // 10**9
        if rest := status.st_mtime_ns % 10**9:
            member.pax_headers = {"mtime": f"{status.st_mtime_ns // 10**9}.{rest:09d}"}
        return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


class _Header(tarfile.TarInfo):
    """A header whose extensions are read into memory only when they are small."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header block."""
        member = super().frombuf(buf, encoding, errors)
        if not (member.isreg() or member.isdir() or member.issym()) and member.size > PIECE:
            raise TreeRefused(member.name)
        return member


class Unpacker:
    """Unpacks a stream below a directory that is there.

    Links are made when all else is: so nothing is ever written through one of the stream's.
    """

    def __init__(self, top: str) -> None:
        self._top = top
        self._entries = 0
        self._bytes = 0
        self._links: list[tuple[str, str]] = []
        self._directories: list[tuple[str, int, float]] = []
        self._left_out: list[str] = []

    def unpack(self, stream: IO[bytes]) -> TreeCopied:
        """Unpack to the end; raises TreeRefused, `tarfile.TarError` and OSError."""
        with tarfile.open(
            fileobj=stream,
            mode="r|",
            bufsize=PIECE,
            tarinfo=_Header,
            encoding="utf-8",
            errors="surrogateescape",
        ) as archive:
            while (member := archive.next()) is not None:
                vars(archive)["members"] = []  # it would keep every one of them
                self._unpack_one(archive, member)
        while stream.read(PIECE):
            continue
        for name, target in self._links:
            self._link(name, target)
        self._leave_out_leading_links()
        for name, mode, modified in reversed(self._directories):
            path = os.path.join(self._top, name)
            os.utime(path, (modified, modified))
            os.chmod(path, mode)
        return TreeCopied(self._entries, self._bytes, tuple(self._left_out))

    def _unpack_one(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = _inside(member.name)
        if not name:
            named = member.pax_headers.get(_LEFT_OUT, "").split()
            self._left_out += (unquote(each, errors="surrogateescape") for each in named)
            return
        mode = member.mode & 0o777
        if member.isdir():
            self._directory(name)
            self._directories.append((name, mode | 0o700, float(member.mtime)))
        elif member.issym():
            self._above(name)
            if stays_inside(name, member.linkname):
                self._links.append((name, member.linkname))
            else:
                self._left_out.append(name)
                return
        elif member.isreg():
            self._above(name)
            self._file(archive, member, name, mode)
        else:
            raise TreeRefused(member.name)
        self._entries += 1

    def _above(self, name: str) -> None:
        folder = os.path.dirname(name)
        if folder:
            self._directory(folder)

    def _directory(self, name: str) -> None:
        """Make a directory and those above it, of which none may be a link."""
        path = self._top
        for part in name.split("/"):
            path = os.path.join(path, part)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                raise TreeRefused(name)

    def _file(
        self, archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, mode: int
    ) -> None:
        content = archive.extractfile(member)
        if content is None:
            raise TreeRefused(member.name)
        path = os.path.join(self._top, name)
        with replaced(path) as target:
            while piece := content.read(PIECE):
                target.write(piece)
                self._bytes += len(piece)
            target.flush()
            os.fchmod(target.fileno(), mode)
            os.utime(target.fileno(), (member.mtime, member.mtime))

    def _link(self, name: str, target: str) -> None:
        path = os.path.join(self._top, name)
        temporary = temporary_beside(path)
        os.symlink(target, temporary)
        try:
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise

    def _leave_out_leading_links(self) -> None:
        """Remove links that lead out by way of others, which their text alone does not show."""
        top = os.path.join(os.path.realpath(self._top), "")
        for name, _ in self._links:
            path = os.path.join(self._top, name)
            if not os.path.join(os.path.realpath(path), "").startswith(top):
                os.unlink(path)
                self._left_out.append(name)
                self._entries -= 1


@contextlib.contextmanager
def replaced(path: str) -> Iterator[IO[bytes]]:
    """Give a fresh file that takes the place of `path` at the end, unless it was not reached."""
    temporary = temporary_beside(path)
    try:
        with open(temporary, "xb") as target:
            yield target
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def temporary_beside(path: str) -> str:
    """Make up a name in the same directory that nothing has."""
    return os.path.join(os.path.dirname(path), f".fairlead-{secrets.token_hex(8)}.part")


def stays_inside(name: str, target: str) -> bool:
    """Say whether a link of a tree names something in the tree, by its text."""
    if not target or target.startswith("/"):
        return False
    depth = name.count("/")
    for part in target.split("/"):
        if part == "..":
            depth -= 1
            if depth < 0:
                return False
        elif part not in ("", "."):
            depth += 1
    return True


def _inside(name: str) -> str:
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise TreeRefused(name)
    return "/".join(part for part in parts if part not in ("", "."))
