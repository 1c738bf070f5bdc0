"""ObjectService for clients: proto in, use case, proto out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from fairlead.object.v1 import object_pb2 as pb
from fairlead.object.v1 import object_pb2_grpc
from signalling.caller import current_tenant
from signalling.object_messages import from_contents, from_opening, to_attached
from signalling.objects import Objects

OBJECT_SERVICE = pb.DESCRIPTOR.services_by_name["ObjectService"].full_name


class ObjectApi(object_pb2_grpc.ObjectServiceServicer):
    """Serves objects in the caller's sandboxes."""

    def __init__(self, *, objects: Objects) -> None:
        self._objects = objects

    async def AttachObjects(
        self,
        request_iterator: AsyncIterator[pb.AttachObjectsRequest],
        context: grpc.aio.ServicerContext[pb.AttachObjectsRequest, pb.AttachObjectsResponse],
    ) -> AsyncIterator[pb.AttachObjectsResponse]:
        opened = await from_opening(request_iterator)
        stream = self._objects.attach(
            current_tenant(), opened.sandbox_id, opened.python, from_contents(request_iterator)
        )
        async with aclosing(stream) as frames:
            async for frame in frames:
                yield to_attached(frame)
