"""Uploads after a miss: a one-time token leads a client's pack straight to the host that lacks it.

The time to upload is counted only while no upload is under way. A failed upload leaves the token
good; a successful one uses it up.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from chassis.clock import Clock
from chassis.errors import DeadlineExceeded
from signalling.host import Host
from signalling.launch_errors import UploadTimeout, UploadTokenInvalid, UploadUnderWay
from signalling.launch_request import check_tips
from signalling.ports import Workspaces
from signalling.snapshot import Snapshot, Source, Tip


class UploadStalled(DeadlineExceeded):
    """The client stopped sending in the middle of a pack."""

    def __init__(self) -> None:
        super().__init__(
            "The upload stalled.",
            reason="upload_stalled",
            remedy="Upload again with the same token.",
        )


class AwaitedUpload:
    """What one launch waits for."""

    def __init__(
        self,
        *,
        tenant: str,
        host: Host,
        source: Source,
        token: str,
        seconds: float,
        clock: Clock,
    ) -> None:
        self.tenant = tenant
        self.host = host
        self.source = source
        self.token = token
        self.expires_at: datetime = clock.now() + timedelta(seconds=seconds)
        # The launch's own: its trace is in it, and the import is a part of the launch.
        self.context = contextvars.copy_context()
        self._clock = clock
        self._left = seconds
        self._under_way = False
        self._change = asyncio.Event()
        self.done = asyncio.Event()
        self.closed = asyncio.Event()

    async def wait(self) -> None:
        """Return when an upload has succeeded; raises UploadTimeout when none came in time."""
        while not self.done.is_set():
            change = self._change
            if self._under_way:
                await change.wait()
                continue
            since = self._clock.monotonic()
            try:
                async with asyncio.timeout(self._left):
                    await change.wait()
            except TimeoutError:
                if not self._under_way and not self.done.is_set():
                    raise UploadTimeout from None
            self._left = max(0.0, self._left - (self._clock.monotonic() - since))

    def begin(self) -> None:
        """Note that an upload is under way; raises UploadUnderWay when there is one."""
        if self._under_way:
            raise UploadUnderWay
        self._under_way = True
        self._announce()

    def finish(self, *, succeeded: bool) -> None:
        """Note that it is not any more."""
        self._under_way = False
        if succeeded:
            self.done.set()
        self._announce()

    def _announce(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()


class Uploads:
    """The uploads that launches of this replica wait for."""

    def __init__(
        self,
        *,
        workspaces: Workspaces,
        clock: Clock,
        make_token: Callable[[], str],
        timeout_seconds: float,
        stall_seconds: float = 60.0,
    ) -> None:
        self._workspaces = workspaces
        self._clock = clock
        self._make_token = make_token
        self._timeout = timeout_seconds
        self._stall = stall_seconds
        self._awaited: dict[bytes, AwaitedUpload] = {}

    @contextmanager
    def expect(self, *, tenant: str, host: Host, source: Source) -> Iterator[AwaitedUpload]:
        """Give out a token for one upload; it is good inside the context."""
        awaited = AwaitedUpload(
            tenant=tenant,
            host=host,
            source=source,
            token=self._make_token(),
            seconds=self._timeout,
            clock=self._clock,
        )
        place = _digest(awaited.token)
        self._awaited[place] = awaited
        try:
            yield awaited
        finally:
            self._awaited.pop(place, None)
            awaited.closed.set()

    async def accept(
        self, tenant: str, token: str, tips: tuple[Tip, ...], chunks: AsyncIterator[bytes]
    ) -> Snapshot:
        """Stream a pack to the host of the launch that gave `token`; return when it is durable
        there.

        Raises UploadTokenInvalid, UploadUnderWay, UploadStalled, InvalidRequest and what the host
        refuses (`pack_invalid`, `snapshot_incomplete`, `pack_too_large`).
        """
        awaited = self._awaited.get(_digest(token))
        if awaited is None or awaited.tenant != tenant or awaited.done.is_set():
            raise UploadTokenInvalid
        check_tips(tips, awaited.source.object_format)
        awaited.begin()
        succeeded = False
        try:
            snapshot = await self._import(awaited, tips, chunks)
            succeeded = True
        finally:
            awaited.finish(succeeded=succeeded)
        return snapshot

    async def _import(
        self, awaited: AwaitedUpload, tips: tuple[Tip, ...], chunks: AsyncIterator[bytes]
    ) -> Snapshot:
        """Import, unless the launch ends before."""
        importing = asyncio.create_task(
            self._imported(awaited, tips, chunks), context=awaited.context
        )
        closed = asyncio.ensure_future(awaited.closed.wait())
        try:
            await asyncio.wait((importing, closed), return_when=asyncio.FIRST_COMPLETED)
            if not importing.done():
                raise UploadTokenInvalid
            return importing.result()
        finally:
            importing.cancel()
            closed.cancel()
            await asyncio.gather(importing, closed, return_exceptions=True)

    async def _imported(
        self, awaited: AwaitedUpload, tips: tuple[Tip, ...], chunks: AsyncIterator[bytes]
    ) -> Snapshot:
        return await self._workspaces.import_snapshot(
            awaited.host,
            tenant=awaited.tenant,
            source=awaited.source,
            tips=tips,
            chunks=self._watched(chunks),
        )

    async def _watched(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        while True:
            try:
                async with asyncio.timeout(self._stall):
                    chunk = await anext(chunks, None)
            except TimeoutError:
                raise UploadStalled from None
            if chunk is None:
                return
            if chunk:
                yield chunk


def _digest(token: str) -> bytes:
    """Look tokens up by their digest, so that comparing takes the same time for every wrong one."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
