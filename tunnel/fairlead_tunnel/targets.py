"""Where a channel leads, and the label of a data channel that says so.

tcp:<port>           a port of the session's sandbox
tcp:<host>:<port>    a port of a host that the gateway dials; an IPv6 address in brackets
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

HIGHEST_PORT: Final = 65535

_LABEL = re.compile(
    r"tcp:(?:(?P<host>[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):)?(?P<port>[1-9][0-9]{0,4})"
)


@dataclass(frozen=True, slots=True)
class Target:
    """A TCP port, 1 to 65535, of the session's sandbox, or of `host` when that is not empty: a
    name, an IPv4 address, or an IPv6 address in brackets.
    """

    port: int
    host: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.host else str(self.port)

    @property
    def label(self) -> str:
        """The label of a data channel to it."""
        return f"tcp:{self}"


def target_of(label: str) -> Target | None:
    """Return what a label names, or None when it is no such label.

    Whether the host is one is for whoever dials it to say.
    """
    found = _LABEL.fullmatch(label)
    if found is None or int(found["port"]) > HIGHEST_PORT:
        return None
    return Target(int(found["port"]), found["host"] or "")
