"""Sessions from the client's side: open, offer, get, close, and the session that comes with a
launch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from chassis.clock import Clock
from chassis.errors import DeadlineExceeded, InvalidArgument
from chassis.ids import derived_id, is_id, random_id
from signalling.description import check_offer
from signalling.launch_errors import LaunchNotHeld
from signalling.launch_request import check_key
from signalling.session import (
    CloseReason,
    OfferRefused,
    Session,
    SessionClosed,
    SessionNotFound,
)
from signalling.session_book import SessionBook, SessionKeyConflict
from signalling.session_ports import ReachedLaunches
from signalling.switchboard import Switchboard


class ModeUnsupported(InvalidArgument):
    """A session was asked for with candidates travelling in a way that is not there."""

    def __init__(self) -> None:
        super().__init__(
            "The session's mode must be `complete`.",
            reason="mode_unsupported",
            remedy="Gather all candidates before the offer is sent, and ask for mode `complete`.",
        )


class GatewayTimeout(DeadlineExceeded):
    """The gateway did not answer the offer in time."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            "The gateway did not answer the offer in time.",
            reason="gateway_timeout",
            remedy="Send the same offer again, or open another session.",
            fields={"session_id": session_id},
        )


@dataclass(frozen=True, slots=True)
class SessionTimings:
    """How long things may take, in seconds."""

    session_seconds: float = 60.0
    offer_timeout_seconds: float = 10.0


class Broker:
    """Brings a client's offer and a gateway's answer together; `key` derives the ids that retries
    find again.
    """

    def __init__(
        self,
        *,
        book: SessionBook,
        switchboard: Switchboard,
        launches: ReachedLaunches,
        clock: Clock,
        timings: SessionTimings,
        key: bytes,
        traceparent: Callable[[], str],
    ) -> None:
        self._book = book
        self._switchboard = switchboard
        self._launches = launches
        self._clock = clock
        self._timings = timings
        self._key = key
        self._traceparent = traceparent

    async def open(self, tenant: str, launch_id: str, mode: str, key: str | None) -> Session:
        """Reserve a gateway for a launch that holds a sandbox; a key gives one session."""
        if mode != "complete":
            raise ModeUnsupported
        if key is None:
            session_id = random_id("ses")
        else:
            check_key(key)
            session_id = derived_id("ses", tenant, "session", key, key=self._key)
            try:
                return self._same_launch(await self._book.get(session_id), launch_id)
            except SessionNotFound:
                pass  # the key is new
        if not (await self._launches.reached(tenant, launch_id)).held:
            raise LaunchNotHeld(launch_id)
        session = await self._book.create(self._fresh(session_id, tenant, launch_id))
        await self._close_if_ended(session)
        return self._same_launch(session, launch_id)

    async def offer(self, tenant: str, session_id: str, offer: str) -> Session:
        """Have the gateway answer an offer; the same offer again gets the same answer, also at the
        same time.

        Raises SdpInvalid, SessionNotFound, SessionClosed, OfferConflict, OfferRefused and
        GatewayTimeout.
        """
        check_offer(offer)
        found = await self.get(tenant, session_id)
        _raise_if_closed(found)
        trace = self._traceparent()
        session, changed = await self._book.change(
            session_id, lambda before: before.with_offer(offer, traceparent=trace)
        )
        if changed:
            self._switchboard.want(session)
        try:
            async with asyncio.timeout(self._timings.offer_timeout_seconds):
                while not session.is_negotiated:
                    change = self._book.changed(session_id)
                    session = await self._book.get(session_id)
                    if session.close_reason is CloseReason.OFFER_FAILED:
                        raise OfferRefused(session_id, session.close_detail)
                    _raise_if_closed(session)
                    if not session.is_negotiated:
                        await change.wait()
        except TimeoutError as error:
            raise GatewayTimeout(session_id) from error
        return session

    async def get(self, tenant: str, session_id: str) -> Session:
        """Return a session; a foreign one is SessionNotFound."""
        if not is_id("ses", session_id):
            raise SessionNotFound(session_id)
        session = await self._book.get(session_id)
        if session.tenant != tenant:
            raise SessionNotFound(session_id)
        return session

    async def close(self, tenant: str, session_id: str) -> Session:
        """Close a session and tell its gateway; closing a closed one changes nothing."""
        await self.get(tenant, session_id)
        await self._close(session_id, CloseReason.REQUESTED)
        return await self._book.get(session_id)

    async def answer(self, tenant: str, launch_id: str, offer: str) -> tuple[str, str]:
        """Open the session of a launch's own offer, which may not hold a sandbox yet; return its id
        and the answer.
        """
        check_offer(offer)
        session_id = derived_id("ses", tenant, "launch", launch_id, key=self._key)
        if self._book.has_ended(launch_id):
            raise LaunchNotHeld(launch_id)
        try:
            session = await self._book.get(session_id)
        except SessionNotFound:
            session = await self._book.create(self._fresh(session_id, tenant, launch_id))
        await self._close_if_ended(session)
        session = await self.offer(tenant, session_id, offer)
        return session_id, session.answer

    async def close_launch(self, launch_id: str) -> None:
        """Close every session of a launch, also one that is being opened; again changes nothing."""
        self._book.note_end(launch_id)
        for session in await self._book.of_launch(launch_id):
            await self._close(session.session_id, CloseReason.LAUNCH_ENDED)

    async def _close(self, session_id: str, reason: CloseReason) -> None:
        closed = await self._book.close(session_id, reason)
        if closed is not None:
            self._switchboard.unwant(closed.gateway_id, closed.session_id)

    def _fresh(self, session_id: str, tenant: str, launch_id: str) -> Session:
        now = self._clock.now()
        return Session(
            session_id=session_id,
            tenant=tenant,
            launch_id=launch_id,
            gateway_id=self._switchboard.choose(),
            created_at=now,
            expires_at=now + timedelta(seconds=self._timings.session_seconds),
        )

    async def _close_if_ended(self, session: Session) -> None:
        """Close a session whose launch ended while it was being stored."""
        if self._book.has_ended(session.launch_id):
            await self._close(session.session_id, CloseReason.LAUNCH_ENDED)
            raise LaunchNotHeld(session.launch_id)

    @staticmethod
    def _same_launch(session: Session, launch_id: str) -> Session:
        if session.launch_id != launch_id:
            raise SessionKeyConflict
        return session


def _raise_if_closed(session: Session) -> None:
    if session.close_reason is not None:
        raise SessionClosed(session.session_id, session.close_reason)
