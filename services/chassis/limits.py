"""The check of a request against the table of limits, the same in every service."""

from __future__ import annotations

from chassis.errors import InvalidArgument
from fairlead_limits.refs import broken_branch_rule
from fairlead_limits.table import Limit, Name, Range


class LimitBroken(InvalidArgument):
    """A field is beyond its limit; `fields["field"]` names it."""

    def __init__(self, limit: Limit, field: str = "") -> None:
        super().__init__(
            limit.sentence,
            reason=limit.reason,
            remedy=limit.remedy,
            fields={"field": field or limit.field},
        )


class BranchInvalid(InvalidArgument):
    """The name cannot be the name of a branch."""

    def __init__(self, rule: str, field: str = "branch") -> None:
        super().__init__(
            f"The branch cannot have this name: it {rule}.",
            reason="branch_invalid",
            remedy="Choose a name such as 'fix/login'; see `git check-ref-format --help`.",
            fields={"field": field},
        )


def check_size(limit: Range, size: float, field: str = "") -> None:
    """Raise LimitBroken unless a number, or the size of a field, is within its limit."""
    if not limit.allows(size):
        raise LimitBroken(limit, field)


def check_name(limit: Name, text: str, field: str = "") -> None:
    """Raise LimitBroken unless a text has the form that its field must have."""
    if not limit.allows(text):
        raise LimitBroken(limit, field)


def check_branch(name: str, field: str = "branch") -> str:
    """Return the short name of a branch; raises BranchInvalid unless git takes it as one."""
    if rule := broken_branch_rule(name):
        raise BranchInvalid(rule, field)
    return name
