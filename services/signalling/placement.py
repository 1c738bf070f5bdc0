"""Chooses the host of a launch: one that holds the snapshot, then the less loaded. Answers from
memory where it can.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from chassis.errors import FairleadError
from signalling.host import Host
from signalling.launch_errors import HostsReserved, IsolationUnavailable, NoHost
from signalling.ports import Hosts, SnapshotDirectory
from signalling.sandbox_errors import ProfileUnknown
from signalling.snapshot import Source

_log = logging.getLogger(__name__)


class Placement(Protocol):
    """What the launcher asks; `launch_tracing` wraps it."""

    async def place(
        self,
        tenant: str,
        source: Source | None,
        isolation: str,
        reserved: Mapping[str, int],
        *,
        profile: str = "",
    ) -> Host:
        """Return the host to launch on; raises NoHost, HostsReserved, IsolationUnavailable and
        ProfileUnknown.
        """
        ...


class Placer:
    """Places by what the registrations and the snapshot directory say."""

    def __init__(self, *, hosts: Hosts, directory: SnapshotDirectory) -> None:
        self._hosts = hosts
        self._directory = directory

    async def place(
        self,
        tenant: str,
        source: Source | None,
        isolation: str,
        reserved: Mapping[str, int],
        *,
        profile: str = "",
    ) -> Host:
        """Return the host to launch on; `reserved` counts launches under way per host."""
        registered = [host for host in self._hosts.all() if not host.draining]
        if not registered:
            raise NoHost(full=False)
        open_to = [host for host in registered if not host.is_reserved_from(tenant)]
        if not open_to:
            raise HostsReserved
        able = [host for host in open_to if not isolation or isolation in host.offered_to(tenant)]
        if not able:
            offered = sorted({name for host in open_to for name in host.offered_to(tenant)})
            raise IsolationUnavailable(isolation, tuple(offered))
        if profile:
            offered = sorted({name for host in able for name in host.profiles})
            able = [host for host in able if profile in host.profiles]
            if not able:
                raise ProfileUnknown(profile, offered)
        free = [host for host in able if not host.full]
        if not free:
            raise NoHost(full=True)
        if len(free) == 1:
            return free[0]
        holders = await self._holders(tenant, source)
        return min(
            free,
            key=lambda host: (
                host.host_id not in holders,
                host.load + reserved.get(host.host_id, 0) / max(host.capacity, 1),
                host.host_id,
            ),
        )

    async def _holders(self, tenant: str, source: Source | None) -> frozenset[str]:
        if source is None:
            return frozenset()
        try:
            return await self._directory.holders(tenant, source)
        except FairleadError:
            _log.warning("the snapshot directory does not answer; placed by load alone")
            return frozenset()
