"""Proxy classes of the caller: what `isolate` returns, and the classes of whatever else the child
gives.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, cast

from membrane.class_building import build_class
from membrane.descriptions import ClassDescription
from membrane.errors import ProtocolError, UnsupportedUse
from membrane.forwarding import Bond, Forwarding, ForwardingType, bond_of, handle_of
from membrane.frames import CONSTRUCT, DELETE, GET, LOAD, SET
from membrane.leaks import LeakWatch
from membrane.methods import described
from membrane.policies import Policies

if TYPE_CHECKING:
    from inspect import Signature

    from membrane.host import HostBond
    from membrane.session import Session


MOST_METACLASSES = 64
"""Sets of operators that classes of a session may have themselves: each is kept for good, since
pickle looks the metaclass up in a table of the whole process.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Membrane:
    """Say where a proxy's object lives, and on what terms; `pid` is of the child that lives now."""

    target: str
    isolation: str
    pid: int
    share_key: str | None
    tenant: str
    trusted: bool
    policy: str


class ProxyClasses:
    """The proxy classes of one session, by module and name; they outlive its children."""

    def __init__(self, *, policies: Policies, trusted: bool, expose: frozenset[str]) -> None:
        self.policies = policies
        self.trusted = trusted
        self.expose = expose
        self.watch = LeakWatch()
        self.session: Session
        self._by_name: dict[tuple[str, str], RemoteType] = {}
        self._metaclasses: set[frozenset[str]] = set()
        self._uses: dict[RemoteType, int] = {}
        # Re-entrant: what is collected under it may use a proxy, whose answer brings a class.
        self._lock = threading.RLock()

    def bond(self) -> HostBond:
        """Give the bond of the living child; starts one where there is none."""
        return cast("HostBond", self.session.link().fittings)

    def load(self, target: str) -> RemoteType:
        """Have the child import a class, and give its proxy class."""
        return self.bond().load(target)

    def use(self, kind: RemoteType) -> None:
        """Count one `isolate` of a class."""
        with self._lock:
            self._uses[kind] = self._uses.get(kind, 0) + 1

    def unuse(self, kind: RemoteType) -> bool:
        """Count one `close` of a class; False where it has been closed as often as isolated."""
        with self._lock:
            left = self._uses.pop(kind, 0) - 1
            if left > 0:
                self._uses[kind] = left
            return left >= 0

    def class_for(
        self, description: ClassDescription, bases: tuple[type, ...], bond: HostBond
    ) -> RemoteType:
        """Give the proxy class of a description: the one of an earlier child where it still
        fits.
        """
        name = (description.module, description.qualname)
        with self._lock:
            known = self._by_name.get(name)
            if (
                known is not None
                and "<locals>" not in description.qualname
                and bond.marshal.class_handle(known) is None
                and known._membrane_description is not None
                and known._membrane_description.shape == description.shape
                and known.__bases__ == (bases or known.__bases__)
            ):
                return known
            if description.class_dunders:
                self._metaclasses.add(description.class_dunders)
                if len(self._metaclasses) > MOST_METACLASSES:
                    raise ProtocolError("the child described too many kinds of metaclasses")
            extra: dict[str, object] = {"_membrane_classes": self}
            if "close" not in description.methods | description.attributes:
                extra["close"] = close_instance
            made = build_class(description, bases, root=RemoteObject, extra=extra)
            self._by_name[name] = cast("RemoteType", made)
            return cast("RemoteType", made)


