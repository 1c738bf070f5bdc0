"""Sessions from the client's side: open, offer, get, close, and the session that comes with a
launch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime

from chassis.clock import Clock
from chassis.ids import is_id
from chassis.limits import check_size
from fairlead_limits import table
from signalling.close_reason import CloseReason
from signalling.description import check_offer
from signalling.ice_candidate import CandidateOutcome, check_batch
from signalling.ice_servers import IceServer
from signalling.reservations import Reservations
from signalling.session import Session
from signalling.session_book import SessionBook, Watch
from signalling.session_errors import (
    GatewayBusy,
    GatewayGone,
    GatewayNotReady,
    GatewayTimeout,
    OfferConflict,
    OfferRefused,
    RestartUnsupported,
    SessionClosed,
    SessionNotFound,
    TunnelConflict,
)
from signalling.session_name import SessionNames
from signalling.session_ports import Happened, Subscribed, Watched
from signalling.session_rules import Word
from signalling.session_timings import SessionTimings
from signalling.switchboard import Switchboard
from signalling.tunnel import Tunnel
from signalling.workspace_errors import PageTokenInvalid

_MAX_DETAIL = 300


class Broker:
    """Brings a client's offer and a gateway's answer together."""

    def __init__(
        self,
        *,
        book: SessionBook,
        switchboard: Switchboard,
        reservations: Reservations,
        names: SessionNames,
        clock: Clock,
        timings: SessionTimings,
        traceparent: Callable[[], str],
    ) -> None:
        self._book = book
        self._switchboard = switchboard
        self._reservations = reservations
        self._names = names
        self._clock = clock
        self._timings = timings
        self._traceparent = traceparent

    async def open(
        self,
        tenant: str,
        launch_id: str,
        mode: str,
        key: str | None,
        *,
        policy: str = "",
        conversation_id: str = "",
    ) -> Session:
        """Reserve a gateway; raises what `Reservations.open` raises."""
        return await self._reservations.open(
            tenant, launch_id, mode, key, policy=policy, conversation_id=conversation_id
        )

    def ice_servers(self, session: Session) -> Sequence[IceServer]:
        """Return the servers of a session, with fresh credentials."""
        return self._reservations.ice_servers(session)

    async def tunnel(self, session: Session) -> Tunnel | None:
        """Return what the client of a session attaches with; raises GatewayNotReady."""
        return await self._reservations.tunnel(session)

    def trace_of(self, tenant: str, session_id: str) -> str:
        """Return the trace (W3C `traceparent`) of the caller's session, where this process has it;
        else nothing.
        """
        try:
            session = self._book.known(self._names.meant(tenant, session_id))
        except SessionNotFound:
            return ""
        return session.traceparent if session and session.tenant == tenant else ""

    async def offer(self, tenant: str, session_id: str, offer: str) -> Session:
        """Have the gateway answer an offer; the same offer again gets the same answer, also at the
        same time.

        Raises SdpInvalid, SessionNotFound, SessionClosed, GatewayGone, GatewayBusy, OfferConflict,
        OfferRefused, GatewayTimeout and GatewayNotReady.
        """
        check_offer(offer)
        trace = self._traceparent()
        return await self._answered(
            tenant,
            session_id,
            offer,
            lambda before: before.with_offer(
                offer, expires_at=self._limit(before), traceparent=trace
            ),
        )

    async def restart(self, tenant: str, session_id: str, offer: str) -> Session:
        """Begin a round with a fresh offer and have the gateway answer that; the same offer again
        gets the same answer. Without an offer nothing changes.

        Raises RestartUnsupported and SessionStateInvalid beside what `offer` raises.
        """
        if not offer:
            session = await self.get(tenant, session_id)
            _raise_if_closed(session)
            if session.is_tunnel:
                raise TunnelConflict(session_id, Word.RESTART)
            if not session.trickles:
                raise RestartUnsupported(session_id)
            return session
        check_offer(offer)
        trace = self._traceparent()
        return await self._answered(
            tenant,
            session_id,
            offer,
            lambda before: before.restarted(
                offer, expires_at=self._limit(before), traceparent=trace
            ),
        )

    async def add_candidates(
        self,
        tenant: str,
        session_id: str,
        candidates: Sequence[str],
        *,
        ended: bool,
        round_number: int = 0,
    ) -> Sequence[CandidateOutcome]:
        """Keep candidates of the client and give them to the gateway, in order and each once.

        Raises LimitBroken, SessionNotFound, SessionClosed, GatewayGone, ModeConflict and
        RoundInvalid.
        """
        check_batch(candidates)
        outcomes: Sequence[CandidateOutcome] = ()

        def step(before: Session) -> Session:
            nonlocal outcomes
            mine = self._mine(tenant, before)
            after, outcomes = mine.with_candidates(round_number, candidates, ended=ended)
            return after

        await self._book.change(self._names.meant(tenant, session_id), step)
        return outcomes

    async def watch(
        self, tenant: str, session_id: str, cursor: int
    ) -> AsyncGenerator[Watched, None]:
        """Yield Subscribed, then the events after the cursor; the last one is always the end.

        Raises SessionNotFound, EventsGone and CursorAhead, all before the first event.
        """
        session_id = self._names.meant(tenant, session_id)
        with self._book.watching(session_id) as watch:
            session = await self.get(tenant, session_id)
            if session.is_closed:
                await self._book.expire(session_id)  # where only its time says so
                session = await self.get(tenant, session_id)
            events = session.events_after(cursor)
            yield Subscribed(session, cursor)
            while True:
                for event in events:
                    yield Happened(session, event)
                if session.is_closed:
                    break
                seen = session.sequence
                session = await watch.after(session.version)
                events = session.events_after(seen)
            if not events:
                yield Happened(session, session.events[-1])  # it was seen, and is the end

    async def _answered(
        self, tenant: str, session_id: str, offer: str, step: Callable[[Session], Session]
    ) -> Session:
        """Apply a step that brings an offer, and wait for the answer to that."""
        session_id = self._names.meant(tenant, session_id)
        with self._book.watching(session_id) as watch:
            session, _ = await self._book.change(
                session_id, lambda before: step(self._mine(tenant, before))
            )
            try:
                async with asyncio.timeout(self._timings.offer_timeout_seconds):
                    return await _answer_to(offer, session, watch)
            except TimeoutError as error:
                if self._switchboard.is_present(session.gateway_id):
                    raise GatewayTimeout(session_id) from error
                raise GatewayNotReady(session_id) from error

    async def get(self, tenant: str, session_id: str) -> Session:
        """Return a session; a foreign one is SessionNotFound."""
        return _owned(tenant, await self._book.get(self._names.meant(tenant, session_id)))

    async def list(
        self, tenant: str, page_size: int, page_token: str
    ) -> tuple[Sequence[Session], str]:
        """Return sessions that are not closed, by id, and the token of the next page, empty on the
        last; page size 0 means 50. Raises LimitBroken and PageTokenInvalid.
        """
        check_size(table.PAGE_SIZE, page_size)
        if page_token and not is_id("ses", page_token):
            raise PageTokenInvalid
        return await self._book.of_tenant(
            tenant, after=page_token, size=page_size or table.DEFAULT_PAGE
        )

    async def close(self, tenant: str, session_id: str) -> Session:
        """Close a session and tell its gateway; closing a closed one changes nothing."""
        session, _ = await self._book.change(
            self._names.meant(tenant, session_id),
            lambda before: _owned(tenant, before).closed(CloseReason.REQUESTED),
        )
        return session

    async def close_as_admin(self, tenant: str, session_id: str, message: str) -> Session:
        """Close a session of any tenant, with a sentence for whoever has it; `tenant` is the
        caller's, of whom alone a conversation may be named. 300 characters of `message` are kept.
        """
        session, _ = await self._book.change(
            self._names.meant(tenant, session_id),
            lambda before: before.closed(CloseReason.ADMIN_CLOSED, message[:_MAX_DETAIL]),
        )
        return session

    async def answer(self, tenant: str, launch_id: str, offer: str) -> tuple[str, str]:
        """Open the session of a launch's own offer, which may not hold a sandbox yet; return its id
        and the answer.
        """
        check_offer(offer)
        session_id = (await self._reservations.of_launch(tenant, launch_id)).session_id
        session = await self.offer(tenant, session_id, offer)
        return session_id, session.answer

    async def close_launch(self, launch_id: str) -> None:
        """Close every session of a launch, also one that is being opened; again changes nothing."""
        for session in await self._book.end_launch(launch_id):
            await self._book.close(session.session_id, CloseReason.LAUNCH_ENDED)

    def _limit(self, session: Session) -> datetime:
        return self._clock.now() + self._timings.connect_limit(session.ice_policy)

    def _mine(self, tenant: str, session: Session) -> Session:
        """Return a session that is the caller's and goes on; raises SessionNotFound, SessionClosed
        and GatewayGone.
        """
        found = self._book.timely(_owned(tenant, session))
        _raise_if_closed(found)
        return found


def _owned(tenant: str, session: Session) -> Session:
    if session.tenant != tenant:
        raise SessionNotFound(session.session_id)
    return session


def _raise_if_closed(session: Session) -> None:
    if session.close_reason in (CloseReason.GATEWAY_LOST, CloseReason.DRAINED):
        raise GatewayGone(session.session_id, session.close_reason)
    if session.close_reason is CloseReason.GATEWAY_BUSY:
        raise GatewayBusy(session.session_id)
    if session.close_reason is not None:
        raise SessionClosed(session.session_id, session.close_reason)


async def _answer_to(offer: str, session: Session, watch: Watch) -> Session:
    """Wait until the round of an offer is answered or over."""
    while True:
        if session.close_reason is CloseReason.OFFER_FAILED:
            raise OfferRefused(session.session_id, session.close_detail)
        _raise_if_closed(session)
        if session.offer != offer:
            raise OfferConflict(session.session_id)
        if session.refusal:
            raise OfferRefused(session.session_id, session.refusal)
        if session.answer:
            return session
        session = await watch.after(session.version)
