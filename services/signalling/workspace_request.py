"""The rules for what a caller asks of workspaces, as far as the text tells. Pure.

Whether a branch or a name is taken is for the host to judge.
"""

from __future__ import annotations

from chassis.limits import check_branch, check_name
from fairlead_limits import table
from signalling.launch_request import check_key, check_lease
from signalling.source_rules import InvalidRequest, check_source
from signalling.workspace import ForkOrder, WorkspaceOrder


def check_order(order: WorkspaceOrder) -> None:
    """Raise InvalidRequest unless a host can be asked for the workspace."""
    if order.key:
        check_key(order.key)
    check_source(order.source)
    if order.branch:
        check_branch(order.branch, "branch")
    elif order.claim_branch:
        raise InvalidRequest(
            "branch",
            "A branch can only be claimed when it is named.",
            reason="branch_invalid",
            remedy="Name the branch, or leave `claim_branch` out.",
        )
    check_workspace_name(order.name)
    check_lease(order.lease)


def check_fork(order: ForkOrder) -> None:
    """Raise InvalidRequest unless a host can be asked for the copy."""
    if order.key:
        check_key(order.key)
    if order.branch:
        check_branch(order.branch, "branch")
    check_workspace_name(order.name)
    check_lease(order.lease)


def check_workspace_name(name: str) -> None:
    """Raise LimitBroken unless a workspace can have this name, or none."""
    if name:
        check_name(table.WORKSPACE_NAME, name)
