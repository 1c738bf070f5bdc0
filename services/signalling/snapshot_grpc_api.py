"""SnapshotService for clients: a stream of chunks in, straight through to the host, the snapshot
out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import grpc

from chassis.errors import FairleadError
from fairlead.snapshot.v1 import snapshot_pb2 as pb
from fairlead.snapshot.v1 import snapshot_pb2_grpc as rpc
from signalling.caller import current_tenant
from signalling.snapshot_messages import from_tip, to_snapshot
from signalling.source_rules import InvalidRequest
from signalling.uploads import Uploads
from signalling.workspace import Imported

SNAPSHOT_SERVICE = pb.DESCRIPTOR.services_by_name["SnapshotService"].full_name
_LINGER_SECONDS = 2.0


class UploadOutOfOrder(InvalidRequest):
    """The frames of an upload are not `open` and then chunks."""

    def __init__(self) -> None:
        super().__init__(
            "frame",
            "An upload is one `open` frame and then chunks.",
            reason="upload_frames_invalid",
        )


class SnapshotApi(rpc.SnapshotServiceServicer):
    """Serves SnapshotService."""

    def __init__(self, *, uploads: Uploads) -> None:
        self._uploads = uploads

    async def UploadSnapshot(
        self,
        request_iterator: AsyncIterator[pb.UploadSnapshotRequest],
        context: grpc.aio.ServicerContext[pb.UploadSnapshotRequest, pb.UploadSnapshotResponse],
    ) -> pb.UploadSnapshotResponse:
        try:
            imported = await self._accept(request_iterator)
        except FairleadError:
            await let_finish(request_iterator)
            raise
        return pb.UploadSnapshotResponse(snapshot=to_snapshot(imported.snapshot))

    async def _accept(self, frames: AsyncIterator[pb.UploadSnapshotRequest]) -> Imported:
        first = await anext(aiter(frames), None)
        if first is None or first.WhichOneof("frame") != "open":
            raise UploadOutOfOrder
        return await self._uploads.accept(
            current_tenant(),
            first.open.upload_token,
            tuple(from_tip(tip) for tip in first.open.tips),
            _chunks(frames),
            tips_only=first.open.tips_only,
        )


async def _chunks(frames: AsyncIterator[pb.UploadSnapshotRequest]) -> AsyncIterator[bytes]:
    async for frame in frames:
        if frame.WhichOneof("frame") != "chunk":
            raise UploadOutOfOrder
        yield frame.chunk


async def let_finish(frames: AsyncIterator[object]) -> None:
    """Read on for a while before an error is answered.

    A grpc.aio client whose write fails before it has read the status reports INTERNAL without
    details (seen in one of 15 refusals with grpcio 1.85), and the reason would be lost.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_SECONDS):
            async for _ in frames:
                pass
