"""Sealed records: the vectors, and whatever was changed, doubled or is too old."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_tunnel.records import (
    MAX_BATCH_BYTES,
    REPLAY_WINDOW,
    Opener,
    RecordInvalid,
    Sealer,
    Suite,
    rekey,
)
from tests.unit.fairlead_tunnel.tunnel_vectors import VECTORS, RecordVector

KEY = bytes(range(32))
EPOCH = 1 << 16


def pair(suite: Suite = Suite.AES_256_GCM) -> tuple[Sealer, Opener]:
    return Sealer(suite=suite, key=KEY), Opener(suite=suite, key=KEY)


@pytest.mark.parametrize(
    "vector", VECTORS["records"], ids=lambda vector: f"{vector['suite']}-{vector['number']}"
)
def test_a_record_by_its_number(vector: RecordVector) -> None:
    suite, number = Suite[vector["suite"]], vector["number"]
    key = bytes.fromhex(vector["key"])
    opener = Opener(suite=suite, key=key)
    for epoch in range(number >> 16):
        before = Sealer(suite=suite, key=key)
        for _ in range(epoch * EPOCH + 1):
            last = before.seal(b"")
        opener.open(*last)
    assert opener.open(number, bytes.fromhex(vector["sealed"])).hex() == vector["batch"]


def test_a_key_is_changed_after_65536_records() -> None:
    sealer, opener = pair()
    sealed = [sealer.seal(number.to_bytes(4, "big")) for number in range(EPOCH + 2)]
    for number, record in sealed[EPOCH - 1 :]:
        assert opener.open(number, record) == number.to_bytes(4, "big")
    after = Opener(suite=Suite.AES_256_GCM, key=rekey(Suite.AES_256_GCM, KEY))
    with pytest.raises(RecordInvalid):
        after.open(*sealed[0])


def test_records_that_change_places_around_a_change_of_keys() -> None:
    sealer, opener = pair()
    sealed = [sealer.seal(number.to_bytes(4, "big")) for number in range(EPOCH + 4)]
    for number in (EPOCH - 4, EPOCH + 1, EPOCH - 1, EPOCH + 3, EPOCH - 2, EPOCH, EPOCH - 3):
        assert opener.open(*sealed[number]) == number.to_bytes(4, "big")
    with pytest.raises(RecordInvalid, match="twice"):
        opener.open(*sealed[EPOCH - 1])


@pytest.mark.parametrize("suite", [*Suite])
@given(place=st.integers(0, 30), bit=st.integers(0, 7))
def test_a_changed_record_is_refused_and_changes_nothing(
    suite: Suite, place: int, bit: int
) -> None:
    sealer, opener = pair(suite)
    number, sealed = sealer.seal(b"fifteen bytes..")
    changed = bytearray(sealed)
    changed[place] ^= 1 << bit
    with pytest.raises(RecordInvalid):
        opener.open(number, bytes(changed))
    with pytest.raises(RecordInvalid):
        opener.open(number + 1, sealed)
    with pytest.raises(RecordInvalid):
        opener.open(number, sealed[:-1])
    assert opener.next == 0
    assert opener.open(number, sealed) == b"fifteen bytes.."


@given(st.permutations(range(24)), st.lists(st.integers(0, 23), max_size=10))
def test_each_record_is_opened_once_in_any_order(order: list[int], again: list[int]) -> None:
    sealer, opener = pair()
    sealed = [sealer.seal(bytes([each])) for each in range(24)]
    for each in order:
        assert opener.open(*sealed[each]) == bytes([each])
    for each in again:
        with pytest.raises(RecordInvalid):
            opener.open(*sealed[each])
    assert opener.next == 24


def test_a_record_below_the_window_is_too_old() -> None:
    sealer, opener = pair()
    sealed = [sealer.seal(b"") for _ in range(REPLAY_WINDOW + 1)]
    opener.open(*sealed[-1])
    assert opener.open(*sealed[1]) == b""
    with pytest.raises(RecordInvalid, match="too late"):
        opener.open(*sealed[0])


def test_a_number_far_ahead_opens_nothing() -> None:
    _, opener = pair()
    with pytest.raises(RecordInvalid, match="far"):
        opener.open(3 * EPOCH, bytes(16))


def test_a_batch_that_is_too_long() -> None:
    sealer, _ = pair()
    assert sealer.seal(bytes(MAX_BATCH_BYTES))[0] == 0
    with pytest.raises(RecordInvalid, match="long"):
        sealer.seal(bytes(MAX_BATCH_BYTES + 1))


def test_the_other_directions_record_does_not_open() -> None:
    sealer, _ = pair()
    other = Opener(suite=Suite.AES_256_GCM, key=bytes(32))
    with pytest.raises(RecordInvalid):
        other.open(*sealer.seal(b"x"))


@pytest.mark.parametrize("suite", list(Suite))
def test_a_record_in_order_is_the_sealed_batch_behind_its_length(suite: Suite) -> None:
    sealer, same = Sealer(suite=suite, key=KEY), Sealer(suite=suite, key=KEY)
    for batch in (b"", b"batch", bytes(MAX_BATCH_BYTES)):
        _, sealed = same.seal(batch)
        assert sealer.seal_in_order(batch) == len(sealed).to_bytes(4, "big") + sealed
    with pytest.raises(RecordInvalid):
        sealer.seal_in_order(bytes(MAX_BATCH_BYTES + 1))
