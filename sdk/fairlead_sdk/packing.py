"""Trees on this machine as tar streams."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator

from fairlead_sdk.file_records import TreeCopied

PIECE = 256 * 1024
_BLOCK = 512


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
