"""Shared memory of a lane: one copy in and one out, used again, and nothing left of it whatever
happens."""

from __future__ import annotations

import gc
import mmap
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.msgpack import Ext, encode

from membrane import extensions as codes
from membrane import regions as shared
from membrane.codec import BY_RULES, VIEWS, Codec
from membrane.errors import ChildLost, ProtocolError
from membrane.regions import HEADER, LaneRegions, Region, make_region, wanted_size
from tests.unit.membrane.values import Table, same, strict_codec

LARGE = codes.LARGE


class OneWay:
    """Give what one side places to the other side, as a lane would."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.sender = LaneRegions(lane=self)
        self.receiver = LaneRegions(lane=self)

    def share(self, size: int) -> tuple[int, int]:
        fd = make_region(size)
        self.sizes.append(size)
        self.receiver.attached(os.dup(fd), size)
        return fd, size

    def pass_on(
        self, *values: object, views: bool = False, codec: Codec | None = None
    ) -> list[Any]:
        codec = codec or strict_codec()
        policy = BY_RULES | VIEWS if views else BY_RULES
        encoded = codec.encode([0, list(values)], policy=policy, regions=self.sender)
        assert len(encoded) < 4096
        return list(codec.decode(encoded, self.receiver, views=views)[-1])

    def held(self) -> tuple[list[int], list[int]]:
        return (
            sorted(self.sender._outgoing.regions),
            sorted(self.receiver._incoming.regions),
        )

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


def open_things() -> tuple[int, int]:
    with open("/proc/self/maps") as maps:
        return len(os.listdir("/proc/self/fd")), sum("memfd:membrane" in line for line in maps)


@pytest.fixture
def way() -> Iterator[OneWay]:
    before = open_things()
    way = OneWay()
    yield way
    way.close()
    if open_things() != before:
        gc.collect()
    assert open_things() == before


def test_a_region_can_neither_shrink_nor_grow_nor_be_unsealed() -> None:
    fd = make_region(1 << 20)
    try:
        assert os.fstat(fd).st_blocks * 512 >= 1 << 20
        for size in (0, 1 << 19, 1 << 21):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("needed", "size"),
    [
        (1, shared.SMALLEST),
        (shared.SMALLEST - HEADER, shared.SMALLEST),
        (shared.SMALLEST, 2 * shared.SMALLEST),
        (shared.KEPT - HEADER, shared.KEPT),
        (shared.KEPT, shared.KEPT + HEADER),
        (shared.KEPT + 1, shared.KEPT + 2 * HEADER),
    ],
)
def test_regions_are_powers_of_two_up_to_what_is_kept(needed: int, size: int) -> None:
    assert wanted_size(needed) == size


@pytest.mark.parametrize("length", [LARGE, LARGE + 1, 512 * 1024, 3 << 20])
@pytest.mark.parametrize(
    "make",
    [bytes, bytearray, memoryview, lambda contents: memoryview(bytearray(contents))],
    ids=["bytes", "bytearray", "memoryview", "writable"],
)
def test_large_buffers_come_back_bare_and_nested(
    way: OneWay, length: int, make: Callable[[bytes], object]
) -> None:
    contents = bytes(range(256)) * (length // 256) + bytes(length % 256)
    sent = [make(contents), [{"k": (make(contents),)}], {1: make(contents)}]
    assert same(sent, way.pass_on(*sent))


def test_small_buffers_stay_in_the_message(way: OneWay) -> None:
    way.pass_on(bytes(1000), bytearray(1000))
    assert way.sizes == []


def test_without_regions_large_buffers_travel_in_the_message() -> None:
    codec = strict_codec()
    sent = [bytes(1 << 20), bytearray(1 << 20), [memoryview(bytes(1 << 20))]]
    assert same(sent, codec.decode(codec.encode([0, sent]))[-1])


def test_a_large_bytearray_in_two_places_stays_one(way: OneWay) -> None:
    large = bytearray(LARGE)
    first, (second,) = way.pass_on(large, [large])
    assert first is second


def test_a_region_serves_every_message(way: OneWay) -> None:
    for number in range(100):
        contents = bytes([number]) * (512 * 1024)
        assert way.pass_on(contents) == [contents]
    assert way.sizes == [shared.SMALLEST]


def test_a_message_that_needs_more_gets_a_larger_region_and_keeps_only_that(way: OneWay) -> None:
    contents = bytes(900 * 1024)
    assert way.pass_on(*[contents] * 5) == [contents] * 5
    assert way.sizes == sorted(way.sizes)
    assert sum(way.sizes) < 5 * 5 * 900 * 1024
    assert [len(side) for side in way.held()] == [1, 1]
    made = len(way.sizes)
    for _ in range(10):
        way.pass_on(contents, contents)
    assert len(way.sizes) == made


def test_a_region_beyond_what_is_kept_serves_one_message(
    way: OneWay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "KEPT", 2 << 20)
    contents = bytes(5 << 20)
    assert way.pass_on(contents) == [contents]
    assert way.held() == ([], [])
    assert way.pass_on(bytes(LARGE)) == [bytes(LARGE)]
    assert [len(side) for side in way.held()] == [1, 1]


def test_both_sides_let_go_of_the_same_regions(
    monkeypatch: pytest.MonkeyPatch, way: OneWay
) -> None:
    monkeypatch.setattr(shared, "KEPT", 1 << 19)
    monkeypatch.setattr(shared, "SMALLEST", 1 << 17)
    chance = random.Random(5)  # noqa: S311  the same turns each time
    kept: list[Any] = []
    for _ in range(100):
        sizes = [
            chance.choice([16, LARGE, 2 * LARGE, 9 * LARGE]) for _ in range(chance.randint(0, 3))
        ]
        sent = [chance.randbytes(16) * (size // 16) for size in sizes]
        received = way.pass_on(*sent, views=chance.random() < 0.5)
        assert list(map(bytes, received)) == sent
        kept.append((received, sent))
        if chance.random() < 0.6:
            kept.pop(chance.randrange(len(kept)))
        del received
        ours, theirs = way.held()
        assert ours == theirs
        assert len(ours) <= shared.MOST_LENT + 1
        for views, contents in kept:
            assert list(map(bytes, views)) == contents
    kept.clear()
    del views, contents


def test_what_was_received_is_a_copy(way: OneWay) -> None:
    (received,) = way.pass_on(b"a" * LARGE)
    (region,) = way.sender._outgoing.regions.values()
    region.map[HEADER : HEADER + LARGE] = b"z" * LARGE
    assert received == b"a" * LARGE


FORGED = [
    (0, HEADER, 1),
    (2, HEADER, 1),
    (0xFFFF_FFFF, HEADER, 1),
    (1, 0, 1),
    (1, HEADER - 1, 1),
    (1, HEADER, shared.SMALLEST),
    (1, HEADER, shared.SMALLEST - HEADER + 1),
    (1, shared.SMALLEST, 1),
    (1, shared.SMALLEST + 1, 0),
    (1, (1 << 64) - 1, 1),
    (1, HEADER, (1 << 64) - 1),
    (1, (1 << 64) - HEADER, HEADER + 1),
]


@pytest.mark.parametrize("views", [False, True])
def test_forged_places_are_refused(way: OneWay, views: bool) -> None:
    way.pass_on(bytes(LARGE))
    for number, offset, length in FORGED:
        forged = Ext(codes.REGION, codes.REGION_LAYOUT.pack(0, number, offset, length))
        with pytest.raises(ProtocolError, match="region"):
            strict_codec().decode(encode([0, [forged]]), way.receiver, views=views)


def test_forged_kinds_and_buffers_that_are_too_short_for_their_shape_are_refused(
    way: OneWay,
) -> None:
    way.pass_on(bytes(LARGE))
    kinds = Ext(codes.REGION, codes.REGION_LAYOUT.pack(3, 1, HEADER, 8))
    short = Ext(codes.REGION, codes.REGION_LAYOUT.pack(2, 1, HEADER, 8))
    shaped = Ext(codes.MEMORYVIEW, encode(["q", [2], 0, short]))
    for forged in (kinds, shaped):
        with pytest.raises(ProtocolError):
            strict_codec().decode(encode([0, [forged]]), way.receiver)


def test_a_buffer_may_end_where_its_region_ends(way: OneWay) -> None:
    contents = b"e" * (shared.SMALLEST - HEADER)
    assert way.pass_on(contents) == [contents]
    assert way.sizes == [shared.SMALLEST]


@pytest.mark.parametrize("size", [0, 1, HEADER, shared.SMALLEST - 1, shared.SMALLEST + 1, 1 << 62])
def test_a_region_that_is_not_as_announced_is_refused(way: OneWay, size: int) -> None:
    before = open_things()
    with pytest.raises(ProtocolError, match="announced"):
        way.receiver.attached(make_region(shared.SMALLEST), size)
    assert open_things() == before


def test_what_is_no_memory_is_refused(way: OneWay) -> None:
    reading, writing = os.pipe()
    os.close(writing)
    with pytest.raises(ProtocolError):
        way.receiver.attached(reading, 1 << 20)


def test_regions_that_nobody_uses_do_not_pile_up(way: OneWay) -> None:
    for _ in range(shared.MOST_REGIONS):
        way.receiver.attached(make_region(2 * HEADER), 2 * HEADER)
    with pytest.raises(ProtocolError, match="not used"):
        way.receiver.attached(make_region(2 * HEADER), 2 * HEADER)
    assert way.receiver.incoming_bytes == shared.MOST_REGIONS * 2 * HEADER


def test_a_message_that_fails_leaves_nothing_placed_nor_exported(way: OneWay) -> None:
    table = Table()

    def export(value: object) -> list[object]:
        if value is print:
            raise LookupError("not this one")
        return table.export(value)

    codec = Codec(export=export, resolve=table.resolve, retract=table.retract)
    for _ in range(50):
        with pytest.raises(LookupError):
            way.pass_on(bytes(LARGE), open, [bytes(512 * 1024)], print, codec=codec)
    assert way.sizes == [shared.SMALLEST]
    assert len(table.retracted) == len(table.objects) == 50
    assert way.pass_on(b"x" * LARGE, open, codec=codec) == [b"x" * LARGE, open]


def test_a_lane_that_is_lost_while_a_region_is_agreed_on_leaves_nothing(way: OneWay) -> None:
    class Lost(OneWay):
        def share(self, size: int) -> tuple[int, int]:
            raise ChildLost("the child ended")

    lost = Lost()
    table = Table()
    codec = Codec(export=table.export, resolve=table.resolve, retract=table.retract)
    with pytest.raises(ChildLost):
        lost.pass_on(print, bytes(LARGE), codec=codec)
    assert len(table.retracted) == len(table.objects) == 1
    lost.close()


def test_a_region_that_is_too_small_is_refused(way: OneWay) -> None:
    class Mean(OneWay):
        def share(self, size: int) -> tuple[int, int]:
            return super().share(2 * HEADER)

    mean = Mean()
    with pytest.raises(ProtocolError, match="smaller than was asked for"):
        mean.pass_on(bytes(LARGE))
    mean.close()


def test_views_are_read_only_and_of_the_shared_memory_itself(way: OneWay) -> None:
    (view, [nested]) = way.pass_on(b"v" * LARGE, [bytearray(b"n" * LARGE)], views=True)
    assert type(view) is memoryview
    assert view.readonly
    assert nested.readonly
    assert bytes(view) == b"v" * LARGE
    assert bytes(nested) == b"n" * LARGE
    (region,) = way.sender._outgoing.regions.values()
    region.map[HEADER] = ord("w")
    assert view[0] == ord("w")
    with pytest.raises(TypeError):
        view[0] = 1


def test_a_region_under_a_view_is_not_written_to_until_the_view_is_gone(way: OneWay) -> None:
    (view,) = way.pass_on(b"a" * LARGE, views=True)
    part = view[10:20]
    del view
    for number in range(5):
        assert way.pass_on(bytes([number]) * LARGE) == [bytes([number]) * LARGE]
        assert bytes(part) == b"a" * 10
    made = len(way.sizes)
    assert made == 2
    del part
    for _ in range(20):
        (view,) = way.pass_on(b"b" * LARGE, views=True)
        assert bytes(view) == b"b" * LARGE
        del view
    # One in the caller's hands, one on its way, one that has come back.
    assert len(way.sizes) <= made + 1


def test_views_are_given_only_of_what_was_lent(way: OneWay) -> None:
    codec = strict_codec()
    encoded = codec.encode([0, [b"c" * LARGE]], regions=way.sender)
    (received,) = codec.decode(encoded, way.receiver, views=True)[-1]
    assert type(received) is bytes
    (region,) = way.sender._outgoing.regions.values()
    assert not region.map[0]


def test_what_was_lent_and_not_viewed_is_given_back_at_once(way: OneWay) -> None:
    codec = strict_codec()
    for number in range(20):
        contents = bytes([number]) * LARGE
        encoded = codec.encode([0, [contents]], policy=VIEWS, regions=way.sender)
        assert codec.decode(encoded, way.receiver)[-1] == [contents]
    assert way.sizes == [shared.SMALLEST]


def test_views_outlive_their_lane(way: OneWay) -> None:
    views = [way.pass_on(bytes([number]) * LARGE, views=True)[0] for number in range(9)]
    assert [len(side) for side in way.held()] == [shared.MOST_LENT] * 2
    way.close()
    assert [bytes(view) for view in views] == [bytes([number]) * LARGE for number in range(9)]
    views.clear()


def test_a_map_tells_whether_it_is_viewed(way: OneWay) -> None:
    region = Region(fd=make_region(shared.SMALLEST), size=shared.SMALLEST, writable=False)
    assert not region.is_viewed()
    view = memoryview(region.map)[5:6]
    assert region.is_viewed()
    view.release()
    assert not region.is_viewed()
    assert len(region.map) == shared.SMALLEST
    region.close()


def test_the_header_is_one_page() -> None:
    assert HEADER == mmap.PAGESIZE
