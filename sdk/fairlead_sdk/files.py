"""Files in the sandbox of a launch, or in one of its own: bytes, never text."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from urllib.parse import quote

from fairlead_sdk import json_form as form
from fairlead_sdk.client import FrontDoor, problem_of
from fairlead_sdk.errors import FileMissing, OutOfRange, StreamLost
from fairlead_sdk.file_records import (
    FileEvent,
    FilePath,
    FileRecord,
    TreeCopied,
    bytes_of,
    text_of,
)
from fairlead_sdk.json_form import JsonObject

TAR = "application/x-tar"
_BYTES = "application/octet-stream"
_PAGE = 1000
_PIECE = 256 * 1024
_BUNDLE = """git symbolic-ref -q HEAD
[ -z "$(git rev-list -n 1 --all)" ] || git bundle create -q "$0" --all"""
"""Names the branch, and writes a bundle if there are commits."""

Progress = Callable[[int], None]
"""Hears of the size of each piece that was copied."""


class AsyncFiles:
    """The files of one sandbox; paths are relative to its workspace.

    Every call raises `PathRefused` for a path that leaves it, `FileMissing`, `NoDirectory`,
    `NoRegularFile`, `FileForbidden` and what else the front door refuses.
    """

    def __init__(self, *, door: FrontDoor, sandbox_id: str) -> None:
        self._door = door
        self._sandbox_id = sandbox_id
        self._base = f"/v1/sandboxes/{quote(sandbox_id, safe='')}/files"

    async def read(self, path: FilePath) -> bytes:
        """Read a whole file."""
        return b"".join([piece async for piece in self._read(path, {})])

    async def read_range(self, path: FilePath, offset: int, length: int | None = None) -> bytes:
        """Read at most `length` bytes from `offset` on; nothing at the end of the file. A negative
        offset gives so many bytes at its end.
        """
        if length == 0:
            return b""
        last = "" if length is None else str(offset + length - 1)
        wanted = f"bytes={offset}-{last}" if offset >= 0 else f"bytes={offset}"
        try:
            found = b"".join([piece async for piece in self._read(path, {"Range": wanted})])
        except OutOfRange:
            return b""
        return found[:length] if offset < 0 else found

    async def write(
        self,
        path: FilePath,
        content: bytes,
        *,
        permissions: int | None = None,
        parents: bool = False,
        create: bool = False,
        if_match: str = "",
    ) -> FileRecord:
        """Replace a file as a whole, or make it; with `create` it must not be there (`FileThere`),
        with `if_match` still have that etag (`FileChanged`).
        """
        params = _write_params(permissions, parents=parents)
        headers = {"Content-Type": _BYTES}
        if create:
            headers["If-None-Match"] = "*"
        if if_match:
            headers["If-Match"] = f'"{if_match}"'
        answer = await self._door.send(self._path(path), content, params=params, headers=headers)
        return FileRecord.read(answer)

    async def write_range(
        self, path: FilePath, offset: int, content: bytes, *, truncate: bool = False
    ) -> FileRecord:
        """Write into a file from `offset` on; with `truncate` it ends after that."""
        params = {"offset": str(offset)} | ({"truncate": "true"} if truncate else {})
        headers = {"Content-Type": _BYTES}
        answer = await self._door.send(self._path(path), content, params=params, headers=headers)
        return FileRecord.read(answer)

    async def stat(self, path: FilePath, *, follow: bool = True) -> FileRecord:
        """Describe a file, or without `follow` a link itself."""
        body: JsonObject = {"path": text_of(path), "follow": follow}
        return FileRecord.read(await self._door.post(f"{self._base}:stat", body))

    async def exists(self, path: FilePath) -> bool:
        """Say whether something is there, even a link that leads nowhere."""
        try:
            await self.stat(path, follow=False)
        except FileMissing:
            return False
        return True

    async def list(self, path: FilePath = "") -> tuple[FileRecord, ...]:
        """List a directory by name; links are not followed."""
        found: builtins.list[FileRecord] = []
        token = ""
        while True:
            body: JsonObject = {"path": text_of(path), "page_size": _PAGE, "page_token": token}
            page = await self._door.post(f"{self._base}:list", body)
            found += (FileRecord.read(each) for each in form.children(page, "files"))
            token = form.text(page, "next_page_token")
            if not token:
                return tuple(found)

    async def move(
        self, source: FilePath, target: FilePath, *, overwrite: bool = False
    ) -> FileRecord:
        """Rename a file or a tree; raises `FileThere` unless `overwrite`."""
        body: JsonObject = {
            "source": text_of(source),
            "target": text_of(target),
            "overwrite": overwrite,
        }
        return FileRecord.read(await self._door.post(f"{self._base}:move", body))

    async def remove(self, path: FilePath, *, recursive: bool = False) -> None:
        """Remove a file, a link itself, an empty directory, or with `recursive` a tree.

        Raises `DirectoryNotEmpty`.
        """
        params = {"recursive": "true"} if recursive else None
        await self._door.delete(self._path(path), params)

    async def mkdir(self, path: FilePath, *, parents: bool = False) -> FileRecord:
        """Make a directory; with `parents` also those above it, and it may be there."""
        body: JsonObject = {"path": text_of(path), "parents": parents}
        return FileRecord.read(await self._door.post(f"{self._base}:mkdir", body))

    async def watch(
        self, path: FilePath = "", *, recursive: bool = False
    ) -> AsyncGenerator[FileEvent, None]:
        """Give "started", then what changes in a directory until the sandbox is released or the
        directory removed.

        Close it when it is left early. Raises `StreamLost` when the connection breaks: changes may
        be missing then, so list again.
        """
        body: JsonObject = {"path": text_of(path), "recursive": recursive}
        async with self._door.stream("POST", f"{self._base}:watch", body=body) as lines:
            async for line in lines:
                problem = problem_of(line)
                if problem is not None:
                    raise problem
                if form.text(line, "type") == "end":
                    return
                yield FileEvent.read(line)
        raise StreamLost(
            "The watch of files broke.",
            reason="stream_lost",
            remedy="List the directory again, and watch it again.",
        )

    async def upload(
        self,
        local: str | os.PathLike[str],
        remote: FilePath,
        *,
        parents: bool = False,
        progress: Progress | None = None,
    ) -> TreeCopied:
        """Copy a file or a directory of this machine to `remote`, which is its path there.

        A file, and a directory that was not there, appears whole or not at all; into a directory
        that is there, each file is replaced whole. Links that lead out are left out.
        """
        from fairlead_sdk.packing import Packer

        path = os.fspath(local)
        params = _write_params(None, parents=parents)
        if await asyncio.to_thread(os.path.isdir, path):
            packer = Packer(path)
            pieces = _threaded(packer.pieces().__next__, progress)
            headers = {"Content-Type": TAR}
            await self._door.send(self._path(remote), pieces, params=params, headers=headers)
            return packer.copied
        with contextlib.ExitStack() as stack:
            content = stack.enter_context(await asyncio.to_thread(open, path, "rb"))
            status = os.fstat(content.fileno())
            params |= _write_params(status.st_mode & 0o777, parents=parents)
            pieces = _threaded(lambda: content.read(_PIECE), progress)
            headers = {"Content-Type": _BYTES}
            answer = await self._door.send(
                self._path(remote), pieces, params=params, headers=headers
            )
        return TreeCopied(1, FileRecord.read(answer).size)

    async def download(
        self,
        remote: FilePath,
        local: str | os.PathLike[str],
        *,
        with_git: bool = False,
        progress: Progress | None = None,
    ) -> TreeCopied:
        """Copy a file or a directory of the sandbox to `local`, which is its path here.

        A file, and a directory that was not there, appears whole or not at all. What comes is not
        trusted: links that lead out of the tree, `.git` in every spelling, and git directories
        under other names are left out, and nothing is written into a git directory that is here
        (`GitDirectoryRefused`).

        `with_git` copies a repository with its commits, branches and tags into a new directory
        (`NotNew`); of its configuration and hooks nothing comes. It runs git in the sandbox.
        """
        from fairlead_sdk.receiving import receive_file, receive_tree

        if with_git:
            return await self._download_with_git(remote, os.fspath(local), progress)
        stat = await self.stat(remote)
        is_tree = stat.is_directory
        headers = {"Accept": TAR if is_tree else _BYTES}
        async with self._door.receive(self._path(remote), headers=headers) as pieces:
            told = _told(pieces, progress)
            if is_tree:
                return await receive_tree(told, os.fspath(local))
            return await receive_file(told, os.fspath(local), permissions=stat.permissions)

    async def _download_with_git(
        self, remote: FilePath, local: str, progress: Progress | None
    ) -> TreeCopied:
        """Copy a repository: git writes a bundle beside its files in the sandbox, which goes first.

        Its objects cannot be copied as files, as a workspace borrows most of them from the host.
        """
        import tempfile

        from fairlead_sdk.commands import AsyncCommands
        from fairlead_sdk.executions import AsyncExecutions
        from fairlead_sdk.receiving import History, HistoryBroken, receive_tree, require_new

        await asyncio.to_thread(require_new, local)
        top = bytes_of(remote).rstrip(b"/") or b"."
        if not await self.exists(top + b"/.git"):
            raise HistoryBroken("it is no repository, there is no .git in it")
        executions = AsyncExecutions(door=self._door)
        commands = AsyncCommands(
            executions=executions, sandbox_id=self._sandbox_id, directory=os.fsdecode(top)
        )
        name = f".fairlead-{secrets.token_hex(8)}.bundle"
        bundle = top + b"/" + name.encode()
        with tempfile.TemporaryDirectory(prefix="fairlead-history-") as scratch:
            place = os.path.join(scratch, "bundle")
            try:
                result = await commands.run(["sh", "-c", _BUNDLE, name])
                if result.exit_code != 0:
                    said = result.stderr_text.strip().splitlines() or ["git does not say why"]
                    raise HistoryBroken(said[-1])
                if await self.exists(bundle):
                    await self.download(bundle, place, progress=progress)
            finally:
                with contextlib.suppress(FileMissing):
                    await asyncio.shield(self.remove(bundle))
            history = History(bundle=place, head=os.fsdecode(result.stdout).strip())
            async with self._door.receive(self._path(top), headers={"Accept": TAR}) as pieces:
                return await receive_tree(_told(pieces, progress), local, history=history)

    def _path(self, path: FilePath) -> str:
        return f"{self._base}/{quote(bytes_of(path))}"

    async def _read(self, path: FilePath, headers: dict[str, str]) -> AsyncIterator[bytes]:
        async with self._door.receive(
            self._path(path), headers={"Accept": _BYTES, **headers}
        ) as pieces:
            async for piece in pieces:
                yield piece


def _write_params(permissions: int | None, *, parents: bool) -> dict[str, str]:
    params = {"parents": "true"} if parents else {}
    if permissions is not None:
        params["permissions"] = f"{permissions & 0o777:o}"
    return params


async def _threaded(
    step: Callable[[], bytes], progress: Progress | None
) -> AsyncGenerator[bytes, None]:
    """Give what blocking steps give, until StopIteration."""

    def one() -> bytes:
        try:
            return step()
        except StopIteration:
            return b""

    while piece := await asyncio.to_thread(one):
        yield piece
        if progress is not None:
            progress(len(piece))


async def _told(
    pieces: AsyncIterator[bytes], progress: Progress | None
) -> AsyncGenerator[bytes, None]:
    async for piece in pieces:
        yield piece
        if progress is not None:
            progress(len(piece))
