"""The MessagePack extension codes of the membrane's values, and what tells a plain value from the
rest.

All integers in payloads are little-endian; "array" is a MessagePack array whose items are values
again.
"""

from __future__ import annotations

import gc
import struct
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import Final

from msgspec.msgpack import Encoder, Ext

from membrane.errors import ProtocolError

INT: Final = 1  # two's complement, as many bytes as it needs: outside -2**63 .. 2**64-1
COMPLEX: Final = 2  # real f64, imaginary f64
TEXT: Final = 3  # a str with surrogates: UTF-8 with "surrogatepass"
BYTEARRAY: Final = 4  # its bytes
TUPLE: Final = 5  # array
SET: Final = 6  # array
FROZENSET: Final = 7  # array
DICT: Final = 8  # array: key, value, key, value...; a map when all keys are plain
SLICE: Final = 9  # array: start, stop, step
RANGE: Final = 10  # array of ints: start, stop, step
SINGLETON: Final = 11  # one byte: 0 Ellipsis, 1 NotImplemented
DATETIME: Final = 12  # array: year .. microsecond, fold, timezone or None
DATE: Final = 13  # array: year, month, day
TIME: Final = 14  # array: hour .. microsecond, fold, timezone or None
TIMEDELTA: Final = 15  # array: days, seconds, microseconds
TIMEZONE: Final = 16  # array: days, seconds, microseconds, name as bytes or None
DECIMAL: Final = 17  # ASCII, as str() writes it
FRACTION: Final = 18  # array: numerator, denominator
UUID: Final = 19  # its 16 bytes
PATH: Final = 20  # one byte: 0 PurePosixPath, 1 PureWindowsPath, 2 PosixPath; then UTF-8
MEMORYVIEW: Final = 21  # array: format, shape, 1 if read-only, buffer
ARRAY: Final = 22  # array: dtype, shape, flags (1 read-only, 2 Fortran order), buffer
NUMBER: Final = 23  # a numpy scalar; array: dtype, bytes
ROWS: Final = 24  # array of arrays of plain values: a list of tuples
HANDLE: Final = 25  # plain array, whose meaning the handle tables know
REGION: Final = 26  # u8 kind, u32 region, u64 offset, u64 length; see BYTES_KIND
GRAPH: Final = 27  # array of nodes, see graph.py: containers that are shared, cyclic or very deep
RECORD: Final = 28  # array: the handle of its class, array or graph of the values of its fields

LARGE: Final = 64 * 1024
"""Bytes from which a bytes-like object travels through shared memory: below, a second copy is
cheaper than a map."""

TREE_DEPTH: Final = 64
"""Containers within containers that the tree form may have; deeper ones are sent as a graph, which
has no depth."""

CASTABLE: Final = frozenset("cbB?hHiIlLqQnNfd")
"""Formats of a memoryview that `cast` gives, but for "P", a pointer."""

BYTES_KIND: Final = 0
BYTEARRAY_KIND: Final = 1
BUFFER_KIND: Final = 2  # of a memoryview or an array
LENT: Final = 4  # added to the kind: the region is not written to until the receiver gives it back

REGION_LAYOUT: Final = struct.Struct("<BIQQ")

PLAIN: Final[frozenset[type]] = frozenset((type(None), bool, int, float, str))
PLAIN_OR_BYTES: Final = PLAIN | {bytes}

NOT_PLAIN: Final = (OverflowError, UnicodeEncodeError, TypeError)
"""What MessagePack raises on atoms that it cannot write: large ints, surrogates, and subclasses
that passed for atoms."""

_NUMBERS: Final = frozenset((int, float))
_MANY: Final = 64

HASHED: Final = frozenset((SET, FROZENSET))

MOST_ALIKE: Final = 1000
"""Keys with the hash of another one that a dict or set may come with: to build it takes time
quadratic in their number, and whoever may choose large ints can give a million of them one hash."""

encode_plain: Final[Callable[[object], bytes]] = Encoder().encode
"""Write what is plain, arrays and maps of it, and `Ext`; nothing else may reach it."""


def check_keys(keys: list[object]) -> None:
    """Raise ProtocolError where keys that came in have so few hashes that to compare them takes
    long.
    """
    if len(keys) > MOST_ALIKE and len(keys) - len(set(map(hash, keys))) > MOST_ALIKE:
        raise ProtocolError(f"more than {MOST_ALIKE} keys have the hash of another one")


def is_flat(items: Collection[object]) -> bool:
    """Say whether every item is an atom that MessagePack writes as it is, without Python per item.

    Subclasses of int, float and str that hold nothing may pass for atoms: `encode_plain` refuses
    them with TypeError.
    """
    if len(items) >= _MANY and type(next(iter(items))) in PLAIN and _are_alike(items):
        return True
    if PLAIN.issuperset(map(type, items)):
        return True
    if not PLAIN_OR_BYTES.issuperset(map(type, items)):
        return False
    return all(len(item) < LARGE for item in items if type(item) is bytes)


def _are_alike(items: Collection[object]) -> bool:
    """Say whether many items are all numbers or all text, in a third of the time that asking for
    each type takes.

    What MessagePack would write though it is none of ours (enumerations, dataclasses, containers)
    has referents, or has no sum that is a number, as dates and decimals.
    """
    if gc.get_referents(*items):
        return False
    try:
        if type(next(iter(items))) is not str:
            return type(sum(items)) in _NUMBERS  # type: ignore[arg-type]
        "".join(items)  # type: ignore[arg-type]
    except Exception:
        # Whatever adding strangers raises, decimals among them: they are not alike.
        return False
    return True


def are_plain(rows: Iterable[Iterable[object]]) -> bool:
    """Say whether every item of every row is plain, without Python per item."""
    return PLAIN.issuperset(map(type, chain.from_iterable(rows)))


def integer(value: int) -> object:
    """Give an int, as an extension where 64 bits do not hold it."""
    if -0x8000_0000_0000_0000 <= value <= 0xFFFF_FFFF_FFFF_FFFF:
        return value
    return Ext(INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def text(value: str) -> object:
    """Give a str, as an extension where UTF-8 does not hold it."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return Ext(TEXT, value.encode("utf-8", "surrogatepass"))
    return value
