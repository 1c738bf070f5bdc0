"""A client of FileService, for one sandbox of one worker; errors come as ours."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil
import pytest

from chassis.errors import FairleadError
from chassis.rpc_channel import closing
from chassis.rpc_errors import neighbour_errors
from fairlead.file.v1 import file_pb2 as pb
from fairlead.file.v1 import file_pb2_grpc
from tests.contract.wire.sandbox_room import SandboxRoom

TENANT = "default"


class FileRoom:
    """The files of one sandbox."""

    def __init__(self, *, channel: grpc.aio.Channel, sandbox_id: str, tenant: str = TENANT) -> None:
        self.stub = file_pb2_grpc.FileServiceStub(channel)
        self.tenant = tenant
        self.sandbox_id = sandbox_id

    async def stat(self, path: bytes, *, no_follow: bool = False) -> pb.FileStat:
        with neighbour_errors("worker"):
            answer = await self.stub.StatFile(
                pb.StatFileRequest(
                    tenant=self.tenant, sandbox_id=self.sandbox_id, path=path, no_follow=no_follow
                )
            )
        return answer.stat

    async def names(self, path: bytes = b"", *, size: int = 0) -> list[bytes]:
        """List all pages."""
        found: list[bytes] = []
        token = ""
        while True:
            with neighbour_errors("worker"):
                page = await self.stub.ListFiles(
                    pb.ListFilesRequest(
                        tenant=self.tenant,
                        sandbox_id=self.sandbox_id,
                        path=path,
                        page_size=size,
                        page_token=token,
                    )
                )
            found += [each.name for each in page.files]
            token = page.next_page_token
            if not token:
                return found

    async def read(self, path: bytes, *, offset: int = 0, length: int | None = None) -> bytes:
        call = self.stub.ReadFile(
            pb.ReadFileRequest(
                tenant=self.tenant,
                sandbox_id=self.sandbox_id,
                path=path,
                offset=offset,
                length=length,
            )
        )
        found = bytearray()
        async with closing(call):
            with neighbour_errors("worker"):
                async for frame in call:
                    found += frame.content
        return bytes(found)

    async def write(
        self,
        path: bytes,
        content: bytes,
        *,
        mode: pb.WriteMode.ValueType = pb.WRITE_MODE_REPLACE,
        offset: int = 0,
        truncate: bool = False,
        permissions: int | None = None,
        parents: bool = False,
        if_match: str = "",
    ) -> pb.FileStat:
        first = pb.WriteFileOpening(
            tenant=self.tenant,
            sandbox_id=self.sandbox_id,
            path=path,
            mode=mode,
            offset=offset,
            truncate=truncate,
            permissions=permissions,
            parents=parents,
            if_match=if_match,
        )

        async def frames() -> AsyncIterator[pb.WriteFileRequest]:
            yield pb.WriteFileRequest(open=first)
            for start in range(0, len(content), 300_000):
                yield pb.WriteFileRequest(content=content[start : start + 300_000])
            yield pb.WriteFileRequest(end=pb.ContentEnd())

        with neighbour_errors("worker"):
            answer = await self.stub.WriteFile(frames())
        return answer.stat

    async def mkdir(self, path: bytes, *, parents: bool = False) -> pb.FileStat:
        with neighbour_errors("worker"):
            answer = await self.stub.MakeDirectory(
                pb.MakeDirectoryRequest(
                    tenant=self.tenant, sandbox_id=self.sandbox_id, path=path, parents=parents
                )
            )
        return answer.stat

    async def move(self, source: bytes, target: bytes, *, overwrite: bool = False) -> pb.FileStat:
        with neighbour_errors("worker"):
            answer = await self.stub.MoveFile(
                pb.MoveFileRequest(
                    tenant=self.tenant,
                    sandbox_id=self.sandbox_id,
                    source=source,
                    target=target,
                    overwrite=overwrite,
                )
            )
        return answer.stat

    async def remove(self, path: bytes, *, recursive: bool = False) -> None:
        with neighbour_errors("worker"):
            await self.stub.RemoveFile(
                pb.RemoveFileRequest(
                    tenant=self.tenant, sandbox_id=self.sandbox_id, path=path, recursive=recursive
                )
            )

    async def upload(
        self, path: bytes, tar: bytes, *, parents: bool = False
    ) -> pb.UploadTreeResponse:
        first = pb.UploadTreeOpening(
            tenant=self.tenant, sandbox_id=self.sandbox_id, path=path, parents=parents
        )

        async def frames() -> AsyncIterator[pb.UploadTreeRequest]:
            yield pb.UploadTreeRequest(open=first)
            for start in range(0, len(tar), 100_000):
                yield pb.UploadTreeRequest(content=tar[start : start + 100_000])
            yield pb.UploadTreeRequest(end=pb.ContentEnd())

        with neighbour_errors("worker"):
            return await self.stub.UploadTree(frames())

    async def download(self, path: bytes) -> bytes:
        call = self.stub.DownloadTree(
            pb.DownloadTreeRequest(tenant=self.tenant, sandbox_id=self.sandbox_id, path=path)
        )
        found = bytearray()
        async with closing(call):
            with neighbour_errors("worker"):
                async for piece in call:
                    found += piece.content
        return bytes(found)

    async def watch(
        self, path: bytes = b"", *, recursive: bool = False
    ) -> AsyncGenerator[pb.WatchFilesResponse, None]:
        call = self.stub.WatchFiles(
            pb.WatchFilesRequest(
                tenant=self.tenant, sandbox_id=self.sandbox_id, path=path, recursive=recursive
            )
        )
        async with closing(call):
            with neighbour_errors("worker"):
                async for frame in call:
                    yield frame


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """Make a tar stream of hand-made members."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def member(
    name: str, *, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644
) -> tarfile.TarInfo:
    """Make a member."""
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.mode, found.mtime = kind, target, mode, 1_700_000_000
    return found


def names_in(tar: bytes) -> Sequence[str]:
    """Give the names of a tar stream."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return archive.getnames()


def left_out_of(tar: bytes) -> set[str]:
    """Give the names that a tar stream says it lacks."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        top = archive.getmembers()[-1]
    assert top.name == "."
    return set(top.pax_headers["FAIRLEAD.left_out"].split())


@dataclass(frozen=True, slots=True)
class Place:
    """A sandbox with an empty workspace, its files, and the workspace as the host sees it."""

    room: SandboxRoom
    sandbox_id: str
    files: FileRoom
    tree: Path
    address: str

    async def view(self) -> str:
        """Where programs see the workspace."""
        output = await self.room.run(self.sandbox_id, "pwd")
        return output.stdout.decode().rstrip()


async def reason_of(work: Awaitable[object]) -> str:
    """Return why it is refused."""
    with pytest.raises(FairleadError) as caught:
        await work
    return caught.value.reason


async def rest_of(download: AsyncIterable[pb.DownloadTreeResponse]) -> None:
    """Read a tree to its end."""
    with neighbour_errors("worker"):
        async for _ in download:
            continue


def watchers() -> list[int]:
    """The file agents below this process that watch, by what they hold open."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(OSError):
            opened = [os.readlink(path) for path in Path(f"/proc/{process.pid}/fd").iterdir()]
            if "anon_inode:inotify" in opened:
                found.append(process.pid)
    return found
