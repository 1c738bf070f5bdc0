"""What gateways say of their sessions: answers, refusals, candidates, changes, wishes for a
restart, and connections that a channel wants.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from chassis.clock import Clock
from chassis.errors import FailedPrecondition, InvalidArgument, Unavailable
from chassis.ids import is_id
from signalling.close_reason import close_reason, refusal_reason
from signalling.gateway import Meeting
from signalling.launch_errors import ExecutionNotFound, LaunchNotHeld
from signalling.session import Session
from signalling.session_book import SessionBook
from signalling.session_errors import SessionClosed, SessionNotFound, SessionStateInvalid
from signalling.session_ports import ReachedLaunches
from signalling.session_timings import SessionTimings
from signalling.switchboard import Switchboard

log = logging.getLogger(__name__)

_MAX_DETAIL = 300


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

    async def take_answer(
        self, gateway_id: str, session_id: str, answer: str, *, round_number: int = 1
    ) -> None:
        """Keep a gateway's answer; a repeated one changes nothing."""
        await self._take(
            gateway_id,
            session_id,
            lambda before: before.with_answer(answer, round_number=round_number),
        )

    async def take_refusal(
        self,
        gateway_id: str,
        session_id: str,
        message: str,
        *,
        reason: str = "",
        round_number: int = 1,
    ) -> None:
        """Close a session whose first offer the gateway does not answer, or end the round of a
        later one; `reason` is the gateway's word for why.
        """

        def step(before: Session) -> Session:
            after = self._own(gateway_id, before).refused(
                message[:_MAX_DETAIL],
                round_number=round_number,
                reason=refusal_reason(reason),
            )
            if after.is_closed:
                self._switchboard.forget(gateway_id, session_id)
            return after

        try:
            await self._book.change(session_id, step)
        except SessionNotFound:
            return

    async def take_candidates(
        self,
        gateway_id: str,
        session_id: str,
        candidates: Sequence[str],
        *,
        round_number: int,
        first: int,
        ended: bool,
    ) -> None:
        """Keep candidates of the gateway; raises CandidatesGap when it must state them again."""
        await self._take(
            gateway_id,
            session_id,
            lambda before: before.with_found(round_number, first, candidates, ended=ended),
        )

    async def take_wish(self, gateway_id: str, session_id: str, round_number: int) -> None:
        """Ask the client for a restart; a wish for a round that is over is ignored."""
        await self._take(gateway_id, session_id, lambda before: before.restart_wanted(round_number))

    async def take_change(
        self,
        gateway_id: str,
        session_id: str,
        *,
        connected: bool,
        reason: str,
        round_number: int = 0,
    ) -> None:
        """Note that an association has connected, by the path of a round, or is closed and
        forgotten by the gateway.
        """
        if connected:
            await self._take(
                gateway_id,
                session_id,
                lambda before: before.connected(
                    expires_at=self._until(), round_number=round_number
                ),
            )
            return

        def step(before: Session) -> Session:
            after = self._own(gateway_id, before).closed(close_reason(reason))
            self._switchboard.forget(gateway_id, session_id)
            return after

        try:
            await self._book.change(session_id, step)
        except SessionNotFound:
            return

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
                    await self._book.change(
                        session.session_id, lambda before: before.renewed(expires_at=self._until())
                    )
                except SessionNotFound:
                    continue
                except Unavailable as error:
                    # It goes on as it is; the next word of the gateway is the next chance.
                    log.warning("sessions not renewed", extra={"reason": error.reason})
                    return

    async def open_port(
        self, gateway_id: str, session_id: str, port: int, meeting: Meeting
    ) -> None:
        """Have one connection to a port of the sandbox that a session reaches, or to the terminal
        that `meeting` names, brought to the gateway; raises what stands in the way.
        """
        if meeting.execution_id:
            if not is_id("exe", meeting.execution_id):
                raise ExecutionNotFound(meeting.execution_id[:64])
        elif not 1 <= port <= 65535:
            raise PortInvalid
        session = self._own(gateway_id, await self._held(session_id))
        if session.close_reason is not None:
            raise SessionClosed(session_id, session.close_reason)
        reached = await self._launches.reached(session.tenant, session.launch_id)
        if reached.is_over:
            raise LaunchNotHeld(session.launch_id)
        if not reached.has_sandbox:
            raise SandboxNotReady(session.launch_id)
        await self._launches.open_port(session.tenant, session.launch_id, port, meeting)

    async def _held(self, session_id: str) -> Session:
        """Return a session; one that is connected as far as this process knows without asking the
        store, which may hang: another replica that closes a session says so to this one.
        """
        known = self._book.known(session_id)
        if known is not None and known.is_connected:
            return self._book.timely(known)
        return await self._book.get(session_id)

    async def _take(
        self, gateway_id: str, session_id: str, step: Callable[[Session], Session]
    ) -> None:
        """Apply what a gateway says; where that cannot be, the gateway is told to close."""
        try:
            await self._book.change(
                session_id,
                lambda before: step(self._book.timely(self._own(gateway_id, before))),
            )
        except (SessionClosed, SessionNotFound, SessionStateInvalid):
            self._switchboard.unwant(gateway_id, session_id)

    def _until(self) -> datetime:
        """Return until when a connected session holds without another word of its gateway."""
        return self._clock.now() + timedelta(seconds=self._timings.session_seconds)

    @staticmethod
    def _own(gateway_id: str, session: Session) -> Session:
        if session.gateway_id != gateway_id:
            raise SessionNotFound(session.session_id)
        return session
