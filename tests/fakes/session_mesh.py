"""A mesh of sessions in memory: the gateway's end is a fake peer that answers at once."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from fairlead_sdk.errors import FairleadError
from fairlead_sdk.session_records import (
    AnswerCame,
    CandidatesCame,
    OfferReply,
    OpenedSession,
    SessionEvent,
    SessionHappening,
    SessionRecord,
    SessionServer,
    Subscribed,
)
from fairlead_tunnel.peer_connection import CandidateFound, GatheringDone, PeerEvent, PeerPlan
from tests.fakes.peer_core import Network, PeerConnectionFake, PeerCoreFake

ID = "ses_a"


class SessionMesh:
    """A `SessionApi` with one session; errors in `failures[call]` are raised before the call."""

    def __init__(self) -> None:
        self.network = Network()
        self.core = PeerCoreFake(network=self.network)
        self.calls: list[str] = []
        self.offers: list[str] = []
        self.batches: list[tuple[int, tuple[str, ...], bool]] = []
        self.failures: dict[str, list[FairleadError]] = defaultdict(list)
        self.servers: tuple[SessionServer, ...] = ()
        self.hangs: set[str] = set()
        self.gateway_candidates = 2
        self.round = 1
        self.cursors: list[int] = []
        self.log: list[SessionHappening] = []
        self.is_closed = False
        self._mode = "trickle"
        self._gateway: PeerConnectionFake | None = None
        self._changed = asyncio.Event()
        self._watch_error: FairleadError | None = None

    @property
    def gateway(self) -> PeerConnectionFake:
        assert self._gateway is not None
        return self._gateway

    def tell(self, happening: SessionHappening) -> None:
        """Let the watch tell something."""
        self.log.append(happening)
        self._wake()

    def lose_watch(self, error: FairleadError) -> None:
        """Break the watch that there is."""
        self._watch_error = error
        self._wake()

    async def open_session(
        self, launch_id: str, *, mode: str, ice_policy: str, key: str
    ) -> OpenedSession:
        await self._call("open_session")
        self._mode = mode
        record = SessionRecord(session_id=ID, mode=mode, ice_policy=ice_policy)
        return OpenedSession(record, self.servers)

    async def send_offer(self, session_id: str, offer: str) -> OfferReply:
        await self._call("send_offer")
        return await self._answered(offer)

    async def restart_session(self, session_id: str, offer: str) -> OfferReply:
        await self._call("restart_session")
        if offer not in self.offers:
            self.round += 1
        return await self._answered(offer)

    async def fresh_servers(self, session_id: str) -> tuple[SessionServer, ...]:
        await self._call("fresh_servers")
        return tuple(replace(server, credential="fresh") for server in self.servers)

    async def add_candidates(
        self, session_id: str, of_round: int, candidates: tuple[str, ...], *, ended: bool
    ) -> tuple[str, ...]:
        await self._call("add_candidates")
        self.batches.append((of_round, candidates, ended))
        for candidate in candidates:
            await self.gateway.add_candidate(candidate)
        return tuple("accepted" for _ in candidates)

    @asynccontextmanager
    async def watch_session(
        self, session_id: str, cursor: int
    ) -> AsyncIterator[AsyncIterator[SessionEvent]]:
        await self._call("watch_session")
        self.cursors.append(cursor)
        yield self._events(cursor)

    async def close_session(self, session_id: str) -> None:
        await self._call("close_session")
        self.is_closed = True

    async def _events(self, cursor: int) -> AsyncIterator[SessionEvent]:
        yield SessionEvent(cursor, Subscribed(SessionRecord(session_id=ID, mode=self._mode)))
        while True:
            for number, happening in enumerate(self.log[cursor:], start=cursor + 1):
                cursor = number
                yield SessionEvent(number, happening)
            if self._watch_error is not None:
                error, self._watch_error = self._watch_error, None
                raise error
            self._changed.clear()
            await self._changed.wait()

    async def _answered(self, offer: str) -> OfferReply:
        if self._gateway is None:
            self._gateway = self.core.connect(PeerPlan(trickles=self._mode == "trickle"))
            self._gateway.candidates_at_once = self.gateway_candidates
            self._gateway.listen(self._take)
        if offer not in self.offers:
            self.offers.append(offer)
            self.tell(AnswerCame(self.round, await self._gateway.answer(offer)))
        answer = self.log[-1]
        for happening in self.log:
            if isinstance(happening, AnswerCame) and happening.round == self.round:
                answer = happening
        assert isinstance(answer, AnswerCame)
        return OfferReply(answer.answer, self.round)

    def _take(self, event: PeerEvent) -> None:
        if isinstance(event, CandidateFound):
            self.tell(CandidatesCame(self.round, (event.candidate,), False))
        elif isinstance(event, GatheringDone):
            self.tell(CandidatesCame(self.round, (), True))

    async def _call(self, name: str) -> None:
        self.calls.append(name)
        await asyncio.sleep(0)
        if self.failures[name]:
            raise self.failures[name].pop(0)
        if name in self.hangs:
            await asyncio.Event().wait()

    def _wake(self) -> None:
        self._changed.set()
