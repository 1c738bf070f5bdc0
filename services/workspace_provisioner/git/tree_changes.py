"""Compares two trees of objects: what has to be written and what has to go, level by level."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, field

from workspace_provisioner.git.pack_objects import Found, Unsuited
from workspace_provisioner.sources import ObjectFormat

MOST_CHANGES = 2000
MOST_CHANGED_BYTES = 32 * 1024 * 1024
MOST_TREE_BYTES = 4 * 1024 * 1024
"""What the trees of a comparison may have in all, each as often as it is looked at: a small pack
can name one large tree many times.
"""
_DEEPEST = 100
_TREE, _LINK = b"40000", b"120000"
_FILES = {b"100644": 0o644, b"100755": 0o755}
# What git itself has to judge: names that some file system takes for `.git`, and files by which
# git does more than write them.
_DELICATE = re.compile(rb"(?i)\.git(?!hub$|keep$|ignore$)|git~[0-9]|.*(\xe2\x80|\xe2\x81|\xef\xbb)")

Fetch = Callable[[Iterable[str]], Awaitable[Mapping[str, Found]]]


@dataclass(frozen=True, slots=True)
class Written:
    """A file to write, or a link when it has no mode; `path` is its parts."""

    path: tuple[bytes, ...]
    mode: int | None
    content: bytes
    oid: str


@dataclass(slots=True)
class TreeChanges:
    """What makes one tree of another: first `gone` goes for good and `replaced` for something else,
    each with all that is below it, then `directories` are made, then `written` is written.
    """

    gone: list[tuple[bytes, ...]] = field(default_factory=list)
    replaced: list[tuple[bytes, ...]] = field(default_factory=list)
    directories: list[tuple[bytes, ...]] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)


Entries = dict[bytes, tuple[bytes, str]]


async def compared(fetch: Fetch, object_format: ObjectFormat, old: str, wanted: str) -> TreeChanges:
    """Compare two trees, by their ids; raises Unsuited for what git has to do itself."""
    found = TreeChanges()
    blobs: list[tuple[tuple[bytes, ...], bytes, str]] = []
    level: list[tuple[tuple[bytes, ...], str, str]] = [((), old, wanted)]
    size = 0
    for _ in range(_DEEPEST):
        if not level:
            break
        trees = await fetch({each for _, one, two in level for each in (one, two) if each})
        below: list[tuple[tuple[bytes, ...], str, str]] = []
        for path, one, two in level:
            size += sum(len(trees[each][1]) for each in (one, two) if each in trees)
            if size > MOST_TREE_BYTES:
                raise Unsuited("too large trees")
            before = _entries(trees, one, object_format) if one else {}
            _compare(path, before, _entries(trees, two, object_format), found, blobs, below)
        level = below
    else:
        raise Unsuited("too deep")
    contents = await fetch({oid for _, _, oid in blobs})
    total = 0
    for path, mode, oid in blobs:
        kind, content = contents.get(oid, ("", b""))
        if kind != "blob":
            raise Unsuited("a file is lacking")
        total += len(content)
        if total > MOST_CHANGED_BYTES:
            raise Unsuited("too many bytes")
        if mode == _LINK and (not content or b"\0" in content or len(content) > 4095):
            raise Unsuited("a link that cannot be made")
        found.written.append(Written(path, _FILES.get(mode), content, oid))
    return found


def tree_of(objects: Mapping[str, Found], commit: str, object_format: ObjectFormat) -> str:
    """Return the tree of a commit; raises Unsuited when the commit is not there."""
    kind, content = objects.get(commit, ("", b""))
    if kind != "commit" or not content.startswith(b"tree "):
        raise Unsuited("the commit is lacking")
    return content[5 : 5 + object_format.digits].decode("ascii")


def _compare(
    path: tuple[bytes, ...],
    before: Entries,
    after: Entries,
    found: TreeChanges,
    blobs: list[tuple[tuple[bytes, ...], bytes, str]],
    below: list[tuple[tuple[bytes, ...], str, str]],
) -> None:
    for name, (mode, _) in before.items():
        if after.get(name) != before[name]:
            _check(name, mode)
            if name not in after:
                found.gone.append((*path, name))
                _check_room(found, blobs, below)
    for name, (mode, oid) in after.items():
        was, old = before.get(name, (b"", ""))
        if (was, old) == (mode, oid):
            continue
        _check(name, mode)
        place = (*path, name)
        if mode == _TREE:
            if was and was != _TREE:
                found.replaced.append(place)
            if was != _TREE:
                found.directories.append(place)
            below.append((place, old if was == _TREE else "", oid))
        else:
            if was:
                found.replaced.append(place)
            blobs.append((place, mode, oid))
        _check_room(found, blobs, below)


def _check_room(found: TreeChanges, blobs: Sized, below: Sized) -> None:
    """Raise Unsuited where there are more changes, or more directories to look into."""
    changes = len(blobs) + len(found.gone) + len(found.directories)
    if max(changes, len(below)) > MOST_CHANGES:
        raise Unsuited("too many changes")


def _check(name: bytes, mode: bytes) -> None:
    if mode not in _FILES and mode not in (_TREE, _LINK):
        raise Unsuited("an unusual entry")
    if name in (b".", b"..") or len(name) > 255 or _DELICATE.match(name):
        raise Unsuited("a delicate name")


def _entries(trees: Mapping[str, Found], oid: str, object_format: ObjectFormat) -> Entries:
    kind, content = trees.get(oid, ("", b""))
    if kind != "tree":
        raise Unsuited("a tree is lacking")
    found: Entries = {}
    oid_bytes = object_format.digits // 2
    position, last = 0, b""
    while position < len(content):
        space = content.find(b" ", position, position + 8)
        end = content.find(b"\0", space)
        if space < 0 or end < 0 or end + 1 + oid_bytes > len(content):
            raise Unsuited("not a tree")
        mode, name = content[position:space], content[space + 1 : end]
        # A directory sorts as if its name ended with a slash.
        place = name + b"/" if mode == _TREE else name
        if not name or b"/" in name or place <= last or name in found:
            raise Unsuited("not a tree")
        found[name] = (mode, content[end + 1 : end + 1 + oid_bytes].hex())
        last = place
        position = end + 1 + oid_bytes
    return found
