"""Objects in sandboxes between domain and proto, both ways."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fairlead.object.v1 import object_pb2 as pb
from signalling.execution_messages import from_reason, to_reason
from signalling.object import ObjectsEnded, ObjectsFrame, ObjectsFrameInvalid, ObjectsOpened


def to_opening(tenant: str, sandbox_id: str, python: str) -> pb.AttachObjectsRequest:
    """Return the first frame of an attachment."""
    opening = pb.OpenObjects(tenant=tenant, sandbox_id=sandbox_id, python=python)
    return pb.AttachObjectsRequest(open=opening)


async def from_opening(requests: AsyncIterator[pb.AttachObjectsRequest]) -> pb.OpenObjects:
    """Read the first frame; raises ObjectsFrameInvalid."""
    first = await anext(requests, None)
    if first is None or first.WhichOneof("frame") != "open":
        raise ObjectsFrameInvalid("The first frame must be `open`.")
    return first.open


async def from_contents(requests: AsyncIterator[pb.AttachObjectsRequest]) -> AsyncIterator[bytes]:
    """Read the frames behind the first one; raises ObjectsFrameInvalid."""
    async for request in requests:
        if request.WhichOneof("frame") != "content":
            raise ObjectsFrameInvalid("Only the first frame may be `open`; others are content.")
        yield request.content


def to_attached(frame: ObjectsFrame) -> pb.AttachObjectsResponse:
    """Return a frame of an attachment as a message."""
    match frame:
        case bytes():
            return pb.AttachObjectsResponse(content=frame)
        case ObjectsOpened():
            return pb.AttachObjectsResponse(opened=pb.ObjectsOpened())
        case ObjectsEnded(reason, code, signal, errors):
            ended = pb.ObjectsEnded(
                reason=to_reason(reason), code=code, signal=signal, errors=errors
            )
            return pb.AttachObjectsResponse(ended=ended)


def from_attached(message: pb.AttachObjectsResponse) -> ObjectsFrame | None:
    """Read a frame of an attachment; None for one that is not known."""
    match message.WhichOneof("frame"):
        case "content":
            return message.content
        case "opened":
            return ObjectsOpened()
        case "ended":
            ended = message.ended
            return ObjectsEnded(
                from_reason(ended.reason),
                ended.code if ended.HasField("code") else None,
                ended.signal if ended.HasField("signal") else None,
                ended.errors,
            )
        case _:
            return None
