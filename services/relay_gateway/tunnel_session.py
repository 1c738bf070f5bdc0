"""One session of mode tunnel: its client comes with a ticket, and comes back until it is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from chassis.clock import Clock
from relay_gateway.held_session import Patience
from relay_gateway.message import Changed, Report
from relay_gateway.ports import KeptTunnel
from relay_gateway.session import CloseReason, WantedSession

_LOOKS: float = 4.0
"""So often in the time that a tunnel may be without a carrier it is looked whether it has one."""

log = logging.getLogger(__name__)


class TunnelSession:
    """A session whose tunnel this gateway has; `run` once, then `close`."""

    is_answered = True
    """There is nothing to answer: whatever ends it is told as its end."""

    def __init__(
        self,
        *,
        wanted: WantedSession,
        is_named: bool,
        tell: Callable[[Report], None],
        clock: Clock,
        patience: Patience,
    ) -> None:
        self.wanted = wanted
        self._tell = tell
        self._clock = clock
        self._patience = patience
        self._is_named = is_named
        self._tunnel: KeptTunnel | None = None
        self._idle_since: float | None = None
        self._ended: CloseReason | None = None
        self._changed = asyncio.Event()

    @property
    def may_be_carried(self) -> bool:
        """Say whether its client may come: it has not yet, and the session is not over."""
        return self._tunnel is None and self._ended is None

    @property
    def is_named(self) -> bool:
        """Say whether signalling has wanted it here; its ticket may have been quicker."""
        return self._is_named

    @property
    def channels(self) -> int:
        """How many channels are open."""
        return self._tunnel.channels if self._tunnel else 0

    def want(self, wanted: WantedSession) -> None:
        """Take what signalling knows of it now, and state again that it is connected."""
        self.wanted = wanted
        self._is_named = True
        self._changed.set()
        self.tell_up()

    def carry(self, tunnel: KeptTunnel) -> None:
        """Note that its client has come, with the first carrier of a tunnel."""
        self._tunnel = tunnel
        self._changed.set()
        self.tell_up()
        log.info("tunnel attached", extra={"session_id": self.wanted.session_id})

    def over(self, reason: CloseReason) -> None:
        """Let it end, for the first reason that is given."""
        self._ended = self._ended or reason
        self._changed.set()

    async def run(self) -> CloseReason:
        """Wait until it is over: ended, not attached in time, or without a carrier for long."""
        while self._ended is None:
            seconds = self._patience.idle / _LOOKS if self._tunnel else self._seconds_left()
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            except TimeoutError:
                if self._is_given_up():
                    self.over(CloseReason.CONNECTION_FAILED)
            self._changed.clear()
        return self._ended

    async def close(self) -> None:
        """Free the tunnel with its channels."""
        if self._tunnel is not None:
            await self._tunnel.close()

    def _seconds_left(self) -> float:
        left = (self.wanted.expires_at - self._clock.now()).total_seconds()
        return min(max(left, 0.0), self._patience.connect)

    def _is_given_up(self) -> bool:
        if self._tunnel is None:
            return True
        if self._tunnel.carriers:
            self._idle_since = None
            return False
        now = self._clock.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        return now - self._idle_since >= self._patience.idle

    def tell_up(self) -> None:
        """State that it is connected, if it is."""
        if self._tunnel is not None:
            self._tell(Changed(self.wanted.session_id, True, round=self.wanted.round))
