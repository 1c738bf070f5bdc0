"""What goes in comes out: the same types, the same contents, shared in the same places, at every
size."""

from __future__ import annotations

import enum
import math
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membrane.codec import Codec
from tests.unit.membrane.values import Table, round_trip, same, strict_codec, values


@settings(max_examples=30, deadline=None)
@given(st.lists(values, max_size=4))
def test_values_come_back_as_they_were(sent: list[object]) -> None:
    assert same(sent, round_trip(*sent))


@settings(max_examples=12, deadline=None)
@given(values, st.integers(7, 40))
def test_lists_of_one_kind_of_row_come_back_as_they_were(row: object, count: int) -> None:
    rows = [round_trip(row)[0] for _ in range(count)]
    assert same([rows], round_trip(rows))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 31, 32, 33, 300])
@pytest.mark.parametrize(
    "row",
    [
        lambda n: n,
        lambda n: float(n),
        lambda n: str(n),
        lambda n: (n, "a", None),
        lambda n: [n, 2.5],
        lambda n: {"n": n, n: n},
        lambda n: {n},
        lambda n: bytearray(b"x"),
        lambda n: n << 60,
        lambda n: (n, b"x"),
        lambda n: [n, b"x"],
    ],
)
def test_lists_keep_their_types_at_every_size(size: int, row: object) -> None:
    assert callable(row)
    sent = [[row(number) for number in range(size)], tuple(row(n) for n in range(size))]
    assert same(sent, round_trip(*sent))


@pytest.mark.parametrize(
    "value",
    [[], {}, set(), (), frozenset(), b"", bytearray(), "", memoryview(b""), range(0), [[]], ([],)],
    # Not by repr: a view's tells where it lies, and each process of a run has another name for it.
    ids=lambda value: f"{type(value).__name__}-{len(value)}",
)
def test_empty_things_keep_their_type(value: object) -> None:
    assert same([value], round_trip(value))


def test_floats_that_are_not_finite_come_back() -> None:
    sent = [math.inf, -math.inf, -0.0, 5e-324, complex(-0.0, math.inf)]
    assert same(sent, round_trip(*sent))
    (nan,) = round_trip(math.nan)
    assert isinstance(nan, float)
    assert math.isnan(nan)


@pytest.mark.parametrize("bits", [62, 63, 64, 65, 127, 128, 4000, 1_000_000])
def test_integers_have_no_bounds(bits: int) -> None:
    for value in (1 << bits, -(1 << bits), (1 << bits) - 1, -(1 << bits) - 1):
        assert round_trip(value, [value], {value: value}) == [value, [value], {value: value}]


def test_text_with_surrogates_comes_back_as_value_as_key_and_in_rows() -> None:
    lone = "a\udc80\ud83d"
    rows = [[lone] for _ in range(20)]
    assert same([lone, {lone: 1}, rows], round_trip(lone, {lone: 1}, rows))


def test_dicts_keep_their_order_and_the_types_of_their_keys() -> None:
    sent = {
        "z": 1,
        2.0: 2,
        True: 3,
        None: 4,
        b"k": 5,
        (1, ("a",)): 6,
        frozenset([1]): 7,
        1 << 99: 8,
    }
    (received,) = round_trip(sent)
    assert isinstance(received, dict)
    assert list(map(type, received)) == list(map(type, sent))
    assert list(received.items()) == list(sent.items())


def test_utc_stays_the_one_utc() -> None:
    (when,) = round_trip(datetime(2026, 1, 2, tzinfo=UTC))
    assert isinstance(when, datetime)
    assert when.tzinfo is UTC


def test_decimals_keep_sign_exponent_and_kind() -> None:
    sent = [Decimal(text) for text in ("-0", "1.500", "1E+30", "-Infinity", "NaN12", "sNaN")]
    assert same(sent, round_trip(*sent))


@pytest.mark.parametrize("form", list("cbB?hHiIlLqQnNfd"))
def test_memoryviews_keep_format_and_shape(form: str) -> None:
    width = memoryview(bytes(16)).cast("B").cast(form).itemsize  # type: ignore[call-overload]
    flat = memoryview(bytes(range(width * 6)))
    shaped = flat.cast(form, (2, 3))  # type: ignore[call-overload]
    assert same([shaped], round_trip(shaped))


