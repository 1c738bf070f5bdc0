"""numpy arrays and scalars of plain dtypes on the wire; numpy itself is imported only when one
comes in."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec.msgpack import Ext

from membrane import extensions as codes
from membrane.errors import ProtocolError
from membrane.extensions import encode_plain

if TYPE_CHECKING:
    import numpy

_PLAIN_KINDS: Final = frozenset("biufcSUmM")
_DTYPE: Final = re.compile(r"[<>|=][biufcSUmM]\d{1,10}(\[\d{0,9}([YMWDhms]|[munpfa]s)\])?")
_READ_ONLY: Final = 1
_FORTRAN: Final = 2
_MOST_DIMENSIONS: Final = 32


def _numpy() -> ModuleType:
    try:
        import numpy
    except ImportError as error:
        raise ProtocolError("a numpy array came in, but numpy cannot be imported here") from error
    return numpy


def pack(value: object, buffer: Callable[[memoryview], object]) -> Ext | None:
    """Write an array or a scalar; None for anything else, as subclasses and arrays of objects.

    `buffer` says how the items travel: inline, or through shared memory.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if type(value) is numpy.ndarray:
        return _pack_array(cast("Any", value), numpy, buffer)
    if isinstance(value, numpy.generic):
        return _pack_scalar(value)
    return None


def _pack_array(
    value: numpy.ndarray[Any, Any],
    numpy: ModuleType,
    buffer: Callable[[memoryview], object],
) -> Ext | None:
    dtype = value.dtype
    if dtype.kind not in _PLAIN_KINDS or dtype.metadata is not None:
        return None
    flags = 0 if value.flags.writeable else _READ_ONLY
    ordered = value
    if value.flags.f_contiguous and not value.flags.c_contiguous:
        flags |= _FORTRAN
        ordered = value.T
    elif not value.flags.c_contiguous:
        ordered = numpy.ascontiguousarray(value)
    # As bytes, because dates have no buffer of their own; a view of nothing cannot be taken.
    contents: object = b""
    if ordered.nbytes:
        contents = buffer(memoryview(ordered.reshape(-1).view(numpy.uint8)))
    return Ext(codes.ARRAY, encode_plain([dtype.str, list(value.shape), flags, contents]))


def _pack_scalar(value: numpy.generic) -> Ext | None:
    dtype = value.dtype
    if dtype.kind not in _PLAIN_KINDS or type(value) is not dtype.type:
        return None
    # str() and bytes() of these, and their array form, drop the last NULs.
    if dtype.kind == "U":
        encoded = cast("str", value).encode("utf-8", "surrogatepass")
        return Ext(codes.NUMBER, encode_plain(["U", encoded]))
    if dtype.kind == "S":
        return Ext(codes.NUMBER, encode_plain(["S", cast("bytes", value)[:]]))
    return Ext(codes.NUMBER, encode_plain([dtype.str, value.tobytes()]))


def unpack_array(items: list[object]) -> object:
    """Read an array; its memory is its own, or a read-only region where views were asked for.

    Raise ProtocolError where dtype, shape and length do not agree.
    """
    name, shape, flags, contents = items
    if type(shape) is not list or len(shape) > _MOST_DIMENSIONS:
        raise ProtocolError("the shape of an array is a short list of lengths")
    if any(type(length) is not int or length < 0 for length in shape):
        raise ProtocolError("the lengths of an array are not negative")
    if type(flags) is not int or not 0 <= flags <= _READ_ONLY | _FORTRAN:
        raise ProtocolError("an array has unknown flags")
    if not isinstance(contents, (bytes, bytearray, memoryview)):
        raise ProtocolError("an array has no buffer")
    numpy = _numpy()
    dtype = _dtype(name, numpy)
    if math.prod(shape) * dtype.itemsize != len(contents):
        raise ProtocolError("the buffer of an array is not as long as its shape says")
    memory = bytearray(contents) if type(contents) is bytes else contents
    if len(contents):
        flat = numpy.frombuffer(memory, dtype=dtype)
    else:
        flat = numpy.empty(math.prod(shape), dtype=dtype)
    array = flat.reshape(shape[::-1]).T if flags & _FORTRAN else flat.reshape(shape)
    if flags & _READ_ONLY:
        array.flags.writeable = False
    return array


def unpack_scalar(items: list[object]) -> object:
    """Read a numpy scalar; raise ProtocolError where it is none."""
    name, contents = items
    if type(contents) is not bytes:
        raise ProtocolError("a numpy scalar has no bytes")
    numpy = _numpy()
    if name == "U":
        return numpy.str_(contents.decode("utf-8", "surrogatepass"))
    if name == "S":
        return numpy.bytes_(contents)
    dtype = _dtype(name, numpy)
    if dtype.itemsize != len(contents):
        raise ProtocolError("a numpy scalar is not as long as its dtype")
    return numpy.frombuffer(contents, dtype=dtype)[0]


def _dtype(name: object, numpy: ModuleType) -> Any:
    if type(name) is not str or not _DTYPE.fullmatch(name):
        raise ProtocolError("an array is of a dtype that does not travel")
    return numpy.dtype(name)
