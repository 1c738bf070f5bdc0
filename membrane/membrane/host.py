"""The caller's end of a link: proxies of the child's objects, and the guard before the caller's
own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

from membrane.bonds import ASKED_IN_READING, NO_RESULT, Link, LinkBond
from membrane.builtin_types import NAMES_OF_BUILTINS
from membrane.calls import CallOptions
from membrane.descriptions import ClassDescription, full_name
from membrane.dunders import READABLE
from membrane.errors import (
    ChildLost,
    DeadlineExceeded,
    MemoryExceeded,
    ModuleUnreachable,
    ProtocolError,
    UnsupportedUse,
)
from membrane.forwarding import Forwarding, ForwardingType
from membrane.frames import CALL, DESCRIBE
from membrane.guard import Guard
from membrane.policies import Policies
from membrane.proxies import ProxyClasses, RemoteType, load_request
from membrane.remote_errors import forget_locals

if TYPE_CHECKING:
    from inspect import Signature

MOST_HELD = 1 << 20
"""Objects of the caller that an untrusted child may hold at one time."""

_ERRORS_WITH_LOCALS = 8
"""Errors of callbacks whose frames keep their variables, for debuggers: the last ones."""


class CallingLink(Link, Protocol):
    """A link with a short way for calls."""

    def call(self, target: int, name: str, values: Sequence[object]) -> list[object]:
        """Call a function of the other side as `request` does, and return the values."""


class _NotLoaded(Exception):
    """A proxy class travels to a child that has not loaded it yet."""

    def __init__(self, *, kind: RemoteType) -> None:
        self.kind = kind
        super().__init__(kind)


class _Gone:
    """The bond of a proxy that its caller has let go of."""

    trusted = False
    decoding = False

    def request(
        self,
        op: int,
        target: int,
        name: str,
        extra: object,
        values: Sequence[object],
        options: CallOptions | None = None,
    ) -> tuple[object, list[object]]:
        """Raise ChildLost."""
        raise ChildLost("this object was closed here; construct another")

    def call(self, target: int, name: str, values: Sequence[object]) -> object:
        """Raise ChildLost."""
        return self.request(CALL, target, name, None, values)

    def let_go(self, proxy: Forwarding, handle: int) -> None:
        """Do nothing: it was let go of before."""

    def may_read(self, name: str) -> bool:
        """Say no."""
        return False


class HostBond(LinkBond):
    """The bond of a caller."""

    guarded = True
    link: CallingLink

    def __init__(self, *, link: CallingLink, classes: ProxyClasses, numeric: bool) -> None:
        super().__init__(link=link, policies=classes.policies, numeric=numeric)
        self.error_classes["builtins.MemoryError"] = MemoryExceeded
        self.error_classes[full_name(ModuleUnreachable)] = ModuleUnreachable
        self.classes = classes
        self.trusted = classes.trusted
        self.tells_frames = classes.trusted
        self._check = classes.watch.check
        # A child holds an error until it says otherwise, and with it what its frames refer to.
        self._raised: deque[BaseException] = deque(maxlen=_ERRORS_WITH_LOCALS)
        self._guard = Guard(bond=self, trusted=classes.trusted, expose=classes.expose)

    def serve(
        self, op: int, target: int, name: str, extra: object, values: Sequence[object]
    ) -> tuple[object, Sequence[object]]:
        """Answer the child, as far as the guard lets it."""
        self._check()
        answer = self._guard.serve(op, target, name, extra, values)
        self._check()
        return answer

    def request(
        self,
        op: int,
        target: int,
        name: str,
        extra: object,
        values: Sequence[object],
        options: CallOptions | None = None,
    ) -> tuple[object, list[object]]:
        """Ask the child; raise ModuleLeak where a protected module has come into this process."""
        self._check()
        travelling = self.marshal.threads.travelling
        if not travelling.encoding:
            travelling.replying = False
        while True:
            try:
                return super().request(op, target, name, extra, values, options)
            except _NotLoaded as missing:
                self.load_again(missing.kind)

    def call(self, target: int, name: str, values: Sequence[object]) -> object:
        """Call a function of the child; raise ModuleLeak as `request` does.

        The two of them are one frame of the interpreter here, for the sake of `Lane.call`.
        """
        self._check()
        travelling = self.marshal.threads.travelling
        if travelling.decoding:
            raise UnsupportedUse(ASKED_IN_READING)
        if travelling.encoding:
            return self.request(CALL, target, name, None, values)[1][0]
        travelling.replying = False
        try:
            found = self.link.call(target, name, values)
        except (ChildLost, DeadlineExceeded):
            self.marshal.dropped()
            raise
        except _NotLoaded as missing:
            self.load_again(missing.kind)
            return self.request(CALL, target, name, None, values)[1][0]
        if not found:
            raise ProtocolError(NO_RESULT)
        return found[0]

    def load(self, target: str) -> RemoteType:
        """Have the child import a class; raise what the import raises."""
        match load_request(self, target):
            case [int() as handle, told, list() as names]:
                self.classes.watch.learn(name for name in names if type(name) is str)
                return cast("RemoteType", self.marshal.learn(told, handle))
        raise ProtocolError("the answer to a load is a handle, descriptions and names")

    def load_again(self, kind: RemoteType) -> int:
        """Load in this child a class that an earlier one described; raise ChildLost where it is
        another now.
        """
        target = f"{kind.__module__}:{kind.__qualname__}"
        if "<locals>" not in target:
            self.load(target)
        handle = self.marshal.class_handle(kind)
        if handle is None:
            raise ChildLost(
                f"{target} went with its child, or is another class now; isolate it again"
            )
        return handle

    def described(self, target: int, name: str) -> tuple[str | None, Signature | None]:
        """Give docstring and signature of a callable of the child, within bounds."""
        from membrane.callables import read

        return read(self.request(DESCRIBE, target, name, None, ())[0])

    def let_go(self, proxy: Forwarding, handle: int) -> None:
        """Release an object now, though its proxy lives on."""
        object.__setattr__(proxy, "_membrane_bond", _Gone())
        self.imports.forget(handle)

    def may_read(self, name: str) -> bool:
        """Say whether a dunder attribute may be read from the child's objects."""
        return self.trusted or name in READABLE

    def check_held(self) -> None:
        """Raise ProtocolError, which ends the session, where an untrusted child holds on to too
        many objects of the caller.
        """
        if not self.trusted and len(self.exports) > MOST_HELD:
            raise ProtocolError(f"the child holds more than {MOST_HELD} objects of its caller")

    def pack_error(self, error: BaseException) -> tuple[list[object], list[object]]:
        """Describe an error that leaves this side."""
        self.check_held()
        if not self.trusted:
            if len(self._raised) == self._raised.maxlen:
                forget_locals(self._raised[0])
            self._raised.append(error)
        return super().pack_error(error)

    def may_send(self, value: object) -> None:
        """Refuse to give the child by handle what it was not passed."""
        if not self.trusted and self.marshal.replying:
            self._guard.check_reply(value)

    def attribute(self, value: object, name: str) -> object:
        """Give a method of an own object that the child sends back, if it may call that."""
        return self._guard.method(value, name)

    def make_class(self, description: ClassDescription, bases: tuple[type, ...]) -> type:
        """Build, or find, the proxy class of a class of the child."""
        return self.classes.class_for(description, bases, self)

    def class_home(self, kind: ForwardingType) -> int | None:
        """Give the child's handle of its own class."""
        handle = self.marshal.class_handle(kind)
        is_ours = isinstance(kind, RemoteType) and kind._membrane_classes is self.classes
        if handle is None and is_ours:
            raise _NotLoaded(kind=cast("RemoteType", kind))
        return handle


def guest_settings(
    policies: Policies, *, numeric: bool, expose: frozenset[str], memory_bytes: int | None
) -> list[object]:
    """Give what the child is told of a session: the policies of what it returns, and its memory.

    Rules of types that only the caller has do not concern the child; they are named so that
    sessions can be compared.
    """
    rules = [
        [NAMES_OF_BUILTINS[kind], policy]
        for kind, policy in policies.rules
        if kind in NAMES_OF_BUILTINS
    ]
    own = [
        [full_name(kind), policy]
        for kind, policy in policies.rules
        if kind not in NAMES_OF_BUILTINS
    ]
    return [policies.default, rules, numeric, memory_bytes, own, sorted(expose)]
