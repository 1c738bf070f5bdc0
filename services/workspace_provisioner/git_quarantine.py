"""An upload on its way in: a git directory of its own that borrows from the store, until its
objects are moved there.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from workspace_provisioner.errors import (
    HostFull,
    PackInvalid,
    PackTooLarge,
    SnapshotIncomplete,
    UploadIdle,
)
from workspace_provisioner.file_deletion import move_to_trash
from workspace_provisioner.file_layout import Layout, sync_directory
from workspace_provisioner.file_work import FileWork
from workspace_provisioner.git_command import Git, GitTimedOut, Place
from workspace_provisioner.git_complaints import (
    FORGIVEN,
    first_line,
    pack_is_at_fault,
    pack_lacks_objects,
)
from workspace_provisioner.git_directory import make_git_directory
from workspace_provisioner.sources import ProjectKey
from workspace_provisioner.workspaces import Snapshot

_COMPLAINT_BYTES = 16 * 1024
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
    """One upload. `exclusive` locks the store; `settle` pins a snapshot once its objects are in."""

    def __init__(
        self,
        *,
        layout: Layout,
        git: Git,
        files: FileWork,
        intake: Intake,
        key: ProjectKey,
        exclusive: Callable[[], AbstractAsyncContextManager[None]],
        settle: Callable[[Snapshot], Awaitable[None]],
    ) -> None:
        self._layout = layout
        self._git = git
        self._files = files
        self._intake = intake
        self._key = key
        self._exclusive = exclusive
        self._settle = settle
        self._store = layout.store(key)
        self._path = layout.incoming / secrets.token_hex(16)

    async def open(self) -> None:
        """Make the directory."""
        await self._files.run(
            make_git_directory,
            self._path,
            object_format=self._key.object_format,
            bare=True,
            alternate=self._store / "objects",
        )

    async def close(self) -> None:
        """Throw away what was not admitted."""
        await self._files.run(move_to_trash, self._path, self._layout.trash)

    async def receive(self, chunks: AsyncIterator[bytes]) -> int:
        first = await self._next(chunks)
        if first is None:
            return 0
        complaints = os.open(
            self._path / "complaints", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            async with self._git.started(
                "index-pack", "--stdin", "--fix-thin", f"--strict={FORGIVEN}",
                f"--max-input-size={self._intake.pack_bytes}",
                place=Place(self._path, config={"core.fsync": "all"}),
                complaints=complaints,
            ) as process:  # fmt: skip
                size, head = await self._feed(process, first, chunks)
                try:
                    async with asyncio.timeout(self._intake.git_seconds):
                        await process.communicate()
                except TimeoutError:
                    raise PackInvalid("git took too long to index it") from None
                status = process.returncode
            complaint = os.pread(complaints, _COMPLAINT_BYTES, 0).decode("utf-8", "replace")
        finally:
            os.close(complaints)
        if status != 0:
            raise _refusal(complaint)
        if head.startswith(_EMPTY_PACK):
            await self._files.run(_drop_packs, self._path / "objects/pack")
        return size

    async def _feed(
        self, process: asyncio.subprocess.Process, chunk: bytes | None, chunks: AsyncIterator[bytes]
    ) -> tuple[int, bytes]:
        """Write the pack to git; returns its size and its first bytes. Git may end early: then
        its status says why.
        """
        stdin = process.stdin
        assert stdin is not None  # noqa: S101 - it was asked for
        size, head = 0, b""
        try:
            while chunk is not None:
                size += len(chunk)
                if size > self._intake.pack_bytes:
                    raise PackTooLarge(limit=self._intake.pack_bytes)
                if len(head) < len(_EMPTY_PACK):
                    head += chunk[: len(_EMPTY_PACK)]
                stdin.write(chunk)
                await stdin.drain()
                chunk = await self._next(chunks)
            stdin.close()
            await stdin.wait_closed()
        except (BrokenPipeError, ConnectionResetError):
            pass
        return size, head

    async def _next(self, chunks: AsyncIterator[bytes]) -> bytes | None:
        """Return the next bytes that are not empty, or None at the end."""
        try:
            async with asyncio.timeout(self._intake.idle_seconds):
                async for chunk in chunks:
                    if chunk:
                        return chunk
        except TimeoutError:
            raise UploadIdle(seconds=self._intake.idle_seconds) from None
        return None

    async def admit(self, snapshot: Snapshot) -> None:
        async with self._exclusive():
            exists = await self._files.run((self._store / "objects").is_dir)
            if exists:
                # The store's own refs say what need not be walked again.
                place = Place(
                    self._store,
                    objects=self._path / "objects",
                    alternates=(self._store / "objects",),
                )
            else:
                place = Place(self._path)
            try:
                await self._check_kinds(snapshot, place)
                await self._check_connected(snapshot, place)
            except GitTimedOut:
                raise SnapshotIncomplete("git took too long to walk its objects") from None
            await self._files.run(self._move_in, exists)
            await self._settle(snapshot)

    async def _check_kinds(self, snapshot: Snapshot, place: Place) -> None:
        kinds = dict.fromkeys(snapshot.commits, "commit")
        if snapshot.changes_tree:
            kinds[snapshot.changes_tree] = "tree"
        found = await self._git.run(
            "cat-file", "--batch-check=%(objectname) %(objecttype)", "--buffer",
            place=place,
            given="".join(f"{oid}\n" for oid in kinds).encode(),
        )  # fmt: skip
        answers = dict(
            line.split(" ", 1) for line in found.output.decode("ascii", "replace").splitlines()
        )
        for oid, kind in kinds.items():
            if answers.get(oid) != kind:
                raise SnapshotIncomplete(f"{kind} {oid} is not there")

    async def _check_connected(self, snapshot: Snapshot, place: Place) -> None:
        """Walk what is new, as git itself does after a fetch (connected.c): all that it reaches
        must exist.
        """
        roots = (*snapshot.commits, *([snapshot.changes_tree] if snapshot.changes_tree else []))
        walked = await self._git.run(
            "rev-list", "--objects", "--stdin", "--not", "--all", "--quiet",
            place=place,
            given="".join(f"{oid}\n" for oid in roots).encode(),
            seconds=self._intake.git_seconds,
        )  # fmt: skip
        if not walked.succeeded:
            raise SnapshotIncomplete(first_line(walked.complaint))

    def _move_in(self, exists: bool) -> None:
        """Move the packs into the store, index last, since git looks for indexes."""
        if not exists:
            self._make_store()
        source, target = self._path / "objects/pack", self._store / "objects/pack"
        for suffix in (".pack", ".rev", ".idx"):
            for path in source.glob(f"*{suffix}"):
                if not (target / path.name).exists():
                    path.rename(target / path.name)
        sync_directory(target)

    def _make_store(self) -> None:
        self._store.parent.mkdir(mode=0o700, exist_ok=True)
        draft = self._path / "store"
        make_git_directory(draft, object_format=self._key.object_format, bare=True)
        (draft / "snapshots").mkdir(mode=0o700)
        with suppress(FileExistsError):
            draft.rename(self._store)
        sync_directory(self._store.parent)
        sync_directory(self._layout.root)


def _refusal(complaint: str) -> Exception:
    if pack_lacks_objects(complaint):
        return SnapshotIncomplete(first_line(complaint))
    if pack_is_at_fault(complaint):
        return PackInvalid(first_line(complaint))
    return HostFull("its disk or memory is full")


def _drop_packs(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()
