"""Files of a workspace on an SSH host: a short Python program on the host sends and takes them.

The host has sshd, git and Python and no more, and what runs there may do what the account may do.
What comes from it is written here as if it came from a sandbox: see `receiving`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fairlead_sdk import json_form as form
from fairlead_sdk.errors import FailedPrecondition, FileMissing
from fairlead_sdk.file_records import TreeCopied
from fairlead_sdk.launches import Command
from fairlead_sdk.packing import PIECE, Packer
from fairlead_sdk.receiving import receive_file, receive_tree
from fairlead_sdk.ssh_host import AsyncSshHost, HostExecution

Progress = Callable[[int], None]

_PROGRAM = r"""
import json, os, shutil, stat, sys, tarfile, tempfile

verb, path = sys.argv[1], sys.argv[2] or "."


def beside(path):
    return tempfile.mkdtemp(prefix=".fairlead-", dir=os.path.dirname(path.rstrip("/")) or ".")


def look():
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        answer = {"exists": False}
    else:
        is_directory = stat.S_ISDIR(found.st_mode)
        answer = {"exists": True, "is_directory": is_directory, "mode": found.st_mode & 0o777}
    print(json.dumps(answer))


def read():
    with open(path, "rb") as content:
        shutil.copyfileobj(content, sys.stdout.buffer)


def pack():
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(os.listdir(path)):
            archive.add(os.path.join(path, name), arcname=name)


def write():
    place = beside(path)
    try:
        draft = os.path.join(place, "draft")
        with open(draft, "wb") as content:
            shutil.copyfileobj(sys.stdin.buffer, content)
        os.chmod(draft, int(sys.argv[3], 8))
        os.replace(draft, path)
    finally:
        shutil.rmtree(place)


def unpack():
    is_there = os.path.isdir(path)
    place = None if is_there else beside(path)
    target = path if is_there else os.path.join(place, "tree")
    try:
        os.makedirs(target, exist_ok=True)
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
            for member in archive:
                here = os.path.join(target, member.name)
                if os.path.lexists(here) and (os.path.islink(here) or not os.path.isdir(here)):
                    os.unlink(here)
                archive.extract(member, target)
        if not is_there:
            os.rename(target, path)
    finally:
        if place:
            shutil.rmtree(place)


try:
    {"look": look, "read": read, "pack": pack, "write": write, "unpack": unpack}[verb]()
    sys.stdout.flush()
except OSError as error:
    sys.exit(f"{error.filename or path}: {error.strerror}")
"""


@dataclass(frozen=True, slots=True)
class HostFile:
    """What is at a path on the host."""

    is_directory: bool
    permissions: int


class HostCopyFailed(FailedPrecondition):
    """The host could not read or write what was to be copied."""

    def __init__(self, destination: str, cause: str) -> None:
        super().__init__(
            f"{destination} could not copy it: {cause}.",
            reason="host_copy_failed",
            remedy="Check the path there, its permissions and the space on the disk.",
        )


class HostFiles:
    """Copies between this machine and a workspace on an SSH host; paths are relative to it."""

    def __init__(self, *, host: AsyncSshHost, workspace_id: str) -> None:
        self._host = host
        self._workspace_id = workspace_id

    async def stat(self, path: str) -> HostFile:
        """Look what is there; raises `FileMissing`."""
        async with self._run("look", path) as (_, pieces):
            said = b"".join([piece async for piece in pieces])
        document = form.parse_object(said)
        if not form.flag(document, "exists"):
            raise FileMissing(
                f"There is no {path!r} in the workspace.",
                reason="file_not_found",
                remedy="Look what is there: fairlead exec --host ADDRESS WORKSPACE -- ls",
            )
        return HostFile(form.flag(document, "is_directory"), form.number(document, "mode"))

    async def download(
        self, remote: str, local: str, *, with_git: bool = False, progress: Progress | None = None
    ) -> TreeCopied:
        """Copy a file or directory here; see `AsyncFiles.download`. It copies no repository."""
        if with_git:
            raise FailedPrecondition(
                "A repository on an SSH host is not copied with its history.",
                reason="with_git_unsupported",
                remedy="Fetch from it: git fetch ssh://… PATH-OF-THE-WORKSPACE",
            )
        found = await self.stat(remote)
        async with self._run("pack" if found.is_directory else "read", remote) as (_, pieces):
            if found.is_directory:
                return await receive_tree(_counted(pieces, progress), local)
            counted = _counted(pieces, progress)
            return await receive_file(counted, local, permissions=found.permissions)

    async def upload(
        self, local: str, remote: str, *, progress: Progress | None = None
    ) -> TreeCopied:
        """Copy a file or directory there; see `AsyncFiles.upload`."""
        if await asyncio.to_thread(os.path.isdir, local):
            packer = Packer(local)
            await self._send("unpack", remote, packer.pieces().__next__, progress)
            return packer.copied
        with contextlib.ExitStack() as stack:
            content = stack.enter_context(await asyncio.to_thread(open, local, "rb"))
            mode = os.fstat(content.fileno()).st_mode & 0o777
            read = lambda: content.read(PIECE)  # noqa: E731 - its one use is the next line
            size = await self._send("write", remote, read, progress, f"{mode:o}")
        return TreeCopied(1, size)

    async def _send(
        self,
        verb: str,
        remote: str,
        step: Callable[[], bytes],
        progress: Progress | None,
        *options: str,
    ) -> int:
        size = 0

        def one() -> bytes:
            try:
                return step()
            except StopIteration:
                return b""

        async with self._run(verb, remote, *options, feeds=True) as (execution, pieces):
            while piece := await asyncio.to_thread(one):
                await execution.feed(piece)
                size += len(piece)
                if progress is not None:
                    progress(len(piece))
            await execution.feed_end()
            async for _ in pieces:
                continue
        return size

    @asynccontextmanager
    async def _run(
        self, verb: str, path: str, *options: str, feeds: bool = False
    ) -> AsyncIterator[tuple[HostExecution, AsyncGenerator[bytes, None]]]:
        """Run the program; raises `HostCopyFailed` when its output is read and it has failed."""
        arguments = ["python3", "-c", _PROGRAM, verb, path, *options]
        command = Command(arguments=arguments, stdin=feeds)
        async with self._host.run(self._workspace_id, command) as execution:
            yield execution, self._output(execution)

    async def _output(self, execution: HostExecution) -> AsyncGenerator[bytes, None]:
        said = bytearray()
        async for stream, content in execution.output():
            if stream == "stdout":
                yield content
            else:
                said += content[: PIECE - len(said)]
        if execution.exit is None or execution.exit.exit_code != 0:
            lines = said.decode("utf-8", "replace").strip().splitlines() or ["it does not say why"]
            raise HostCopyFailed(self._host.address.destination, lines[-1])


async def _counted(
    pieces: AsyncIterator[bytes], progress: Progress | None
) -> AsyncGenerator[bytes, None]:
    async for piece in pieces:
        yield piece
        if progress is not None:
            progress(len(piece))
