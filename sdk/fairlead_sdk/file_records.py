"""Files of a sandbox as the front door describes them, and how paths are written there."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote, unquote_to_bytes

from fairlead_sdk import json_form as form
from fairlead_sdk.json_form import JsonObject

FilePath = str | bytes | os.PathLike[str]
"""A path in a sandbox's workspace; a text stands for its UTF-8 bytes."""

_FRACTION = re.compile(r"\.(\d{1,9})")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file: `name` is its last name in lists, else the path that was asked for.

    `kind` is "file", "directory", "link" or "other"; `modified_ns` is in nanoseconds since 1970;
    `target` is what a link names; `etag` changes whenever the file does.
    """

    name: bytes
    kind: str
    size: int
    permissions: int
    modified_ns: int
    target: bytes
    etag: str

    @property
    def text(self) -> str:
        """The name as text, as Python writes names that are not UTF-8."""
        return os.fsdecode(self.name)

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return self.kind == "directory"

    @property
    def modified_at(self) -> datetime:
        """When it changed last."""
        return datetime.fromtimestamp(self.modified_ns / 1e9).astimezone()

    @classmethod
    def read(cls, document: JsonObject) -> FileRecord:
        """Read the JSON form."""
        return cls(
            name=path_of(form.text(document, "name")),
            kind=form.text(document, "kind"),
            size=form.number(document, "size_bytes"),
            permissions=form.number(document, "permissions"),
            modified_ns=_nanoseconds(document),
            target=path_of(form.text(document, "target")),
            etag=form.text(document, "etag"),
        )


@dataclass(frozen=True, slots=True)
class FileEvent:
    """What a watch tells: `change` is "started", "created", "modified", "removed", "moved", or
    "gap" where changes were lost: list again.

    Paths are below the watched directory; `source` is where a moved file was. `sequence` counts
    from 1 and is 0 for "started".
    """

    change: str
    sequence: int = 0
    path: bytes = b""
    source: bytes = b""
    is_directory: bool = False

    @classmethod
    def read(cls, document: JsonObject) -> FileEvent:
        """Read the JSON form."""
        return cls(
            change=form.text(document, "type"),
            sequence=form.number(document, "sequence"),
            path=path_of(form.text(document, "path")),
            source=path_of(form.text(document, "source")),
            is_directory=form.flag(document, "directory"),
        )


@dataclass(frozen=True, slots=True)
class TreeCopied:
    """What an upload or a download has copied; `left_out` are names of links that lead out of the
    tree, of sockets, pipes and devices, of what a sandbox's user may not read, and for a download
    of git directories.
    """

    entries: int
    content_bytes: int
    left_out: tuple[str, ...] = ()


def bytes_of(path: FilePath) -> bytes:
    """Give a path as bytes."""
    return path if isinstance(path, bytes) else os.fspath(path).encode("utf-8", "surrogateescape")


def text_of(path: FilePath) -> str:
    """Give a path as JSON has it: everything but plain characters percent-encoded."""
    return quote(bytes_of(path))


def path_of(text: str) -> bytes:
    """Read a path from JSON."""
    return unquote_to_bytes(text)


def _nanoseconds(document: JsonObject) -> int:
    moment = form.time_or_epoch(document, "modified_at")
    fraction = _FRACTION.search(form.text(document, "modified_at"))
    nanoseconds = int((fraction[1] if fraction else "").ljust(9, "0"))
    return int(moment.replace(microsecond=0).timestamp()) * 10**9 + nanoseconds
