"""The sessions of this process: every change goes through the store by compare-and-set, and is told
to who watches the session here.

Sessions that are not closed are also kept in memory: a change is tried on that copy first, and a
store that lost them gets them back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from chassis.clock import Clock
from chassis.errors import FairleadError, Unavailable
from fairlead_limits.table import PAGE_SIZE
from signalling.close_reason import CloseReason
from signalling.session import Session
from signalling.session_errors import SessionContended, SessionNotFound
from signalling.session_ports import Notice, SessionStore

log = logging.getLogger(__name__)

KEPT_AFTER_CLOSE_SECONDS = 600.0
"""How long a closed session can still be read."""

_ATTEMPTS = 20
_KEY_ENDED = "The API key that it was opened with was revoked or has expired."
_REMEMBERED_ENDS = 10_000


class Watch:
    """One watcher of a session: the newest record of it that came by, and a way to wait. In its
    block it is shown every change.

    Thousands wait at a time, each for hours: a future is a tenth of an event's size.
    """

    __slots__ = ("_session_id", "_shown", "_watches", "session")

    def __init__(self, *, session_id: str, watches: dict[str, tuple[Watch, ...]]) -> None:
        self.session: Session | None = None
        self._session_id = session_id
        self._watches = watches
        self._shown: asyncio.Future[None] | None = None

    def __enter__(self) -> Watch:
        self._watches[self._session_id] = (*self._watches.get(self._session_id, ()), self)
        return self

    def __exit__(self, *_: object) -> None:
        others = tuple(each for each in self._watches[self._session_id] if each is not self)
        if others:
            self._watches[self._session_id] = others
        else:
            del self._watches[self._session_id]

    def show(self, session: Session) -> None:
        """Show a newer record."""
        self.session = session
        if self._shown is not None and not self._shown.done():
            self._shown.set_result(None)

    async def after(self, version: int) -> Session:
        """Wait for a record that is newer than a version; one at a time waits."""
        while self.session is None or self.session.version <= version:
            self._shown = asyncio.get_running_loop().create_future()
            await self._shown
        return self.session


class SessionBook:
    """Reads and changes session records; of several who close one, one is told that it did.

    `tell_gateway` is called with every change of a session that this process learns of.
    """

    def __init__(self, *, store: SessionStore, clock: Clock, lenient_seconds: float = 60.0) -> None:
        self.tell_gateway: Callable[[Session], None] = lambda _: None
        self._store = store
        self._clock = clock
        self._lenient_seconds = lenient_seconds
        self._lenient_until = 0.0
        self._live: dict[str, Session] = {}
        self._held: Counter[str] = Counter()
        self._watches: dict[str, tuple[Watch, ...]] = {}
        self._closed = _Remembered()
        self._ended = _Remembered()

    def live(self) -> Sequence[Session]:
        """Return the sessions of this process that are not closed."""
        return tuple(self._live.values())

    def known(self, session_id: str) -> Session | None:
        """Return this process's copy of a session that is not closed."""
        return self._live.get(session_id)

    def held(self, gateway_id: str) -> int:
        """Return how many of the sessions of this process are a gateway's."""
        return self._held[gateway_id]

    def watching(self, session_id: str) -> Watch:
        """Be shown every change of a session in the block; begin before reading the session."""
        return Watch(session_id=session_id, watches=self._watches)

    def is_watched(self, session_id: str) -> bool:
        """Say whether anybody watches a session or waits for it here."""
        return session_id in self._watches

    async def end_launch(self, launch_id: str) -> Sequence[Session]:
        """Let nobody open another session of a launch, and return those that there are."""
        self._ended.add(launch_id)
        with self.lenience():
            await self._store.end_launch(launch_id, remembered_seconds=KEPT_AFTER_CLOSE_SECONDS)
        return await self.of_launch(launch_id)

    def has_ended(self, launch_id: str) -> bool:
        """Say whether a launch has ended, as far as this process remembers."""
        return launch_id in self._ended

    async def create(self, session: Session) -> Session:
        """Keep a new session, or return the one that has its id already."""
        self._closed.discard(session.session_id)
        if await self._save(session):
            log.info("session opened", extra={"session_id": session.session_id})
            return session
        return await self.get(session.session_id)

    async def get(self, session_id: str) -> Session:
        """Return a session; one past its time shows as closed. Raises SessionNotFound."""
        return self.timely(await self._read(session_id))

    def timely(self, session: Session) -> Session:
        """Return a session as it is now: one past its time is closed."""
        return session.closed(CloseReason.EXPIRED) if self._is_late(session) else session

    async def change(
        self, session_id: str, step: Callable[[Session], Session]
    ) -> tuple[Session, bool]:
        """Apply `step` and return the session with whether this call changed it; raises what `step`
        raises.

        What `step` does not want to do with this process's copy it is asked again with the store's.
        """
        known = self._live.get(session_id)
        if known is not None:
            try:
                after = step(known)
            except FairleadError:
                after = known
            if after is not known and await self._save(after):
                return after, True
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
        return await self._close(session_id, lambda found: found.closed(reason, detail))

    async def expire(self, session_id: str) -> Session | None:
        """Close a session if its time has passed; returns it when this call did."""
        return await self._close(session_id, self.timely)

    async def expire_if_due(self, session: Session) -> None:
        """Close a session if its copy says that its time has passed, and the store agrees."""
        if session.expires_at <= self._clock.now():
            await self.expire(session.session_id)

    async def _close(self, session_id: str, step: Callable[[Session], Session]) -> Session | None:
        try:
            session, changed = await self.change(session_id, step)
        except SessionNotFound:
            return None
        return session if changed else None

    async def of_gateway(self, gateway_id: str) -> Sequence[Session]:
        """Return a gateway's sessions that are not closed, those included that the store lost."""
        with self.lenience():
            stored = await self._store.of_gateway(gateway_id)
        return self._merged(
            stored, (session for session in self.live() if session.gateway_id == gateway_id)
        )

    async def of_launch(self, launch_id: str) -> Sequence[Session]:
        """Return a launch's sessions that are not closed, those included that the store lost."""
        with self.lenience():
            stored = await self._store.of_launch(launch_id)
        return self._merged(
            stored, (session for session in self.live() if session.launch_id == launch_id)
        )

    async def of_tenant(
        self, tenant: str, *, after: str, size: int
    ) -> tuple[Sequence[Session], str]:
        """Return sessions of a tenant that go on, by id, and the id to go on after, if any."""
        with self.lenience():
            found, following = await self._store.of_tenant(tenant, after=after, size=size)
        return [session for session in found if not self._is_late(session)], following

    async def close_of_key(self, tenant: str, key_id: str) -> None:
        """Close the sessions of a tenant that were opened with an API key, which has ended."""
        after = ""
        while True:
            found, after = await self.of_tenant(tenant, after=after, size=PAGE_SIZE.count)
            for session in found:
                if session.key_id == key_id:
                    await self.close(session.session_id, CloseReason.ADMIN_CLOSED, _KEY_ENDED)
            if not after:
                return

    async def hear(self, notices: Iterable[Notice], gateway_ids: Iterable[str]) -> None:
        """Read what other replicas changed of the sessions that are watched here or belong to the
        gateways that are connected here; the others are theirs from now on.
        """
        here = set(gateway_ids)
        wanted = []
        for notice in {notice.session_id: notice for notice in notices}.values():
            if notice.session_id in self._watches or notice.gateway_id in here:
                wanted.append(notice.session_id)
            else:
                self._drop(notice.session_id)
        await self._show_stored(wanted)

    async def look_again(self, gateway_ids: Iterable[str]) -> None:
        """Read everything that is watched here and everything of these gateways."""
        wanted = set(self._watches)
        for gateway_id in gateway_ids:
            wanted |= {session.session_id for session in await self.of_gateway(gateway_id)}
        await self._show_stored(sorted(wanted))

    async def _show_stored(self, session_ids: Sequence[str]) -> None:
        with self.lenience():
            stored = await self._store.get_many(session_ids)
        for session in stored:
            self._note(session)

    def _merged(self, stored: Iterable[Session], live: Iterable[Session]) -> Sequence[Session]:
        found = {session.session_id: session for session in live}
        for session in stored:
            found[session.session_id] = session
            self._note(session)
        return tuple(found[session_id] for session_id in sorted(found))

    def _is_late(self, session: Session) -> bool:
        if session.is_closed or session.expires_at > self._clock.now():
            return False
        # While the store was away nobody could say of a session that it lives, or has connected.
        may_be_up = session.is_negotiated or session.is_tunnel
        return not may_be_up or self._clock.monotonic() >= self._lenient_until

    @contextmanager
    def lenience(self) -> Iterator[None]:
        """Remember when the store was away: ask in it whatever is kept where the sessions are."""
        try:
            yield
        except Unavailable:
            self._lenient_until = self._clock.monotonic() + self._lenient_seconds
            raise

    async def _read(self, session_id: str) -> Session:
        with self.lenience():
            stored = await self._store.get(session_id)
        session = stored or self._live.get(session_id)
        if session is None:
            raise SessionNotFound(session_id)
        known = self._live.get(session_id)
        if known is not None and session.version < known.version:
            self._live[session_id] = session  # the store has lost changes and goes on from there
        elif session == known:
            return known  # one copy in memory, however many watch it
        elif known is not None or session_id in self._watches:
            self._note(session)
        return session

    async def _save(self, session: Session) -> bool:
        left = 0.0
        if not session.is_closed:
            left = max(0.0, (session.expires_at - self._clock.now()).total_seconds())
        with self.lenience():
            saved = await self._store.save(
                session,
                ttl_seconds=left + KEPT_AFTER_CLOSE_SECONDS,
                restore=session.session_id in self._live,
            )
        if saved:
            if session.close_reason is not None:
                log.info(
                    "session closed",
                    extra={"session_id": session.session_id, "reason": session.close_reason.value},
                )
            self._note(session)
        return saved

    def _note(self, session: Session) -> None:
        """Take a record for the newest one if it is, and show it."""
        known = self._live.get(session.session_id)
        if known is not None and known.version >= session.version:
            return
        if session.is_closed:
            self._drop(session.session_id)
            self._closed.add(session.session_id)
        elif session.session_id in self._closed:
            return  # an answer of the store that was overtaken
        else:
            if known is None:
                self._held[session.gateway_id] += 1
            self._live[session.session_id] = session
        self.tell_gateway(session)
        for watch in self._watches.get(session.session_id, ()):
            watch.show(session)

    def _drop(self, session_id: str) -> None:
        session = self._live.pop(session_id, None)
        if session is not None:
            self._held[session.gateway_id] -= 1
            if not self._held[session.gateway_id]:
                del self._held[session.gateway_id]


class _Remembered:
    """The last of what was added."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str) -> None:
        self._names[name] = None
        while len(self._names) > _REMEMBERED_ENDS:
            self._names.popitem(last=False)

    def discard(self, name: str) -> None:
        self._names.pop(name, None)
