"""What a hostile child may have the caller's process allocate by using the caller's objects.

Only operations that are written in C are bounded here, those of built-in containers above all:
what is written in Python is the caller's code. A result is bounded before it is computed; growth
is counted over the whole session.
"""

from __future__ import annotations

import functools
import io
import sys
import threading
import types
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast

from membrane.errors import GrowthRefused
from membrane.frames import MOST_SHARED
from membrane.records import form_of

if TYPE_CHECKING:
    from membrane.exports import Exports

MOST_GROWN: Final = 64 << 20
"""Bytes that the requests of one child may add to the caller's objects while it holds these."""

MOST_RESULT: Final = 64 << 20
"""Bytes of a result that a short request computes: repetition, padding, powers, replacement."""

MOST_COPIED: Final = MOST_SHARED
"""Bytes of a copy, and of all results of one batch."""

MOST_ITEMS: Final = 1 << 20
"""Items that are taken from an iterator, which may have no end."""

_PARKED: Final = 4096
"""Objects that the child has let go of whose growth is remembered, should it get them again."""

_ITERATING: Final = frozenset(
    {"extend", "extendleft", "update", "writelines", "join", "fromkeys", "fromlist"}
    | {"union", "intersection", "difference", "symmetric_difference"}
    | {"intersection_update", "difference_update", "symmetric_difference_update"}
    | {"isdisjoint", "issubset", "issuperset", "__iadd__", "__ior__"}
)
"""Names whose arguments are iterated."""

_GROWING: Final = frozenset(
    {"append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault"}
    | {"symmetric_difference_update", "__setitem__", "__iadd__", "__ior__", "__ixor__"}
    | {"write", "writelines", "fromlist", "frombytes", "fromunicode", "put", "put_nowait"}
)
"""Names that add their arguments to their object."""

_COPYING: Final = frozenset(
    {
        "copy",
        "__copy__",
        "__add__",
        "__or__",
        "__ror__",
        "__and__",
        "__xor__",
        "__sub__",
        "__rsub__",
    }
    | {"union", "intersection", "difference", "symmetric_difference", "tolist", "tobytes"}
    | {"hex", "decode", "encode", "getvalue", "read", "upper", "lower", "translate"}
)

_REFUSED: Final = frozenset({"format", "format_map", "__mod__", "__rmod__"})
"""Names whose results say nothing of their size before they are there."""

_TEXTS: Final = (str, bytes, bytearray)
_BUFFERS: Final = (bytes, bytearray, memoryview)
_ATOMS: Final = frozenset({int, float, complex, bool, str, bytes, bytearray, type(None)})
_MUTABLE: Final = (list, set, dict, deque)
_WEIGHED: Final = (*_MUTABLE, bytearray, io.BytesIO, io.StringIO)
_BUILT: Final = (list, tuple, set, frozenset, dict, deque, bytes, bytearray, array)
_LONGEST_FORMAT: Final = 256
_IN_C: Final = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.BuiltinFunctionType,
)
_BOUND: Final = (types.BuiltinMethodType, types.MethodWrapperType)


