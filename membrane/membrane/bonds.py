"""A bond: what plugs into a live link on either side, and what every proxy of that link asks
through.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from membrane.awaiting import Awaiting
from membrane.calls import CallOptions
from membrane.codec import Codec
from membrane.descriptions import ClassDescription
from membrane.errors import ChildLost, DeadlineExceeded, ProtocolError, RemoteError, UnsupportedUse
from membrane.exports import Exports, Imports
from membrane.forwarding import ForwardingType
from membrane.frames import AWAIT, CALL, CONSTRUCT, GET, OPERATE
from membrane.marshal import Marshal
from membrane.policies import Policies
from membrane.remote_errors import pack, unpack

if TYPE_CHECKING:
    from inspect import Signature

_ANSWERED = frozenset({CALL, GET, OPERATE, AWAIT, CONSTRUCT})
"""Operations whose answer is one value."""

ASKED_IN_READING = "a proxy cannot be asked while the frame that it is in is read"
NO_RESULT = "an answer without a result came in"


class Link(Protocol):
    """A live connection to the other side."""

    def request(
        self,
        op: int,
        target: int,
        name: str,
        extra: object,
        values: Sequence[object],
        *,
        options: CallOptions | None = None,
    ) -> tuple[object, list[object]]:
        """Ask the other side; raise what it raised."""


class LinkBond(ABC):
    """Hold the handles, classes and codec of one link; both sides derive their own rules from
    it.
    """

    guarded = False
    tells_frames = True
    trusted = True

    def __init__(self, *, link: Link, policies: Policies, numeric: bool = True) -> None:
        self.link = link
        self.policies = policies
        self.exports = Exports(gated=self.guarded)
        self.imports = Imports()
        self.awaiting = Awaiting()
        self.error_classes: dict[str, type[RemoteError]] = {}
        self.marshal = Marshal(
            bond=self,
            side=self,
            exports=self.exports,
            imports=self.imports,
            policies=policies,
        )
        self.codec = Codec(
            export=self.marshal.export,
            resolve=self.marshal.resolve,
            retract=self.marshal.retract,
            policies=policies,
            numeric=numeric,
            is_record=self.marshal.is_record,
        )

    def request(
        self,
        op: int,
        target: int,
        name: str,
        extra: object,
        values: Sequence[object],
        options: CallOptions | None = None,
    ) -> tuple[object, list[object]]:
        """Ask the other side; raise what it raised, DeadlineExceeded, ChildLost or
        ProtocolError.
        """
        threads = self.marshal.threads
        if threads.travelling.decoding:
            raise UnsupportedUse(ASKED_IN_READING)
        if threads.travelling.encoding:
            with threads.aside():
                return self.request(op, target, name, extra, values, options)
        try:
            answer = self.link.request(op, target, name, extra, values, options=options)
        except (ChildLost, DeadlineExceeded):
            self.marshal.dropped()
            raise
        if not answer[1] and op in _ANSWERED:
            raise ProtocolError(NO_RESULT)
        return answer

    def call(self, target: int, name: str, values: Sequence[object]) -> object:
        """Call a function of the other side as `request` does, and give its result."""
        return self.request(CALL, target, name, None, values)[1][0]

    def pack_error(self, error: BaseException) -> tuple[list[object], list[object]]:
        """Describe an error that leaves this side."""
        return pack(error, self, tells_frames=self.tells_frames)

    def unpack_error(self, payload: object, values: Sequence[object]) -> BaseException:
        """Build an error that came in; raise ProtocolError for a payload of another form."""
        return unpack(payload, values, self)

    @property
    def decoding(self) -> bool:
        """Say whether this thread reads a frame just now, and so cannot ask the other side."""
        return self.marshal.decoding

    def may_read(self, name: str) -> bool:
        """Say whether a dunder attribute may be read from the other side's objects."""
        return True

    def described(self, target: int, name: str) -> tuple[str | None, Signature | None]:
        """Give docstring and signature of a callable of the other side; raise AttributeError where
        that does not tell them.
        """
        raise AttributeError("__signature__")

    def may_send(self, value: object) -> None:
        """Raise AccessRefused where an object is not to go by handle; none is refused here."""
        return

    def attribute(self, value: object, name: str) -> object:
        """Give a method of an own object that the other side sends back."""
        return getattr(value, name)

    @abstractmethod
    def make_class(self, description: ClassDescription, bases: tuple[type, ...]) -> type:
        """Build the local class of a class of the other side."""

    def class_home(self, kind: ForwardingType) -> int | None:
        """Give the other side's handle of its own class, None where the class is of another
        session.
        """
        return self.marshal.class_handle(kind)
