"""What crosses by handle: the codec's two hooks, alike on both sides.

    [HOME, handle]                     the receiver's own object comes back
    [HOME_ATTRIBUTE, handle, name]     a method of the receiver's own object
    [BUILTIN, name]                    a type that both sides have
    [OBJECT, handle, class, classes, facts]   an object of the sender; facts: [name, coroutine] of a
        callable, [text, arguments] of an exception, or its hash
    [CLASS, class, classes]            a class of the sender
    [RECORD, class, classes]           the class of a record of the sender, which is not given away
    [RECORD_HOME, class]               the receiver's own class of a record

`classes` are the descriptions of classes that the receiver may not know yet, bases first. They go
with every mention until a later frame of the receiver, on the same lane, shows that it has read
one: another lane may be faster.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable
from typing import Final, Protocol, cast

from membrane import descriptions, records, remote_errors
from membrane.builtin_types import BUILTINS_BY_NAME, NAMES_OF_BUILTINS
from membrane.descriptions import ClassDescription
from membrane.errors import ProtocolError, RemoteError, UnsupportedUse
from membrane.exports import LARGEST_HANDLE, Exports, Imports
from membrane.forwarding import Bond, ForwardingType, bond_of, handle_of
from membrane.methods import RemoteMethod
from membrane.policies import Policies
from membrane.records import RecordClass
from membrane.travelling import Threads

HOME: Final = 0
HOME_ATTRIBUTE: Final = 1
BUILTIN: Final = 2
OBJECT: Final = 3
CLASS: Final = 4
RECORD: Final = 5
RECORD_HOME: Final = 6

UNSENDABLE: tuple[type, ...] = (types.FrameType, types.TracebackType, types.CodeType)
"""Never sent, not even by handle: through them all of a process can be reached."""

CALLABLES: tuple[type, ...] = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    functools.partial,
)


class Side(Protocol):
    """What a side of the membrane adds to the marshal: its own proxy classes and rules."""

    guarded: bool

    def make_class(self, description: ClassDescription, bases: tuple[type, ...]) -> type: ...
    def class_home(self, kind: ForwardingType) -> int | None: ...
    def may_send(self, value: object) -> None: ...
    def attribute(self, value: object, name: str) -> object: ...


class Marshal:
    """Turn what goes by handle into plain lists and back; one per link and side."""

    def __init__(
        self,
        *,
        bond: Bond,
        side: Side,
        exports: Exports,
        imports: Imports,
        policies: Policies | None = None,
    ) -> None:
        self._bond = bond
        self._policies = policies or Policies()
        self._side = side
        self._exports = exports
        self._imports = imports
        self._classes: dict[int, type] = {}
        self._class_handles: dict[type, int] = {}
        self._described = 0
        # Classes of records: what this side has sent, and what it made for those of the other.
        self._sent_records: dict[int, type] = {}
        self._record_homes: dict[type, int] = {}
        self._known_there: set[int] = set()
        self._lock = threading.RLock()
        self.threads = Threads()

    def received(self) -> None:
        """Note that a frame came in on this thread's lane: what was sent on it before has been
        read.
        """
        travelling = self.threads.travelling
        self._known_there.update(travelling.told)
        travelling.told = []
        travelling.payloads = []
        travelling.kept = []

    def dropped(self) -> None:
        """Note that this thread's lane is gone: whether what was sent on it was read is not
        known.
        """
        self.threads.travelling.told = []
        self.threads.travelling.kept = []
        self.threads.travelling.payloads = []

    def undo(self) -> None:
        """Take back all handles of a frame that was encoded and not sent."""
        payloads, self.threads.travelling.payloads = self.threads.travelling.payloads, []
        self.retract(payloads)

    def retract(self, payloads: list[list[object]]) -> None:
        """Take back what `export` gave for a frame that was never sent."""
        travelling = self.threads.travelling
        travelling.payloads = []
        for payload in payloads:
            if payload[0] == OBJECT:
                self._exports.release([payload[1], 1])
            told = (
                payload[3]
                if payload[0] == OBJECT
                else payload[2]
                if payload[0] in (CLASS, RECORD)
                else None
            )
            for description in told if isinstance(told, list) else ():
                if description[0] in travelling.told:
                    travelling.told.remove(description[0])

    @property
    def decoding(self) -> bool:
        """Say whether this thread reads a frame just now, and so cannot ask the other side."""
        return self.threads.travelling.decoding

    @property
    def replying(self) -> bool:
        """Say whether what this thread encodes now answers the other side, and was not asked of
        it.
        """
        return self.threads.travelling.replying or self.threads.travelling.confined > 0

    @replying.setter
    def replying(self, replying: bool) -> None:
        self.threads.travelling.replying = replying

    @property
    def confined(self) -> int:
        """Count the requests of the other side that this thread runs on containers."""
        return self.threads.travelling.confined

    @confined.setter
    def confined(self, confined: int) -> None:
        self.threads.travelling.confined = confined

    def export(self, value: object) -> list[object]:
        """Give what travels for a value that does not go by value; raise UnsupportedUse or
        AccessRefused.
        """
        kind = type(value)
        if kind is ByHandle:
            inner = cast("ByHandle", value).value
            return self._send_object(inner, type(inner), checked=True)
        if kind is RecordClass:
            return self._export_record(cast("RecordClass", value).kind)
        if isinstance(kind, ForwardingType):
            if bond_of(value) is None and not cast("ForwardingType", kind)._membrane_described:
                return self._send_object(value, kind)
            return [HOME, self._home(value)]
        if kind is RemoteMethod:
            method = cast("RemoteMethod", value)
            return [HOME_ATTRIBUTE, self._home(method.__self__), method.__name__]
        if isinstance(value, type):
            return self._export_class(value)
        home = remote_errors.handle_at_home(value, self._bond)
        if home is not None:
            self.threads.travelling.kept.append(value)
            return [HOME, home]
        return self._send_object(value, kind)

    def resolve(self, payload: object) -> object:
        """Give the object that a payload stands for; raise ProtocolError for anything unheard
        of.
        """
        match payload:
            case [int() as tag, handle] if tag == HOME:
                return self._exports.get(handle)
            case [int() as tag, handle, str() as name] if tag == HOME_ATTRIBUTE:
                return self._side.attribute(self._exports.get(handle), name)
            case [int() as tag, str() as name] if tag == BUILTIN:
                if name in BUILTINS_BY_NAME:
                    return BUILTINS_BY_NAME[name]
            case [int() as tag, handle, kind, told, facts] if tag == OBJECT:
                local = self._class_of(kind, told)
                number = checked_handle(handle)
                return self._imports.adopt(
                    number, lambda: self._make_instance(local, number, facts)
                )
            case [int() as tag, kind, told] if tag == CLASS:
                return self._class_of(kind, told)
            case [int() as tag, int() as kind, told] if tag == RECORD and not self._side.guarded:
                return RecordClass(self._record_class(kind, self._class_of(kind, told)))
            case [int() as tag, int() as kind] if tag == RECORD_HOME:
                if kind in self._sent_records:
                    return RecordClass(self._sent_records[kind])
        raise ProtocolError("a handle of an unknown form came in")

    def learn(self, told: object, kind: object) -> type:
        """Give the local class of a class of the other side, given descriptions that came beside
        values.
        """
        return self._class_of(kind, told)

    def tell(self, kind: type) -> tuple[int, list[object] | None]:
        """Give the handle of a class of this side, and the descriptions to send with it."""
        told: list[object] = []
        handle = self._describe(kind, told)
        return handle, told or None

    def class_handle(self, kind: type) -> int | None:
        """Give the other side's handle of a proxy class, if this link has met the class."""
        return self._class_handles.get(kind)

    def _make_instance(self, local: type, handle: int, facts: object) -> object:
        if issubclass(local, RemoteError):
            return remote_errors.make_sent(local, facts, self._bond, handle)
        return make_instance(local, self._bond, handle, facts)

    def _home(self, value: object) -> int:
        if isinstance(value, ForwardingType):
            handle = self._side.class_home(value)
            if handle is None:
                raise UnsupportedUse(
                    f"{value!r} belongs to another session; objects cross only within their own"
                )
            return handle
        if bond_of(value) is not self._bond:
            raise UnsupportedUse(
                f"a proxy of {type(value).__qualname__} belongs to another session or to a child "
                "that is gone; objects cross only within their own session"
            )
        self.threads.travelling.kept.append(value)
        return handle_of(value)

    def _export_class(self, kind: type) -> list[object]:
        if isinstance(kind, ForwardingType) and kind._membrane_described:
            return [HOME, self._home(kind)]
        theirs = self._class_handles.get(kind)
        if theirs is not None:
            return [HOME, theirs]
        name = NAMES_OF_BUILTINS.get(kind)
        if name is not None:
            return [BUILTIN, name]
        self._side.may_send(kind)
        handle, told = self.tell(kind)
        self._exports.hold(kind, pinned=True)
        return [CLASS, handle, told]

    def is_record(self, kind: type, call: str | None) -> bool:
        """Say whether objects of a class go by value, field by field: those that came so, and the
        caller's where the call or a rule says so.
        """
        if kind in self._record_homes:
            return True
        is_asked = call == "value" and self._side.guarded and records.form_of(kind) is not None
        return is_asked or self._policies.is_record(kind)

    def _export_record(self, kind: type) -> list[object]:
        if kind in self._record_homes:
            return [RECORD_HOME, self._record_homes[kind]]
        handle, told = self.tell(kind)
        self._sent_records[handle] = kind
        return [RECORD, handle, told]

    def _record_class(self, handle: int, mirror: type) -> type:
        with self._lock:
            for kind, home in self._record_homes.items():
                if home == handle:
                    return kind
            description = cast("ForwardingType", mirror)._membrane_description
            made = records.local_class(cast("ClassDescription", description))
            self._record_homes[made] = handle
            return made

    def _send_object(self, value: object, kind: type, *, checked: bool = False) -> list[object]:
        if kind in UNSENDABLE:
            raise UnsupportedUse(f"a {kind.__name__} never crosses the membrane")
        if not checked:
            self._side.may_send(value)
        class_handle, told = self.tell(kind)
        handle = self._exports.hold(value)
        facts: object = None
        if kind in CALLABLES:
            name = getattr(value, "__name__", None)
            function = getattr(value, "__func__", value)
            facts = [name if type(name) is str else "", descriptions.is_coroutine(function)]
        elif isinstance(value, BaseException):
            facts = remote_errors.facts_of(value)
        elif getattr(kind, "__hash__", None) not in (object.__hash__, None):
            facts = _hash_of(value)
        payload = [OBJECT, handle, class_handle, told, facts]
        self.threads.travelling.payloads.append(payload)
        return payload

    def _describe(self, kind: type, told: list[object]) -> int:
        handle = self._exports.handle_of(kind)
        if handle is not None and handle in self._known_there:
            return handle
        bases = {base: self._describe(base, told) for base in self._own_bases(kind)}
        handle = self._exports.hold(kind, pinned=True, granted=False)
        told.append(descriptions.describe(kind, handle=handle, base_handles=bases))
        self.threads.travelling.told.append(handle)
        return handle

    def _own_bases(self, kind: type) -> list[type]:
        # A class that derives from a proxy class of the other side is told without it.
        return [
            base
            for base in descriptions.described_bases(kind)
            if not isinstance(base, ForwardingType) or not base._membrane_described
        ]

    def _class_of(self, kind: object, told: object) -> type:
        if told is not None:
            if not isinstance(told, list):
                raise ProtocolError("descriptions of classes are a list")
            with self._lock:
                for plain in told:
                    self._learn(descriptions.parse(plain))
        local = self._classes.get(kind) if type(kind) is int else None
        if local is None:
            raise ProtocolError("a handle names a class that was never described")
        return local

    def _learn(self, description: ClassDescription) -> None:
        if description.handle in self._classes:
            return
        if len(self._classes) >= descriptions.MOST_CLASSES:
            raise ProtocolError("the other side described too many classes")
        self._described += description.size
        if self._described > descriptions.MOST_DESCRIBED:
            raise ProtocolError("the other side described classes with too many names and texts")
        bases = []
        for base in description.bases:
            if isinstance(base, int):
                if base not in self._classes:
                    raise ProtocolError("a base of a class was not described before it")
                bases.append(self._classes[base])
        try:
            local = self._side.make_class(description, tuple(bases))
        except TypeError as fault:
            raise ProtocolError(
                f"a class with an impossible shape was described: {fault}"
            ) from None
        self._classes[description.handle] = local
        self._class_handles[local] = description.handle


