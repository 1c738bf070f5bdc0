"""Makes one workspace: the gate, the take, the record."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from chassis.clock import Clock
from workspace_provisioner.errors import HostFull
from workspace_provisioner.gate import Gate
from workspace_provisioner.origin_errors import SubmodulesInvalid
from workspace_provisioner.origin_ports import SubmoduleSetup
from workspace_provisioner.ports import (
    CheckoutPlan,
    Drifted,
    Ledger,
    ObjectsLacking,
    Taken,
    Trees,
)
from workspace_provisioner.sources import Source
from workspace_provisioner.workspaces import (
    Miss,
    MissReason,
    Order,
    State,
    Workspace,
)

log = logging.getLogger(__name__)


class Builder:
    """Turns orders into workspaces on this host; `reserve_bytes` of its disk stay free.

    `on_reason` is told why a better way was not taken.
    """

    def __init__(
        self,
        *,
        gate: Gate,
        trees: Trees,
        ledger: Ledger,
        submodules: SubmoduleSetup,
        clock: Clock,
        reserve_bytes: int,
        on_discard: Callable[[], None],
        on_reason: Callable[[MissReason], None],
    ) -> None:
        self._gate = gate
        self._trees = trees
        self._ledger = ledger
        self._submodules = submodules
        self._clock = clock
        self._reserve_bytes = reserve_bytes
        self._on_discard = on_discard
        self._on_reason = on_reason

    async def make(self, order: Order, requested: Workspace) -> Workspace | Miss:
        """Make a workspace and write its record, or say what is lacking; when it fails, nothing
        stays.

        Raises HostFull, PackInvalid, PackTooLarge, StoreLocked and CheckoutFailed.
        """
        source = order.source
        miss = await self._gate.check(source)
        if miss is not None:
            return miss
        if await self._trees.free_bytes() < self._reserve_bytes:
            raise HostFull("its disk is nearly full")
        workspace_id = order.workspace_id
        plan = CheckoutPlan(
            workspace_id,
            source.key,
            source.commit,
            order.branch,
            source.changes,
            overlay=order.overlay,
        )
        if order.overlay and not self._trees.can_overlay:
            self._on_reason(MissReason.FS_UNSUPPORTED)
        placed = False
        try:
            taken = await self._take(source, plan)
            if isinstance(taken, Miss):
                return taken
            if taken.submodules_fault:
                raise SubmodulesInvalid(taken.submodules_fault)
            if source.submodules and taken.has_submodules:
                await self._submodules.initialise(workspace_id, source)
            now = self._clock.now()
            made = replace(
                requested,
                state=State.PROVISIONED,
                rung=taken.rung,
                has_submodules=taken.has_submodules,
                lfs_pointers=taken.lfs_pointers,
                expires_at=now + order.lease,
            )
            await self._ledger.put(made)
            placed = True
        except ObjectsLacking:
            return await self._gate.lacking(source)
        except Drifted as drifted:
            return await self._gate.miss(source, drifted.reason)
        finally:
            if not placed:
                try:
                    await self._trees.discard(workspace_id)
                finally:
                    self._on_discard()
        log.info("workspace materialized", extra={"workspace_id": workspace_id, "rung": made.rung})
        return made

    async def _take(self, source: Source, plan: CheckoutPlan) -> Taken | Miss:
        """Take a workspace; when what was prepared is older than its store, look once whether the
        store is right.
        """
        try:
            return await self._trees.take(plan)
        except Drifted as drifted:
            log.warning("store drifted", extra={"reason": drifted.reason})
            await self._trees.discard(plan.workspace_id)
            miss = await self._gate.distrust(source)
            if miss is not None:
                return miss
            await self._trees.refresh(plan.key)
            return await self._trees.take(plan)
