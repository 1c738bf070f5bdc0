"""Descriptions of a peer that is gone: nobody can connect to what they name."""

from __future__ import annotations

from fairlead_tunnel.aiortc_core import AiortcCore
from fairlead_tunnel.peer_connection import PeerConnection, PeerPlan


async def lone_peer() -> PeerConnection:
    """Return a connection of aiortc; close it."""
    core = AiortcCore()
    await core.load()
    return core.connect(PeerPlan())


async def unmet_offer() -> str:
    """Return a complete offer whose peer is gone."""
    peer = await lone_peer()
    offer = await peer.offer()
    await peer.close()
    return offer


async def unmet_answer() -> str:
    """Return an answer whose peer is gone."""
    return (await unmet_offer()).replace("a=setup:actpass", "a=setup:active")
