"""What proxies of either side are made of: instances with a bond and a handle, whose operators
travel by name.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from membrane.dunders import AWAITED, FORWARDED
from membrane.errors import AccessRefused, ChildLost, RemoteError, UnsupportedUse
from membrane.frames import CALL, DELETE, GET, OPERATE, SET

if TYPE_CHECKING:
    from membrane.calls import CallOptions
    from membrane.descriptions import ClassDescription


class Bond(Protocol):
    """One side's end of a live link, as proxies use it."""

    def request(
        self,
        op: int,
        target: int,
        name: str,
        extra: object,
        values: Sequence[object],
        options: CallOptions | None = None,
    ) -> tuple[object, list[object]]:
        """Ask the other side; raise what it raised."""

    def call(self, target: int, name: str, values: Sequence[object]) -> object:
        """Call a function of the other side as `request` does, and give its result."""

    def may_read(self, name: str) -> bool:
        """Say whether a dunder attribute may be read from the other side's objects."""

    @property
    def decoding(self) -> bool:
        """Say whether this thread reads a frame just now, and so cannot ask the other side."""


REFUSED = f"{AccessRefused.__module__}.{AccessRefused.__qualname__}"


def refuse_copying(*_: object) -> object:
    """Raise UnsupportedUse: stands in for pickling and copying."""
    raise UnsupportedUse(
        "a proxy is neither pickled nor copied: its object lives behind the wall. "
        "Call a method that returns plain values, and pickle those"
    )


class ForwardingType(type):
    """The metaclass of all proxy classes: operators of the class itself travel too."""

    _membrane_described: ClassVar[bool] = False
    _membrane_description: ClassVar[ClassDescription | None] = None

    def membrane_class_bond(cls) -> tuple[Bond, int]:
        """Give the bond and the handle by which requests about the class itself travel."""
        raise UnsupportedUse(f"{cls.__qualname__} is not a class of the other side")


class Forwarding(metaclass=ForwardingType):
    """An object of the other side. Attributes that its class does not define travel one by one."""

    __slots__ = (
        "__weakref__",
        "_membrane_bond",
        "_membrane_facts",
        "_membrane_handle",
        "_membrane_shadowed",
    )

    # Nothing for libraries that look at the annotations of classes below this one.
    if TYPE_CHECKING:
        _membrane_bond: Bond
        _membrane_facts: tuple[str, bool] | int | None
        _membrane_handle: int
        _membrane_shadowed: set[str] | None

    def __getattr__(self, name: str) -> object:
        bond = bond_of(self)
        if bond is None or name.startswith("_membrane") or not _readable(bond, name):
            raise AttributeError(
                f"{type(self).__qualname__!r} object has no attribute {name!r}", name=name, obj=self
            )
        return bond.request(GET, self._membrane_handle, name, None, ())[1][0]

    def __setattr__(self, name: str, value: object) -> None:
        bond = bond_of(self)
        if bond is None:
            object.__setattr__(self, name, value)
            return
        bond.request(SET, self._membrane_handle, name, None, (value,))
        if any(name in vars(kind) for kind in type(self).__mro__):
            shadowed = self._membrane_shadowed or set()
            shadowed.add(name)
            object.__setattr__(self, "_membrane_shadowed", shadowed)

    def __delattr__(self, name: str) -> None:
        bond = bond_of(self)
        if bond is None:
            object.__delattr__(self, name)
            return
        bond.request(DELETE, self._membrane_handle, name, None, ())
        if self._membrane_shadowed:
            self._membrane_shadowed.discard(name)

    def __repr__(self) -> str:
        return _text_of(self, "__repr__")

    def __str__(self) -> str:
        return _text_of(self, "__str__")

    def __format__(self, specification: str) -> str:
        return cast("str", operate(self, "__format__", specification))

    def __dir__(self) -> list[str]:
        return cast("list[str]", operate(self, "__dir__"))

    def __reduce_ex__(self, _: object) -> str:
        if bond_of(self) is None:
            return cast("str", object.__reduce_ex__(self, 2))
        return cast("str", refuse_copying())

    def __copy__(self) -> object:
        return refuse_copying()

    def __deepcopy__(self, _: object) -> object:
        return refuse_copying()


# Nothing that is looked up in a proxy class is found here instead of on the other side.
type.__delattr__(Forwarding, "__slots__")

_bond_slot: Callable[[object], object] = Forwarding.__dict__["_membrane_bond"].__get__
_handle_slot: Callable[[object], int] = Forwarding.__dict__["_membrane_handle"].__get__


def bond_of(value: object) -> Bond | None:
    """Give the bond of a proxy; None for anything else, and for an own object of a class derived
    from a proxy class.
    """
    try:
        return cast("Bond", _bond_slot(value))
    except (AttributeError, TypeError):
        return None


def own_bond(value: object) -> Bond:
    """Give the bond of a proxy; raise UnsupportedUse for an object that is not of the other
    side.
    """
    bond = bond_of(value)
    if bond is None:
        raise UnsupportedUse("this object is not of the other side")
    return bond


def handle_of(value: object) -> int:
    """Give the handle of a proxy."""
    return _handle_slot(value)


