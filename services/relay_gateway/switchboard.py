"""Holds the sessions: answers what signalling wants, closes what it does not want, reports changes.

Each session is one task from its offer to its end, so that everything of it is freed exactly once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from chassis.clock import Clock
from chassis.errors import FairleadError, Internal
from relay_gateway.line import Line
from relay_gateway.message import Answered, Changed, Heartbeat, Refusal
from relay_gateway.ports import Association, Carrier
from relay_gateway.session import (
    CloseReason,
    GatewayDraining,
    GatewayFull,
    OfferTimeout,
    WantedSession,
)

ANSWER_SECONDS = 10.0
MOST_CONNECT_SECONDS = 300.0
REMEMBERED = 1024
"""Closed sessions whose end is told again when signalling, having missed it, still wants them."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Held:
    """A session that is answered or about to be."""

    wanted: WantedSession
    task: asyncio.Task[None] | None = None
    association: Association | None = None
    connected: bool = False
    is_ending: bool = False
    reason: CloseReason = CloseReason.CONNECTION_FAILED


class Switchboard:
    """The gateway's sessions; use it as an async context manager, whose end closes them all."""

    def __init__(
        self,
        *,
        carrier: Carrier,
        line: Line,
        clock: Clock,
        capacity: int,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._carrier = carrier
        self._line = line
        self._clock = clock
        self._capacity = capacity
        self._answer_seconds = answer_seconds
        self._held: dict[str, _Held] = {}
        self._ended: OrderedDict[str, CloseReason] = OrderedDict()
        self._draining = False
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Switchboard:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._draining = True
        for held in list(self._held.values()):
            self._close(held)
        await self._tasks.__aexit__(kind, error, trace)

    @property
    def session_ids(self) -> list[str]:
        """Ids of the sessions that are held now."""
        return list(self._held)

    @property
    def channels(self) -> int:
        """How many channels are open, in all sessions."""
        return sum(held.association.channels for held in self._held.values() if held.association)

    @property
    def is_draining(self) -> bool:
        """Say whether nothing new is taken."""
        return self._draining

    def heartbeat(self) -> Heartbeat:
        """Say how loaded this gateway is."""
        return Heartbeat(len(self._held), self.channels, self._draining)

    def drain(self) -> None:
        """Take no new sessions from now on, and say so."""
        self._draining = True
        self._line.tell(self.heartbeat())

    def reconcile(self, wanted: Sequence[WantedSession]) -> None:
        """Close what is not in `wanted`, answer what is lacking, and state again what is held."""
        ids = {session.session_id for session in wanted}
        for session_id, held in list(self._held.items()):
            if session_id not in ids:
                self._close(held)
        for session in wanted:
            self.want(session)

    def want(self, wanted: WantedSession) -> None:
        """Answer a session's offer; what was answered or has ended before is told again."""
        session_id = wanted.session_id
        if session_id in self._ended:
            self._line.tell(Changed(session_id, False, self._ended[session_id]))
        elif held := self._held.get(session_id):
            self._tell_state(held)
        elif not wanted.offer:
            return
        elif self._draining:
            self._refuse(wanted, GatewayDraining())
        elif len(self._held) >= self._capacity:
            self._refuse(wanted, GatewayFull())
        else:
            held = _Held(wanted)
            self._held[session_id] = held
            held.task = self._tasks.create_task(self._keep(held))
            # Not at the end of the coroutine: a task that is cancelled at once never enters it.
            held.task.add_done_callback(lambda _: self._forget(held))

    def unwant(self, session_id: str) -> None:
        """Close a session; an unknown one is no error."""
        if held := self._held.get(session_id):
            self._close(held)

    def _close(self, held: _Held) -> None:
        """End a session by cancelling its task, unless that is ending it already."""
        if not held.is_ending and held.task is not None:
            held.reason = CloseReason.REQUESTED
            held.task.cancel()

    async def _keep(self, held: _Held) -> None:
        """Answer a session, watch it, and free it."""
        session_id = held.wanted.session_id
        try:
            held.association = await self._answer(held.wanted)
            self._tell_state(held)
            log.info("session answered", extra={"session_id": session_id})
            held.reason = await self._watch(held, held.association)
        except FairleadError as error:
            self._refuse(held.wanted, error)
        except Exception:
            log.exception("session failed", extra={"session_id": session_id})
        finally:
            held.is_ending = True
            if held.association is not None:
                await held.association.close()

    def _forget(self, held: _Held) -> None:
        session_id = held.wanted.session_id
        del self._held[session_id]
        if held.association is None and held.reason is not CloseReason.REQUESTED:
            return
        self._ended[session_id] = held.reason
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        self._line.tell(Changed(session_id, False, held.reason))
        log.info(
            "session closed",
            extra={"session_id": session_id, "close_reason": held.reason.value},
        )

    async def _answer(self, wanted: WantedSession) -> Association:
        try:
            async with asyncio.timeout(self._answer_seconds):
                return await self._carrier.answer(wanted)
        except TimeoutError:
            raise OfferTimeout(wanted.session_id) from None
        except FairleadError:
            raise
        except Exception as error:
            log.exception("answering failed", extra={"session_id": wanted.session_id})
            raise Internal("The gateway failed.", reason="gateway_failed") from error

    async def _watch(self, held: _Held, association: Association) -> CloseReason:
        """Wait until the session is over; one that does not connect in its time is given up."""
        left = (held.wanted.expires_at - self._clock.now()).total_seconds()
        left = min(max(left, 0.0), MOST_CONNECT_SECONDS)
        ended = asyncio.ensure_future(association.ended())
        connected = asyncio.ensure_future(association.connected())
        try:
            await asyncio.wait(
                (ended, connected), timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            if not ended.done() and not connected.done():
                return CloseReason.CONNECTION_FAILED
            if connected.done() and not ended.done():
                held.connected = True
                self._line.tell(Changed(held.wanted.session_id, True))
                log.info("session connected", extra={"session_id": held.wanted.session_id})
            return await ended
        finally:
            ended.cancel()
            connected.cancel()
            await asyncio.wait((ended, connected))

    def _tell_state(self, held: _Held) -> None:
        if held.association is None:
            return
        session_id = held.wanted.session_id
        self._line.tell(Answered(session_id, held.association.answer))
        if held.connected:
            self._line.tell(Changed(session_id, True))

    def _refuse(self, wanted: WantedSession, error: FairleadError) -> None:
        log.info("session refused", extra={"session_id": wanted.session_id, "reason": error.reason})
        self._line.tell(Answered(wanted.session_id, Refusal(error.reason, error.message)))
