"""Writes the files of an object store durably; one writer at a time, who holds the store's lock.

Pins are written here and not by git: no process, and no lock file that a killed one leaves behind.
See gitrepository-layout(5) and git-pack-refs(1).
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from workspace_provisioner.disk.layout import shallow_mark
from workspace_provisioner.ports import Disk
from workspace_provisioner.sources import ProjectKey
from workspace_provisioner.store.files import read_epoch, read_packed, read_pins
from workspace_provisioner.store.snapshot_records import as_record
from workspace_provisioner.workspaces import Snapshot

_MOST_LOOSE = 64


class StoreWriter:
    """The writing side of every store on a disk."""

    def __init__(self, *, disk: Disk) -> None:
        self._disk = disk

    def pin(self, store: Path, added: Mapping[str, str], removed: Collection[str] = ()) -> None:
        """Write pins, full names and object ids, and then take others away."""
        loose = {name: oid for name, oid in added.items() if self._loose(store, name) != oid}
        if not removed and len(loose) + _count_loose(store) <= _MOST_LOOSE:
            for name, oid in loose.items():
                self._make(store / os.path.dirname(name))
                self._disk.write_whole(store / name, f"{oid}\n".encode())
            return
        gone = set(removed) - added.keys()
        pins = {**read_packed(store), **read_pins(store), **added}
        lines = [f"{oid} {ref}\n" for ref, oid in sorted(pins.items()) if oid and ref not in gone]
        self._disk.write_whole(store / "packed-refs", "".join(lines).encode())
        # Loose ones win over packed ones, so they go last; a crash in between brings a removed pin
        # back and never loses one.
        for directory, _, names in os.walk(store / "refs/fairlead"):
            for name in names:
                self._disk.remove(Path(directory, name))
            self._disk.sync_directory(Path(directory))

    def key(self, store: Path, key: ProjectKey) -> None:
        """Write whose objects of which project a store holds."""
        content = {
            "tenant": key.tenant,
            "project": key.project,
            "object_format": key.object_format,
        }
        self._disk.write_whole(store / "key", json.dumps(content).encode())

    def mark_shallow(self, store: Path, commits: Iterable[str]) -> None:
        """Tell workspaces that commits are there without their history."""
        for commit in commits:
            mark = shallow_mark(store, commit)
            self._make(mark.parent)
            # A draft of a file has a longer name than it, and that of a mark cannot be longer.
            draft = mark.with_name(commit)
            self._disk.write_whole(draft, f"{commit}\n".encode())
            self._disk.rename(draft, mark)
            self._disk.sync_directory(mark.parent)

    def drop_marks(self, store: Path, commits: Iterable[str]) -> None:
        """Tell workspaces that the history of commits is there."""
        marks = [shallow_mark(store, commit) for commit in commits]
        self.drop([*marks, *(mark.with_name(mark.name.partition("-")[0]) for mark in marks)])

    def record(self, store: Path, snapshot: Snapshot) -> None:
        """Write a snapshot's record."""
        path = store / "snapshots" / f"{snapshot.snapshot_id}.json"
        self._disk.write_whole(path, json.dumps(as_record(snapshot)).encode())

    def bump_epoch(self, store: Path) -> None:
        """Count one more: every stamp from before is void until it is made again."""
        self._disk.write_whole(store / "epoch", f"{read_epoch(store) + 1}\n".encode())

    def packs(self, store: Path, sizes: Mapping[str, int]) -> None:
        """Write which packs, with their sizes, there have to be from now on."""
        self._disk.write_whole(store / "packs", json.dumps(dict(sorted(sizes.items()))).encode())

    def tags(self, store: Path, tags: Mapping[str, str]) -> None:
        """Write the tags, full ref and object id."""
        self._disk.write_whole(store / "tags", json.dumps(dict(sorted(tags.items()))).encode())

    def drop(self, paths: Iterable[Path]) -> None:
        """Delete files that may be gone already."""
        parents = {path.parent for path in paths if self._disk.remove(path)}
        for parent in parents:
            self._disk.sync_directory(parent)

    def move_packs(self, source: Path, store: Path) -> None:
        """Move packs into the store, index last, since git looks for indexes."""
        target = store / "objects/pack"
        for suffix in (".pack", ".rev", ".idx"):
            for name in sorted(self._disk.names(source)):
                if name.endswith(suffix) and not (target / name).exists():
                    self._disk.rename(source / name, target / name)
        self._disk.sync_directory(target)

    def publish(self, draft: Path, store: Path) -> None:
        """Put a finished store in its place, unless there is one."""
        try:
            self._disk.rename(draft, store)
        except OSError:
            if not (store / "objects").is_dir():
                raise
        self._disk.sync_directory(store.parent)
        self._disk.sync_directory(store.parent.parent)

    def _make(self, directory: Path) -> None:
        if directory.is_dir():
            return
        self._make(directory.parent)
        directory.mkdir(mode=0o755, exist_ok=True)
        self._disk.sync_directory(directory.parent)

    def _loose(self, store: Path, name: str) -> str | None:
        content = self._disk.read(store / name)
        return None if content is None else content.decode("ascii", "replace").strip()


def _count_loose(store: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(store / "refs/fairlead"))
