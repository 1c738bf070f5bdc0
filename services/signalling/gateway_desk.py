"""What gateways say of their sessions: answers, refusals, changes, and connections that a channel
wants.
"""

from __future__ import annotations

from datetime import timedelta

from chassis.clock import Clock
from chassis.errors import FailedPrecondition, InvalidArgument
from signalling.broker import SessionTimings
from signalling.gateway import Meeting
from signalling.launch_errors import LaunchNotHeld
from signalling.session import (
    CloseReason,
    Session,
    SessionClosed,
    SessionNotFound,
    SessionTransitionInvalid,
)
from signalling.session_book import SessionBook
from signalling.session_ports import ReachedLaunches
from signalling.switchboard import Switchboard

_REPORTED_REASONS = (
    CloseReason.PEER_CLOSED,
    CloseReason.CONNECTION_FAILED,
    CloseReason.REQUESTED,
)


class SandboxNotReady(FailedPrecondition):
    """The launch has no sandbox yet."""

    def __init__(self, launch_id: str) -> None:
        super().__init__(
            "The launch has no sandbox yet.",
            reason="sandbox_not_ready",
            remedy="Try again when the launch is provisioned.",
            fields={"launch_id": launch_id},
        )


class PortInvalid(InvalidArgument):
    """A port is not between 1 and 65535."""

    def __init__(self) -> None:
        super().__init__("A port is a number from 1 to 65535.", reason="port_invalid")


class GatewayDesk:
    """Takes a gateway's words; a session that is over or another gateway's is answered with the
    order to close it.
    """

    def __init__(
        self,
        *,
        book: SessionBook,
        switchboard: Switchboard,
        launches: ReachedLaunches,
        clock: Clock,
        timings: SessionTimings,
    ) -> None:
        self._book = book
        self._switchboard = switchboard
        self._launches = launches
        self._clock = clock
        self._timings = timings

    async def take_answer(self, gateway_id: str, session_id: str, answer: str) -> None:
        """Keep a gateway's answer; a repeated one changes nothing."""
        expires_at = self._clock.now() + timedelta(seconds=self._timings.session_seconds)
        try:
            await self._own(gateway_id, session_id)
            await self._book.change(
                session_id, lambda before: before.with_answer(answer, expires_at=expires_at)
            )
        except (SessionClosed, SessionNotFound, SessionTransitionInvalid):
            self._switchboard.unwant(gateway_id, session_id)

    async def take_refusal(self, gateway_id: str, session_id: str, message: str) -> None:
        """Close a session whose offer the gateway does not answer."""
        try:
            session = await self._own(gateway_id, session_id)
        except SessionNotFound:
            return
        if not session.is_negotiated:
            await self._book.close(session_id, CloseReason.OFFER_FAILED, message[:300])

    async def take_change(
        self, gateway_id: str, session_id: str, *, connected: bool, reason: str
    ) -> None:
        """Note that an association has connected, or is closed and forgotten by the gateway."""
        try:
            session = await self._own(gateway_id, session_id)
            if connected:
                await self._connect(session)
                return
        except (SessionClosed, SessionNotFound, SessionTransitionInvalid):
            if connected:
                self._switchboard.unwant(gateway_id, session_id)
            return
        known = {item.value: item for item in _REPORTED_REASONS}
        await self._book.close(session_id, known.get(reason, CloseReason.CONNECTION_FAILED))

    async def keep_connected(self, gateway_id: str) -> None:
        """Renew the connected sessions of a gateway that has just been heard, once half their time
        is gone.
        """
        half = timedelta(seconds=self._timings.session_seconds / 2)
        for session in self._book.live():
            if (
                session.gateway_id == gateway_id
                and session.is_connected
                and session.expires_at - self._clock.now() <= half
            ):
                try:
                    await self._connect(session)
                except (SessionClosed, SessionNotFound):
                    continue

    async def open_port(
        self, gateway_id: str, session_id: str, port: int, meeting: Meeting
    ) -> None:
        """Have one connection to a port of the sandbox that a session reaches brought to the
        gateway; raises what stands in the way.
        """
        if not 1 <= port <= 65535:
            raise PortInvalid
        session = await self._own(gateway_id, session_id)
        if session.close_reason is not None:
            raise SessionClosed(session_id, session.close_reason)
        reached = await self._launches.reached(session.tenant, session.launch_id)
        if reached.is_over:
            raise LaunchNotHeld(session.launch_id)
        if not reached.has_sandbox:
            raise SandboxNotReady(session.launch_id)
        await self._launches.open_port(session.tenant, session.launch_id, port, meeting)

    async def _connect(self, session: Session) -> None:
        expires_at = self._clock.now() + timedelta(seconds=self._timings.session_seconds)
        await self._book.change(
            session.session_id, lambda before: before.connected(expires_at=expires_at)
        )

    async def _own(self, gateway_id: str, session_id: str) -> Session:
        session = await self._book.get(session_id)
        if session.gateway_id != gateway_id:
            raise SessionNotFound(session_id)
        return session
