"""The calls of sessions over scripted signalling, in one process: failures are scripted as well."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from chassis.ids import random_id
from fairlead.gateway.v1 import gateway_pb2 as pb
from fairlead_sdk.errors import FairleadError, Unavailable
from fairlead_sdk.session_records import (
    AnswerCame,
    CandidatesCame,
    OfferReply,
    OpenedSession,
    RestartAsked,
    SessionBecame,
    SessionClosed,
    SessionEvent,
    SessionHappening,
    SessionRecord,
    SessionServer,
    Subscribed,
)
from tests.fakes.scripted_signalling import ScriptedSignalling


def away() -> FairleadError:
    return Unavailable("Away.", reason="unavailable")


class ScriptedSessions:
    """A `SessionApi`; an error in `failures[call]` is raised before the call, one in `losses[call]`
    after it has had its effect.
    """

    def __init__(self, signalling: ScriptedSignalling) -> None:
        self.signalling = signalling
        self.servers: Callable[[], tuple[SessionServer, ...]] = tuple
        self.calls: list[str] = []
        self.modes: dict[str, str] = {}
        self.batches: list[tuple[str, ...]] = []
        self.failures: dict[str, list[FairleadError]] = defaultdict(list)
        self.losses: dict[str, list[FairleadError]] = defaultdict(list)
        self.watches = 0
        self._watch_number = 0

    async def open_session(
        self, launch_id: str, *, mode: str, ice_policy: str, key: str
    ) -> OpenedSession:
        self._call("open_session")
        if mode == "trickle" and not self.signalling.hellos[-1].can_trickle:
            raise FairleadError("The gateway cannot.", reason="mode_unsupported")
        session_id = random_id("ses")
        self.modes[session_id] = mode
        return OpenedSession(SessionRecord(session_id=session_id, mode=mode), self.servers())

    async def send_offer(self, session_id: str, offer: str) -> OfferReply:
        self._call("send_offer")
        trickles = self.modes.get(session_id) == "trickle"
        if session_id not in self.signalling.wanted:
            self.signalling.want(
                session_id, offer, trickles=trickles, ice_servers=self._ice_servers()
            )
        return await self._answered("send_offer", session_id, 1)

    async def restart_session(self, session_id: str, offer: str) -> OfferReply:
        self._call("restart_session")
        wanted = self.signalling.wanted[session_id]
        if wanted.offer != offer:
            self.signalling.want(
                session_id,
                offer,
                of_round=wanted.round + 1,
                trickles=True,
                ice_servers=self._ice_servers(),
            )
        number = self.signalling.wanted[session_id].round
        return await self._answered("restart_session", session_id, number)

    async def fresh_servers(self, session_id: str) -> tuple[SessionServer, ...]:
        self._call("fresh_servers")
        return self.servers()

    async def add_candidates(
        self, session_id: str, of_round: int, candidates: tuple[str, ...], *, ended: bool
    ) -> tuple[str, ...]:
        self._call("add_candidates")
        self.batches.append(candidates)
        wanted = self.signalling.wanted[session_id]
        known = set(wanted.candidates)
        fresh = [each for each in candidates if each not in known]
        if of_round == wanted.round:
            self.signalling.give(session_id, fresh, ended=ended)
        self._lose("add_candidates")
        return tuple("duplicate" if each in known else "accepted" for each in candidates)

    @asynccontextmanager
    async def watch_session(
        self, session_id: str, cursor: int
    ) -> AsyncIterator[AsyncIterator[SessionEvent]]:
        self._call("watch_session")
        self.watches += 1
        try:
            yield self._events(session_id, cursor, self._watch_number)
        finally:
            self.watches -= 1

    async def close_session(self, session_id: str) -> None:
        self._call("close_session")
        if session_id in self.signalling.wanted and self.signalling.is_connected:
            self.signalling.unwant(session_id)

    async def drop_watches(self) -> None:
        """End all watches as a lost connection does."""
        self._watch_number += 1
        await self.signalling.tell()

    async def _events(
        self, session_id: str, cursor: int, number: int
    ) -> AsyncIterator[SessionEvent]:
        record = SessionRecord(session_id=session_id)
        yield SessionEvent(cursor, Subscribed(record))
        while True:
            history = self._history(session_id)
            for sequence, happening in enumerate(history[cursor:], start=cursor + 1):
                cursor = sequence
                yield SessionEvent(sequence, happening)
                if isinstance(happening, SessionClosed):
                    return
            await self._news(session_id, len(history), number)
            if number != self._watch_number:
                raise away()

    async def _news(self, session_id: str, known: int, number: int) -> None:
        """Wait until more is said than is known, or the watch is lost."""
        await self.signalling.until(
            lambda: number != self._watch_number or len(self._history(session_id)) > known
        )

    def _history(self, session_id: str) -> list[SessionHappening]:
        """What the gateway has said of a session, in the order of its kinds and rounds."""
        return [
            happening
            for told_of, happening in (self._happening(said) for said in self.signalling.said)
            if told_of == session_id and happening is not None
        ]

    @staticmethod
    def _happening(said: object) -> tuple[str, SessionHappening | None]:
        match said:
            case pb.SessionAnswered() if said.answer:
                return said.session_id, AnswerCame(said.round or 1, said.answer)
            case pb.CandidatesFound():
                found = tuple(said.candidates)
                happening = CandidatesCame(said.round, found, said.end_of_candidates)
                return said.session_id, happening
            case pb.RestartWanted():
                return said.session_id, RestartAsked(said.round)
            case pb.SessionChanged() if said.connected:
                return said.session_id, SessionBecame("connected")
            case pb.SessionChanged():
                return said.session_id, SessionClosed(said.close_reason)
            case _:
                return "", None

    async def _answered(self, call: str, session_id: str, number: int) -> OfferReply:
        answers = self.signalling.answers
        await self.signalling.until(
            lambda: session_id in answers and answers[session_id].round == number
        )
        self._lose(call)
        answered = answers[session_id]
        if answered.HasField("refusal"):
            refusal = answered.refusal
            raise FairleadError(refusal.message, reason=refusal.reason)
        return OfferReply(answered.answer, number)

    def _ice_servers(self) -> list[pb.IceServer]:
        return [
            pb.IceServer(urls=each.urls, username=each.username, credential=each.credential)
            for each in self.servers()
        ]

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.failures[name]:
            raise self.failures[name].pop(0)

    def _lose(self, name: str) -> None:
        if self.losses[name]:
            raise self.losses[name].pop(0)
