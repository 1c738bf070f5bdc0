"""Members of proxy classes: methods that travel in one round trip, and attributes."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from membrane.awaiting import await_call
from membrane.calls import CallOptions
from membrane.errors import UnsupportedUse
from membrane.forwarding import (
    Bond,
    Forwarding,
    ForwardingType,
    bond_of,
    described_class,
    handle_of,
    own_bond,
)
from membrane.frames import CALL, CALL_BATCH, DELETE, GET, SET
from membrane.outcomes import Outcomes
from membrane.policies import checked_policy
from membrane.remote_batches import outcomes_of

if TYPE_CHECKING:
    from inspect import Signature

NO_OPTIONS = CallOptions()
_NO_KEYWORDS: dict[str, object] = {}


class RemoteMethod:
    """A method, or a function of a class, of the other side. Calling it is one round trip.

    Other attributes of it (`__doc__`, `__wrapped__`) are read from the other side.
    """

    __slots__ = ("__name__", "__self__", "_coroutine", "_is_short", "_options")

    def __init__(
        self,
        owner: Forwarding | ForwardingType,
        name: str,
        coroutine: bool = False,
        options: CallOptions | None = None,
    ) -> None:
        self.__self__ = owner
        self.__name__ = name
        self._coroutine = coroutine
        self._options = options
        self._is_short = not coroutine and options is None and not isinstance(owner, type)

    def __call__(self, /, *args: object, **kwargs: object) -> object:
        if self._is_short and not kwargs:
            owner = cast("Forwarding", self.__self__)
            return owner._membrane_bond.call(owner._membrane_handle, self.__name__, args)
        bond, handle = _place_of(self.__self__)
        names: list[str] | None = None
        if kwargs:
            names = list(kwargs)
            args = (*args, *kwargs.values())
        if self._coroutine:
            return await_call(
                self.__self__, bond, handle, self.__name__, names, args, self._options
            )
        return bond.request(CALL, handle, self.__name__, names, args, self._options)[1][0]

    def batch(
        self, calls: Iterable[tuple[Sequence[object], dict[str, object]]], *, on_error: str = "stop"
    ) -> Outcomes:
        """Make many calls in one round trip: `calls` are pairs (args, kwargs), in order.

        `on_error` "stop" ends at the first error, "continue" runs all; either way every finished
        item keeps its result. Raises ValueError or TypeError for calls that are no pairs, before
        anything travels.
        """
        bond, handle = _place_of(self.__self__)
        return batch(bond, handle, self.__name__, calls, on_error, self._options)

    def with_options(
        self,
        *,
        policy: str | None = None,
        returns: str | None = None,
        deadline: float | None = None,
        views: bool | None = None,
    ) -> RemoteMethod:
        """Give the same method with other options of its calls.

        `policy` is that of arguments and `returns` that of results, "value" or "reference";
        `deadline` is in seconds; `views` asks for read-only views of large results instead of
        copies, from a trusted child only.
        """
        options = changed_options(self._options, policy, returns, deadline, views)
        bond, _ = _place_of(self.__self__)
        if options.views and not getattr(bond, "trusted", True):
            raise UnsupportedUse(
                "views need a child that is declared trusted: isolate(trusted=True)"
            )
        return RemoteMethod(self.__self__, self.__name__, self._coroutine, options)

    @property
    def __signature__(self) -> Signature:
        bond, handle = _place_of(self.__self__)
        signature = described(bond, handle, self.__name__)[1]
        if signature is None:
            raise AttributeError("__signature__")
        return signature

    def __getattr__(self, name: str) -> object:
        if name in ("__wrapped__", "__signature__", "__objclass__", "__isabstractmethod__"):
            # inspect believes these; a hostile child must not lead it in circles.
            raise AttributeError(name)
        if name == "__qualname__":
            owner = self.__self__
            kind = owner if isinstance(owner, type) else type(owner)
            return f"{kind.__qualname__}.{self.__name__}"
        bond, handle = _place_of(self.__self__)
        method = bond.request(GET, handle, self.__name__, None, ())[1][0]
        return getattr(method, name)

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        bond, handle = _place_of(self.__self__)
        try:
            return described(bond, handle, self.__name__)[0]
        except AttributeError:
            return cast("str | None", self.__getattr__("__doc__"))

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is RemoteMethod
            and other.__self__ is self.__self__
            and other.__name__ == self.__name__
        )

    def __hash__(self) -> int:
        return hash((id(self.__self__), self.__name__))

    def __repr__(self) -> str:
        return f"<remote method {self.__qualname__}>"

    def __reduce_ex__(self, _: object) -> str:
        raise UnsupportedUse("a method of a proxy is not pickled: its object lives behind the wall")


class MethodMember:
    """A method in a proxy class's namespace: gives a `RemoteMethod` of whatever it is read from."""

    __slots__ = ("coroutine", "name")

    def __init__(self, *, name: str, coroutine: bool) -> None:
        self.name = name
        self.coroutine = coroutine

    def __get__(self, owner: Forwarding | None, kind: ForwardingType) -> object:
        if owner is None:
            return RemoteMethod(kind, self.name, self.coroutine)
        try:
            shadowed = owner._membrane_shadowed
        except AttributeError:
            remote = described_class(type(owner), self.name)
            return functools.partial(RemoteMethod(remote, self.name, self.coroutine), owner)
        if shadowed and self.name in shadowed:
            return owner.__getattr__(self.name)
        return RemoteMethod(owner, self.name, self.coroutine)


