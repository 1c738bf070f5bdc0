"""Puts together all that makes, keeps and counts the files of workspaces."""

from __future__ import annotations

from chassis.clock import Clock
from workspace_provisioner.disk.host_root import Owners
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.git.checkout import GitCheckouts
from workspace_provisioner.git.command import Git
from workspace_provisioner.git.content import GitContent
from workspace_provisioner.git.object_readers import ObjectReaders
from workspace_provisioner.ports import CheckoutPlan, Disk, Stores
from workspace_provisioner.preparations import Preparations
from workspace_provisioner.trees.change_files import ChangeFiles
from workspace_provisioner.trees.delta_files import DeltaFiles
from workspace_provisioner.trees.git_trees import GitTrees
from workspace_provisioner.trees.layer_stock import LayerStock
from workspace_provisioner.trees.pool_files import PoolFiles
from workspace_provisioner.trees.take import Takes
from workspace_provisioner.trees.template_files import TemplateFiles


def opened_trees(
    *,
    layout: Layout,
    git: Git,
    files: FileWork,
    slow: FileWork,
    content: GitContent,
    readers: ObjectReaders,
    disk: Disk,
    stores: Stores,
    owners: Owners,
    clock: Clock,
    overlay: bool,
) -> tuple[GitTrees, Preparations]:
    """Return the trees of a host and what prepares them; `overlay` says whether overlays can be
    mounted on it. What grows with a repository is done in `slow`, so that no take waits for it.
    """
    checkouts = GitCheckouts(layout=layout, git=git, files=slow, content=content, stores=stores)
    templates = TemplateFiles(
        layout=layout,
        disk=disk,
        files=slow,
        stores=stores,
        checkouts=checkouts,
        deltas=DeltaFiles(layout=layout, files=slow, content=content, readers=readers),
        owners=owners,
        overlay=overlay,
    )
    pool = PoolFiles(layout=layout, files=slow, stores=stores, checkouts=checkouts, owners=owners)

    stock = LayerStock(layout=layout, owners=owners)

    def demand(plan: CheckoutPlan) -> None:
        preparations.taken(plan)

    def layered(plan: CheckoutPlan) -> None:
        preparations.want(plan.key, plan.commit)

    takes = Takes(
        layout=layout,
        files=files,
        stores=stores,
        templates=templates,
        pool=pool,
        checkouts=checkouts,
        changes=ChangeFiles(layout=layout, files=files, readers=readers),
        stock=stock,
        owners=owners,
        overlay=overlay,
        on_demand=demand,
        on_layer=layered,
    )
    trees = GitTrees(
        layout=layout,
        git=git,
        files=files,
        slow=slow,
        owners=owners,
        checkouts=checkouts,
        templates=templates,
        pool=pool,
        takes=takes,
        stock=stock,
        readers=readers,
    )
    preparations = Preparations(shelves=trees, clock=clock)
    return trees, preparations
