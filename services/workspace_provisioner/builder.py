"""Makes one workspace: the gate, the checkout, the record."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from chassis.clock import Clock
from workspace_provisioner.errors import CheckoutFailed, HostFull
from workspace_provisioner.ports import CheckoutPlan, Ledger, ObjectsLacking, Stores, Trees
from workspace_provisioner.sources import Source
from workspace_provisioner.workspaces import (
    Miss,
    MissReason,
    Order,
    State,
    Workspace,
    miss_without_commit,
)

log = logging.getLogger(__name__)


class Builder:
    """Turns orders into workspaces on this host; `reserve_bytes` of its disk stay free."""

    def __init__(
        self,
        *,
        stores: Stores,
        trees: Trees,
        ledger: Ledger,
        clock: Clock,
        reserve_bytes: int,
        on_discard: Callable[[], None],
    ) -> None:
        self._stores = stores
        self._trees = trees
        self._ledger = ledger
        self._clock = clock
        self._reserve_bytes = reserve_bytes
        self._on_discard = on_discard

    async def make(self, order: Order, requested: Workspace) -> Workspace | Miss:
        """Make a workspace and write its record, or say what is lacking; when it fails, nothing
        stays.

        Raises HostFull, PackInvalid and CheckoutFailed.
        """
        source = order.source
        miss = await self._gate(source)
        if miss is not None:
            return miss
        if await self._trees.free_bytes() < self._reserve_bytes:
            raise HostFull("its disk is nearly full")
        workspace_id = order.workspace_id
        plan = CheckoutPlan(workspace_id, source.key, source.commit, order.branch, source.changes)
        placed = False
        try:
            has_submodules = await self._trees.build(plan)
            await self._trees.publish(workspace_id)
            now = self._clock.now()
            made = replace(
                requested,
                state=State.PROVISIONED,
                has_submodules=has_submodules,
                expires_at=now + order.lease,
            )
            await self._ledger.put(made)
            placed = True
        except ObjectsLacking:
            return await self._lacking(source)
        finally:
            if not placed:
                try:
                    await self._trees.discard(workspace_id)
                finally:
                    self._on_discard()
        log.info("workspace materialized", extra={"workspace_id": workspace_id})
        return made

    async def _gate(self, source: Source) -> Miss | None:
        """Let a commit through that is reachable from the tenant's durable tips of the project."""
        if not await self._stores.holds(source.key):
            return miss_without_commit(source, MissReason.UNKNOWN_PROJECT, ())
        if not await self._stores.knows(source.key, source.commit):
            tips = await self._stores.tips(source.key)
            return miss_without_commit(source, MissReason.UNKNOWN_COMMIT, tips)
        changes = source.changes
        if (
            changes
            and not changes.pack
            and not await self._stores.knows_tree(source.key, changes.tree)
        ):
            tips = await self._stores.tips(source.key)
            return Miss(MissReason.UNKNOWN_CHANGES, (changes.tree,), tips)
        return None

    async def _lacking(self, source: Source) -> Miss:
        """Tell changes that came incomplete from a store that lost what its tips promise."""
        changes = source.changes
        roots = (source.commit, changes.tree) if changes and not changes.pack else (source.commit,)
        if not await self._stores.is_whole(source.key, roots):
            log.error(
                "store is damaged", extra={"tenant": source.key.tenant, "store": source.key.digest}
            )
            await self._stores.forget(source.key)
            return miss_without_commit(source, MissReason.MISSING_OBJECTS, ())
        if changes is None or not changes.pack:
            raise CheckoutFailed("reading objects")
        tips = await self._stores.tips(source.key)
        return Miss(MissReason.UNKNOWN_CHANGES, (changes.tree,), tips)
