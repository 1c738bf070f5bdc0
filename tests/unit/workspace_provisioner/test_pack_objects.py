"""Small packs are read whole or refused, whatever is in them, within their limits of memory."""

from __future__ import annotations

import hashlib
import tracemalloc
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workspace_provisioner.git.pack_objects import (
    MOST_BYTES,
    MOST_OBJECTS,
    PackObjects,
    Unsuited,
    object_id,
)
from workspace_provisioner.sources import ObjectFormat

COMMIT, TREE, BLOB, OFFSET, REFERENCE = 1, 2, 3, 6, 7
SHA1 = ObjectFormat.SHA1


def size_bytes(number: int, size: int) -> bytes:
    byte, size = number << 4 | size & 15, size >> 4
    found = bytearray()
    while size:
        found.append(byte | 0x80)
        byte, size = size & 0x7F, size >> 7
    found.append(byte)
    return bytes(found)


def entry(number: int, content: bytes, base: bytes = b"", size: int | None = None) -> bytes:
    said = len(content) if size is None else size
    return size_bytes(number, said) + base + zlib.compress(content)


def packed(*entries: bytes, count: int | None = None) -> bytes:
    body = b"PACK\0\0\0\2" + (len(entries) if count is None else count).to_bytes(4, "big")
    body += b"".join(entries)
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def delta(source: int, target: int, *steps: bytes) -> bytes:
    return varint(source) + varint(target) + b"".join(steps)


def copy(offset: int, length: int) -> bytes:
    """Copy from a base of less than 256 bytes."""
    return bytes([0x80 | 0x01 | 0x10, offset, length])


def literal(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def only(pack: bytes, base: bytes = b"") -> list[bytes]:
    """Return the contents of a pack's objects; `base` is the one that the store has."""
    there = {object_id(SHA1, "blob", base): ("blob", base)}
    return [content for _, content in PackObjects(pack, SHA1).resolve(there.get).values()]


def refused(pack: bytes, base: bytes = b"") -> str:
    with pytest.raises(Unsuited) as caught:
        only(pack, base)
    return str(caught.value)


def test_whole_objects() -> None:
    pack = packed(entry(BLOB, b"one"), entry(TREE, b""), entry(BLOB, b"x" * 5000))
    assert only(pack) == [b"one", b"", b"x" * 5000]
    (oid, *_) = PackObjects(pack, SHA1).resolve(lambda _: None)
    assert oid == hashlib.sha1(b"blob 3\0one", usedforsecurity=False).hexdigest()


def test_deltas_against_the_pack_and_against_the_store() -> None:
    base = b"0123456789"
    steps = delta(10, 8, copy(2, 5), literal(b"abc"))
    first = entry(BLOB, base)
    by_offset = packed(first, entry(OFFSET, steps, base=bytes([len(first)])))
    assert only(by_offset) == [base, b"23456abc"]
    name = bytes.fromhex(object_id(SHA1, "blob", base))
    thin = packed(entry(REFERENCE, steps, base=name))
    assert PackObjects(thin, SHA1).bases == {name.hex()}
    assert only(thin, base) == [b"23456abc"]
    # The base may also come after its delta.
    assert only(packed(entry(REFERENCE, steps, base=name), first)) == [base, b"23456abc"]


def test_what_is_not_a_pack() -> None:
    good = packed(entry(BLOB, b"one"))
    assert refused(b"") == "no header"
    assert refused(b"PACK\0\0\0\3" + good[8:]) == "no header"
    assert refused(good[:-1] + b"\0") == "no trailer"
    assert refused(packed(entry(BLOB, b"one"), count=2)) == "cut short"
    assert refused(packed(entry(BLOB, b"one"), entry(BLOB, b"two"), count=1)) == (
        "more than its objects"
    )
    assert refused(packed(entry(5, b"one"))) == "an unknown kind of object"
    assert refused(packed(size_bytes(BLOB, 3) + b"not deflated")) == "not deflated"
    assert refused(packed(b"", count=MOST_OBJECTS + 1)) == "too many objects"
    for wrong in (2, 4):
        assert refused(packed(entry(BLOB, b"one", size=wrong))) == "another size than it says"


def test_deltas_that_do_not_fit() -> None:
    base = b"0123456789"
    name = bytes.fromhex(object_id(SHA1, "blob", base))
    for steps in (
        delta(9, 5, copy(2, 5)),
        delta(10, 5, copy(8, 5)),
        delta(10, 4, copy(2, 5)),
        delta(10, 6, copy(2, 5)),
        delta(10, MOST_BYTES + 1, copy(2, 5)),
        delta(10, 5, literal(b"ab")[:-1]),
        delta(10, 0, b"\0"),
        b"\x8a",
    ):
        assert refused(packed(entry(REFERENCE, steps, base=name)), base)
    assert refused(packed(entry(REFERENCE, delta(10, 5, copy(2, 5)), base=name))) == (
        "a delta has no base"
    )
    itself = packed(entry(OFFSET, delta(10, 5, copy(2, 5)), base=b"\0"))
    assert refused(itself) == "a delta has no base"


def test_a_bomb_takes_no_memory() -> None:
    """A thousand-fold inflated object, one that hides its size, and a delta that multiplies."""
    large = zlib.compress(bytes(32 * 1024 * 1024), 9)
    tracemalloc.start()
    try:
        assert refused(packed(size_bytes(BLOB, 32 * 1024 * 1024) + large)) == "too many bytes"
        assert refused(packed(size_bytes(BLOB, 3) + large)) == "another size than it says"
        base = b"x" * 255
        name = bytes.fromhex(object_id(SHA1, "blob", base))
        many = 300_000
        steps = delta(255, 255 * many, copy(0, 255) * many)
        assert refused(packed(entry(REFERENCE, steps, base=name)), base)
        assert tracemalloc.get_traced_memory()[1] < 8 * MOST_BYTES
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=300), st.integers(0, 40))
def test_any_bytes_are_read_or_refused(noise: bytes, place: int) -> None:
    pack = bytearray(packed(entry(BLOB, b"0123456789"), entry(OFFSET, delta(10, 5), b"\x13")))
    pack[12 + place : 12 + place + len(noise)] = noise
    body = bytes(pack[:-20])
    with pytest.raises(Unsuited):
        only(bytes(pack) + b"?")
    with suppress(Unsuited):
        only(body + hashlib.sha1(body, usedforsecurity=False).digest())
