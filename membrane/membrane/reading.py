"""Reading values that a stranger wrote: every extension is checked, and nothing is trusted with
memory or depth."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from msgspec.msgpack import Decoder

from membrane import extensions as codes
from membrane import graph, numeric, records, scalars
from membrane.errors import ProtocolError
from membrane.extensions import HASHED, check_keys
from membrane.regions import LaneRegions

_NESTED: Final = codes.TREE_DEPTH + 8
"""Extensions within extensions: what the tree form needs, and the parts of what it ends in."""

_MOST_DIMENSIONS: Final = 64


def _no_extension(code: int, payload: memoryview) -> object:
    raise ProtocolError(f"extension {code} is not allowed where plain values are expected")


_rows: Final = Decoder(list[tuple[Any, ...]], ext_hook=_no_extension)
_plain: Final = Decoder(list[Any], ext_hook=_no_extension)


class Reader:
    """Read one message at a time; `regions` and `views` are set before each.

    With `views`, buffers in shared memory come as read-only views of it. One that has failed is not
    used again.
    """

    def __init__(
        self,
        *,
        resolve: Callable[[list[object]], object],
        arrays: bool,
    ) -> None:
        self.regions: LaneRegions | None = None
        self.views = False
        self.met_lent = False
        """Whether the message has lent a region for views, given or not."""
        self.found_lists: list[object] = []
        """Lists that handles stood for: none of them may pass for the list of a message's
        values."""
        self._resolve = resolve
        self._arrays = arrays
        self._depth = 0
        self.decode: Callable[[bytes | bytearray | memoryview], list[Any]] = Decoder(
            list, ext_hook=self._extension
        ).decode

    def _extension(self, code: int, payload: memoryview) -> object:
        if (unpack_items := scalars.UNPACK_ITEMS.get(code)) is not None:
            items = self._items(payload)
            if code in HASHED:
                check_keys(items)
            return unpack_items(items)
        if (unpack_bytes := scalars.UNPACK_BYTES.get(code)) is not None:
            return unpack_bytes(bytes(payload))
        match code:
            case codes.HANDLE:
                return self._handle(payload)
            case codes.DICT:
                return _dict(self._items(payload))
            case codes.ROWS:
                return _rows.decode(payload)
            case codes.REGION:
                return self._region(payload)
            case codes.GRAPH:
                return graph.unpack(self._items(payload))
            case codes.RECORD:
                head, values = self._items(payload)
                return records.build(head, values)
            case codes.MEMORYVIEW:
                return _memoryview(self._items(payload))
            case codes.ARRAY if self._arrays:
                return numeric.unpack_array(self._items(payload))
            case codes.NUMBER if self._arrays:
                return numeric.unpack_scalar(self._items(payload))
        raise ProtocolError(f"extension {code} is unknown")

    def _handle(self, payload: memoryview) -> object:
        found = self._resolve(_plain.decode(payload))
        if type(found) is list:
            self.found_lists.append(found)
        return found

    def _items(self, payload: memoryview) -> list[object]:
        if self._depth >= _NESTED:
            raise ProtocolError(f"more than {_NESTED} extensions hold each other")
        self._depth += 1
        items: list[object] = self.decode(payload)
        self._depth -= 1
        return items

    def _region(self, payload: memoryview) -> object:
        if self.regions is None:
            raise ProtocolError("a buffer is in a region, but this lane has none")
        kind, number, offset, length = codes.REGION_LAYOUT.unpack(payload)
        shared = self.regions.read(number, offset, length)
        if kind & codes.LENT:
            kind ^= codes.LENT
            self.met_lent = True
            if self.views:
                return shared
        if kind == codes.BYTES_KIND:
            return bytes(shared)
        if kind in (codes.BYTEARRAY_KIND, codes.BUFFER_KIND):
            return bytearray(shared)
        raise ProtocolError(f"a region holds a buffer of unknown kind {kind}")


def _dict(items: list[object]) -> dict[object, object]:
    if len(items) % 2:
        raise ProtocolError("a dict has a key without a value")
    keys = items[::2]
    check_keys(keys)
    return dict(zip(keys, items[1::2], strict=True))


def _memoryview(items: list[object]) -> memoryview:
    form, shape, readonly, contents = items
    if type(shape) is not list or len(shape) > _MOST_DIMENSIONS:
        raise ProtocolError("the shape of a memoryview is a short list of lengths")
    if any(type(length) is not int or length < 0 for length in shape):
        raise ProtocolError("the lengths of a memoryview are not negative")
    if type(form) is not str or form not in codes.CASTABLE or type(readonly) is not int:
        raise ProtocolError("a memoryview has no format, or one that does not travel")
    if not isinstance(contents, (bytes, bytearray, memoryview)):
        raise ProtocolError("a memoryview has no buffer")
    if type(contents) is bytes and not readonly:
        contents = bytearray(contents)
    view = memoryview(contents).cast("B")
    if len(shape) > 1 and not math.prod(shape):
        raise ProtocolError("a memoryview of nothing has one dimension")
    shaped: memoryview = view.cast(form) if shape == [0] else view.cast(form, shape)  # type: ignore[call-overload]
    return shaped.toreadonly() if readonly else shaped
