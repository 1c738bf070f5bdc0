"""Paths, times and ranges of files as REST writes them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import unquote_to_bytes

from signalling.file import FileEvent, FileStat, WatchEnd, WatchFrame, WatchGap, WatchStarted
from signalling.file_errors import PathTextInvalid, RangeUnsatisfiable

_LONE = re.compile("[\udc80-\udcff]")
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def to_text(path: bytes) -> str:
    """Write a path as text: `%` and bytes that are not UTF-8 are percent-encoded."""
    text = path.replace(b"%", b"%25").decode("utf-8", "surrogateescape")
    return _LONE.sub(lambda found: f"%{ord(found[0]) - 0xDC00:02X}", text)


def from_text(text: str, *, field: str) -> bytes:
    """Read a path from text, whatever of it is percent-encoded; raises PathTextInvalid."""
    try:
        return unquote_to_bytes(text)
    except UnicodeEncodeError:
        raise PathTextInvalid(field) from None


def time_text(nanoseconds: int) -> str:
    """Write a time as RFC 3339 has it, to the nanosecond."""
    seconds, rest = divmod(nanoseconds, 10**9)
    try:
        at = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        at, rest = datetime.fromtimestamp(0, UTC), 0
    return f"{at:%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def stat_json(stat: FileStat) -> dict[str, object]:
    """Return a file's members."""
    return {
        "name": to_text(stat.name),
        "kind": stat.kind.value,
        "size_bytes": stat.size,
        "permissions": stat.permissions,
        "modified_at": time_text(stat.modified),
        "target": to_text(stat.target),
        "etag": stat.etag,
    }


def watch_json(frame: WatchFrame) -> dict[str, object]:
    """Return the members of a frame of a watch."""
    match frame:
        case WatchStarted(directories):
            return {"type": "started", "directories": directories}
        case FileEvent(sequence, change, path, source, directory):
            return {
                "type": change.value,
                "sequence": sequence,
                "path": to_text(path),
                "source": to_text(source),
                "directory": directory,
            }
        case WatchGap(sequence):
            return {"type": "gap", "sequence": sequence}
        case WatchEnd(last_sequence, reason):
            return {"type": "end", "last_sequence": last_sequence, "reason": reason.value}


@dataclass(frozen=True, slots=True)
class ByteRange:
    """One range of a file (RFC 9110, section 14.1.2): `first` and `last`, or the last bytes."""

    first: int | None
    last: int | None

    @property
    def offset(self) -> int:
        """Where to read from; negative counts from the end."""
        return -(self.last or 0) if self.first is None else self.first

    @property
    def length(self) -> int | None:
        """How much to read; None to the end."""
        if self.first is None or self.last is None:
            return None
        return self.last - self.first + 1

    def span(self, size: int) -> tuple[int, int]:
        """Return the first byte and the one after the last; raises RangeUnsatisfiable."""
        start = max(0, size + self.offset) if self.first is None else self.first
        end = size if self.length is None else min(size, start + self.length)
        if start >= size or (self.offset == 0 and self.first is None):
            raise RangeUnsatisfiable(size)
        return start, end


def read_range(header: str | None) -> ByteRange | None:
    """Read a Range header; None for what is ignored: other units, several ranges, nonsense."""
    found = _RANGE.fullmatch((header or "").replace(" ", ""))
    if found is None or found[1] == found[2] == "":
        return None
    first = int(found[1]) if found[1] else None
    last = int(found[2]) if found[2] else None
    if first is not None and last is not None and last < first:
        return None
    return ByteRange(first, last)
