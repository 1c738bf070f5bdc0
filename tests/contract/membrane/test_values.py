"""Values through a real wall and back: exact, shared where they were, and nothing of them left."""

from __future__ import annotations

import gc
import os
import signal
from typing import Any

import pytest

import membrane
from membrane.errors import ChildLost
from tests.contract.membrane.conftest import Isolate
from tests.unit.membrane.test_codec_vectors import value_of, vectors
from tests.unit.membrane.values import same

LARGE = 512 * 1024


def regions() -> int:
    gc.collect()
    with open("/proc/self/maps") as maps:
        return sum("memfd:membrane" in line for line in maps)


def ping_without_end(shop: Any) -> None:
    while True:
        shop.ping()


def test_values_of_every_kind_come_back_over_the_wall(shop: Any) -> None:
    known = [vector for vector in vectors() if vector["name"] != "handle"]
    for vector in known:
        sent = value_of(vector)
        received = shop.echo(sent)
        if vector["name"].startswith("numpy"):
            assert repr(received) == repr(sent)
        else:
            assert same(sent, received), vector["name"]


def test_large_buffers_come_back_bare_and_nested_and_leave_nothing(
    isolate: Isolate, local: None
) -> None:
    before = regions()
    kind = isolate("Shop")
    shop = kind("corner", stock=2)
    contents = bytes(range(256)) * (LARGE // 256)
    for _ in range(5):
        sent = [contents, {"k": (bytearray(contents), memoryview(contents))}, [contents] * 3]
        assert same(sent, shop.echo(sent))
    assert regions() > before
    membrane.close(kind)
    del shop
    assert regions() == before


def test_views_are_read_only_and_stay_while_the_child_sends_more(trusted_shop: Any) -> None:
    viewed = trusted_shop.echo.with_options(views=True)
    trusted_shop.echo(bytes(LARGE))
    kept = [viewed(bytes([number]) * LARGE) for number in range(8)]
    for number in range(8):
        assert trusted_shop.echo(bytes([99]) * LARGE) == bytes([99]) * LARGE
        assert type(kept[number]) is memoryview
        assert kept[number].readonly
    assert [bytes(view) for view in kept] == [bytes([number]) * LARGE for number in range(8)]


def test_a_view_outlives_a_child_that_was_killed(isolate: Isolate, local: None) -> None:
    before = regions()
    kind = isolate("Shop", trusted=True)
    shop = kind("corner", stock=2)
    view = shop.echo.with_options(views=True)(b"v" * LARGE)
    os.kill(kind.__membrane__.pid, signal.SIGKILL)
    with pytest.raises(ChildLost):
        ping_without_end(shop)
    assert bytes(view) == b"v" * LARGE
    membrane.close(kind)
    del view, shop
    assert regions() == before
