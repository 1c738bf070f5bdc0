"""Makes one workspace: the gate, the take, the record."""

from __future__ import annotations

import asyncio
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
    WarmPath,
)
from workspace_provisioner.sources import Source
from workspace_provisioner.workspaces import (
    Miss,
    MissReason,
    Order,
    PlacedSubmodule,
    State,
    Workspace,
)

log = logging.getLogger(__name__)


class Builder:
    """Turns orders into workspaces on this host; `reserve_bytes` of its disk stay free. What is not
    warm takes one of its `slots` while files are written, and none while it waits for others.

    `on_reason` is told why a better way was not taken.
    """

    def __init__(
        self,
        *,
        gate: Gate,
        trees: Trees,
        ledger: Ledger,
        warm: WarmPath,
        submodules: SubmoduleSetup,
        clock: Clock,
        reserve_bytes: int,
        slots: asyncio.Semaphore,
        on_discard: Callable[[], None],
        on_reason: Callable[[MissReason], None],
    ) -> None:
        self._gate = gate
        self._trees = trees
        self._ledger = ledger
        self._warm = warm
        self._submodules = submodules
        self._clock = clock
        self._reserve_bytes = reserve_bytes
        self._slots = slots
        self._on_discard = on_discard
        self._on_reason = on_reason

    async def make_warm(self, order: Order, requested: Workspace) -> Workspace | None:
        """Make a workspace of what is prepared, with its claims, in one piece; None when something
        else than that is asked for or needed: `make` tells what.
        """
        source = order.source
        if (
            not order.overlay
            or not self._trees.can_overlay
            or source.changes is not None
            or source.upstream is not None
            or source.submodules
            or self._gate.brings_tags(source)
            or await self._trees.free_bytes() < self._reserve_bytes
        ):
            return None
        wanted = replace(requested, expires_at=self._clock.now() + order.lease)
        made = await self._warm.take(wanted, _plan(order))
        if made is not None:
            await self._gate.passed(source)
            _tell(made)
        return made

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
        plan = _plan(order)
        if order.overlay and not self._trees.can_overlay:
            self._on_reason(MissReason.FS_UNSUPPORTED)
        placed = False
        try:
            taken = await self._take(source, plan)
            if isinstance(taken, Miss):
                return taken
            if taken.submodules_fault:
                raise SubmodulesInvalid(taken.submodules_fault)
            submodules: tuple[PlacedSubmodule, ...] = ()
            if source.submodules and taken.has_submodules:
                submodules = await self._submodules.initialise(workspace_id, source)
            now = self._clock.now()
            made = replace(
                requested,
                state=State.PROVISIONED,
                rung=taken.rung,
                has_submodules=taken.has_submodules,
                lfs_pointers=taken.lfs_pointers,
                tags_left_out=self._gate.brings_tags(source),
                submodules=submodules,
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
                    # Who was cancelled while the record was written has written it.
                    await self._ledger.remove(workspace_id)
                    await self._trees.discard(workspace_id)
                finally:
                    self._on_discard()
        _tell(made)
        return made

    async def _take(self, source: Source, plan: CheckoutPlan) -> Taken | Miss:
        """Take a workspace; when what was prepared is older than its store, look once whether the
        store is right.
        """
        try:
            async with self._slots:
                return await self._trees.take(plan)
        except Drifted as drifted:
            log.warning("store drifted", extra={"reason": drifted.reason})
            await self._trees.discard(plan.workspace_id)
            miss = await self._gate.distrust(source)
            if miss is not None:
                return miss
            await self._trees.refresh(plan.key)
            async with self._slots:
                return await self._trees.take(plan)


def _plan(order: Order) -> CheckoutPlan:
    source = order.source
    return CheckoutPlan(
        order.workspace_id,
        source.key,
        source.commit,
        order.branch,
        source.changes,
        overlay=order.overlay,
    )


def _tell(made: Workspace) -> None:
    log.info("workspace materialized", extra={"workspace_id": made.workspace_id, "rung": made.rung})
