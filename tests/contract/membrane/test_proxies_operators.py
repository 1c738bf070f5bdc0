"""Operators, errors, awaiting and context managers through proxies."""

from __future__ import annotations

import asyncio
import math
import operator
from typing import Any, cast

import pytest

import membrane
from membrane import RemoteError
from tests.contract.membrane.conftest import Isolate


def test_a_container_is_used_as_one(isolate: Isolate) -> None:
    shelf = isolate("Shelf")("a", "b", "c")
    assert len(shelf) == 3
    assert list(shelf) == ["a", "b", "c"]
    assert (shelf[0], shelf[-1]) == ("a", "c")
    shelf[0] = "z"
    assert "z" in shelf
    assert "a" not in shelf
    del shelf[0]
    assert list(reversed(shelf)) == ["c", "b"]
    assert (repr(shelf), str(shelf), f"{shelf:wide}") == (
        "Shelf(['b', 'c'])",
        "a shelf of 2",
        "shelf:wide",
    )
    assert bytes(shelf) == b"\0\0"
    assert bool(shelf)
    assert not isolate("Shelf")()
    with pytest.raises(IndexError):
        shelf[9]


def test_arithmetic_is_done_over_there(isolate: Isolate) -> None:
    money = isolate("Money")
    one, two = money(1), money(2)
    assert (one + two).amount == 3
    assert (one + 5).amount == 6
    assert (5 + one).amount == 1006
    assert (two - one).amount == 1
    assert (two * 4).amount == 8
    assert divmod(money(7), 2) == (3, 1)
    assert (-two).amount == -2
    assert abs(-two).amount == 2
    assert (int(two), float(two), operator.index(two), round(two)) == (2, 2.0, 2, 2)
    assert [10, 20, 30][two] == 30
    same = two
    same += 10
    assert same is two
    assert two.amount == 12
    with pytest.raises(TypeError, match="unsupported operand"):
        one + "text"
    with pytest.raises(TypeError):
        one**2
    with pytest.raises(TypeError):
        math.trunc(one)


