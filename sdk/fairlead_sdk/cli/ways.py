"""What `fairlead forward` is told to lead where."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from fairlead_sdk.errors import InvalidArgument

_HIGHEST_PORT = 65535
_WAY = re.compile(
    r"(?:(?:(?P<local>[0-9]{1,5})|(?P<path>[^:]*/[^:]*)):)?"
    r"(?:(?P<host>(?![0-9]*:)[A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):)?(?P<port>[0-9]{1,5})"
)


@dataclass(frozen=True, slots=True)
class Way:
    """From a local port, or any when that is None, or a socket at `path`, to a port of the sandbox,
    or of `host`.
    """

    local_port: int | None
    host: str
    port: int
    path: Path | None = None


def parse_way(text: str) -> Way:
    """Read `[LOCAL:][HOST:]PORT`; digits alone before a colon are a local port, as no host is, and
    what has a slash is a path.
    """
    found = _WAY.fullmatch(text)
    way = Way(None, "", 0)
    if found is not None:
        local, path = found["local"], found["path"]
        way = Way(
            int(local) if local else None,
            found["host"] or "",
            int(found["port"]),
            Path(path).absolute() if path else None,
        )
    if not 1 <= way.port <= _HIGHEST_PORT or (way.local_port or 0) > _HIGHEST_PORT:
        raise InvalidArgument(
            f"{text!r} names no port.",
            reason="port_invalid",
            remedy="Give [LOCAL:][HOST:]PORT, such as 8080, 9000:8080, 5432:db.internal:5432 or"
            " ./db.sock:5432.",
        )
    return way
