"""One session from its first offer to its end: its rounds, and how long a path is awaited."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from chassis.clock import Clock
from chassis.errors import FairleadError, Internal
from relay_gateway.happening import AllFound, Ended, Found, Happening, PathDown, PathUp
from relay_gateway.message import Candidates, Changed, Refusal, Report, RestartWanted
from relay_gateway.ports import Association, Carrier
from relay_gateway.rounds import AnswerOffer, Rounds, TakeCandidate, TakeEnd
from relay_gateway.session import CloseReason, OfferTimeout, WantedSession

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long things may take, in seconds."""

    answer: float = 10.0
    connect: float = 300.0
    """Most that a session's own limit counts."""
    lost: float = 30.0
    """A path that came up and is silent; as consent lasts (RFC 7675, section 5.1)."""
    restart: float = 60.0
    """A round that was begun while the path was silent."""
    idle: float = 60.0
    """A tunnel that was attached and has no carrier."""


class HeldSession:
    """A session that this gateway answers; `run` once, then `close`."""

    def __init__(
        self,
        *,
        wanted: WantedSession,
        carrier: Carrier,
        tell: Callable[[Report], None],
        clock: Clock,
        patience: Patience,
    ) -> None:
        self.wanted = wanted
        self._carrier = carrier
        self._tell = tell
        self._clock = clock
        self._patience = patience
        self._rounds = Rounds(wanted)
        self._association: Association | None = None
        self._is_up = False
        self._up_round = 0
        self._ended: CloseReason | None = None
        self._deadline: float | None = None
        self._changed = asyncio.Event()
        self._due = asyncio.Event()

    @property
    def is_answered(self) -> bool:
        """Say whether its first offer was answered."""
        return self._association is not None

    @property
    def channels(self) -> int:
        """How many channels are open."""
        return self._association.channels if self._association else 0

    def want(self, wanted: WantedSession) -> None:
        """Take what signalling knows of it now, and state again what it is to know."""
        self._rounds.want(wanted)
        self._due.set()
        if self._association is None:
            return
        self._tell_all(self._rounds.everything())
        if self._is_up:
            self._tell_up()
        elif self._up_round:
            self._ask_restart()

    def given(self, candidates: Candidates) -> None:
        """Take candidates of the client."""
        self._rounds.given(candidates)
        self._due.set()

    async def run(self) -> CloseReason:
        """Answer it and everything after that, until it is over.

        Raises FairleadError when the first offer cannot be answered.
        """
        self._association = await self._answer_first()
        self._tell_all(self._rounds.news())
        if self._is_up:
            self._tell_up()
        log.info("session answered", extra={"session_id": self.wanted.session_id})
        self._await_path((self.wanted.expires_at - self._clock.now()).total_seconds())
        negotiating = asyncio.create_task(self._negotiate(self._association))
        try:
            return await self._over(negotiating)
        finally:
            negotiating.cancel()
            await asyncio.wait((negotiating,))

    async def close(self) -> None:
        """Free the connection with its channels."""
        if self._association is not None:
            await self._association.close()

    async def _answer_first(self) -> Association:
        step = self._rounds.next_step()
        if not isinstance(step, AnswerOffer):
            raise AssertionError("a session is held once it has an offer")
        try:
            async with asyncio.timeout(self._patience.answer):
                association = await self._carrier.answer(step.wanted, self._take)
        except TimeoutError:
            raise OfferTimeout(self.wanted.session_id) from None
        except FairleadError:
            raise
        except Exception as error:
            log.exception("answering failed", extra={"session_id": self.wanted.session_id})
            raise Internal("The gateway failed.", reason="gateway_failed") from error
        self._rounds.answered(step.wanted.round, association.answer)
        return association

    async def _negotiate(self, association: Association) -> None:
        """Do what the rounds ask for, one step after the other, for as long as it lives."""
        while True:
            while (step := self._rounds.next_step()) is not None:
                match step:
                    case AnswerOffer(wanted):
                        await self._restart(association, wanted)
                    case TakeCandidate(candidate):
                        await association.add_candidate(candidate)
                    case TakeEnd():
                        await association.end_candidates()
            self._due.clear()
            await self._due.wait()

    async def _restart(self, association: Association, wanted: WantedSession) -> None:
        session_id = wanted.session_id
        if not self._is_up:
            self._await_path(self._patience.restart)
        try:
            async with asyncio.timeout(self._patience.answer):
                answer = await self._carrier.restart(association, wanted)
        except TimeoutError:
            self._refuse(wanted, OfferTimeout(session_id))
        except FairleadError as error:
            self._refuse(wanted, error)
        else:
            self._rounds.answered(wanted.round, answer)
            log.info("session restarted", extra={"session_id": session_id, "round": wanted.round})
        self._tell_all(self._rounds.news())

    def _refuse(self, wanted: WantedSession, error: FairleadError) -> None:
        self._rounds.answered(wanted.round, Refusal(error.reason, error.message))
        log.info("restart refused", extra={"session_id": wanted.session_id, "reason": error.reason})

    async def _over(self, negotiating: asyncio.Task[None]) -> CloseReason:
        """Wait until it is over; a path that does not come up in its time is given up."""
        negotiating.add_done_callback(lambda _: self._changed.set())
        while self._ended is None:
            if negotiating.done():
                negotiating.result()
            try:
                async with asyncio.timeout_at(self._deadline):
                    await self._changed.wait()
            except TimeoutError:
                return CloseReason.CONNECTION_FAILED
            self._changed.clear()
        return self._ended

    def _take(self, happening: Happening) -> None:
        session_id = self.wanted.session_id
        match happening:
            case Found(candidate):
                self._rounds.found(candidate)
            case AllFound():
                self._rounds.found_all()
            case PathUp():
                self._is_up = True
                self._up_round = self._rounds.answered_round
                self._deadline = None
                if self._association is not None:
                    self._tell_up()
                log.info("session connected", extra={"session_id": session_id})
            case PathDown() if self._is_up:
                self._is_up = False
                self._await_path(self._patience.lost)
                log.info("session's path lost", extra={"session_id": session_id})
                self._ask_restart()
            case Ended(reason):
                self._ended = self._ended or reason
        self._tell_all(self._rounds.news())
        self._changed.set()

    def _await_path(self, seconds: float) -> None:
        if not self._is_up:
            seconds = min(max(seconds, 0.0), self._patience.connect)
            self._deadline = asyncio.get_running_loop().time() + seconds
            self._changed.set()

    def _ask_restart(self) -> None:
        """Ask the client for a round, unless there is one already or it cannot be."""
        association = self._association
        if association and association.can_restart and not self._rounds.has_next:
            self._tell(RestartWanted(self.wanted.session_id, self._rounds.round))

    def _tell_up(self) -> None:
        """Say which round's path is up: in mid-restart it is the old one, which must not end what
        the client has to say of the new one.
        """
        self._tell(Changed(self.wanted.session_id, True, round=self._up_round))

    def _tell_all(self, reports: list[Report]) -> None:
        for report in reports:
            self._tell(report)
