"""Templates: frozen checkouts of one commit, over which workspaces are laid, and entries of the
pool, which become workspaces whole.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from workspace_provisioner.sources import ProjectKey
from workspace_provisioner.stamps import StoreStamp

CHECKOUT_VERSION = 1
"""Grows when checkouts are made in another way: umask, filters, attributes, configuration."""

UMASK = 0o022


@dataclass(frozen=True, slots=True)
class Template:
    """A finished checkout. `base` is the template below a layer, or empty, and `under` the one
    below that; `tree` is the tree of uncommitted changes whose files the layer holds, or empty
    where it holds the commit's.

    `converts` says that attributes make files differ from their objects; `files` and `size` are
    those of the whole checkout; `made_at` is in seconds of the epoch; `grafted` says
    that its git directory ends history at the commit, which the store may know better by now;
    `tags` is the digest of the tags that it has.
    """

    template_id: str
    key: ProjectKey
    commit: str
    base: str
    under: str
    tree: str
    has_submodules: bool
    submodules_fault: str
    lfs_pointers: int
    converts: bool
    files: int
    size: int
    made_at: float
    grafted: bool
    tags: str
    stamp: StoreStamp

    @property
    def chain(self) -> tuple[str, ...]:
        """The ids of this template and of those that it lies over, topmost first."""
        return tuple(filter(None, (self.template_id, self.base, self.under)))


def family(key: ProjectKey) -> str:
    """Return what the ids of all templates of a project key begin with; no two tenants share
    one.
    """
    text = "\0".join((key.tenant, key.project, key.object_format))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def template_id(key: ProjectKey, commit: str, tree: str = "") -> str:
    """Return the id under which a commit's checkout is kept, or the files of a tree of changes over
    it.
    """
    text = "\0".join((commit, f"{UMASK:03o}", str(CHECKOUT_VERSION), *filter(None, [tree])))
    return f"{family(key)}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"
