"""What no codec has written is a ProtocolError: never a crash, never a large allocation, never
another exception."""

from __future__ import annotations

import os
import struct
import sys
import threading
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.msgpack import Ext, encode

from membrane import extensions as codes
from membrane.codec import Codec
from membrane.errors import AccessRefused, ProtocolError
from tests.unit.membrane.values import Table, round_trip, strict_codec, values

MEBIBYTE = 1 << 20


def read(body: bytes) -> Any:
    return strict_codec().decode(body)


def in_values(*sent: object) -> bytes:
    return encode([0, list(sent)])


@settings(max_examples=40, deadline=None)
@given(st.lists(values, max_size=3), st.randoms(use_true_random=False))
def test_a_message_that_is_cut_or_scribbled_on_is_refused_or_read(sent: Any, chance: Any) -> None:
    table = Table()
    codec = Codec(export=table.export, resolve=lambda payload: payload)
    encoded = codec.encode([0, sent])
    for _ in range(10):
        cut = chance.randrange(len(encoded))
        with pytest.raises(ProtocolError):
            codec.decode(encoded[:cut])
        scribbled = bytearray(encoded)
        for _ in range(chance.randint(1, 3)):
            scribbled[chance.randrange(len(scribbled))] = chance.randrange(256)
        try:
            assert type(codec.decode(scribbled)[-1]) is list
        except ProtocolError:
            continue


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(body: bytes) -> None:
    try:
        assert type(read(body)[-1]) is list
    except ProtocolError:
        return


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 40),
    st.binary(max_size=24)
    | st.recursive(
        st.none() | st.integers(-(2**63), 2**63) | st.text(max_size=3) | st.binary(max_size=9),
        lambda inner: st.lists(inner, max_size=4),
        max_leaves=8,
    ).map(encode),
)
def test_any_payload_of_any_extension_is_refused_or_read(code: int, payload: bytes) -> None:
    codec = Codec(export=lambda value: [], resolve=lambda payload: None)
    try:
        assert type(codec.decode(in_values(Ext(code, payload)))[-1]) is list
    except ProtocolError:
        return


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x90",
        b"\x01",
        b"\x80",
        b"\xc0",
        b"\x92\x00\x01",
        b"\x92\x00\x80",
        b"\x91\x90\x00",
        b"\x91\xa3\xff\xff\xff\x90",
        b"\x92\xa3\xff\xff\xff\x90",
        b"\x91\x91\x81\x80\x01",
        b"\x91\x91\x81\x81\x01\x01\x01",
    ],
    ids=repr,
)
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(body)


FORGED: list[tuple[int, bytes]] = [
    (0, b""),
    (28, b""),
    (99, b"x"),
    (-2, b"x"),
    (codes.COMPLEX, b"x" * 15),
    (codes.TEXT, b"\xff"),
    (codes.SINGLETON, b"\2"),
    (codes.SINGLETON, b""),
    (codes.DECIMAL, b"one"),
    (codes.DECIMAL, "\u0661".encode()),
    (codes.UUID, b"x" * 15),
    (codes.PATH, b""),
    (codes.PATH, b"\3/"),
    (codes.PATH, b"\0\xff"),
    (codes.TUPLE, b""),
    (codes.TUPLE, b"\x01"),
    (codes.TUPLE, b"\x90\x90"),
    (codes.SET, encode([[1]])),
    (codes.SET, encode([{}])),
    (codes.FROZENSET, encode([[]])),
    (codes.DICT, encode([1])),
    (codes.DICT, encode([[], 1])),
    (codes.SLICE, encode([1, 2])),
    (codes.RANGE, encode([1, 2])),
    (codes.RANGE, encode([1, 2, 0])),
    (codes.RANGE, encode([1, 2, 1.0])),
    (codes.RANGE, encode([1, 2, True])),
    (codes.DATE, encode([2026, 2, 30])),
    (codes.DATE, encode([2026, 2])),
    (codes.DATETIME, encode([b"\x07\xea\x0b\x15\x15\x16\x17\x00\x00\x00", None])),
    (codes.DATETIME, encode([2026, 1, 1, 0, 0, 0, 0, 2, None])),
    (codes.DATETIME, encode([2026, 1, 1, 0, 0, 0, 0, 0, 1])),
    (codes.DATETIME, b"\x90"),
    (codes.TIME, encode([25, 0, 0, 0, 0, None])),
    (codes.TIMEDELTA, encode([1 << 40, 0, 0])),
    (codes.TIMEDELTA, encode([1.5, 0, 0])),
    (codes.TIMEZONE, encode([1, 0, 0, None])),
    (codes.TIMEZONE, encode([0, 0, 0, "name"])),
    (codes.TIMEZONE, b"\x90"),
    (codes.FRACTION, encode([1, 0])),
    (codes.FRACTION, encode(["1e999999999", 1])),
    (codes.FRACTION, encode([1, Ext(codes.INT, b"\x01" * 10_000)])),
    (codes.MEMORYVIEW, encode(["i", [2], 1, b"1234567"])),
    (codes.MEMORYVIEW, encode(["i", [-2], 1, b"12345678"])),
    (codes.MEMORYVIEW, encode(["P", [1], 1, b"12345678"])),
    (codes.MEMORYVIEW, encode(["B", [2, 0], 1, b""])),
    (codes.MEMORYVIEW, encode(["B", [1] * 65, 1, b"1"])),
    (codes.MEMORYVIEW, encode(["B", None, 1, b"1"])),
    (codes.MEMORYVIEW, encode([0, [1], 1, b"1"])),
    (codes.MEMORYVIEW, encode(["B", [1], None, b"1"])),
    (codes.MEMORYVIEW, encode(["B", [1], 1, [1]])),
    (codes.ROWS, b"\x01"),
    (codes.ROWS, encode([1])),
    (codes.ROWS, encode([[Ext(codes.SINGLETON, b"\0")]])),
    (codes.HANDLE, b"\x01"),
    (codes.HANDLE, encode([Ext(codes.SINGLETON, b"\0")])),
    (codes.HANDLE, encode([1])[:-1]),
    (codes.REGION, codes.REGION_LAYOUT.pack(0, 1, 4096, 1)),
    (codes.REGION, b"short"),
    (codes.GRAPH, b"\x01"),
]


