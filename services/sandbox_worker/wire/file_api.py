"""FileService on the wire: proto in, use case, proto out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress

import grpc

from chassis.errors import FairleadError
from fairlead.file.v1 import file_pb2 as pb
from fairlead.file.v1 import file_pb2_grpc
from fairlead_limits.table import FILE_PIECE_BYTES
from sandbox_worker.errors import ArgumentInvalid
from sandbox_worker.file import FileStat
from sandbox_worker.file_errors import FileInterrupted
from sandbox_worker.files import Files
from sandbox_worker.wire.file_messages import from_opening, to_stat, to_watch_frame

SERVICE = pb.DESCRIPTOR.services_by_name["FileService"].full_name
_LINGER_SECONDS = 2.0
Context = grpc.aio.ServicerContext[object, object]


class FileServicer(file_pb2_grpc.FileServiceServicer):
    """Serves files to signalling."""

    def __init__(self, *, files: Files) -> None:
        self._files = files

    def register(self, server: grpc.aio.Server) -> None:
        """Add this service to a server."""
        file_pb2_grpc.add_FileServiceServicer_to_server(self, server)

    async def StatFile(self, request: pb.StatFileRequest, context: Context) -> pb.StatFileResponse:
        stat = await self._files.stat(
            tenant=request.tenant,
            sandbox_id=request.sandbox_id,
            path=request.path,
            follow=not request.no_follow,
        )
        return pb.StatFileResponse(stat=to_stat(stat))

    async def ListFiles(
        self, request: pb.ListFilesRequest, context: Context
    ) -> pb.ListFilesResponse:
        page = await self._files.list(
            tenant=request.tenant,
            sandbox_id=request.sandbox_id,
            path=request.path,
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return pb.ListFilesResponse(
            files=[to_stat(stat) for stat in page.files], next_page_token=page.next_page_token
        )

    async def ReadFile(
        self, request: pb.ReadFileRequest, context: Context
    ) -> AsyncIterator[pb.ReadFileResponse]:
        content = self._files.read(
            tenant=request.tenant,
            sandbox_id=request.sandbox_id,
            path=request.path,
            offset=request.offset,
            length=request.length if request.HasField("length") else None,
        )
        async with aclosing(content) as frames:
            async for frame in frames:
                if isinstance(frame, FileStat):
                    yield pb.ReadFileResponse(stat=to_stat(frame))
                else:
                    yield pb.ReadFileResponse(content=frame)

    async def WriteFile(
        self, requests: AsyncIterator[pb.WriteFileRequest], context: Context
    ) -> pb.WriteFileResponse:
        try:
            first = await anext(aiter(requests), None)
            if first is None or first.WhichOneof("frame") != "open":
                raise ArgumentInvalid("open", "is the first frame")
            stat = await self._files.write(
                tenant=first.open.tenant,
                sandbox_id=first.open.sandbox_id,
                order=from_opening(first.open),
                content=_pieces(requests),
            )
        except FairleadError:
            await _let_finish(requests)
            raise
        return pb.WriteFileResponse(stat=to_stat(stat))

    async def MakeDirectory(
        self, request: pb.MakeDirectoryRequest, context: Context
    ) -> pb.MakeDirectoryResponse:
        stat = await self._files.make_directory(
            tenant=request.tenant,
            sandbox_id=request.sandbox_id,
            path=request.path,
            parents=request.parents,
        )
        return pb.MakeDirectoryResponse(stat=to_stat(stat))

    async def MoveFile(self, request: pb.MoveFileRequest, context: Context) -> pb.MoveFileResponse:
        stat = await self._files.move(
            tenant=request.tenant,
            sandbox_id=request.sandbox_id,
            source=request.source,
            target=request.target,
            overwrite=request.overwrite,
        )
        return pb.MoveFileResponse(stat=to_stat(stat))

    async def RemoveFile(
        self, request: pb.RemoveFileRequest, context: Context
    ) -> pb.RemoveFileResponse:
        await self._files.remove(
            tenant=request.tenant,
            sandbox_id=request.sandbox_id,
            path=request.path,
            recursive=request.recursive,
        )
        return pb.RemoveFileResponse()

    async def WatchFiles(
        self, request: pb.WatchFilesRequest, context: Context
    ) -> AsyncIterator[pb.WatchFilesResponse]:
        watch = self._files.watch(
            tenant=request.tenant,
            sandbox_id=request.sandbox_id,
            path=request.path,
            recursive=request.recursive,
        )
        async with aclosing(watch) as frames:
            async for frame in frames:
                yield to_watch_frame(frame)

    async def UploadTree(
        self, requests: AsyncIterator[pb.UploadTreeRequest], context: Context
    ) -> pb.UploadTreeResponse:
        try:
            first = await anext(aiter(requests), None)
            if first is None or first.WhichOneof("frame") != "open":
                raise ArgumentInvalid("open", "is the first frame")
            size = await self._files.upload(
                tenant=first.open.tenant,
                sandbox_id=first.open.sandbox_id,
                path=first.open.path,
                parents=first.open.parents,
                content=_pieces(requests),
            )
        except FairleadError:
            await _let_finish(requests)
            raise
        return pb.UploadTreeResponse(entries=size.entries, content_bytes=size.content_bytes)

    async def DownloadTree(
        self, request: pb.DownloadTreeRequest, context: Context
    ) -> AsyncIterator[pb.DownloadTreeResponse]:
        content = self._files.download(
            tenant=request.tenant, sandbox_id=request.sandbox_id, path=request.path
        )
        async with aclosing(content) as pieces:
            async for piece in pieces:
                yield pb.DownloadTreeResponse(content=piece)


async def _pieces(
    requests: AsyncIterator[pb.WriteFileRequest] | AsyncIterator[pb.UploadTreeRequest],
) -> AsyncIterator[bytes]:
    async for request in requests:
        match request.WhichOneof("frame"):
            case "content" if len(request.content) <= FILE_PIECE_BYTES:
                yield request.content
            case "content":
                raise ArgumentInvalid("content", f"has at most {FILE_PIECE_BYTES} bytes")
            case "end":
                return
            case _:
                raise ArgumentInvalid("frame", "is content or the end, after the first one")
    # gRPC ends the requests of a call that broke just like those of a whole one.
    raise FileInterrupted


async def _let_finish(requests: AsyncIterator[object]) -> None:
    """Read on for a while before an error is answered: a client that cannot write any more before
    it has read the status does not learn the reason (grpcio 1.85).
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_SECONDS):
            async for _ in requests:
                pass
