"""Keeps the object stores in order beside the calls: few packs, few pins, nothing that is lost."""

from __future__ import annotations

import logging
from collections import defaultdict
from datetime import datetime

from chassis.errors import FairleadError
from workspace_provisioner.ports import Ledger, Trees
from workspace_provisioner.store_ports import StoreCare
from workspace_provisioner.workspaces import State

log = logging.getLogger(__name__)


class Upkeep:
    """Looks after every store of this host, one after another."""

    def __init__(self, *, care: StoreCare, ledger: Ledger, trees: Trees) -> None:
        self._care = care
        self._ledger = ledger
        self._trees = trees

    async def tend(self) -> None:
        """Tend every store once. Objects that a live workspace may borrow stay: nothing that was
        taken back since the oldest one began to borrow is deleted.
        """
        for key in await self._care.keys():
            try:
                await self._care.tend(key)
                oldest = self._oldest()
                if await self._is_every_workspace_recorded():
                    await self._care.prune(key, live_since=oldest.get(key.tenant))
            except (OSError, FairleadError) as error:
                log.warning(
                    "store not tended",
                    extra={"tenant": key.tenant, "store": key.digest, "cause": str(error)},
                )

    def _oldest(self) -> dict[str, datetime]:
        """Return since when each tenant's workspaces borrow; one may borrow from several stores,
        since its submodules have theirs.
        """
        since: defaultdict[str, list[datetime]] = defaultdict(list)
        for each in self._ledger.all():
            if each.state is not State.RELEASED:
                since[each.tenant].append(each.borrows_since)
        return {tenant: min(times) for tenant, times in since.items()}

    async def _is_every_workspace_recorded(self) -> bool:
        """Look for workspaces whose store is not known, which are being made or taken away."""
        recorded = {each.workspace_id for each in self._ledger.all()}
        return await self._trees.present() <= recorded
