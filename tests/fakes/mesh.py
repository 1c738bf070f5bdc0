"""A host and its neighbours in memory, as honest as the contracts: keys, tombstones, journals,
leases.

`faults` reaches into every call, before it takes effect and after: it may raise, or hold the call
until it is let go.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from chassis.errors import FailedPrecondition
from chassis.ids import derived_id
from signalling.host import Host
from signalling.snapshot import (
    Miss,
    MissReason,
    Snapshot,
    Source,
    Tip,
    Workspace,
)
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


class FakeWorkspaces:
    """A provisioner; it has the commits in `known`."""

    def __init__(self, *, faults: Faults, known: set[str] | None = None) -> None:
        self.faults = faults
        self.known = known if known is not None else set()
        self.held: dict[tuple[str, str], Workspace] = {}
        self.released: set[tuple[str, str]] = set()
        self.leases: dict[str, timedelta] = {}
        self.changed_files: int | None = 0
        self.received = b""

    async def materialize(
        self,
        host: Host,
        *,
        tenant: str,
        key: str,
        source: Source,
        branch: str,
        lease: timedelta,
    ) -> Workspace | Miss:
        await self.faults.at("workspaces.materialize:before")
        if (tenant, key) in self.released:
            raise FailedPrecondition("It was given back.", reason="workspace_released")
        if source.commit not in self.known:
            return Miss(MissReason.UNKNOWN_COMMIT, (source.commit,), tuple(sorted(self.known)))
        made = Workspace(derived_id("wsp", tenant, key, key=b""), "checkout", branch)
        self.held[tenant, key] = made
        self.leases[made.workspace_id] = lease
        await self.faults.at("workspaces.materialize:after")
        return made

    async def import_snapshot(
        self,
        host: Host,
        *,
        tenant: str,
        source: Source,
        tips: Sequence[Tip],
        chunks: AsyncIterator[bytes],
    ) -> Snapshot:
        await self.faults.at("workspaces.import:before")
        received = b""
        async for chunk in chunks:
            received += chunk
        await self.faults.at("workspaces.import:after")
        self.received = received
        self.known.add(source.commit)
        return Snapshot(
            snapshot_id=derived_id("snp", source.commit, key=b""),
            project=source.project,
            host_id=host.host_id,
            digest=source.digest,
            tips=tuple(tips),
            created_at=datetime.fromtimestamp(0).astimezone(),
            received_bytes=len(received),
        )

    async def count_changes(self, host: Host, *, tenant: str, workspace_id: str) -> int | None:
        await self.faults.at("workspaces.count:before")
        return self.changed_files

    async def renew(
        self, host: Host, *, tenant: str, workspace_id: str, lease: timedelta
    ) -> datetime:
        await self.faults.at("workspaces.renew:before")
        self.leases[workspace_id] = lease
        return datetime.fromtimestamp(0).astimezone()

    async def release(self, host: Host, *, tenant: str, key: str) -> bool:
        await self.faults.at("workspaces.release:before")
        self.released.add((tenant, key))
        there = self.held.pop((tenant, key), None) is not None
        await self.faults.at("workspaces.release:after")
        return there


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