class Growth:
    """Bound what one child does to the caller's objects; safe from any thread."""

    def __init__(self, *, exports: Exports) -> None:
        self._exports = exports
        self._grown: dict[int, int] = {}
        self._parked: dict[int, int] = {}
        self._total = 0
        # Re-entrant: what is collected under it may be a proxy.
        self._lock = threading.RLock()

    def bounded(
        self, operand: object, name: str, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Give a function that does the same within bounds: `function` is the method `name` of
        `operand`, or `operand` itself where there is no name.
        """
        found = _in_c(operand, name)
        if found is None:
            return function
        target, word = found

        def run(*args: object, **kwargs: object) -> object:
            admitted, named = self._admit(target, word, args, kwargs)
            return function(*admitted, **named)

        return run

    def operands(self, operand: object, name: str, values: Sequence[object]) -> Sequence[object]:
        """Give the operands of an operator within bounds."""
        found = _in_c(operand, name)
        return values if found is None else self._admit(operand, name, tuple(values), {})[0]

    def construct(self, kind: type, args: Sequence[Any], kwargs: dict[str, Any]) -> object:
        """Construct an object of a class of the caller; what it is made of counts as long as the
        child holds it.
        """
        base = next((each for each in kind.__mro__ if each in _BUILT), None)
        if base is not None and _is_in_c(kind, "__init__") and _is_in_c(kind, "__new__"):
            args = [self._part(base, each) for each in args]
        weight = self._weigh(kind, "construct", (*args, *kwargs.values()))
        with self._lock:
            if self._total + weight > MOST_GROWN:
                self._recount(0, None)
            if self._total + weight > MOST_GROWN:
                raise self._refusal(kind, "construct")
        made: object = kind(*args, **kwargs)
        if type(made) is kind:
            self._charge(made, "construct", weight)
        return made

    def _part(self, base: type, value: object) -> object:
        """Give what an object that is written in C is made of as something of a known size."""
        if type(value) is int and base in (bytes, bytearray) and value > MOST_RESULT:
            raise self._refusal(base, "construct")
        if type(value) in _ATOMS or not hasattr(value, "__iter__"):
            return value
        return self._listed([] if base is array else base(), "construct", value)

    def _admit(
        self, target: object, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if name == "sort" and (key := kwargs.get("key")) is not None:
            kwargs = {**kwargs, "key": self.bounded(key, "", key)}
        expected = result_bytes(target, name, args)
        is_slice = name == "__setitem__" and bool(args) and type(args[0]) is slice
        if is_slice:
            args = (args[0], *(self._listed(target, name, each) for each in args[1:]))
        elif name == "fromkeys":
            args = (*(self._listed(target, name, each) for each in args[:1]), *args[1:])
        elif name in _ITERATING:
            args = tuple(self._listed(target, name, each) for each in args)
        if name == "join" and isinstance(target, _TEXTS):
            expected = sys.getsizeof(target) * len(args[0]) + self._weigh(target, name, args)
        most = MOST_COPIED if name in _COPYING or name == "__getitem__" else MOST_RESULT
        if expected > most:
            raise GrowthRefused(operation=name, kind=type(target).__name__, limit=most)
        if name in _GROWING:
            added = args[1:] if is_slice else args
            if is_slice or name in _ITERATING:
                added = tuple(chain.from_iterable(map(_items, added)))
            weight = 8 * len(added) + self._weigh(target, name, (*added, *kwargs.values()))
            if isinstance(target, (set, dict)):
                weight *= 2
            if isinstance(target, (io.BytesIO, io.StringIO)):
                # What lies between its end and where it writes is filled with zeros.
                weight += max(0, target.tell() - sys.getsizeof(target))
            self._charge(target, name, weight)
        return args, kwargs

    def _listed(self, target: object, name: str, iterable: Any) -> object:
        """Give what an operation is to iterate as something whose size is known."""
        kind = type(iterable)
        if kind in (list, tuple, set, frozenset, dict):
            return iterable
        if kind in _BUFFERS:
            spread = 1 if isinstance(target, _BUFFERS) else 8
            if len(iterable) * spread > MOST_RESULT:
                raise self._refusal(target, name)
            return iterable
        if isinstance(target, dict) and hasattr(iterable, "keys"):
            keys = cast("list[Any]", self._taken(target, name, iterable.keys()))
            return self._taken(target, name, ((key, iterable[key]) for key in keys))
        return self._taken(target, name, iterable)

    def _taken(self, target: object, name: str, iterable: Iterable[object]) -> list[object]:
        items: list[object] = []
        size = 0
        for item in iterable:
            known = type(item) in _ATOMS
            size += 8 + (sys.getsizeof(item) if known else self._weigh(target, name, (item,)))
            if size > MOST_GROWN or len(items) >= MOST_ITEMS:
                raise self._refusal(target, name)
            items.append(item)
        return items

    def _weigh(self, target: object, name: str, values: Iterable[object]) -> int:
        size = weigh(values, MOST_GROWN, self._exports.is_granted)
        if size > MOST_GROWN:
            raise self._refusal(target, name)
        return size

    def _charge(self, target: object, name: str, weight: int) -> None:
        key = id(target)
        with self._lock:
            if key not in self._grown:
                self._grown[key] = parked = self._parked.pop(key, 0)
                self._total += parked
            if self._total + weight > MOST_GROWN:
                self._recount(key, target)
            if self._total + weight > MOST_GROWN:
                raise self._refusal(target, name)
            self._grown[key] += weight
            self._total += weight

    def _recount(self, key: int, target: object) -> None:
        """Give back what has been taken out of objects again, by whoever."""
        for each, charged in list(self._grown.items()):
            held = target if each == key else self._exports.of_identity(each)
            if held is not None:
                if isinstance(held, _WEIGHED):
                    self._grown[each] = min(charged, weigh((held,), charged))
                continue
            del self._grown[each]
            self._parked[each] = charged
            if len(self._parked) > _PARKED:
                self._parked.pop(next(iter(self._parked)))
        self._total = sum(self._grown.values())

    def _refusal(self, target: object, name: str) -> GrowthRefused:
        return GrowthRefused(operation=name, kind=type(target).__name__, limit=MOST_GROWN)


class Meter:
    """Count what the results of one request weigh together."""

    def __init__(self) -> None:
        self._left = MOST_COPIED

    def metered(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Give a function whose results are counted; raises GrowthRefused when they are too many
        to be held at one time.
        """

        def run(*args: object, **kwargs: object) -> object:
            if self._left < 0:
                raise GrowthRefused(operation="batch", kind="callable", limit=MOST_COPIED)
            result = function(*args, **kwargs)
            self.count(result)
            return result

        return run

    def count(self, result: object) -> None:
        """Count a result; raises GrowthRefused."""
        self._left -= weigh((result,), self._left)
        if self._left < 0:
            raise GrowthRefused(operation="batch", kind="callable", limit=MOST_COPIED)


def weigh(
    values: Iterable[object], most: int, is_held: Callable[[object], bool] = lambda _: False
) -> int:
    """Return how many bytes values take, at least; counting ends beyond `most`.

    What cannot change counts as often as it is there, since it is sent as often. What can change
    counts once, and not at all where `is_held` says that the other side has it by handle.
    """
    total = 0
    seen: set[int] = set()
    waiting = list(values)
    if _ATOMS.issuperset(map(type, waiting)):
        return sum(map(sys.getsizeof, waiting))
    while waiting and total <= most:
        value = waiting.pop()
        kind = type(value)
        if kind in _ATOMS:
            total += sys.getsizeof(value)
            continue
        if isinstance(value, memoryview) or kind.__module__ == "numpy":
            total += 100 + cast("int", getattr(value, "nbytes", 0))
            continue
        items: list[object]
        if isinstance(value, dict):
            items = [*dict.keys(value), *dict.values(value)]
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            base = next(
                each for each in (list, tuple, set, frozenset, deque) if isinstance(value, each)
            )
            items = list(base.__iter__(value))  # type: ignore[arg-type]
        elif (form := form_of(kind)) is not None:
            items = [getattr(value, name, None) for name in form[1]]
        else:
            total += max(200, sys.getsizeof(value))
            continue
        if isinstance(value, _MUTABLE):
            total += 8
            if id(value) in seen or is_held(value):
                continue
            seen.add(id(value))
        total += 56 + 8 * len(items)
        if _ATOMS.issuperset(map(type, items)):
            total += sum(map(sys.getsizeof, items))
        else:
            waiting += items
    return total


def result_bytes(operand: Any, name: str, args: tuple[Any, ...]) -> int:
    """Say about how many bytes the result of an operation takes, before it is computed; 0 for one
    that grows with nothing. Raises GrowthRefused and TypeError.
    """
    size = sys.getsizeof(operand)
    first: Any = args[0] if args else None
    if name in ("__mul__", "__rmul__", "__imul__"):
        return 2 * size if isinstance(operand, int) else size * max(0, _count(first))
    if isinstance(operand, int):
        return _integer_bytes(operand, name, args)
    if name == "__format__":
        # Also of dates and the like: a width is what makes it long.
        too_wide = any(len(digits) > 4 for digits in _digits(str(first)))
        return MOST_RESULT + 1 if too_wide or len(str(first)) > _LONGEST_FORMAT else 0
    if isinstance(operand, _TEXTS):
        if name in _REFUSED or (name == "translate" and isinstance(operand, str)):
            return MOST_RESULT + 1
        if name in ("zfill", "ljust", "rjust", "center"):
            return size + 4 * max(0, _count(first))
        if name == "expandtabs":
            return size * max(8, _count(first) if args else 8)
        if name == "replace" and len(args) > 1:
            return size + 4 * (operand.count(first) + 1) * (len(args[1]) + 1)
        if name in ("split", "rsplit", "splitlines"):
            return 60 * (len(operand) // 2 if first is None else operand.count(first) + 1)
    if name == "__getitem__":
        if type(first) is not slice or not hasattr(operand, "__len__"):
            return 0
        taken = len(range(*first.indices(len(operand))))
        return taken * (1 if isinstance(operand, _TEXTS) else 8)
    if name in _COPYING:
        return size + sum(sys.getsizeof(each) for each in args)
    return 0


def _integer_bytes(operand: int, name: str, args: tuple[Any, ...]) -> int:
    bits = operand.bit_length()
    first: Any = args[0] if args else None
    if name == "__format__":
        return result_bytes(0.0, name, args) or bits // 2
    if name in ("__pow__", "__ipow__") and len(args) == 1 and isinstance(first, int):
        return bits * max(0, first) // 8
    if name == "__rpow__" and len(args) == 1 and isinstance(first, int):
        return first.bit_length() * max(0, operand) // 8
    if name in ("__lshift__", "__ilshift__") and isinstance(first, int):
        return (bits + max(0, first)) // 8
    if name == "__rlshift__" and isinstance(first, int):
        return (first.bit_length() + max(0, operand)) // 8
    if name == "__round__" and args:
        return abs(_count(first))
    return _count(first) if name == "to_bytes" and args else 0


def _items(value: Any) -> Iterable[object]:
    """Give what an operation takes out of something that it iterates."""
    if isinstance(value, dict):
        return chain(dict.keys(value), dict.values(value))
    return (value,) if isinstance(value, _BUFFERS) else cast("Iterable[object]", value)


def _digits(text: str) -> list[str]:
    return "".join(each if each.isdigit() else " " for each in text[: _LONGEST_FORMAT + 1]).split()


def _count(value: object) -> int:
    # A child's object may give another number each time that it is asked.
    if type(value) is not int:
        raise TypeError("a count is an int")
    return value


def _is_in_c(kind: type, name: str) -> bool:
    """Say whether a class has a method that is written in C."""
    owner = next(base for base in kind.__mro__ if name in vars(base))
    return isinstance(vars(owner)[name], _IN_C)


def _in_c(operand: object, name: str) -> tuple[object, str] | None:
    """Say whose method it is, and its name, where it is written in C; None for Python code."""
    if not name:
        while type(operand) is functools.partial:
            operand = operand.func
        if isinstance(operand, _BOUND) and not isinstance(
            operand.__self__, (types.ModuleType, type(None))
        ):
            return operand.__self__, operand.__name__
        return None
    for kind in type(operand).__mro__:
        if name in vars(kind):
            return (operand, name) if isinstance(vars(kind)[name], _IN_C) else None
    return None
