"""The warm path: claims, layer and record in one piece of work.

To hand work to a thread and to come back takes about as long as the work itself, so what is a step
each elsewhere is one here.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from workspace_provisioner.disk.claim_files import ClaimFiles
from workspace_provisioner.disk.ledger_files import LedgerFiles
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.names import claims_of
from workspace_provisioner.ports import CheckoutPlan
from workspace_provisioner.trees.git_trees import GitTrees
from workspace_provisioner.workspaces import State, Workspace


class WarmFiles:
    """Takes and gives back on the disk; see ports.WarmPath."""

    def __init__(
        self, *, files: FileWork, ledger: LedgerFiles, claims: ClaimFiles, trees: GitTrees
    ) -> None:
        self._files = files
        self._ledger = ledger
        self._claims = claims
        self._trees = trees

    async def take(self, requested: Workspace, plan: CheckoutPlan) -> Workspace | None:
        try:
            made = await self._files.run(self._take, requested, plan)
        except asyncio.CancelledError:
            # The thread was not cancelled.
            await self._files.run(self._take_back, requested)
            raise
        if made is not None:
            self._trees.taken_ready(plan)
        return made

    async def give_back(self, released: Workspace) -> None:
        await self._files.run(self._give_back, released)

    def _take(self, requested: Workspace, plan: CheckoutPlan) -> Workspace | None:
        claims = claims_of(requested)
        made = None
        try:
            if self._claims.take_free(requested.workspace_id, claims) == len(claims):
                made = self._make(requested, plan)
        finally:
            if made is None:
                self._claims.drop_now(requested.workspace_id, claims)
        return made

    def _make(self, requested: Workspace, plan: CheckoutPlan) -> Workspace | None:
        taken = self._trees.take_ready(plan)
        if taken is None:
            return None
        made = replace(
            requested,
            state=State.PROVISIONED,
            rung=taken.rung,
            has_submodules=taken.has_submodules,
            lfs_pointers=taken.lfs_pointers,
        )
        recorded = False
        try:
            self._ledger.put_now(made)
            recorded = True
        finally:
            if not recorded:
                self._trees.discard_now(made.workspace_id)
        return made

    def _take_back(self, requested: Workspace) -> None:
        self._ledger.remove_now(requested.workspace_id)
        self._clear(requested)

    def _give_back(self, released: Workspace) -> None:
        self._ledger.put_now(released)
        self._clear(released)

    def _clear(self, gone: Workspace) -> None:
        try:
            self._trees.discard_now(gone.workspace_id)
        finally:
            self._claims.drop_now(gone.workspace_id, claims_of(gone))
