"""What a prepared thing remembers of the store that it was made from, so that a look at a few
files tells whether the store still keeps its promise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict


@dataclass(frozen=True, slots=True)
class StoreStamp:
    """A store at one moment, as far as one commit needs it.

    `pin` is the durable tip that reaches `commit`; `shallow` says that the store had only the
    trees of that tip; `packs` are the names and sizes of the packs that there were.
    """

    epoch: int
    commit: str
    pin: str
    shallow: bool
    packs: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class PackedTags:
    """The tags of a store as the text of a `packed-refs` file, and what tells them from others;
    both empty without tags.
    """

    text: str = ""
    digest: str = ""


class StampRecord(TypedDict):
    """A stamp as JSON."""

    epoch: int
    commit: str
    pin: str
    shallow: bool
    packs: list[tuple[str, int]]


def stamp_record(stamp: StoreStamp) -> StampRecord:
    """Return a stamp as its record."""
    return StampRecord(
        epoch=stamp.epoch,
        commit=stamp.commit,
        pin=stamp.pin,
        shallow=stamp.shallow,
        packs=list(stamp.packs),
    )


def stamp_of(record: StampRecord) -> StoreStamp:
    """Return the stamp of a record; raises KeyError, TypeError or ValueError."""
    return StoreStamp(
        epoch=int(record["epoch"]),
        commit=str(record["commit"]),
        pin=str(record["pin"]),
        shallow=bool(record["shallow"]),
        packs=tuple((str(name), int(size)) for name, size in record["packs"]),
    )
