"""FileService for clients: proto in, the files of a sandbox, proto out; the tenant in the requests
is ignored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from chassis.errors import FairleadError
from fairlead.file.v1 import file_pb2 as pb
from fairlead.file.v1 import file_pb2_grpc
from fairlead_limits.table import FILE_PIECE_BYTES
from signalling.caller import current_tenant
from signalling.file import FileStat
from signalling.file_errors import FileFramesInvalid, FileInterrupted
from signalling.file_messages import from_opening, to_stat, to_watch_frame
from signalling.file_ports import Files
from signalling.snapshot_grpc_api import let_finish

FILE_SERVICE = pb.DESCRIPTOR.services_by_name["FileService"].full_name
Context = grpc.aio.ServicerContext[object, object]


class FileApi(file_pb2_grpc.FileServiceServicer):
    """Serves FileService."""

    def __init__(self, *, files: Files) -> None:
        self._files = files

    async def StatFile(self, request: pb.StatFileRequest, context: Context) -> pb.StatFileResponse:
        files = await self._files.of(current_tenant(), request.sandbox_id)
        stat = await files.stat(request.path, follow=not request.no_follow)
        return pb.StatFileResponse(stat=to_stat(stat))

    async def ListFiles(
        self, request: pb.ListFilesRequest, context: Context
    ) -> pb.ListFilesResponse:
        files = await self._files.of(current_tenant(), request.sandbox_id)
        page = await files.list(
            request.path, page_size=request.page_size, page_token=request.page_token
        )
        return pb.ListFilesResponse(
            files=[to_stat(stat) for stat in page.files], next_page_token=page.next_page_token
        )

    async def ReadFile(
        self, request: pb.ReadFileRequest, context: Context
    ) -> AsyncIterator[pb.ReadFileResponse]:
        files = await self._files.of(current_tenant(), request.sandbox_id)
        length = request.length if request.HasField("length") else None
        async with aclosing(
            files.read(request.path, offset=request.offset, length=length)
        ) as frames:
            async for frame in frames:
                if isinstance(frame, FileStat):
                    yield pb.ReadFileResponse(stat=to_stat(frame))
                else:
                    yield pb.ReadFileResponse(content=frame)

    async def WriteFile(
        self, request_iterator: AsyncIterator[pb.WriteFileRequest], context: Context
    ) -> pb.WriteFileResponse:
        try:
            first = await anext(aiter(request_iterator), None)
            if first is None or first.WhichOneof("frame") != "open":
                raise FileFramesInvalid
            files = await self._files.of(current_tenant(), first.open.sandbox_id)
            stat = await files.write(from_opening(first.open), _pieces(request_iterator))
        except FairleadError:
            await let_finish(request_iterator)
            raise
        return pb.WriteFileResponse(stat=to_stat(stat))

    async def MakeDirectory(
        self, request: pb.MakeDirectoryRequest, context: Context
    ) -> pb.MakeDirectoryResponse:
        files = await self._files.of(current_tenant(), request.sandbox_id)
        stat = await files.make_directory(request.path, parents=request.parents)
        return pb.MakeDirectoryResponse(stat=to_stat(stat))

    async def MoveFile(self, request: pb.MoveFileRequest, context: Context) -> pb.MoveFileResponse:
        files = await self._files.of(current_tenant(), request.sandbox_id)
        stat = await files.move(request.source, request.target, overwrite=request.overwrite)
        return pb.MoveFileResponse(stat=to_stat(stat))

    async def RemoveFile(
        self, request: pb.RemoveFileRequest, context: Context
    ) -> pb.RemoveFileResponse:
        files = await self._files.of(current_tenant(), request.sandbox_id)
        await files.remove(request.path, recursive=request.recursive)
        return pb.RemoveFileResponse()

    async def WatchFiles(
        self, request: pb.WatchFilesRequest, context: Context
    ) -> AsyncIterator[pb.WatchFilesResponse]:
        files = await self._files.of(current_tenant(), request.sandbox_id)
        async with aclosing(files.watch(request.path, recursive=request.recursive)) as frames:
            async for frame in frames:
                yield to_watch_frame(frame)

    async def UploadTree(
        self, request_iterator: AsyncIterator[pb.UploadTreeRequest], context: Context
    ) -> pb.UploadTreeResponse:
        try:
            first = await anext(aiter(request_iterator), None)
            if first is None or first.WhichOneof("frame") != "open":
                raise FileFramesInvalid
            files = await self._files.of(current_tenant(), first.open.sandbox_id)
            size = await files.upload(
                first.open.path, parents=first.open.parents, content=_pieces(request_iterator)
            )
        except FairleadError:
            await let_finish(request_iterator)
            raise
        return pb.UploadTreeResponse(entries=size.entries, content_bytes=size.content_bytes)

    async def DownloadTree(
        self, request: pb.DownloadTreeRequest, context: Context
    ) -> AsyncIterator[pb.DownloadTreeResponse]:
        files = await self._files.of(current_tenant(), request.sandbox_id)
        async with aclosing(files.download(request.path)) as pieces:
            async for piece in pieces:
                yield pb.DownloadTreeResponse(content=piece)


async def _pieces(
    frames: AsyncIterator[pb.WriteFileRequest] | AsyncIterator[pb.UploadTreeRequest],
) -> AsyncIterator[bytes]:
    async for frame in frames:
        match frame.WhichOneof("frame"):
            case "content" if len(frame.content) <= FILE_PIECE_BYTES:
                yield frame.content
            case "end":
                return
            case _:
                raise FileFramesInvalid
    raise FileInterrupted
