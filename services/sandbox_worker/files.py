"""Works on the files of sandboxes: one agent inside the walls per request, so that a slow one keeps
no other waiting and a killed one harms no other.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from chassis.errors import FairleadError
from chassis.limits import check_size
from fairlead_limits.table import FILE_PAGE_SIZE, FILE_PIECE_BYTES
from sandbox_worker.errors import ArgumentInvalid, SandboxLost, SandboxNotFound
from sandbox_worker.execution import ExitReason
from sandbox_worker.file import (
    DEFAULT_PAGE,
    FileChange,
    FileEvent,
    FileOperation,
    FileOutcome,
    FilePage,
    FileStat,
    MakeDirectory,
    MoveFile,
    ReadFile,
    RemoveFile,
    StatFile,
    TreeSize,
    WatchEnd,
    WatchEndReason,
    WatchFrame,
    WatchGap,
    WatchStarted,
    WriteFile,
    WriteMode,
    WriteOrder,
)
from sandbox_worker.file_agent.frames import ANSWER, CONTENT, END
from sandbox_worker.file_errors import FileAgentLost, FilesBusy, file_error
from sandbox_worker.file_line import FileLine, read_number, read_stat
from sandbox_worker.held_sandbox import HeldSandbox
from sandbox_worker.ports import Enclosure

_MOST_AT_ONCE = 16
_MOST_WATCHES = 16
_MOST_OFFSET = 2**62
_PERMISSIONS = 0o777
_LONGEST_ETAG = 64


class Sandboxes(Protocol):
    """The sandboxes of this host, as far as their files go."""

    def enter(self, tenant: str, sandbox_id: str) -> tuple[HeldSandbox, Enclosure]:
        """Return a sandbox that can be used; raises SandboxNotFound."""
        ...


@dataclass(slots=True)
class _Turns:
    """The requests of one sandbox that are under way or wait for their turn."""

    free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MOST_AT_ONCE))
    watches: int = 0
    users: int = 0


class Files:
    """The files of this host's sandboxes.

    Every call raises SandboxNotFound, FilesBusy, FileAgentLost, FileAgentSilent and the errors of
    `file_errors` by reason. `silence` is how many seconds an agent may say nothing.
    """

    def __init__(self, *, sandboxes: Sandboxes, silence: float, wait: float) -> None:
        self._sandboxes = sandboxes
        self._silence = silence
        self._wait = wait
        self._turns: dict[str, _Turns] = {}

    async def stat(
        self, *, tenant: str, sandbox_id: str, path: bytes, follow: bool = True
    ) -> FileStat:
        """Describe a file, or with `follow` unset a link itself."""
        async with self._asked(tenant, sandbox_id, b"stat", path, int(follow)) as line:
            return read_stat(await line.answer())

    async def list(
        self, *, tenant: str, sandbox_id: str, path: bytes, page_size: int, page_token: str
    ) -> FilePage:
        """List a page of a directory by name."""
        check_size(FILE_PAGE_SIZE, page_size)
        size = page_size or DEFAULT_PAGE
        after = _from_token(page_token)
        async with self._asked(tenant, sandbox_id, b"list", path, after, size) as line:
            found: list[FileStat] = []
            while (frame := await line.next()).kind == ANSWER and len(found) < size:
                found.append(read_stat(frame.fields))
            if frame.kind != END:
                raise FileAgentLost
            return FilePage(tuple(found), _to_token(frame.payload))

    async def read(
        self, *, tenant: str, sandbox_id: str, path: bytes, offset: int, length: int | None
    ) -> AsyncGenerator[FileStat | bytes, None]:
        """Give what a file is, then a range of it; a negative offset counts from its end."""
        if not -_MOST_OFFSET <= offset <= _MOST_OFFSET:
            raise ArgumentInvalid("offset", "is between -2^62 and 2^62")
        if length is not None and not 0 <= length <= _MOST_OFFSET:
            raise ArgumentInvalid("length", "is between 0 and 2^62")
        wanted = b"" if length is None else b"%d" % length
        async with self._asked(tenant, sandbox_id, b"read", path, offset, wanted) as line:
            yield read_stat(await line.answer())
            async for piece in _content(line):
                yield piece

    async def write(
        self, *, tenant: str, sandbox_id: str, order: WriteOrder, content: AsyncIterator[bytes]
    ) -> FileStat:
        """Write a file as `order` says; what breaks off before its end changes a whole file not
        at all.
        """
        _check(order)
        async with self._asked(
            tenant,
            sandbox_id,
            b"write",
            order.path,
            order.mode.encode(),
            order.offset,
            int(order.truncate),
            b"" if order.permissions is None else b"%d" % order.permissions,
            int(order.parents),
            order.if_match.encode("ascii", "replace"),
        ) as line:
            return read_stat(await line.feed(content))

    async def make_directory(
        self, *, tenant: str, sandbox_id: str, path: bytes, parents: bool
    ) -> FileStat:
        """Make a directory, with `parents` also those above it."""
        async with self._asked(tenant, sandbox_id, b"mkdir", path, int(parents)) as line:
            return read_stat(await line.answer())

    async def move(
        self, *, tenant: str, sandbox_id: str, source: bytes, target: bytes, overwrite: bool
    ) -> FileStat:
        """Rename a file or a tree."""
        _check_path(target)
        async with self._asked(tenant, sandbox_id, b"move", source, target, int(overwrite)) as line:
            return read_stat(await line.answer())

    async def remove(self, *, tenant: str, sandbox_id: str, path: bytes, recursive: bool) -> None:
        """Remove a file, or with `recursive` a tree."""
        async with self._asked(tenant, sandbox_id, b"remove", path, int(recursive)) as line:
            await line.answer()

    async def watch(
        self, *, tenant: str, sandbox_id: str, path: bytes, recursive: bool
    ) -> AsyncGenerator[WatchFrame, None]:
        """Give `WatchStarted`, then changes, then exactly one `WatchEnd`."""
        held, _ = self._sandboxes.enter(tenant, sandbox_id)
        sequence = 0
        async with self._asked(
            tenant, sandbox_id, b"watch", path, int(recursive), is_watch=True
        ) as line:
            fields = await line.answer()
            if len(fields) != 2 or fields[0] != b"started":
                raise FileAgentLost
            yield WatchStarted(read_number(fields[1]))
            while True:
                try:
                    fields = (await line.next(patient=True)).fields
                except FileAgentLost:
                    if held.ending is not ExitReason.RELEASED:
                        raise
                    yield WatchEnd(sequence, WatchEndReason.RELEASED)
                    return
                if fields == [b"removed"]:
                    yield WatchEnd(sequence, WatchEndReason.REMOVED)
                    return
                sequence += 1
                yield WatchGap(sequence) if fields == [b"gap"] else _event(sequence, fields)

    async def upload(
        self,
        *,
        tenant: str,
        sandbox_id: str,
        path: bytes,
        parents: bool,
        content: AsyncIterator[bytes],
    ) -> TreeSize:
        """Unpack a tar stream below a directory."""
        async with self._asked(tenant, sandbox_id, b"upload", path, int(parents)) as line:
            fields = await line.feed(content)
            if len(fields) != 2:
                raise FileAgentLost
            return TreeSize(read_number(fields[0]), read_number(fields[1]))

    async def download(
        self, *, tenant: str, sandbox_id: str, path: bytes
    ) -> AsyncGenerator[bytes, None]:
        """Give a file or a directory as a tar stream; an empty piece comes first, once it is known
        that it can be read.
        """
        async with self._asked(tenant, sandbox_id, b"download", path) as line:
            await line.answer()
            yield b""
            async for piece in _content(line):
                yield piece

    async def perform(
        self, *, tenant: str, sandbox_id: str, operation: FileOperation
    ) -> FileOutcome:
        """Do one step of a batch."""
        place = {"tenant": tenant, "sandbox_id": sandbox_id}
        match operation:
            case WriteFile(path, content, permissions, parents):
                if len(content) > FILE_PIECE_BYTES:
                    raise ArgumentInvalid("content", f"has at most {FILE_PIECE_BYTES} bytes")
                order = WriteOrder(path=path, permissions=permissions, parents=parents)
                return FileOutcome(await self.write(**place, order=order, content=_once(content)))
            case ReadFile(path):
                return await self._read_small(tenant, sandbox_id, path)
            case RemoveFile(path, recursive):
                await self.remove(**place, path=path, recursive=recursive)
                return FileOutcome()
            case MoveFile(source, target, overwrite):
                return FileOutcome(
                    await self.move(**place, source=source, target=target, overwrite=overwrite)
                )
            case MakeDirectory(path, parents):
                return FileOutcome(await self.make_directory(**place, path=path, parents=parents))
            case StatFile(path, follow):
                return FileOutcome(await self.stat(**place, path=path, follow=follow))

    async def _read_small(self, tenant: str, sandbox_id: str, path: bytes) -> FileOutcome:
        found, content = None, bytearray()
        async for each in self.read(
            tenant=tenant, sandbox_id=sandbox_id, path=path, offset=0, length=None
        ):
            if isinstance(each, FileStat):
                found = each
                if each.size > FILE_PIECE_BYTES:
                    raise file_error("file_too_large", path)
            elif len(content) + len(each) > FILE_PIECE_BYTES:
                raise FileAgentLost
            else:
                content += each
        return FileOutcome(found, bytes(content))

    @asynccontextmanager
    async def _asked(
        self,
        tenant: str,
        sandbox_id: str,
        verb: bytes,
        path: bytes,
        *fields: bytes | int,
        is_watch: bool = False,
    ) -> AsyncIterator[FileLine]:
        """Ask a fresh agent, and leave it at the end."""
        _check_path(path)
        held, _ = self._sandboxes.enter(tenant, sandbox_id)
        async with self._turn(sandbox_id, is_watch=is_watch):
            _, enclosure = self._sandboxes.enter(tenant, sandbox_id)
            try:
                agent = await enclosure.files()
            except SandboxLost:
                raise SandboxNotFound(sandbox_id) from None
            line = FileLine(link=agent.link, kill=agent.kill, silence=self._silence)
            try:
                await line.ask(verb, path, *fields)
                yield line
            except FileAgentLost:
                raise _lost(held) from None
            finally:
                line.close()

    @asynccontextmanager
    async def _turn(self, sandbox_id: str, *, is_watch: bool) -> AsyncIterator[None]:
        turns = self._turns.setdefault(sandbox_id, _Turns())
        turns.users += 1
        try:
            if is_watch:
                if turns.watches >= _MOST_WATCHES:
                    raise FilesBusy(_MOST_WATCHES)
                turns.watches += 1
                try:
                    yield
                finally:
                    turns.watches -= 1
                return
            try:
                async with asyncio.timeout(self._wait):
                    await turns.free.acquire()
            except TimeoutError:
                raise FilesBusy(_MOST_AT_ONCE) from None
            try:
                yield
            finally:
                turns.free.release()
        finally:
            turns.users -= 1
            if turns.users == 0:
                self._turns.pop(sandbox_id, None)


async def _content(line: FileLine) -> AsyncIterator[bytes]:
    while (frame := await line.next()).kind == CONTENT:
        yield frame.payload
    if frame.kind != END:
        raise FileAgentLost


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


def _lost(held: HeldSandbox) -> FairleadError:
    """Say why an agent ended in the middle."""
    if held.ending is not None:
        return SandboxNotFound(held.sandbox.sandbox_id)
    return FileAgentLost()


def _event(sequence: int, fields: list[bytes]) -> FileEvent:
    try:
        change, path, source, is_directory = fields
        return FileEvent(
            sequence, FileChange(change.decode("ascii")), path, source, is_directory == b"1"
        )
    except ValueError:
        raise FileAgentLost from None


def _check(order: WriteOrder) -> None:
    if order.mode is not WriteMode.RANGE and (order.offset or order.truncate):
        raise ArgumentInvalid("offset", "is for writing into a file")
    if not 0 <= order.offset <= _MOST_OFFSET:
        raise ArgumentInvalid("offset", "is between 0 and 2^62")
    if order.permissions is not None and not 0 <= order.permissions <= _PERMISSIONS:
        raise ArgumentInvalid("permissions", "is between 0 and 0777")
    if len(order.if_match) > _LONGEST_ETAG or "\0" in order.if_match:
        raise ArgumentInvalid("if_match", f"has at most {_LONGEST_ETAG} characters")


def _check_path(path: bytes) -> None:
    if b"\0" in path or len(path) > 4095:
        raise file_error("path_invalid")


def _to_token(name: bytes) -> str:
    return urlsafe_b64encode(name).decode() if name else ""


def _from_token(token: str) -> bytes:
    try:
        name = urlsafe_b64decode(token.encode("ascii"))
    except (Base64Error, ValueError):
        raise ArgumentInvalid("page_token", "is one of an answer") from None
    if len(name) > 255 or b"\0" in name:
        raise ArgumentInvalid("page_token", "is one of an answer")
    return name
