"""How the worker hands a workspace to an init: named in fields, and where the init cannot open it
itself, as mounts that nobody else sees.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence

from chassis.packet_link import close_all
from fairlead_walls import kernel_calls
from sandbox_worker.isolation.mount_order import Bound, mounts_of
from sandbox_worker.ports import Tree

Lender = Callable[[Bound], Awaitable[Sequence[int]]]
"""Opens what a workspace is made of; the descriptors are the caller's. Raises OSError."""


def bound(workspace: Tree) -> Bound:
    """Return a workspace as a packet names it."""
    named = {"target": [os.fsencode(workspace.path)]}
    layers = workspace.layers
    if layers is not None:
        named["upper"] = [os.fsencode(layers.upper)]
        named["work"] = [os.fsencode(layers.work)]
        named["lower"] = [os.fsencode(path) for path in layers.lower]
    named["store"] = [os.fsencode(path) for path in workspace.stores]
    return named


def fields_of(workspace: Bound) -> list[bytes]:
    """Return the fields of a packet that name a workspace."""
    named = workspace.items()
    return [name.encode() + b"=" + path for name, paths in named for path in paths]


async def lend_nothing(_workspace: Bound) -> Sequence[int]:
    """Let the init open everything itself."""
    return ()


def open_mapped(workspace: Bound, namespace: int) -> Sequence[int]:
    """Open the directories that a workspace stands on as mounts that nobody else sees, and in which
    files belong to whom the user namespace says. Raises OSError.
    """
    mounts: list[int] = []
    try:
        for path, attributes in mounts_of(workspace):
            mounts.append(kernel_calls.clone_mount(path))
            kernel_calls.set_mount(mounts[-1], attributes, namespace)
    except OSError:
        close_all(mounts)
        raise
    return mounts
