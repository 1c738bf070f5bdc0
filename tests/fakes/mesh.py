"""A host and its neighbours in memory, as honest as the contracts: keys, tombstones, journals,
leases.

`faults` reaches into every call, before it takes effect and after: it may raise, or hold the call
until it is let go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chassis.ids import derived_id
from signalling.host import Host
from signalling.snapshot import Source
from tests.fakes.faults import Faults

HOST = Host(
    host_id="hst_" + "a" * 26,
    workspace_address="unix:/w",
    sandbox_address="unix:/s",
    isolation=("process",),
)
OTHER_HOST = replace(HOST, host_id="hst_" + "b" * 26)


class FakeHosts:
    """Registered hosts."""

    def __init__(self, *hosts: Host) -> None:
        self.hosts = {host.host_id: host for host in hosts}

    def all(self) -> Sequence[Host]:
        return list(self.hosts.values())

    def find(self, host_id: str) -> Host | None:
        return self.hosts.get(host_id)


class FakeDirectory:
    """Which hosts hold what."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], set[str]] = {}

    async def holders(self, tenant: str, source: Source) -> frozenset[str]:
        names = (source.commit, source.digest)
        return frozenset().union(*(self.held.get((tenant, name), set()) for name in names))


class FakeChannels:
    """Sessions of launches."""

    def __init__(self, *, faults: Faults) -> None:
        self.faults = faults
        self.open: dict[str, str] = {}

    async def answer(self, tenant: str, launch_id: str, offer: str) -> tuple[str, str]:
        await self.faults.at("channels.answer:before")
        session_id = derived_id("ses", tenant, launch_id, key=b"")
        self.open[launch_id] = session_id
        await self.faults.at("channels.answer:after")
        return session_id, "v=0\r\nanswer"

    async def close_launch(self, launch_id: str) -> None:
        await self.faults.at("channels.close:before")
        self.open.pop(launch_id, None)
