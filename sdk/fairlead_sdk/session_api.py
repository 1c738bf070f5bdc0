"""What a session needs of a mesh; every call raises FairleadError."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from fairlead_sdk.session_records import (
    OfferReply,
    OpenedSession,
    SessionEvent,
    SessionServer,
)


class SessionApi(Protocol):
    """The calls of a session; each may be repeated with the same arguments."""

    async def open_session(
        self, launch_id: str, *, mode: str, ice_policy: str, key: str
    ) -> OpenedSession:
        """Reserve a gateway for a launch; `key` makes the call repeatable."""
        ...

    async def send_offer(self, session_id: str, offer: str) -> OfferReply:
        """Have the gateway answer the offer of the first round."""
        ...

    async def restart_session(self, session_id: str, offer: str) -> OfferReply:
        """Have the gateway answer the offer of one more round."""
        ...

    async def fresh_servers(self, session_id: str) -> tuple[SessionServer, ...]:
        """Return the session's servers with names and passwords that were made now."""
        ...

    async def add_candidates(
        self, session_id: str, of_round: int, candidates: tuple[str, ...], *, ended: bool
    ) -> tuple[str, ...]:
        """Give candidates to the gateway, each once, and return the outcome of each."""
        ...

    def watch_session(
        self, session_id: str, cursor: int
    ) -> AbstractAsyncContextManager[AsyncIterator[SessionEvent]]:
        """Watch what happens after the event `cursor`; `Subscribed` comes first, without any
        retry.
        """
        ...

    async def close_session(self, session_id: str) -> None:
        """Close the session; closing a closed one is no error."""
        ...
