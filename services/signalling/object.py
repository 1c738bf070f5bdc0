"""Objects that live in sandboxes as signalling sees them: bytes both ways, and an end. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from chassis.errors import InvalidArgument
from signalling.execution import ExitReason


class ObjectsFrameInvalid(InvalidArgument):
    """A frame of an attachment is malformed or out of its order."""

    def __init__(self, sentence: str) -> None:
        super().__init__(
            sentence,
            reason="objects_frame_invalid",
            remedy="Send `open` first and once; then content of at most 1 MiB each.",
        )


@dataclass(frozen=True, slots=True)
class ObjectsOpened:
    """The Python that holds the objects runs; the first frame."""


@dataclass(frozen=True, slots=True)
class ObjectsEnded:
    """How it ended, with the end of what it wrote to standard error; the last frame."""

    reason: ExitReason
    code: int | None
    signal: int | None
    errors: str


ObjectsFrame = ObjectsOpened | bytes | ObjectsEnded
