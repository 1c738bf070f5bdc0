"""The sessions of this process: every change goes through the store by compare-and-set, and wakes
who waits for it.

Sessions that are not closed are also kept in memory, so that a store that lost them gets them back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from chassis.clock import Clock
from chassis.errors import AlreadyExists, Unavailable
from signalling.session import CloseReason, Session, SessionNotFound
from signalling.session_ports import SessionStore

log = logging.getLogger(__name__)

KEPT_AFTER_CLOSE_SECONDS = 600.0
"""How long a closed session can still be read."""

_ATTEMPTS = 20
_REMEMBERED_ENDS = 10_000


class SessionContended(Unavailable):
    """Too many changed the same session at once."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            "The session is being changed by too many at once.",
            reason="session_contended",
            remedy="Try again.",
            fields={"session_id": session_id},
        )


class SessionKeyConflict(AlreadyExists):
    """The key was used for another request."""

    def __init__(self) -> None:
        super().__init__(
            "The idempotency key was used for a different session.",
            reason="idempotency_conflict",
            remedy="Use a new key for a new request.",
        )


class SessionBook:
    """Reads and changes session records; of several who close one, one is told that it did."""

    def __init__(self, *, store: SessionStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._live: dict[str, Session] = {}
        self._signals: dict[str, asyncio.Event] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def live(self) -> Sequence[Session]:
        """Return the sessions of this process that are not closed."""
        return tuple(self._live.values())

    def changed(self, session_id: str) -> asyncio.Event:
        """Return an event that is set at the session's next change; take it before reading the
        session.
        """
        return self._signals.setdefault(session_id, asyncio.Event())

    def note_end(self, launch_id: str) -> None:
        """Remember that a launch has ended, for those who are opening a session of it."""
        self._ended[launch_id] = None
        while len(self._ended) > _REMEMBERED_ENDS:
            self._ended.popitem(last=False)

    def has_ended(self, launch_id: str) -> bool:
        """Say whether a launch has ended, as far as this process remembers."""
        return launch_id in self._ended

    async def create(self, session: Session) -> Session:
        """Keep a new session, or return the one that has its id already."""
        if await self._save(session):
            log.info("session opened", extra={"session_id": session.session_id})
            return session
        return await self.get(session.session_id)

    async def get(self, session_id: str) -> Session:
        """Return a session; one past its time shows as closed. Raises SessionNotFound."""
        session = await self._read(session_id)
        return session.closed(CloseReason.EXPIRED) if self._is_late(session) else session

    async def change(
        self, session_id: str, step: Callable[[Session], Session]
    ) -> tuple[Session, bool]:
        """Apply `step` and return the session with whether this call changed it; raises what `step`
        raises.
        """
        for _ in range(_ATTEMPTS):
            before = await self._read(session_id)
            after = step(before)
            if after is before:
                return before, False
            if await self._save(after):
                return after, True
        raise SessionContended(session_id)

    async def close(self, session_id: str, reason: CloseReason, detail: str = "") -> Session | None:
        """Close a session; returns it when this call did, None when it was closed before or is
        unknown.
        """
        return await self._close(session_id, reason, lambda found: found.closed(reason, detail))

    async def expire(self, session_id: str) -> Session | None:
        """Close a session if its time has passed; returns it when this call did."""
        return await self._close(
            session_id,
            CloseReason.EXPIRED,
            lambda found: found.closed(CloseReason.EXPIRED) if self._is_late(found) else found,
        )

    async def _close(
        self, session_id: str, reason: CloseReason, step: Callable[[Session], Session]
    ) -> Session | None:
        try:
            session, changed = await self.change(session_id, step)
        except SessionNotFound:
            return None
        if not changed:
            return None
        log.info("session closed", extra={"session_id": session_id, "reason": reason.value})
        return session

    async def of_gateway(self, gateway_id: str) -> Sequence[Session]:
        """Return a gateway's sessions that are not closed, those included that the store lost."""
        return self._merged(
            await self._store.of_gateway(gateway_id),
            (session for session in self._live.values() if session.gateway_id == gateway_id),
        )

    async def of_launch(self, launch_id: str) -> Sequence[Session]:
        """Return a launch's sessions that are not closed, those included that the store lost."""
        return self._merged(
            await self._store.of_launch(launch_id),
            (session for session in self._live.values() if session.launch_id == launch_id),
        )

    def _merged(self, stored: Iterable[Session], live: Iterable[Session]) -> Sequence[Session]:
        found = {session.session_id: session for session in live}
        for session in stored:
            found[session.session_id] = session
            self._live[session.session_id] = session
        return tuple(found[session_id] for session_id in sorted(found))

    def _is_late(self, session: Session) -> bool:
        return not session.is_closed and session.expires_at <= self._clock.now()

    async def _read(self, session_id: str) -> Session:
        session = await self._store.get(session_id) or self._live.get(session_id)
        if session is None:
            raise SessionNotFound(session_id)
        if session.is_closed:
            self._live.pop(session_id, None)
        elif session_id in self._live:
            self._live[session_id] = session
        return session

    async def _save(self, session: Session) -> bool:
        left = 0.0
        if not session.is_closed:
            left = max(0.0, (session.expires_at - self._clock.now()).total_seconds())
        saved = await self._store.save(
            session,
            ttl_seconds=left + KEPT_AFTER_CLOSE_SECONDS,
            restore=session.session_id in self._live,
        )
        if saved:
            if session.is_closed:
                self._live.pop(session.session_id, None)
            else:
                self._live[session.session_id] = session
            signal = self._signals.pop(session.session_id, None)
            if signal is not None:
                signal.set()
        return saved
