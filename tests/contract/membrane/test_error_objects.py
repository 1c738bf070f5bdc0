"""Errors that cross as objects, raised by nobody on the way: real errors over there, and the same
ones back home.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from membrane import RemoteError
from tests.contract.membrane.conftest import Isolate


class OutOfOrder(ValueError):
    """An error of the caller's own, with more than text."""

    def __init__(self, order: int) -> None:
        super().__init__(f"order {order}")
        self.order = order


def test_an_error_is_passed_and_is_an_error_there(shop: Any) -> None:
    told = "(type(error).__name__, isinstance(error, KeyError), error.args, str(error))"
    assert shop.see(told, error=KeyError("a", 1)) == ("KeyError", True, ("a", 1), "('a', 1)")
    told = "(type(error).__name__, isinstance(error, ValueError), str(error))"
    assert shop.see(told, error=OutOfOrder(7)) == ("OutOfOrder", True, "order 7")


@pytest.mark.parametrize(
    "error",
    [
        StopIteration(3),
        OSError(2, "gone"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        SystemExit(3),
        KeyError(1 << 70),
        KeyError("\ud800"),
        KeyError(object()),
        ExceptionGroup("many", [KeyError("one")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_any_type_and_arguments_comes_home_as_itself(
    shop: Any, error: BaseException
) -> None:
    assert shop.echo(error) is error
    assert shop.see("isinstance(error, Exception)", error=error) is True
    shop.keep(error)
    assert shop.given() is error


def test_an_error_that_was_passed_is_raised_there(shop: Any) -> None:
    error = OutOfOrder(8)
    with pytest.raises(OutOfOrder) as caught:
        shop.run("raise error", error=error)
    assert caught.value is error
    seen = "try:\n    raise error\nexcept ValueError as caught:\n    result = caught is error\n"
    assert shop.run(seen, error=error) is True


def test_an_error_is_thrown_into_a_generator(shop: Any) -> None:
    counting = shop.count_to(3)
    assert next(counting) == 1
    error = KeyError("thrown")
    with pytest.raises(KeyError) as caught:
        counting.throw(error)
    assert caught.value is error
    with pytest.raises(StopIteration):
        next(counting)


def test_an_error_of_the_child_goes_back_as_itself(shop: Any) -> None:
    with pytest.raises(KeyError) as caught:
        shop.fail("own")
    told = "(type(error).__name__, type(error).__module__, error.args)"
    assert shop.see(told, error=caught.value) == (
        "ShopError",
        "tests.contract.membrane.targets.shop",
        ("out of stock",),
    )


def test_an_error_of_one_child_is_an_error_in_another(isolate: Isolate) -> None:
    first, second = isolate("Shop")(), isolate("Shop")()
    with pytest.raises(KeyError) as caught:
        first.fail("key")
    assert isinstance(caught.value, RemoteError)
    assert second.see("isinstance(error, KeyError)", error=caught.value) is True
    assert second.echo(caught.value) is caught.value


def test_an_error_of_the_child_is_looked_at(shop: Any) -> None:
    error = shop.see("KeyError('not raised')")
    assert error.args == ("not raised",)
    assert type(error).__name__ == "KeyError"
    assert shop.see("type(error) is KeyError", error=error) is True


def test_the_child_lets_go_of_an_error_that_it_was_passed(shop: Any) -> None:
    error = KeyError("held")
    held = sys.getrefcount(error)
    assert shop.echo(error) is error
    shop.see("__import__('gc').collect()")
    shop.ping()
    assert sys.getrefcount(error) == held


def test_an_error_of_two_bases_is_caught_by_each(shop: Any) -> None:
    class ApplicationError(Exception):
        pass

    class NotFound(ApplicationError, KeyError):
        pass

    def search() -> None:
        raise NotFound("nowhere")

    assert shop.apply_safely(search) == "caught RemoteKeyError: 'nowhere'"
    told = "(issubclass(kind, ours), issubclass(kind, KeyError))"
    assert shop.see(told, kind=NotFound, ours=ApplicationError) == (True, True)
    assert shop.apply_safely(search) == "caught NotFound: 'nowhere'"
