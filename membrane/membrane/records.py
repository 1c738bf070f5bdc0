"""Dataclasses and named tuples that cross by value, and what they become on the other side.

The other side does not have the class of the sender. It makes one of the same name and fields, with
nothing of the sender's code in it. What comes back is an object of the sender's own class again,
made without running any of its code.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from membrane.errors import ProtocolError

if TYPE_CHECKING:
    from membrane.descriptions import ClassDescription

NAMED, PLAIN, FROZEN = "named", "plain", "frozen"
FORMS = frozenset({NAMED, PLAIN, FROZEN})


@dataclass(frozen=True, slots=True)
class RecordClass:
    """Stands for the class of a record in a message."""

    kind: type


def form_of(kind: type) -> tuple[str, tuple[str, ...]] | None:
    """Say what kind of record a class is, and name its fields; None for what is none."""
    # Called for much that is none: in its own namespaces, since a proxy class would ask elsewhere.
    if not any(
        "__dataclass_fields__" in vars(base) or "_fields" in vars(base) for base in kind.__mro__
    ):
        return None
    heap = [base for base in kind.__mro__ if base is not object and base.__flags__ & (1 << 9)]
    others = {*kind.__mro__} - {*heap, object}
    if others == {tuple}:
        names = getattr(kind, "_fields", None)
        is_named = isinstance(names, tuple) and {str}.issuperset(map(type, names))
        return (NAMED, cast("tuple[str, ...]", names)) if is_named else None
    parameters = getattr(kind, "__dataclass_params__", None)
    if others or parameters is None or not dataclasses.is_dataclass(kind):
        return None
    form = FROZEN if parameters.frozen and parameters.eq else PLAIN
    return form, tuple(field.name for field in dataclasses.fields(kind))


def values_of(value: object) -> list[object]:
    """Give the values of a record's fields."""
    form = form_of(type(value))
    if form is None:
        raise TypeError(f"{type(value).__qualname__} is neither a dataclass nor a named tuple")
    if form[0] == NAMED:
        return list(tuple.__iter__(cast("tuple[object, ...]", value)))
    return [getattr(value, name) for name in form[1]]


def build(kind: object, values: object) -> object:
    """Make a record of its values, without calling anything of its class; raise ProtocolError."""
    if type(kind) is not RecordClass or not isinstance(values, list):
        raise ProtocolError("a record is a class and its values")
    form = form_of(kind.kind)
    if form is None or len(values) != len(form[1]):
        raise ProtocolError("a record has other fields than its class")
    if form[0] == NAMED:
        return tuple.__new__(cast("type[tuple[Any, ...]]", kind.kind), values)
    made: object = object.__new__(kind.kind)
    for name, value in zip(form[1], values, strict=True):
        object.__setattr__(made, name, value)
    return made


def local_class(description: ClassDescription) -> type:
    """Make the class of the records of a class that only the other side has."""
    if description.record is None:
        raise ProtocolError("a class that is no record came as one")
    form, names = description.record
    name = description.qualname.rpartition(".")[2]
    made: Any = (
        collections.namedtuple(name, names)
        if form == NAMED
        else dataclasses.make_dataclass(name, names, frozen=form == FROZEN)
    )
    made.__module__ = description.module
    made.__qualname__ = description.qualname
    made.__doc__ = description.doc
    return cast("type", made)


def are_fields(form: object, names: Sequence[object]) -> bool:
    """Say whether a description of a record is one."""
    return form in FORMS and len({*names}) == len(names)
