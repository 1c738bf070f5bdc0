"""A session and its peer connection: what the negotiation asks for is done, a lost path restarted.

Needs the extra `fairlead-sdk[webrtc]`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from fairlead_sdk.errors import FairleadError
from fairlead_sdk.pulse import Pulse
from fairlead_sdk.session_api import SessionApi
from fairlead_sdk.session_errors import (
    ConnectionFailed,
    ConnectTimeout,
    RestartFailed,
    SealRejected,
)
from fairlead_sdk.session_records import TRICKLE, OpenedSession, SessionClosed, SessionServer
from fairlead_sdk.session_talk import Pace, SessionTalk, Sleep
from fairlead_tunnel.byte_channel import PROTOCOL, Side
from fairlead_tunnel.negotiation import (
    MakeOffer,
    Negotiation,
    NegotiationState,
    Step,
    TakeAnswer,
    TakeCandidates,
)
from fairlead_tunnel.peer_connection import (
    CandidateFound,
    CoreError,
    GatheringDone,
    IceServer,
    PeerChannel,
    PeerConnection,
    PeerEvent,
    PeerState,
    StateChanged,
)
from fairlead_tunnel.pump import Pump
from fairlead_tunnel.targets import Target

if TYPE_CHECKING:
    from fairlead_sdk.forwarding import LocalPort

_SETTLED = (NegotiationState.ANSWERED, NegotiationState.CONNECTED)

log = logging.getLogger(__name__)


class AsyncSession:
    """An open session; `AsyncSessions.open` makes it."""

    def __init__(
        self,
        *,
        api: SessionApi,
        opened: OpenedSession,
        connection: PeerConnection,
        core_name: str,
        pace: Pace,
        sleep: Sleep,
    ) -> None:
        self.session_id = opened.session.session_id
        self.mode = opened.session.mode
        self.core_name = core_name
        self._api = api
        self._has_relay = opened.has_relay
        self._is_renewing = False
        self._connection = connection
        self._pace = pace
        self._sleep = sleep
        self._pulse = Pulse()
        self._machine = Negotiation(trickles=self.mode == TRICKLE)
        self._talk = SessionTalk(
            api=api,
            session_id=self.session_id,
            machine=self._machine,
            pulse=self._pulse,
            pace=pace,
            sleep=sleep,
            fail=self._fail,
            connected=lambda: self._is_up,
        )
        self._error: FairleadError | None = None
        self._is_up = False
        self._was_up = False
        self._is_lost = False
        connection.listen(self._take)

    @property
    def state(self) -> str:
        """How far the negotiation is: `making`, `offering`, `offered`, `answered`, `connected` or
        `closed`.
        """
        return self._machine.state.value

    @property
    def round(self) -> int:
        """The round under way, from 1; each restart is one more."""
        return self._machine.round

    @property
    def closed(self) -> SessionClosed | None:
        """Why the mesh has closed it, once it has said so."""
        return self._talk.closed

    @property
    def is_connected(self) -> bool:
        """Say whether channels carry now."""
        return self._is_up and not self._is_lost

    @property
    def is_lost(self) -> bool:
        """Say whether it is over."""
        return self._is_lost

    async def wait_lost(self) -> None:
        """Wait until it is over."""
        await self._pulse.until(lambda: self._is_lost)

    async def wait_down(self) -> None:
        """Wait until channels do not carry, for now or for good."""
        await self._pulse.until(lambda: self._is_lost or not self._is_up)

    async def wait_told(self, seconds: float) -> SessionClosed | None:
        """Wait until the mesh has said why it is closed, at most so long; return that."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._pulse.until(lambda: self._talk.closed is not None)
        return self._talk.closed

    async def wait_connected(self, seconds: float) -> None:
        """Wait until channels carry; raises ConnectTimeout, ConnectionFailed or what the mesh
        says.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._pulse.until(lambda: self._is_up or self._is_lost)
        except TimeoutError:
            raise ConnectTimeout(seconds) from None
        if self._is_lost:
            raise self._error or ConnectionFailed()

    async def restart(self, seconds: float | None = None) -> None:
        """Negotiate another path (ICE restart) while the old one goes on.

        Raises RestartFailed when that cannot be, and after `seconds`, 60 when absent.
        """
        if not self._machine.may_restart:
            raise RestartFailed("restart_unsupported" if self.mode != TRICKLE else "not_negotiated")
        self._machine.restart()
        first = self._machine.round
        self._pulse.beat()
        try:
            async with asyncio.timeout(self._pace.lost if seconds is None else seconds):
                await self._pulse.until(lambda: self._is_lost or self._has_settled())
        except TimeoutError:
            raise RestartFailed("timeout") from None
        if self._is_lost or self._machine.round < first:
            raise RestartFailed("refused")

    def open_channel(self, target: Target) -> Pump:
        """Open a channel; bytes may be sent before its far end is connected."""
        channel = self._connection.open_channel(target.label, PROTOCOL)
        return Pump(port=channel, side=Side.OPENER)

    def open_port(self, label: str, protocol: str) -> PeerChannel:
        """Open a channel of another protocol."""
        return self._connection.open_channel(label, protocol)

    @asynccontextmanager
    async def forward(
        self, *, remote_port: int, local_port: int = 0, remote_host: str = ""
    ) -> AsyncIterator[LocalPort]:
        """Lead a local port (0: a free one) to a port inside the sandbox, or of a host that the
        gateway dials; restarts do not cut what goes through it.
        """
        from fairlead_sdk.forwarding import Forwarder

        forwarder = Forwarder(session=self)
        try:
            yield await forwarder.listen(remote_port, local_port, remote_host=remote_host)
        finally:
            await forwarder.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Negotiate during the block; at its end only the connection is left to be closed."""
        tasks = [
            asyncio.create_task(work)
            for work in (
                self._take_steps(),
                self._send(),
                self._watch(),
                self._mend(),
                self._let_go(),
            )
        ]
        for task in tasks:
            task.add_done_callback(self._take_end)
        self._machine.begin()
        try:
            yield
        finally:
            self._fail(None)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _send(self) -> None:
        if self.mode == TRICKLE:
            await self._pulse.until(lambda: self._talk.is_subscribed)
        await self._talk.send()

    async def _watch(self) -> None:
        """Watch from the start where events are needed, else only once it is connected."""
        if self.mode != TRICKLE:
            await self._pulse.until(lambda: self._is_up)
        await self._talk.watch()

    async def _take_steps(self) -> None:
        """Do with the connection what the negotiation asks for, one step after the other."""
        while True:
            while (step := self._machine.next_step()) is not None:
                try:
                    async with asyncio.timeout(self._pace.call):
                        await self._take_step(step)
                except (CoreError, TimeoutError) as error:
                    log.info("negotiation failed", extra={"cause": type(error).__name__})
                    self._fail(_failure(error))
                    return
                self._pulse.beat()
            await self._pulse.wait()

    async def _take_step(self, step: Step) -> None:
        match step:
            case MakeOffer(1):
                self._machine.offer_made(1, await self._connection.offer())
            case MakeOffer(number):
                await self._renew_servers()
                self._machine.offer_made(number, await self._connection.restart())
            case TakeAnswer(_, answer):
                await self._connection.accept(answer)
            case TakeCandidates(_, candidates, ended):
                for candidate in candidates:
                    await self._connection.add_candidate(candidate)
                if ended:
                    await self._connection.end_candidates()

    async def _renew_servers(self) -> None:
        """Have names and passwords for the relays of a round that may come late; without the mesh
        the old ones have to do.
        """
        if not self._has_relay:
            return
        self._is_renewing = True
        try:
            async with asyncio.timeout(self._pace.fresh):
                servers = await self._api.fresh_servers(self.session_id)
        except (FairleadError, TimeoutError) as error:
            log.info("servers not renewed", extra={"cause": type(error).__name__})
        else:
            self._connection.use_servers(servers_of(servers))
        finally:
            self._is_renewing = False

    async def _mend(self) -> None:
        """Restart a path that is lost, again and again, until it is back or given up."""
        while True:
            await self._pulse.until(lambda: self._was_up and not self._is_up)
            try:
                async with asyncio.timeout(self._pace.lost):
                    while not self._is_up:
                        self._machine.restart()
                        self._pulse.beat()
                        await self._come_back()
            except TimeoutError:
                log.info("session's path given up", extra={"session_id": self.session_id})
                self._fail(ConnectionFailed())
                return

    async def _let_go(self) -> None:
        """End the connection with the session, so that no channel waits for what never comes."""
        await self._pulse.until(lambda: self._is_lost)
        await self._connection.close()

    async def _come_back(self) -> None:
        """Wait for the path for as long as one round may take."""
        back = asyncio.ensure_future(self._pulse.until(lambda: self._is_up))
        try:
            await asyncio.wait((back,), timeout=self._pace.restart)
        finally:
            back.cancel()

    def _has_settled(self) -> bool:
        """Say whether no round is being negotiated and channels carry."""
        return self._machine.state in _SETTLED and self._is_up

    def _take(self, event: PeerEvent) -> None:
        match event:
            case CandidateFound() | GatheringDone() if self._is_renewing:
                pass  # of the round before
            case CandidateFound(candidate):
                self._machine.candidate_found(candidate)
            case GatheringDone():
                self._machine.gathering_done()
            case StateChanged(PeerState.CONNECTED):
                self._is_up = self._was_up = True
                self._machine.path_up()
                log.info("session connected", extra={"session_id": self.session_id})
            case StateChanged(PeerState.DISCONNECTED):
                self._is_up = False
                self._machine.path_down()
                log.info("session's path lost", extra={"session_id": self.session_id})
            case StateChanged():
                self._fail(ConnectionFailed())
            case _:
                pass
        self._pulse.beat()

    def _take_end(self, task: asyncio.Task[None]) -> None:
        """A fault in one of the tasks ends the session; it is told to who closes it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("session failed", exc_info=error)
            self._fail(ConnectionFailed())

    def _fail(self, error: FairleadError | None) -> None:
        """Be over; the first error stays."""
        if not self._is_lost:
            self._is_lost, self._error = True, error
            self._machine.close()
            self._pulse.beat()


def servers_of(servers: tuple[SessionServer, ...]) -> tuple[IceServer, ...]:
    """Return servers as cores take them."""
    return tuple(IceServer(server.urls, server.username, server.credential) for server in servers)


def _failure(error: CoreError | TimeoutError) -> FairleadError:
    if isinstance(error, CoreError) and error.reason in ("not_sealed", "seal_broken"):
        return SealRejected(error.message)
    return ConnectionFailed()
