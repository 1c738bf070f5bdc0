"""Attachments to terminals between domain and proto, both ways."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fairlead.execution.v1 import execution_pb2 as pb
from signalling.execution import TerminalSize
from signalling.execution_messages import from_execution, from_frame, to_execution, to_frame
from signalling.terminal import (
    TerminalAccepted,
    TerminalFrame,
    TerminalFrameInvalid,
    TerminalInput,
    TerminalOpening,
    TerminalSnapshot,
    TerminalTakenOver,
    Typed,
)


def to_size(size: TerminalSize) -> pb.TerminalSize:
    """Return a size as a message."""
    return pb.TerminalSize(rows=size.rows, columns=size.columns)


def from_size(message: pb.TerminalSize) -> TerminalSize:
    """Read a size; its range is checked by the use case."""
    return TerminalSize(rows=message.rows, columns=message.columns)


def to_opening(
    opening: TerminalOpening, *, tenant: str, execution_id: str
) -> pb.AttachTerminalRequest:
    """Return the first frame of an attachment."""
    return pb.AttachTerminalRequest(
        open=pb.OpenTerminal(
            tenant=tenant,
            execution_id=execution_id,
            after_sequence=opening.after,
            take_over=opening.take_over,
            owner=opening.owner,
            size=None if opening.size is None else to_size(opening.size),
        )
    )


async def from_opening(
    requests: AsyncIterator[pb.AttachTerminalRequest],
) -> tuple[str, TerminalOpening]:
    """Read the first frame: the execution's id and how to attach; raises TerminalFrameInvalid."""
    first = await anext(requests, None)
    if first is None or first.WhichOneof("frame") != "open":
        raise TerminalFrameInvalid("The first frame must be `open`.")
    opened = first.open
    return opened.execution_id, TerminalOpening(
        after=opened.after_sequence,
        take_over=opened.take_over,
        owner=opened.owner,
        size=from_size(opened.size) if opened.HasField("size") else None,
    )


def to_typed(piece: Typed) -> pb.AttachTerminalRequest:
    """Return what was typed as a message."""
    match piece:
        case TerminalSize():
            return pb.AttachTerminalRequest(resize=to_size(piece))
        case TerminalInput(offset, content):
            return pb.AttachTerminalRequest(input=pb.TerminalInput(offset=offset, content=content))


async def from_typed(
    requests: AsyncIterator[pb.AttachTerminalRequest],
) -> AsyncIterator[Typed]:
    """Read what is typed until it is detached; raises TerminalFrameInvalid."""
    async for request in requests:
        match request.WhichOneof("frame"):
            case "input":
                yield TerminalInput(request.input.offset, request.input.content)
            case "resize":
                yield from_size(request.resize)
            case "detach":
                return
            case "open":
                raise TerminalFrameInvalid("Only the first frame may be `open`.")
            case _:
                raise TerminalFrameInvalid("The frame is none that is known.")


def to_attached(frame: TerminalFrame) -> pb.AttachTerminalResponse:
    """Return a frame of an attachment as a message."""
    match frame:
        case TerminalSnapshot(execution, input_offset, resumed):
            return pb.AttachTerminalResponse(
                snapshot=pb.TerminalSnapshot(
                    execution=to_execution(execution), input_offset=input_offset, resumed=resumed
                )
            )
        case TerminalAccepted(offset):
            return pb.AttachTerminalResponse(accepted=pb.TerminalAccepted(offset=offset))
        case TerminalTakenOver():
            return pb.AttachTerminalResponse(taken_over=pb.TerminalTakenOver())
        case shown:
            message = to_frame(shown)
            match message.WhichOneof("frame"):
                case "output":
                    return pb.AttachTerminalResponse(output=message.output)
                case "gap":
                    return pb.AttachTerminalResponse(gap=message.gap)
                case _:
                    return pb.AttachTerminalResponse(exit=message.exit)


def from_attached(message: pb.AttachTerminalResponse) -> TerminalFrame | None:
    """Read a frame of an attachment; None for one that is not known."""
    match message.WhichOneof("frame"):
        case "snapshot":
            return TerminalSnapshot(
                execution=from_execution(message.snapshot.execution),
                input_offset=message.snapshot.input_offset,
                resumed=message.snapshot.resumed,
            )
        case "accepted":
            return TerminalAccepted(message.accepted.offset)
        case "taken_over":
            return TerminalTakenOver()
        case "output":
            return from_frame(pb.WatchOutputResponse(output=message.output))
        case "gap":
            return from_frame(pb.WatchOutputResponse(gap=message.gap))
        case "exit":
            return from_frame(pb.WatchOutputResponse(exit=message.exit))
        case _:
            return None
