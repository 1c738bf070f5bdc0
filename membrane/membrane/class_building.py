"""Building a proxy class from a description: the same for both sides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import cast

from membrane.calls import CallOptions
from membrane.descriptions import ClassDescription
from membrane.forwarding import (
    Forwarding,
    ForwardingType,
    bond_of,
    forwarder,
    handle_of,
    metaclass_with,
    own_bond,
)
from membrane.frames import CALL
from membrane.methods import AttributeMember, MethodMember, batch, changed_options, described
from membrane.outcomes import Outcomes


def build_class(
    description: ClassDescription,
    bases: tuple[type, ...],
    *,
    root: type[Forwarding],
    extra: dict[str, object],
) -> ForwardingType:
    """Make the proxy class of a description, below the proxy classes of its bases, at least below
    `root`.

    Raises TypeError for bases that cannot be combined.
    """
    below = tuple(base for base in bases if issubclass(base, root)) or (root,)
    namespace: dict[str, object] = {
        "__slots__": (),
        "__module__": description.module,
        "__qualname__": description.qualname,
        "__doc__": description.doc,
        "_membrane_described": True,
        "_membrane_description": description,
    }
    if "__call__" in description.dunders:
        namespace.update(batch=call_batch, with_options=call_with_options, __name__=CALLED_NAME)
        namespace["__doc__"] = _CalledDoc(doc=description.doc)
        namespace["__signature__"] = CALLED_SIGNATURE
    for name in description.dunders:
        namespace[name] = forwarder(name)
    for name in description.absent:
        namespace[name] = None
    for name in description.methods:
        namespace[name] = MethodMember(name=name, coroutine=name in description.coroutines)
    for name in description.attributes:
        namespace[name] = AttributeMember(name=name)
    namespace.update(extra)
    kinds = list(dict.fromkeys(type(base) for base in below))
    rooted = kinds[0] if len(kinds) == 1 else _joined(tuple(kinds))
    metaclass = metaclass_with(rooted, description.class_dunders)
    made = metaclass(description.qualname.rpartition(".")[2], below, namespace)
    # It has done its work: who asks for `__slots__` is told what the class itself says.
    type.__delattr__(made, "__slots__")
    if description.slots is not None:
        type.__setattr__(made, "__slots__", description.slots)
    return cast("ForwardingType", made)


@cache
def _joined(kinds: tuple[type, ...]) -> type:
    return type("JoinedType", kinds, {})


def call_batch(
    self: Forwarding,
    calls: Iterable[tuple[Sequence[object], dict[str, object]]],
    *,
    on_error: str = "stop",
) -> Outcomes:
    """Call this function of the other side for each pair (args, kwargs), in one round trip; see
    `RemoteMethod.batch`.
    """
    return batch(own_bond(self), handle_of(self), "", calls, on_error)


class RemoteCall:
    """A callable of the other side with options of its own."""

    __slots__ = ("_options", "_target")

    def __init__(self, *, target: Forwarding, options: CallOptions) -> None:
        self._target = target
        self._options = options

    def __call__(self, /, *args: object, **kwargs: object) -> object:
        bond = own_bond(self._target)
        values = (*args, *kwargs.values())
        names = list(kwargs) or None
        return bond.request(CALL, handle_of(self._target), "", names, values, self._options)[1][0]


def call_with_options(
    self: Forwarding,
    *,
    policy: str | None = None,
    returns: str | None = None,
    deadline: float | None = None,
    views: bool | None = None,
) -> RemoteCall:
    """Give this function of the other side with options of its calls; see
    `RemoteMethod.with_options`.
    """
    options = changed_options(None, policy, returns, deadline, views)
    return RemoteCall(target=self, options=options)


class _CalledName:
    """`__name__` of a callable: told with its handle, read from the other side where it was not."""

    def __get__(self, owner: Forwarding | None, kind: type) -> object:
        if owner is None:
            return self
        facts = owner._membrane_facts
        return facts[0] if isinstance(facts, tuple) else owner.__getattr__("__name__")


class _CalledDoc:
    """`__doc__` of a callable, which its class's is not."""

    __slots__ = ("_doc",)

    def __init__(self, *, doc: str | None) -> None:
        self._doc = doc

    def __get__(self, owner: Forwarding | None, kind: type) -> object:
        if owner is None:
            return self._doc
        try:
            return described(own_bond(owner), handle_of(owner), "")[0]
        except AttributeError:
            return owner.__getattr__("__doc__")


class _CalledSignature:
    """`__signature__` of a callable, told where it is asked for."""

    def __get__(self, owner: Forwarding | None, kind: type) -> object:
        if owner is not None and (bond := bond_of(owner)) is not None:
            signature = described(bond, handle_of(owner), "")[1]
            if signature is not None:
                return signature
        raise AttributeError("__signature__")


CALLED_SIGNATURE = _CalledSignature()
CALLED_NAME = _CalledName()
