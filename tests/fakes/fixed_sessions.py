"""Sessions for the front door's tests: one, whatever is asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from chassis.ids import is_id
from signalling.close_reason import CloseReason
from signalling.ice_candidate import CandidateOutcome
from signalling.ice_servers import IceServer
from signalling.launch_errors import LaunchNotFound
from signalling.session import Session
from signalling.session_errors import SessionNotFound
from signalling.session_ports import Happened, Subscribed, Watched
from signalling.tunnel import Tunnel
from tests.fakes.clock import START
from tests.fakes.sessions import ANSWER


class FakeSessions:
    """Answers whatever is asked of one session."""

    def __init__(self) -> None:
        self.session = Session(
            session_id="ses_" + "a" * 26,
            tenant="default",
            launch_id="lch_" + "a" * 26,
            gateway_id="gtw_" + "a" * 26,
            created_at=START,
            expires_at=START,
            answer=ANSWER,
        )

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
        if not is_id("lch", launch_id):
            raise LaunchNotFound(launch_id)
        return self.session

    def ice_servers(self, session: Session) -> Sequence[IceServer]:
        return ()

    async def tunnel(self, session: Session) -> Tunnel | None:
        return None

    async def offer(self, tenant: str, session_id: str, offer: str) -> Session:
        return await self.get(tenant, session_id)

    async def add_candidates(
        self,
        tenant: str,
        session_id: str,
        candidates: Sequence[str],
        *,
        ended: bool,
        round_number: int = 0,
    ) -> Sequence[CandidateOutcome]:
        session = await self.get(tenant, session_id)
        self.session, outcomes = session.with_candidates(round_number, candidates, ended=ended)
        return outcomes

    async def restart(self, tenant: str, session_id: str, offer: str) -> Session:
        return await self.get(tenant, session_id)

    async def watch(
        self, tenant: str, session_id: str, cursor: int
    ) -> AsyncGenerator[Watched, None]:
        session = await self.get(tenant, session_id)
        events = session.events_after(cursor)
        yield Subscribed(session, cursor)
        for event in events:
            yield Happened(session, event)

    async def get(self, tenant: str, session_id: str) -> Session:
        if session_id != self.session.session_id:
            raise SessionNotFound(session_id)
        return self.session

    async def list(
        self, tenant: str, page_size: int, page_token: str
    ) -> tuple[Sequence[Session], str]:
        return ([self.session] if tenant == self.session.tenant else []), ""

    async def close(self, tenant: str, session_id: str) -> Session:
        return await self.get(tenant, session_id)

    async def close_as_admin(self, tenant: str, session_id: str, message: str) -> Session:
        session = await self.get(tenant, session_id)
        return session.closed(CloseReason.ADMIN_CLOSED, message)

    async def answer(self, tenant: str, launch_id: str, offer: str) -> tuple[str, str]:
        return self.session.session_id, ANSWER

    async def close_launch(self, launch_id: str) -> None:
        return None
