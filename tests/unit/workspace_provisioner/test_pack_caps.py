"""Small packs are looked through before git unpacks them: no object is made, whatever they say."""

from __future__ import annotations

import os
import tracemalloc
from dataclasses import replace

import pytest

from tests.fakes.hand_made_packs import (
    BLOB,
    NAMED_DELTA,
    OFFSET_DELTA,
    copies,
    doubling_chain,
    entry,
    object_id,
    offset,
    pack,
)
from workspace_provisioner.errors import PackInvalid, PackTooLarge
from workspace_provisioner.git.pack_caps import PackCaps, check_pack

CAPS = PackCaps(inflated_bytes=1_000_000, object_bytes=400_000, objects=1000, chain=10)


def refused(given: bytes, caps: PackCaps = CAPS) -> PackTooLarge:
    with pytest.raises(PackTooLarge) as caught:
        check_pack(given, caps)
    assert caught.value.reason == "pack_too_large"
    return caught.value


def test_a_pack_within_the_limits_passes() -> None:
    content = os.urandom(5000)
    first = entry(BLOB, content)
    other = entry(BLOB, b"small")
    delta = entry(OFFSET_DELTA, copies(5000, 5000, 3), base=offset(len(first) + len(other)))
    named = entry(NAMED_DELTA, copies(5, 5, 2), base=object_id(BLOB, b"small"))
    check_pack(pack([first, other, delta, named]), CAPS)
    check_pack(pack([]), CAPS)


def test_an_inflating_bomb_is_refused_without_being_inflated() -> None:
    bomb = pack([entry(BLOB, bytes(50_000_000))])
    liar = pack([entry(BLOB, bytes(50_000_000), size=300_000)])
    assert len(bomb) < 60_000
    tracemalloc.start()
    try:
        assert refused(bomb).fields == {"limit": "400000", "exceeded": "bytes in one object"}
        # One that lies about its size is inflated no further than it says.
        with pytest.raises(PackInvalid):
            check_pack(liar, CAPS)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_many_objects_that_are_too_large_together() -> None:
    error = refused(pack([entry(BLOB, bytes(300_000))] * 4))
    assert error.fields == {"limit": "1000000", "exceeded": "bytes when unpacked"}
    assert "FAIRLEAD_WORKSPACE_MAX_INFLATED_BYTES" in error.remedy


def test_a_delta_bomb_is_refused_by_what_it_would_become() -> None:
    base = os.urandom(60_000)
    first = entry(BLOB, base)
    bomb = pack([first, entry(OFFSET_DELTA, copies(60_000, 60_000, 10), base=offset(len(first)))])
    assert refused(bomb).fields["exceeded"] == "bytes in one object"
    chain = pack(doubling_chain(9, os.urandom(700)))
    assert len(chain) < 2000
    assert refused(chain, replace(CAPS, inflated_bytes=500_000)).fields["limit"] == "500000"


def test_a_long_chain_of_deltas() -> None:
    entries = [entry(BLOB, b"start")]
    for _ in range(10):
        entries.append(entry(OFFSET_DELTA, copies(5, 5, 1), base=offset(len(entries[-1]))))
    check_pack(pack(entries), CAPS)
    entries.append(entry(OFFSET_DELTA, copies(5, 5, 1), base=offset(len(entries[-1]))))
    assert refused(pack(entries)).fields["exceeded"] == "deltas on top of each other"


def test_more_objects_than_are_allowed_are_not_even_looked_at() -> None:
    assert refused(pack([], count=1001)).fields == {"limit": "1000", "exceeded": "objects"}


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"PACK",
        b"hello" * 20,
        pack([entry(BLOB, b"one")], count=2),
        pack([entry(5, b"unknown kind")]),
        pack([entry(BLOB, b"one", size=2)]),
        pack([entry(BLOB, b"one", size=4)]),
        pack([entry(BLOB, b"one")[:-4]]),
        pack([b"\x33not deflated"]),
        pack([entry(OFFSET_DELTA, b"\xff" * 30, base=offset(1))]),
    ],
)
def test_what_is_no_pack_is_invalid(given: bytes) -> None:
    with pytest.raises(PackInvalid):
        check_pack(given, CAPS)


def test_paths_are_counted_and_measured() -> None:
    caps = PackCaps(paths=10, path_bytes=1000, name_bytes=255, depth=4)
    caps.check_paths(10)
    caps.check_path(b"a/b/c/d")
    caps.check_path(b"n" * 255 + b"/" + b"n" * 255)
    for bad in (b"a/b/c/d/e", b"n" * 256, b"a/" + b"n" * 300, b"/".join([b"n" * 250] * 4)):
        with pytest.raises(PackTooLarge):
            caps.check_path(bad)
    with pytest.raises(PackTooLarge) as caught:
        caps.check_paths(11)
    assert caught.value.fields == {"limit": "10", "exceeded": "paths in one tree"}
