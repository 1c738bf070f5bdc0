"""Meets the gateway of a session over WebRTC, for a tunnel that no other carrier leads to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fairlead_sdk.errors import FairleadError
from fairlead_sdk.forwarding import open_session
from fairlead_sdk.session_api import SessionApi
from fairlead_sdk.session_talk import Pace
from fairlead_tunnel.carriers import TUNNEL_UNKNOWN
from fairlead_tunnel.handshake import AttachRefused

if TYPE_CHECKING:
    from fairlead_sdk.peer_session import AsyncSession
    from fairlead_tunnel.channel_way import Meet

_PACE = Pace(pauses=(0.25, 0.5))
"""Who meets tries again all the same."""


def meeting(api: SessionApi) -> Meet:
    """Return what opens a session beside another one, with its gateway; the best WebRTC core that
    is installed makes it.
    """

    @asynccontextmanager
    async def met(session_id: str) -> AsyncIterator[AsyncSession]:
        try:
            async with open_session(api, session_id, pace=_PACE) as session:
                yield session
        except FairleadError as error:
            if error.reason == "session_not_found":
                raise AttachRefused(
                    TUNNEL_UNKNOWN, "The session of the tunnel is closed."
                ) from error
            raise ConnectionError(error.message) from error

    return met
