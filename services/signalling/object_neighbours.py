"""The workers of hosts over gRPC, as far as objects go; every failure becomes ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from fairlead.object.v1 import object_pb2, object_pb2_grpc
from signalling.host import Host
from signalling.neighbour_channels import ChannelCache, Stubs
from signalling.neighbour_talks import talk
from signalling.object import ObjectsEnded, ObjectsFrame
from signalling.object_messages import from_attached, to_opening


class GrpcObjects:
    """The sandbox-workers, as far as objects go."""

    def __init__(self, *, channels: ChannelCache) -> None:
        self._stubs: Stubs[object_pb2_grpc.ObjectServiceAsyncStub] = Stubs(
            channels=channels, make=object_pb2_grpc.ObjectServiceStub
        )

    @asynccontextmanager
    async def attach(
        self,
        host: Host,
        *,
        tenant: str,
        sandbox_id: str,
        python: str,
        incoming: AsyncIterator[bytes],
    ) -> AsyncIterator[AsyncIterator[ObjectsFrame]]:
        """Start a Python that holds objects, and carry."""
        opened = asyncio.Event()

        async def requests() -> AsyncIterator[object_pb2.AttachObjectsRequest]:
            yield to_opening(tenant, sandbox_id, python)
            # A write that a refusal cuts off hides its reason (grpcio 1.85).
            await opened.wait()
            async for content in incoming:
                yield object_pb2.AttachObjectsRequest(content=content)

        call = self._stubs.to(host.sandbox_address).AttachObjects()
        async with (
            talk(call, requests()) as messages,
            aclosing(_frames(messages, opened)) as frames,
        ):
            yield frames


async def _frames(
    messages: AsyncIterator[object_pb2.AttachObjectsResponse], opened: asyncio.Event
) -> AsyncGenerator[ObjectsFrame, None]:
    async for message in messages:
        frame = from_attached(message)
        if frame is None:
            continue
        opened.set()
        yield frame
        if isinstance(frame, ObjectsEnded):
            return  # what was still being written then is no fault
