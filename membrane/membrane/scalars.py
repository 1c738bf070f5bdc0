"""Immutable values of the standard library on the wire: dates, decimals, fractions, paths and the
like.

What comes in was written by a stranger: constructors get exactly the types they are meant for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath
from types import EllipsisType, NotImplementedType
from typing import Final
from uuid import UUID

from msgspec.msgpack import Ext

from membrane import extensions as codes
from membrane.errors import ProtocolError
from membrane.extensions import encode_plain, integer

_COMPLEX: Final = struct.Struct("<dd")

FRACTION_BITS: Final = 1 << 16
"""Largest numerator and denominator: reducing one takes time quadratic in its length."""

_PATHS: Final[tuple[type[PurePath], ...]] = (PurePosixPath, PureWindowsPath, PosixPath)

Packed = Ext | None
"""None: the value holds something that is not of the closed set, so it goes by handle."""


def _pack_complex(value: complex) -> Packed:
    return Ext(codes.COMPLEX, _COMPLEX.pack(value.real, value.imag))


def _pack_range(value: range) -> Packed:
    bounds = [integer(value.start), integer(value.stop), integer(value.step)]
    return Ext(codes.RANGE, encode_plain(bounds))


def _pack_singleton(value: object) -> Packed:
    return Ext(codes.SINGLETON, b"\0" if value is ... else b"\1")


def _pack_date(value: date) -> Packed:
    return Ext(codes.DATE, encode_plain([value.year, value.month, value.day]))


def _pack_timedelta(value: timedelta) -> Packed:
    return Ext(codes.TIMEDELTA, encode_plain([value.days, value.seconds, value.microseconds]))


def _pack_timezone(value: timezone) -> Packed:
    offset, name = (*value.__getinitargs__(), None)[:2]  # type: ignore[attr-defined]
    encoded = None if name is None else name.encode("utf-8", "surrogatepass")
    return Ext(
        codes.TIMEZONE,
        encode_plain([offset.days, offset.seconds, offset.microseconds, encoded]),
    )


def _pack_clock(value: datetime | time) -> Packed:
    zone = value.tzinfo
    if zone is not None and type(zone) is not timezone:
        return None
    fields: list[object] = [value.hour, value.minute, value.second, value.microsecond, value.fold]
    fields.append(None if zone is None else _pack_timezone(zone))
    if type(value) is datetime:
        return Ext(codes.DATETIME, encode_plain([value.year, value.month, value.day, *fields]))
    return Ext(codes.TIME, encode_plain(fields))


def _pack_decimal(value: Decimal) -> Packed:
    return Ext(codes.DECIMAL, str(value).encode())


def _pack_fraction(value: Fraction) -> Packed:
    parts = (value.numerator, value.denominator)
    if max(map(int.bit_length, parts)) > FRACTION_BITS:
        return None
    return Ext(codes.FRACTION, encode_plain(list(map(integer, parts))))


def _pack_uuid(value: UUID) -> Packed:
    return Ext(codes.UUID, value.bytes)


def _pack_path(value: PurePath) -> Packed:
    kind, written = type(value), str(value)
    # Not every Windows path is what its text reads as: "//://" is not.
    if kind is PureWindowsPath and PureWindowsPath(written) != value:
        return None
    flavour = bytes([_PATHS.index(kind)])
    return Ext(codes.PATH, flavour + written.encode("utf-8", "surrogatepass"))


PACK: Final[dict[type, Callable[..., Packed]]] = {
    complex: _pack_complex,
    range: _pack_range,
    EllipsisType: _pack_singleton,
    NotImplementedType: _pack_singleton,
    date: _pack_date,
    datetime: _pack_clock,
    time: _pack_clock,
    timedelta: _pack_timedelta,
    timezone: _pack_timezone,
    Decimal: _pack_decimal,
    Fraction: _pack_fraction,
    UUID: _pack_uuid,
    **dict.fromkeys(_PATHS, _pack_path),
}
"""How to write a value of exactly this type."""


def _integers(items: list[object], count: int) -> list[int]:
    numbers = [item for item in items if type(item) is int]
    if len(items) != count or len(numbers) != count:
        raise ProtocolError(f"expected {count} integers, got {len(items)} items")
    return numbers


def _unpack_integer(payload: bytes) -> int:
    return int.from_bytes(payload, "little", signed=True)


def _unpack_complex(payload: bytes) -> complex:
    return complex(*_COMPLEX.unpack(payload))


def _unpack_text(payload: bytes) -> str:
    return payload.decode("utf-8", "surrogatepass")


def _unpack_singleton(payload: bytes) -> object:
    if payload == b"\0":
        return ...
    if payload == b"\1":
        return NotImplemented
    raise ProtocolError("a singleton is Ellipsis or NotImplemented")


def _unpack_decimal(payload: bytes) -> Decimal:
    return Decimal(payload.decode("ascii"))


def _unpack_uuid(payload: bytes) -> UUID:
    return UUID(bytes=payload)


def _unpack_path(payload: bytes) -> PurePath:
    return _PATHS[payload[0]](payload[1:].decode("utf-8", "surrogatepass"))


UNPACK_BYTES: Final[dict[int, Callable[[bytes], object]]] = {
    codes.INT: _unpack_integer,
    codes.COMPLEX: _unpack_complex,
    codes.TEXT: _unpack_text,
    codes.SINGLETON: _unpack_singleton,
    codes.DECIMAL: _unpack_decimal,
    codes.UUID: _unpack_uuid,
    codes.PATH: _unpack_path,
    codes.BYTEARRAY: bytearray,
}
"""How to read an extension whose payload is bytes."""


def _unpack_range(items: list[object]) -> range:
    return range(*_integers(items, 3))


def _unpack_date(items: list[object]) -> date:
    return date(*_integers(items, 3))


def _unpack_timedelta(items: list[object]) -> timedelta:
    days, seconds, microseconds = _integers(items, 3)
    return timedelta(days, seconds, microseconds)


def _unpack_timezone(items: list[object]) -> timezone:
    name = items.pop()
    days, seconds, microseconds = _integers(items, 3)
    offset = timedelta(days, seconds, microseconds)
    if name is None:
        return timezone(offset)
    if type(name) is not bytes:
        raise ProtocolError("the name of a timezone is bytes or None")
    return timezone(offset, name.decode("utf-8", "surrogatepass"))


def _zone(items: list[object]) -> timezone | None:
    zone = items.pop()
    if zone is None or type(zone) is timezone:
        return zone
    raise ProtocolError("a tzinfo is a fixed timezone or None")


def _unpack_datetime(items: list[object]) -> datetime:
    zone = _zone(items)
    *fields, fold = _integers(items, 8)
    year, month, day, hour, minute, second, microsecond = fields
    return datetime(year, month, day, hour, minute, second, microsecond, zone, fold=fold)


def _unpack_time(items: list[object]) -> time:
    zone = _zone(items)
    hour, minute, second, microsecond, fold = _integers(items, 5)
    return time(hour, minute, second, microsecond, zone, fold=fold)


def _unpack_fraction(items: list[object]) -> Fraction:
    numerator, denominator = _integers(items, 2)
    if max(numerator.bit_length(), denominator.bit_length()) > FRACTION_BITS:
        raise ProtocolError(f"a fraction is of at most {FRACTION_BITS} bits")
    return Fraction(numerator, denominator)


def _unpack_slice(items: list[object]) -> slice:
    start, stop, step = items
    return slice(start, stop, step)


UNPACK_ITEMS: Final[dict[int, Callable[[list[object]], object]]] = {
    codes.TUPLE: tuple,
    codes.SET: set,
    codes.FROZENSET: frozenset,
    codes.SLICE: _unpack_slice,
    codes.RANGE: _unpack_range,
    codes.DATE: _unpack_date,
    codes.DATETIME: _unpack_datetime,
    codes.TIME: _unpack_time,
    codes.TIMEDELTA: _unpack_timedelta,
    codes.TIMEZONE: _unpack_timezone,
    codes.FRACTION: _unpack_fraction,
}
"""How to read an extension whose payload is an array of values."""
