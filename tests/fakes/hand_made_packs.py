"""Packs made by hand, object by object, as no git would make them (gitformat-pack(5))."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence

COMMIT, TREE, BLOB, OFFSET_DELTA, NAMED_DELTA = 1, 2, 3, 6, 7
_NAMES = {COMMIT: b"commit", TREE: b"tree", BLOB: b"blob"}


def object_id(kind: int, content: bytes) -> bytes:
    """Return the SHA-1 id of an object."""
    return hashlib.sha1(b"%s %d\0%s" % (_NAMES[kind], len(content), content)).digest()  # noqa: S324


def entry(kind: int, content: bytes, *, size: int | None = None, base: bytes = b"") -> bytes:
    """Return an object as it is in a pack; `size` may lie, `base` is a name or encoded offset."""
    size = len(content) if size is None else size
    byte, size = kind << 4 | size & 15, size >> 4
    header = bytearray()
    while size:
        header.append(byte | 0x80)
        byte, size = size & 0x7F, size >> 7
    header.append(byte)
    return bytes(header) + base + zlib.compress(content, 9)


def pack(entries: Sequence[bytes], *, count: int | None = None) -> bytes:
    """Put entries together with header and checksum; `count` may lie."""
    count = len(entries) if count is None else count
    body = b"PACK" + (2).to_bytes(4, "big") + count.to_bytes(4, "big") + b"".join(entries)
    return body + hashlib.sha1(body).digest()  # noqa: S324


def offset(distance: int) -> bytes:
    """Encode how far back the base of a delta begins."""
    found = [distance & 0x7F]
    while distance := distance >> 7:
        distance -= 1
        found.append(0x80 | distance & 0x7F)
    return bytes(reversed(found))


def varint(number: int) -> bytes:
    """Encode a size of a delta."""
    found = bytearray()
    while number >> 7:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def copies(base_size: int, length: int, times: int) -> bytes:
    """Return a delta that copies the first `length` bytes (at most 65535) of its base often."""
    one = bytes([0b1011_0000, length & 0xFF, length >> 8])
    return varint(base_size) + varint(length * times) + one * times


def doubling_chain(depth: int, start: bytes) -> list[bytes]:
    """Return an object and deltas on each other, of which each is twice as long as its base."""
    entries, size = [entry(BLOB, start)], len(start)
    for _ in range(depth):
        # Copies longer than 16 MiB do not exist, so a long base is copied in pieces.
        operations = b"".join(_copy(at, length) for _ in range(2) for at, length in _pieces(size))
        delta = varint(size) + varint(2 * size) + operations
        entries.append(entry(OFFSET_DELTA, delta, base=offset(len(entries[-1]))))
        size *= 2
    return entries


def _pieces(size: int) -> list[tuple[int, int]]:
    step = 0xFFFFFF
    return [(at, min(step, size - at)) for at in range(0, size, step)]


def _copy(at: int, length: int) -> bytes:
    return b"\xff" + at.to_bytes(4, "little") + length.to_bytes(3, "little")


def tree(entries: Sequence[tuple[bytes, bytes, bytes]]) -> bytes:
    """Return the content of a tree of (mode, name, id)."""
    return b"".join(mode + b" " + name + b"\0" + oid for mode, name, oid in entries)


def commit(tree_id: bytes) -> bytes:
    """Return the content of a commit without parents."""
    who = b"Ada <ada@example.com> 1700000000 +0000"
    return b"tree %s\nauthor %s\ncommitter %s\n\nm\n" % (tree_id.hex().encode(), who, who)


class HandMade:
    """Objects for a pack, each named by its content."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []

    def add(self, kind: int, content: bytes) -> bytes:
        """Add an object and return its id."""
        self.entries.append(entry(kind, content))
        return object_id(kind, content)

    def commit(self, root: bytes) -> str:
        """Add a commit of a tree and return its id as text."""
        return self.add(COMMIT, commit(root)).hex()

    def pack(self) -> bytes:
        """Return all of them as a pack."""
        return pack(self.entries)


def path_bomb(width: int, depth: int) -> tuple[bytes, str]:
    """Return a pack of `depth` + 3 objects whose commit has `width` ** `depth` files."""
    made = HandMade()
    mode, inner = b"100644", made.add(BLOB, b"x")
    for _ in range(depth):
        names = sorted(b"%02d" % number for number in range(width))
        inner = made.add(TREE, tree([(mode, name, inner) for name in names]))
        mode = b"40000"
    wanted = made.commit(inner)
    return made.pack(), wanted
