"""Handle tables: identity, counted releases, and finalizers that come at any time."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membrane.errors import ProtocolError
from membrane.exports import Exports, Imports


class Thing:
    """Something that can be referred to weakly."""


def test_the_same_object_has_the_same_handle_while_it_is_held() -> None:
    exports = Exports(gated=False)
    one, two = Thing(), Thing()
    first = exports.hold(one)
    assert exports.hold(one) == first != exports.hold(two)
    assert exports.get(first) is one
    exports.release([first, 1])
    assert exports.get(first) is one
    exports.release([first, 1])
    with pytest.raises(ProtocolError, match="unknown or released"):
        exports.get(first)
    assert exports.hold(one) != first


def test_a_release_that_meets_another_sending_drops_nothing() -> None:
    exports, imports = Exports(gated=False), Imports()
    thing = Thing()
    handle = exports.hold(thing)
    proxy = imports.adopt(handle, Thing)
    del proxy
    again = exports.hold(thing)
    due = imports.drain()
    assert due == [handle, 1]
    exports.release(due)
    assert exports.get(again) is thing


@pytest.mark.parametrize(
    "pairs",
    [None, (1, 1), [1], [2, 1], [1, 0], [1, -1], [1, 3], [1, True], ["1", 1], [True, 1], [1.0, 1]],
)
def test_releases_that_do_not_match_are_refused(pairs: object) -> None:
    exports = Exports(gated=True)
    thing = Thing()
    exports.hold(thing)
    exports.hold(thing)
    with pytest.raises(ProtocolError):
        exports.release(pairs)
    assert exports.get(1) is thing


@pytest.mark.parametrize("handle", [0, -1, 2, True, 1.0, "1", None, [], b"1"])
def test_what_is_no_handle_is_refused(handle: object) -> None:
    exports = Exports(gated=True)
    exports.hold(Thing())
    with pytest.raises(ProtocolError):
        exports.get(handle)


def test_a_gated_table_gives_what_was_granted_only() -> None:
    exports = Exports(gated=True)
    handle = exports.hold(Thing, pinned=True, granted=False)
    with pytest.raises(ProtocolError):
        exports.get(handle)
    assert not exports.is_granted(Thing)
    assert exports.hold(Thing, pinned=True) == handle
    assert exports.get(handle) is Thing
    exports.release([handle, 2])
    assert exports.get(handle) is Thing
    exports.clear()
    assert len(exports) == 0


def test_proxies_are_known_while_they_live() -> None:
    imports = Imports()
    proxy = imports.adopt(7, Thing)
    assert imports.adopt(7, Thing) is proxy
    assert imports.find(7) is proxy
    assert imports.drain() is None
    assert len(imports) == 1
    del proxy
    assert imports.drain() == [7, 2]
    assert imports.drain() is None
    assert imports.find(7) is None


def test_a_proxy_made_anew_before_the_old_ones_release_went_out() -> None:
    imports = Imports()
    imports.adopt(7, Thing)
    fresh = imports.adopt(7, Thing)
    assert imports.drain() == [7, 1]
    assert imports.find(7) is fresh


def test_a_forgotten_handle_is_released_once() -> None:
    imports = Imports()
    proxy = imports.adopt(7, Thing)
    imports.forget(7)
    imports.forget(7)
    assert imports.drain() == [7, 1]
    del proxy
    assert imports.drain() is None


def test_a_finalizer_may_use_the_tables_while_they_are_used() -> None:
    imports = Imports()
    seen: list[object] = []

    class Finalized:
        def __del__(self) -> None:
            seen.append(imports.adopt(99, Thing))
            imports.drain()

    ring: list[object] = [Finalized()]
    ring.append(ring)
    del ring
    imports.adopt(1, lambda: (gc.collect() and Thing()) or Thing())
    assert len(seen) == 1
    assert imports.find(99) is seen[0]


def test_threads_count_together() -> None:
    exports, imports = Exports(gated=False), Imports()
    thing = Thing()
    kept = imports.adopt(exports.hold(thing), Thing)

    def work() -> None:
        for _ in range(500):
            imports.adopt(exports.hold(thing), Thing)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gone = weakref.ref(kept)
    del kept
    assert gone() is None
    due = imports.drain()
    assert due == [1, 2001]
    exports.release(due)
    assert len(exports) == 0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40))
def test_nothing_is_left_and_nothing_lost(steps: list[tuple[int, bool]]) -> None:
    exports, imports = Exports(gated=False), Imports()
    things = [Thing() for _ in range(4)]
    proxies: dict[int, object] = {}
    for place, drop in steps:
        if drop:
            proxies.pop(place, None)
        else:
            handle = exports.hold(things[place])
            assert exports.get(handle) is things[place]
            proxies[place] = imports.adopt(handle, Thing)
    for place in proxies:
        assert exports.handle_of(things[place]) is not None
    proxies.clear()
    due = imports.drain()
    if due:
        exports.release(due)
    assert len(exports) == 0
