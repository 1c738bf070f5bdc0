"""Mirrors: the caller's objects and classes as the child sees them. Classes are real types there,
objects answer from home.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, cast

from membrane.builtin_types import EXCEPTIONS
from membrane.class_building import build_class
from membrane.descriptions import ClassDescription
from membrane.errors import RemoteError
from membrane.forwarding import Bond, Forwarding, ForwardingType
from membrane.frames import CONSTRUCT, GET

if TYPE_CHECKING:
    from membrane.bonds import LinkBond


class MirrorType(ForwardingType):
    """The metaclass of mirrored classes: calling one asks the caller for an object of the class."""

    _membrane_class: tuple[LinkBond, int] | None

    def __call__(cls, *args: object, **kwargs: object) -> object:
        if not vars(cls).get("_membrane_described"):
            return super().__call__(*args, **kwargs)
        bond, handle = cls.membrane_class_bond()
        values = (*args, *kwargs.values())
        return bond.request(CONSTRUCT, handle, "", list(kwargs) or None, values)[1][0]

    def __getattr__(cls, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        bond, handle = cls.membrane_class_bond()
        return bond.request(GET, handle, name, None, ())[1][0]

    def __new__(
        metacls, name: str, bases: tuple[type, ...], namespace: dict[str, object], **kwargs: object
    ) -> MirrorType:
        # A class that the child derives is its own; only what was described is the caller's.
        namespace.setdefault("_membrane_described", False)
        return super().__new__(metacls, name, bases, namespace, **kwargs)

    def membrane_class_bond(cls) -> tuple[Bond, int]:
        """Give the bond and the handle by which requests about the class itself travel."""
        place = cls._membrane_class
        if place is None:
            raise AttributeError(f"{cls.__qualname__} is not a class of the caller")
        return place


class Mirror(Forwarding, metaclass=MirrorType):
    """An object of the caller, as the child sees it."""

    __slots__ = ()
    # Nothing for libraries that look at the annotations of classes below this one.
    if TYPE_CHECKING:
        _membrane_class: tuple[LinkBond, int] | None
    else:
        _membrane_class = None


type.__delattr__(Mirror, "__slots__")


def mirror_class(description: ClassDescription, bases: tuple[type, ...], *, bond: LinkBond) -> type:
    """Build the mirror of one of the caller's classes, with what libraries look at: annotations and
    dataclass fields.

    An exception class becomes a real exception, so that the child can catch what a callback raises
    by it.
    """
    extra: dict[str, object] = {"_membrane_class": (bond, description.handle)}
    if description.annotations:
        extra["__annotations__"] = dict(description.annotations)
    if description.fields:
        extra["__dataclass_fields__"] = _fields(description)
        extra["__match_args__"] = description.fields
    if description.exception is not None:
        return _error_class(description, bases, bond)
    return cast("type", build_class(description, bases, root=Mirror, extra=extra))


def _error_class(
    description: ClassDescription, bases: tuple[type, ...], bond: LinkBond
) -> type[RemoteError]:
    builtin = EXCEPTIONS[description.exception or "Exception"]
    below: tuple[type, ...] = tuple(base for base in bases if issubclass(base, RemoteError))
    if not below:
        below = (RemoteError,)
    if not any(issubclass(base, builtin) for base in below):
        below += (builtin,)
    made = cast(
        "type[RemoteError]",
        type(
            description.qualname.rpartition(".")[2],
            below,
            {
                "__module__": description.module,
                "__qualname__": description.qualname,
                "__doc__": description.doc,
            },
        ),
    )
    bond.error_classes[f"{description.module}.{description.qualname}"] = made
    return made


def _fields(description: ClassDescription) -> dict[str, object]:
    notes = dict(description.annotations)
    fields: dict[str, object] = {}
    for name in description.fields:
        field = dataclasses.field()
        field.name = name
        field.type = cast("type", notes.get(name, "object"))
        field._field_type = dataclasses._FIELD  # type: ignore[attr-defined]
        fields[name] = field
    return fields
