"""Whether a repository has an object, found without a git process: loose files, then the sorted
names in each pack's index (gitformat-pack(5), version 2), then what the repository borrows.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Iterator

_MAGIC = b"\xfftOc\x00\x00\x00\x02"
_FAN_OUT_END = 8 + 256 * 4
_ID_BYTES = 20
_DEEPEST = 5


class ObjectPresence:
    """The objects below an `objects` directory, SHA-1 ones. Use as a context manager."""

    def __init__(self, objects: str) -> None:
        self._places = list(_with_alternates(objects))
        self._indexes: list[mmap.mmap] | None = None

    def __enter__(self) -> ObjectPresence:
        return self

    def __exit__(self, *_: object) -> None:
        for index in self._indexes or ():
            index.close()

    def lacks(self, names: Iterable[bytes]) -> bool:
        """Say whether one of the objects, named in hexadecimal digits, was not found."""
        return any(not self._has(name) for name in names)

    def _has(self, name: bytes) -> bool:
        text = name.decode("ascii")
        if self._indexes is None:
            self._indexes = list(_opened(self._places))
        wanted = bytes.fromhex(text)
        if any(_holds(index, wanted) for index in self._indexes):
            return True
        return any(os.path.isfile(f"{place}/{text[:2]}/{text[2:]}") for place in self._places)


def _with_alternates(objects: str, depth: int = 0) -> Iterator[str]:
    """Give the directory and those that it borrows from (gitrepository-layout(5))."""
    yield objects
    if depth == _DEEPEST:
        return
    try:
        with open(f"{objects}/info/alternates", encoding="utf-8") as file:
            lines = file.read().split("\n")
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        if line and line[0] not in '#"':
            yield from _with_alternates(os.path.join(objects, line), depth + 1)


def _opened(places: list[str]) -> Iterator[mmap.mmap]:
    for place in places:
        try:
            names = [name for name in os.listdir(f"{place}/pack") if name.endswith(".idx")]
        except OSError:
            continue
        for name in names:
            if not os.path.isfile(f"{place}/pack/{name[:-4]}.pack"):
                continue
            try:
                with open(f"{place}/pack/{name}", "rb") as file:
                    index = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            except (OSError, ValueError):
                continue
            if index[:8] == _MAGIC and len(index) >= _FAN_OUT_END:
                yield index
            else:
                index.close()


def _holds(index: mmap.mmap, wanted: bytes) -> bool:
    first = wanted[0]
    (end,) = struct.unpack_from(">I", index, 8 + 4 * first)
    begin = struct.unpack_from(">I", index, 4 + 4 * first)[0] if first else 0
    names = index[_FAN_OUT_END + begin * _ID_BYTES : _FAN_OUT_END + end * _ID_BYTES]
    offset = -1
    while (offset := names.find(wanted, offset + 1)) >= 0:
        if offset % _ID_BYTES == 0:
            return True
    return False