@pytest.mark.parametrize(("code", "payload"), FORGED, ids=repr)
def test_forged_extensions_are_refused(code: int, payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(in_values(Ext(code, payload)))


def test_the_claimed_length_of_anything_costs_no_memory() -> None:
    forged = [
        b"\x91\xdd\xff\xff\xff\xff",
        b"\x91\xdf\xff\xff\xff\xff",
        b"\x91\x91\xc6\xff\xff\xff\xff",
        b"\x91\x91\xdb\xff\xff\xff\xff",
        b"\x91\x91\xc9\xff\xff\xff\xff\x05",
        b"\x91\x91\x81\xdd\xff\xff\xff\xff",
        b"\x91" + b"\xdd\x0f\xff\xff\xff" * 400,
        b"\x91\x91" + b"\x81\xdd\x0f\xff\xff\xff" * 300,
        in_values(Ext(codes.TUPLE, b"\xdd\x0f\xff\xff\xff")),
        in_values(Ext(codes.GRAPH, encode([[0, [None], [0, 1 << 40]]]))),
        in_values(Ext(codes.ROWS, b"\x91\xdd\x0f\xff\xff\xff")),
    ]
    tracemalloc.start()
    try:
        for body in forged:
            with pytest.raises(ProtocolError):
                read(body)
        assert tracemalloc.get_traced_memory()[1] < 8 * MEBIBYTE
    finally:
        tracemalloc.stop()


def test_small_messages_that_stand_for_huge_values_stay_small() -> None:
    received = read(
        in_values(
            Ext(codes.RANGE, encode([0, 1 << 62, 1])),
            Ext(codes.DECIMAL, b"1E+999999999"),
            Ext(codes.SLICE, encode([0, 1 << 62, None])),
        )
    )
    assert sys.getsizeof(received[-1]) < 1000


@pytest.mark.parametrize("opening", [b"\x91", b"\x81", b"\x81\x01", b"\x81\x91"])
def test_plain_nesting_without_end_is_refused(opening: bytes) -> None:
    for depth in (2_000, 200_000):
        with pytest.raises(ProtocolError):
            read(b"\x91\x91" + opening * depth + b"\x01")


@pytest.mark.parametrize(
    "code", [codes.TUPLE, codes.SET, codes.FROZENSET, codes.DICT, codes.SLICE, codes.GRAPH]
)
def test_nested_extensions_without_end_are_refused(code: int) -> None:
    limit = sys.getrecursionlimit()
    payload = encode([])
    for _ in range(400):
        payload = encode([Ext(code, payload), None])
    # However deep the caller allows Python to go: the codec counts for itself.
    sys.setrecursionlimit(20_000)
    try:
        with pytest.raises(ProtocolError, match="extensions hold each other"):
            read(b"\x91" + payload)
    finally:
        sys.setrecursionlimit(limit)


def test_a_reader_that_failed_is_not_used_again() -> None:
    codec = strict_codec()
    payload = encode([])
    for _ in range(100):
        payload = encode([Ext(codes.TUPLE, payload)])
    deep: Any = ((((1,), [2]), [3]), [4])
    for _ in range(200):
        with pytest.raises(ProtocolError):
            codec.decode(in_values(Ext(codes.TUPLE, payload)))
        assert round_trip(deep, codec=codec) == [deep]


def test_what_resolve_refuses_is_refused_as_it_says() -> None:
    def refused(payload: list[object]) -> object:
        raise AccessRefused(operation="use", name="x", remedy="pass it")

    codec = Codec(export=lambda value: [1], resolve=refused)
    with pytest.raises(AccessRefused):
        codec.decode(codec.encode([0, [object()]]))


def test_a_list_by_handle_does_not_pass_for_the_values() -> None:
    private = [1, 2]
    codec = Codec(export=lambda value: [1], resolve=lambda payload: private)
    handle = Ext(codes.HANDLE, b"\x91\x01")
    assert codec.decode(encode([0, [handle]]))[-1][0] is private
    for forged in (handle, Ext(codes.GRAPH, encode([[3, [handle]]]))):
        with pytest.raises(ProtocolError, match="handle instead of its values"):
            codec.decode(encode([0, forged]))


def test_a_fault_of_a_key_from_outside_is_a_fault_of_the_message() -> None:
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

    codec = Codec(export=lambda value: [1], resolve=lambda payload: Unhashable())
    with pytest.raises(ProtocolError, match="unhashable"):
        codec.decode(codec.encode([0, [{object(): 1}]]))


def test_duplicate_keys_are_one_key() -> None:
    assert read(b"\x91\x91\x82\x01\x02\x01\x03") == [[{1: 3}]]


def test_the_buffer_may_be_used_again_after_reading() -> None:
    codec = strict_codec()
    sent = [b"b" * 100, "text" * 20, bytearray(b"a" * 100), memoryview(b"m" * 100), (b"t" * 100,)]
    buffer = bytearray(codec.encode([0, sent]))
    message = codec.decode(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    buffer.clear()
    assert message[-1] == sent


def test_many_threads_read_and_write_with_one_codec() -> None:
    codec = strict_codec()
    wrong: list[object] = []

    def work(number: int) -> None:
        sent: Any = [number, ((number,), [number]), {(number, ()): [1 << 70]}, os.urandom(8)]
        sent.append(sent[1])
        for _ in range(100):
            received = codec.decode(codec.encode([number, sent]))
            if received != [number, sent]:
                wrong.append(received)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_struct_faults_are_protocol_errors() -> None:
    with pytest.raises(ProtocolError) as caught:
        read(in_values(Ext(codes.COMPLEX, b"")))
    assert isinstance(caught.value.__cause__, struct.error)


def alike(count: int) -> list[Ext]:
    """Give different ints with one hash, as they travel."""
    modulus = sys.hash_info.modulus
    numbers = (modulus * factor for factor in range(1 << 8, (1 << 8) + count))
    return [Ext(codes.INT, number.to_bytes(10, "little")) for number in numbers]


@pytest.mark.parametrize(
    "form",
    [
        lambda keys: Ext(codes.SET, encode(keys)),
        lambda keys: Ext(codes.FROZENSET, encode(keys)),
        lambda keys: Ext(codes.DICT, encode([part for key in keys for part in (key, None)])),
        lambda keys: Ext(codes.GRAPH, encode([[2, keys]])),
        lambda keys: Ext(codes.GRAPH, encode([[5, keys]])),
        lambda keys: Ext(codes.GRAPH, encode([[1, [part for key in keys for part in (key, 0)]]])),
    ],
)
def test_many_keys_with_one_hash_are_refused_before_they_are_compared(form: Any) -> None:
    with pytest.raises(ProtocolError, match="have the hash of another one"):
        read(in_values(form(alike(codes.MOST_ALIKE + 2))))


def test_many_keys_with_a_hash_of_their_own_are_read() -> None:
    keys = [*alike(codes.MOST_ALIKE), *range(5 * codes.MOST_ALIKE)]
    found = read(in_values(Ext(codes.SET, encode(keys))))[-1][0]
    assert len(found) == len(keys)
