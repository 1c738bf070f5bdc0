"""The files of sandboxes on their hosts, over gRPC; every failure becomes ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from typing import TypeVar

import grpc

from chassis.rpc_channel import closing
from chassis.rpc_errors import PeerUnavailable, neighbour_errors
from fairlead.file.v1 import file_pb2 as pb
from fairlead.file.v1 import file_pb2_grpc
from signalling.file import (
    PIECE_BYTES,
    FilePage,
    FileStat,
    TreeSize,
    WatchFrame,
    WriteOrder,
)
from signalling.file_messages import from_stat, from_watch_frame, to_opening
from signalling.host import Host
from signalling.neighbour_channels import ChannelCache, Stubs

_WORKER = "sandbox_worker"
_SECONDS = 90.0
"""How long a call may take that the host itself ends when nothing moves."""

_LONG_SECONDS = 600.0
_Request = TypeVar("_Request", pb.WriteFileRequest, pb.UploadTreeRequest)
_Response = TypeVar("_Response")


class GrpcFiles:
    """The files of the sandboxes of every host."""

    def __init__(self, *, channels: ChannelCache) -> None:
        self._stubs: Stubs[file_pb2_grpc.FileServiceAsyncStub] = Stubs(
            channels=channels, make=file_pb2_grpc.FileServiceStub
        )

    def of(self, host: Host, *, tenant: str, sandbox_id: str) -> GrpcSandboxFiles:
        """Return the files of one sandbox."""
        stub = self._stubs.to(host.sandbox_address)
        return GrpcSandboxFiles(stub=stub, tenant=tenant, sandbox_id=sandbox_id)


class GrpcSandboxFiles:
    """The files of one sandbox."""

    def __init__(
        self, *, stub: file_pb2_grpc.FileServiceAsyncStub, tenant: str, sandbox_id: str
    ) -> None:
        self._stub = stub
        self._tenant = tenant
        self._sandbox_id = sandbox_id

    async def stat(self, path: bytes, *, follow: bool) -> FileStat:
        """Describe a file, or a link itself."""
        with neighbour_errors(_WORKER):
            answer = await self._stub.StatFile(
                pb.StatFileRequest(
                    tenant=self._tenant,
                    sandbox_id=self._sandbox_id,
                    path=path,
                    no_follow=not follow,
                ),
                timeout=_SECONDS,
            )
        return from_stat(answer.stat)

    async def list(self, path: bytes, *, page_size: int, page_token: str) -> FilePage:
        """List a page of a directory by name."""
        with neighbour_errors(_WORKER):
            answer = await self._stub.ListFiles(
                pb.ListFilesRequest(
                    tenant=self._tenant,
                    sandbox_id=self._sandbox_id,
                    path=path,
                    page_size=page_size,
                    page_token=page_token,
                ),
                timeout=_SECONDS,
            )
        return FilePage(tuple(from_stat(each) for each in answer.files), answer.next_page_token)

    async def read(
        self, path: bytes, *, offset: int, length: int | None
    ) -> AsyncGenerator[FileStat | bytes, None]:
        """Give what a file is, then a range of it."""
        call = self._stub.ReadFile(
            pb.ReadFileRequest(
                tenant=self._tenant,
                sandbox_id=self._sandbox_id,
                path=path,
                offset=offset,
                length=length,
            )
        )
        async with closing(call):
            with neighbour_errors(_WORKER):
                async for frame in call:
                    match frame.WhichOneof("frame"):
                        case "stat":
                            yield from_stat(frame.stat)
                        case "content":
                            yield frame.content

    async def write(self, order: WriteOrder, content: AsyncIterator[bytes]) -> FileStat:
        """Write a file."""
        opening = to_opening(order, self._tenant, self._sandbox_id)
        answer = await _fed(
            self._stub.WriteFile,
            pb.WriteFileRequest(open=opening),
            content,
            lambda piece: pb.WriteFileRequest(content=piece),
            pb.WriteFileRequest(end=pb.ContentEnd()),
        )
        return from_stat(answer.stat)

    async def make_directory(self, path: bytes, *, parents: bool) -> FileStat:
        """Make a directory."""
        with neighbour_errors(_WORKER):
            answer = await self._stub.MakeDirectory(
                pb.MakeDirectoryRequest(
                    tenant=self._tenant, sandbox_id=self._sandbox_id, path=path, parents=parents
                ),
                timeout=_SECONDS,
            )
        return from_stat(answer.stat)

    async def move(self, source: bytes, target: bytes, *, overwrite: bool) -> FileStat:
        """Rename a file or a tree."""
        with neighbour_errors(_WORKER):
            answer = await self._stub.MoveFile(
                pb.MoveFileRequest(
                    tenant=self._tenant,
                    sandbox_id=self._sandbox_id,
                    source=source,
                    target=target,
                    overwrite=overwrite,
                ),
                timeout=_SECONDS,
            )
        return from_stat(answer.stat)

    async def remove(self, path: bytes, *, recursive: bool) -> None:
        """Remove a file or a tree."""
        with neighbour_errors(_WORKER):
            await self._stub.RemoveFile(
                pb.RemoveFileRequest(
                    tenant=self._tenant,
                    sandbox_id=self._sandbox_id,
                    path=path,
                    recursive=recursive,
                ),
                timeout=_LONG_SECONDS if recursive else _SECONDS,
            )

    async def watch(self, path: bytes, *, recursive: bool) -> AsyncGenerator[WatchFrame, None]:
        """Give the start of a watch, changes, and exactly one end."""
        call = self._stub.WatchFiles(
            pb.WatchFilesRequest(
                tenant=self._tenant,
                sandbox_id=self._sandbox_id,
                path=path,
                recursive=recursive,
            )
        )
        async with closing(call):
            with neighbour_errors(_WORKER):
                async for message in call:
                    frame = from_watch_frame(message)
                    if frame is not None:
                        yield frame

    async def upload(
        self, path: bytes, *, parents: bool, content: AsyncIterator[bytes]
    ) -> TreeSize:
        """Unpack a tar stream below a directory."""
        opening = pb.UploadTreeOpening(
            tenant=self._tenant, sandbox_id=self._sandbox_id, path=path, parents=parents
        )
        answer = await _fed(
            self._stub.UploadTree,
            pb.UploadTreeRequest(open=opening),
            content,
            lambda piece: pb.UploadTreeRequest(content=piece),
            pb.UploadTreeRequest(end=pb.ContentEnd()),
        )
        return TreeSize(answer.entries, answer.content_bytes)

    async def download(self, path: bytes) -> AsyncGenerator[bytes, None]:
        """Give a tar stream."""
        call = self._stub.DownloadTree(
            pb.DownloadTreeRequest(tenant=self._tenant, sandbox_id=self._sandbox_id, path=path)
        )
        async with closing(call):
            with neighbour_errors(_WORKER):
                async for message in call:
                    yield message.content


async def _fed(
    method: Callable[[AsyncIterator[_Request]], grpc.aio.StreamUnaryCall[_Request, _Response]],
    opening: _Request,
    content: AsyncIterator[bytes],
    wrap: Callable[[bytes], _Request],
    end: _Request,
) -> _Response:
    """Send an opening and content, and return the answer, which may come before their end.

    What `content` raises is raised here, and the call is cancelled.
    """
    failures: list[Exception] = []
    # gRPC may go on reading its request iterator after the call has ended. What it reads is a
    # queue, so that nobody reads `content` any more when this returns.
    waiting: asyncio.Queue[_Request | None] = asyncio.Queue(maxsize=1)

    async def frames() -> AsyncIterator[_Request]:
        yield opening
        while (frame := await waiting.get()) is not None:
            yield frame

    async def feed() -> None:
        try:
            async for piece in content:
                for start in range(0, len(piece), PIECE_BYTES):
                    await waiting.put(wrap(piece[start : start + PIECE_BYTES]))
            await waiting.put(end)
            await waiting.put(None)
        except Exception as raised:
            failures.append(raised)
            call.cancel()

    with neighbour_errors(_WORKER):
        call: grpc.aio.StreamUnaryCall[_Request, _Response] = method(frames())
        feeding = asyncio.create_task(feed(), name="feed a file")
        try:
            async with closing(call):
                try:
                    return await call
                except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
                    if failures:
                        raise failures[0] from None
                    if _lost_its_reason(error):
                        raise PeerUnavailable(_WORKER) from error
                    raise
        finally:
            feeding.cancel()
            await asyncio.wait({feeding})
            with suppress(asyncio.QueueEmpty):
                waiting.get_nowait()
            waiting.put_nowait(None)


def _lost_its_reason(error: BaseException) -> bool:
    """Say whether gRPC failed to write before it had read the status; see `snapshot_grpc_api`."""
    return (
        isinstance(error, grpc.aio.AioRpcError)
        and error.code() is grpc.StatusCode.INTERNAL
        and not error.trailing_metadata()
    )
