"""Where the agent of this environment listens. What is imported here costs every launch its time:
`os` only.

An agent works for one environment: one user, one installation, the same variables that git and the
SDK read, the same view of files and network. So it does what the command itself would have done.
"""

from __future__ import annotations

import os
import sys
from binascii import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES = frozenset({"HOME", "TMPDIR", "SSH_AUTH_SOCK", "ALL_PROXY", "all_proxy"})
_PREFIXES = ("FAIRLEAD_", "GIT_", "SSL_", "XDG_")
_SUFFIXES = ("_PROXY", "_proxy")
# sun_path of unix(7) holds 108 bytes; a longer one is silently cut by some systems.
_LONGEST_PATH = 100


def agent_environment(environment: Mapping[str, str]) -> str:
    """Give everything about a process that its agent must have in common with it, as text."""
    variables = sorted(
        f"{name}={value}"
        for name, value in environment.items()
        if name in _NAMES or name.startswith(_PREFIXES) or name.endswith(_SUFFIXES)
    )
    places = [sys.prefix, os.path.dirname(__file__), str(sys.version_info[:3])]
    places.append(_program("git", environment.get("PATH", "")))
    for namespace in ("mnt", "net", "user"):
        try:
            places.append(os.readlink(f"/proc/self/ns/{namespace}"))
        except OSError:
            places.append("")
    return "\n".join((*places, *variables))


def _program(name: str, path: str) -> str:
    """Give the place of a program: of all that PATH says, only this matters here."""
    for directory in path.split(":"):
        place = f"{directory}/{name}"
        if directory and os.access(place, os.X_OK):
            return place
    return ""


def agent_token(environment: Mapping[str, str]) -> str:
    """Give a short name for `agent_environment`."""
    text = agent_environment(environment).encode("utf-8", "surrogateescape")
    return f"{crc32(text):08x}{len(text):x}"


def agent_socket_path(environment: Mapping[str, str]) -> str | None:
    """Give the path of the agent's socket; `None` where there shall or can be none."""
    if environment.get("FAIRLEAD_AGENT") == "0":
        return None
    base = environment.get("XDG_RUNTIME_DIR") or environment.get("XDG_STATE_HOME")
    if not base:
        home = environment.get("HOME")
        base = f"{home}/.local/state" if home else ""
    path = f"{base}/fairlead/agent-{agent_token(environment)}"
    return path if base.startswith("/") and len(os.fsencode(path)) <= _LONGEST_PATH else None
