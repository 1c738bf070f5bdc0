"""Puts the object stores together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from chassis.clock import Clock
from workspace_provisioner.disk.host_root import Owners
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.git.command import Git
from workspace_provisioner.git.content import GitContent
from workspace_provisioner.git.object_readers import ObjectReaders
from workspace_provisioner.ports import Disk
from workspace_provisioner.sources import ProjectKey
from workspace_provisioner.store.admission import GitAdmission
from workspace_provisioner.store.git_repair import GitRepair
from workspace_provisioner.store.git_upkeep import GitUpkeep
from workspace_provisioner.store.grown_trees import GrownTrees
from workspace_provisioner.store.locks import StoreLocks
from workspace_provisioner.store.quarantine import Intake
from workspace_provisioner.store.states import StoreStates
from workspace_provisioner.store.stores import GitStores

PATIENCE_SECONDS = 30.0
"""How long an import waits for whoever repairs or cleans up its store."""


def made_stores(
    *,
    layout: Layout,
    git: Git,
    files: FileWork,
    content: GitContent,
    readers: ObjectReaders,
    disk: Disk,
    clock: Clock,
    owners: Owners,
    intake: Intake,
    on_epoch: Callable[[ProjectKey], Awaitable[None]],
    patience_seconds: float = PATIENCE_SECONDS,
) -> tuple[GitStores, GitUpkeep]:
    """Return the stores of a host and their upkeep; `on_epoch` is told of each store whose stamps
    became void.
    """
    states = StoreStates(
        layout=layout,
        git=git,
        files=files,
        disk=disk,
        locks=StoreLocks(patience_seconds=patience_seconds),
    )
    repair = GitRepair(
        layout=layout,
        git=git,
        files=files,
        disk=disk,
        clock=clock,
        states=states,
        on_epoch=on_epoch,
    )
    admission = GitAdmission(
        layout=layout,
        git=git,
        files=files,
        disk=disk,
        states=states,
        repair=repair,
        seconds=intake.git_seconds,
    )
    stores = GitStores(
        layout=layout,
        git=git,
        files=files,
        content=content,
        grown=GrownTrees(files=files, content=content, readers=readers),
        intake=intake,
        clock=clock,
        owners=owners,
        states=states,
        repair=repair,
        admission=admission,
    )
    upkeep = GitUpkeep(
        layout=layout,
        git=git,
        files=files,
        disk=disk,
        clock=clock,
        states=states,
        repair=repair,
        admission=admission,
    )
    return stores, upkeep
