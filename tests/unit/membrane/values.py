"""Values of every type that the codec knows, and what it means that two of them are the same."""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import PosixPath, PurePosixPath, PureWindowsPath

from hypothesis import strategies as st

from membrane.codec import Codec


class Table:
    """Hand out handles for anything, as one side of a session would."""

    def __init__(self) -> None:
        self.objects: list[object] = []
        self.retracted: list[list[object]] = []

    def export(self, value: object) -> list[object]:
        self.objects.append(value)
        return ["handle", len(self.objects) - 1]

    def resolve(self, payload: list[object]) -> object:
        return self.objects[int(str(payload[1]))]

    def retract(self, payloads: list[list[object]]) -> None:
        self.retracted += payloads


def refuse(value: object) -> list[object]:
    raise AssertionError(f"{type(value)} went by handle")


def strict_codec() -> Codec:
    """Give a codec for which going by handle is a failure."""
    return Codec(export=refuse, resolve=refuse)


def round_trip(*values: object, codec: Codec | None = None) -> list[object]:
    codec = codec or strict_codec()
    message = codec.decode(codec.encode([7, "header", list(values)]))
    assert message[:-1] == [7, "header"]
    return list(message[-1])


def parts(value: object) -> list[object]:
    match value:
        case dict():
            return [part for item in value.items() for part in item]
        case slice():
            return [value.start, value.stop, value.step]
        case list() | tuple():
            return list(value)
        case _:
            return []


def same(left: object, right: object) -> bool:
    """Say whether two values are of the same types, of the same contents, and shared in the same
    places.

    Without recursion, so that it can say it of deep and cyclic ones.
    """
    pairs: dict[tuple[int, int], None] = {}
    partner: dict[int, int] = {}
    stack = [(left, right)]
    while stack:
        one, other = stack.pop()
        if type(one) is not type(other):
            return False
        if isinstance(one, (list, dict, set, bytearray)):
            if partner.setdefault(id(one), id(other)) != id(other):
                return False
            if partner.setdefault(-id(other), id(one)) != id(one):
                return False
        if isinstance(one, (list, dict, tuple, slice)):
            if (id(one), id(other)) in pairs:
                continue
            pairs[id(one), id(other)] = None
            ours, theirs = parts(one), parts(other)
            if len(ours) != len(theirs):
                return False
            stack += zip(ours, theirs, strict=True)
        elif not same_leaf(one, other):
            return False
    return True


def same_leaf(one: object, other: object) -> bool:
    match one:
        case float():
            assert isinstance(other, float)
            return math.isnan(one) == math.isnan(other) and (
                math.isnan(one) or struct.pack("d", one) == struct.pack("d", other)
            )
        case complex():
            assert isinstance(other, complex)
            return same_leaf(one.real, other.real) and same_leaf(one.imag, other.imag)
        case set() | frozenset():
            assert isinstance(other, (set, frozenset))
            # Members that are equal may still differ in type, as 1 and True.
            return one == other and sorted(map(typed, one)) == sorted(map(typed, other))
        case memoryview():
            assert isinstance(other, memoryview)
            facts = [(view.format, view.shape, view.readonly) for view in (one, other)]
            return facts[0] == facts[1] and one.tobytes() == other.tobytes()
        case Decimal():
            assert isinstance(other, Decimal)
            return one.as_tuple() == other.as_tuple()
        case datetime() | time():
            assert isinstance(other, (datetime, time))
            zones = (one.tzinfo, other.tzinfo)
            return repr(one) == repr(other) and zones[0] == zones[1] and one.fold == other.fold
        case _:
            return bool(one == other)


def typed(value: object) -> str:
    if isinstance(value, frozenset):
        return f"frozenset({sorted(map(typed, value))})"
    if isinstance(value, tuple):
        return f"tuple({list(map(typed, value))})"
    return f"{type(value).__name__} {value!r}"


texts = st.text(st.characters())  # with surrogates
integers = (
    st.integers()
    | st.integers(-(1 << 200), 1 << 200)
    | st.sampled_from([2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1])
)
offsets = st.timedeltas(timedelta(hours=-23), timedelta(hours=23))
zones = st.builds(timezone, offsets) | st.builds(timezone, offsets, texts) | st.just(UTC)
maybe_zones = st.none() | zones
plain = st.none() | st.booleans() | integers | st.floats() | texts | st.binary()
hashable_leaves = (
    plain
    | st.complex_numbers()
    | st.dates()
    | st.datetimes(timezones=maybe_zones)
    | st.times(timezones=maybe_zones)
    | st.builds(datetime.replace, st.datetimes(), fold=st.just(1))
    | st.timedeltas()
    | zones
    | st.decimals()
    | st.fractions()
    | st.uuids()
    | st.builds(range, integers, integers, integers.filter(bool))
    | st.sampled_from([..., NotImplemented])
    | st.builds(PurePosixPath, texts)
    | st.builds(PosixPath, texts)
    | st.builds(PureWindowsPath, st.from_regex(r"([a-c]:)?\\?[a-z. ]*", fullmatch=True))
)


def is_hashable_once(value: object) -> bool:
    """Say whether a value equals itself and can be a key: a signalling NaN has no hash."""
    try:
        hash(value)
    except TypeError:
        return False
    return value == value


keys = st.recursive(
    hashable_leaves.filter(is_hashable_once),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
views: st.SearchStrategy[memoryview] = st.binary(min_size=8, max_size=64).map(
    lambda contents: memoryview(contents[: len(contents) // 8 * 8]).cast("q")
) | st.binary().map(lambda contents: memoryview(bytearray(contents)))
leaves = hashable_leaves | st.binary().map(bytearray) | views
values: st.SearchStrategy[object] = st.recursive(
    leaves | keys,
    lambda inner: (
        st.lists(inner, max_size=12)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.sets(keys, max_size=4)
        | st.builds(slice, inner, inner, inner)
    ),
    max_leaves=30,
)
