"""Git directories that git sees in the place of hostile ones: made here, with links to the object
files of the workspace and the tenant's store below.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workspace_provisioner.git.directory import make_git_directory
from workspace_provisioner.sources import ObjectFormat
from workspace_provisioner.store.files import TAGS, TIPS, read_pins, read_records, read_tags
from workspace_provisioner.trees.layer_views import View
from workspace_provisioner.trees.refs import RefsUnreadable
from workspace_provisioner.trees.repositories import Parts
from workspace_provisioner.trees.unpushed import OWN_INDEX, Elsewhere

_MOST_OBJECTS = 50_000
_MOST_INDEX = 64 * 1024 * 1024
_DEFAULT_BRANCHES = ("refs/heads/main", "refs/heads/master")


@dataclass(frozen=True, slots=True)
class StandIn:
    """What a git directory is made of: HEAD at a commit, the store's objects, an index of what the
    host knows, and the own objects if they are needed.
    """

    object_format: ObjectFormat
    head: str
    store: Path | None
    index: Path | None
    reads_own: bool

    def make(self, path: Path, top: View, git_dir: Parts) -> int:
        """Make it in the place of `git_dir` below `top`; returns the bytes of the index there.
        Raises RefsUnreadable.
        """
        make_git_directory(
            path,
            object_format=self.object_format,
            bare=False,
            alternate=self.store / "objects" if self.store is not None else None,
            commit=self.head,
        )
        if self.index is not None:
            shutil.copy2(self.index, path / "index")
        own_index = top.read((*git_dir, "index"), _MOST_INDEX)
        known = (path / "index").read_bytes() if self.index is not None else None
        if own_index is not None and own_index != known:
            (path / OWN_INDEX).write_bytes(own_index)
        if self.reads_own:
            _link_objects(top, git_dir, path / "objects")
        return len(own_index or b"")


def elsewhere_of(store: Path) -> Elsewhere:
    """Return the commits and tags that a store has durably."""
    pins = read_pins(store)
    tips = frozenset(oid for ref, oid in pins.items() if ref.startswith(TIPS))
    tags = {oid for ref, oid in pins.items() if ref.startswith(TAGS)}
    tags.update(read_tags(store).values())
    snapshots = [each.snapshot for each in read_records(store, {}).values()]
    snapshots.sort(key=lambda each: each.created_at, reverse=True)
    for branch in _DEFAULT_BRANCHES:
        for snapshot in snapshots:
            for tip in snapshot.tips:
                if tip.ref == branch and tip.commit in tips:
                    return Elsewhere(tips, frozenset(tags), tip.commit)
    newest = next((each.commit for each in snapshots if each.commit in tips), "")
    return Elsewhere(tips, frozenset(tags), newest)


def _link_objects(top: View, git_dir: Parts, objects: Path) -> None:
    """Link the workspace's own object files; a file that is changed later is a broken object."""
    linked = 0
    with top.below((*git_dir, "objects")) as own:
        if own is None:
            return
        for name in own.entries():
            is_fan = len(name) == 2 and name.isalnum()
            if not is_fan and name != "pack":
                continue
            with own.below((name,)) as parent:
                if parent is None:
                    continue
                (objects / name).mkdir(mode=0o755, exist_ok=True)
                for child, descriptor in parent.entries().items():
                    found = parent.look(child, descriptor)
                    if found is None or not stat.S_ISREG(found.st_mode):
                        continue
                    linked += 1
                    if linked > _MOST_OBJECTS:
                        raise RefsUnreadable("it has too many objects")
                    with suppress(FileNotFoundError):
                        os.link(
                            child, objects / name / child,
                            src_dir_fd=descriptor, follow_symlinks=False,
                        )  # fmt: skip
