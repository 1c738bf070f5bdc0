"""Which WebRTC cores there are here, the preferred one first."""

from __future__ import annotations

from fairlead_tunnel.aiortc_core import AiortcCore
from fairlead_tunnel.installed import is_installed
from fairlead_tunnel.native_core import NativeCore
from fairlead_tunnel.peer_connection import PeerCore


class NoCore(ImportError):
    """No WebRTC core is installed."""


def cores() -> list[PeerCore]:
    """Return the cores that are installed; none is imported by this."""
    found: list[PeerCore] = []
    if is_installed("fairlead_native"):
        found.append(NativeCore())
    if is_installed("aiortc"):
        found.append(AiortcCore())
    return found


def preferred_core() -> PeerCore:
    """Return the best core that is installed; raises NoCore."""
    for core in cores():
        return core
    raise NoCore("no WebRTC core is installed")
