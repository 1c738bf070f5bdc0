"""Puts the files of a store right that nobody but us should have written, and finds what killed
processes left behind.

A store has no alternates, grafts, shallow mark or promisor of its own: each of them would let git
take something for whole that is not, or is another tenant's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from workspace_provisioner.disk.deletion import move_to_trash
from workspace_provisioner.git.directory import git_config
from workspace_provisioner.ports import Disk
from workspace_provisioner.sources import ObjectFormat

log = logging.getLogger(__name__)

_HEAD = b"ref: refs/heads/unborn\n"
_FOREIGN = (
    "commondir",
    "config.worktree",
    "hooks",
    "info",
    "logs",
    "objects/info/alternates",
    "objects/info/http-alternates",
    "refs/replace",
    "shallow",
    "worktrees",
)


def is_poisoned(store: Path, object_format: ObjectFormat) -> bool:
    """Say whether git would read a configuration or borrow objects that are not ours."""
    return not _is_ours(store, object_format) or any(
        os.path.lexists(store / name) for name in _FOREIGN
    )


def mend(store: Path, *, object_format: ObjectFormat, disk: Disk, trash: Path) -> None:
    """Bring back our configuration and take away what does not belong there. The caller holds the
    store's lock, so every `.lock` and every draft was left by a process that is dead.
    """
    if not _is_ours(store, object_format):
        log.warning("store configuration rewritten", extra={"store": store.name})
        disk.write_whole(store / "config", git_config(object_format, bare=True).encode())
        disk.write_whole(store / "HEAD", _HEAD)
    for path in list(_foreign(store)):
        log.warning("leftover in a store", extra={"store": store.name, "leftover": path.name})
        move_to_trash(path, trash)
    for name in ("objects", "objects/info", "objects/pack", "refs", "refs/heads", "snapshots"):
        (store / name).mkdir(mode=0o755, exist_ok=True)
    disk.sync_directory(store)


def orphan_packs(store: Path) -> list[str]:
    """Return the packs without an index, which git does not see."""
    names = _names(store / "objects/pack")
    return sorted(
        name.removesuffix(".pack")
        for name in names
        if name.startswith("pack-")
        and name.endswith(".pack")
        and f"{name.removesuffix('.pack')}.idx" not in names
    )


def set_aside(store: Path, packs: Iterable[str], *, disk: Disk) -> None:
    """Move packs that git cannot read where it does not look, for whoever wants to examine them."""
    aside, found = store / "damaged", store / "objects/pack"
    for name in packs:
        aside.mkdir(mode=0o700, exist_ok=True)
        for suffix in (".idx", ".rev", ".pack"):
            if (found / f"{name}{suffix}").exists():
                disk.rename(found / f"{name}{suffix}", aside / f"{name}{suffix}")
    disk.sync_directory(found)


def _is_ours(store: Path, object_format: ObjectFormat) -> bool:
    try:
        config, head = (store / "config").read_bytes(), (store / "HEAD").read_bytes()
    except OSError:
        return False
    return config == git_config(object_format, bare=True).encode() and head == _HEAD


def _foreign(store: Path) -> Iterator[Path]:
    for name in _FOREIGN:
        if os.path.lexists(store / name):
            yield store / name
    for name in _names(store):
        if name.endswith((".lock", ".tmp")) or name.startswith("draft-"):
            yield store / name
    for name in _names(store / "snapshots"):
        if name.endswith((".lock", ".tmp")):
            yield store / "snapshots" / name
    for directory, _, names in os.walk(store / "refs"):
        for name in names:
            if name.endswith((".lock", ".tmp")):
                yield Path(directory, name)
    names = _names(store / "objects/pack")
    for name in names:
        stem = name.partition(".")[0]
        if (
            name.endswith((".promisor", ".tmp", ".lock"))
            or name.startswith("tmp_")
            or (name.endswith(".rev") and f"{stem}.pack" not in names)
        ):
            yield store / "objects/pack" / name


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []
