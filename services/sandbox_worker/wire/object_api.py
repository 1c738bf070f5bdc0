"""ObjectService on the wire: proto in, use case, proto out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from fairlead.object.v1 import object_pb2 as pb
from fairlead.object.v1 import object_pb2_grpc
from sandbox_worker.object_errors import ObjectsFrameInvalid
from sandbox_worker.objects import Objects, ObjectsEnded, ObjectsFrame, ObjectsOpened
from sandbox_worker.wire.execution_messages import to_reason

SERVICE = pb.DESCRIPTOR.services_by_name["ObjectService"].full_name

Context = grpc.aio.ServicerContext[object, object]


class ObjectServicer(object_pb2_grpc.ObjectServiceServicer):
    """Serves objects to signalling."""

    def __init__(self, *, objects: Objects) -> None:
        self._objects = objects

    def register(self, server: grpc.aio.Server) -> None:
        """Add this service to a server."""
        object_pb2_grpc.add_ObjectServiceServicer_to_server(self, server)

    async def AttachObjects(
        self, request_iterator: AsyncIterator[pb.AttachObjectsRequest], context: Context
    ) -> AsyncIterator[pb.AttachObjectsResponse]:
        first = await anext(request_iterator, None)
        if first is None or first.WhichOneof("frame") != "open":
            raise ObjectsFrameInvalid("The first frame must be `open`.")
        attached = self._objects.attach(
            tenant=first.open.tenant,
            sandbox_id=first.open.sandbox_id,
            python=first.open.python,
            incoming=_contents(request_iterator),
        )
        async with aclosing(attached) as frames:
            async for frame in frames:
                yield _to_response(frame)


async def _contents(requests: AsyncIterator[pb.AttachObjectsRequest]) -> AsyncIterator[bytes]:
    async for request in requests:
        if request.WhichOneof("frame") != "content":
            raise ObjectsFrameInvalid("Only the first frame may be `open`; others are content.")
        yield request.content


def _to_response(frame: ObjectsFrame) -> pb.AttachObjectsResponse:
    match frame:
        case bytes():
            return pb.AttachObjectsResponse(content=frame)
        case ObjectsOpened():
            return pb.AttachObjectsResponse(opened=pb.ObjectsOpened())
        case ObjectsEnded():
            return pb.AttachObjectsResponse(
                ended=pb.ObjectsEnded(
                    reason=to_reason(frame.reason),
                    code=frame.code,
                    signal=frame.signal,
                    errors=frame.errors.decode(errors="replace"),
                )
            )