class ByHandle:
    """Wrap a result that goes by handle whatever it is: what a class constructs."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


def _hash_of(value: object) -> int | None:
    """Give the hash that travels with an object, so that a set of proxies is built without asking
    back.
    """
    try:
        return hash(value)
    except Exception:  # a user's code, or an unhashable part
        return None


def checked_handle(handle: object) -> int:
    """Give the handle back; raise ProtocolError for what cannot be one."""
    if type(handle) is not int or not 0 < handle < LARGEST_HANDLE:
        raise ProtocolError("a handle is a positive integer")
    return handle


def make_instance(kind: type, bond: Bond, handle: int, facts: object) -> object:
    """Build the proxy of an object; facts come with callables."""
    proxy: object = object.__new__(kind)
    set_slot: Callable[[object, str, object], None] = object.__setattr__
    set_slot(proxy, "_membrane_bond", bond)
    set_slot(proxy, "_membrane_handle", handle)
    set_slot(proxy, "_membrane_shadowed", None)
    if type(facts) is int:
        set_slot(proxy, "_membrane_facts", facts)
    elif isinstance(facts, list) and list(map(type, facts)) == [str, bool]:
        set_slot(proxy, "_membrane_facts", (facts[0], facts[1]))
    else:
        set_slot(proxy, "_membrane_facts", None)
    return proxy
