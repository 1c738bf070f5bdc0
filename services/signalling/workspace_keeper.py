"""Workspaces from the caller's side: make, get, list, fork, rename, renew, release, import.

The hosts know what there is; the directory only saves asking all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

from chassis.errors import DeadlineExceeded, FairleadError, NotFound, Unavailable
from chassis.ids import derived_id, is_id, random_id
from signalling.host import Host
from signalling.launch_errors import Draining
from signalling.launch_release import Own
from signalling.launch_request import DEFAULT_LEASE, check_key, check_lease
from signalling.launches import DEFAULT_PAGE, LARGEST_PAGE, PageSizeInvalid
from signalling.placement import Placement
from signalling.ports import Hosts
from signalling.snapshot import Miss, Source, Tip
from signalling.source_rules import check_source, check_tips
from signalling.uploads import Uploads
from signalling.workspace import ForkOrder, Imported, OpenMiss, Workspace, WorkspaceOrder
from signalling.workspace_errors import (
    HostAway,
    PageTokenInvalid,
    WorkspaceInUse,
    WorkspaceNotFound,
)
from signalling.workspace_ports import WorkspaceDirectory, Workspaces, WorkspaceUsers
from signalling.workspace_request import check_fork, check_name, check_order

_log = logging.getLogger(__name__)
_REMEMBERED = 4096
_CALL_SECONDS = 0.02
_Answer = TypeVar("_Answer")


class WorkspaceKeeper:
    """Every call raises FairleadError; unknown and foreign workspaces are WorkspaceNotFound."""

    def __init__(
        self,
        *,
        workspaces: Workspaces,
        directory: WorkspaceDirectory,
        placement: Placement,
        hosts: Hosts,
        uploads: Uploads,
        launches: WorkspaceUsers,
        own: Own,
        id_key: bytes,
    ) -> None:
        self._workspaces = workspaces
        self._directory = directory
        self._placement = placement
        self._hosts = hosts
        self._uploads = uploads
        self._launches = launches
        self._own = own
        self._id_key = id_key
        self._places: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._draining = False

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
        self._note(tenant, made.workspace_id, host)
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
            self._note(tenant, imported.made.workspace_id, host)
        return imported

    async def get(
        self, tenant: str, workspace_id: str, *, count_changes: bool = False
    ) -> Workspace:
        """Return a workspace, also for a day after its release."""

        async def ask(host: Host) -> Workspace:
            return await self._workspaces.get(
                host, tenant=tenant, workspace_id=workspace_id, count_changes=count_changes
            )

        return await self._where_it_is(tenant, workspace_id, ask)

    async def list(
        self, tenant: str, page_size: int, page_token: str
    ) -> tuple[Sequence[Workspace], str, Sequence[str]]:
        """Return workspaces by id, the token of the next page, and the hosts that did not answer,
        whose workspaces are not there; page size 0 means 50. Raises Unavailable when none answered.
        """
        if not 0 <= page_size <= LARGEST_PAGE:
            raise PageSizeInvalid
        if page_token and not is_id("wsp", page_token):
            raise PageTokenInvalid
        size = page_size or DEFAULT_PAGE
        hosts = self._hosts.all()
        answers = await asyncio.gather(
            *(
                self._workspaces.list(host, tenant=tenant, size=size, after=page_token)
                for host in hosts
            ),
            return_exceptions=True,
        )
        pages, unanswered, failure = [], [], None
        for host, answer in zip(hosts, answers, strict=True):
            if not isinstance(answer, BaseException):
                pages.append(answer)
                continue
            if not isinstance(answer, (Unavailable, DeadlineExceeded)):
                raise answer
            unanswered.append(host.host_id)
            failure = failure or answer
        if failure is not None and not pages:
            raise failure
        found = sorted((each for page, _ in pages for each in page), key=lambda w: w.workspace_id)
        more = len(found) > size or any(rest for _, rest in pages)
        token = found[:size][-1].workspace_id if more and found else ""
        return found[:size], token, unanswered

    async def fork(self, tenant: str, workspace_id: str, order: ForkOrder) -> Workspace:
        """Make a copy with the same commit, branches and uncommitted changes, on the same host."""
        check_fork(order)
        self._check_not_draining()
        key = self._key(tenant, f"fork {workspace_id}", order.key)

        async def ask(host: Host) -> Workspace:
            forked = await self._workspaces.fork(
                host, tenant=tenant, workspace_id=workspace_id, order=replace(order, key=key)
            )
            self._note(tenant, forked.workspace_id, host)
            return forked

        return await self._where_it_is(tenant, workspace_id, ask)

    async def rename(self, tenant: str, workspace_id: str, name: str) -> Workspace:
        """Give a workspace another name; none when it is empty."""
        check_name(name)

        async def ask(host: Host) -> Workspace:
            return await self._workspaces.rename(
                host, tenant=tenant, workspace_id=workspace_id, name=name
            )

        return await self._where_it_is(tenant, workspace_id, ask)

    async def renew(self, tenant: str, workspace_id: str, lease: timedelta | None) -> Workspace:
        """Move the end of the lease to `lease` from now, 30 minutes when absent."""
        wanted = DEFAULT_LEASE if lease is None else lease
        check_lease(wanted)

        async def ask(host: Host) -> Workspace:
            return await self._workspaces.renew(
                host, tenant=tenant, workspace_id=workspace_id, lease=wanted
            )

        return await self._where_it_is(tenant, workspace_id, ask)

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

        return await self._where_it_is(tenant, workspace_id, ask)

    async def release_key(self, tenant: str, key: str) -> bool:
        """Give back what an idempotency key made or is making, wherever that is."""
        check_key(key)
        derived = self._key(tenant, "workspace", key)
        known = self._hosts.find(await self._host_of_key(tenant, derived))
        hosts = self._hosts.all() if known is None else [known]
        released = [
            await self._workspaces.release(host, tenant=tenant, key=derived) for host in hosts
        ]
        return any(released)

    async def _placed(self, tenant: str, order: WorkspaceOrder) -> tuple[Host, WorkspaceOrder]:
        """Return the host that an order goes to, always the same for a key, and the order as the
        host gets it.
        """
        self._check_not_draining()
        order = replace(
            order,
            key=self._key(tenant, "workspace", order.key),
            branch=order.branch or order.source.branch,
        )
        known = self._hosts.find(self._places.get((tenant, order.key), ""))
        if known is not None:
            return known, order
        host = await self._placement.place(tenant, order.source, "", {})
        if len(self._hosts.all()) > 1:
            host = await self._claimed(tenant, order.key, host)
        else:  # Nothing can come of it but this host, and the caller need not wait.
            self._own(self._claim_soon(tenant, order.key, host))
        self._places[tenant, order.key] = host.host_id
        while len(self._places) > _REMEMBERED:
            self._places.popitem(last=False)
        return host, order

    def _key(self, tenant: str, what: str, key: str) -> str:
        """Return the key that a host is given: never one of a launch, which are launch ids."""
        return derived_id("key", tenant, what, key, key=self._id_key) if key else random_id("key")

    def _check_not_draining(self) -> None:
        if self._draining:
            raise Draining

    async def _host_of_key(self, tenant: str, key: str) -> str:
        known = self._places.get((tenant, key))
        if known is not None:
            return known
        try:
            return await self._directory.host_of_key(tenant, key)
        except FairleadError:
            return ""

    async def _claimed(self, tenant: str, key: str, host: Host) -> Host:
        """Return the host that the directory has for a key; from now on `host`, if it had none."""
        try:
            kept = await self._directory.claim_key(tenant, key, host.host_id)
        except FairleadError:
            _log.warning("other replicas do not know where a workspace is made")
            return host
        return self._hosts.find(kept) or host

    async def _claim_soon(self, tenant: str, key: str, host: Host) -> None:
        """Claim when the call that the caller waits for is under way."""
        await asyncio.sleep(_CALL_SECONDS)
        await self._claimed(tenant, key, host)

    def _note(self, tenant: str, workspace_id: str, host: Host) -> None:
        """Tell the directory where a workspace is; nobody waits for it."""
        self._own(self._put(tenant, workspace_id, host))

    async def _put(self, tenant: str, workspace_id: str, host: Host) -> None:
        try:
            await self._directory.put(tenant, workspace_id, host.host_id)
        except FairleadError:
            _log.warning("where a workspace is was not kept", extra={"workspace_id": workspace_id})

    async def _where_it_is(
        self, tenant: str, workspace_id: str, ask: Callable[[Host], Awaitable[_Answer]]
    ) -> _Answer:
        """Ask the host of a workspace; where the directory has lost it, find it by asking all."""
        if not is_id("wsp", workspace_id):
            raise WorkspaceNotFound(workspace_id)
        try:
            host_id = await self._directory.host_of(tenant, workspace_id)
        except FairleadError:
            host_id = ""
        if host_id:
            host = self._hosts.find(host_id)
            if host is None:
                raise HostAway
        else:
            host = await self._find(tenant, workspace_id)
        try:
            return await ask(host)
        except NotFound:
            raise WorkspaceNotFound(workspace_id) from None

    async def _find(self, tenant: str, workspace_id: str) -> Host:
        """Return the host that knows a workspace; raises WorkspaceNotFound only when every host
        said that it does not.
        """
        hosts = self._hosts.all()
        answers = await asyncio.gather(
            *(
                self._workspaces.get(host, tenant=tenant, workspace_id=workspace_id)
                for host in hosts
            ),
            return_exceptions=True,
        )
        for host, answer in zip(hosts, answers, strict=True):
            if isinstance(answer, Workspace):
                self._note(tenant, workspace_id, host)
                return host
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, NotFound):
                raise answer
        raise WorkspaceNotFound(workspace_id)
