"""Uploads after a miss: a one-time token leads a client's pack straight to the host that lacks it,
which makes the workspace in the same call.

The time to upload is counted only while no upload is under way. A failed upload leaves the token
good; a successful one uses it up, but after one of tips alone it takes their history too.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta

from chassis.clock import Clock
from chassis.errors import DeadlineExceeded
from signalling.host import Host
from signalling.launch_errors import UploadTimeout, UploadTokenInvalid, UploadUnderWay
from signalling.snapshot import Miss, Tip
from signalling.source_rules import check_tips
from signalling.workspace import Imported, OpenMiss, Workspace, WorkspaceOrder
from signalling.workspace_ports import Workspaces

_HISTORY_SECONDS = 3600.0
_MOST_ANNOUNCED = 64


class UploadStalled(DeadlineExceeded):
    """The client stopped sending in the middle of a pack."""

    def __init__(self) -> None:
        super().__init__(
            "The upload stalled.",
            reason="upload_stalled",
            remedy="Upload again with the same token.",
        )


class AwaitedUpload:
    """What one miss waits for.

    Where somebody waits (`is_waited_for`), the token is good until they leave; else for the time to
    upload. A history that is still to come it takes for an hour, whoever has left.
    """

    def __init__(
        self,
        *,
        tenant: str,
        host: Host,
        order: WorkspaceOrder,
        token: str,
        seconds: float,
        is_waited_for: bool,
        clock: Clock,
    ) -> None:
        self.tenant = tenant
        self.host = host
        self.order = order
        self.token = token
        self.expires_at: datetime = clock.now() + timedelta(seconds=seconds)
        # The miss's own: its trace is in it, and the import is a part of what missed.
        self.context = contextvars.copy_context()
        self.done = asyncio.Event()
        self.closed = asyncio.Event()
        self._is_waited_for = is_waited_for
        self._clock = clock
        self._left = seconds
        self._ends = clock.monotonic() + seconds
        self._left_at_start = seconds
        self._under_way = False
        self._history_due = False
        self._tries = 0
        self._made: Workspace | None = None
        self._change = asyncio.Event()

    @property
    def is_good(self) -> bool:
        """Say whether an upload may still come; one that is under way keeps the token good."""
        if self.done.is_set() and not self._history_due:
            return False
        if self._under_way or (self._is_waited_for and not self.done.is_set()):
            return True
        return self._clock.monotonic() < self._ends

    @property
    def is_idle(self) -> bool:
        """Say whether nobody waits with it and nothing is under way."""
        waits = self._is_waited_for and not self._history_due
        return not waits and not self._under_way

    @property
    def history_due(self) -> bool:
        """Say whether the tips are there and only their history is still to come."""
        return self._history_due

    async def wait(self) -> Workspace | None:
        """Return the workspace that an upload led to; None when one has ended without one. Raises
        UploadTimeout when none came in time.
        """
        tries = self._tries
        while not self.done.is_set() and self._tries == tries:
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
        return self._made

    def begin(self) -> None:
        """Note that an upload is under way; raises UploadUnderWay when there is one."""
        if self._under_way:
            raise UploadUnderWay
        self._under_way = True
        self._left_at_start = self._ends - self._clock.monotonic()
        self._announce()

    def fail(self) -> None:
        """Note that it has failed."""
        self._under_way = False
        self._ends = self._clock.monotonic() + self._left_at_start
        self._tries += 1
        self._announce()

    def succeed(self, made: Workspace | Miss | None, *, tips_only: bool) -> None:
        """Note that it has succeeded, and what was made of it."""
        self._under_way = False
        self._history_due = tips_only
        if tips_only:
            self._ends = self._clock.monotonic() + _HISTORY_SECONDS
            self.order = replace(self.order, source=replace(self.order.source, changes=None))
        if isinstance(made, Workspace):
            self._made = made
        self.done.set()
        self._announce()

    def _announce(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()


class Uploads:
    """The uploads that misses of this replica wait for."""

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
    def expect(self, *, tenant: str, host: Host, order: WorkspaceOrder) -> Iterator[AwaitedUpload]:
        """Give out a token for one upload; it is good inside the context, and for a history that
        is still to come for an hour.
        """
        awaited = self._await(tenant=tenant, host=host, order=order, is_waited_for=True)
        try:
            yield awaited
        finally:
            if not awaited.history_due:
                self._awaited.pop(_digest(awaited.token), None)
                awaited.closed.set()

    def announce(self, miss: Miss, *, tenant: str, host: Host, order: WorkspaceOrder) -> OpenMiss:
        """Give out a token for a miss that nobody waits with; it is good for the time to upload."""
        idle = [
            place for place, each in self._awaited.items() if each.tenant == tenant and each.is_idle
        ]
        for place in idle[: max(0, len(idle) + 1 - _MOST_ANNOUNCED)]:
            del self._awaited[place]  # The oldest: each holds a request's packs in memory.
        awaited = self._await(tenant=tenant, host=host, order=order, is_waited_for=False)
        return OpenMiss(miss, awaited.token, awaited.expires_at)

    def _await(
        self,
        *,
        tenant: str,
        host: Host,
        order: WorkspaceOrder,
        is_waited_for: bool,
    ) -> AwaitedUpload:
        for place in [place for place, each in self._awaited.items() if not each.is_good]:
            del self._awaited[place]
        awaited = AwaitedUpload(
            tenant=tenant,
            host=host,
            order=replace(order, source=replace(order.source, commits=None)),
            token=self._make_token(),
            seconds=self._timeout,
            is_waited_for=is_waited_for,
            clock=self._clock,
        )
        self._awaited[_digest(awaited.token)] = awaited
        return awaited

    async def accept(
        self,
        tenant: str,
        token: str,
        tips: tuple[Tip, ...],
        chunks: AsyncIterator[bytes],
        *,
        tips_only: bool = False,
    ) -> Imported:
        """Stream a pack to the host of the miss that gave `token`; return when it is durable there
        and the workspace is made.

        Raises UploadTokenInvalid, UploadUnderWay, UploadStalled, InvalidRequest and what the host
        refuses (`pack_invalid`, `snapshot_incomplete`, `pack_too_large`, and what it refuses a
        workspace for).
        """
        awaited = self._awaited.get(_digest(token))
        if awaited is None or awaited.tenant != tenant or not awaited.is_good:
            raise UploadTokenInvalid
        check_tips(tips, awaited.order.source.object_format)
        is_history = awaited.history_due
        awaited.begin()
        try:
            imported = await self._import(awaited, tips, chunks, tips_only=tips_only)
        except BaseException:
            awaited.fail()
            raise
        awaited.succeed(imported.made, tips_only=tips_only and not is_history)
        return imported

    async def _import(
        self,
        awaited: AwaitedUpload,
        tips: tuple[Tip, ...],
        chunks: AsyncIterator[bytes],
        *,
        tips_only: bool,
    ) -> Imported:
        """Import, unless what missed ends before."""
        importing = asyncio.create_task(
            self._workspaces.import_snapshot(
                awaited.host,
                tenant=awaited.tenant,
                source=awaited.order.source,
                tips=tips,
                chunks=self._watched(chunks),
                tips_only=tips_only,
                order=None if awaited.history_due else awaited.order,
            ),
            context=awaited.context,
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
