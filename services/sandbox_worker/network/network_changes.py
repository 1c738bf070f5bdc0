"""Reads and changes the network policy of a sandbox that runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chassis.errors import NotFound
from sandbox_worker.network.decision import Decision
from sandbox_worker.network.networks import Networks
from sandbox_worker.sandbox import NetworkPolicy, Sandbox
from sandbox_worker.sandbox_plans import SandboxPlans
from sandbox_worker.sandboxes import Sandboxes


class NetworkChanges:
    """The policies of the sandboxes of this host."""

    def __init__(self, *, sandboxes: Sandboxes, plans: SandboxPlans, networks: Networks) -> None:
        self._sandboxes = sandboxes
        self._plans = plans
        self._networks = networks

    def get(self, *, tenant: str, sandbox_id: str) -> tuple[Sandbox, Sequence[Decision]]:
        """Return a sandbox and the last decisions about its connections; raises SandboxNotFound."""
        sandbox = self._sandboxes.get(tenant=tenant, sandbox_id=sandbox_id)
        return sandbox, self._networks.decisions(sandbox_id)

    async def set(self, *, tenant: str, sandbox_id: str, policy: NetworkPolicy) -> Sandbox:
        """Let another policy hold from now on; connections that it does not allow are cut.

        A sandbox on the host's network stays there, and none comes to it later. Raises
        SandboxNotFound, SandboxLost, NetworkUnavailable, NetworkInvalid, AllowEntryInvalid and
        LimitBroken.
        """
        held, enclosure = self._sandboxes.enter(tenant, sandbox_id)
        self._plans.check_network(held.sandbox, policy)
        async with held.connecting:
            try:
                await self._networks.prepare(sandbox_id, enclosure, policy)
                held, _ = self._sandboxes.enter(tenant, sandbox_id)
            except NotFound:
                # It was released meanwhile, perhaps before its listener came.
                await self._networks.cut(sandbox_id)
                raise
            self._networks.apply(sandbox_id, policy)
            held.sandbox = replace(held.sandbox, network=policy)
        return held.sandbox
