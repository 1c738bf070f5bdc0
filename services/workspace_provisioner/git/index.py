"""Settles a checkout: its files get a whole second in the past and its index the same, so that the
first `git status` hashes nothing and a later write of the same size is still noticed.

The index is rewritten here, without git: only the stat fields of entries whose files git has just
written change. Format: index-format.adoc of git, versions 2 and 3.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from workspace_provisioner.gitmodules import DIRECTORY_FAULT, fault_of
from workspace_provisioner.lfs import POINTER_BYTES, is_pointer
from workspace_provisioner.sources import ObjectFormat

SETTLED_SECONDS = 2
"""How far in the past the time of a checkout is: no later write can have the same second."""

_SYMLINK, _GITLINK = 0o120000, 0o160000
_STAT = struct.Struct(">LLLLLL")
_OWNER_AND_SIZE = struct.Struct(">LLL")
_NAME_BYTES = 0x0FFF
_EXTENDED = 0x4000
_LOW = 0xFFFFFFFF
_ATTRIBUTES_BYTES = 256 * 1024
_MOST_POINTERS = 1000
# Attributes by which git writes other bytes than the object holds; filters never run here.
_CONVERTS = re.compile(rb"\b(eol|crlf|ident|working-tree-encoding)\b")


class IndexUnreadable(Exception):
    """The index is not of a form that is understood here."""


@dataclass(slots=True)
class Contents:
    """What a checkout holds: whether there are submodules and what is wrong with `.gitmodules`, how
    many LFS pointers (at most 1000 are counted), whether attributes make files differ from their
    objects, how many files and bytes.
    """

    has_submodules: bool = False
    submodules_fault: str = ""
    lfs_pointers: int = 0
    converts: bool = False
    files: int = 0
    size: int = 0


def settle(
    tree: Path, object_format: ObjectFormat, *, now: float, below: Path | None = None
) -> Contents:
    """Settle the files of `tree` and its `.git/index`; blocking. With `below`, `tree` is a layer
    over it, and the files that only `below` has stay as they are.

    Raises IndexUnreadable and OSError.
    """
    moment = int(now) - SETTLED_SECONDS
    found = _Walk(os.fsencode(tree) + b"/", moment, os.fsencode(below) + b"/" if below else b"")
    _rewrite(tree / ".git/index", object_format, found.visit)
    return found.contents


def settle_layer(upper: Path, index: Path, object_format: ObjectFormat, *, now: float) -> None:
    """Settle the files of an upper layer and their entries in an index; blocking. What is as new as
    the index git would hash at each look. A file of the same size and second as the one below it
    would look unchanged, so that these get a later second than a checkout made at `now`. A file
    with several links keeps its time, which others rely on.

    Raises IndexUnreadable and OSError.
    """
    root = os.fsencode(upper) + b"/"
    own = _files_of(root)
    times = ((int(now) - SETTLED_SECONDS + 1) * 10**9,) * 2

    def visit(entries: bytearray, offset: int, name: bytes) -> None:
        (mode,) = struct.unpack_from(">L", entries, offset + 24)
        if name in own and mode != _GITLINK:
            found = os.lstat(root + name)
            is_shared = found.st_nlink > 1
            moment = (found.st_mtime_ns,) * 2 if is_shared else times
            _settle_entry(entries, offset, root + name, moment)

    _rewrite(index, object_format, visit)


def _rewrite(
    path: Path, object_format: ObjectFormat, visit: Callable[[bytearray, int, bytes], None]
) -> None:
    """Let each entry of an index be visited, which may change its stat fields, and write it."""
    index = bytearray(path.read_bytes())
    digest = hashlib.new(object_format.value)
    oid_bytes = digest.digest_size
    if len(index) < 12 + oid_bytes or index[:4] != b"DIRC":
        raise IndexUnreadable("no header")
    version, count = struct.unpack_from(">LL", index, 4)
    if version not in (2, 3):
        raise IndexUnreadable(f"version {version}")
    offset = 12
    for _ in range(count):
        flags_at = offset + 40 + oid_bytes
        (flags,) = struct.unpack_from(">H", index, flags_at)
        name_at = flags_at + (4 if flags & _EXTENDED else 2)
        length = flags & _NAME_BYTES
        end = name_at + length if length < _NAME_BYTES else index.index(0, name_at)
        visit(index, offset, bytes(index[name_at:end]))
        offset += (end - offset + 8) & ~7
    digest.update(memoryview(index)[:-oid_bytes])
    index[-oid_bytes:] = digest.digest()
    draft = path.with_name("index.settled")
    draft.write_bytes(index)
    draft.chmod(0o644)
    draft.rename(path)


def _settle_entry(index: bytearray, offset: int, path: bytes, times: tuple[int, int]) -> int:
    """Date a file, write what stat(2) says of it into its entry, and return its size."""
    os.utime(path, ns=times, follow_symlinks=False)
    found = os.lstat(path)
    _STAT.pack_into(
        index,
        offset,
        found.st_ctime_ns // 10**9 & _LOW,
        found.st_ctime_ns % 10**9,
        found.st_mtime_ns // 10**9 & _LOW,
        found.st_mtime_ns % 10**9,
        found.st_dev & _LOW,
        found.st_ino & _LOW,
    )
    _OWNER_AND_SIZE.pack_into(
        index, offset + 28, found.st_uid & _LOW, found.st_gid & _LOW, found.st_size & _LOW
    )
    return found.st_size


class _Walk:
    """Visits the entries of an index."""

    def __init__(self, root: bytes, moment: int, below: bytes) -> None:
        self._root = root
        self._times = (moment * 10**9, moment * 10**9)
        self._below = below
        self._own = _files_of(root) if below else frozenset()
        self._lfs = False
        self.contents = Contents()

    def visit(self, index: bytearray, offset: int, name: bytes) -> None:
        """Settle one entry's file and write what stat(2) says of it into the entry."""
        contents = self.contents
        contents.files += 1
        (mode,) = struct.unpack_from(">L", index, offset + 24)
        if mode == _GITLINK:
            contents.has_submodules = True
            return
        if not self._below or name in self._own:
            path = self._root + name
            size = _settle_entry(index, offset, path, self._times)
        else:
            path = self._below + name
            (size,) = struct.unpack_from(">L", index, offset + 36)
        contents.size += size
        if name == b".gitmodules":
            contents.has_submodules = True
            content = None if mode == _SYMLINK else _head(path, size)
            contents.submodules_fault = fault_of(content)
        elif name.startswith(b".gitmodules/"):
            contents.submodules_fault = DIRECTORY_FAULT
        elif mode == _SYMLINK:
            return
        elif name.rpartition(b"/")[2] == b".gitattributes":
            text = _head(path, min(size, _ATTRIBUTES_BYTES))
            if _CONVERTS.search(text) or size > _ATTRIBUTES_BYTES:
                contents.converts = True
            self._lfs = self._lfs or b"filter=lfs" in text
        elif self._lfs and 0 < size < POINTER_BYTES and contents.lfs_pointers < _MOST_POINTERS:
            contents.lfs_pointers += is_pointer(_head(path, size))


def _head(path: bytes, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.read(descriptor, size)
    finally:
        os.close(descriptor)


def _files_of(root: bytes) -> frozenset[bytes]:
    """Return the names of the files of a layer, without its git directory and its whiteouts."""
    found = []
    pending = [b""]
    while pending:
        directory = pending.pop()
        with os.scandir(root + directory) as entries:
            for entry in entries:
                name = directory + entry.name
                if entry.is_dir(follow_symlinks=False):
                    if name != b".git":
                        pending.append(name + b"/")
                elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
                    found.append(name)
    return frozenset(found)
