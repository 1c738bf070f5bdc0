"""What may be in a pack and in a tree at most, and a look into a small pack before git unpacks it.

A pack says how large its objects become: deflated zeros shrink a thousandfold, and seven bytes of a
delta copy 16 MiB. See gitformat-pack(5).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from workspace_provisioner.errors import PackInvalid, PackTooLarge

_SETTING = "FAIRLEAD_WORKSPACE_MAX_"
_HEADER = 12
_PLAIN = frozenset((1, 2, 3, 4))
_OFFSET_DELTA, _NAMED_DELTA = 6, 7
_PIECE = 256 * 1024
_SHOWN = 40
MOST_INLINE_BYTES = 1024**3
"""What the pack of a request may unpack to: its objects are written out one by one."""


@dataclass(frozen=True, slots=True)
class PackCaps:
    """Limits of content. Chains: what `git repack` can make at most; paths: with those of
    directories; path bytes: what Linux can open (PATH_MAX), with room for where the tree lies.
    """

    inflated_bytes: int = 8 * 1024**3
    object_bytes: int = 512 * 1024**2
    objects: int = 20_000_000
    chain: int = 4095
    paths: int = 500_000
    path_bytes: int = 3500
    name_bytes: int = 255
    depth: int = 256

    def check_total(self, size: int) -> None:
        """Raise PackTooLarge where objects, or the files of a tree, have more bytes in all."""
        if size > self.inflated_bytes:
            raise _exceeded(self.inflated_bytes, "bytes when unpacked", "INFLATED_BYTES")

    def check_object(self, size: int) -> None:
        """Raise PackTooLarge where one object is larger."""
        if size > self.object_bytes:
            raise _exceeded(self.object_bytes, "bytes in one object", "OBJECT_BYTES")

    def check_objects(self, count: int) -> None:
        """Raise PackTooLarge where there are more objects."""
        if count > self.objects:
            raise _exceeded(self.objects, "objects")

    def check_chain(self, depth: int) -> None:
        """Raise PackTooLarge where more deltas stand on each other."""
        if depth > self.chain:
            raise _exceeded(self.chain, "deltas on top of each other")

    def check_paths(self, count: int) -> None:
        """Raise PackTooLarge where a tree has more paths."""
        if count > self.paths:
            raise _exceeded(self.paths, "paths in one tree", "PATHS")

    def check_path(self, path: bytes) -> None:
        """Raise PackTooLarge where a path is too long or too deep to be opened."""
        if len(path) > self.path_bytes:
            raise _exceeded(self.path_bytes, "bytes in one path")
        if path.count(b"/") >= self.depth:
            raise _exceeded(self.depth, "directories inside each other")
        if len(path) > self.name_bytes and any(
            len(name) > self.name_bytes for name in path.split(b"/")
        ):
            raise _exceeded(self.name_bytes, "bytes in one name")


def _exceeded(limit: int, what: str, setting: str = "") -> PackTooLarge:
    return PackTooLarge(limit=limit, what=what, setting=f"{_SETTING}{setting}" if setting else "")


def check_pack(pack: bytes, caps: PackCaps, *, id_bytes: int = 20) -> None:
    """Look at every object of a small pack without making any; blocking.

    Raises PackTooLarge, and PackInvalid where it is not a pack. `caps.inflated_bytes` counts what
    the objects become, deltas applied. Checksums, names and bases are left to git.
    """
    if pack[:4] != b"PACK" or len(pack) < _HEADER + id_bytes:
        raise PackInvalid("it is cut short or malformed")
    count = int.from_bytes(pack[8:_HEADER], "big")
    caps.check_objects(count)
    position, end, total = _HEADER, len(pack) - id_bytes, 0
    depths: dict[int, int] = {}
    try:
        for _ in range(count):
            start = position
            kind, size, position = _object_header(pack, position)
            caps.check_object(size)
            depth = 0
            if kind == _OFFSET_DELTA:
                distance, position = _offset(pack, position)
                depth = depths.get(start - distance, 0) + 1
                caps.check_chain(depth)
            elif kind == _NAMED_DELTA:
                depth, position = 1, position + id_bytes
            elif kind not in _PLAIN:
                raise PackInvalid("it has an object of an unknown kind")
            depths[start] = depth
            stream = _Stream(pack, position, end, size)
            head = stream.run()
            position = stream.position
            if depth:
                _, after = _size(head, 0)
                size, _ = _size(head, after)
                caps.check_object(size)
            total += size
            caps.check_total(total)
    except (IndexError, zlib.error):
        raise PackInvalid("it is cut short or malformed") from None


class _Stream:
    """One deflated object; its first bytes are kept, the rest is only counted."""

    def __init__(self, pack: bytes, position: int, end: int, size: int) -> None:
        self._pack = memoryview(pack)[:end]
        self._size = size
        self.position = position

    def run(self) -> bytes:
        """Inflate to the end and return the first bytes; leaves `position` behind the object."""
        inflating, head, seen = zlib.decompressobj(), b"", 0
        for piece in self._pieces():
            given = inflating.decompress(piece, _PIECE)
            while True:
                seen += len(given)
                if seen > self._size:
                    raise PackInvalid("an object is larger than it says")
                if len(head) < _SHOWN:
                    head += given[:_SHOWN]
                if inflating.eof or not inflating.unconsumed_tail:
                    break
                given = inflating.decompress(inflating.unconsumed_tail, _PIECE)
            if inflating.eof:
                self.position -= len(inflating.unused_data)
                break
        if not inflating.eof or seen != self._size:
            raise PackInvalid("an object is cut short")
        return head

    def _pieces(self) -> Iterator[memoryview]:
        """Return small pieces first, since zlib copies what is behind the end of an object."""
        length = 256
        while self.position < len(self._pack):
            piece = self._pack[self.position : self.position + length]
            self.position += len(piece)
            yield piece
            length = min(2 * length, _PIECE)


def _object_header(pack: bytes, position: int) -> tuple[int, int, int]:
    byte = pack[position]
    kind, size, shift = byte >> 4 & 7, byte & 15, 4
    while byte & 0x80:
        position += 1
        byte = pack[position]
        size |= (byte & 0x7F) << shift
        shift += 7
    return kind, size, position + 1


def _offset(pack: bytes, position: int) -> tuple[int, int]:
    byte = pack[position]
    distance = byte & 0x7F
    while byte & 0x80:
        position += 1
        byte = pack[position]
        distance = (distance + 1 << 7) | (byte & 0x7F)
    return distance, position + 1


def _size(delta: bytes, position: int) -> tuple[int, int]:
    size, shift = 0, 0
    while True:
        byte = delta[position]
        position += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return size, position
