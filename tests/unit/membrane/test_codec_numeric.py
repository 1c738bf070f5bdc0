"""numpy arrays and scalars of plain dtypes come back as they were; everything else of numpy goes by
handle."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as arrays
from msgspec.msgpack import Ext, encode

from membrane import extensions as codes
from membrane.codec import Codec
from membrane.errors import ProtocolError
from tests.unit.membrane.test_regions import OneWay
from tests.unit.membrane.values import Table, round_trip, strict_codec

numpy: Any = pytest.importorskip("numpy")

PLAIN = [
    *"?bBhHiIlLqQefdFD",
    "<i4",
    ">i4",
    ">f8",
    "S3",
    "U4",
    ">U4",
    "M8[ns]",
    "M8[D]",
    "m8[25s]",
    "M8",
    "g",
]


def same_array(one: Any, other: Any) -> bool:
    return bool(
        type(one) is type(other)
        and one.dtype.str == other.dtype.str
        and one.shape == other.shape
        and one.flags.writeable == other.flags.writeable
        and one.tobytes() == other.tobytes()
    )


@pytest.mark.parametrize("dtype", PLAIN)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 4), (2, 0, 3), (2, 3, 4)])
def test_arrays_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    count = 1
    for length in shape:
        count *= length
    sent = numpy.arange(count).astype("i8").astype(numpy.dtype(dtype)).reshape(shape)
    (received,) = round_trip(sent)
    assert same_array(sent, received)


@settings(max_examples=25, deadline=None)
@given(arrays.arrays(dtype=arrays.scalar_dtypes(), shape=arrays.array_shapes(min_side=0)))
def test_any_array_comes_back(sent: Any) -> None:
    (received,) = round_trip(sent)
    assert same_array(sent, received)


def test_order_strides_and_writability() -> None:
    square = numpy.arange(12).reshape(3, 4)
    fixed = numpy.arange(3)
    fixed.flags.writeable = False
    sent = [
        square.T,
        square[::2, ::-1],
        numpy.asfortranarray(square),
        fixed,
        fixed.reshape(3, 1)[:0],
    ]
    received: Any = round_trip(*sent)
    assert all(same_array(one, other) for one, other in zip(sent, received, strict=True))
    assert received[0].flags.f_contiguous
    assert received[1].flags.c_contiguous
    assert received[2].flags.f_contiguous
    received[0][0, 0] = 99
    assert square[0, 0] == 0


def test_one_array_in_two_places_stays_one() -> None:
    sent = numpy.arange(3)
    received: Any = round_trip(sent, [sent], {"k": (sent,)})
    assert received[0] is received[1][0] is received[2]["k"][0]


# "q" is another name of "l" here, with a scalar type of its own: it comes back as "l".
@pytest.mark.parametrize("dtype", [dtype for dtype in PLAIN if dtype not in "qQ"])
def test_scalars_come_back(dtype: str) -> None:
    sent = numpy.array([5]).astype("i8").astype(numpy.dtype(dtype).newbyteorder("="))[0]
    received: Any = round_trip(sent, [sent] * 100, {"k": sent})
    assert type(received[0]) is type(sent)
    assert received[0] == sent or sent.dtype.kind in "mM"
    assert received[0].dtype == sent.dtype
    assert [type(item) for item in received[1]] == [type(sent)] * 100


def test_scalars_of_text_keep_their_last_zeros() -> None:
    sent = [numpy.str_("a\0"), numpy.bytes_(b"a\0"), numpy.str_("\udc80"), numpy.str_("")]
    received = round_trip(*sent)
    assert received == sent
    assert list(map(type, received)) == list(map(type, sent))


@pytest.mark.parametrize(
    "make",
    [
        lambda: numpy.array([object()]),
        lambda: numpy.zeros(2, "i4,f4"),
        lambda: numpy.ma.array([1]),
        lambda: numpy.zeros(1, numpy.dtype("i4", metadata={"a": 1})),
        lambda: numpy.zeros(1, "V4")[0],
        lambda: numpy.dtype("i4"),
        lambda: numpy.random.default_rng(),
        lambda: numpy.add,
        lambda: numpy.int64,
    ],
)
def test_the_rest_goes_by_handle(make: Any) -> None:
    table = Table()
    sent = make()
    codec = Codec(export=table.export, resolve=table.resolve)
    assert round_trip(sent, [sent], codec=codec)[0] is sent
    assert len(table.objects) == 2


def test_arrays_go_by_handle_and_are_not_read_where_numpy_is_behind_the_wall() -> None:
    table = Table()
    codec = Codec(export=table.export, resolve=table.resolve, numeric=False)
    sent = numpy.arange(3)
    assert round_trip(sent, numpy.float64(2), codec=codec)[0] is sent
    assert len(table.objects) == 2
    with pytest.raises(ProtocolError, match="unknown"):
        codec.decode(strict_codec().encode([0, [sent]]))


def test_a_reader_without_numpy_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = strict_codec().encode([0, [numpy.arange(3)]])
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ProtocolError, match="cannot be imported here"):
        strict_codec().decode(encoded)


def test_large_arrays_travel_through_shared_memory_and_can_be_viewed() -> None:
    way = OneWay()
    sent = numpy.random.default_rng(1).random((200, 300))
    dates = numpy.arange(20_000).astype("M8[s]")
    plain, [turned], when = way.pass_on(sent, [sent.T], dates)
    assert same_array(sent, plain)
    assert same_array(sent.T, turned)
    assert same_array(dates, when)
    (viewed,) = way.pass_on(sent, views=True)
    assert (viewed == sent).all()
    assert not viewed.flags.writeable
    assert not viewed.flags.owndata
    way.close()
    assert (viewed == sent).all()


EIGHT = b"12345678"


@pytest.mark.parametrize(
    "items",
    [
        [],
        ["<i8", [1], 0],
        ["O", [1], 0, EIGHT],
        ["|O8", [1], 0, EIGHT],
        ["|V8", [1], 0, EIGHT],
        ["i8,i8", [1], 0, EIGHT],
        ["<i9", [1], 0, EIGHT],
        ["<M8[xs]", [1], 0, EIGHT],
        [8, [1], 0, EIGHT],
        [None, [1], 0, EIGHT],
        [["i8"], [1], 0, EIGHT],
        ["<i8", [2], 0, EIGHT],
        ["<i8", [-1], 0, EIGHT],
        ["<i8", [-1, -1], 0, EIGHT],
        ["<i8", [True], 0, EIGHT],
        ["<i8", [1.0], 0, EIGHT],
        ["<i8", [1 << 62, 1 << 62, 0], 0, b""],
        ["<i8", [1 << 40], 0, EIGHT],
        ["<i8", [1] * 33, 0, EIGHT],
        ["<i8", None, 0, EIGHT],
        ["<i8", [1], 4, EIGHT],
        ["<i8", [1], -1, EIGHT],
        ["<i8", [1], None, EIGHT],
        ["<i8", [1], 0, "12345678"],
        ["<i8", [1], 0, [1]],
        ["<U9999999999", [1], 0, EIGHT],
        ["|S2147483647", [1 << 31, 1 << 33, 0], 0, b""],
    ],
    ids=repr,
)
def test_forged_arrays_are_refused(items: list[object]) -> None:
    with pytest.raises(ProtocolError):
        strict_codec().decode(encode([0, [Ext(codes.ARRAY, encode(items))]]))


@pytest.mark.parametrize(
    "items",
    [[], ["<i8", b"1"], ["O", EIGHT], ["<i8", "12345678"], ["U", b"\xff"], ["S", 1]],
    ids=repr,
)
def test_forged_scalars_are_refused(items: list[object]) -> None:
    with pytest.raises(ProtocolError):
        strict_codec().decode(encode([0, [Ext(codes.NUMBER, encode(items))]]))
