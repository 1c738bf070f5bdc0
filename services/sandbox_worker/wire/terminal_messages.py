"""Attachments to terminals on the wire: what is typed comes from messages, frames become them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fairlead.execution.v1 import execution_pb2 as pb
from sandbox_worker.attachments import (
    AttachedFrame,
    TerminalAccepted,
    TerminalInput,
    TerminalOpening,
    TerminalSnapshot,
    TerminalTakenOver,
    Typed,
)
from sandbox_worker.execution import TerminalSize
from sandbox_worker.execution_errors import TerminalFrameInvalid
from sandbox_worker.wire.execution_messages import to_execution, to_responses


def size_of(message: pb.TerminalSize) -> TerminalSize:
    """Read a size; its range is checked by the use case."""
    return TerminalSize(rows=message.rows, columns=message.columns)


async def opening_of(requests: AsyncIterator[pb.AttachTerminalRequest]) -> pb.OpenTerminal:
    """Read the first frame; raises TerminalFrameInvalid."""
    first = await anext(requests, None)
    if first is None or first.WhichOneof("frame") != "open":
        raise TerminalFrameInvalid("The first frame must be `open`.")
    return first.open


def terminal_opening(opened: pb.OpenTerminal) -> TerminalOpening:
    """Read how to attach."""
    return TerminalOpening(
        after=opened.after_sequence,
        take_over=opened.take_over,
        owner=opened.owner,
        size=size_of(opened.size) if opened.HasField("size") else None,
    )


async def typed_of(requests: AsyncIterator[pb.AttachTerminalRequest]) -> AsyncIterator[Typed]:
    """Read what is typed until it is detached; raises TerminalFrameInvalid."""
    async for request in requests:
        match request.WhichOneof("frame"):
            case "input":
                yield TerminalInput(request.input.offset, request.input.content)
            case "resize":
                yield size_of(request.resize)
            case "detach":
                return
            case "open":
                raise TerminalFrameInvalid("Only the first frame may be `open`.")
            case _:
                raise TerminalFrameInvalid("The frame is none that is known.")


def to_attached(execution_id: str, frame: AttachedFrame) -> list[pb.AttachTerminalResponse]:
    """Return a frame of an attachment as messages."""
    match frame:
        case TerminalSnapshot():
            snapshot = pb.TerminalSnapshot(
                execution=to_execution(frame.execution),
                input_offset=frame.input_offset,
                resumed=frame.resumed,
            )
            return [pb.AttachTerminalResponse(snapshot=snapshot)]
        case TerminalAccepted(offset):
            return [pb.AttachTerminalResponse(accepted=pb.TerminalAccepted(offset=offset))]
        case TerminalTakenOver():
            return [pb.AttachTerminalResponse(taken_over=pb.TerminalTakenOver())]
        case shown:
            return [_shown(response) for response in to_responses(execution_id, shown)]


def _shown(response: pb.WatchOutputResponse) -> pb.AttachTerminalResponse:
    match response.WhichOneof("frame"):
        case "output":
            return pb.AttachTerminalResponse(output=response.output)
        case "gap":
            return pb.AttachTerminalResponse(gap=response.gap)
        case _:
            return pb.AttachTerminalResponse(exit=response.exit)