def test_a_strided_memoryview_comes_as_its_items() -> None:
    (received,) = round_trip(memoryview(bytearray(b"abcdef"))[::-2])
    assert isinstance(received, memoryview)
    assert received.tobytes() == b"fdb"
    assert not received.readonly


def test_a_memoryview_without_dimensions_comes_back() -> None:
    sent = memoryview(b"abcdefgh").cast("q", ())
    assert same([sent], round_trip(sent))


class Colour(enum.IntEnum):
    RED = 1


class Word(str):
    __slots__ = ()


class Number(int):
    pass


class Things(list[object]):
    pass


@dataclass
class Point:
    x: int


class Record(msgspec.Struct):
    x: int


class Zone(tzinfo):
    def utcoffset(self, moment: datetime | None) -> None:
        return None

    def dst(self, moment: datetime | None) -> None:
        return None

    def tzname(self, moment: datetime | None) -> None:
        return None


Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    "value",
    [
        Colour.RED,
        Word("a"),
        Number(3),
        Things(),
        Point(1),
        Record(1),
        Pair(1, 2),
        OrderedDict(a=1),
        object(),
        print,
        int,
        msgspec.UNSET,
        msgspec.Raw(b"\x01"),
        msgspec.msgpack.Ext(25, b"\x90"),
        datetime(2026, 1, 1, tzinfo=Zone()),
        Fraction(1, 3 << 70_000),
        KeyError("a"),
        {}.keys(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_is_not_exactly_of_a_known_type_goes_by_handle(value: object) -> None:
    table = Table()
    codec = Codec(export=table.export, resolve=table.resolve)
    nested = [value, [value], (value,), {"k": value}, slice(value)]
    received = round_trip(*nested, codec=codec)
    assert received[0] is value
    found = [received[1], received[2], received[3]]
    assert found == [[value], (value,), {"k": value}]
    assert [type(item) for item in found] == [list, tuple, dict]
    assert all(exported is value for exported in table.objects)


def test_a_message_of_many_empty_calls_is_as_short_as_its_header() -> None:
    codec = strict_codec()
    header = [0, 1, 4, None, 9, "ping", [1024, 1, 0], 0]
    assert len(codec.encode([*header, []])) < 32
    assert codec.decode(codec.encode([*header, [1] * 1024]))[-1] == [1] * 1024


MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


class Plain(int):
    __slots__ = ()


class Half(float):
    __slots__ = ()


class Name(str):
    __slots__ = ()


class Slots:
    __slots__ = ()

    def __radd__(self, other: object) -> int:
        return 0


@pytest.mark.parametrize(
    "odd",
    [
        True,
        None,
        2.5,
        "text",
        b"bytes",
        bytearray(b"b"),
        1 << 70,
        "\udc80",
        (),
        [],
        {},
        set(),
        range(3),
        Decimal("NaN"),
        Decimal("sNaN"),
        MOMENT.replace(tzinfo=None),
        MOMENT,
        MOMENT.date(),
        MOMENT - MOMENT,
        Plain(3),
        Half(3),
        Name("a"),
        Colour.RED,
        Point(1),
        Record(1),
        Slots(),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("many", [[7] * 100, [1.5] * 100, ["a"] * 100], ids=["int", "float", "str"])
@pytest.mark.parametrize("place", [0, 50, 100])
def test_one_odd_item_among_many_keeps_its_type(
    many: list[object], odd: object, place: int
) -> None:
    table = Table()
    codec = Codec(export=table.export, resolve=table.resolve)
    sent = [*many[:place], odd, *many[place:]]
    for received in (
        round_trip(*sent, codec=codec),
        round_trip(sent, codec=codec)[0],
        list(dict(round_trip(dict(enumerate(sent)), codec=codec)[0]).values()),  # type: ignore[call-overload]
    ):
        assert isinstance(received, list)
        assert same(sent, received)
