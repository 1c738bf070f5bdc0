"""What a store promises, read from its files once and remembered until one of them changes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from workspace_provisioner.stamps import StoreStamp
from workspace_provisioner.store.files import (
    CHANGES,
    SHALLOW,
    TIPS,
    Record,
    Stat,
    pack_sizes,
    read_epoch,
    read_marks,
    read_packs,
    read_pins,
    read_records,
    read_tags,
    stat_of,
)
from workspace_provisioner.workspaces import MissReason

MOST_REMEMBERED = 100_000

_WATCHED = (
    "config",
    "epoch",
    "objects/pack",
    "packed-refs",
    "refs/fairlead/changes",
    "refs/fairlead/shallow",
    "refs/fairlead/tips",
    "snapshots",
)
# A directory may change twice within one tick of the kernel's clock, at most 10 ms, and have the
# same time afterwards; what was read that soon after a change is read again.
_TICK_NS = 20_000_000

Marks = tuple[Stat | None, ...]


@dataclass(frozen=True, slots=True)
class StoreState:
    """A store's promises: only what is both pinned and recorded counts.

    `shallow` are commits that are there without their ancestors; `alone` are all that came so.

    `known` remembers commits and a tip that reaches them; it lives as long as no promise is taken
    back. It `is_doubtful` when packs are not there that have to be, or not in their size.
    """

    marks: Marks | None
    epoch: int
    tips: frozenset[str]
    trees: frozenset[str]
    shallow: frozenset[str]
    alone: frozenset[str]
    unpinned: frozenset[str]
    unrecorded: frozenset[str]
    records: Mapping[Path, Record]
    promised_by: Mapping[str, Record]
    tags: Mapping[str, str]
    is_doubtful: bool
    known: dict[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Say whether there is nothing of the project at all."""
        return not (self.tips or self.shallow or self.unpinned or self.unrecorded)

    def has(self, commit: str) -> bool:
        """Say whether the commit is known to be reachable from the tips, or is there alone."""
        return self.is_rooted(commit) or commit in self.shallow

    def is_rooted(self, commit: str) -> bool:
        """Say whether the commit is known to be there with all its ancestors."""
        return commit in self.tips or commit in self.known

    def remember(self, commit: str, tip: str) -> None:
        """Keep a commit that was found to be reachable from a tip."""
        if len(self.known) < MOST_REMEMBERED:
            self.known[commit] = tip

    def lacking(self, commit: str) -> MissReason:
        """Say why a commit that is not reachable cannot be served."""
        if self.is_empty:
            return MissReason.NO_BASE
        if commit in self.unpinned:
            return MissReason.REF_DRIFT
        if commit in self.unrecorded:
            return MissReason.SNAPSHOT_NOT_DURABLE
        return MissReason.UNKNOWN_COMMIT


def read_state(store: Path, before: StoreState | None) -> StoreState | None:
    """Read a store's promises; None when there is no store. `before` spares what did not change."""
    marks = _marks(store)
    if stat_of(store / "objects") is None:
        return None
    pins = read_pins(store)
    records = read_records(store, before.records if before else {})
    promised: dict[str, Record] = {}
    alone: dict[str, Record] = {}
    trees: set[str] = set()
    for record in sorted(records.values(), key=lambda each: each.snapshot.created_at):
        snapshot = record.snapshot
        for commit in snapshot.commits:
            (alone if commit in snapshot.shallow else promised)[commit] = record
        trees.add(snapshot.changes_tree)
    pinned = _pinned(pins, TIPS)
    tips = pinned & promised.keys()
    shallow = _pinned(pins, SHALLOW) & alone.keys() - tips
    epoch, packs, needed = read_epoch(store), pack_sizes(store), read_packs(store)
    is_grown = before is not None and before.epoch == epoch and before.tips <= tips
    return StoreState(
        marks=marks if _is_settled(marks) else None,
        epoch=epoch,
        tips=tips,
        trees=_pinned(pins, CHANGES) & trees,
        shallow=shallow,
        alone=frozenset(alone) | read_marks(store),
        unpinned=frozenset(promised.keys() - pinned | (alone.keys() - shallow - promised.keys())),
        unrecorded=frozenset(pinned - promised.keys()),
        records=records,
        promised_by={**alone, **promised},
        tags=_tags(store, before),
        is_doubtful=any(packs.get(name) != size for name, size in needed.items())
        or (not needed and bool(tips or shallow)),
        known=before.known if before is not None and is_grown else {},
    )


def _tags(store: Path, before: StoreState | None) -> Mapping[str, str]:
    """Return the tags, the same object while they are the same."""
    tags = read_tags(store)
    return before.tags if before is not None and before.tags == tags else tags


def is_current(store: Path, state: StoreState) -> bool:
    """Say whether none of the files changed that the state was read from."""
    return state.marks is not None and state.marks == _marks(store)


def stamp_store(store: Path, state: StoreState, commit: str, pin: str) -> StoreStamp:
    """Return what a store has for a commit that `pin` reaches."""
    packs = tuple(sorted(pack_sizes(store).items()))
    return StoreStamp(state.epoch, commit, pin, pin in state.shallow, packs)


def verify_stamp(store: Path, state: StoreState, stamp: StoreStamp) -> MissReason | None:
    """Compare a store with a stamp; `state` is current."""
    pin = stamp.pin
    if pin not in state.tips and not (stamp.shallow and pin in state.shallow):
        is_pinned = pin in state.unrecorded
        return MissReason.SNAPSHOT_NOT_DURABLE if is_pinned else MissReason.REF_DRIFT
    # A file that was overwritten in place leaves its directory as it was.
    kind = TIPS if pin in state.tips else SHALLOW
    try:
        with open(f"{store}/{kind}{pin}", "rb", buffering=0) as file:
            text = file.readall()
    except FileNotFoundError:
        text = pin.encode()  # a packed one, and that file is watched
    except OSError:
        text = b""
    if text.strip() != pin.encode():
        return MissReason.REF_DRIFT
    record = state.promised_by[pin]
    if stat_of(record.path) != record.stat:
        return MissReason.SNAPSHOT_NOT_DURABLE
    if state.epoch != stamp.epoch:
        return MissReason.MISSING_OBJECTS
    for name, size in stamp.packs:
        pack = stat_of(f"{store}/objects/pack/{name}.pack")
        index = stat_of(f"{store}/objects/pack/{name}.idx")
        if pack is None or index is None or pack[1] != size:
            return MissReason.MISSING_OBJECTS
    return None


def _pinned(pins: Mapping[str, str], kind: str) -> frozenset[str]:
    """Return the objects of one kind of pin; a pin that holds another object than its name says
    promises nothing.
    """
    return frozenset(
        oid for name, oid in pins.items() if name.startswith(kind) and name == f"{kind}{oid}"
    )


def _marks(store: Path) -> Marks:
    base = str(store)
    return tuple([stat_of(f"{base}/{name}") for name in _WATCHED])


def _is_settled(marks: Marks) -> bool:
    newest = max((mark[2] for mark in marks if mark), default=0)
    return newest < time.time_ns() - _TICK_NS
