"""Objects in the callers' sandboxes: finds the host, and carries between it and the caller."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol, TypeVar

from signalling.launch_record import ExecutionPlace
from signalling.object import ObjectsFrame
from signalling.ports import ObjectHosts

Item = TypeVar("Item")


class Places(Protocol):
    """Where the sandboxes of tenants are, and when streams from there are to end."""

    async def place_of_sandbox(self, tenant: str, sandbox_id: str) -> ExecutionPlace:
        """Return where a sandbox is; raises SandboxNotFound."""
        ...

    def until_drained(self, frames: AsyncIterator[Item]) -> AsyncIterator[Item]:
        """Yield frames, and raise Draining when this replica drains."""
        ...


class Objects:
    """The objects of the callers' sandboxes."""

    def __init__(self, *, places: Places, hosts: ObjectHosts) -> None:
        self._places = places
        self._hosts = hosts

    async def attach(
        self, tenant: str, sandbox_id: str, python: str, incoming: AsyncIterator[bytes]
    ) -> AsyncGenerator[ObjectsFrame, None]:
        """Start a Python that holds objects, and carry; closing it ends that. A broken stream is
        not taken up again: what was in it is gone.
        """
        place = await self._places.place_of_sandbox(tenant, sandbox_id)
        async with self._hosts.attach(
            place.host, tenant=tenant, sandbox_id=sandbox_id, python=python, incoming=incoming
        ) as frames:
            async for frame in self._places.until_drained(frames):
                yield frame
