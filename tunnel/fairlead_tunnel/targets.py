"""Where a channel leads, and the label of a data channel that says so.

    tcp:<port>           a port of the session's sandbox
    tcp:<host>:<port>    a port of a host that the gateway dials; an IPv6 address in brackets
    terminal:<id>        the terminal of an execution in the session's sandbox

The client and the gateway read them alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from fairlead_tunnel.frames import MAX_TARGET_BYTES

HIGHEST_PORT: Final = 65535

_LABEL = re.compile(
    r"terminal:(?P<execution>exe_[a-z2-7]{26})|tcp:(?:(?P<host>[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):)?(?P<port>[1-9][0-9]{0,4})"
)


@dataclass(frozen=True, slots=True)
class Target:
    """A TCP port, 1 to 65535, of the session's sandbox, or of `host` when that is not empty: a
    name, an IPv4 address, or an IPv6 address in brackets. With `execution_id`, a terminal.
    """

    port: int = 0
    host: str = ""
    execution_id: str = ""

    @property
    def label(self) -> str:
        """The label of a data channel to it."""
        if self.execution_id:
            return f"terminal:{self.execution_id}"
        return f"tcp:{self.host}:{self.port}" if self.host else f"tcp:{self.port}"


def target_of(label: str) -> Target | None:
    """Return what a label names, or None when it is no such label.

    Whether the host is one is for whoever dials it to say.
    """
    found = _LABEL.fullmatch(label)
    if found is None or len(label) > MAX_TARGET_BYTES:
        return None
    if found["execution"]:
        return Target(execution_id=found["execution"])
    if int(found["port"]) > HIGHEST_PORT:
        return None
    return Target(int(found["port"]), found["host"] or "")
