"""Attachments to terminals as signalling sees them: what is typed and what comes back. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from chassis.errors import InvalidArgument
from signalling.execution import Execution, OutputFrame, TerminalSize


class TerminalFrameInvalid(InvalidArgument):
    """A frame of an attachment is malformed or out of its order."""

    def __init__(self, sentence: str) -> None:
        super().__init__(
            sentence,
            reason="terminal_frame_invalid",
            remedy="Send `open` first and once; then input, sizes and `detach`.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalOpening:
    """How to attach: after which record, as whom, whether to take it, and with which size."""

    after: int = 0
    take_over: bool = False
    owner: str = ""
    size: TerminalSize | None = None


@dataclass(frozen=True, slots=True)
class TerminalInput:
    """What was typed; `offset` counts from the start of the terminal's input."""

    offset: int
    content: bytes


@dataclass(frozen=True, slots=True)
class TerminalSnapshot:
    """What an attachment begins with: how far the input has come, and whether nobody else has
    attached since the same owner did.
    """

    execution: Execution
    input_offset: int
    resumed: bool


@dataclass(frozen=True, slots=True)
class TerminalAccepted:
    """How far the input was taken."""

    offset: int


@dataclass(frozen=True, slots=True)
class TerminalTakenOver:
    """Somebody else types now; the last frame."""


Typed = TerminalInput | TerminalSize
TerminalFrame = TerminalSnapshot | TerminalAccepted | TerminalTakenOver | OutputFrame
"""A frame of an attachment: the snapshot first; an exit or a takeover last."""
