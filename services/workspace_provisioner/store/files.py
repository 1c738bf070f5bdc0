"""Reads the files of an object store: its pins, its records, its epoch, at any time.

A pin is a ref below `refs/fairlead/` that is named after the object that it holds.
"""

from __future__ import annotations

import json
import logging
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workspace_provisioner.disk.layout import MARKS
from workspace_provisioner.store.snapshot_records import from_record
from workspace_provisioner.workspaces import Snapshot

log = logging.getLogger(__name__)

TIPS = "refs/fairlead/tips/"
SHALLOW = "refs/fairlead/shallow/"
CHANGES = "refs/fairlead/changes/"
TAGS = "refs/fairlead/tags/"
RETIRED = "refs/fairlead/retired/"
KINDS = (TIPS, SHALLOW, CHANGES, TAGS)

_INDEX_VERSION_2 = b"\377tOc\0\0\0\2"
_IDS = len(_INDEX_VERSION_2) + 256 * 4
_OBJECT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def read_pins(store: Path) -> dict[str, str]:
    """Return the pins by their full names; the empty string for one that names no object.

    Loose ones are read before packed ones, because packing moves them that way.
    """
    loose: dict[str, str] = {}
    base = store / "refs/fairlead"
    for directory, _, names in os.walk(base):
        prefix = os.path.relpath(directory, store)
        for name in names:
            if name.startswith(".") or name.endswith(".lock"):
                continue
            try:
                with open(os.path.join(directory, name), encoding="ascii") as file:
                    text = file.read().removesuffix("\n")
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError):
                text = ""
            loose[f"{prefix}/{name}"] = text if _OBJECT_ID.fullmatch(text) else ""
    return {**read_packed(store), **loose}


def read_packed(store: Path) -> dict[str, str]:
    """Return the pins that are packed, by their full names."""
    try:
        text = (store / "packed-refs").read_text(encoding="ascii")
    except (FileNotFoundError, UnicodeDecodeError):
        return {}
    pins = {}
    for line in text.splitlines():
        oid, _, name = line.partition(" ")
        if _OBJECT_ID.fullmatch(oid) and name.startswith("refs/fairlead/"):
            pins[name] = oid
    return pins


def read_epoch(store: Path) -> int:
    """Return how often the store was repaired or cleaned up; 0 for a fresh one."""
    try:
        return int((store / "epoch").read_bytes())
    except (FileNotFoundError, ValueError):
        return 0


Stat = tuple[int, int, int]
"""Inode, size and time of a file: equal while nobody has written it."""


def stat_of(path: Path | str) -> Stat | None:
    """Return what tells one content of a file or directory from the next; None when it is gone.

    Raises OSError when that cannot be told.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True, slots=True)
class Record:
    """A snapshot with the file that it was read from."""

    path: Path
    stat: Stat
    snapshot: Snapshot


def read_records(store: Path, known: Mapping[Path, Record]) -> dict[Path, Record]:
    """Return the snapshot records that can be read; those that did not change are not read
    again.
    """
    found: dict[Path, Record] = {}
    try:
        names = os.listdir(store / "snapshots")
    except OSError:
        return found
    for name in names:
        path = store / "snapshots" / name
        stat = stat_of(path)
        if stat is None or not (name.startswith("snp_") and name.endswith(".json")):
            continue
        before = known.get(path)
        if before is not None and before.stat == stat:
            found[path] = before
            continue
        try:
            found[path] = Record(path, stat, from_record(json.loads(path.read_bytes())))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            log.warning("snapshot record unreadable", extra={"record": name})
    return found


def pack_sizes(store: Path) -> dict[str, int]:
    """Return the packs that have an index, with their sizes; -1 where there is only an index."""
    sizes: dict[str, int] = {}
    try:
        names = os.listdir(store / "objects/pack")
    except OSError:
        return sizes
    for name in names:
        if name.endswith(".idx"):
            pack = name.removesuffix(".idx")
            stat = stat_of(store / "objects/pack" / f"{pack}.pack")
            sizes[pack] = -1 if stat is None else stat[1]
    return sizes


def may_hold(store: Path, oid: str) -> bool:
    """Say whether there may be an object: False only where no index names it, nor a file of its
    own; see gitformat-pack(5).
    """
    directory = store / "objects/pack"
    try:
        indexes = [name for name in os.listdir(directory) if name.endswith(".idx")]
        return os.path.lexists(store / "objects" / oid[:2] / oid[2:]) or any(
            _names(directory / name, bytes.fromhex(oid)) for name in indexes
        )
    except (OSError, ValueError):
        return True


def _names(index: Path, oid: bytes) -> bool:
    with open(index, "rb", buffering=0) as file:
        head = os.pread(file.fileno(), _IDS, 0)
        if len(head) < _IDS or not head.startswith(_INDEX_VERSION_2):
            return True
        counts = struct.unpack_from(">256L", head, len(_INDEX_VERSION_2))
        first, last = counts[oid[0] - 1] if oid[0] else 0, counts[oid[0]]
        size = (last - first) * len(oid)
        ids = os.pread(file.fileno(), size, _IDS + first * len(oid))
    return len(ids) < size or oid in ids


def read_marks(store: Path) -> frozenset[str]:
    """Return the commits of which workspaces are told that their history is still to come."""
    try:
        names = os.listdir(store / MARKS)
    except OSError:
        return frozenset()
    return frozenset(name.partition("-")[0] for name in names if not name.startswith("."))


def read_packs(store: Path) -> dict[str, int]:
    """Return the packs, with their sizes, that there have to be; none when that is not known."""
    return {name: size for name, size in _mapping(store / "packs").items() if type(size) is int}


def read_tags(store: Path) -> dict[str, str]:
    """Return the tags that clients sent: full ref to object id."""
    return {ref: oid for ref, oid in _mapping(store / "tags").items() if isinstance(oid, str)}


def _mapping(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return {str(name): value for name, value in found.items()} if isinstance(found, dict) else {}
