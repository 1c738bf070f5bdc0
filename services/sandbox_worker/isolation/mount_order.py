"""Which directories of the host a workspace stands on, in the order in which they are handed over.

For the worker and the inits: standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from fairlead_walls.kernel_calls import NO_DEVICES, NO_PROGRAMS, NO_SETUID, READ_ONLY

Bound = Mapping[str, Sequence[bytes]]
"""A workspace as a packet names it: target, upper, work, lower (topmost first), store."""

_OWN = NO_SETUID | NO_DEVICES


def mounts_of(workspace: Bound) -> list[tuple[bytes, int]]:
    """Return each directory with the attributes of its mount: the frozen layers and what holds the
    workspace's own two, or its plain directory; then the stores that its git borrows from.
    """
    found: list[tuple[bytes, int]] = []
    if "lower" in workspace:
        found = [(each, _OWN | READ_ONLY) for each in workspace["lower"]]
        # Both have to lie in one mount.
        found.append((own_layers(workspace), _OWN))
    else:
        found.append((workspace["target"][0], _OWN))
    shut = _OWN | READ_ONLY | NO_PROGRAMS
    found.extend((each, shut) for each in workspace.get("store", ()))
    return found


def own_layers(workspace: Bound) -> bytes:
    """Return the directory that holds the workspace's upper and work directories."""
    upper, work = workspace["upper"][0], workspace["work"][0]
    above = upper.rpartition(b"/")[0]
    return above if work.rpartition(b"/")[0] == above else os.path.commonpath([upper, work])
