"""The rule for names of branches and other refs, as `git check-ref-format` has it, without git."""

from __future__ import annotations

import re

from fairlead_limits.table import REF_BYTES, REF_PART_BYTES

_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]")


def broken_ref_rule(name: str) -> str:
    """Say which rule the name of a ref, or a part of one, breaks; empty when it breaks none."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if not name:
        return "is empty"
    if size > REF_BYTES:
        return f"has more than {REF_BYTES} bytes, the most that a host takes"
    if _FORBIDDEN.search(name):
        return "holds a space, a control character or one of ~ ^ : ? * [ \\"
    if ".." in name or "@{" in name:
        return "holds '..' or '@{'"
    if name.endswith("."):
        return "ends with '.'"
    for part in name.split("/"):
        if not part:
            return "has an empty part between slashes"
        if part.startswith("."):
            return "has a part that starts with '.'"
        if part.endswith(".lock"):
            return "has a part that ends with '.lock'"
        if len(part.encode()) > REF_PART_BYTES:
            return (
                f"has a part of more than {REF_PART_BYTES} bytes, the most that a file name holds"
                " beside '.lock'"
            )
    return ""


def broken_branch_rule(name: str) -> str:
    """Say which rule the short name of a branch breaks; empty when it breaks none."""
    if rule := broken_ref_rule(name):
        return rule
    if name.startswith("-"):
        return "starts with '-'"
    return "is 'HEAD', which names something else" if name == "HEAD" else ""
