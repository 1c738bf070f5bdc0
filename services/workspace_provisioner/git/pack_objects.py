"""Reads small packs without git, within strict limits of memory; see gitformat-pack(5).

Whatever is not plain is refused with `Unsuited`, and then git itself has to look at it.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from workspace_provisioner.sources import ObjectFormat

MOST_OBJECTS = 1000
MOST_BYTES = 16 * 1024 * 1024
"""Of all objects of a pack together, inflated."""
_DEEPEST_CHAIN = 50
_KINDS = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}
_OFFSET_DELTA, _REFERENCE_DELTA = 6, 7

Found = tuple[str, bytes]
"""An object's kind and content."""


class Unsuited(Exception):
    """What is to be read is damaged, too large or too unusual for here."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of a pack: an object, or a delta and its base."""

    kind: str
    content: bytes
    base: int | str | None


class PackObjects:
    """The objects of one pack, by id."""

    def __init__(self, pack: bytes, object_format: ObjectFormat) -> None:
        """Read the entries; raises Unsuited."""
        self._format = object_format
        self._entries = _entries(pack, object_format)
        self.bases = frozenset(
            each.base for each in self._entries.values() if isinstance(each.base, str)
        )
        """Ids of objects that deltas are against; some of them may be in the pack itself."""

    def resolve(self, lookup: Callable[[str], Found | None]) -> dict[str, Found]:
        """Return every object; `lookup` gives bases that are not in the pack. Raises Unsuited."""
        found: dict[str, Found] = {}
        by_offset: dict[int, Found] = {}
        waiting = dict(self._entries)
        total = 0
        for _ in range(_DEEPEST_CHAIN):
            left = {}
            for offset, entry in waiting.items():
                base: Found | None = None
                if isinstance(entry.base, int):
                    base = by_offset.get(entry.base)
                elif isinstance(entry.base, str):
                    base = found.get(entry.base) or lookup(entry.base)
                if entry.base is not None and base is None:
                    left[offset] = entry
                    continue
                each = (entry.kind, entry.content)
                if base is not None:
                    each = (base[0], _patched(base[1], entry.content, MOST_BYTES - total))
                total += len(each[1])
                if total > MOST_BYTES:
                    raise Unsuited("too many bytes")
                by_offset[offset] = each
                found[object_id(self._format, *each)] = each
            if not left:
                return found
            if len(left) == len(waiting):
                break
            waiting = left
        raise Unsuited("a delta has no base")


def object_id(object_format: ObjectFormat, kind: str, content: bytes) -> str:
    """Return the id of an object."""
    digest = hashlib.new(object_format.value, f"{kind} {len(content)}\0".encode())
    digest.update(content)
    return digest.hexdigest()


def _entries(pack: bytes, object_format: ObjectFormat) -> dict[int, _Entry]:
    digest = hashlib.new(object_format.value)
    trailer = len(pack) - digest.digest_size
    if trailer < 12 or pack[:8] != b"PACK\0\0\0\2":
        raise Unsuited("no header")
    digest.update(memoryview(pack)[:trailer])
    if digest.digest() != pack[trailer:]:
        raise Unsuited("no trailer")
    count = int.from_bytes(pack[8:12], "big")
    if count > MOST_OBJECTS:
        raise Unsuited("too many objects")
    found: dict[int, _Entry] = {}
    position, total = 12, 0
    for _ in range(count):
        start = position
        number, size, position = _header(pack, position, trailer)
        total += size
        if total > MOST_BYTES:
            raise Unsuited("too many bytes")
        base: int | str | None = None
        if number == _OFFSET_DELTA:
            distance, position = _distance(pack, position, trailer)
            base = start - distance
        elif number == _REFERENCE_DELTA:
            base = pack[position : position + digest.digest_size].hex()
            position += digest.digest_size
        elif number not in _KINDS:
            raise Unsuited("an unknown kind of object")
        content, position = _inflated(pack, position, trailer, size)
        found[start] = _Entry(_KINDS.get(number, ""), content, base)
    if position != trailer:
        raise Unsuited("more than its objects")
    return found


def _header(pack: bytes, position: int, end: int) -> tuple[int, int, int]:
    """Read the kind and size of an entry; returns where it goes on."""
    byte, position = _byte(pack, position, end)
    number, size, shift = byte >> 4 & 7, byte & 15, 4
    while byte & 0x80:
        byte, position = _byte(pack, position, end)
        size |= (byte & 0x7F) << shift
        shift += 7
        if size > MOST_BYTES:
            raise Unsuited("too many bytes")
    return number, size, position


def _distance(pack: bytes, position: int, end: int) -> tuple[int, int]:
    byte, position = _byte(pack, position, end)
    distance = byte & 0x7F
    while byte & 0x80:
        byte, position = _byte(pack, position, end)
        distance = (distance + 1) << 7 | byte & 0x7F
        if distance > end:
            raise Unsuited("a base outside the pack")
    return distance, position


def _byte(given: bytes, position: int, end: int) -> tuple[int, int]:
    if position >= end:
        raise Unsuited("cut short")
    return given[position], position + 1


def _inflated(pack: bytes, position: int, end: int, size: int) -> tuple[bytes, int]:
    """Inflate exactly `size` bytes; returns where the next entry begins."""
    stream = zlib.decompressobj()
    found = b""
    try:
        while not stream.eof and len(found) <= size:
            # A little more than deflated bytes can be; the rest of the pack is not copied.
            given = stream.unconsumed_tail or pack[position : min(end, position + size + 1024)]
            if not given:
                raise Unsuited("cut short")
            if not stream.unconsumed_tail:
                position += len(given)
            found += stream.decompress(given, size + 1 - len(found) or 1)
    except zlib.error:
        raise Unsuited("not deflated") from None
    if not stream.eof or len(found) != size:
        raise Unsuited("another size than it says")
    return found, position - len(stream.unused_data)


def _patched(base: bytes, delta: bytes, most: int) -> bytes:
    """Apply a delta; raises Unsuited when the result would have more than `most` bytes."""
    end = len(delta)
    source_size, position = _delta_size(delta, 0, end)
    target_size, position = _delta_size(delta, position, end)
    if source_size != len(base) or target_size > most:
        raise Unsuited("a delta that does not fit")
    parts: list[bytes] = []
    size = 0
    while position < end:
        code = delta[position]
        position += 1
        if code & 0x80:
            offset = length = 0
            for bit in range(7):
                if code & 1 << bit:
                    byte, position = _byte(delta, position, end)
                    if bit < 4:
                        offset |= byte << 8 * bit
                    else:
                        length |= byte << 8 * (bit - 4)
            length = length or 0x10000
            if offset + length > source_size:
                raise Unsuited("a delta that does not fit")
            parts.append(base[offset : offset + length])
        elif code:
            length = code
            parts.append(delta[position : position + code])
            position += code
        else:
            raise Unsuited("a delta that is not understood")
        size += length
        if size > target_size:
            raise Unsuited("a delta that does not fit")
    found = b"".join(parts)
    if len(found) != target_size:
        raise Unsuited("a delta that does not fit")
    return found


def _delta_size(delta: bytes, position: int, end: int) -> tuple[int, int]:
    size = shift = 0
    while True:
        byte, position = _byte(delta, position, end)
        size |= (byte & 0x7F) << shift
        shift += 7
        if size > MOST_BYTES:
            raise Unsuited("too many bytes")
        if not byte & 0x80:
            return size, position
