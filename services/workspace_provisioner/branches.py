"""The rules for names of branches and refs, as `git check-ref-format` has them, without asking
git.
"""

from __future__ import annotations

import re

from workspace_provisioner.errors import BranchInvalid, FieldInvalid

_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]")
# A loose ref is a file, and its lock has five characters more: `<name>.lock` must fit into 255
# bytes.
_COMPONENT_BYTES = 250
_NAME_BYTES = 1000


def _broken_rule(name: str) -> str | None:
    """Say which rule of git-check-ref-format(1) the name breaks, or None."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if not name:
        return "is empty"
    if size > _NAME_BYTES:
        return f"has more than {_NAME_BYTES} bytes, the most that a host takes"
    if _FORBIDDEN.search(name):
        return r"holds a space, a control character or one of ~ ^ : ? * [ \ "[:-1]
    if ".." in name or "@{" in name:
        return "holds '..' or '@{'"
    if name.endswith("."):
        return "ends with '.'"
    for component in name.split("/"):
        if not component:
            return "has an empty part between slashes"
        if component.startswith("."):
            return "has a part that starts with '.'"
        if component.endswith(".lock"):
            return "has a part that ends with '.lock'"
        if len(component.encode()) > _COMPONENT_BYTES:
            return (
                f"has a part of more than {_COMPONENT_BYTES} bytes, the most that a file name "
                "holds beside '.lock'"
            )
    return None


def checked_branch(name: str) -> str:
    """Return the short name of a branch when git would allow it; raises BranchInvalid."""
    rule = _broken_rule(name)
    if rule is None and name.startswith("-"):
        rule = "starts with '-'"
    if rule is None and name == "HEAD":
        rule = "is 'HEAD', which names something else"
    if rule is not None:
        raise BranchInvalid(rule)
    return name


def checked_ref(name: str) -> str:
    """Return the full name of a ref (`refs/…`) when git would allow it; raises FieldInvalid."""
    rule = _broken_rule(name) if name.startswith("refs/") else "does not start with 'refs/'"
    if rule is not None:
        raise FieldInvalid("tip", f"has a ref whose name {rule}", remedy="Send full names of refs.")
    return name
