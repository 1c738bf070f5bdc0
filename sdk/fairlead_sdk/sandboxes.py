"""Sandboxes of their own through the front door: make one, work in it, hold it and give it back."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import quote

from fairlead_sdk import json_form as form
from fairlead_sdk.client import FrontDoor
from fairlead_sdk.commands import AsyncCommands
from fairlead_sdk.errors import FairleadError
from fairlead_sdk.executions import AsyncExecutions
from fairlead_sdk.files import AsyncFiles
from fairlead_sdk.isolating import AsyncIsolating
from fairlead_sdk.json_form import JsonObject, JsonValue
from fairlead_sdk.network_records import NetworkRecord
from fairlead_sdk.sandbox_records import SandboxRecord, SandboxRequest
from fairlead_sdk.sessions import AsyncSessions
from fairlead_sdk.terminals import AsyncPty

if TYPE_CHECKING:
    from fairlead_sdk.forwarding import LocalPort

_PAGE = 100
_RELEASE_SECONDS = 30.0


class AsyncSandbox(AsyncIsolating):
    """A sandbox. As an async context manager it is released at the end of the block."""

    def __init__(
        self, *, record: SandboxRecord, door: FrontDoor, sandboxes: AsyncSandboxes
    ) -> None:
        self.record: SandboxRecord = record
        self.commands = AsyncCommands(
            executions=AsyncExecutions(door=door), sandbox_id=record.sandbox_id, directory=""
        )
        self.files = AsyncFiles(door=door, sandbox_id=record.sandbox_id)
        self.pty = AsyncPty(door=door, sandbox_id=record.sandbox_id)
        self._door = door
        self._sandboxes = sandboxes

    @property
    def sandbox_id(self) -> str:
        """Id of the sandbox."""
        return self.record.sandbox_id

    async def renew(self, *, lease: float | None = None) -> SandboxRecord:
        """Hold it for `lease` seconds from now, 30 minutes when absent."""
        self.record = await self._sandboxes.renew(self.sandbox_id, lease=lease)
        return self.record

    async def network(self) -> NetworkRecord:
        """Return what it reaches, and what it lately tried to reach."""
        return await self._sandboxes.network(self.sandbox_id)

    async def set_network(self, network: str, *, allow: Sequence[str] = ()) -> SandboxRecord:
        """Let another policy hold from now on; see `AsyncSandboxes.set_network`."""
        self.record = await self._sandboxes.set_network(self.sandbox_id, network, allow=allow)
        return self.record

    async def release(self) -> bool:
        """Give it back; returns when nothing of it is left, and says whether this call did it."""
        released = await self._sandboxes.release(self.sandbox_id)
        await self._close_objects()
        return released

    def forward(
        self, *, remote_port: int, local_port: int = 0
    ) -> AbstractAsyncContextManager[LocalPort]:
        """Lead a local port (0: a free one) to a port inside the sandbox."""
        from fairlead_sdk.forwarding import forward

        sessions = AsyncSessions(door=self._door)
        return forward(sessions, self.sandbox_id, remote_port, local_port)

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release it, even while we are being cancelled; what fails here the lease will reclaim."""

        async def release() -> None:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self.release()

        try:
            with contextlib.suppress(FairleadError, TimeoutError):
                await asyncio.shield(release())
        finally:
            await self._close_objects()


class AsyncSandboxes:
    """The caller's sandboxes, with or without a launch."""

    def __init__(self, *, door: FrontDoor) -> None:
        self._door = door

    async def create(
        self,
        *,
        isolation: str = "",
        profile: str = "",
        limits: Mapping[str, float] | None = None,
        network: str = "",
        allow: Sequence[str] = (),
        lease: float | None = None,
        workspace_id: str = "",
        host_id: str = "",
    ) -> AsyncSandbox:
        """Make a sandbox, bound to a workspace when one is named; see `SandboxRequest`.

        What is demanded is had or refused: raises `IsolationUnavailable`, `NetworkUnavailable`,
        `ProfileUnknown`, `LimitExceeded`, `WorkspaceNotFound` and what else the front door refuses.
        """
        request = SandboxRequest(
            isolation=isolation,
            profile=profile,
            limits=limits or {},
            network=network,
            allow=allow,
        )
        body: JsonObject = request.document()
        if lease is not None:
            body["lease"] = lease
        texts = {"workspace_id": workspace_id, "host_id": host_id}
        body.update({name: text for name, text in texts.items() if text})
        return self._opened(await self._door.post("/v1/sandboxes", body))

    async def get(self, sandbox_id: str) -> AsyncSandbox:
        """Return a sandbox that is there; raises `SandboxNotFound`."""
        return self._opened(await self._door.get(_path(sandbox_id)))

    async def list(
        self, *, limit: int = 100, on_unanswered: Callable[[str], None] | None = None
    ) -> tuple[SandboxRecord, ...]:
        """List sandboxes, also those of launches, by id; `on_unanswered` hears the id of each host
        that did not answer, whose sandboxes are not in the list.
        """
        found: builtins.list[SandboxRecord] = []
        silent: dict[str, None] = {}
        token = ""
        while True:
            params = {"page_size": str(min(_PAGE, limit - len(found)))}
            if token:
                params["page_token"] = token
            page = await self._door.get("/v1/sandboxes", params)
            found += (SandboxRecord.read(each) for each in form.children(page, "sandboxes"))
            silent.update(dict.fromkeys(form.texts(page, "unanswered_hosts")))
            token = form.text(page, "next_page_token")
            if not token or len(found) >= limit:
                break
        if on_unanswered is not None:
            for host_id in silent:
                on_unanswered(host_id)
        return tuple(found[:limit])

    async def renew(self, sandbox_id: str, *, lease: float | None = None) -> SandboxRecord:
        """Hold it for `lease` seconds from now, 30 minutes when absent."""
        body: dict[str, JsonValue] = {} if lease is None else {"lease": lease}
        return SandboxRecord.read(await self._door.post(f"{_path(sandbox_id)}/renew", body))

    async def network(self, sandbox_id: str) -> NetworkRecord:
        """Return what a sandbox reaches, also a launch's, and what it lately tried to reach."""
        return NetworkRecord.read(await self._door.get(f"{_path(sandbox_id)}/network"))

    async def set_network(
        self, sandbox_id: str, network: str, *, allow: Sequence[str] = ()
    ) -> SandboxRecord:
        """Let another policy hold from now on, also in a launch's sandbox; connections that it does
        not allow are cut. Raises `SandboxNotFound`, `NetworkUnavailable` and `InvalidRequest`.
        """
        body: JsonObject = {"mode": network, "allow": list(allow)}
        return SandboxRecord.read(await self._door.put(f"{_path(sandbox_id)}/network", body))

    async def release(self, sandbox_id: str) -> bool:
        """Give a sandbox back; returns when nothing of it is left, and says whether this call did
        it. Raises `SandboxNotFound`, and `SandboxInUse` for a launch's.
        """
        return form.flag(await self._door.delete(_path(sandbox_id)), "released")

    def _opened(self, document: JsonObject) -> AsyncSandbox:
        record = SandboxRecord.read(document)
        return AsyncSandbox(record=record, door=self._door, sandboxes=self)


def _path(sandbox_id: str) -> str:
    return f"/v1/sandboxes/{quote(sandbox_id, safe='')}"