def operate(value: Forwarding, name: str, *operands: object) -> object:
    """Apply the operator `name` of the other side's object."""
    bond = bond_of(value)
    if bond is None:
        # An own object of a class derived from one of the other side: its class answers for it.
        bond, handle = described_class(type(value), name).membrane_class_bond()
        return bond.request(CALL, handle, name, None, (value, *operands))[1][0]
    return bond.request(OPERATE, _handle_slot(value), name, None, operands)[1][0]


def described_class(kind: type, name: str) -> ForwardingType:
    """Give the nearest class of the other side that an own class derives from and that defines
    `name`.
    """
    for base in kind.__mro__:
        if isinstance(base, ForwardingType) and base._membrane_described and name in vars(base):
            return base
    raise AttributeError(f"type object {kind.__qualname__!r} has no attribute {name!r}")


@cache
def forwarder(name: str) -> Callable[..., object]:
    """Make the method that forwards one operator; raises ValueError for one that is not
    forwarded.
    """
    if name not in FORWARDED:
        raise ValueError(f"{name} is not forwarded")
    forward = _maker(name)(name)
    forward.__name__ = name
    forward.__qualname__ = f"Forwarding.{name}"
    return forward


def _maker(name: str) -> Callable[[str], Callable[..., object]]:
    if name in ("__exit__", "__aexit__"):
        return _leaving
    if name in AWAITED:
        return _awaiting
    return {
        "__call__": _calling,
        "__eq__": _comparing,
        "__hash__": _hashing,
        "__repr__": _telling,
        "__str__": _telling,
    }.get(name, _operating)


def _operating(name: str) -> Callable[..., object]:
    def forward(self: Forwarding, /, *operands: object) -> object:
        return operate(self, name, *operands)

    return forward


def _calling(name: str) -> Callable[..., object]:
    def forward(self: Forwarding, /, *args: object, **kwargs: object) -> object:
        bond = bond_of(self)
        values = (*args, *kwargs.values()) if kwargs else args
        names = list(kwargs) if kwargs else None
        if bond is None:
            bond, handle = described_class(type(self), name).membrane_class_bond()
            return bond.request(CALL, handle, name, names, (self, *values))[1][0]
        facts = self._membrane_facts
        if type(facts) is tuple and facts[1]:
            from membrane.awaiting import await_call

            return await_call(self, bond, _handle_slot(self), "", names or [], values)
        return bond.request(CALL, _handle_slot(self), "", names, values)[1][0]

    return forward


def _leaving(name: str) -> Callable[..., object]:
    def forward(self: Forwarding, /, *operands: object) -> object:
        from membrane.leaving import leave  # proxies of errors need this module first

        return leave(self, name, operands)

    return forward


def _awaiting(name: str) -> Callable[..., object]:
    def forward(self: Forwarding, /, *operands: object) -> object:
        from membrane.awaiting import await_operator

        return await_operator(self, name, operands)

    return forward


def _hashing(name: str) -> Callable[..., object]:
    def forward(self: Forwarding, /) -> object:
        if bond_of(self) is not None and type(self._membrane_facts) is int:
            return self._membrane_facts
        return operate(self, name)

    return forward


def _comparing(name: str) -> Callable[..., object]:
    def forward(self: Forwarding, /, other: object) -> object:
        bond = bond_of(self)
        if bond is not None and bond.decoding:
            # Two keys with one hash in a set or dict that comes in: they differ, or they were one.
            return NotImplemented
        return operate(self, name, other)

    return forward


def _telling(name: str) -> Callable[..., object]:
    def forward(self: Forwarding, /) -> object:
        return _text_of(self, name)

    return forward


@cache
def class_forwarder(name: str) -> Callable[..., object]:
    """Make the metaclass's method that forwards one operator of a class itself."""

    def forward(cls: ForwardingType, /, *operands: object) -> object:
        bond, handle = cls.membrane_class_bond()
        return bond.request(OPERATE, handle, name, None, operands)[1][0]

    forward.__name__ = name
    return forward


@cache
def metaclass_with(metaclass: type, names: frozenset[str]) -> type:
    """Give a metaclass that forwards these operators of its classes; pickling its classes is
    refused.

    Pickle would store a class by name and import its module right here, behind the wall's back.
    """
    made = metaclass
    if names:
        made = type(
            metaclass.__name__, (metaclass,), {name: class_forwarder(name) for name in names}
        )
    copyreg.pickle(made, refuse_copying)  # type: ignore[arg-type]
    return made


def _readable(bond: Bond, name: str) -> bool:
    return not name.startswith("__") or not name.endswith("__") or bond.may_read(name)


def _text_of(value: Forwarding, name: str) -> str:
    if bond_of(value) is None:
        return object.__repr__(value)
    try:
        return cast("str", operate(value, name))
    except (ChildLost, RemoteError) as fault:
        # Debuggers and logs print what is left of an object: they must not fail on it.
        if isinstance(fault, RemoteError) and fault.remote_type != REFUSED:
            raise
        state = "lost" if isinstance(fault, ChildLost) else "remote"
        return f"<{state} object of {type(value).__module__}.{type(value).__qualname__}>"
