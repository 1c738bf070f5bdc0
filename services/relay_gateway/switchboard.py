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
from chassis.errors import FairleadError
from relay_gateway.held_session import HeldSession, Patience
from relay_gateway.line import Line
from relay_gateway.message import Answered, Candidates, Changed, Heartbeat, Refusal
from relay_gateway.ports import Carrier
from relay_gateway.session import (
    CloseReason,
    GatewayDraining,
    GatewayFull,
    SessionOver,
    WantedSession,
)
from relay_gateway.tunnel_session import TunnelSession

REMEMBERED = 1024
"""Closed sessions whose end is told again when signalling, having missed it, still wants them."""

_OURS = frozenset({CloseReason.REQUESTED, CloseReason.DRAINED})
"""Ends that come from this side, also before there is an answer."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Held:
    """A session and its task."""

    session: HeldSession | TunnelSession
    task: asyncio.Task[None] | None = None
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
        patience: Patience | None = None,
    ) -> None:
        self._carrier = carrier
        self._line = line
        self._clock = clock
        self._capacity = capacity
        self._patience = patience or Patience()
        self._held: dict[str, _Held] = {}
        self._ended: OrderedDict[str, CloseReason] = OrderedDict()
        self._stated: set[str] = set()
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
            self._close(held, CloseReason.DRAINED)
        await self._tasks.__aexit__(kind, error, trace)

    @property
    def session_ids(self) -> list[str]:
        """Ids of the sessions that are held now."""
        return list(self._held)

    def state(self) -> list[str]:
        """Return the ids of all sessions for a hello: the welcome that follows is about them."""
        self._stated = set(self._held)
        return list(self._held)

    @property
    def ended(self) -> list[Changed]:
        """Why the last sessions ended; those whose end was told are among them."""
        return [Changed(session_id, False, reason) for session_id, reason in self._ended.items()]

    @property
    def channels(self) -> int:
        """How many channels are open, in all sessions."""
        return sum(held.session.channels for held in self._held.values())

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
        """Close what is not in `wanted`, answer what is lacking, and state again what is held.

        A tunnel whose ticket came after the hello is spared: signalling may have opened it since.
        """
        ids = {session.session_id for session in wanted}
        for session_id, held in list(self._held.items()):
            session = held.session
            if session_id in ids:
                continue
            if (
                isinstance(session, TunnelSession)
                and not session.is_named
                and session_id not in self._stated
            ):
                session.tell_up()
            else:
                self._close(held)
        for each in wanted:
            self.want(each)

    def want(self, wanted: WantedSession) -> None:
        """Answer a session's offer; what was answered or has ended before is told again."""
        session_id = wanted.session_id
        if session_id in self._ended:
            self._line.tell(Changed(session_id, False, self._ended[session_id]))
        elif held := self._held.get(session_id):
            held.session.want(wanted)
        elif not wanted.offer and not wanted.is_tunnel:
            return
        elif self._draining:
            self._refuse(wanted, GatewayDraining())
        elif len(self._held) >= self._capacity:
            self._refuse(wanted, GatewayFull())
        else:
            self._hold(self._made(wanted, is_named=True))

    def given(self, candidates: Candidates) -> None:
        """Take candidates of a session's client; of an unknown one they are dropped."""
        held = self._held.get(candidates.session_id)
        if held is not None and isinstance(held.session, HeldSession):
            held.session.given(candidates)

    def unwant(self, session_id: str) -> None:
        """Close a session; an unknown one is no error."""
        if held := self._held.get(session_id):
            self._close(held)

    def carry(self, wanted: WantedSession) -> TunnelSession:
        """Return the session of a tunnel whose client has come, maybe before signalling's word.

        Raises SessionOver, GatewayDraining and GatewayFull.
        """
        if self._draining:
            raise GatewayDraining
        held = self._held.get(wanted.session_id)
        if held is None and wanted.session_id not in self._ended:
            if len(self._held) >= self._capacity:
                raise GatewayFull
            held = self._hold(self._made(wanted, is_named=False))
        session = held.session if held is not None else None
        if not isinstance(session, TunnelSession) or not session.may_be_carried:
            raise SessionOver(wanted.session_id)
        return session

    def _hold(self, session: HeldSession | TunnelSession) -> _Held:
        held = _Held(session)
        self._held[session.wanted.session_id] = held
        held.task = self._tasks.create_task(self._keep(held))
        # Not at the end of the coroutine: a task that is cancelled at once never enters it.
        held.task.add_done_callback(lambda _: self._forget(held))
        return held

    def _made(self, wanted: WantedSession, *, is_named: bool) -> HeldSession | TunnelSession:
        tell, clock, patience = self._line.tell, self._clock, self._patience
        if wanted.is_tunnel:
            return TunnelSession(
                wanted=wanted, is_named=is_named, tell=tell, clock=clock, patience=patience
            )
        return HeldSession(
            wanted=wanted, carrier=self._carrier, tell=tell, clock=clock, patience=patience
        )

    def _close(self, held: _Held, reason: CloseReason = CloseReason.REQUESTED) -> None:
        """End a session, unless its task is ending it already."""
        if isinstance(held.session, TunnelSession):
            # A task that is cancelled at once would never close the tunnel that came before.
            held.session.over(reason)
        elif not held.is_ending and held.task is not None:
            held.reason = reason
            held.task.cancel()

    async def _keep(self, held: _Held) -> None:
        """Run a session, and free it."""
        wanted = held.session.wanted
        try:
            held.reason = await held.session.run()
        except FairleadError as error:
            self._refuse(wanted, error)
        except Exception:
            log.exception("session failed", extra={"session_id": wanted.session_id})
        finally:
            held.is_ending = True
            await held.session.close()

    def _forget(self, held: _Held) -> None:
        session_id = held.session.wanted.session_id
        del self._held[session_id]
        if not held.session.is_answered and held.reason not in _OURS:
            return  # the refusal says it
        self._ended[session_id] = held.reason
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        self._line.tell(Changed(session_id, False, held.reason))
        log.info(
            "session closed",
            extra={"session_id": session_id, "close_reason": held.reason.value},
        )

    def _refuse(self, wanted: WantedSession, error: FairleadError) -> None:
        log.info("session refused", extra={"session_id": wanted.session_id, "reason": error.reason})
        refusal = Refusal(error.reason, error.message)
        self._line.tell(Answered(wanted.session_id, refusal, wanted.round))
