"""The rules for what a caller asks of workspaces, as far as the text tells. Pure.

Names, and whether a branch or a name is taken, are for the host to judge: it counts its refusals.
"""

from __future__ import annotations

from signalling.launch_request import check_key, check_lease
from signalling.source_rules import InvalidRequest, check_branch, check_source, check_text
from signalling.workspace import ForkOrder, WorkspaceOrder

MAXIMUM_NAME = 1000


def check_order(order: WorkspaceOrder) -> None:
    """Raise InvalidRequest unless a host can be asked for the workspace."""
    if order.key:
        check_key(order.key)
    check_source(order.source)
    if order.branch:
        check_branch("branch", order.branch)
    elif order.claim_branch:
        raise InvalidRequest(
            "branch",
            "A branch can only be claimed when it is named.",
            reason="branch_invalid",
            remedy="Name the branch, or leave `claim_branch` out.",
        )
    check_name(order.name)
    check_lease(order.lease)


def check_fork(order: ForkOrder) -> None:
    """Raise InvalidRequest unless a host can be asked for the copy."""
    if order.key:
        check_key(order.key)
    if order.branch:
        check_branch("branch", order.branch)
    check_name(order.name)
    check_lease(order.lease)


def check_name(name: str) -> None:
    """Raise InvalidRequest for a name that cannot even be carried to a host."""
    check_text("name", name, "name_invalid")
    if len(name) > MAXIMUM_NAME:
        raise InvalidRequest(
            "name",
            "The name is far too long.",
            reason="name_invalid",
            remedy="Use 1 to 64 of a-z, 0-9, `.`, `_` and `-`, first a letter or a digit.",
        )
