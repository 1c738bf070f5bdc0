"""One session's talk with the mesh: sends what its negotiation gives, and hears what it is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fairlead_sdk.errors import CursorGone, FairleadError
from fairlead_sdk.pulse import Pulse
from fairlead_sdk.session_api import SessionApi
from fairlead_sdk.session_errors import ConnectTimeout, SessionEnded, may_pass
from fairlead_sdk.session_records import (
    AnswerCame,
    CandidatesCame,
    RestartAsked,
    SessionBecame,
    SessionClosed,
    SessionHappening,
    Subscribed,
)
from fairlead_tunnel.negotiation import (
    Negotiation,
    NegotiationState,
    Outgoing,
    SendCandidates,
    SendOffer,
)

log = logging.getLogger(__name__)

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things may take, and how often they are tried, in seconds."""

    call: float = 20.0
    """One call, answering an offer included."""
    fresh: float = 5.0
    """Asking for fresh credentials of relays before a restart."""
    pauses: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    """Before each repetition of a call; one that fails after the last has failed."""
    restart: float = 15.0
    """One round on a path that is lost, before another one is begun."""
    lost: float = 60.0
    """A path that does not come back, restarts included."""


class SessionTalk:
    """Run `send` and `watch` while the session lives; `pulse` beats when anything changed."""

    def __init__(
        self,
        *,
        api: SessionApi,
        session_id: str,
        machine: Negotiation,
        pulse: Pulse,
        pace: Pace,
        sleep: Sleep,
        fail: Callable[[FairleadError], None],
        connected: Callable[[], bool],
    ) -> None:
        self._api = api
        self._session_id = session_id
        self._machine = machine
        self._pulse = pulse
        self._pace = pace
        self._sleep = sleep
        self._fail = fail
        self._connected = connected
        self._cursor = 0
        self._failures = 0
        self._batch_failures = 0
        self.is_subscribed = False
        self.closed: SessionClosed | None = None

    async def send(self) -> None:
        """Send offers and candidates; each goes its own way, so that none waits for another."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                while (message := self._machine.next_message()) is not None:
                    tasks.create_task(self._send(message))
                await self._pulse.wait()

    async def watch(self) -> None:
        """Hear what happens, over as many streams as it takes, until the session is closed.

        A mesh that refuses ends the session, unless channels carry: those need no mesh.
        """
        while self.closed is None:
            try:
                await self._watch_once()
            except FairleadError as error:
                log.debug("watch lost", extra={"reason": error.reason})
                if isinstance(error, CursorGone) or error.reason == "cursor_invalid":
                    self._cursor = 0  # too old, or of events that a store has lost
                elif not may_pass(error):
                    if not self._connected():
                        self._fail(error)
                    return
            if self.closed is None:
                pause = self._pace.pauses[min(self._failures, len(self._pace.pauses) - 1)]
                self._failures += 1
                await self._sleep(pause)

    async def _watch_once(self) -> None:
        async with self._api.watch_session(self._session_id, self._cursor) as events:
            async for event in events:
                self._failures = 0
                self._cursor = event.sequence
                self._hear(event.happening)
                self._pulse.beat()
                if self.closed is not None:
                    return

    def _hear(self, happening: SessionHappening) -> None:
        machine = self._machine
        match happening:
            case Subscribed(session):
                self.is_subscribed = True
                if session.state == "closed":
                    self._end(SessionClosed(session.close_reason))
            case SessionBecame("offered"):
                machine.offer_taken(machine.round)
            case AnswerCame(number, answer):
                machine.answer(number, answer)
            case CandidatesCame(number, candidates, ended):
                machine.candidates(number, candidates, ended)
            case RestartAsked(number):
                machine.restart_asked(number)
            case SessionClosed():
                self._end(happening)
            case _:
                pass

    def _end(self, closed: SessionClosed) -> None:
        self.closed = closed
        self._fail(SessionEnded(closed))

    async def _send(self, message: Outgoing) -> None:
        match message:
            case SendOffer():
                await self._send_offer(message)
            case SendCandidates():
                await self._send_candidates(message)
        self._pulse.beat()

    async def _send_offer(self, message: SendOffer) -> None:
        """Send an offer, again after a failure that may pass: it is one session all the same."""
        api, session_id = self._api, self._session_id
        ask = api.send_offer if message.round == 1 else api.restart_session
        for pause in (*self._pace.pauses, None):
            try:
                async with asyncio.timeout(self._pace.call):
                    reply = await ask(session_id, message.offer)
                break
            except (FairleadError, TimeoutError) as error:
                if pause is None or not may_pass(error):
                    self._refuse_offer(message, error)
                    return
                await self._sleep(pause)
                if not self._is_awaited(message):
                    return
        self._machine.sent(message, reply.round)
        self._machine.answer(reply.round or message.round, reply.answer)

    def _is_awaited(self, message: SendOffer) -> bool:
        """Say whether the answer has not come by the watch meanwhile."""
        machine = self._machine
        is_open = machine.state in (NegotiationState.OFFERING, NegotiationState.OFFERED)
        return is_open and machine.round == message.round

    def _refuse_offer(self, message: SendOffer, error: FairleadError | TimeoutError) -> None:
        self._machine.failed(message, is_final=True)
        if self._machine.state is NegotiationState.CLOSED:
            if isinstance(error, TimeoutError):
                error = ConnectTimeout(self._pace.call)
            self._fail(error)

    async def _send_candidates(self, message: SendCandidates) -> None:
        """Send a batch; one that failed is given back after a pause, to go with what came since."""
        try:
            async with asyncio.timeout(self._pace.call):
                outcomes = await self._api.add_candidates(
                    self._session_id, message.round, message.candidates, ended=message.ended
                )
        except (FairleadError, TimeoutError) as error:
            is_final = self._batch_failures >= len(self._pace.pauses) or not may_pass(error)
            if not is_final:
                await self._sleep(self._pace.pauses[self._batch_failures])
                self._batch_failures += 1
            self._machine.failed(message, is_final=is_final)
            return
        self._batch_failures = 0
        self._machine.sent(message)
        log.debug("candidates sent", extra={"outcomes": ",".join(sorted(set(outcomes)))})
