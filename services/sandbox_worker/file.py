"""Files as the worker sees them: what is asked of them and what they are. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PIECE_BYTES = 256 * 1024
"""Longest piece of content that is sent."""

DEFAULT_PAGE = 500


class FileKind(StrEnum):
    """What a name stands for."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    OTHER = "other"


class WriteMode(StrEnum):
    """What becomes of a file that is there."""

    REPLACE = "replace"
    CREATE = "create"
    RANGE = "range"


class FileChange(StrEnum):
    """What happened to a name."""

    CREATED = "created"
    MODIFIED = "modified"
    REMOVED = "removed"
    MOVED = "moved"


class WatchEndReason(StrEnum):
    """Why a watch ended."""

    RELEASED = "released"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class FileStat:
    """A file: `target` is what a link names, `modified` is in nanoseconds since 1970."""

    name: bytes
    kind: FileKind
    size: int
    permissions: int
    modified: int
    target: bytes
    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOrder:
    """How a file is to be written; see WriteFileOpening in file.proto."""

    path: bytes
    mode: WriteMode = WriteMode.REPLACE
    offset: int = 0
    truncate: bool = False
    permissions: int | None = None
    parents: bool = False
    if_match: str = ""


@dataclass(frozen=True, slots=True)
class FilePage:
    """A page of a directory; the token is empty on the last one."""

    files: tuple[FileStat, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class TreeSize:
    """What an upload has unpacked."""

    entries: int
    content_bytes: int


@dataclass(frozen=True, slots=True)
class WatchStarted:
    """From now on no change is missed."""

    directories: int


@dataclass(frozen=True, slots=True)
class FileEvent:
    """One change, by its path below the watched directory; `source` is where a moved one was."""

    sequence: int
    change: FileChange
    path: bytes
    source: bytes
    directory: bool


@dataclass(frozen=True, slots=True)
class WatchGap:
    """Changes were lost; the loss counts as one event."""

    sequence: int


@dataclass(frozen=True, slots=True)
class WatchEnd:
    """There are no more events."""

    last_sequence: int
    reason: WatchEndReason


WatchFrame = WatchStarted | FileEvent | WatchGap | WatchEnd
"""A frame of a watch: `started` first, then events and gaps, then exactly one end."""


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Replace a whole small file."""

    path: bytes
    content: bytes
    permissions: int | None = None
    parents: bool = False


@dataclass(frozen=True, slots=True)
class ReadFile:
    """Read a whole small file."""

    path: bytes


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """Remove a file, or with `recursive` a tree."""

    path: bytes
    recursive: bool = False


@dataclass(frozen=True, slots=True)
class MoveFile:
    """Rename a file or a tree."""

    source: bytes
    target: bytes
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """Make a directory."""

    path: bytes
    parents: bool = False


@dataclass(frozen=True, slots=True)
class StatFile:
    """Describe a file."""

    path: bytes
    follow: bool = True


FileOperation = WriteFile | ReadFile | RemoveFile | MoveFile | MakeDirectory | StatFile
"""A step of a batch."""


@dataclass(frozen=True, slots=True)
class FileOutcome:
    """What a step of a batch gave; no stat after a removal."""

    stat: FileStat | None = None
    content: bytes = b""
