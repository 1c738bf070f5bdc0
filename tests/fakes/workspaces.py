"""A provisioner in memory, as honest as the contract: keys, tombstones, claims, misses and checked
releases.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta

from chassis.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from chassis.ids import derived_id
from signalling.host import Host
from signalling.snapshot import Freshness, Miss, MissReason, Snapshot, Source, Tip
from signalling.workspace import ForkOrder, Imported, Workspace, WorkspaceOrder, WorkspaceState
from tests.fakes.clock import START
from tests.fakes.faults import Faults


class FakeWorkspaces:
    """The workspaces of any host; it has the commits in `known`, and every host has its own."""

    def __init__(self, *, faults: Faults, known: set[str] | None = None) -> None:
        self.faults = faults
        self.known = known if known is not None else set()
        self.held: dict[tuple[str, str], Workspace] = {}
        self.gone: dict[tuple[str, str], Workspace] = {}
        self.orders: dict[str, WorkspaceOrder | ForkOrder] = {}
        self.claimed: dict[str, str] = {}
        self.released: set[tuple[str, str]] = set()
        self.leases: dict[str, timedelta] = {}
        self.changed_files: int | None = 0
        self.dirty: set[str] = set()
        self.unpushed: set[str] = set()
        self.received = b""
        self.imports: list[tuple[bool, bool]] = []
        self.carries_on = True
        self.rung = "checkout"
        self.lfs_pointers = 0
        self.tags_left_out = False
        self.upstream: tuple[str, Freshness] | None = None

    async def materialize(
        self, host: Host, *, tenant: str, order: WorkspaceOrder
    ) -> Workspace | Miss:
        await self.faults.at("workspaces.materialize:before")
        source = order.source
        made = self._known(tenant, order.key, order)
        if made is not None:
            return made
        if source.commit not in self.known:
            return Miss(MissReason.UNKNOWN_COMMIT, (source.commit,), tuple(sorted(self.known)))
        branch = order.branch or source.branch
        self._claim(tenant, source.project, order.name, branch if order.claim_branch else "")
        made = Workspace(
            workspace_id=derived_id("wsp", host.host_id, tenant, order.key, key=b""),
            state=WorkspaceState.PROVISIONED,
            project=source.project,
            commit=self.upstream[0] if self.upstream else source.commit,
            branch=branch,
            host_id=host.host_id,
            rung=self.rung,
            lfs_pointers=self.lfs_pointers,
            tags_left_out=self.tags_left_out,
            freshness=self.upstream[1] if self.upstream else None,
            created_at=START,
            expires_at=START + order.lease,
            name=order.name,
        )
        if order.claim_branch:
            self.claimed[made.workspace_id] = branch
        self._keep(tenant, order, made)
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
        tips_only: bool,
        order: WorkspaceOrder | None,
    ) -> Imported:
        await self.faults.at("workspaces.import:before")
        received = b""
        async for chunk in chunks:
            received += chunk
        await self.faults.at("workspaces.import:after")
        self.received = received
        self.known.add(source.commit)
        self.imports.append((tips_only, order is not None))
        snapshot = Snapshot(
            snapshot_id=derived_id("snp", source.commit, key=b""),
            project=source.project,
            host_id=host.host_id,
            digest=source.digest,
            tips=tuple(tips),
            created_at=START,
            received_bytes=len(received),
        )
        if order is None or not self.carries_on:
            return Imported(snapshot)
        made = await self.materialize(host, tenant=tenant, order=replace(order, source=source))
        return Imported(snapshot, made)

    async def get(
        self, host: Host, *, tenant: str, workspace_id: str, count_changes: bool = False
    ) -> Workspace:
        await self.faults.at(f"workspaces.{'count' if count_changes else 'get'}:before")
        for (owner, _), found in (*self.held.items(), *self.gone.items()):
            if (owner, found.workspace_id, found.host_id) == (tenant, workspace_id, host.host_id):
                return replace(found, changed_files=self.changed_files) if count_changes else found
        raise NotFound("There is no such workspace on this host.", reason="workspace_not_found")

    async def list(
        self, host: Host, *, tenant: str, size: int, after: str
    ) -> tuple[Sequence[Workspace], bool]:
        await self.faults.at("workspaces.list:before")
        found = sorted(
            (
                each
                for (owner, _), each in self.held.items()
                if owner == tenant and each.host_id == host.host_id and each.workspace_id > after
            ),
            key=lambda each: each.workspace_id,
        )
        return found[:size], len(found) > size

    async def renew(
        self, host: Host, *, tenant: str, workspace_id: str, lease: timedelta
    ) -> Workspace:
        await self.faults.at("workspaces.renew:before")
        self.leases[workspace_id] = lease
        return self._change(tenant, workspace_id, expires_at=START + lease)

    async def rename(self, host: Host, *, tenant: str, workspace_id: str, name: str) -> Workspace:
        found = await self.get(host, tenant=tenant, workspace_id=workspace_id)
        if name != found.name:
            self._claim(tenant, found.project, name, "")
        return self._change(tenant, workspace_id, name=name)

    async def fork(
        self, host: Host, *, tenant: str, workspace_id: str, order: ForkOrder
    ) -> Workspace:
        found = await self.get(host, tenant=tenant, workspace_id=workspace_id)
        known = self._known(tenant, order.key, order)
        if known is not None:
            return known
        self._claim(tenant, found.project, order.name, order.branch)
        forked = replace(
            found,
            workspace_id=derived_id("wsp", host.host_id, tenant, order.key, key=b""),
            rung="fork",
            name=order.name,
            branch=order.branch or found.branch,
            expires_at=START + order.lease,
        )
        if order.branch:
            self.claimed[forked.workspace_id] = order.branch
        self._keep(tenant, order, forked)
        return forked

    async def release(
        self,
        host: Host,
        *,
        tenant: str,
        key: str = "",
        workspace_id: str = "",
        checked: bool = False,
    ) -> bool:
        await self.faults.at("workspaces.release:before")
        if not key:
            key = next(
                (
                    each
                    for (owner, each), found in self.held.items()
                    if (owner, found.workspace_id, found.host_id)
                    == (tenant, workspace_id, host.host_id)
                ),
                "",
            )
            if not key:
                return False
        found = self.held.get((tenant, key))
        if found is not None and checked:
            if found.workspace_id in self.dirty:
                raise FailedPrecondition("It has changes.", reason="workspace_dirty", remedy="-")
            if found.workspace_id in self.unpushed:
                raise FailedPrecondition("Unpushed.", reason="workspace_unpushed", remedy="-")
        self.released.add((tenant, key))
        if found is not None:
            del self.held[tenant, key]
            self.gone[tenant, key] = replace(found, state=WorkspaceState.RELEASED)
        await self.faults.at("workspaces.release:after")
        return found is not None

    def _known(self, tenant: str, key: str, order: WorkspaceOrder | ForkOrder) -> Workspace | None:
        if (tenant, key) in self.released:
            raise FailedPrecondition("It was given back.", reason="workspace_released")
        made = self.held.get((tenant, key))
        if made is not None and _asked(self.orders[made.workspace_id]) != _asked(order):
            raise AlreadyExists("Another one.", reason="idempotency_conflict", remedy="-")
        return made

    def _keep(self, tenant: str, order: WorkspaceOrder | ForkOrder, made: Workspace) -> None:
        self.held[tenant, order.key] = made
        self.orders[made.workspace_id] = order
        self.leases[made.workspace_id] = order.lease

    def _claim(self, tenant: str, project: str, name: str, branch: str) -> None:
        if name and not name[0].isalnum():
            raise InvalidArgument("Not a name.", reason="name_invalid", remedy="Another one.")
        for (owner, _), each in self.held.items():
            if (owner, each.project) != (tenant, project):
                continue
            if name and each.name == name:
                raise AlreadyExists(
                    "It is there.", reason="workspace_exists", remedy="Take another name."
                )
            if branch and self.claimed.get(each.workspace_id) == branch:
                raise AlreadyExists(
                    "It is taken.", reason="branch_in_use", remedy="Take another branch."
                )

    def _change(self, tenant: str, workspace_id: str, **fields: object) -> Workspace:
        for place, found in self.held.items():
            if (place[0], found.workspace_id) == (tenant, workspace_id):
                changed = replace(found, **fields)  # type: ignore[arg-type]
                self.held[place] = changed
                return changed
        raise NotFound("There is no such workspace on this host.", reason="workspace_not_found")


def _asked(order: WorkspaceOrder | ForkOrder) -> WorkspaceOrder | ForkOrder:
    """Return what makes two requests with one key the same: not how the objects travel."""
    if isinstance(order, ForkOrder):
        return order
    return replace(order, source=replace(order.source, commits=None, noticed=()))


class FakeWorkspaceDirectory:
    """Where workspaces are; it can be made to forget."""

    def __init__(self, *, faults: Faults) -> None:
        self.faults = faults
        self.keys: dict[tuple[str, str], str] = {}
        self.places: dict[tuple[str, str], str] = {}

    async def claim_key(self, tenant: str, key: str, host_id: str) -> str:
        await self.faults.at("directory:before")
        return self.keys.setdefault((tenant, key), host_id)

    async def host_of_key(self, tenant: str, key: str) -> str:
        await self.faults.at("directory:before")
        return self.keys.get((tenant, key), "")

    async def put(self, tenant: str, workspace_id: str, host_id: str) -> None:
        await self.faults.at("directory:before")
        self.places[tenant, workspace_id] = host_id

    async def host_of(self, tenant: str, workspace_id: str) -> str:
        await self.faults.at("directory:before")
        return self.places.get((tenant, workspace_id), "")