class RemoteType(ForwardingType):
    """The metaclass of proxy classes: constructing travels, and so do class attributes."""

    _membrane_classes: ProxyClasses

    def __call__(cls, /, *args: object, **kwargs: object) -> object:
        bond, handle = cls.membrane_class_bond()
        values = (*args, *kwargs.values())
        return bond.request(CONSTRUCT, handle, "", list(kwargs) or None, values)[1][0]

    def __new__(
        metacls, name: str, bases: tuple[type, ...], namespace: dict[str, object]
    ) -> RemoteType:
        if bases and bases != (Forwarding,) and "_membrane_described" not in namespace:
            raise UnsupportedUse(
                f"{bases[0].__qualname__} lives behind the wall: derive from it in a module of "
                "the child, and isolate that class"
            )
        return super().__new__(metacls, name, bases, namespace)

    def __getattr__(cls, name: str) -> object:
        if name.startswith(("_membrane", "__")) and name != "__class_getitem__":
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        bond, handle = cls.membrane_class_bond()
        return bond.request(GET, handle, name, None, ())[1][0]

    def __setattr__(cls, name: str, value: object) -> None:
        if name.startswith("__") or not cls._membrane_described:
            # Written by the interpreter's own machinery, abc's for one.
            super().__setattr__(name, value)
            return
        bond, handle = cls.membrane_class_bond()
        bond.request(SET, handle, name, None, (value,))
        # What was told of the name does not hold any more: from now on it is asked for.
        if name in vars(cls) and not name.startswith("_"):
            super().__delattr__(name)

    def __delattr__(cls, name: str) -> None:
        bond, handle = cls.membrane_class_bond()
        bond.request(DELETE, handle, name, None, ())
        if name in vars(cls):
            super().__delattr__(name)

    def __dir__(cls) -> list[str]:
        description = cls._membrane_description
        if description is None:
            return list(type.__dir__(cls))
        return sorted({*type.__dir__(cls), *description.methods, *description.attributes, "close"})

    @property
    def __membrane__(cls) -> Membrane:
        """Say where the class lives and on what terms; starts the child if there is none."""
        classes = cls._membrane_classes
        link = classes.session.link()
        return Membrane(
            target=f"{cls.__module__}:{cls.__qualname__}",
            isolation=link.isolation,
            pid=link.pid,
            share_key=classes.session.share_key,
            tenant=classes.session.tenant,
            trusted=classes.trusted,
            policy=classes.policies.default,
        )

    @property
    def __signature__(cls) -> Signature:
        """The signature of its constructor, as the child tells it."""
        if not cls._membrane_described:
            raise AttributeError("__signature__")
        signature = described(*cls.membrane_class_bond(), "")[1]
        if signature is None:
            raise AttributeError("__signature__")
        return signature

    @property
    def close(cls) -> _Close:
        """Give what ends this use of the class's session; `Class.close()` never waits for a running
        call.
        """
        return _Close(kind=cls)

    @close.setter
    def close(cls, value: object) -> NoReturn:
        raise UnsupportedUse("close of a proxy class ends its session and cannot be set")

    def membrane_class_bond(cls) -> tuple[Bond, int]:
        """Give the bond and the handle by which requests about the class itself travel."""
        bond = cls._membrane_classes.bond()
        handle = bond.marshal.class_handle(cls)
        if handle is None:
            handle = bond.load_again(cls)
        return bond, handle


class _Close:
    __slots__ = ("_kind",)

    def __init__(self, *, kind: RemoteType) -> None:
        self._kind = kind

    def __call__(self) -> None:
        close(self._kind)


class RemoteObject(Forwarding, metaclass=RemoteType):
    """An object of the child, as its caller sees it."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type, handler: object) -> dict[str, object]:
        """Have pydantic validate objects of the class by `isinstance`, as it does for arbitrary
        types. A core schema is a plain dict, so that nothing of pydantic is needed here.
        """
        return {"type": "is-instance", "cls": source}


type.__delattr__(RemoteObject, "__slots__")


def close_instance(self: RemoteObject) -> None:
    """Let go of the object; using the proxy afterwards raises ChildLost. Only where the target has
    no `close`.
    """
    close(self)


def close(proxy: object) -> None:
    """End one use of a proxy class's session, or let go of a proxied object; never waits for a
    running call.

    What is closed already stays closed, and whatever else shares the session is left alone. Raises
    TypeError for what is neither.
    """
    if isinstance(proxy, RemoteType):
        from membrane.sessions import sessions

        if proxy._membrane_classes.unuse(proxy):
            sessions().close(proxy._membrane_classes.session)
        return
    bond = bond_of(proxy)
    if not isinstance(proxy, RemoteObject) or bond is None:
        raise TypeError(f"close takes a proxy or a proxy class, not {proxy!r}")
    cast("HostBond", bond).let_go(proxy, handle_of(proxy))


def load_request(bond: Bond, target: str) -> list[object]:
    """Ask the child to import a class; give what it answers: [handle, descriptions, names of
    modules].
    """
    extra, _ = bond.request(LOAD, 0, target, None, ())
    return cast("list[object]", extra)
