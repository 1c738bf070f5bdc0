"""Connects sandboxes by their policies: a proxy from the first time that one asks for egress."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from chassis.allow_list import AllowList, parse_allow_list
from sandbox_worker.network.decision import Decision
from sandbox_worker.network.egress_ports import EgressDoors
from sandbox_worker.ports import Enclosure
from sandbox_worker.sandbox import NetworkMode, NetworkPolicy


class Networks:
    """The networks of the sandboxes of this host.

    A sandbox that goes back to no network keeps its proxy, which then refuses everything and says
    why.
    """

    def __init__(self, *, doors: EgressDoors) -> None:
        self._doors = doors
        self._listeners: dict[str, socket.socket] = {}
        self._open: set[str] = set()

    async def prepare(self, sandbox_id: str, enclosure: Enclosure, policy: NetworkPolicy) -> None:
        """Do what has to be waited for before `apply`; raises SandboxLost and IsolationFailed.

        Not at the same time for one sandbox.
        """
        known = sandbox_id in self._open or sandbox_id in self._listeners
        if policy.mode is NetworkMode.EGRESS and not known:
            self._listeners[sandbox_id] = await enclosure.listen()

    def apply(self, sandbox_id: str, policy: NetworkPolicy) -> None:
        """Let a policy hold from now on; connections that it does not allow are cut."""
        allowed = _allowed(policy)
        listener = self._listeners.pop(sandbox_id, None)
        if listener is not None and allowed is not None:
            self._doors.open(sandbox_id, listener, allowed)
            self._open.add(sandbox_id)
        elif sandbox_id in self._open:
            self._doors.change(sandbox_id, allowed)

    async def cut(self, sandbox_id: str) -> None:
        """End all connections of a sandbox and forget it; again is harmless."""
        listener = self._listeners.pop(sandbox_id, None)
        if listener is not None:
            listener.close()
        self._open.discard(sandbox_id)
        await self._doors.close(sandbox_id)

    def decisions(self, sandbox_id: str) -> Sequence[Decision]:
        """Return the last decisions about a sandbox's connections, oldest first."""
        return self._doors.decisions(sandbox_id)


def _allowed(policy: NetworkPolicy) -> AllowList | None:
    return parse_allow_list(policy.allow) if policy.mode is NetworkMode.EGRESS else None
