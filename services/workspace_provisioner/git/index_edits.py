"""Edits a settled index without git: entries of files that were written or are gone.

What the index remembers of trees (extension TREE) stays for the directories in which nothing
changed; other extensions are left out. Format: index-format.adoc of git, version 2.
"""

from __future__ import annotations

import hashlib
import os
import struct
from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from workspace_provisioner.git.index import IndexUnreadable
from workspace_provisioner.sources import ObjectFormat

_HEADER = struct.Struct(">4sLL")
_ENTRY = struct.Struct(">10L")
_SIZE_AT = 36
_LONG_NAME = 0x0FFF
_UNUSUAL = 0xF0
"""Bits of an entry's flags that say: extended, or in the middle of a merge."""
_LOW = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file as the index is to have it; `mode` is git's."""

    path: bytes
    mode: int
    oid: bytes
    stat: os.stat_result


@dataclass(frozen=True, slots=True)
class EditedIndex:
    """An index with the number of its files, and how many bytes more they have than before."""

    content: bytes
    files: int
    growth: int


def edited(
    index: bytes,
    object_format: ObjectFormat,
    *,
    gone: Collection[bytes],
    written: Collection[FileEntry],
) -> EditedIndex:
    """Return an index without what is `gone`, each path with all that is below it, and with what
    is `written`. Raises IndexUnreadable where git has to do it.
    """
    oid_bytes = object_format.digits // 2
    names, starts = _entries(index, oid_bytes)
    dropped: set[int] = set()
    added: dict[int, list[bytes]] = {}
    growth = 0
    for path in gone:
        dropped.update(range(bisect_left(names, path), bisect_left(names, path + b"\0")))
        dropped.update(range(bisect_left(names, path + b"/"), bisect_left(names, path + b"0")))
    for each in sorted(written, key=lambda each: each.path):
        place = bisect_left(names, each.path)
        if place < len(names) and names[place] == each.path:
            dropped.add(place)
        added.setdefault(place, []).append(_entry(each))
        growth += each.stat.st_size
    for place in dropped:
        (size,) = struct.unpack_from(">L", index, starts[place] + _SIZE_AT)
        growth -= size
    files = len(names) - len(dropped) + len(written)
    content = bytearray(_HEADER.pack(b"DIRC", 2, files))
    copied = _HEADER.size
    for place in sorted({*dropped, *added}):
        content += index[copied : starts[place]]
        content += b"".join(added.get(place, ()))
        copied = starts[place + 1] if place in dropped else starts[place]
    content += index[copied : starts[-1]]
    content += _extension(
        index[starts[-1] : len(index) - oid_bytes],
        oid_bytes,
        changed={*gone, *(each.path for each in written)},
    )
    content += hashlib.new(object_format.value, content).digest()
    return EditedIndex(bytes(content), files, growth)


def _entries(index: bytes, oid_bytes: int) -> tuple[list[bytes], list[int]]:
    """Return the names of all entries, and where each begins and the last one ends."""
    if len(index) < _HEADER.size + oid_bytes:
        raise IndexUnreadable("no header")
    magic, version, count = _HEADER.unpack_from(index)
    if magic != b"DIRC" or version != 2:
        raise IndexUnreadable(f"version {version}")
    names: list[bytes] = []
    starts = [_HEADER.size]
    start, flags_at = _HEADER.size, _ENTRY.size + oid_bytes
    try:
        for _ in range(count):
            name_at = start + flags_at + 2
            if index[name_at - 2] & _UNUSUAL:
                raise IndexUnreadable("an unusual entry")
            end = index.index(0, name_at)
            names.append(index[name_at:end])
            start += (end - start + 8) & ~7
            starts.append(start)
    except (IndexError, ValueError):
        raise IndexUnreadable("cut short") from None
    if start > len(index) - oid_bytes:
        raise IndexUnreadable("cut short")
    return names, starts


def _entry(each: FileEntry) -> bytes:
    found = each.stat
    numbers = (
        found.st_ctime_ns // 10**9,
        found.st_ctime_ns % 10**9,
        found.st_mtime_ns // 10**9,
        found.st_mtime_ns % 10**9,
        found.st_dev,
        found.st_ino,
        each.mode,
        found.st_uid,
        found.st_gid,
        found.st_size,
    )
    flags = min(len(each.path), _LONG_NAME).to_bytes(2, "big")
    entry = _ENTRY.pack(*(number & _LOW for number in numbers)) + each.oid + flags + each.path
    return entry + bytes(8 - len(entry) % 8)


def _extension(extensions: bytes, oid_bytes: int, *, changed: Collection[bytes]) -> bytes:
    """Return the extension TREE without what it says of directories in which something changed."""
    position = 0
    while position + 8 <= len(extensions):
        size = int.from_bytes(extensions[position + 4 : position + 8], "big")
        content = extensions[position + 8 : position + 8 + size]
        if extensions[position : position + 4] == b"TREE":
            try:
                kept = b"".join(_Trees(content, oid_bytes, changed).nodes())
            except (IndexError, ValueError):
                return b""
            return b"TREE" + len(kept).to_bytes(4, "big") + kept
        if not extensions[position : position + 1].isupper():
            raise IndexUnreadable("an extension that is not optional")
        position += 8 + size
    return b""


class _Trees:
    """The nodes of the extension TREE, each directory before those in it."""

    def __init__(self, content: bytes, oid_bytes: int, changed: Collection[bytes]) -> None:
        self._content = content
        self._oid_bytes = oid_bytes
        self._position = 0
        self._changed = frozenset(changed)
        self._above = {
            path[:end]
            for path in changed
            for end in range(len(path))
            if path[end : end + 1] == b"/"
        } | {b""}

    def nodes(self, above: bytes = b"", *, is_gone: bool = False) -> Iterator[bytes]:
        """Return the next node with all below it; a count of -1 says that nothing is known."""
        content, start = self._content, self._position
        end = content.index(b"\0", start)
        line_end = content.index(b"\n", end)
        count, subtrees = map(int, content[end + 1 : line_end].split(b" "))
        name = content[start:end]
        path = above + name
        self._position = line_end + 1 + (self._oid_bytes if count >= 0 else 0)
        is_gone = is_gone or path in self._changed
        if is_gone or path in self._above:
            yield b"%b\0-1 %d\n" % (name, subtrees)
        else:
            yield content[start : self._position]
        for _ in range(subtrees):
            yield from self.nodes(path + b"/" if path else b"", is_gone=is_gone)
