"""Workspaces from the caller's side: make, get, list, fork, rename, renew, release, import.

The hosts know what there is; the directory only saves asking all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta

from signalling.host import Host
from signalling.launch_errors import Draining
from signalling.launch_release import Own
from signalling.launch_request import DEFAULT_LEASE, check_key, check_lease
from signalling.placement import Placement
from signalling.ports import Hosts
from signalling.snapshot import Miss, Source, Tip
from signalling.source_rules import check_source, check_tips
from signalling.uploads import Uploads
from signalling.whereabouts import Directory, Whereabouts
from signalling.workspace import (
    ForkOrder,
    Imported,
    OpenMiss,
    Workspace,
    WorkspaceOrder,
    WorkspaceState,
)
from signalling.workspace_errors import WorkspaceInUse, WorkspaceNotFound
from signalling.workspace_ports import Workspaces, WorkspaceUsers
from signalling.workspace_request import check_fork, check_order, check_workspace_name


class WorkspaceKeeper:
    """Every call raises FairleadError; unknown and foreign workspaces are WorkspaceNotFound."""

    def __init__(
        self,
        *,
        workspaces: Workspaces,
        directory: Directory,
        placement: Placement,
        hosts: Hosts,
        uploads: Uploads,
        launches: WorkspaceUsers,
        own: Own,
        id_key: bytes,
    ) -> None:
        self._workspaces = workspaces
        self._placement = placement
        self._uploads = uploads
        self._launches = launches
        self._draining = False
        self._whereabouts: Whereabouts[Workspace] = Whereabouts(
            prefix="wsp",
            directory=directory,
            hosts=hosts,
            own=own,
            id_key=id_key,
            get=lambda host, tenant, workspace_id: workspaces.get(
                host, tenant=tenant, workspace_id=workspace_id
            ),
            not_found=WorkspaceNotFound,
        )

    def drain(self) -> None:
        """Make no more workspaces."""
        self._draining = True

    async def materialize(self, tenant: str, order: WorkspaceOrder) -> Workspace | OpenMiss:
        """Check a source out, or say what the host lacks, with the token of an upload that carries
        on by itself. The same key gives the same workspace.

        Raises InvalidRequest, NoHost, Draining and what the host refuses (`workspace_exists`,
        `branch_in_use`, `name_invalid`, `quota`, `base_locked`, `idempotency_conflict`, …).
        """
        check_order(order)
        host, order = await self._placed(tenant, order)
        made = await self._workspaces.materialize(host, tenant=tenant, order=order)
        if isinstance(made, Miss):
            return self._uploads.announce(made, tenant=tenant, host=host, order=order)
        self._whereabouts.note(tenant, made.workspace_id, host)
        return made

    async def import_snapshot(
        self,
        tenant: str,
        source: Source,
        tips: tuple[Tip, ...],
        chunks: AsyncIterator[bytes],
        *,
        tips_only: bool,
        order: WorkspaceOrder | None,
    ) -> Imported:
        """Take a pack without a miss before, and materialize `order` from it in the same call.

        An order goes to the host that its key has met before, so that a miss is answered there.
        """
        check_source(source)
        check_tips(tips, source.object_format)
        if order is None:
            host = await self._placement.place(tenant, source, "", {})
        else:
            check_order(order)
            host, order = await self._placed(tenant, order)
        imported = await self._workspaces.import_snapshot(
            host,
            tenant=tenant,
            source=replace(source, commits=None),
            tips=tips,
            chunks=chunks,
            tips_only=tips_only,
            order=order,
        )
        if isinstance(imported.made, Workspace):
            self._whereabouts.note(tenant, imported.made.workspace_id, host)
        return imported

    async def get(
        self, tenant: str, workspace_id: str, *, count_changes: bool = False
    ) -> Workspace:
        """Return a workspace, also for a day after its release."""

        async def ask(host: Host) -> Workspace:
            return await self._workspaces.get(
                host, tenant=tenant, workspace_id=workspace_id, count_changes=count_changes
            )

        return await self._whereabouts.ask(tenant, workspace_id, ask)

    async def place(self, tenant: str, workspace_id: str) -> str:
        """Return the id of the host of a workspace that can be used."""
        found = await self.get(tenant, workspace_id)
        if found.state is not WorkspaceState.PROVISIONED:
            raise WorkspaceNotFound(workspace_id)
        return found.host_id

    async def list(
        self, tenant: str, page_size: int, page_token: str
    ) -> tuple[Sequence[Workspace], str, Sequence[str]]:
        """Return workspaces by id, the token of the next page, and the hosts that did not answer,
        whose workspaces are not there; page size 0 means 50. Raises Unavailable when none answered.
        """
        return await self._whereabouts.page(
            page_size,
            page_token,
            lambda host, size: self._workspaces.list(
                host, tenant=tenant, size=size, after=page_token
            ),
            lambda workspace: workspace.workspace_id,
        )

    async def fork(self, tenant: str, workspace_id: str, order: ForkOrder) -> Workspace:
        """Make a copy with the same commit, branches and uncommitted changes, on the same host."""
        check_fork(order)
        self._check_not_draining()
        key = self._whereabouts.key(tenant, f"fork {workspace_id}", order.key)

        async def ask(host: Host) -> Workspace:
            forked = await self._workspaces.fork(
                host, tenant=tenant, workspace_id=workspace_id, order=replace(order, key=key)
            )
            self._whereabouts.note(tenant, forked.workspace_id, host)
            return forked

        return await self._whereabouts.ask(tenant, workspace_id, ask)

    async def rename(self, tenant: str, workspace_id: str, name: str) -> Workspace:
        """Give a workspace another name; none when it is empty."""
        check_workspace_name(name)

        async def ask(host: Host) -> Workspace:
            return await self._workspaces.rename(
                host, tenant=tenant, workspace_id=workspace_id, name=name
            )

        return await self._whereabouts.ask(tenant, workspace_id, ask)

    async def renew(self, tenant: str, workspace_id: str, lease: timedelta | None) -> Workspace:
        """Move the end of the lease to `lease` from now, 30 minutes when absent."""
        wanted = DEFAULT_LEASE if lease is None else lease
        check_lease(wanted)

        async def ask(host: Host) -> Workspace:
            return await self._workspaces.renew(
                host, tenant=tenant, workspace_id=workspace_id, lease=wanted
            )

        return await self._whereabouts.ask(tenant, workspace_id, ask)

    async def release(self, tenant: str, workspace_id: str, *, force: bool) -> bool:
        """Give a workspace back; say whether this call did. Without `force` it refuses to lose
        work (`workspace_dirty`, `workspace_unpushed`), and to take a launch's (`workspace_in_use`).
        """
        if not force and (launch_id := await self._launches.user_of(tenant, workspace_id)):
            raise WorkspaceInUse(workspace_id, launch_id)

        async def ask(host: Host) -> bool:
            released = await self._workspaces.release(
                host, tenant=tenant, workspace_id=workspace_id, checked=not force
            )
            if not released:  # Not there, or released before: only the former is not found.
                await self._workspaces.get(host, tenant=tenant, workspace_id=workspace_id)
            return released

        return await self._whereabouts.ask(tenant, workspace_id, ask)

    async def release_key(self, tenant: str, key: str) -> bool:
        """Give back what an idempotency key made or is making, wherever that is."""
        check_key(key)
        derived = self._whereabouts.key(tenant, "workspace", key)
        released = [
            await self._workspaces.release(host, tenant=tenant, key=derived)
            for host in await self._whereabouts.hosts_of_key(tenant, derived)
        ]
        return any(released)

    async def _placed(self, tenant: str, order: WorkspaceOrder) -> tuple[Host, WorkspaceOrder]:
        """Return the host that an order goes to, always the same for a key, and the order as the
        host gets it.
        """
        self._check_not_draining()
        order = replace(
            order,
            key=self._whereabouts.key(tenant, "workspace", order.key),
            branch=order.branch or order.source.branch,
        )
        source = order.source
        host = await self._whereabouts.placed(
            tenant, order.key, lambda: self._placement.place(tenant, source, "", {})
        )
        return host, order

    def _check_not_draining(self) -> None:
        if self._draining:
            raise Draining
