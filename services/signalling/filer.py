"""Finds the files of a caller's sandbox; foreign sandboxes are not found."""

from __future__ import annotations

from typing import Protocol

from signalling.file_ports import FilePlaces, SandboxFiles
from signalling.launch_record import ExecutionPlace


class SandboxPlaces(Protocol):
    """Where the sandboxes of tenants are."""

    async def place_of_sandbox(self, tenant: str, sandbox_id: str) -> ExecutionPlace:
        """Return where a sandbox is; raises SandboxNotFound."""
        ...


class Filer:
    """The files of the callers' sandboxes."""

    def __init__(self, *, places: SandboxPlaces, files: FilePlaces) -> None:
        self._places = places
        self._files = files

    async def of(self, tenant: str, sandbox_id: str) -> SandboxFiles:
        """Return the files of a sandbox."""
        place = await self._places.place_of_sandbox(tenant, sandbox_id)
        return self._files.of(place.host, tenant=tenant, sandbox_id=sandbox_id)
