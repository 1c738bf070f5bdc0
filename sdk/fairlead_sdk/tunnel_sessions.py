"""What a tunnel needs of a mesh, what the mesh gives for it, and who waits for one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from fairlead_sdk.errors import FairleadError, Internal, Unavailable
from fairlead_sdk.session_records import (
    OpenedSession,
    SessionClosed,
    SessionEvent,
    SessionTunnel,
    Subscribed,
)
from fairlead_tunnel.carriers import TunnelTicket
from fairlead_tunnel.client_carriers import TunnelEnd
from fairlead_tunnel.suites import preferred_suite
from fairlead_tunnel.tunnel_client import TunnelClient

TOLD_SECONDS: Final = 2.0
"""For the mesh to say why a session is over."""


class TunnelApi(Protocol):
    """The calls of a tunnel; each raises FairleadError and may be repeated."""

    async def open_session(
        self, launch_id: str, *, mode: str, ice_policy: str, key: str
    ) -> OpenedSession:
        """Open a session; `key` makes the call repeatable."""
        ...

    def watch_session(
        self, session_id: str, cursor: int
    ) -> AbstractAsyncContextManager[AsyncIterator[SessionEvent]]:
        """Watch what happens after the event `cursor`, without any retry."""
        ...

    async def close_session(self, session_id: str) -> None:
        """Close the session; closing a closed one is no error."""
        ...


class TunnelUnreachable(Unavailable):
    """No carrier of a tunnel could be attached."""

    def __init__(self, end: TunnelEnd) -> None:
        super().__init__(
            end.message,
            reason=end.reason,
            remedy="See whether this machine can reach the gateway's carriers.",
        )


class TunnelWaiter(Protocol):
    """Who waits for a tunnel."""

    def tunnel_ready(self, client: TunnelClient) -> None:
        """Open a channel; may not raise."""
        ...

    def no_tunnel(self) -> None:
        """Give up: there will be none any more; may not raise."""
        ...


class TunnelFollower(Protocol):
    """Who leads connections into each tunnel of a line; none of these may raise."""

    def tunnel_ready(self, client: TunnelClient) -> None:
        """Open channels in it from now on; it may be told again."""
        ...

    def tunnel_left(self) -> None:
        """Open none any more; what is open goes on. It may be told again."""
        ...


def tunnel_of(opened: OpenedSession) -> SessionTunnel:
    """Return what a session of mode tunnel was opened with; raises Internal where there is none."""
    if opened.tunnel is None:
        raise Internal(
            "The front door's answer has no tunnel.",
            reason="answer_invalid",
            remedy="See whether client and mesh are of the same version.",
        )
    return opened.tunnel


def ticket_of(tunnel: SessionTunnel) -> TunnelTicket:
    """Return what carriers are attached with; raises Internal for what cannot be."""
    try:
        tunnel_id = bytes.fromhex(tunnel.tunnel_id)
    except ValueError:
        raise Internal("The front door names no tunnel.", reason="answer_invalid") from None
    return TunnelTicket(
        tunnel_id=tunnel_id,
        ticket=tunnel.ticket,
        psk=tunnel.secret,
        gateway_key=tunnel.gateway_key,
        suite=preferred_suite(),
    )


async def why_closed(api: TunnelApi, session_id: str, *, is_patient: bool) -> SessionClosed | None:
    """Return why the mesh has closed a session, if it has; patiently, if it does soon."""
    with contextlib.suppress(FairleadError, TimeoutError):
        async with asyncio.timeout(TOLD_SECONDS), api.watch_session(session_id, 0) as events:
            async for event in events:
                match event.happening:
                    case SessionClosed() as closed:
                        return closed
                    case Subscribed(session) if session.state != "closed" and not is_patient:
                        return None
                    case _:
                        pass
    return None
