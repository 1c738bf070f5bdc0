"""An upload on its way in: a git directory of its own that borrows from the store, until its
objects are moved there.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from workspace_provisioner.disk.deletion import move_to_trash
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.errors import (
    HostFull,
    PackInvalid,
    PackTooLarge,
    SnapshotIncomplete,
    UploadIdle,
    UploadSlow,
)
from workspace_provisioner.git.command import Git, Place
from workspace_provisioner.git.complaints import (
    FORGIVEN,
    first_line,
    is_out_of_memory,
    pack_is_at_fault,
    pack_lacks_objects,
)
from workspace_provisioner.git.content import GitContent
from workspace_provisioner.git.directory import make_git_directory
from workspace_provisioner.git.pack_objects import Found
from workspace_provisioner.git.process import GitProcess
from workspace_provisioner.sources import ProjectKey
from workspace_provisioner.store.admission import write_shallow
from workspace_provisioner.store.grown_trees import GrownTrees
from workspace_provisioner.workspaces import Snapshot

_COMPLAINT_BYTES = 16 * 1024
_SMALL_PACK = 1024 * 1024
_SLOWEST = 32 * 1024
"""Bytes a second below which an upload may not fall in the long run."""
_EMPTY_PACK = b"PACK\x00\x00\x00\x02\x00\x00\x00\x00"


@dataclass(frozen=True, slots=True)
class Intake:
    """Limits of an upload: bytes in all, seconds without any, seconds that git may work on it
    afterwards.
    """

    pack_bytes: int
    idle_seconds: float
    git_seconds: float


class GitQuarantine:
    """One upload. `admit` lets what is in the directory into the store; `shallow` are commits that
    come without their parents.
    """

    def __init__(
        self,
        *,
        layout: Layout,
        git: Git,
        files: FileWork,
        content: GitContent,
        grown: GrownTrees,
        intake: Intake,
        key: ProjectKey,
        name: str,
        shallow: tuple[str, ...],
        admit: Callable[
            [Path, Snapshot, Mapping[str, str], Callable[[], Awaitable[None]]], Awaitable[Snapshot]
        ],
    ) -> None:
        self._layout = layout
        self._git = git
        self._files = files
        self._content = content
        self._grown = grown
        self._intake = intake
        self._key = key
        self._shallow = shallow
        self._admit = admit
        self._store = layout.store(key)
        self._path = layout.incoming / name
        self._size = 0
        self._waited = 0.0
        self._objects: Mapping[str, Found] = {}

    async def open(self) -> None:
        """Make the directory."""
        await self._files.run(
            make_git_directory,
            self._path,
            object_format=self._key.object_format,
            bare=True,
        )
        if self._shallow:
            await self._files.run(write_shallow, self._path, self._shallow)

    async def close(self) -> None:
        """Throw away what was not admitted."""
        await self._files.run(move_to_trash, self._path, self._layout.trash)

    async def receive(self, chunks: AsyncIterator[bytes]) -> int:
        """Index a pack, within all limits of what may be in one."""
        head = b""
        while len(head) <= _SMALL_PACK and (chunk := await self._next(chunks)):
            head += chunk
        if not head:
            return 0
        if len(head) <= _SMALL_PACK:
            # It is whole; git does not begin on a small pack that becomes a large one.
            await self._content.check_small_pack(head, self._key.object_format)
        indexed, read = await asyncio.gather(
            self._index(head, chunks), self._read(head), return_exceptions=True
        )
        for each in (indexed, read):
            if isinstance(each, BaseException):
                raise each
        if head.startswith(_EMPTY_PACK):
            await self._files.run(_drop_packs, self._path / "objects/pack")
        return self._size

    async def _read(self, head: bytes) -> None:
        """Read a small pack here too, while git indexes it."""
        if len(head) <= _SMALL_PACK:
            lender = self._store if self._lenders() else None
            self._objects = await self._grown.read(lender, self._key.object_format, head)

    async def _index(self, head: bytes, chunks: AsyncIterator[bytes]) -> None:
        complaints = os.open(
            self._path / "complaints", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            async with self._git.started(
                "index-pack", "--stdin", "--fix-thin", f"--strict={FORGIVEN}",
                f"--max-input-size={self._intake.pack_bytes}",
                # Flushed while it is checked; see GitAdmission.
                place=Place(
                    self._path, alternates=self._lenders(), config={"core.fsync": "none"}
                ),
                complaints=complaints,
            ) as process:  # fmt: skip
                await self._feed(process, head, chunks)
                try:
                    async with asyncio.timeout(self._intake.git_seconds):
                        await process.communicate()
                except TimeoutError:
                    raise PackInvalid("git took too long to index it") from None
                status = await process.outcome()
            if status != 0:
                complaint = os.pread(complaints, _COMPLAINT_BYTES, 0)
                raise self._refusal(status, complaint.decode("utf-8", "replace"))
        finally:
            os.close(complaints)

    def _lenders(self) -> tuple[Path, ...]:
        """Return where bases of thin packs may be: in the tenant's own store of the project."""
        objects = self._store / "objects"
        return (objects,) if objects.is_dir() else ()

    async def _feed(
        self, process: GitProcess, chunk: bytes | None, chunks: AsyncIterator[bytes]
    ) -> None:
        """Write the pack to git, which may end early: then its status says why."""
        stdin = process.stdin
        assert stdin is not None  # noqa: S101 - it was asked for
        try:
            while chunk is not None:
                stdin.write(chunk)
                await stdin.drain()
                chunk = await self._next(chunks)
            stdin.close()
            await stdin.wait_closed()
        except (BrokenPipeError, ConnectionResetError):
            pass

    async def _next(self, chunks: AsyncIterator[bytes]) -> bytes | None:
        """Return the next bytes that are not empty, or None at the end.

        Raises UploadIdle, UploadSlow and PackTooLarge. What git takes for its work is not counted.
        """
        loop = asyncio.get_running_loop()
        idle = self._intake.idle_seconds
        patience = 2 * idle + self._size / _SLOWEST - self._waited
        before = loop.time()
        try:
            async with asyncio.timeout(min(idle, patience)):
                async for chunk in chunks:
                    if chunk:
                        self._size += len(chunk)
                        if self._size > self._intake.pack_bytes:
                            raise PackTooLarge(limit=self._intake.pack_bytes)
                        return chunk
        except TimeoutError:
            if patience < idle:
                raise UploadSlow(bytes_per_second=_SLOWEST) from None
            raise UploadIdle(seconds=idle) from None
        finally:
            self._waited += loop.time() - before
        return None

    async def admit(self, snapshot: Snapshot) -> Snapshot:
        """Let the objects into the store once they, and the trees that are wanted, fit."""
        kinds = {oid: kind for oid, (kind, _) in self._objects.items()}
        check = partial(self._check_content, snapshot)
        return await self._admit(self._path, snapshot, kinds, check)

    async def _check_content(self, snapshot: Snapshot) -> None:
        lenders = self._lenders()
        if self._objects and lenders:
            await self._grown.fits(
                self._store, self._key.object_format, self._objects, snapshot.commit
            )
        place = Place(self._path, alternates=lenders)
        checks = [
            self._content.check_tree(place, root)
            for root in (snapshot.commit, snapshot.changes_tree)
            if root
        ]
        if self._size > _SMALL_PACK:
            checks.insert(0, self._content.check_objects(Place(self._path)))
        for fault in await asyncio.gather(*checks, return_exceptions=True):
            if isinstance(fault, BaseException):
                raise fault

    def _refusal(self, status: int, complaint: str) -> Exception:
        limits = self._git.limits
        if is_out_of_memory(complaint):
            what = "bytes of memory that git needs to index it"
            return PackTooLarge(limit=limits.memory_bytes, what=what, setting="")
        if status == -signal.SIGXFSZ:
            return PackTooLarge(limit=limits.file_bytes, what="bytes when indexed", setting="")
        if status == -signal.SIGXCPU:
            return PackInvalid("git took too long to index it")
        if pack_lacks_objects(complaint):
            return SnapshotIncomplete(first_line(complaint))
        if pack_is_at_fault(complaint):
            return PackInvalid(first_line(complaint))
        return HostFull("its disk or memory is full")


def _drop_packs(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()