def test_comparison_and_hash_are_those_of_the_object(isolate: Isolate) -> None:
    money = isolate("Money")
    assert money(1) == money(1)
    assert money(1) != money(2)
    assert money(1) < money(2)
    assert sorted([money(3), money(1)])[0].amount == 1
    assert hash(money(1)) == hash(money(1))
    assert len({money(1), money(1), money(2)}) == 2
    with pytest.raises(TypeError):
        _ = money(1) <= money(2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(isolate("Listed")())


def test_a_set_of_objects_comes_back_as_a_set_of_proxies(isolate: Isolate, shop: Any) -> None:
    found = shop.run(
        "from tests.contract.membrane.targets.shop import Money\nresult = {Money(1), Money(2)}"
    )
    assert sorted(one.amount for one in found) == [1, 2]


def test_objects_with_one_hash_come_back_as_they_were(shop: Any) -> None:
    code = (
        "class Same:\n"
        "    def __init__(self, n): self.n = n\n"
        "    def __hash__(self): return 7\n"
        "    def __eq__(self, other): return isinstance(other, Same) and self.n == other.n\n"
        "def make(count): return {Same(n): n for n in range(count)}\n"
        "result = make"
    )
    make = shop.run(code)
    assert sorted(key.n for key in make(5)) == [0, 1, 2, 3, 4]
    assert shop.apply(lambda: shop.apply(lambda: len(make(6)))) == 6
    one, two = make(2)
    assert one != two
    assert hash(one) == hash(two) == 7


def test_only_what_the_class_has_is_there(isolate: Isolate, shop: Any) -> None:
    kind = type(shop)
    for name in ("__len__", "__iter__", "__getitem__", "__add__", "__enter__", "__await__"):
        assert not hasattr(kind, name), name
    for use in (len, iter, int, operator.neg, operator.index):
        with pytest.raises(TypeError):
            use(shop)
    with pytest.raises(TypeError):
        shop()
    assert not callable(shop)
    assert bool(shop)
    assert shop == shop
    assert shop != kind()
    assert hash(shop) == hash(shop)
    shelf = isolate("Shelf")
    assert hasattr(shelf, "__len__")
    assert not hasattr(shelf, "__add__")


def test_objects_are_called(shop: Any) -> None:
    door = shop.door()
    assert door(1, 2, a=3) == ((1, 2), {"a": 3})
    done = door.batch([((1,), {}), ((), {"b": 2})])
    assert done.values() == [((1,), {}), ((), {"b": 2})]


def test_context_managers_see_the_error(shop: Any) -> None:
    door = shop.door()
    with door as entered:
        assert entered is door
    assert door.seen == ["enter", "exit NoneType False"]
    with pytest.raises(KeyError), door:
        raise KeyError("mine")
    assert door.seen[-1].endswith("True")
    mild = shop.door(forgives=True)
    with mild:
        raise ValueError("forgiven")
    assert mild.seen[-1].endswith("False")


async def _use_async(shop: Any) -> list[object]:
    door = shop.door(forgives=True)
    async with door as entered:
        assert entered is door
        raise KeyError("forgiven")
    seen = list(door.seen)
    numbers = [number async for number in shop.stream(3)]
    both = await asyncio.gather(shop.wait(1), shop.wait(10))
    held = await shop.later(5)
    with pytest.raises(StopAsyncIteration):
        await anext(shop.stream(0))
    return [seen, numbers, both, held]


def test_async_is_awaited_over_there(shop: Any) -> None:
    seen, numbers, both, held = asyncio.run(_use_async(shop))
    assert seen == ["aenter", "aexit True"]
    assert (numbers, both, held) == ([0, 1, 2], [2, 11], 6)


def test_the_event_loop_goes_on_while_a_child_is_awaited(shop: Any) -> None:
    async def use() -> list[str]:
        order: list[str] = []
        event = asyncio.Event()
        loop = asyncio.get_running_loop()

        def called() -> str:
            loop.call_soon_threadsafe(event.set)
            return "called"

        async def other() -> None:
            await event.wait()
            order.append("other ran")

        async def ask() -> None:
            assert await shop.await_it(shop.wait(1)) == 2
            order.append(shop.apply(called))

        await asyncio.gather(ask(), other())
        return order

    assert sorted(asyncio.run(use())) == ["called", "other ran"]


def test_a_callers_coroutine_function_is_awaited_from_the_child(shop: Any) -> None:
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    async def use() -> object:
        return await shop.await_it(shop.apply(double, 4))

    code = "async def use():\n    return await double(21)\nresult = use()"
    assert shop.run.__name__ == "run"

    async def from_child() -> object:
        return await shop.run(code, double=double)

    assert asyncio.run(from_child()) == 42


@pytest.mark.parametrize(
    ("kind", "caught", "remote", "message"),
    [
        ("key", KeyError, "builtins.KeyError", "no such thing"),
        ("own", KeyError, "tests.contract.membrane.targets.shop.ShopError", "out of stock"),
        ("file", FileNotFoundError, "builtins.FileNotFoundError", "No such file"),
        ("unicode", UnicodeDecodeError, "builtins.UnicodeDecodeError", "invalid start byte"),
        ("cause", ValueError, "builtins.ValueError", "on top"),
        (
            "unprintable",
            RemoteError,
            "tests.contract.membrane.targets.shop._Unprintable",
            "without a text",
        ),
    ],
)
def test_an_error_is_of_its_builtin_type(
    shop: Any, kind: str, caught: type[Exception], remote: str, message: str
) -> None:
    with pytest.raises(caught) as raised:
        shop.fail(kind)
    error = raised.value
    assert isinstance(error, RemoteError)
    assert error.remote_type == remote
    assert message in error.remote_message == str(error)
    assert "in fail" in error.remote_traceback


def test_an_error_keeps_its_arguments_notes_and_cause(shop: Any) -> None:
    with pytest.raises(KeyError) as raised:
        shop.fail("key")
    assert raised.value.args == ("no such thing", 3)
    with pytest.raises(FileNotFoundError) as missing:
        shop.fail("file")
    assert (missing.value.errno, missing.value.args[0]) == (2, 2)
    with pytest.raises(ValueError, match="noted") as noted:
        shop.fail("note")
    assert noted.value.__notes__ == ["a note"]
    with pytest.raises(ValueError, match="top") as caused:
        shop.fail("cause")
    assert "'deep'" in cast("RemoteError", caused.value).remote_traceback


def test_an_error_of_the_child_that_a_callback_lets_through_is_the_same_there(shop: Any) -> None:
    def call_back() -> None:
        shop.fail("own")

    seen = shop.run(
        "from tests.contract.membrane.targets.shop import ShopError\n"
        "try:\n    callback()\n"
        "except ShopError as error:\n    result = type(error).__name__, str(error)",
        callback=call_back,
    )
    assert seen == ("ShopError", "'out of stock'")


def test_a_proxy_of_the_other_side_survives_a_child_that_is_replaced(isolate: Isolate) -> None:
    kind = isolate("Shop", share_key="replaced")
    first = kind("first")
    with pytest.raises(membrane.ChildLost):
        first.run("import os; os.kill(os.getpid(), 9)")
    second = kind("second")
    assert second.name == "second"
    assert type(second) is kind
    with pytest.raises(membrane.ChildLost):
        first.ping()
    assert type(second.item("a")).__name__ == "Item"
    second.keep(kind)
    assert second.is_kept(kind)
