"""Which WebRTC cores there are here, the preferred one first."""

from __future__ import annotations

from importlib.util import find_spec

from fairlead_tunnel.aiortc_core import AiortcCore
from fairlead_tunnel.peer_connection import PeerCore


class NoCore(ImportError):
    """No WebRTC core is installed."""


def cores() -> list[PeerCore]:
    """Return the cores that are installed; none is imported by this."""
    return [AiortcCore()] if _is_installed("aiortc") else []


def preferred_core() -> PeerCore:
    """Return the best core; raises NoCore."""
    found = cores()
    if not found:
        raise NoCore("no WebRTC core is installed")
    return found[0]


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # `sys.modules` says that it is not to be imported
        return False
