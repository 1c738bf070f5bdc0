"""What stubs are made of: types of the methods of proxies, for editors and type checkers only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from membrane.outcomes import Outcomes

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Method(Protocol[P, R_co]):
    """A method of a proxy: called, called many times in one round trip, or with other options."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def batch(
        self, calls: Iterable[tuple[Sequence[Any], dict[str, Any]]], *, on_error: str = "stop"
    ) -> Outcomes:
        """Make many calls in one round trip: `calls` are pairs (args, kwargs)."""
        ...

    def with_options(
        self,
        *,
        policy: str | None = None,
        returns: str | None = None,
        deadline: float | None = None,
        views: bool | None = None,
    ) -> Method[P, R_co]:
        """Give the same method with other options of its calls."""
        ...


class _Bound(Generic[P, R]):
    """A method that binds its object, and not its class."""

    def __init__(self, function: Callable[Concatenate[Any, P], R]) -> None:
        self.__doc__ = function.__doc__
        self._function = function

    @overload
    def __get__(self, owner: None, kind: type) -> Callable[Concatenate[Any, P], R]: ...
    @overload
    def __get__(self, owner: object, kind: type) -> Method[P, R]: ...
    def __get__(self, owner: object, kind: type) -> Callable[Concatenate[Any, P], R] | Method[P, R]:
        return self._function if owner is None else cast("Method[P, R]", self._function)


class _Free(Generic[P, R]):
    """A method that is the same of objects and of their class."""

    def __init__(self, function: Callable[P, R]) -> None:
        self.__doc__ = function.__doc__
        self._function = function

    def __get__(self, owner: object, kind: type) -> Method[P, R]:
        return cast("Method[P, R]", self._function)


def method(function: Callable[Concatenate[Any, P], R]) -> _Bound[P, R]:
    """Type a method."""
    return _Bound(function)


def class_method(function: Callable[Concatenate[Any, P], R]) -> _Free[P, R]:
    """Type a classmethod, which is written with its class as first parameter."""
    return _Free(cast("Callable[P, R]", function))


def static_method(function: Callable[P, R]) -> _Free[P, R]:
    """Type a staticmethod."""
    return _Free(function)