class AttributeMember:
    """A property or a constant in a proxy class's namespace: every use of it travels."""

    __slots__ = ("name",)

    def __init__(self, *, name: str) -> None:
        self.name = name

    def __get__(self, owner: Forwarding | None, kind: ForwardingType) -> object:
        if owner is None or bond_of(owner) is None:
            remote = kind if kind._membrane_described else described_class(kind, self.name)
            bond, handle = remote.membrane_class_bond()
        else:
            bond, handle = _place_of(owner)
        return bond.request(GET, handle, self.name, None, ())[1][0]

    def __set__(self, owner: Forwarding, value: object) -> None:
        bond, handle = _place_of(owner)
        bond.request(SET, handle, self.name, None, (value,))

    def __delete__(self, owner: Forwarding) -> None:
        bond, handle = _place_of(owner)
        bond.request(DELETE, handle, self.name, None, ())


def described(bond: Bond, handle: int, name: str) -> tuple[str | None, Signature | None]:
    """Give docstring and signature of a callable of the other side; raise AttributeError where it
    does not tell them.
    """
    tell = getattr(bond, "described", None)
    if tell is None:
        raise AttributeError("__signature__")
    return cast("tuple[str | None, Signature | None]", tell(handle, name))


def batch(
    bond: Bond,
    handle: int,
    name: str,
    calls: Iterable[tuple[Sequence[object], dict[str, object]]],
    on_error: str,
    options: CallOptions | None = None,
) -> Outcomes:
    """Make a batch of calls of one function of the other side."""
    if on_error not in ("stop", "continue"):
        raise ValueError(f'on_error is "stop" or "continue", not {on_error!r}')
    shape, values, count = _flat(list(calls))
    if not count:
        return Outcomes(results=[])
    extra = [count, int(on_error == "stop"), shape]
    return outcomes_of(bond, count, *bond.request(CALL_BATCH, handle, name, extra, values, options))


def changed_options(
    options: CallOptions | None,
    policy: str | None,
    returns: str | None,
    deadline: float | None,
    views: bool | None,
) -> CallOptions:
    """Lay a call's wishes over earlier ones; raise ValueError or TypeError for what is none."""
    changed = options or NO_OPTIONS
    if policy is not None:
        changed = replace(changed, policy=checked_policy(policy))
    if returns is not None:
        changed = replace(changed, returns=checked_policy(returns, name="returns"))
    if deadline is not None:
        changed = replace(changed, deadline=checked_seconds(deadline, name="deadline"))
    if views is not None:
        if type(views) is not bool:
            raise TypeError(f"views is True or False, not {views!r}")
        changed = replace(changed, views=views)
    return changed


def checked_seconds(value: object, *, name: str, zero: bool = False) -> float:
    """Give a duration back as a float; raise TypeError or ValueError unless it is finite and above
    zero.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number of seconds, not {value!r}")
    if not (value >= 0 if zero else value > 0) or value == float("inf"):
        raise ValueError(
            f"{name} is finite and {'not negative' if zero else 'above 0'}, not {value}"
        )
    return float(value)


def _flat(
    calls: list[tuple[Sequence[object], dict[str, object]]],
) -> tuple[object, list[object], int]:
    """Lay the arguments of all calls out in one list; the shape says whose is what."""
    if not calls:
        return 0, [], 0
    wrong = "a batch is a sequence of pairs (args, kwargs): a tuple or list and a dict"
    try:
        # A loop: `zip` makes an iterator of each pair, which takes twice as long.
        many_args = [args for args, kwargs in calls if kwargs == _NO_KEYWORDS]
        is_positional = len(many_args) == len(calls)
        if not is_positional:
            many_args = [args for args, _ in calls]
    except (TypeError, ValueError):
        raise TypeError(wrong) from None
    # Counting equals looks at no types, which takes three times as long.
    if is_positional and many_args.count(()) == len(calls):
        return 0, [], len(calls)
    if not {tuple, list}.issuperset(map(type, many_args)):
        raise TypeError(wrong)
    if is_positional and len(many_args[0]) == 1:
        with contextlib.suppress(ValueError):
            return 1, [value for (value,) in many_args], len(calls)
    if is_positional and len(lengths := set(map(len, many_args))) == 1:
        return lengths.pop(), list(itertools.chain.from_iterable(many_args)), len(calls)
    if not {dict}.issuperset(type(kwargs) for _, kwargs in calls):
        raise TypeError(wrong)
    shape: list[object] = []
    values: list[object] = []
    for args, kwargs in calls:
        if not all(type(key) is str for key in kwargs):
            raise TypeError("the keywords of a call are strings")
        shape.append([len(args), list(kwargs) or None])
        values += args
        values += kwargs.values()
    return shape, values, len(calls)


def _place_of(owner: Forwarding | ForwardingType) -> tuple[Bond, int]:
    if isinstance(owner, ForwardingType):
        return owner.membrane_class_bond()
    return own_bond(owner), handle_of(owner)
