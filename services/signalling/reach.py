"""What sessions lead to: the sandbox of a launch, or one that has a lease of its own."""

from __future__ import annotations

from signalling.gateway import Meeting
from signalling.launch_errors import SandboxNotFound
from signalling.launches import Launches
from signalling.sandbox_keeper import SandboxKeeper
from signalling.session_ports import Reached

_SANDBOX = "sbx_"


class Reach:
    """Launches and sandboxes, told apart by their ids."""

    def __init__(self, *, launches: Launches, sandboxes: SandboxKeeper) -> None:
        self._launches = launches
        self._sandboxes = sandboxes

    async def reached(self, tenant: str, launch_id: str) -> Reached:
        """Say what sessions may reach; raises LaunchNotFound and SandboxNotFound."""
        if not launch_id.startswith(_SANDBOX):
            return await self._launches.reached(tenant, launch_id)
        await self._sandboxes.get(tenant, launch_id)
        return Reached(has_sandbox=True, is_over=False)

    async def is_gone(self, tenant: str, launch_id: str) -> bool:
        """Say whether a launch is released, or the sandbox is not at its host any more; raises
        LaunchNotFound, and what a host answers that cannot say.
        """
        sandbox_id = launch_id
        if not launch_id.startswith(_SANDBOX):
            launch = await self._launches.get(tenant, launch_id)
            if launch.released_at is not None or not launch.sandbox_id:
                return launch.released_at is not None
            sandbox_id = launch.sandbox_id
        try:
            await self._sandboxes.get(tenant, sandbox_id)
        except SandboxNotFound:
            return True
        return False

    def traceparent(self, tenant: str, launch_id: str) -> str:
        """Return the trace of a launch; a sandbox has none."""
        return self._launches.traceparent(tenant, launch_id)

    async def open_port(self, tenant: str, launch_id: str, port: int, meeting: Meeting) -> None:
        """Have the worker bring one connection to a gateway."""
        if launch_id.startswith(_SANDBOX):
            await self._sandboxes.open_port(tenant, launch_id, port, meeting)
        else:
            await self._launches.open_port(tenant, launch_id, port, meeting)
