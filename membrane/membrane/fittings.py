"""What plugs into a link: the codec, the handles and the operations of either side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence, Sized

    from membrane.lane import Lane
    from membrane.travelling import Threads


class Regions(Protocol):
    """The shared memory of one lane, as its codec keeps it."""

    @property
    def incoming_bytes(self) -> int:
        """How much of the other side's is mapped."""

    def attached(self, descriptor: int, size: int) -> None:
        """Take what the other side sends in from now on; owns the descriptor."""

    def close(self) -> None:
        """Let go of all of it."""


class Codec(Protocol):
    """Writes and reads messages; only the last item of one holds what belongs to users."""

    def encode(self, message: list[object], *, policy: int, regions: Regions | None) -> bytes:
        """Write a message; raises what the objects in it raise."""

    def decode(
        self, buffer: memoryview, regions: Regions | None, views: bool = False
    ) -> list[object]:
        """Read a message out of memory that is used again afterwards; raises ProtocolError."""

    def make_regions(self, lane: Lane) -> Regions:
        """Make what `encode` and `decode` need for a lane."""


class Exports(Protocol):
    """Handles that this side gave out."""

    def release(self, released: list[object], /) -> None:
        """Let go of what the other side holds no longer; raises ProtocolError."""


class Imports(Protocol):
    """Handles that this side got."""

    @property
    def due(self) -> Sized:
        """What `drain` has to tell of; empty for nothing."""

    def drain(self) -> list[int] | None:
        """Return what to tell the other side to let go of, in pairs; None for nothing."""


class Marshal(Protocol):
    """The objects that cross by handle."""

    @property
    def threads(self) -> Threads:
        """What each thread has under way."""

    def received(self) -> None:
        """Take notice that a frame has come in after what this thread has under way."""

    def undo(self) -> None:
        """Take back what was exported for a frame that is not sent."""


class Fittings(Protocol):
    """What a link carries: plugged in by either side when the link is made."""

    @property
    def codec(self) -> Codec: ...
    @property
    def exports(self) -> Exports: ...
    @property
    def imports(self) -> Imports: ...
    @property
    def marshal(self) -> Marshal: ...

    def serve(
        self, op: int, target: int, name: str, extra: object, values: Sequence[object]
    ) -> tuple[object, Sequence[object]]:
        """Do what the other side asks for; raises what that raises."""

    def pack_error(self, error: BaseException) -> tuple[object, Sequence[object]]:
        """Describe an error to the other side."""

    def unpack_error(self, payload: object, values: Sequence[object]) -> BaseException:
        """Make the error that the other side described; raises ProtocolError."""
