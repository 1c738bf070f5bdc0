"""Sandboxes from the caller's side: make, get, list, bind, renew, release, and where they are."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from chassis.errors import FairleadError
from signalling.gateway import Meeting
from signalling.host import Host
from signalling.launch_errors import Draining, SandboxNotFound
from signalling.launch_release import Own
from signalling.launch_request import DEFAULT_LEASE, check_key, check_lease
from signalling.placement import Placement
from signalling.ports import Channels, Hosts, Sandboxes, WorkspacePlaces
from signalling.sandbox import NetworkPolicy, NetworkView, Sandbox, SandboxOrder
from signalling.sandbox_errors import HostMismatch, HostNotFound, SandboxInUse
from signalling.sandbox_rules import check_network, check_wish
from signalling.whereabouts import Directory, Whereabouts


class SandboxKeeper:
    """Every call raises FairleadError; unknown and foreign sandboxes are SandboxNotFound."""

    def __init__(
        self,
        *,
        sandboxes: Sandboxes,
        workspaces: WorkspacePlaces,
        directory: Directory,
        placement: Placement,
        hosts: Hosts,
        channels: Channels,
        own: Own,
        id_key: bytes,
    ) -> None:
        self._channels = channels
        self._sandboxes = sandboxes
        self._workspaces = workspaces
        self._placement = placement
        self._hosts = hosts
        self._draining = False
        self._whereabouts: Whereabouts[Sandbox] = Whereabouts(
            prefix="sbx",
            directory=directory,
            hosts=hosts,
            own=own,
            id_key=id_key,
            get=lambda host, tenant, sandbox_id: sandboxes.get(
                host, tenant=tenant, sandbox_id=sandbox_id
            ),
            not_found=SandboxNotFound,
        )

    def drain(self) -> None:
        """Make no more sandboxes."""
        self._draining = True

    async def create(self, tenant: str, order: SandboxOrder) -> Sandbox:
        """Make a sandbox, bound to a workspace when the order names one; nothing of it stays when
        that fails. The same key gives the same sandbox.

        Raises InvalidRequest, NoHost, HostNotFound, HostMismatch, WorkspaceNotFound,
        IsolationUnavailable, ProfileUnknown, Draining and what the host refuses
        (`limit_exceeded`, `network_unavailable`, `host_full`, `idempotency_conflict`,
        `sandbox_released`, …).
        """
        if order.key:
            check_key(order.key)
        if order.lease is not None:
            check_lease(order.lease)
        check_wish(order.isolation, order.profile, order.limits, order.network)
        if self._draining:
            raise Draining
        key = self._whereabouts.key(tenant, "sandbox", order.key)
        host = await self._whereabouts.placed(tenant, key, lambda: self._host_for(tenant, order))
        made = await self._sandboxes.create(
            host, tenant=tenant, order=replace(order, key=key, launch_id="")
        )
        self._whereabouts.note(tenant, made.sandbox_id, host)
        return made

    async def get(self, tenant: str, sandbox_id: str) -> Sandbox:
        """Return a sandbox."""
        return await self._whereabouts.ask(
            tenant,
            sandbox_id,
            lambda host: self._sandboxes.get(host, tenant=tenant, sandbox_id=sandbox_id),
        )

    async def list(
        self, tenant: str, page_size: int, page_token: str
    ) -> tuple[Sequence[Sandbox], str, Sequence[str]]:
        """Return sandboxes by id, also those of launches, the token of the next page, and the hosts
        that did not answer, whose sandboxes are not there; page size 0 means 50. Raises Unavailable
        when none answered.
        """
        return await self._whereabouts.page(
            page_size,
            page_token,
            lambda host, size: self._sandboxes.list(
                host, tenant=tenant, size=size, after=page_token
            ),
            lambda sandbox: sandbox.sandbox_id,
        )

    async def bind(self, tenant: str, sandbox_id: str, workspace_id: str) -> Sandbox:
        """Give a sandbox its workspace, which is on the same host; raises WorkspaceNotFound and
        `sandbox_bound`.
        """
        host_id = await self._workspaces.place(tenant, workspace_id)
        found = await self.get(tenant, sandbox_id)
        self._check_own(found)
        if found.host_id != host_id:
            raise HostMismatch(found.host_id, host_id)
        host = await self.place(tenant, sandbox_id)
        return await self._sandboxes.bind(
            host, tenant=tenant, sandbox_id=sandbox_id, workspace_id=workspace_id
        )

    async def renew(self, tenant: str, sandbox_id: str, lease: timedelta | None) -> Sandbox:
        """Move the end of the lease to `lease` from now, 30 minutes when absent; raises
        SandboxInUse for a launch's.
        """
        wanted = DEFAULT_LEASE if lease is None else lease
        check_lease(wanted)

        async def ask(host: Host) -> Sandbox:
            self._check_own(await self._sandboxes.get(host, tenant=tenant, sandbox_id=sandbox_id))
            return await self._sandboxes.renew(
                host, tenant=tenant, sandbox_id=sandbox_id, lease=wanted
            )

        return await self._whereabouts.ask(tenant, sandbox_id, ask)

    async def set_network(self, tenant: str, sandbox_id: str, network: NetworkPolicy) -> Sandbox:
        """Let another network policy hold from now on, also in a launch's sandbox; connections that
        it does not allow are cut. Raises InvalidRequest, `network_unavailable` and
        `allow_entry_invalid`.
        """
        check_network(network)
        return await self._whereabouts.ask(
            tenant,
            sandbox_id,
            lambda host: self._sandboxes.set_network(
                host, tenant=tenant, sandbox_id=sandbox_id, network=network
            ),
        )

    async def network(self, tenant: str, sandbox_id: str) -> NetworkView:
        """Return what a sandbox reaches, and what it lately tried to reach."""
        return await self._whereabouts.ask(
            tenant,
            sandbox_id,
            lambda host: self._sandboxes.network(host, tenant=tenant, sandbox_id=sandbox_id),
        )

    async def release(self, tenant: str, sandbox_id: str) -> bool:
        """Give a sandbox back; return when nothing of it is left, and whether this call did it.
        Raises SandboxInUse for a launch's.
        """

        async def ask(host: Host) -> bool:
            self._check_own(await self._sandboxes.get(host, tenant=tenant, sandbox_id=sandbox_id))
            released = await self._sandboxes.release(host, tenant=tenant, sandbox_id=sandbox_id)
            with suppress(FairleadError):  # Those that are left reach nothing, and expire.
                await self._channels.close_launch(sandbox_id)
            return released

        return await self._whereabouts.ask(tenant, sandbox_id, ask)

    async def release_key(self, tenant: str, key: str) -> bool:
        """Give back what an idempotency key made or is making, wherever that is."""
        check_key(key)
        derived = self._whereabouts.key(tenant, "sandbox", key)
        released = [
            await self._sandboxes.release(host, tenant=tenant, key=derived)
            for host in await self._whereabouts.hosts_of_key(tenant, derived)
        ]
        return any(released)

    async def open_port(self, tenant: str, sandbox_id: str, port: int, meeting: Meeting) -> None:
        """Have the worker bring one connection into a sandbox to a gateway."""
        await self._whereabouts.ask(
            tenant,
            sandbox_id,
            lambda host: self._sandboxes.open_port(
                host, tenant=tenant, sandbox_id=sandbox_id, port=port, meeting=meeting
            ),
        )

    async def place(self, tenant: str, sandbox_id: str) -> Host:
        """Return the host of a sandbox."""
        return await self._whereabouts.find(tenant, sandbox_id)

    async def _host_for(self, tenant: str, order: SandboxOrder) -> Host:
        wanted = order.host_id
        if order.workspace_id:
            host_id = await self._workspaces.place(tenant, order.workspace_id)
            if wanted and wanted != host_id:
                raise HostMismatch(wanted, host_id)
            wanted = host_id
        if not wanted:
            return await self._placement.place(
                tenant, None, order.isolation, {}, profile=order.profile
            )
        host = self._hosts.find(wanted)
        if host is None:
            raise HostNotFound(wanted)
        return host

    @staticmethod
    def _check_own(sandbox: Sandbox) -> None:
        if sandbox.launch_id:
            raise SandboxInUse(sandbox.sandbox_id, sandbox.launch_id)
