"""What values become before MessagePack writes them: plain ones stay, the rest becomes extensions;
the tree form.

A tree says neither that two places hold the same container, nor that one holds itself: `NotATree`
asks for a graph then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import Final, cast

from msgspec.msgpack import Ext

from membrane import extensions as codes
from membrane import numeric, records, scalars
from membrane.errors import UnsupportedUse
from membrane.extensions import LARGE, PLAIN, are_plain, encode_plain, integer, is_flat, text
from membrane.policies import Policies, Policy
from membrane.regions import LaneRegions

_ROWS: Final = 8
"""Containers of one type in a list from which they are looked at together: fewer cost more that
way."""


_PASSED_STRICTLY: Final = PLAIN - {int, str}


class NotATree(Exception):
    """Say that a container was met twice, or is too deep."""


class Lowering:
    """Lower the values of one message; `strict` looks at each item of flat containers too.

    Loose, an int beyond 64 bits or a str with surrogates in a flat container makes the encoder
    raise, which is cheaper than looking at each item of every message.
    """

    __slots__ = (
        "_arrays",
        "_call",
        "_depth",
        "_export",
        "_is_record",
        "_lend",
        "_met",
        "_open",
        "_policies",
        "_regions",
        "_strict",
        "all_by_value",
        "exported",
        "pack_graph",
        "passed",
    )

    def __init__(
        self,
        *,
        export: Callable[[object], list[object]],
        policies: Policies,
        call: Policy | None,
        regions: LaneRegions | None,
        lend: bool,
        arrays: bool,
        strict: bool,
        is_record: Callable[[type, str | None], bool] = lambda _, __: False,
    ) -> None:
        self.exported: list[list[object]] = []
        self.passed = _PASSED_STRICTLY if strict else PLAIN
        self.all_by_value = call == "value" or (
            call is None and policies.default == "value" and not policies.rules
        )
        self._export = export
        self._policies = policies
        self._call = call
        self._regions = regions
        self._lend = lend
        self._arrays = arrays
        self._strict = strict
        self._is_record = is_record
        self._open: set[int] = set()
        self.pack_graph: Callable[[Sequence[object], Lowering], Ext] | None = None
        """What writes the fields of records, where a message is a graph."""
        self._met: set[int] = set()
        self._depth = 0

    def values(self, values: Sequence[object]) -> list[object]:
        """Lower what a message carries."""
        rows = self._rows(values) if type(values) is list else None
        return rows if rows is not None else self._all(values)

    def lower(self, value: object) -> object:
        """Give what MessagePack writes for a value; what is not of the closed set is exported.

        Raise NotATree, and what `export` raises.
        """
        kind = type(value)
        if kind in self.passed:
            return value
        if (write := _ATOMS.get(kind)) is not None:
            return write(self, value)
        if not self.all_by_value and not self.is_by_value(kind):
            return self.handle(value)
        lowered: object = None
        if (low := _CONTAINERS.get(kind)) is not None:
            lowered = low(self, value)
        elif (pack := scalars.PACK.get(kind)) is not None:
            lowered = pack(value)
        elif self._arrays and kind.__module__ == "numpy":
            lowered = numeric.pack(value, self._array_buffer)
            if type(lowered) is Ext and lowered.code == codes.ARRAY:
                self._meet(value)
        elif self._is_record(kind, self._call):
            lowered = self._record(value)
        return self.handle(value) if lowered is None else lowered

    def is_by_value(self, kind: type) -> bool:
        """Say whether the policy lets values of this type go by value."""
        return self.all_by_value or self._policies.of_type(kind, self._call) == "value"

    def handle(self, value: object) -> Ext:
        """Hand a value over by handle."""
        payload = self._export(value)
        self.exported.append(payload)
        return Ext(codes.HANDLE, encode_plain(payload))

    def is_flat(self, items: Collection[object]) -> bool:
        """Say whether items are plain and may be left to MessagePack as they are."""
        return not self._strict and is_flat(items)

    def buffer(self, contents: bytes | bytearray | memoryview, kind: int) -> object:
        """Place a buffer of `kind` (see REGION) in shared memory, or inline where it is small or
        there is none."""
        if self._regions is not None and len(contents) >= LARGE:
            return self._regions.placed(contents, kind, lend=self._lend)
        return contents if kind != codes.BYTEARRAY_KIND else Ext(codes.BYTEARRAY, contents)

    def _array_buffer(self, contents: memoryview) -> object:
        return self.buffer(contents, codes.BUFFER_KIND)

    def _meet(self, value: object) -> None:
        if id(value) in self._met or self._depth > codes.TREE_DEPTH:
            raise NotATree
        self._met.add(id(value))

    def _all(self, items: Iterable[object]) -> list[object]:
        self._depth += 1
        passed, lower = self.passed, self.lower
        lowered = [item if type(item) in passed else lower(item) for item in items]
        self._depth -= 1
        return lowered

    def _rows(self, items: list[object]) -> list[object] | None:
        """Give back a list of flat lists or flat dicts, when it is one and no row is there
        twice."""
        if len(items) < _ROWS or not self.all_by_value or self._strict:
            return None
        kind = type(items[0])
        if kind not in (list, dict) or not {kind}.issuperset(map(type, items)):
            return None
        if kind is dict:
            rows = cast("list[dict[object, object]]", items)
            flat = are_plain(rows) and are_plain(map(dict.values, rows))
        else:
            flat = are_plain(cast("list[list[object]]", items))
        if not flat:
            return None
        identities = set(map(id, items))
        if len(identities) != len(items) or not self._met.isdisjoint(identities):
            return None
        self._met |= identities
        return items

    def _list(self, value: list[object]) -> object:
        self._meet(value)
        if len(value) >= _ROWS:
            if self.is_flat(value):
                return value
            if (rows := self._rows(value)) is not None:
                return rows
            if self._is_tuples(value):
                return Ext(codes.ROWS, encode_plain(value))
        return self._all(value)

    def _is_tuples(self, value: list[object]) -> bool:
        return (
            type(value[0]) is tuple
            and self.all_by_value
            and not self._strict
            and {tuple}.issuperset(map(type, value))
            and are_plain(cast("list[tuple[object, ...]]", value))
        )

    def _dict(self, value: dict[object, object]) -> object:
        self._meet(value)
        passed, lower = self.passed, self.lower
        if not passed.issuperset(map(type, value)):
            flattened = chain.from_iterable(value.items())
            return Ext(codes.DICT, encode_plain(self._all(flattened)))
        if len(value) >= _ROWS and self.is_flat(value.values()):
            return value
        self._depth += 1
        lowered = {
            key: item if type(item) in passed else lower(item) for key, item in value.items()
        }
        self._depth -= 1
        return lowered

    def _bytes(self, value: bytes) -> object:
        return value if len(value) < LARGE else self.buffer(value, codes.BYTES_KIND)

    def _tuple(self, value: tuple[object, ...]) -> object:
        return self._sealed(codes.TUPLE, value, value)

    def _frozenset(self, value: frozenset[object]) -> object:
        return self._sealed(codes.FROZENSET, value, value)

    def _slice(self, value: slice) -> object:
        return self._sealed(codes.SLICE, value, (value.start, value.stop, value.step))

    def _sealed(self, code: int, value: object, items: Collection[object]) -> object:
        """Lower what cannot change: that a flat one is there twice is nothing that anybody can
        tell."""
        if self.passed.issuperset(map(type, items)):
            return Ext(code, encode_plain(items))
        if not is_flat(items):
            self._meet(value)
        return Ext(code, encode_plain(self._all(items)))

    def _record(self, value: object) -> object:
        """Lower a dataclass or a named tuple. In a graph its fields are one of their own: what is
        in two records is there twice.
        """
        if id(value) in self._open:
            raise UnsupportedUse(
                f"a {type(value).__qualname__} that holds itself does not go by value; hand it "
                "over by reference"
            )
        values = records.values_of(value)
        head = self.handle(records.RecordClass(type(value)))
        self._open.add(id(value))
        if self.pack_graph is not None:
            lowered: object = self.pack_graph(values, self)
        else:
            self._meet(value)
            lowered = self._all(values)
        self._open.discard(id(value))
        return Ext(codes.RECORD, encode_plain([head, lowered]))

    def _set(self, value: set[object]) -> object:
        self._meet(value)
        return Ext(codes.SET, encode_plain(value if self.is_flat(value) else self._all(value)))

    def _bytearray(self, value: bytearray) -> object:
        self._meet(value)
        return self.buffer(value, codes.BYTEARRAY_KIND)

    def _memoryview(self, value: memoryview) -> object:
        # No cast gives another format, nor several dimensions of nothing.
        if value.format not in codes.CASTABLE or (value.ndim > 1 and not value.nbytes):
            return None
        self._meet(value)
        contents = value.cast("B") if value.c_contiguous and value.nbytes else value.tobytes()
        buffer = self.buffer(contents, codes.BUFFER_KIND)
        shape = list(value.shape or ())
        return Ext(
            codes.MEMORYVIEW,
            encode_plain([value.format, shape, int(value.readonly), buffer]),
        )


_Lower = Callable[[Lowering, object], object]

_ATOMS: Final = cast(
    "dict[type, _Lower]",
    {
        str: lambda _, value: text(value),
        int: lambda _, value: integer(value),
        bytes: Lowering._bytes,
    },
)
_CONTAINERS: Final = cast(
    "dict[type, _Lower]",
    {
        list: Lowering._list,
        dict: Lowering._dict,
        tuple: Lowering._tuple,
        set: Lowering._set,
        frozenset: Lowering._frozenset,
        slice: Lowering._slice,
        bytearray: Lowering._bytearray,
        memoryview: Lowering._memoryview,
    },
)
